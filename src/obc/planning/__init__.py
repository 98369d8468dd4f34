"""What to remove: targets, costs and plans."""
