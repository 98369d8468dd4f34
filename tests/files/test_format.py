"""The format is what docs/format.md says, and every released version of it is still read."""

from __future__ import annotations

import json
import re
from pathlib import Path

import numpy as np
import pytest
import torch

import obc
from obc.files.artifact import Artifact
from obc.files.tensors import _NAMES
from obc.plans.plan import Plan
from tests.cases import case
from tests.files.fixtures import make
from tests.files.kept import prune, pruned
from tests.files.reader import read
from tests.reference import random_kept

DOCUMENT = (Path(__file__).parents[2] / "docs" / "format.md").read_text()
FIXTURES = sorted(p for p in Path(make.__file__).parent.glob("v*/*") if p.is_dir())


@pytest.mark.parametrize("name", ["resnet20", "tied_embedding", "called_twice", "bare_buffers"])
def test_an_independent_reader(name: str, tmp_path: Path) -> None:
    """It knows the document only; what it finds is the model's state."""
    net = case(name)
    model = prune(pruned(net), net.example(), seed=1).float()
    obc.save(model, tmp_path)
    plan, tensors = read(tmp_path)
    state = model.state_dict()
    assert state.keys() <= tensors.keys()
    for key, value in state.items():
        assert np.array_equal(tensors[key], value.numpy()), key
    first, second = (p["shapes"] for p in plan["plans"])
    after = {name: list(tensors[name].shape) for name in plan["tensors"]}
    assert first.keys() == second.keys() == after.keys()
    assert any(first[n] > second[n] > after[n] for n in after)


def test_the_independent_reader_in_the_middle_of_equivalent_pruning(tmp_path: Path) -> None:
    net = case("resnet20")
    model, example = net.model(), net.example()
    sites = obc.trace(model, example)
    obc.apply(model, Plan.from_kept(sites, random_kept(sites)), example=example, equivalent=True)
    obc.save(model, tmp_path)
    plan, tensors = read(tmp_path)
    full = tensors["conv1.parametrizations.weight.original"]
    mixed = tensors["conv1.parametrizations.weight.0.C.0.matrices.0"][0]
    assert plan["equivalent"] == "folded"
    assert list(full.shape) == plan["plans"][0]["shapes"]["conv1.weight"]
    folded = np.tensordot(mixed, full, 1)
    assert np.allclose(folded, obc.merge(model).conv1.weight.detach().numpy())


def test_the_independent_reader_notices(tmp_path: Path) -> None:
    obc.save(pruned(case("resnet20")), tmp_path)
    path = tmp_path / "model.safetensors"
    content = path.read_bytes()
    path.write_bytes(content[:-1] + bytes([content[-1] ^ 1]))
    with pytest.raises(AssertionError):
        read(tmp_path)


# The document names what there is.


def test_every_field_is_described() -> None:
    for kind in (Artifact, Plan):
        for name in kind.model_fields:
            assert f"`{name}`" in DOCUMENT, name


def test_every_type_is_described() -> None:
    (line,) = re.findall(r"^- dtypes: `(.*)`\.$", DOCUMENT, re.MULTILINE)
    assert set(line.split()) == set(_NAMES.values())


def test_the_limits_are_those_of_the_document() -> None:
    from obc.disk import reading
    from obc.files import tensors
    from obc.plans import example

    assert "The header has at most 32 MiB" in DOCUMENT and tensors._HEADER == 32 * 2**20
    assert "At most 64 MiB" in DOCUMENT and reading.LIMIT == 64 * 2**20
    assert "at most 2²⁶ numbers" in DOCUMENT and example._LARGE == 2**26
    assert "at most 16 dimensions" in DOCUMENT and example._DIMS == 16


# What was once written is always read.


@pytest.mark.parametrize("folder", FIXTURES, ids=lambda p: f"{p.parent.name}-{p.name}")
def test_released_versions_are_read(folder: Path) -> None:
    loaded = obc.load(make.fresh(), folder).eval()
    expected = json.loads((folder / "expected.json").read_text())
    with torch.no_grad():
        found = loaded(make.inputs()).double()
    assert torch.allclose(found, torch.tensor(expected, dtype=torch.float64), rtol=1e-5, atol=1e-6)


def test_there_is_a_fixture_of_every_kind_for_every_version() -> None:
    versions = range(1, Artifact.model_fields["version"].default + 1)
    found = {(p.parent.name, p.name) for p in FIXTURES}
    assert found == {(f"v{v}", name) for v in versions for name in make.KINDS}
