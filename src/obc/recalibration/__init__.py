"""What stays takes over from what went, in closed form: the step after a cut, without training."""
