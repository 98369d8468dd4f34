"""C and D as factors of the weights: every connection still contributes while tuning."""
