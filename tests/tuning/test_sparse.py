"""Group sparsity: every gradient gains what a loop over single channels in float64 says."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from torch import Tensor, nn

import obc
from obc.models import resnet20, vit_small
from obc.tasks import Classification
from obc.tuning.sparse import GroupSparsity, sparsify
from tests.tuning.small import images, net, same

STRENGTH = 0.01


def slices(member: obc.Member, channel: int, shape: torch.Size) -> tuple[slice | list[int], ...]:
    """Where one channel's share of a parameter lies."""
    where: list[slice | list[int]] = [slice(None)] * len(shape)
    where[member.dim] = member.index[channel].tolist()
    return tuple(where)


def reference(model: nn.Module, sites: obc.Sites, strength: float) -> dict[str, Tensor]:
    """What is added to each gradient, one group at a time."""
    weights = {n: p.detach().clone() for n, p in model.named_parameters()}
    added = {n: torch.zeros_like(w) for n, w in weights.items()}
    for site in sites:
        sizes = []
        for channel in range(site.size):
            total = 0.0
            for m in site.members:
                w = weights[m.name]
                total += float(w[slices(m, channel, w.shape)].pow(2).sum())
            sizes.append(total**0.5)
        for channel in range(site.size):
            gap = (max(sizes) - sizes[channel]) / (max(sizes) - min(sizes))
            for m in site.members:
                w = weights[m.name]
                where = slices(m, channel, w.shape)
                added[m.name][where] += strength * 2 ** (4 * gap) * w[where]
    return added


def gained(model: nn.Module, press: GroupSparsity) -> dict[str, Tensor]:
    torch.manual_seed(1)
    for p in model.parameters():
        p.grad = torch.randn_like(p)
    before = {n: p.grad.clone() for n, p in model.named_parameters() if p.grad is not None}
    press(model)
    return {n: p.grad - before[n] for n, p in model.named_parameters() if p.grad is not None}


def nets() -> dict[str, tuple[nn.Module, Tensor]]:
    return {
        "resnet": (resnet20(width=4), torch.zeros(1, 3, 8, 8)),
        "vit": (vit_small(image=8, patch=4, dim=16, depth=1, heads=4), torch.zeros(1, 3, 8, 8)),
        "depthwise": (
            nn.Sequential(
                nn.Conv2d(3, 6, 3), nn.Conv2d(6, 6, 3, groups=6), nn.ReLU(), nn.Conv2d(6, 4, 1)
            ),
            torch.zeros(1, 3, 8, 8),
        ),
        "flattened": (
            nn.Sequential(nn.Conv2d(1, 4, 3), nn.ReLU(), nn.Flatten(), nn.Linear(4 * 9, 5)),
            torch.zeros(1, 1, 5, 5),
        ),
    }


@pytest.mark.parametrize("name", nets())
def test_gradients_gain_what_the_reference_says(name: str) -> None:
    model, example = nets()[name]
    model = model.double().eval()
    with torch.no_grad():
        for p in model.parameters():
            p.copy_(torch.randn_like(p))
    sites = obc.trace(model, example.double())
    found, wanted = gained(model, GroupSparsity(sites, STRENGTH)), reference(model, sites, STRENGTH)
    for key, value in wanted.items():
        torch.testing.assert_close(found[key], value, rtol=1e-9, atol=1e-12)
    touched = sum(bool(v.abs().sum()) for v in wanted.values())
    assert touched >= 3, "there is something to compare"
    # The control: pressing all groups alike is not it.
    alike = {n: STRENGTH * p.detach() for n, p in model.named_parameters()}
    assert any(not torch.allclose(alike[n], wanted[n], rtol=1e-3) for n in wanted)


def test_groups_that_are_alike_are_pressed_alike() -> None:
    net = nn.Sequential(nn.Linear(2, 3), nn.ReLU(), nn.Linear(3, 2))
    with torch.no_grad():
        for p in net.parameters():
            p.fill_(0.5)
    sites = obc.trace(net, torch.zeros(1, 2))
    found = gained(net, GroupSparsity(sites, 0.1))
    torch.testing.assert_close(found["0.weight"], torch.full((3, 2), 0.05))
    assert not found["2.bias"].any(), "the model's output belongs to no site"


def test_small_groups_shrink_and_large_ones_stay() -> None:
    net = nn.Sequential(nn.Linear(4, 8), nn.ReLU(), nn.Linear(8, 2))
    with torch.no_grad():
        net[0].weight[:4] *= 0.1  # type: ignore[operator,index]
        net[2].weight[:, :4] *= 0.1  # type: ignore[operator,index]
    sites = obc.trace(net, torch.zeros(1, 4))
    before = obc.score(net, sites, criterion="l2")["0"]
    press = GroupSparsity(sites, 0.05)
    for _ in range(20):
        for p in net.parameters():
            p.grad = torch.zeros_like(p)
        press(net)
        with torch.no_grad():
            for p in net.parameters():
                p -= 0.1 * p.grad  # type: ignore[operator]
    left = obc.score(net, sites, criterion="l2")["0"] / before
    assert left[:4].max() < left[4:].min()


def test_the_stage_of_a_recipe(tmp_path: Path) -> None:
    recipe = obc.Recipe(
        **{"lr": 0.1, "epochs": 9, "batch_size": 16, "schedule": "cosine", "distill": 0.5},
        sparse={"epochs": 3, "lr": 0.05, "strength": 0.02, "milestones": [1, 2]},
    )
    by_hand, model = net(), net()
    task, example = Classification(images(64)), torch.zeros(1, 1, 8, 8)
    tuned = sparsify(model, task, recipe, tmp_path / "run")
    assert [h["lr"] for h in tuned.history] == pytest.approx([0.05, 0.005, 0.0005])
    press = GroupSparsity(obc.trace(by_hand, example), 0.02)
    own = obc.Recipe(lr=0.05, epochs=3, batch_size=16, milestones=[1, 2])
    obc.finetune(by_hand, images(64), None, own, out=tmp_path / "by_hand", callback=press)
    assert same(model.state_dict(), by_hand.state_dict())
    with pytest.raises(obc.ObcError, match=r"no \[sparse\] table"):
        sparsify(model, task, own, tmp_path / "other")


def test_bad_input() -> None:
    net = nn.Sequential(nn.Linear(2, 3), nn.ReLU(), nn.Linear(3, 2))
    sites = obc.trace(net, torch.zeros(1, 2))
    with pytest.raises(obc.ObcError, match="strength must be more than 0"):
        GroupSparsity(sites, 0.0)
    with pytest.raises(obc.ObcError, match=r"no '0.weight' here"):
        GroupSparsity(sites, 0.1)(nn.ReLU())
