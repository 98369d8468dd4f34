"""What rows have on average: unbiased, and closer to it than the rows themselves."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor, nn

import obc
from obc.criteria.jacobian import Jacobian
from obc.criteria.structure import parts_of

SIZE, BATCHES = 4, 3


def loss(model: nn.Module, batch: tuple[Tensor, Tensor]) -> Tensor:
    return nn.functional.cross_entropy(model(batch[0]), batch[1])


def estimates(samples: Tensor) -> Tensor:
    """The criterion's estimates from [runs, batches, samples, kinds]: each run a channel."""
    net = nn.Sequential(nn.Linear(2, 3), nn.ReLU(), nn.Linear(3, 2))
    part = parts_of(obc.trace(net, torch.zeros(1, 2))[0])[0]
    criterion, runs = Jacobian(expected=True), len(samples)
    products = samples.permute(1, 2, 0, 3).flatten(2).unsqueeze(-1)
    sums = sum(criterion.site([(part, torch.empty(0), batch)]) for batch in products)
    return criterion.scores(sums, BATCHES)[0].view(runs, -1)


def test_the_estimate_is_unbiased_and_less_noisy_than_rows() -> None:
    generator, runs = torch.Generator().manual_seed(0), 20_000
    normal = torch.randn(runs, BATCHES, SIZE, 3, generator=generator, dtype=torch.float64)
    samples = torch.tensor([0.0, 0.3, -1.0]) + torch.tensor([1.0, 0.5, 0.2]) * normal
    truth = BATCHES * torch.tensor([1.0 / SIZE, 0.09 + 0.25 / SIZE, 1.0 + 0.04 / SIZE])
    found, rows = estimates(samples), samples.mean(2).square().sum(1)
    error = found.std(0) / runs**0.5
    assert ((found.mean(0) - truth).abs() < 4 * error).all()
    assert (found.var(0) < rows.var(0)).all()
    biased = BATCHES * samples.flatten(1, 2).mean(1).square()  # the square of the mean alone
    assert ((biased.mean(0) - truth).abs() > 4 * error).any()


@pytest.mark.parametrize("block", ["member", "group"])
def test_many_batches_agree_with_their_rows(block: str) -> None:
    torch.manual_seed(0)
    net = nn.Sequential(nn.Linear(6, 8), nn.ReLU(), nn.Linear(8, 3)).double()
    sites = obc.trace(net, torch.zeros(1, 6).double())
    batches = [
        (torch.randn(4, 6, dtype=torch.float64), torch.randint(0, 3, (4,))) for _ in range(200)
    ]
    rows = obc.score(net, sites, batches, loss, block=block)["0"]
    found = obc.score(net, sites, batches, loss, block=block, expected=True)["0"]
    assert torch.corrcoef(torch.stack([rows, found]))[0, 1] > 0.95
    assert 0.8 < float(found.sum() / rows.sum()) < 1.25


def test_one_batch_is_its_row_and_one_sample_its_square() -> None:
    torch.manual_seed(0)
    net = nn.Sequential(nn.Linear(6, 8), nn.ReLU(), nn.Linear(8, 3)).double()
    sites = obc.trace(net, torch.zeros(1, 6).double())
    batches = [(torch.randn(5, 6, dtype=torch.float64), torch.randint(0, 3, (5,)))]
    single = [(x[:1], y[:1]) for x, y in batches]
    for data in (batches, single):
        row = obc.score(net, sites, data, loss)["0"]
        torch.testing.assert_close(obc.score(net, sites, data, loss, expected=True)["0"], row)


def test_other_rows_are_refused() -> None:
    for options in ({"per_sample": True}, {"diagonal_norm": True}):
        with pytest.raises(obc.ObcError, match="rows of batches"):
            Jacobian(expected=True, **options)
    with pytest.raises(obc.ObcError, match="expected is True or False"):
        Jacobian(expected="yes")  # type: ignore[arg-type]
