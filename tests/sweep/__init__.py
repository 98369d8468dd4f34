"""Models that no other test names, judged one line each: see benchmarks/sweep.py."""

from tests.sweep.language import LANGUAGE
from tests.sweep.pictures import PICTURES

SWEEP = [*LANGUAGE, *PICTURES]
