"""Benchmarks: each module prints a table and writes `results/<its name>.json`."""
