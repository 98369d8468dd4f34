"""Optimal Brain Connection: remove whole channels and heads from trained networks."""

from obc.criteria.blocks import jacobian_blocks
from obc.criteria.criterion import Criterion
from obc.criteria.criterion import register as criterion
from obc.criteria.score import score
from obc.errors import ObcError
from obc.planning.budget import Cost, cost
from obc.planning.plan import Plan
from obc.planning.search import plan
from obc.planning.targets import Channels, Latency, MACs, Params
from obc.surgery.slicing import apply
from obc.surgery.verify import verify
from obc.trace.layers import handler
from obc.trace.sites import Frozen, Member, Site, Sites
from obc.trace.tracer import trace

__all__ = [
    "Channels",
    "Cost",
    "Criterion",
    "Frozen",
    "Latency",
    "MACs",
    "Member",
    "ObcError",
    "Params",
    "Plan",
    "Site",
    "Sites",
    "apply",
    "cost",
    "criterion",
    "handler",
    "jacobian_blocks",
    "plan",
    "score",
    "trace",
    "verify",
]
