"""A language model from a plain folder of Hugging Face to a smaller one, by commands alone."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest
import torch

import obc
from obc.cli.inputs import model_of
from tests import vision
from tests.cli.running import done, run
from tests.hugging import decoder, gpt2, import_transformers, tokenizer

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


def test_prune_in_one_command(
    folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Planned, cut, recalibrated and saved; plain transformers loads and generates the same."""
    data, out = f"text:{folder}/tale.txt,length=20,row=16", tmp_path / "smaller"
    target = "params[blocks]=80%"
    said = done("prune", f"hf:{folder}", "--data", data, "--target", target, "--out", out)
    before, pruned = said["before"], said["recalibrated"]
    assert pruned["params"] < before["params"] and pruned["perplexity"] > 1
    assert said["cut"]["params"] == pruned["params"]
    hf = import_transformers()
    modules = "transformers.dynamic_module_utils.HF_MODULES_CACHE"
    monkeypatch.setattr(modules, str(tmp_path / "code"))
    twin = hf.AutoModelForCausalLM.from_pretrained(out, trust_remote_code=True)
    assert twin.model.embed_tokens.embedding_dim == 24  # the residual width stays
    judged = done("eval", out, "--data", data)
    assert judged["perplexity"] == pytest.approx(pruned["perplexity"], rel=1e-6)
    task = obc.tasks.resolve(data, str(out))  # the tokenizer is there, too
    assert task.evaluate(twin).value == pytest.approx(pruned["perplexity"], rel=1e-4)
    ids = task.example()[:, :6]
    ours = model_of(str(out))
    texts = [m.generate(ids, max_new_tokens=8, do_sample=False) for m in (ours, twin)]
    assert torch.equal(*texts)


def test_prune_to_one_width_over_layers(folder: Path, tmp_path: Path) -> None:
    """What plain `from_pretrained` loads without any code of ours."""
    data, out = f"text:{folder}/tale.txt,length=20,row=16", tmp_path / "uniform"
    quick = ("--rows", 4, "--no-recalibrate", "--criterion", "l1")
    asked = ("prune", folder, "--data", data, "--target", "params[blocks]=85%", "--uniform", *quick)
    told = run(*asked, "--out", out, "--estimate")
    assert "that is planning alone" in told.output and not out.exists()
    found = run(*asked, "--out", out)
    assert found.exit_code == 0, found.output
    assert "tale.txt: params[blocks]=85% by l1" in " ".join(found.output.split())
    assert "one width over layers" in " ".join(found.output.split())
    assert "hidden: kept whole, as asked for" in found.output
    assert not (out / "modeling_pruned.py").exists()
    twin = import_transformers().AutoModelForCausalLM.from_pretrained(out)
    assert twin.config.intermediate_size < 37


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
        ("binary.txt", "it has NUL bytes"),
        ("tale.txt,length=20,tokenizer=WIDER", "the tokenizer does not fit the model: a token is"),
    ],
)
def test_texts_that_do_not_fit(folder: Path, data: str, message: str) -> None:
    (folder / "empty.txt").write_text("\n")
    (folder / "binary.txt").write_bytes(b"PK\0\0 whale")
    wider = tokenizer()
    wider.add_tokens(["whale", "names"])  # ids behind the model's vocabulary
    wider.save_pretrained(folder / "wider")
    data = data.replace("WIDER", str(folder / "wider"))
    found = run("eval", folder, "--data", f"text:{folder}/{data},row=16")
    assert found.exit_code == 1 and message in " ".join(found.output.split())


def test_weights_that_are_pickled_or_not_all_there(folder: Path, tmp_path: Path) -> None:
    """Neither is evaluated with random weights in place of those that the user means."""
    data = f"text:{folder}/tale.txt,length=20,row=16"
    lacking, pickled = tmp_path / "lacking", tmp_path / "pickled"
    shutil.copytree(folder, lacking)
    config = json.loads((folder / "config.json").read_text())
    (lacking / "config.json").write_text(json.dumps({**config, "num_hidden_layers": 3}))
    found = run("eval", lacking, "--data", data)
    said = " ".join(found.output.split())
    assert found.exit_code == 1 and "9 tensors that its config.json asks for are missing" in said
    shutil.copytree(folder, pickled)
    (pickled / "model.safetensors").rename(pickled / "pytorch_model.bin")
    found = run("eval", pickled, "--data", data)
    assert found.exit_code == 1 and "has pickled weights alone" in " ".join(found.output.split())


def test_one_width_where_no_configuration_can_say_it(tmp_path: Path) -> None:
    """GPT-2 has no width of a head: the folder of a uniform plan needs its class, and says so.

    A head holds an eighth of a block: only a plan of one width may land so far below its target.
    """
    torch.manual_seed(0)
    gpt2("sdpa").save_pretrained(tmp_path)
    tokenizer().save_pretrained(tmp_path)
    (tmp_path / "tale.txt").write_text(TEXT)
    data = f"text:{tmp_path}/tale.txt,length=20,row=16"
    quick = ("--no-recalibrate", "--criterion", "l1", "--target", "params[blocks]=88%")
    quick = (*quick, "--uniform", "--sites", "heads")
    found = run("prune", tmp_path, "--data", data, *quick, "--out", tmp_path / "out")
    assert found.exit_code == 0, found.output
    assert (tmp_path / "out" / "modeling_pruned.py").exists()
    assert "no configuration of GPT2LMHeadModel can say these widths" in " ".join(
        found.output.split()
    )
