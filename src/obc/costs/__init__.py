"""What a model costs, and what a target asks."""
