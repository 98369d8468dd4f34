"""Killed at any moment, a save leaves the artifact that was there or the new one, and no third."""

from __future__ import annotations

import itertools
import json
import os
import random
import signal
import sys
import time
from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

import obc
from obc.files.shards import tensors_in
from obc.surgery.record import applied
from tests.files.kept import prune

WIDTH = 3000
X = torch.zeros(1, 8)


def fresh() -> nn.Sequential:
    return nn.Sequential(nn.Linear(8, WIDTH), nn.ReLU(), nn.Linear(WIDTH, 2))


@cache
def generations() -> tuple[nn.Module, nn.Module]:
    """Two models cut in different ways, so that the plan of one never fits the other."""
    return prune(fresh(), X, seed=0), prune(fresh(), X, seed=1)


def nth(number: int) -> nn.Module:
    """A model all of whose tensors are the same number."""
    model = generations()[number % 2]
    with torch.no_grad():
        for p in model.parameters():
            p.fill_(number)
    return model


def found(folder: Path) -> int:
    """Which generation a folder holds; an error if it is none or a mixture."""
    loaded = obc.load(fresh(), folder)
    numbers = torch.cat([p.detach().reshape(-1) for p in loaded.parameters()]).unique().tolist()
    assert len(numbers) == 1, f"a mixture of {numbers}"
    number = int(numbers[0])
    assert applied(loaded) == applied(generations()[number % 2])
    return number


def child(run: Callable[[], None]) -> int:
    """The id of a process that runs this and does nothing else."""
    process = os.fork()
    if not process:
        try:
            run()
        finally:
            os._exit(0)
    return process


def ended(process: int) -> int:
    return os.waitstatus_to_exitcode(os.waitpid(process, 0)[1])


STEPS = ("open", "os.rename", "os.remove", "os.rmdir", "os.mkdir", "shutil.rmtree")


def killed_at(step: int) -> None:
    """Let this process kill itself before its so-manieth step on the file system."""
    steps = itertools.count()

    def watch(event: str, args: Any) -> None:
        if event in STEPS and next(steps) == step:
            os.kill(os.getpid(), signal.SIGKILL)

    sys.addaudithook(watch)


def test_killed_at_each_step(tmp_path: Path) -> None:
    obc.save(nth(0), tmp_path)
    old, new, outcomes = 0, 1, []
    for step in itertools.count():

        def run(step: int = step, number: int = new) -> None:
            model = nth(number)
            killed_at(step)
            obc.save(model, tmp_path)

        code = ended(child(run))
        now = found(tmp_path)
        assert now in (old, new)
        outcomes.append(now == new)
        old, new = now, max(old, new) + 1
        if code == 0:
            break
        assert code == -signal.SIGKILL
    assert outcomes[-1] and outcomes[0] is False, "both the old and the new one must be seen"
    assert len(outcomes) > 10 and sum(outcomes) > 3
    obc.save(nth(5), tmp_path)
    assert found(tmp_path) == 5 and sorted(os.listdir(tmp_path)) == FILES


FILES = ["model.safetensors", "plan.json"]


def test_the_first_save_killed_at_each_step(tmp_path: Path) -> None:
    seen = set()
    for step in itertools.count():
        folder = tmp_path / str(step)
        if not ended(child(lambda folder=folder, step=step: first(folder, step))):
            break
        if (folder / "model.safetensors").exists():
            assert found(folder) == 1
            seen.add("new")
        else:
            with pytest.raises(obc.ObcError, match="no model at"):
                obc.load(fresh(), folder)
            seen.add("none")
        obc.save(nth(2), folder)
        assert found(folder) == 2 and sorted(os.listdir(folder)) == FILES
    assert seen == {"new", "none"}


def first(folder: Path, step: int) -> None:
    model = nth(1)
    killed_at(step)
    obc.save(model, folder)


def test_without_the_order_of_the_steps_a_kill_would_show(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The control: were the plan moved first, some kill would leave nothing that loads."""
    obc.save(nth(0), tmp_path)
    move = os.replace

    def wrong(a: Any, b: Any) -> None:
        if Path(b).name == "model.safetensors":
            move(Path(a).parent / "plan.json", Path(b).parent / "plan.json")
            os.kill(os.getpid(), signal.SIGKILL)
        move(a, b)

    monkeypatch.setattr(os, "replace", wrong)
    assert ended(child(lambda: obc.save(nth(1), tmp_path))) == -signal.SIGKILL
    with pytest.raises(obc.ObcError, match="is not the one that"):
        found(tmp_path)


def kill_at_random(folder: Path, times: int) -> None:
    chance = random.Random(0)
    obc.save(nth(0), folder)
    last, seen = 0, set()
    for _ in range(times):

        def run(start: int = last + 1) -> None:
            for number in itertools.count(start):
                obc.save(nth(number), folder)

        process = child(run)
        time.sleep(chance.uniform(0.002, 0.08))
        os.kill(process, signal.SIGKILL)
        assert ended(process) == -signal.SIGKILL
        now = found(folder)
        assert now >= last
        seen.add((folder / ".saving").exists())
        last = now
    assert last > 0 and seen == {True, False}, "kills must come within saves and between them"


@pytest.mark.slow
def test_killed_a_hundred_times(tmp_path: Path) -> None:
    kill_at_random(tmp_path, 100)


# Failures that are told.


@pytest.mark.parametrize("name", ["fsync", "replace"])
def test_a_failed_save_leaves_what_was_there(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    obc.save(nth(0), tmp_path)

    def full(*_: Any) -> None:
        raise OSError("no space left on device")

    with monkeypatch.context() as patch:
        patch.setattr(os, name, full)
        with pytest.raises((obc.ObcError, OSError), match="no space left"):
            obc.save(nth(1), tmp_path)
    assert found(tmp_path) == 0
    obc.save(nth(1), tmp_path)
    assert found(tmp_path) == 1 and sorted(os.listdir(tmp_path)) == FILES


# Several at once.


def test_two_that_save_take_turns(tmp_path: Path) -> None:
    obc.save(nth(0), tmp_path)

    def run(numbers: range) -> None:
        for number in numbers:
            obc.save(nth(number), tmp_path)

    processes = [child(lambda r=r: run(r)) for r in (range(1, 40), range(101, 140))]
    for _ in range(20):  # a reader among writers finds one of them whole
        found(tmp_path)
    assert [ended(p) for p in processes] == [0, 0]
    assert found(tmp_path) in (39, 139)
    assert sorted(os.listdir(tmp_path)) == FILES


def test_a_file_that_is_replaced_while_it_is_opened_is_opened_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    obc.save(nth(0), tmp_path)
    opened = []

    def slowly(folder: Path) -> Any:
        opened.append(folder)
        if len(opened) == 1:
            with monkeypatch.context() as plain:
                plain.setattr("obc.files.folder.tensors_in", tensors_in)
                obc.save(nth(1), tmp_path)
        return tensors_in(folder)

    monkeypatch.setattr("obc.files.folder.tensors_in", slowly)
    assert found(tmp_path) == 1
    assert len(opened) == 2


# Pairs that do not belong together.


def test_a_mixed_pair_is_noticed(tmp_path: Path) -> None:
    for i in (0, 1):
        obc.save(nth(i), tmp_path / str(i))
    os.replace(tmp_path / "0" / "plan.json", tmp_path / "1" / "plan.json")
    with pytest.raises(obc.ObcError, match=r"plan\.json is not the one that model\.safetensors"):
        obc.load(fresh(), tmp_path / "1")
    with pytest.raises(obc.ObcError, match="no artifact at"):
        obc.load(fresh(), tmp_path / "0")


def test_a_plan_edited_by_hand_is_noticed(tmp_path: Path) -> None:
    obc.save(nth(0), tmp_path)
    text = (tmp_path / "plan.json").read_text()
    assert json.loads(text)["plans"][0]["sites"]["0"]["size"] == WIDTH
    (tmp_path / "plan.json").write_text(text + " ")
    with pytest.raises(obc.ObcError, match=r"plan\.json is not the one"):
        obc.load(fresh(), tmp_path)


def test_links_are_followed_when_reading_and_never_when_writing(tmp_path: Path) -> None:
    """Model hubs keep files elsewhere and link to them."""
    obc.save(nth(0), tmp_path / "real")
    (tmp_path / "linked").mkdir()
    for name in FILES:
        (tmp_path / "linked" / name).symlink_to(tmp_path / "real" / name)
    assert found(tmp_path / "linked") == 0
    obc.save(nth(1), tmp_path / "linked")
    assert found(tmp_path / "linked") == 1 and found(tmp_path / "real") == 0
    (tmp_path / "linked" / ".saving").symlink_to(tmp_path / "real")
    with pytest.raises(obc.ObcError, match="is in the way"):
        obc.save(nth(2), tmp_path / "linked")
    assert found(tmp_path / "linked") == 1 and found(tmp_path / "real") == 0
