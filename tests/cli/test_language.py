"""A language model from a plain folder of Hugging Face to a smaller one, by commands alone."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from tests import vision
from tests.cli.running import done, run
from tests.hugging import decoder, tokenizer

pytestmark = pytest.mark.skipif(
    not vision.installed("transformers"), reason="transformers is not installed"
)
TEXT = "A whale, a b c. Call me no more names 012\n" * 60


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A decoder with its tokenizer as `save_pretrained` writes them, and a text."""
    place = tmp_path_factory.mktemp("plain")
    torch.manual_seed(0)
    decoder("Llama").save_pretrained(place)
    tokenizer().save_pretrained(place)
    (place / "tale.txt").write_text(TEXT)
    return place


def test_eval_of_a_plain_folder(folder: Path) -> None:
    """With "hf:" before it or without, its own weights are evaluated."""
    data = f"text:{folder}/tale.txt,length=20,row=16"
    found, same = (done("eval", name, "--data", data) for name in (folder, f"hf:{folder}"))
    assert found["perplexity"] == same["perplexity"]
    assert found["model"] == f"hf:{folder}"
    assert found["bytes"] == (folder / "model.safetensors").stat().st_size
    assert found["prefill tokens/s"] > 0 and found["decode tokens/s"] > 0
    assert "12 windows of 20, stride 20" in found["protocol"]
    said = run("eval", folder, "--data", data).output
    assert "perplexity" in said and "decode tokens/s" in said


def test_ids_where_the_model_takes_ids(folder: Path) -> None:
    assert done("show", folder, "--input", "1x12")["params"] > 0


def test_export_to_gguf(folder: Path, tmp_path: Path) -> None:
    pytest.importorskip("gguf")
    found = done("export", folder, tmp_path / "model.gguf", "--input", "1x12")
    assert found["bytes"] == (tmp_path / "model.gguf").stat().st_size


@pytest.mark.parametrize(
    ("data", "message"),
    [
        ("tale.txt,length=50", "a window of 50 tokens is longer than the model's 41 positions"),
        ("tale.txt,length=9000", "less than one window of 9000"),
        ("no.txt", "no text at"),
        ("empty.txt", "is empty"),
    ],
)
def test_texts_that_do_not_fit(folder: Path, data: str, message: str) -> None:
    (folder / "empty.txt").write_text("\n")
    found = run("eval", folder, "--data", f"text:{folder}/{data},row=16")
    assert found.exit_code == 1 and message in " ".join(found.output.split())
