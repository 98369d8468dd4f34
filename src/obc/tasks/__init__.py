"""What a model is for: its data, its loss, and the metrics by which it is judged."""

from obc.tasks.classification import Classification
from obc.tasks.detection import Detection
from obc.tasks.evaluate import evaluate
from obc.tasks.evaluation import Evaluation, Metric
from obc.tasks.language import Language
from obc.tasks.resolver import resolve
from obc.tasks.segmentation import Segmentation
from obc.tasks.task import Task

__all__ = [
    "Classification",
    "Detection",
    "Evaluation",
    "Language",
    "Metric",
    "Segmentation",
    "Task",
    "evaluate",
    "resolve",
]
