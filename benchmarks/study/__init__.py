"""The study: the paper's comparisons, cell by cell, as far as two cores reach, and its page."""
