"""Networks about wiring: shared and bare weights, loops, branches, odd inputs and outputs."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F
from torch.nn.utils import parametrizations
from torch.utils.checkpoint import checkpoint

from tests.nets.blocks import Head, conv_bn


class TiedEmbedding(nn.Module):
    """A tiny language model whose head is its embedding."""

    def __init__(self) -> None:
        super().__init__()
        self.embedding = nn.Embedding(23, 10)
        self.positions = nn.Parameter(torch.zeros(9, 10))
        self.norm = nn.LayerNorm(10)
        self.up = nn.Linear(10, 16)
        self.down = nn.Linear(16, 10)
        self.head = nn.Linear(10, 23, bias=False)
        self.head.weight = self.embedding.weight

    def forward(self, tokens: Tensor) -> Tensor:
        x = self.embedding(tokens) + self.positions[: tokens.shape[1]]
        x = x + self.down(F.gelu(self.up(self.norm(x))))
        return self.head(x)


class TiedLinears(nn.Module):
    """Two linear layers share a weight but not a bias; it serves once more, transposed."""

    def __init__(self) -> None:
        super().__init__()
        self.first = nn.Linear(6, 9)
        self.second = nn.Linear(6, 9)
        self.second.weight = self.first.weight
        self.middle = nn.Linear(18, 11)
        self.back = nn.Linear(11, 9)
        self.out = nn.Linear(6, 5)

    def forward(self, x: Tensor) -> Tensor:
        y = torch.cat([F.relu(self.first(x)), torch.tanh(self.second(-x))], -1)
        y = self.back(F.relu(self.middle(y)))
        return self.out(F.relu(F.linear(y, self.first.weight.t())))


class CalledTwice(nn.Module):
    """One block runs twice in a row, and one convolution runs on two different inputs."""

    def __init__(self) -> None:
        super().__init__()
        self.stem = conv_bn(3, 8)
        self.block = nn.Sequential(conv_bn(8, 11), nn.Conv2d(11, 8, 3, 1, 1))
        self.side = conv_bn(3, 8, stride=2)
        self.shared = conv_bn(8, 7)
        self.head = Head(7, 5)

    def forward(self, x: Tensor) -> Tensor:
        main = self.stem(x)
        for _ in range(2):
            main = F.relu(main + self.block(main))
        return self.head(self.shared(main)) - self.head(self.shared(self.side(x)))


class Siamese(nn.Module):
    """The same network sees both inputs, and only their distance goes on."""

    def __init__(self) -> None:
        super().__init__()
        self.body = nn.Sequential(conv_bn(3, 7), conv_bn(7, 9, stride=2))
        self.embed = nn.Linear(9, 8)
        self.head = nn.Linear(8, 3)

    def forward(self, first: Tensor, second: Tensor) -> Tensor:
        features = [self.embed(self.body(x).mean((2, 3))) for x in (first, second)]
        return self.head((features[0] - features[1]).abs())


class BareWeights(nn.Module):
    """Weights are bare parameters: x @ weight, a transposed one, addmm, F.linear and F.conv2d."""

    def __init__(self) -> None:
        super().__init__()
        self.kernel = nn.Parameter(torch.randn(6, 3, 3, 3) * 0.2)
        self.shift = nn.Parameter(torch.zeros(6))
        self.weight = nn.Parameter(torch.randn(6, 9) * 0.4)
        self.turned = nn.Parameter(torch.randn(11, 9) * 0.3)
        self.bias = nn.Parameter(torch.zeros(7))
        self.added = nn.Parameter(torch.randn(11, 7) * 0.3)
        self.last = nn.Parameter(torch.randn(5, 7) * 0.3)

    def forward(self, x: Tensor) -> Tensor:
        x = F.relu(F.conv2d(x, self.kernel, self.shift, padding=1)).mean((2, 3))
        x = F.relu(x @ self.weight)
        x = F.relu(x @ self.turned.t())
        x = F.relu(torch.addmm(self.bias, x, self.added))
        return F.linear(x, self.last)


class BatchedExperts(nn.Module):
    """All experts' weights lie in one parameter, used by bmm; a router weighs the results."""

    def __init__(self) -> None:
        super().__init__()
        self.stem = nn.Linear(6, 10)
        self.router = nn.Linear(10, 3)
        self.up = nn.Parameter(torch.randn(3, 10, 13) * 0.3)
        self.down = nn.Parameter(torch.randn(3, 13, 10) * 0.3)
        self.head = nn.Linear(10, 5)

    def forward(self, x: Tensor) -> Tensor:
        x = self.stem(x)
        weights = self.router(x).softmax(-1)
        hidden = F.gelu(torch.bmm(x.expand(3, -1, -1), self.up))
        outputs = torch.bmm(hidden, self.down)
        return self.head(x + (weights.t()[..., None] * outputs).sum(0))


class Experts(nn.Module):
    """Each token goes to one expert of three; the last one never gets any."""

    def __init__(self) -> None:
        super().__init__()
        self.stem = nn.Linear(6, 10)
        self.router = nn.Linear(10, 2)
        self.experts = nn.ModuleList(
            nn.Sequential(nn.Linear(10, 12 + n), nn.GELU(), nn.Linear(12 + n, 10)) for n in range(3)
        )
        self.head = nn.Linear(10, 5)

    def forward(self, x: Tensor) -> Tensor:
        x = self.stem(x)
        weights = self.router(x).softmax(-1)
        choice = weights.argmax(-1)
        out = torch.zeros_like(x)
        for number, expert in enumerate(self.experts):
            rows = (choice == number).nonzero().squeeze(-1)
            if rows.numel():
                out.index_add_(0, rows, expert(x[rows]) * weights[rows, number, None])
        return self.head(x + out)


class UnusedBranch(nn.Module):
    """A branch that only large images take would add to the same channels."""

    def __init__(self) -> None:
        super().__init__()
        self.stem = conv_bn(3, 8)
        self.usual = conv_bn(8, 8)
        self.large = conv_bn(8, 8, stride=2)
        self.last = conv_bn(8, 7)
        self.head = Head(7, 5)

    def forward(self, x: Tensor) -> Tensor:
        x = self.stem(x)
        x = x + (self.large(x) if x.shape[-1] > 64 else self.usual(x))
        return self.head(self.last(x))


class LowRank(nn.Module):
    """A frozen layer with a trained low-rank one beside it."""

    def __init__(self) -> None:
        super().__init__()
        self.base = nn.Linear(7, 12)
        self.base.requires_grad_(False)
        self.down = nn.Linear(7, 4, bias=False)
        self.up = nn.Linear(4, 12, bias=False)
        self.head = nn.Linear(12, 5)

    def forward(self, x: Tensor) -> Tensor:
        return self.head(F.gelu(self.base(x) + 2 * self.up(self.down(x))))


class Parametrized(nn.Module):
    """Convolution and linear layer whose weights are made from a length and a direction."""

    def __init__(self) -> None:
        super().__init__()
        self.conv1 = parametrizations.weight_norm(nn.Conv2d(3, 8, 3, 1, 1))
        self.conv2 = parametrizations.weight_norm(nn.Conv2d(8, 9, 3, 1, 1))
        self.free = conv_bn(9, 10)
        self.fc = parametrizations.weight_norm(nn.Linear(10, 5))

    def forward(self, x: Tensor) -> Tensor:
        x = self.free(F.relu(self.conv2(F.relu(self.conv1(x)))))
        return self.fc(x.mean((2, 3)))


class WeightStandardized(nn.Module):
    """Each filter is normed over its inputs before use, so that no input can leave unnoticed."""

    def __init__(self) -> None:
        super().__init__()
        self.conv1 = nn.Conv2d(3, 8, 3, 1, 1)
        self.conv2 = nn.Conv2d(8, 9, 3, 1, 1)
        self.free = conv_bn(9, 10)
        self.head = Head(10, 5)

    def standard(self, x: Tensor, conv: nn.Conv2d) -> Tensor:
        weight = conv.weight
        mean = weight.mean((1, 2, 3), keepdim=True)
        spread = weight.std((1, 2, 3), keepdim=True)
        # Without the fan-in the activations would grow with it.
        weight = (weight - mean) / (spread * weight[0].numel() ** 0.5)
        return F.conv2d(x, weight, conv.bias, padding=1)

    def forward(self, x: Tensor) -> Tensor:
        x = F.relu(self.standard(x, self.conv1))
        return self.head(self.free(F.relu(self.standard(x, self.conv2))))


class Recurrent(nn.Module):
    """Convolutions feed an LSTM or a GRU; the branch beside it has nothing to do with it."""

    def __init__(self, kind: str) -> None:
        super().__init__()
        self.conv1 = nn.Conv1d(3, 7, 3, padding=1)
        self.conv2 = nn.Conv1d(7, 6, 3, padding=1)
        if kind == "lstm":
            self.rnn: nn.Module = nn.LSTM(6, 8, 2, batch_first=True, bidirectional=True)
        else:
            self.rnn = nn.GRU(6, 16, batch_first=True)
        self.out = nn.Linear(16, 9)
        self.branch = nn.Sequential(
            nn.Conv1d(3, 10, 3), nn.BatchNorm1d(10), nn.ReLU(), nn.Conv1d(10, 9, 3)
        )
        self.head = nn.Linear(9, 5)

    def forward(self, x: Tensor) -> Tensor:
        y = self.conv2(F.relu(self.conv1(x))).transpose(1, 2)
        y = self.out(self.rnn(y)[0].mean(1))
        return self.head(F.relu(y + self.branch(x).mean(-1)))


class RecurrentCell(nn.Module):
    """A GRU cell in a Python loop, its state starting at zero."""

    def __init__(self) -> None:
        super().__init__()
        self.into = nn.Linear(4, 9)
        self.cell = nn.GRUCell(9, 7)
        self.hidden = nn.Linear(7, 11)
        self.out = nn.Linear(11, 5)

    def forward(self, x: Tensor) -> Tensor:
        state = x.new_zeros(x.shape[0], 7)
        for step in torch.relu(self.into(x)).unbind(1):
            state = self.cell(step, state)
        return self.out(F.relu(self.hidden(state)))


class DictOutput(nn.Module):
    """Features and logits leave under names, one of them inside a list."""

    def __init__(self) -> None:
        super().__init__()
        self.conv1 = conv_bn(3, 8)
        self.conv2 = conv_bn(8, 9, stride=2)
        self.conv3 = conv_bn(9, 7)
        self.head = Head(7, 5)

    def forward(self, x: Tensor) -> dict[str, Any]:
        x = self.conv1(x)
        features = self.conv2(x)
        return {"logits": self.head(self.conv3(features)), "features": [features], "count": 3}


class TupleOutput(nn.Module):
    """Two heads over one body leave as a tuple."""

    def __init__(self) -> None:
        super().__init__()
        self.body = nn.Sequential(conv_bn(3, 8), conv_bn(8, 10))
        self.classes = Head(10, 5)
        self.boxes = nn.Sequential(conv_bn(10, 6), Head(6, 4))

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
        x = self.body(x)
        return self.classes(x), self.boxes(x)


class KeywordInput(nn.Module):
    """An image and text by keyword only, one optional, joined late."""

    def __init__(self) -> None:
        super().__init__()
        self.image = nn.Sequential(conv_bn(3, 8), conv_bn(8, 9))
        self.words = nn.EmbeddingBag(17, 7, mode="mean")
        self.text = nn.Linear(7, 6)
        self.join = nn.Linear(15, 11)
        self.head = nn.Linear(11, 5)

    def forward(self, *, pixels: Tensor, tokens: Tensor, scale: Tensor | None = None) -> Tensor:
        image = self.image(pixels).mean((2, 3))
        text = F.relu(self.text(self.words(tokens)))
        joined = torch.cat([image, text], -1)
        joined = joined if scale is None else joined * scale
        return self.head(F.relu(self.join(joined)))


class Unknown(nn.Module):
    """Operations no tracer is expected to know: a bilinear form, a Fourier transform, distances."""

    def __init__(self, kind: str) -> None:
        super().__init__()
        self.kind = kind
        self.left = nn.Linear(6, 8)
        self.right = nn.Linear(6, 7)
        self.bilinear = nn.Bilinear(8, 7, 9) if kind == "bilinear" else None
        self.places = nn.Parameter(torch.randn(9, 8)) if kind == "cdist" else None
        inputs = {"bilinear": 9, "fft": 5, "cdist": 9}[kind]
        self.after = nn.Linear(inputs + 7, 11)
        self.head = nn.Linear(11, 5)

    def forward(self, x: Tensor) -> Tensor:
        left, right = F.gelu(self.left(x)), F.gelu(self.right(x))
        if self.bilinear is not None:
            mixed = self.bilinear(left, right)
        elif self.places is not None:
            mixed = torch.cdist(left, self.places)
        else:
            mixed = torch.fft.rfft(left).abs()
        return self.head(F.relu(self.after(torch.cat([mixed, right], -1))))


class Swish(torch.autograd.Function):
    """x * sigmoid(x) with a backward of its own."""

    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        ctx.save_for_backward(x)
        return x * torch.sigmoid(x)

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> Tensor:
        (x,) = ctx.saved_tensors
        gate = torch.sigmoid(x)
        return grads[0] * gate * (1 + x * (1 - gate))


class CustomFunction(nn.Module):
    """An autograd function of one's own, a checkpointed block, a mask and a clamp on the way."""

    def __init__(self) -> None:
        super().__init__()
        self.conv1 = conv_bn(3, 8)
        self.conv2 = conv_bn(8, 8)
        self.conv3 = nn.Conv2d(8, 7, 3, 1, 1)
        self.head = Head(7, 5)

    def forward(self, x: Tensor) -> Tensor:
        x = Swish.apply(self.conv1(x))
        x = x + checkpoint(self.conv2, x, use_reentrant=False)
        x = self.conv3(x).clamp(-2, 2)
        x = torch.where(x > 0, x, 0.1 * x).masked_fill(x.sum(1, keepdim=True) > 9, 0.5)
        return self.head(x)


class Fickle(nn.Module):
    """Takes another path at every call, so no trace can speak for it; not one of the cases."""

    def __init__(self) -> None:
        super().__init__()
        self.stem = nn.Linear(6, 9)
        self.even = nn.Linear(9, 9)
        self.odd = nn.Linear(9, 9)
        self.head = nn.Linear(9, 5)
        self.calls = 0

    def forward(self, x: Tensor) -> Tensor:
        self.calls += 1
        x = F.relu(self.stem(x))
        return self.head(x + (self.odd(x) if self.calls % 2 else self.even(x)))
