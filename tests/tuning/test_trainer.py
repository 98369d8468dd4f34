"""Fine-tuning does, bit by bit, what a bare loop does, and loses nothing when it fails."""

from __future__ import annotations

import copy
import json
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file
from torch import Tensor, nn
from torch.nn import functional
from torch.optim.swa_utils import AveragedModel, get_ema_multi_avg_fn
from torch.utils.data import DataLoader, TensorDataset

import obc
from obc.data import Loaded
from obc.equivalent.factors import Mix
from obc.equivalent.hold import hold
from obc.running import randomness as seeds
from obc.tuning import checkpoint, run
from obc.tuning.sparse import GroupSparsity
from tests.tuning.small import equivalent, images, net, same

DATA, TEST = images(64), images(40)
RECIPE = obc.Recipe(lr=0.1, epochs=3, batch_size=16, weight_decay=0.01, schedule="cosine")


def bare(model: nn.Module, recipe: obc.Recipe) -> nn.Module:
    """The same training in plain PyTorch; what it gives back is judged."""
    model.train()
    ep = {"ep_lr": recipe.ep_lr, "ep_weight_decay": recipe.ep_weight_decay or recipe.weight_decay}
    groups = obc.parameter_groups(model, recipe.lr, recipe.weight_decay, **ep)  # type: ignore[arg-type]
    kind: Any = torch.optim.SGD if recipe.optimizer == "sgd" else torch.optim.AdamW
    extra = {"momentum": 0.9} if recipe.optimizer == "sgd" else {}
    optimizer = kind(groups, lr=recipe.lr, fused=True, **extra)
    total = recipe.epochs * DATA.count(recipe.batch_size)
    schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, total)
    average = None
    if recipe.ema:
        function = get_ema_multi_avg_fn(recipe.ema)
        average = AveragedModel(model, multi_avg_fn=function, use_buffers=True)
    for epoch in range(recipe.epochs):
        for batch in DATA.train(recipe.batch_size, seed=recipe.seed, epoch=epoch):
            optimizer.zero_grad()
            with hold(model) if recipe.accumulate > 1 else nullcontext():
                for x, y in zip(
                    batch.images.chunk(recipe.accumulate),
                    batch.labels.chunk(recipe.accumulate),
                    strict=True,
                ):
                    smoothing = recipe.label_smoothing
                    loss = functional.cross_entropy(model(x), y, label_smoothing=smoothing)
                    (loss / recipe.accumulate).backward()
            if recipe.clip:
                nn.utils.clip_grad_norm_(model.parameters(), recipe.clip)
            optimizer.step()
            schedule.step()
            if average is not None:
                average.update_parameters(model)
    found: nn.Module = average.module if average is not None else model
    return found


@pytest.mark.parametrize(
    "fields",
    [
        {},
        {"optimizer": "adamw", "lr": 0.01},
        {"clip": 0.1, "label_smoothing": 0.1},
        {"ema": 0.8},
        {"accumulate": 4},
        {"seed": 7},
    ],
    ids=str,
)
@pytest.mark.parametrize("factors", [False, True], ids=["naive", "EP"])
def test_it_is_a_bare_loop_bit_by_bit(
    fields: dict[str, Any], factors: bool, tmp_path: Path
) -> None:
    recipe = RECIPE.changed(**fields, ep_lr=0.05)
    model = equivalent() if factors else net()
    wanted = bare(copy.deepcopy(model), recipe)
    if factors:
        obc.merge(wanted)
    before = copy.deepcopy(model.state_dict())
    obc.finetune(model, DATA, TEST, recipe, out=tmp_path / "run")
    assert not same(before, model.state_dict())
    assert same(wanted.state_dict(), model.state_dict())
    assert same(load_file(tmp_path / "run" / "model.safetensors"), model.state_dict())
    assert type(model[0]) is nn.Conv2d  # type: ignore[index]


def test_parts_of_a_batch_share_their_products(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    counts = []
    for parts in (1, 4):
        calls: list[Tensor] = []
        along = Mix.along

        def counted(
            mix: Mix, x: Tensor, dim: int, along: Any = along, calls: list[Tensor] = calls
        ) -> Tensor:
            calls.append(x)
            return along(mix, x, dim)  # type: ignore[no-any-return]

        with monkeypatch.context() as patch:
            patch.setattr(Mix, "along", counted)
            recipe = RECIPE.changed(accumulate=parts, epochs=1)
            obc.finetune(equivalent(), DATA, None, recipe, out=tmp_path / str(parts))
        counts.append(len(calls))
    assert 0 < counts[1] <= counts[0]


def test_the_bare_loop_tells_recipes_apart() -> None:
    """The control of the test above: every field it varies changes the outcome."""
    plain = bare(net(), RECIPE).state_dict()
    for fields in ({"clip": 0.1}, {"ema": 0.8}, {"accumulate": 4}, {"seed": 7}):
        assert not same(plain, bare(net(), RECIPE.changed(**fields)).state_dict()), fields


def test_scores_best_and_last_are_kept(tmp_path: Path) -> None:
    model = net()
    tuned = obc.finetune(model, DATA, TEST, RECIPE.changed(epochs=8), out=tmp_path / "run")
    assert tuned.last == obc.evaluate(model, TEST)
    assert tuned.best is not None and tuned.best.top1 == max(h["top1"] for h in tuned.history)
    assert [h["epoch"] for h in tuned.history] == list(range(1, 9))
    assert tuned.history[-1]["loss"] < tuned.history[0]["loss"]
    best = net()
    best.load_state_dict(load_file(tmp_path / "run" / "best.safetensors"))
    assert obc.evaluate(best, TEST).top1 == tuned.best.top1
    assert json.loads((tmp_path / "run" / "result.json").read_text())["history"] == tuned.history
    assert list((tmp_path / "run" / "tracking").rglob("events.out.tfevents.*"))
    assert not list((tmp_path / "run").glob(".*")), "nothing is left aside"


def test_the_best_of_an_equivalent_pruning_is_plain(tmp_path: Path) -> None:
    model = equivalent()
    obc.finetune(model, DATA, TEST, RECIPE, out=tmp_path / "run")
    shapes = {n: t.shape for n, t in load_file(tmp_path / "run" / "best.safetensors").items()}
    assert shapes == {n: t.shape for n, t in model.state_dict().items()}


def test_generators_modes_and_types_stay(tmp_path: Path) -> None:
    model = net().eval()
    for p in model[0].parameters():  # type: ignore[index]
        p.requires_grad_(False)
    before = model[0].weight.clone()  # type: ignore[index]
    torch.manual_seed(3)
    wanted = torch.rand(1)
    torch.manual_seed(3)
    obc.finetune(model, DATA, None, RECIPE.changed(flip=True), out=tmp_path / "run")
    assert torch.equal(torch.rand(1), wanted)
    assert not model.training
    assert torch.equal(before, model[0].weight), "what is frozen is not trained"  # type: ignore[index]
    assert not [n for n in vars(model) if "accelerate" in n or n == "forward"]


def test_mixed_precision_in_bf16(tmp_path: Path) -> None:
    model = net()
    recipe = RECIPE.changed(amp="bf16", epochs=8)
    tuned = obc.finetune(model, DATA, TEST, recipe, out=tmp_path / "run")
    assert model[0].weight.dtype == torch.float32  # type: ignore[index]
    assert tuned.history[-1]["loss"] < tuned.history[0]["loss"]
    other = net()
    obc.finetune(other, DATA, TEST, recipe.changed(amp="no"), out=tmp_path / "other")
    assert not same(model.state_dict(), other.state_dict())
    if not torch.cuda.is_available():
        with pytest.raises(obc.ObcError, match="'fp16' needs a GPU"):
            obc.finetune(net(), DATA, None, recipe.changed(amp="fp16"), out=tmp_path / "third")


def loader(shuffle: bool = True) -> DataLoader[Any]:
    (batch,) = DATA.test(64)
    return DataLoader(TensorDataset(batch.images, batch.labels), 16, shuffle=shuffle)


def test_batches_of_the_users(tmp_path: Path) -> None:
    finals = []
    for name in "ab":
        model = net()
        torch.manual_seed(ord(name))  # what was drawn before does not matter
        tuned = obc.finetune(model, loader(), list(TEST.test(8)), RECIPE, out=tmp_path / name)
        finals.append(model.state_dict())
        assert tuned.last is not None
    assert same(*finals)
    model = net()
    obc.finetune(model, loader(shuffle=False), None, RECIPE, out=tmp_path / "c")
    assert not same(finals[0], model.state_dict())


def test_parts_of_a_batch_weigh_what_they_hold(tmp_path: Path) -> None:
    (batch,) = DATA.test(64)
    # The last batch has 7 images: in four parts they are 2, 2, 2 and 1; of three there are 3.
    for sizes in ([16, 16, 16, 16], [16, 7], [16, 3]):
        count = sum(sizes)
        batches = list(
            zip(batch.images[:count].split(sizes), batch.labels[:count].split(sizes), strict=True)
        )
        finals = []
        for parts in (1, 4):
            model = net(norm=False).double()
            data = [(x.double(), y) for x, y in batches]
            recipe = RECIPE.changed(accumulate=parts)
            obc.finetune(model, data, None, recipe, out=tmp_path / f"{count}-{parts}")
            finals.append(model.state_dict())
        for name, value in finals[0].items():
            torch.testing.assert_close(value, finals[1][name], rtol=1e-5, atol=1e-6)


def test_a_callback_is_called_with_the_model_in_training(tmp_path: Path) -> None:
    model = net()
    sites = obc.trace(model.eval(), torch.zeros(1, 1, 8, 8))
    press, calls = GroupSparsity(sites, 0.01), []

    def both(working: nn.Module) -> None:
        assert working is not model and working.training
        press(working)
        calls.append(1)

    obc.finetune(model, DATA, None, RECIPE, out=tmp_path / "run", callback=both)
    assert len(calls) == 12
    plain = net()
    obc.finetune(plain, DATA, None, RECIPE, out=tmp_path / "plain")
    sizes = [obc.score(m, sites, criterion="l2")["0"].sum() for m in (model, plain)]
    assert sizes[0] < sizes[1]


class Poisoned(Loaded):
    """Images of which some batch, counted over the run, is not a number."""

    bad = 7

    def normalised(self, pixels: Tensor) -> Tensor:
        Poisoned.bad -= 1
        found = super().normalised(pixels)
        return found * float("nan") if Poisoned.bad == 0 else found


def test_a_loss_that_is_no_number_stops_and_says_where(tmp_path: Path) -> None:
    model = net()
    before = copy.deepcopy(model.state_dict())
    data = Poisoned(DATA.images, DATA.labels, DATA.classes, DATA.mean, DATA.std)
    with pytest.raises(obc.ObcError, match=r"loss is nan in epoch 2, step 3 of 4; the last good"):
        obc.finetune(model, data, TEST, RECIPE, out=tmp_path / "run")
    assert same(before, model.state_dict()), "the model is as it was"
    tensors, facts = checkpoint.read(tmp_path / "run" / "last.safetensors")
    assert facts["step"] == 4
    assert all(t.isfinite().all() for t in tensors.values() if t.is_floating_point())
    # With the cause gone, the run goes on to where it would have come.
    obc.finetune(model, DATA, TEST, RECIPE, out=tmp_path / "run")
    assert same(model.state_dict(), bare(net(), RECIPE).state_dict())


def test_weights_that_are_no_numbers_are_not_kept(tmp_path: Path) -> None:
    calls = []

    def spoil(model: nn.Module) -> None:
        calls.append(1)
        if len(calls) == 8:  # the last step of the second epoch: its loss is still fine
            next(model.parameters()).grad.fill_(float("inf"))  # type: ignore[union-attr]

    with pytest.raises(obc.ObcError, match=r"'0.weight' is not finite after epoch 2, step 4 of 4"):
        obc.finetune(net(), DATA, TEST, RECIPE, out=tmp_path / "run", callback=spoil)
    tensors, facts = checkpoint.read(tmp_path / "run" / "last.safetensors")
    assert facts["step"] == 4
    assert all(t.isfinite().all() for t in tensors.values() if t.is_floating_point())


def test_folders_of_other_runs_are_refused(tmp_path: Path) -> None:
    out = tmp_path / "run"
    obc.finetune(net(), DATA, None, RECIPE, out=out)
    files = {f: f.read_bytes() for f in out.rglob("*") if f.is_file()}
    for other, words in (
        ({"recipe": RECIPE.changed(lr=0.2)}, r"another run: its lr is 0.1, not 0.2"),
        ({"model": net(seed=1)}, "another run: its digest of the weights is"),
        ({"model": equivalent()}, "another run: its digest of the weights is"),
        ({"train": images(80)}, "another run: its training data is"),
        ({"resume": False}, "holds a run already; resume=True"),
    ):
        given: dict[str, Any] = {"model": net(), "train": DATA, "recipe": RECIPE, **other}
        with pytest.raises(obc.ObcError, match=words):
            obc.finetune(val=None, out=out, **given)
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine" / "thesis.tex").write_text("years of work")
    with pytest.raises(obc.ObcError, match="holds files but no run"):
        obc.finetune(net(), DATA, None, RECIPE, out=tmp_path / "mine")
    with pytest.raises(obc.ObcError, match="is no folder that can be written to"):
        obc.finetune(net(), DATA, None, RECIPE, out=tmp_path / "mine" / "thesis.tex")
    assert files == {f: f.read_bytes() for f in out.rglob("*") if f.is_file()}


@pytest.mark.parametrize("name", ["last.safetensors", "run.json"])
def test_damaged_files_are_refused(name: str, tmp_path: Path) -> None:
    out = tmp_path / "run"
    obc.finetune(net(), DATA, None, RECIPE, out=out)
    (out / name).write_bytes((out / name).read_bytes()[:100])
    with pytest.raises(obc.ObcError, match=name):
        obc.finetune(net(), DATA, None, RECIPE, out=out)


def test_a_disk_that_is_full_keeps_the_last_checkpoint(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    model, real, count = net(), checkpoint.save_file, [0]
    before = copy.deepcopy(model.state_dict())

    def full(tensors: Any, path: str, **options: Any) -> None:
        count[0] += 1
        if count[0] == 2:
            Path(path).write_bytes(b"half a file")
            raise OSError(28, "No space left on device")
        real(tensors, path, **options)

    monkeypatch.setattr(checkpoint, "save_file", full)
    with pytest.raises(obc.ObcError, match=r"No space left on device; what was there before is"):
        obc.finetune(model, DATA, None, RECIPE, out=tmp_path / "run")
    assert same(before, model.state_dict())
    assert checkpoint.read(tmp_path / "run" / "last.safetensors")[1]["step"] == 4
    assert not list((tmp_path / "run").glob(".*")), "the half of a file is gone"
    obc.finetune(model, DATA, None, RECIPE, out=tmp_path / "run")
    assert same(model.state_dict(), bare(net(), RECIPE).state_dict())


@pytest.mark.parametrize(
    ("given", "words"),
    [
        ({"model": net(classes=3)}, "knows 3 classes, the data has 4"),
        ({"recipe": RECIPE.changed(batch_size=65)}, "a batch of 65 is more than the 64"),
        ({"train": iter([])}, "more than once, not a list_iterator"),
        ({"train": 5}, "not a int"),
        ({"train": []}, "fewer batches than"),
        ({"train": [torch.zeros(2)]}, "pair of tensors"),
        ({"train": loader(), "recipe": RECIPE.changed(flip=True)}, "flip: batches of your own"),
        (
            {"train": loader(), "recipe": RECIPE.changed(repeated_augmentation=2)},
            "repeated_augmentation: batches of your own",
        ),
    ],
)
def test_bad_input(given: dict[str, Any], words: str, tmp_path: Path) -> None:
    every: dict[str, Any] = {"model": net(), "train": DATA, "val": None, "recipe": RECIPE, **given}
    before = copy.deepcopy(every["model"].state_dict())
    with pytest.raises(obc.ObcError, match=words):
        obc.finetune(**every, out=tmp_path / "run")
    assert same(before, every["model"].state_dict())


def test_a_loader_that_gets_shorter_is_told(tmp_path: Path) -> None:
    class Shrinking(list):  # type: ignore[type-arg]
        passes = 0

        def __iter__(self) -> Any:
            self.passes += 1
            return iter(list(super().__iter__())[: 5 - self.passes])

    (batch,) = DATA.test(64)
    data = Shrinking([(x, y) for x, y in zip(*(t.split(16) for t in batch), strict=True)])
    with pytest.raises(obc.ObcError, match="4 batches at first, but ended after 3"):
        obc.finetune(net(), data, None, RECIPE, out=tmp_path / "run")


@pytest.mark.parametrize("factors", [False, True], ids=["naive", "EP"])
@pytest.mark.parametrize("stop", [1, 2, 5, 6, 8, 11])
def test_a_run_that_was_stopped_anywhere_ends_with_the_same_bits(
    stop: int, factors: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(run, "SAVE_STEPS", 2)
    recipe = RECIPE.changed(ema=0.8, crop=1, flip=True, mixup=0.4, erasing=0.2)
    whole, parts = (equivalent() if factors else Noisy() for _ in range(2))
    obc.finetune(whole, DATA, TEST, recipe, out=tmp_path / "whole")
    calls = []

    def interrupt(model: nn.Module) -> None:
        calls.append(1)
        if len(calls) == stop:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        obc.finetune(parts, DATA, TEST, recipe, out=tmp_path / "parts", callback=interrupt)
    seeds.seed_all(stop)
    tuned = obc.finetune(parts, DATA, TEST, recipe, out=tmp_path / "parts", callback=interrupt)
    assert same(whole.state_dict(), parts.state_dict())
    assert len(tuned.history) == 3
    # The last good checkpoint was used: at most the steps since then were made twice.
    assert len(calls) <= 12 + 2


def test_without_its_generators_a_run_ends_otherwise(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The control of the test above: its network and augmentations do draw numbers."""
    monkeypatch.setattr(run, "SAVE_STEPS", 2)
    whole, parts = Noisy(), Noisy()
    obc.finetune(whole, DATA, None, RECIPE, out=tmp_path / "whole")
    calls = []

    def interrupt(model: nn.Module) -> None:
        calls.append(1)
        if len(calls) == 7:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        obc.finetune(parts, DATA, None, RECIPE, out=tmp_path / "parts", callback=interrupt)
    monkeypatch.setattr(seeds, "restore", lambda states: None)
    obc.finetune(parts, DATA, None, RECIPE, out=tmp_path / "parts")
    assert not same(whole.state_dict(), parts.state_dict())


class Noisy(nn.Module):
    """Draws from every generator there is."""

    def __init__(self) -> None:
        super().__init__()
        self.inner = net()

    def forward(self, x: Tensor) -> Tensor:
        import random

        import numpy as np

        if self.training:
            x = functional.dropout(x, 0.1) + 0.01 * random.gauss(0, 1) + 0.01 * np.random.randn()
        found: Tensor = self.inner(x)
        return found


def test_a_loader_of_the_users_goes_on_where_it_was(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(run, "SAVE_STEPS", 2)
    whole, parts = Noisy(), Noisy()
    obc.finetune(whole, loader(), None, RECIPE, out=tmp_path / "whole")
    calls = []

    def interrupt(model: nn.Module) -> None:
        calls.append(1)
        if len(calls) == 7:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        obc.finetune(parts, loader(), None, RECIPE, out=tmp_path / "parts", callback=interrupt)
    obc.finetune(parts, loader(), None, RECIPE, out=tmp_path / "parts")
    assert same(whole.state_dict(), parts.state_dict())


def test_a_finished_run_is_not_run_again(tmp_path: Path) -> None:
    first, second = net(), net()
    a = obc.finetune(first, DATA, TEST, RECIPE, out=tmp_path / "run")

    def never(model: nn.Module) -> None:
        raise AssertionError("a step was made")

    b = obc.finetune(second, DATA, TEST, RECIPE, out=tmp_path / "run", callback=never)
    assert same(first.state_dict(), second.state_dict())
    assert a == b
