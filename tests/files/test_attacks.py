"""Hostile artifacts are refused: one sentence, nothing run, nothing allocated, nothing changed."""

from __future__ import annotations

import json
import os
import resource
import shutil
import sys
import tracemalloc
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

import obc
from tests.files.attacks import ATTACKS, good, victim
from tests.files.attacks.raw import header, seal, write
from tests.files.kept import contents
from tests.untouched import untouched


@pytest.fixture(scope="module")
def original(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("original")
    obc.save(good(), folder)
    return folder


@pytest.fixture
def folder(original: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A good artifact in a folder that is also where a bomb would leave its traces."""
    monkeypatch.chdir(tmp_path)
    shutil.copytree(original, tmp_path / "artifact")
    return tmp_path / "artifact"


@pytest.mark.parametrize("name", ATTACKS)
def test_refused(name: str, folder: Path) -> None:
    damage, text = ATTACKS[name]
    damage(folder)
    model = victim()
    with untouched(model), pytest.raises(obc.ObcError, match=f"(?s){text}") as error:
        obc.load(model, folder)
    assert len(str(error.value)) < 1000
    assert os.listdir(folder.parent) == ["artifact"]


def test_the_attacks_are_refused_for_what_they_do(folder: Path) -> None:
    """The control: an artifact taken apart and put together again is a good one."""
    seal(folder, (folder / "plan.json").read_bytes())
    write(folder, *header(folder))
    assert contents(obc.load(victim(), folder)).keys() == contents(good()).keys()
    content = json.loads((folder / "plan.json").read_bytes())
    seal(folder, json.dumps(content).encode())
    obc.load(victim(), folder)


# A plan file meets the same reader.

PLAN = [
    *("NaN", "infinity", "infinity spelt out", "huge number", "key twice", "key twice deep inside"),
    *("nesting of lists", "nesting of objects", "nesting without end", "half a character"),
    *("empty", "null", "list", "not UTF-8", "byte order mark", "two documents", "comment"),
]


@pytest.mark.parametrize("name", PLAN)
def test_plan_files_are_refused_too(name: str, folder: Path) -> None:
    content = json.loads((folder / "plan.json").read_bytes())["plans"][0]
    plan = folder / "plan.json"
    plan.write_text(json.dumps(content))
    obc.Plan.load(plan)
    ATTACKS[name][0](folder)
    with pytest.raises(obc.ObcError, match="is not a plan this version reads"):
        obc.Plan.load(plan)


def test_a_plan_file_may_be_too_large_or_no_file(folder: Path) -> None:
    plan = folder / "plan.json"
    plan.write_bytes(b" " * (2**26 + 1))
    with pytest.raises(obc.ObcError, match="has at most"):
        obc.Plan.load(plan)
    plan.unlink()
    os.mkfifo(plan)
    with pytest.raises(obc.ObcError, match="no regular file"):
        obc.Plan.load(plan)


# Nothing is run and nothing allocated, seen from outside.

ROOM = 256 * 2**20
FORBIDDEN = ("pickle.find_class", "os.system", "subprocess.Popen", "os.exec", "socket.", "ctypes.")


def confined(run: Callable[[], str]) -> str:
    """What a function answers in a process that may take little memory and start nothing."""
    read, put = os.pipe()
    process = os.fork()
    if not process:
        answer = "nothing"
        try:
            size = int(Path("/proc/self/statm").read_text().split()[0]) * resource.getpagesize()
            resource.setrlimit(resource.RLIMIT_AS, (size + ROOM, size + ROOM))
            sys.addaudithook(forbid)
            answer = run()
        except BaseException as error:
            answer = f"{type(error).__name__}: {error}"
        finally:
            os.write(put, answer.encode()[:4000])
            os._exit(0)
    os.close(put)
    with os.fdopen(read) as file:
        answer = file.read()
    os.waitpid(process, 0)
    return answer


def forbid(event: str, args: Any) -> None:
    if event.startswith(FORBIDDEN):
        raise SystemError(f"forbidden: {event}")


linux = pytest.mark.skipif(sys.platform != "linux", reason="reads the size of a process in /proc")


@linux
def test_refused_in_little_memory_and_without_running_anything(
    original: Path, tmp_path: Path
) -> None:
    def run() -> str:
        before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
        for i, (name, (damage, _)) in enumerate(ATTACKS.items()):
            folder = tmp_path / str(i)
            shutil.copytree(original, folder)
            damage(folder)
            try:
                obc.load(victim(), folder)
            except obc.ObcError:
                continue
            return f"{name} was loaded"
        grown = (resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before) * 1024
        return "fine" if grown < ROOM // 2 else f"{grown} bytes more"

    assert confined(run) == "fine"


@linux
def test_the_confinement_holds() -> None:
    """The controls: memory and programs are refused in there."""
    assert "RuntimeError" in confined(lambda: str(torch.zeros(ROOM).sum()))
    assert "forbidden: os.system" in confined(lambda: str(os.system("true")))
    import pickle

    bomb = pickle.dumps(os.getcwd)
    assert "forbidden: pickle.find_class" in confined(lambda: str(pickle.loads(bomb)))


def test_a_refused_example_costs_nothing(folder: Path) -> None:
    ATTACKS["example huge by parts"][0](folder)
    tracemalloc.start()
    with pytest.raises(obc.ObcError):
        obc.load(victim(), folder)
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert peak < 2**22


# Fuzzing: whatever stands in the plan, the answer is a model or a clean refusal.

ANYTHING = st.recursive(
    st.none()
    | st.booleans()
    | st.integers()
    | st.integers(-2, 10)
    | st.floats()
    | st.text(max_size=8)
    | st.sampled_from(["F32", "float32", "0.weight", "tensor", "tuple", "value", "0" * 64]),
    lambda node: (
        st.lists(node, max_size=4)
        | st.dictionaries(
            st.text(max_size=5)
            | st.sampled_from(["tensor", "dtype", "tuple", "dict", "value", "values", "low"]),
            node,
            max_size=3,
        )
    ),
    max_leaves=8,
)


def places(node: Any, path: tuple[Any, ...] = ()) -> list[tuple[Any, ...]]:
    """The ways to every entry of a document."""
    inner = (
        node.items()
        if isinstance(node, dict)
        else enumerate(node)
        if isinstance(node, list)
        else ()
    )
    return [path, *(p for key, value in inner for p in places(value, (*path, key)))]


def refused_or_loaded(folder: Path, plan: bytes) -> None:
    seal(folder, plan)
    try:
        obc.load(victim(), folder)
    except obc.ObcError:
        return


FUZZ = settings(suppress_health_check=[*HealthCheck], deadline=None)


@FUZZ
@given(data=st.data())
def test_any_entry_may_be_anything(data: st.DataObject, folder: Path) -> None:
    content = json.loads((folder / "plan.json").read_bytes())
    original = json.dumps(content).encode()
    for _ in range(data.draw(st.integers(1, 3))):
        *parents, last = data.draw(st.sampled_from(places(content)[1:]))
        node = content
        for part in parents:
            node = node[part]
        what = data.draw(st.sampled_from(["set", "remove", "copy"]))
        if what == "remove":
            del node[last]
        elif what == "copy":
            source: Any = content
            for part in data.draw(st.sampled_from(places(content)[1:])):
                source = source[part]
            node[last] = json.loads(json.dumps(source))
        else:
            node[last] = data.draw(ANYTHING)
        if not places(content)[1:]:
            break
    try:
        refused_or_loaded(folder, json.dumps(content).encode())
    finally:
        seal(folder, original)


@FUZZ
@given(data=st.data())
def test_any_byte_may_be_anything(data: st.DataObject, folder: Path) -> None:
    original = (folder / "plan.json").read_bytes()
    content = bytearray(original)
    for _ in range(data.draw(st.integers(1, 4))):
        where = data.draw(st.integers(0, len(content) - 1))
        content[where : where + data.draw(st.integers(0, 3))] = data.draw(st.binary(max_size=3))
    try:
        refused_or_loaded(folder, bytes(content))
    finally:
        seal(folder, original)


@FUZZ
@given(content=ANYTHING.map(lambda c: json.dumps(c).encode()) | st.binary(max_size=60))
def test_any_file_may_be_a_plan(content: bytes, folder: Path) -> None:
    original = (folder / "plan.json").read_bytes()
    try:
        refused_or_loaded(folder, content)
        with pytest.raises(obc.ObcError):
            obc.Plan.load(folder / "plan.json")
    finally:
        seal(folder, original)


@FUZZ
@given(data=st.data())
def test_any_header_byte_may_be_anything(data: st.DataObject, folder: Path) -> None:
    path = folder / "model.safetensors"
    original = path.read_bytes()
    content = bytearray(original)
    size = int.from_bytes(original[:8], "little") + 8
    for _ in range(data.draw(st.integers(1, 3))):
        content[data.draw(st.integers(0, size - 1))] = data.draw(st.integers(0, 255))
    path.write_bytes(content)
    try:
        obc.load(victim(), folder)
    except obc.ObcError:
        pass
    finally:
        path.write_bytes(original)
