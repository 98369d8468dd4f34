"""Models that no other test names, judged one line each: see benchmarks/sweep.py."""
