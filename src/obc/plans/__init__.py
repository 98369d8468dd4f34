"""What is to be removed: plans, their JSON and their summary."""
