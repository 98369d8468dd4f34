"""A modelling file with which plain transformers loads widths that differ over layers.

A configuration of transformers has one number for all layers. Where the pruned widths differ, the
folder gets the class that the model has, narrowed: `modeling_pruned.py` builds the model of the
original configuration and then sets the shapes and numbers that `config.json` lists under "pruned".
`AutoModelForCausalLM.from_pretrained(folder, trust_remote_code=True)` does the rest.
"""

from __future__ import annotations

import copy
import importlib.util
from pathlib import Path
from typing import Any

import torch
from torch import nn

from obc.errors import ObcError
from obc.files.hugging import quietly, said
from obc.tracing.experts import within
from obc.tracing.sites import shapes_of

MODELLING = "modeling_pruned.py"
_FILE = '''"""{kind} of transformers with the widths that config.json lists under "pruned"."""

import copy

import torch
from {module} import {kind}


class Pruned{kind}({kind}):
    """Built as configured, then narrowed layer by layer."""

    def __init__(self, config, *args, **kwargs):
        super().__init__(config, *args, **kwargs)
        for path in config.pruned.get("gone", ()):
            around, _, key = path.rpartition(".")
            del self.get_submodule(around)._modules[key]
        for name, shape in config.pruned["shapes"].items():
            path, _, key = name.rpartition(".")
            module = self.get_submodule(path)
            old = getattr(module, key)
            new = torch.empty(shape, dtype=old.dtype, device=old.device)
            if isinstance(old, torch.nn.Parameter):
                setattr(module, key, torch.nn.Parameter(new, requires_grad=old.requires_grad))
            else:
                setattr(module, key, new)
        for path, numbers in config.pruned["numbers"].items():
            for key, value in numbers.items():
                value = tuple(value) if isinstance(value, list) else value
                setattr(self.get_submodule(path), key, value)
        for path, numbers in config.pruned["configs"].items():
            module = self.get_submodule(path)
            module.config = copy.copy(module.config)
            for key, value in numbers.items():
                setattr(module.config, key, value)
        self.tie_weights()
'''


def narrowed_config(model: Any) -> Any:
    """The model's configuration with the shapes and numbers that a narrowed class sets."""
    kind = type(model)
    config = copy.deepcopy(model.config)
    try:
        with torch.device("meta"), quietly():
            fresh = kind(copy.deepcopy(config))
    except Exception as error:
        raise ObcError(f"its configuration does not allow it: {said(error)}") from None
    gone = _gone(fresh, model)
    before, after = shapes_of(fresh), shapes_of(model)
    before = {name: shape for name, shape in before.items() if within(name, gone) is None}
    if before.keys() != after.keys():
        raise ObcError("it has other parameters than its configuration builds")
    config.architectures = [f"Pruned{kind.__name__}"]
    config.auto_map = {name: f"modeling_pruned.Pruned{kind.__name__}" for name in _autos(model)}
    config.pruned = {
        "shapes": {name: list(shape) for name, shape in after.items() if shape != before[name]},
        "numbers": _numbers(fresh, model),
        "configs": _config_numbers(model),
    }
    if gone:
        config.pruned["gone"] = gone
    return config


def _gone(fresh: nn.Module, model: nn.Module) -> list[str]:
    """The modules of a fresh model, such as experts of a list, that the pruned one lacks."""
    there = {path for path, _ in model.named_modules()}
    lacks = [path for path, _ in fresh.named_modules() if path not in there]
    return [path for path in lacks if path.rpartition(".")[0] in there]


def _autos(model: Any) -> list[str]:
    """The classes, such as AutoModelForCausalLM, by which transformers finds this model."""
    from transformers.models.auto import modeling_auto

    kinds = {n: c for n, c in vars(modeling_auto).items() if n.startswith("AutoModel")}
    return [
        name
        for name, auto in kinds.items()
        if auto._model_mapping.get(type(model.config), None) is type(model)
    ]


def _numbers(fresh: nn.Module, model: nn.Module) -> dict[str, dict[str, Any]]:
    """The numbers that the pruned model's modules keep otherwise than fresh ones, by module."""
    others = dict(fresh.named_modules())
    changed = {
        path: {
            key: value
            for key, value in vars(module).items()
            if _is_number(value) and vars(others[path]).get(key) != value
        }
        for path, module in model.named_modules()
        if path in others
    }
    return {path: numbers for path, numbers in changed.items() if numbers}


def _config_numbers(model: Any) -> dict[str, dict[str, int]]:
    """The same of configurations: a module whose code reads its width there has one of its own."""
    whole = model.config.to_dict()
    changed = {
        path: {k: v for k, v in module.config.to_dict().items() if type(v) is int and v != whole[k]}
        for path, module in model.named_modules()
        if path and hasattr(module, "config") and module.config is not model.config
    }
    return {path: numbers for path, numbers in changed.items() if numbers}


def _is_number(value: Any) -> bool:
    """A whole number, or several."""
    if isinstance(value, (tuple, list)):
        return bool(value) and all(type(n) is int for n in value)
    return type(value) is int


def write_modelling(model: Any, folder: Path) -> None:
    """The narrowed class, as a file beside the configuration."""
    kind = type(model)
    if not kind.__module__.startswith("transformers."):
        raise ObcError(f"{kind.__name__} is no class of transformers")
    # Parts of a model, such as WhisperEncoder, are not exported by transformers itself.
    exported = hasattr(importlib.import_module("transformers"), kind.__name__)
    module = "transformers" if exported else kind.__module__
    text = _FILE.format(kind=kind.__name__, module=module)
    (folder / MODELLING).write_text(text, encoding="utf-8")


def class_in(folder: Path) -> Any:
    """The class of a modelling file that was written here."""
    spec = importlib.util.spec_from_file_location("modeling_pruned", folder / MODELLING)
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return next(c for n, c in vars(module).items() if n.startswith("Pruned"))
