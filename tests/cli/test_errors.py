"""What a person can get wrong ends in one line that says what to do, and exit code 1."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import pytest

from tests.cli.running import run

PRUNE = ("--data", "digits", "--rows", "2", "--step", "0.1")


def failed(*arguments: object) -> str:
    """The one line of a command that must fail."""
    found = run(*arguments)
    assert found.exit_code == 1, found.output
    assert found.stdout == ""
    (line,) = found.stderr.splitlines()
    assert line.startswith("error: ") and "Traceback" not in line
    return line


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        ("show resnet21", "did you mean 'resnet20'?"),
        ("show nowhere.py:build", "no file nowhere.py"),
        ("show {tmp}", "holds no model that obc saved"),
        ("show resnet20 --input 3by3", "a shape looks like 1x3x224x224"),
        ("show resnet20 --input 1x5x8x8", "the model does not take this input"),
        ("eval resnet20,in_channels=3 --data digits", "does not take the inputs of digits"),
        ("eval resnet20 --data digit", "did you mean 'digits'?"),
        ("eval resnet20 --data cifar10", "--data cifar10:FOLDER"),
        ("eval resnet20 --data cifar10:/nowhere/at/all", "no folder /nowhere/at/all"),
        ("eval resnet20 --data cifar10:{tmp}", "{tmp}"),
        ("eval resnet20 --data digits --weights nothing.safetensors", "cannot be read"),
        ("eval resnet20 --data digits --weights old.pth", "never from pickled ones"),
        ("tune resnet20 --recipe resnet20-digit --out {tmp}/a", "did you mean 'resnet20-digits'?"),
        ("tune resnet20 --recipe resnet20-digits", "--out DIR"),
        ("run resnet20-digits --out {tmp}/a", "would start untrained"),
        ("compare resnet20 --data digits --out {tmp}/a", "--train RECIPE"),
        ("compare resnet20 --data digits --out {tmp}/a --ablate row", "did you mean 'rows'?"),
        ("report {tmp}", "record.json"),
        ("data cifar10 {tmp}/a", "names no source of data"),
    ],
)
def test_a_mistake_is_told_in_one_line(arguments: str, said: str, tmp_path: Path) -> None:
    words = [word.format(tmp=tmp_path) for word in arguments.split()]
    assert said.format(tmp=tmp_path) in failed(*words)
    assert not (tmp_path / "a").exists()


@pytest.mark.parametrize(
    ("options", "said"),
    [
        (("--target", "macs=9000x"), "the nearest that can is macs="),
        (("--target", "mac=2x"), "did you mean 'macs'?"),
        (("--target", "macs=2x", "--criterion", "jacobi"), "did you mean 'jacobian'?"),
        (("--target", "macs=2x", "--scope", "galactic"), "scope must be one of"),
        (("--target", "macs=2x", "--ignore", "layer9"), "layer9"),
    ],
)
def test_an_impossible_plan_leaves_its_folder_free(
    options: tuple[str, ...], said: str, dense: Path, tmp_path: Path
) -> None:
    assert said in failed("prune", dense, *PRUNE, *options, "--out", tmp_path / "a")
    assert not (tmp_path / "a").exists()


def test_a_folder_of_another_run_is_refused(half: Path, dense: Path, tmp_path: Path) -> None:
    before = {f: f.read_bytes() for f in half.iterdir() if f.is_file()}
    said = failed("prune", dense, *PRUNE, "--target", "macs=3x", "--out", half)
    assert "holds another run" in said and "--out" in said
    assert before == {f: f.read_bytes() for f in half.iterdir() if f.is_file()}
    (tmp_path / "diary.txt").write_text("dear diary")
    said = failed("prune", dense, *PRUNE, "--target", "macs=3x", "--out", tmp_path)
    assert "holds files but no run" in said
    assert [f.name for f in tmp_path.iterdir()] == ["diary.txt"]


@pytest.mark.parametrize("place", ["/proc/obc", "{tmp}/file/below"])
def test_a_folder_that_cannot_be_written(place: str, dense: Path, tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    out = place.format(tmp=tmp_path)
    said = failed("prune", dense, *PRUNE, "--target", "macs=2x", "--out", out)
    assert "is no folder that can be written to" in said and "choose another" in said


def test_a_missing_extra_says_what_to_install(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, half: Path
) -> None:
    for name in ("transformers", "onnxscript", "sklearn.datasets"):
        monkeypatch.setitem(sys.modules, name, None)
    assert "pip install 'obc[hf]'" in failed("show", "hf:gpt2")
    assert "pip install 'obc[onnx]'" in failed("export", half, tmp_path / "model.onnx")
    assert "pip install 'obc[demo]'" in failed("eval", half, "--data", "digits")


def test_weights_of_another_model(dense: Path, tmp_path: Path) -> None:
    weights = dense / "model.safetensors"
    said = failed("eval", "resnet20", "--data", "digits", "--weights", weights)
    assert "is for another model" in said
    weights = tmp_path / "bad.safetensors"
    weights.write_bytes((dense / "model.safetensors").read_bytes()[:1000])
    said = failed("eval", "resnet20,width=4", "--data", "digits", "--weights", weights)
    assert "cannot be read" in said


def test_a_folder_whose_model_nobody_knows(tmp_path: Path) -> None:
    import obc
    from obc.models import resnet20

    obc.save(resnet20(width=4), tmp_path / "model")
    assert "obc.save(…, reference=…)" in failed("show", tmp_path / "model")


def test_machines_get_the_error_too() -> None:
    found = run("show", "resnet21", "--json")
    assert found.exit_code == 1
    assert "resnet20" in json.loads(found.stdout)["error"]


def test_debug_shows_where(monkeypatch: pytest.MonkeyPatch) -> None:
    found = run("show", "resnet21", "--debug")
    assert found.exit_code == 1 and found.exception is not None
    assert type(found.exception).__name__ == "ObcError"


def test_an_error_nobody_foresaw_is_one_line_too(monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(*args: object, **kwargs: object) -> None:
        raise ZeroDivisionError("division by zero")

    monkeypatch.setattr("obc.cli.show.trace", broken)
    said = failed("show", "resnet20")
    assert "ZeroDivisionError: division by zero; --debug shows where" in said


def test_wrong_usage_ends_with_two() -> None:
    for arguments in (("prune", "resnet20"), ("show", "resnet20", "--jsonn"), ("nothing",)):
        assert run(*arguments).exit_code == 2
