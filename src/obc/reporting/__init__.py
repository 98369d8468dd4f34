"""What a run leaves behind for people: its record, the figures, and the HTML page."""
