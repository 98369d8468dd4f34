"""Which channels of a model belong together."""
