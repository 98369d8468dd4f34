"""Detectors on the command line: bad data ends in one sentence, a cut in a page with pictures."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from safetensors.torch import save_file

from obc.models import yolov7_tiny
from tests.boxed import write_yolo
from tests.cli.running import done, run

MODEL = "yolov7_tiny,width=0.125"
LABELS = "labels/train/p0.txt"


def weights(file: Path, classes: int) -> Path:
    state = yolov7_tiny(classes, width=0.125).state_dict()
    save_file({name: tensor.contiguous() for name, tensor in state.items()}, file)
    return file


@pytest.mark.parametrize(
    ("file", "text", "words"),
    [
        (LABELS, "0 1.6 0.5 0.2 0.2", "p0.txt, line 1: the box from (120, 24) to (136, 36) lies"),
        (LABELS, "0 .5 .5 .1 .1\n2 .5 .5 .1 .1", "p0.txt, line 2: class 2, but 'names' has 2"),
        ("data.yaml", "train: images/none\nval: images/val\nnames: [disc, ring]", "no such folder"),
        ("data.yaml", "train: images/train\nval: labels/val\nnames: [a, b]", "holds no images"),
    ],
)
def test_bad_data_is_said_in_a_sentence(tmp_path: Path, file: str, text: str, words: str) -> None:
    data = write_yolo(tmp_path)
    (tmp_path / file).write_text(text)
    options = ("--target", "macs=2x", "--out", tmp_path / "small")
    found = run("prune", MODEL, "--data", f"yolo:{data},size=64", *options)
    assert not (tmp_path / "small").exists()
    assert found.exit_code == 1 and found.stdout == ""
    (line,) = found.stderr.splitlines()
    assert line.startswith("error: ") and words in line


def test_a_checkpoint_of_another_number_of_classes(tmp_path: Path) -> None:
    data, other = write_yolo(tmp_path), weights(tmp_path / "three.safetensors", 3)
    found = run("eval", MODEL, "--data", f"yolo:{data},size=64", "--weights", other)
    assert found.exit_code == 1 and found.stdout == ""
    (line,) = found.stderr.splitlines()
    assert line.startswith("error: ") and "; for another number of classes add" in line


def test_a_class_that_the_model_does_not_know(tmp_path: Path) -> None:
    data = write_yolo(tmp_path)
    found = run("eval", f"{MODEL},num_classes=1", "--data", f"yolo:{data},size=64")
    assert found.exit_code == 1 and found.stdout == ""
    (line,) = found.stderr.splitlines()
    assert "the model knows 1 classes, the data has 2: disc, ring" in line


@pytest.mark.slow
def test_a_cut_has_the_same_images_before_and_after(tmp_path: Path) -> None:
    data, own = write_yolo(tmp_path), weights(tmp_path / "two.safetensors", 2)
    (tmp_path / LABELS).unlink()
    words = ("--target", "macs=1.5x", "--rows", 1, "--step", 0.5, "--batch-size", 2)
    more = ("--recalibrate", 4, "--out", tmp_path / "small", "--weights", own)
    done("prune", MODEL, "--data", f"yolo:{data},size=64", *words, *more)
    record = json.loads((tmp_path / "small" / "record.json").read_text())
    assert any("1 of 4 images have no boxes" in note for note in record["warnings"])
    assert len(record["scenes"]) == 2  # as many as there are test images, at most four
    assert all(len(scene["found"]) == 2 for scene in record["scenes"])
