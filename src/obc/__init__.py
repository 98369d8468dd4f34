"""Optimal Brain Connection: remove whole channels and heads from trained networks."""

from obc.costs.counting import Cost, cost
from obc.costs.targets import Channels, Latency, MACs, Memory, Params
from obc.criteria.blocks import jacobian_blocks
from obc.criteria.criterion import Criterion
from obc.criteria.criterion import register as criterion
from obc.criteria.score import score
from obc.equivalent.apply import apply
from obc.equivalent.groups import parameter_groups
from obc.equivalent.merge import merge
from obc.errors import ObcError
from obc.files.export import Export, export
from obc.files.loading import load
from obc.files.saving import save
from obc.planning.planner import plan
from obc.planning.prune import Pruned, prune
from obc.planning.quality import Quality
from obc.plans.plan import Plan
from obc.recalibration.account import Recalibration
from obc.recalibration.recalibrate import recalibrate
from obc.reporting.page import report
from obc.surgery.verify import verify
from obc.tasks.evaluate import evaluate
from obc.tasks.evaluation import Evaluation
from obc.tracing.layers import handler
from obc.tracing.members import Member
from obc.tracing.rules.registry import rule
from obc.tracing.sites import Frozen, Site, Sites
from obc.tracing.tracer import trace
from obc.tuning.recipe import Recipe
from obc.tuning.trainer import finetune

__all__ = [
    "Channels",
    "Cost",
    "Criterion",
    "Evaluation",
    "Export",
    "Frozen",
    "Latency",
    "MACs",
    "Member",
    "Memory",
    "ObcError",
    "Params",
    "Plan",
    "Pruned",
    "Quality",
    "Recalibration",
    "Recipe",
    "Site",
    "Sites",
    "apply",
    "cost",
    "criterion",
    "evaluate",
    "export",
    "finetune",
    "handler",
    "jacobian_blocks",
    "load",
    "merge",
    "parameter_groups",
    "plan",
    "prune",
    "recalibrate",
    "report",
    "rule",
    "save",
    "score",
    "trace",
    "verify",
]
