"""Files: written whole, read with suspicion, recognised by their digest."""
