"""Tensors spread over several files load as if they were one, here and in transformers."""

from __future__ import annotations

import copy
import itertools
import json
import os
import shutil
import signal
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

import obc
from obc.files.shards import INDEX
from tests import vision
from tests.files.kept import contents
from tests.files.test_folder import child, ended, found, fresh, killed_at, nth
from tests.hugging import decoder, import_transformers

LIMIT = 30_000  # bytes: the models of test_folder have four tensors, of which two are larger


def index(folder: Path) -> Any:
    return json.loads((folder / INDEX).read_bytes())


def shards(folder: Path) -> list[str]:
    return sorted(p.name for p in folder.glob("model-*.safetensors"))


def test_several_files_are_one_model(tmp_path: Path) -> None:
    model = nth(7)
    obc.save(model, tmp_path, max_shard_size=LIMIT)
    assert len(shards(tmp_path)) == 2 and not (tmp_path / "model.safetensors").exists()
    assert found(tmp_path) == 7
    assert contents(obc.load(fresh(), tmp_path)) == contents(model)
    assert set(index(tmp_path)["weight_map"].values()) == set(shards(tmp_path))


def test_a_save_leaves_no_shard_of_the_one_before(tmp_path: Path) -> None:
    plain = ["model.safetensors", "plan.json"]
    for number, limit in enumerate((LIMIT, LIMIT, 10_000, 10**9, LIMIT)):
        obc.save(nth(number), tmp_path, max_shard_size=limit)
        assert found(tmp_path) == number
        names = (
            [INDEX, "plan.json", *index(tmp_path)["weight_map"].values()]
            if limit < 10**9
            else plain
        )
        assert sorted(os.listdir(tmp_path)) == sorted(set(names))


def test_killed_at_each_step(tmp_path: Path) -> None:
    """From shards to shards, to one file, and back: the old artifact or the new one."""
    obc.save(nth(0), tmp_path, max_shard_size=LIMIT)
    old, outcomes, whole = 0, [], 0
    for step in itertools.count():
        done = []
        for number, limit in enumerate((LIMIT, 10**9, LIMIT), old + 1):

            def run(step: int = step, number: int = number, limit: int = limit) -> None:
                model = nth(number)
                killed_at(step)
                obc.save(model, tmp_path, max_shard_size=limit)

            done.append(ended(child(run)))
            now = found(tmp_path)
            assert now in (old, number)
            outcomes.append(now == number)
            old = number if now == number else old
        if not any(done):
            break
        assert set(done) <= {0, -signal.SIGKILL}
        whole += 1
    assert whole > 10 and True in outcomes and False in outcomes


def outside(folder: Path) -> None:
    shutil.copy(folder / shards(folder)[0], folder.parent / "elsewhere.safetensors")
    rewrite(folder, lambda m: {n: "../elsewhere.safetensors" for n in m})


def rewrite(folder: Path, change: Callable[[dict[str, str]], dict[str, str]]) -> None:
    content = index(folder)
    content["weight_map"] = change(content["weight_map"])
    (folder / INDEX).write_text(json.dumps(content))


def exchange(folder: Path) -> None:
    a, b = shards(folder)
    rewrite(folder, lambda m: {n: a if f == b else b for n, f in m.items()})


def without(folder: Path) -> None:
    (folder / shards(folder)[1]).unlink()


def of_another(folder: Path) -> None:
    other = folder.parent / "other"
    obc.save(nth(1), other, max_shard_size=LIMIT)
    shutil.copy(other / shards(other)[0], folder / shards(folder)[0])


def foreign(folder: Path) -> None:
    content = index(folder)
    del content["metadata"]["obc.plan"]
    (folder / INDEX).write_text(json.dumps(content))


ATTACKS: list[tuple[Callable[[Path], None], str]] = [
    (outside, "weight_map"),
    (exchange, "does not say where the tensors are"),
    (without, "no model at"),
    (of_another, "was not saved with"),
    (foreign, "is not an index of obc.save"),
]


@pytest.mark.parametrize(("damage", "text"), ATTACKS)
def test_damaged_shards_are_refused(
    tmp_path: Path, damage: Callable[[Path], None], text: str
) -> None:
    folder = tmp_path / "artifact"
    obc.save(nth(0), folder, max_shard_size=LIMIT)
    damage(folder)
    with pytest.raises(obc.ObcError, match=text):
        obc.load(fresh(), folder)


def test_a_foreign_index_is_not_overwritten(tmp_path: Path) -> None:
    obc.save(nth(0), tmp_path, max_shard_size=LIMIT)
    foreign(tmp_path)
    before = sorted(os.listdir(tmp_path))
    with pytest.raises(obc.ObcError, match="is not an index"):
        obc.save(nth(1), tmp_path)
    assert sorted(os.listdir(tmp_path)) == before


@pytest.mark.skipif(not vision.installed("transformers"), reason="transformers is not installed")
@pytest.mark.parametrize("widths", ["uniform", "free"])
def test_transformers_loads_shards(tmp_path: Path, widths: str) -> None:
    hf = import_transformers()
    torch.manual_seed(0)
    model = decoder("Llama").eval()
    ids = torch.arange(12).reshape(1, 12)
    sites = obc.trace(model, ids)
    ffn = [s for s in sites if s.size == 37]
    kept = {s.name: range(20 if widths == "uniform" else 20 + i) for i, s in enumerate(ffn)}
    small = obc.apply(copy.deepcopy(model), obc.Plan.from_kept(sites, kept))
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        obc.save(small, tmp_path, max_shard_size=10_000)
    assert len(shards(tmp_path)) > 2
    again = hf.AutoModelForCausalLM.from_pretrained(tmp_path, trust_remote_code=widths == "free")
    assert torch.equal(again(ids).logits, small(ids).logits)
    assert contents(obc.load(copy.deepcopy(model), tmp_path)).keys() == contents(small).keys()
