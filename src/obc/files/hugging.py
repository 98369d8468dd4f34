"""A configuration with which plain `from_pretrained` loads a pruned Hugging Face model.

A configuration knows one width for all layers. Where the pruned widths are the same over layers,
some configuration builds just these shapes; it is found by asking which numbers of the old one
move which dimensions, and believed when `from_pretrained` has given the same outputs.
"""

from __future__ import annotations

import copy
import re
import shutil
import warnings
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any, get_args

import torch
from torch import Tensor, nn

from obc.errors import ObcError
from obc.files.artifact import Tokenizer
from obc.plans.example import rebuild
from obc.plans.plan import Plan
from obc.running.difference import difference
from obc.running.forward import forward, outputs
from obc.running.snapshot import unchanged
from obc.tracing.sites import shapes_of

# Numbers that may be widths. The width of a single head is never pruned.
_WIDTHS = re.compile(r"size|dim|head|inner|width|ffn|d_ff|d_model|n_embd|experts")
_NO_WIDTHS = re.compile(
    r"head_dim|d_kv|vocab|image|patch|window|kernel|block|batch|chunk|type|per_tok"
)
Shapes = dict[str, tuple[int, ...]]


def is_hugging(model: nn.Module) -> bool:
    """Whether a model is one of transformers', which need not be installed to ask."""
    return any(
        c.__name__ == "PreTrainedModel" and c.__module__.startswith("transformers.")
        for c in type(model).__mro__
    )


def fitting_config(model: Any) -> Any:
    """The configuration that builds a model of these shapes; an error if there is none."""
    config, target = _fewer_experts(model, _start(model), shapes_of(model)), shapes_of(model)
    for _ in range(3):  # heads and widths multiply, so one linear step may not be all
        now = _built(model, config)
        if now == target:
            return config
        if now.keys() != target.keys() or any(len(now[n]) != len(target[n]) for n in now):
            break
        config = _closer(model, config, now, target)
    raise ObcError("its widths differ over layers, or are none that a configuration can say")


def _fewer_experts(model: Any, config: Any, target: Shapes) -> Any:
    """The configuration with so many experts as modules that parameters have the right names."""
    if len(_built(model, config)) <= len(target):
        return config
    for key, value in config.to_dict().items():
        if type(value) is not int or "experts" not in key or _NO_WIDTHS.search(key):
            continue
        other, low, high = copy.deepcopy(config), 1, value
        while low < high:  # the more of them, the more parameters
            setattr(other, key, (low + high) // 2)
            fewer = len(_built(model, other)) < len(target)
            low, high = ((low + high) // 2 + 1, high) if fewer else (low, (low + high) // 2)
        setattr(other, key, low)
        if _built(model, other).keys() == target.keys():
            return other
    return config


def _start(model: Any) -> Any:
    config = copy.deepcopy(model.config)
    config.architectures = [type(model).__name__]
    heads = (getattr(m, "head_dim", None) for m in model.modules())
    width = next((n for n in heads if isinstance(n, int)), None)
    if width is not None:
        # Else it would be taken from widths that have changed; Qwen2 reads it where it is set.
        with suppress(AttributeError):  # Falcon's is worked out from others, and cannot be set
            config.head_dim = width
    return config


def _built(model: Any, config: Any) -> Shapes:
    """The shapes of what a configuration builds; nothing is allocated."""
    try:
        with torch.device("meta"), quietly():
            return shapes_of(type(model)(copy.deepcopy(config)))
    except Exception as error:
        raise ObcError(f"its configuration does not allow it: {said(error)}") from None


def _closer(model: Any, config: Any, now: Shapes, target: Shapes) -> Any:
    """Solve for the numbers, with every dimension an equation."""
    places = [(name, dim) for name, shape in now.items() for dim in range(len(shape))]
    keys, slopes = [], []
    for key, value in config.to_dict().items():
        if type(value) is not int or value < 1 or not _WIDTHS.search(key) or _NO_WIDTHS.search(key):
            continue
        other = copy.deepcopy(config)
        setattr(other, key, 2 * value)
        try:
            moved = _built(model, other)
        except ObcError:
            continue
        if moved != now and moved.keys() == now.keys():
            keys.append(key)
            slopes.append([(moved[n][d] - now[n][d]) / value for n, d in places])
    if not keys:
        raise ObcError("none of its configuration's numbers is a width")
    gaps = torch.tensor([float(target[n][d] - now[n][d]) for n, d in places], dtype=torch.float64)
    matrix = torch.tensor(slopes, dtype=torch.float64).T
    steps = torch.linalg.lstsq(matrix, gaps, driver="gelsd").solution
    smaller = copy.deepcopy(config)
    for key, step in zip(keys, steps.tolist(), strict=True):
        setattr(smaller, key, max(1, round(getattr(config, key) + step)))
    return smaller


def write_config(model: Any, config: Any, folder: Path) -> list[str]:
    """`config.json`, and what the model says about generating text; returns the files' names."""
    first = next((p.dtype for p in model.parameters() if p.is_floating_point()), None)
    config.dtype = first
    settings = getattr(model, "generation_config", None)
    try:
        config.save_pretrained(folder)
        if settings is not None and model.can_generate():
            settings.save_pretrained(folder)
    except Exception as error:
        raise ObcError(f"its configuration does not allow it: {said(error)}") from None
    return sorted(["config.json", *(p.name for p in folder.glob("generation_config.json"))])


def write_tokenizer(model: Any, folder: Path) -> list[str]:
    """The tokenizer's files as they lie where the model came from, if they do; their names."""
    from transformers.utils.hub import cached_file

    names = []
    for name in get_args(Tokenizer) if model.name_or_path else ():
        try:
            path = cached_file(model.name_or_path, name, local_files_only=True)
        except (OSError, ValueError):
            continue
        if path is not None:
            shutil.copyfile(path, folder / name)
            names.append(name)
    return names


def check_pretrained(model: Any, kind: Any, folder: Path, plans: list[Plan]) -> None:
    """Load the folder as its users will, by the class `kind`, and compare tensors and outputs."""
    try:
        with quietly():
            twin = kind.from_pretrained(folder, dtype="auto", local_files_only=True)
    except Exception as error:
        raise ObcError(f"from_pretrained says: {said(error)}") from None
    _same_tensors(model.state_dict(), twin.state_dict())
    if plans and plans[-1].example is not None:
        first = next(p for p in model.parameters() if p.is_floating_point())
        example = rebuild(plans[-1].example, first.device, first.dtype)
        with unchanged(model):
            ours = outputs(forward(model, example))
        try:
            theirs = outputs(forward(twin.to(first.device), example))
        except Exception as error:  # kernels of experts, say, refuse some widths
            raise ObcError(f"what from_pretrained gives does not run: {said(error)}") from None
        difference(ours, theirs)


def said(error: Exception) -> str:
    """The last line, where the cause stands."""
    return (str(error).strip() or repr(error)).splitlines()[-1].strip()


@contextmanager
def quietly() -> Iterator[None]:
    """No progress bars, no reports, and no random number drawn."""
    from transformers.utils import logging

    level, bars = logging.get_verbosity(), logging.is_progress_bar_enabled()
    logging.set_verbosity_error()
    logging.disable_progress_bar()
    try:
        with torch.random.fork_rng(devices=[]), warnings.catch_warnings():
            warnings.simplefilter("ignore")
            yield
    finally:
        logging.set_verbosity(level)
        if bars:
            logging.enable_progress_bar()


def _same_tensors(ours: Mapping[str, Tensor], theirs: Mapping[str, Tensor]) -> None:
    for name, tensor in ours.items():
        other = theirs.get(name)
        if (
            other is None
            or other.dtype != tensor.dtype
            or not torch.equal(other.cpu(), tensor.cpu())
        ):
            raise ObcError(f"from_pretrained gives another '{name}'")
