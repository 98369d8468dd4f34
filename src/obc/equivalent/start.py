"""A start for C and D at the weights of a model that was cut by the same plan and then fitted."""

from __future__ import annotations

from typing import Any

from torch import nn
from torch.nn.utils import parametrize

from obc.recalibration.draft import Draft
from obc.recalibration.origins import Origins
from obc.running.difference import difference
from obc.running.forward import forward, outputs
from obc.running.modules import named_tensors
from obc.running.snapshot import unchanged


def start_from(model: nn.Module, fitted: nn.Module, origins: Origins, example: Any) -> None:
    """Set the full weights of a model with C and D so that it computes what `fitted` does.

    While C and D are the kept rows of the identity, Ŵ = C W Dᵀ is W at what is kept: there W gets
    the fitted values. Its other elements stay, and come in as C and D are trained.
    """
    draft = Draft()
    try:
        for name, value in named_tensors(fitted).items():
            path, _, key = name.rpartition(".")
            module: Any = model.get_submodule(path)
            if parametrize.is_parametrized(module, key):
                full = module.parametrizations[key].original
                whole = full.detach().clone()
                whole.view(-1)[origins.ids(name).to(full.device)] = value.detach()
                draft.write(full, whole)
            else:
                draft.write(getattr(module, key), value.detach())
        with unchanged(fitted), unchanged(model):
            difference(outputs(forward(fitted, example)), outputs(forward(model, example)))
    except BaseException:
        draft.take_back()
        raise
