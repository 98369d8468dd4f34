"""Published weights of YOLOv7 and YOLOv7-tiny under the names of `obc.models.yolov7`.

The published network is one list of layers, `model.0` to `model.105` (tiny: `model.77`), so a name
there is the number of a layer and a name inside it:

| ours | published | |
| --- | --- | --- |
| `stem.1.conv.weight` | `model.1.conv.weight` | convolutions: `conv`, `bn` |
| `stage2.first`, `.second`, `.chain.0` …, `.last` | `model.4`, `.5`, `.6` …, `.11` | ELAN |
| `pool3.pooled`, `.reduced`, `.strided` | `model.13`, `.14`, `.15` | MP |
| `spp.cv1` … `.cv7` | `model.51.cv1` … `.cv7` | SPPCSPC |
| `spp.shortcut`, `.reduced`, `.mixed`, `.last` | `model.29`, `.30`, `.35`, `.37` | of tiny |
| `out3.rbr_dense.0.weight` | `model.102.rbr_dense.0.weight` | RepConv |
| `detect.m.0`, `.ia.0.implicit`, `.im.0.implicit`, `.anchors` | `model.105.m.0` … | the head |

The parts begin where `POSITIONS` and `TINY_POSITIONS` in `obc.models.yolov7` say. `anchor_grid`
follows from `anchors`, and is left out.
"""

from __future__ import annotations

import pickle
from collections.abc import Mapping
from pathlib import Path

import torch
from safetensors import SafetensorError
from safetensors.torch import load_file
from torch import Tensor

from obc.errors import ObcError
from obc.models.yolov7 import YOLOv7


def published_names(model: YOLOv7) -> dict[str, str]:
    """The published name of each parameter and buffer.

    >>> from obc.models.yolov7 import yolov7_tiny
    >>> published_names(yolov7_tiny(width=0.25))["stage3.chain.1.conv.weight"]
    'model.12.conv.weight'
    """
    return {name: _published(model, name) for name in model.state_dict()}


def load_published(model: YOLOv7, state: Mapping[str, Tensor]) -> None:
    """Load a state with published names, such as `read_published` gives; all or nothing."""
    names = published_names(model)
    missing = [theirs for theirs in names.values() if theirs not in state]
    if missing:
        raise ObcError(f"the weights lack '{missing[0]}' and {len(missing) - 1} more names")
    surplus = [n for n in state if n not in names.values() and not n.endswith(".anchor_grid")]
    if surplus:
        raise ObcError(f"no layer for '{surplus[0]}' and {len(surplus) - 1} more of the weights")
    for ours, value in model.state_dict().items():
        shape = tuple(state[names[ours]].shape)
        if shape != tuple(value.shape):
            raise ObcError(
                f"'{names[ours]}' has shape {shape}, and '{ours}' {tuple(value.shape)}: build the "
                "network with the number of classes and the width of the weights"
            )
    model.load_state_dict({ours: state[theirs] for ours, theirs in names.items()})


def read_published(path: Path) -> dict[str, Tensor]:
    """A state with published names from a `.safetensors`, or from a `.pt` without running code.

    Of a `.pt` only tensors in plain containers are read (torch's `weights_only=True`): a state
    dict, or one under "model" or "state_dict". The file that the authors publish pickles whole
    modules instead, which would run their code; it is refused, and has to be converted where that
    code lives: `save_file(model.float().state_dict(), "yolov7.safetensors")`.
    """
    try:
        if path.suffix == ".safetensors":
            return load_file(path)
        content = torch.load(path, map_location="cpu", weights_only=True)
    except pickle.UnpicklingError:
        raise ObcError(
            f"{path} holds more than tensors, and reading it would run code; convert it where it "
            "was made: save_file(model.float().state_dict(), 'yolov7.safetensors')"
        ) from None
    except (OSError, RuntimeError, EOFError, SafetensorError) as error:
        raise ObcError(f"{path} cannot be read: {str(error).splitlines()[0]}") from None
    for name in ("model", "state_dict"):
        if isinstance(content, Mapping) and isinstance(content.get(name), Mapping):
            content = content[name]
    if not isinstance(content, Mapping) or not all(
        isinstance(value, Tensor) for value in content.values()
    ):
        raise ObcError(f"{path} is no state dict: it must hold tensors by name")
    return {str(name): value.float() for name, value in content.items()}


def _published(model: YOLOv7, name: str) -> str:
    part = next(p for p in model.positions if name.startswith(f"{p}."))
    position, rest = model.positions[part], name.removeprefix(f"{part}.")
    offsets: Mapping[str, int] = getattr(model.get_submodule(part), "offsets", {})
    for layer, offset in offsets.items():
        if rest.startswith(f"{layer}."):
            return f"model.{position + offset}.{rest.removeprefix(f'{layer}.')}"
    return f"model.{position}.{rest}"
