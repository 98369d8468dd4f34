"""Comparisons over criteria, seeds and budgets."""
