"""Lets PyPI's torchvision be imported beside a CPU-only torch, where its compiled library fails.

That library is linked against CUDA; without it `import torchvision` ends in "operator
torchvision::nms does not exist", and takes transformers and timm down with it. Two operators have
to be declared before. Run as a program, this file leaves a copy of itself in the environment's
site-packages that does so whenever torchvision is imported, also without obc: set-up runs it.
Nothing but the standard library is imported until then.
"""

from __future__ import annotations

import contextlib
import importlib.abc
import importlib.util
import shutil
import sys
import sysconfig
from pathlib import Path
from typing import Any

# What torchvision adds Python code to as it is imported; its compiled library declares them.
OPERATORS = ("torchvision::nms", "torchvision::qnms")
SIGNATURE = "(Tensor dets, Tensor scores, float iou_threshold) -> Tensor"
NAME = "torchvision_operators"


def declare() -> None:
    """Declare the missing operators if torchvision is installed and its library does not load.

    They are declared, not implemented: models and transforms work, `torchvision.ops` does not.
    """
    spec = importlib.util.find_spec("torchvision")
    if "torchvision" in sys.modules or spec is None or spec.origin is None:
        return
    import torch

    for library in Path(spec.origin).parent.glob("_C.*"):
        with contextlib.suppress(OSError):
            torch.ops.load_library(library)
    for operator in OPERATORS:
        if not hasattr(torch.ops.torchvision, operator.removeprefix("torchvision::")):
            torch.library.define(operator, SIGNATURE)


class _BeforeTorchvision(importlib.abc.MetaPathFinder):
    """Declares the operators when torchvision is first looked for, and leaves finding to others."""

    def find_spec(self, fullname: str, path: Any, target: Any = None) -> None:
        if fullname == "torchvision":
            sys.meta_path.remove(self)
            declare()


def watch() -> None:
    """Declare the operators as soon as torchvision is imported."""
    sys.meta_path.insert(0, _BeforeTorchvision())


def install(folder: Path) -> None:
    """Have each Python that starts with this folder of packages call `watch`."""
    shutil.copyfile(__file__, folder / f"{NAME}.py")
    (folder / f"{NAME}.pth").write_text(f"import {NAME}; {NAME}.watch()\n")


if __name__ == "__main__":
    install(Path(sysconfig.get_path("purelib")))
