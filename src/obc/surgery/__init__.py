"""Removing channels, and proving that nothing else changed."""
