"""C and D as factors of the weights: every connection still contributes while tuning."""

from obc.equivalent.attach import check_state, is_equivalent
from obc.equivalent.hold import hold

__all__ = ["check_state", "hold", "is_equivalent"]
