"""`resolve`: any task by one name, as the command line and recipes write it."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping

from obc.data import NAMES, load
from obc.errors import ObcError
from obc.models.resolver import from_file, options_of
from obc.tasks.classification import Classification
from obc.tasks.detection import from_coco, from_voc, from_yolo
from obc.tasks.evaluate import is_task
from obc.tasks.language import from_text
from obc.tasks.task import Task

_SIZE = re.compile(r",size=(\d+)$")

# What begins with one of these names makes this kind of task: the rest of the name, and the name of
# the model it is for, of which a language model's task takes the tokenizer.
KINDS: Mapping[str, Callable[[str, str | None], Task]] = {
    "text": from_text,
    "voc": from_voc,
    "coco": from_coco,
    "yolo": from_yolo,
}


def resolve(name: str, model: str | None = None) -> Task:
    """A task by the name of its data, or of a function of yours that makes one.

    "digits", "cifar10:data/cifar10" and "folder:photos,size=96" are classifications;
    "text:tale.txt,length=2048" is the next token of a text, for the tokenizer of `model`;
    "voc:FOLDER", "coco:FILE.json" and "yolo:FILE.yaml" are detections, with ",size=256x320" where
    images are not to be 640 pixels square;
    "path/to/file.py:make" calls `make`, which returns a task.

    >>> task = resolve("digits")
    >>> task.name, task.metrics[0].title
    ('digits', 'top-1 % ↑')
    """
    kind, _, place = name.partition(":")
    if kind in KINDS:
        return KINDS[kind](place, model)
    path, _, maker = options_of(name)[0].rpartition(":")
    if path.endswith(".py"):
        return _own(name, path, maker)
    return _classification(kind, place)


def _classification(name: str, place: str) -> Classification:
    size = _SIZE.search(place)
    if size:
        return Classification.of(load(name, place[: size.start()], size=int(size[1])))
    if name in NAMES and name != "digits" and not place:
        raise ObcError(f"'{name}' is read from a folder: --data {name}:FOLDER")
    return Classification.of(load(name, place or None))


def _own(name: str, path: str, maker: str) -> Task:
    _, options = options_of(name)
    make = from_file(path, maker)
    try:
        task = make(**options)
    except ObcError:
        raise
    except Exception as error:
        raise ObcError(f"'{name}' cannot be made: {type(error).__name__}: {error}") from error
    if not is_task(task):
        raise ObcError(
            f"'{name}' gives a {type(task).__name__}, not a task: an object with loss, evaluate "
            "and training, such as a subclass of obc.tasks.Task"
        )
    made: Task = task
    return made
