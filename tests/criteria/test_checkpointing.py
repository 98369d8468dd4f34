"""Scoring with checkpointing by block: the same scores, from activations of one block at a time."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor

import obc
from obc.criteria.criterion import make
from obc.criteria.score import Scorer
from obc.errors import ObcError
from tests import vision
from tests.hugging import decoder

pytestmark = pytest.mark.skipif(
    not vision.installed("transformers"), reason="transformers is not installed"
)


@pytest.fixture(scope="module")
def llama() -> Any:
    torch.manual_seed(0)
    model = decoder("Llama", tie_word_embeddings=True, num_hidden_layers=6)
    return model.double().eval()


def loss(model: Any, ids: Tensor) -> Tensor:
    found: Tensor = model(ids, labels=ids).loss
    return found


def rows(count: int = 2, length: int = 12) -> list[Tensor]:
    torch.manual_seed(1)
    return [torch.randint(53, (2, length)) for _ in range(count)]


@pytest.mark.parametrize("criterion", ["jacobian", "taylor"])
def test_the_same_scores(llama: Any, criterion: str) -> None:
    sites = obc.trace(llama, rows()[0])
    state = {n: p.requires_grad for n, p in llama.named_parameters()}
    expected = obc.score(llama, sites, rows(), loss, criterion)
    found = obc.score(llama, sites, rows(), loss, criterion, checkpoint=True)
    assert len(found) > 6
    for name, scores in expected.items():
        torch.testing.assert_close(found[name], scores, rtol=1e-9, atol=0)
    assert {n: p.requires_grad for n, p in llama.named_parameters()} == state
    assert all(p.grad is None for p in llama.parameters()) and llama.config.use_cache
    assert not any("forward" in vars(m) for m in llama.modules())


def kept(model: Any, run: Any) -> int:
    """The largest number of bytes that activations hold between two blocks of a forward pass."""
    held: list[int] = []
    seen: dict[int, int] = {}

    def pack(tensor: Tensor) -> Tensor:
        seen[tensor.untyped_storage()._cdata] = tensor.untyped_storage().nbytes()
        return tensor

    weights = {p.untyped_storage()._cdata for p in model.parameters()}
    with torch.autograd.graph.saved_tensors_hooks(pack, lambda t: t):
        hook = model.lm_head.register_forward_pre_hook(
            lambda *_: held.append(sum(n for k, n in seen.items() if k not in weights))
        )
        run()
        hook.remove()
    return max(held)


def test_blocks_keep_their_input_alone(llama: Any) -> None:
    sites = obc.trace(llama, rows()[0])
    whole = kept(llama, lambda: obc.score(llama, sites, rows(1), loss))
    least = kept(llama, lambda: obc.score(llama, sites, rows(1), loss, checkpoint=True))
    assert least < 0.2 * whole


def test_what_cannot_run_again(llama: Any) -> None:
    sites = obc.trace(llama, rows()[0])
    with pytest.raises(ObcError, match="checkpoint"):
        obc.score(llama, sites, rows(), loss, "hessian", checkpoint=True)
    line = torch.nn.Sequential(torch.nn.Linear(3, 4), torch.nn.ReLU(), torch.nn.Linear(4, 2))
    with pytest.raises(ObcError, match="no list of blocks"):
        obc.score(
            line,
            obc.trace(line, torch.zeros(1, 3)),
            [torch.ones(2, 3)],
            lambda m, x: m(x).sum(),
            checkpoint=True,
        )


def test_only_some_sites(llama: Any) -> None:
    """Sites that keep everything are not looked at, and the others score as ever."""
    sites = obc.trace(llama, rows()[0])
    names = [s.name for s in sites if "mlp" in s.name]
    expected = obc.score(llama, sites, rows(), loss)
    scorer = Scorer(llama, sites, loss, make("jacobian"), names=names)
    found = scorer.totals(rows())
    assert list(found) == names and len(names) < len(sites)
    for name in names:
        torch.testing.assert_close(found[name].sum(0), expected[name], rtol=1e-9, atol=0)
