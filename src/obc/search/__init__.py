"""Algorithm 1: score, rank, remove, until the target is met."""
