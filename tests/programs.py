"""Random networks: small programs over a pool of live tensors, valid by construction.

A program grows by running it. Each step picks a tensor that exists, an operation that its shape
allows, and partners for it; the result joins the pool. Whatever nobody read goes to a head or is
put out as it is.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from hypothesis import strategies as st
from torch import Tensor, nn

from tests.examples import floats
from tests.kinds import Pick, channels, do
from tests.sensitive import sensitive
from tests.steps import BINARY, MIXING, UNARY

SMALL = 500  # numbers per sample above which nothing grows further


@dataclass
class Step:
    """Which layer runs on which tensors of the pool."""

    layer: int
    inputs: tuple[int, ...]


class Program(nn.Module):
    """Runs its steps in order and returns what is left over."""

    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.ModuleList()
        self.steps: list[Step] = []
        self.outputs: list[int] = []
        # Softmax or sums over channels, as functions: the oracle that masks weights is not right.
        self.mixes = False

    def forward(self, *pool: Tensor) -> list[Tensor]:
        live = list(pool)
        for step in self.steps:
            live += self.results(step, live)
        return [live[i] for i in self.outputs]

    def results(self, step: Step, live: list[Tensor]) -> list[Tensor]:
        out = self.layers[step.layer](*(live[i] for i in step.inputs))
        return [out] if isinstance(out, Tensor) else list(out)

    def extra_repr(self) -> str:
        steps = [f"{s.layer}{list(s.inputs)}" for s in self.steps]
        return f"steps {' '.join(steps)}, outputs {self.outputs}"


@st.composite
def programs(draw: st.DrawFn) -> tuple[Program, tuple[Tensor, ...]]:
    """Networks and the examples they take, as Hypothesis draws and shrinks them."""
    return build(Pick(lambda options: draw(st.sampled_from(options))))


def build(pick: Pick) -> tuple[Program, tuple[Tensor, ...]]:
    """A network in float64 with every weight drawn at random, and an example it takes."""
    examples = {
        "image": (floats(2, 3, 4, 4),),
        "tokens": (floats(2, 4, 5),),
        "vector": (floats(3, 5),),
        "both": (floats(2, 3, 4, 4), floats(2, 4, seed=3)),
    }
    example = examples[pick.one(examples)]
    program, pool = Program(), list(example)
    with torch.random.fork_rng(), torch.no_grad():
        torch.manual_seed(0)
        for i, x in enumerate(example):
            grow(program, pool, pick, i, "conv" if x.ndim == 4 else "linear")
        for _ in range(pick.one(range(1, 10))):
            grow(program, pool, pick, pick.one(range(len(example), len(pool))))
        finish(program, pool, pick, len(example))
    return sensitive(program, pick.one(range(4)), example), example


def grow(program: Program, pool: list[Tensor], pick: Pick, i: int, kind: str | None = None) -> None:
    """Add a step that reads the tensor at `i`, if the kind that is picked applies."""
    x = pool[i]
    partners = {name: [j for j, y in enumerate(pool) if b[0](x, y)] for name, b in BINARY.items()}
    layers = [s for s in program.steps if same_shapes(pool, s, x)]
    kinds = [name for name, (ndims, _) in UNARY.items() if x.ndim in ndims]
    kinds += [name for name, found in partners.items() if found]
    kinds += ["again"] if layers else []
    kind = kind or pick.one(kinds)
    if kind == "again":
        step = Step(pick.one(layers).layer, (i,))
    elif kind in BINARY:
        step = Step(len(program.layers), (i, pick.one(partners[kind])))
        program.layers.append(do(kind, BINARY[kind][1]))
    else:
        layer = UNARY[kind][1](pick, x)
        if layer is None:
            return
        step = Step(len(program.layers), (i,))
        program.layers.append(layer)
    results = program.double().eval().results(step, pool)
    if any(t[0].numel() > SMALL or t.numel() == 0 for t in results):
        del program.layers[step.layer :]
        return
    program.mixes |= kind in MIXING
    program.steps.append(step)
    pool += results


def same_shapes(pool: list[Tensor], step: Step, x: Tensor) -> bool:
    """Whether a step with weights could run once more, on this tensor."""
    return len(step.inputs) == 1 and pool[step.inputs[0]].shape == x.shape


def finish(program: Program, pool: list[Tensor], pick: Pick, inputs: int) -> None:
    """Give each tensor that nobody read a head, or put it out."""
    read = {i for step in program.steps for i in step.inputs}
    for i in [i for i in range(inputs, len(pool)) if i not in read]:
        x = pool[i]
        if pick.one((False,) * 9 + (True,)):  # mostly a head: what is put out stays
            program.outputs.append(i)
            continue
        wide = channels(x)
        head = nn.Conv2d(wide, 3, 1) if x.ndim == 4 else nn.Linear(wide, 3)
        step = Step(len(program.layers), (i,))
        program.layers.append(head)
        program.steps.append(step)
        program.outputs.append(len(pool))
        pool += program.double().results(step, pool)
