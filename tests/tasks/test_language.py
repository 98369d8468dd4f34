"""Perplexity against a plain loop over transformers; what a text task takes and refuses."""

from __future__ import annotations

import copy
import math
import warnings
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

import obc
from obc.criteria import single
from obc.errors import ObcError
from obc.tasks import Language, resolve
from tests import vision
from tests.hugging import bert, decoder, import_transformers, t5, tokenizer

pytestmark = pytest.mark.skipif(
    not vision.installed("transformers"), reason="transformers is not installed"
)
TEXT = "A whale, a b c. Call me no more names 012\n" * 12


def plain_perplexity(model: Any, ids: torch.Tensor, length: int) -> float:
    """As everybody measures it: transformers' own loss of each window, weighed by its tokens."""
    total, count = 0.0, 0
    for start in range(0, len(ids) - length + 1, length):
        window = ids[start : start + length][None]
        with torch.no_grad():
            loss = model(window, labels=window).loss
        total, count = total + float(loss) * (length - 1), count + length - 1
    return math.exp(total / count)


def strided_perplexity(model: Any, ids: torch.Tensor, length: int, stride: int) -> float:
    """Every token but the first once, from at most `length` - 1 tokens before it."""
    total, count, done = 0.0, 0, 1
    for start in range(0, len(ids) - length + 1, stride):
        with torch.no_grad():
            logits = model(ids[start : start + length][None]).logits[0].double()
        for at in range(done, start + length):
            total -= float(logits[at - start - 1].log_softmax(0)[ids[at]])
            count += 1
        done = start + length
    return math.exp(total / count)


@pytest.fixture(scope="module")
def llama() -> Any:
    torch.manual_seed(0)
    return decoder("Llama").eval()


def test_as_a_plain_loop_over_transformers(llama: Any) -> None:
    task = Language(TEXT, TEXT, tokenizer=tokenizer(), length=20)
    ids = torch.tensor(tokenizer()(TEXT)["input_ids"])
    found = task.evaluate(llama)
    expected = plain_perplexity(llama, ids, 20)
    assert found.perplexity == pytest.approx(expected, rel=1e-6)
    assert found.value == found.perplexity and not found.metric.higher
    assert plain_perplexity(llama, ids[1:], 20) != pytest.approx(expected, rel=1e-6)  # a control


def test_with_a_stride(llama: Any) -> None:
    ids = torch.tensor(tokenizer()(TEXT)["input_ids"])
    found = Language(test=ids, length=20, stride=7).evaluate(llama)
    assert found.perplexity == pytest.approx(strided_perplexity(llama, ids, 20, 7), rel=1e-6)


def test_windows_pair_up(llama: Any) -> None:
    """One row of outcomes for each window; together they are the perplexity."""
    task = Language(TEXT, TEXT, tokenizer=tokenizer(), length=20)
    found = task.evaluate(llama)
    assert found.samples is not None and found.samples.shape == (len(TEXT) // 20, 2)
    total, count = found.samples.sum(0).tolist()
    assert math.exp(total / count) == pytest.approx(found.perplexity)
    halves = [task.evaluate(llama, split).samples for split in ("search", "promise")]
    both = torch.cat([h for h in halves if h is not None])
    assert sorted(both[:, 0].tolist()) == sorted(found.samples[:, 0].tolist())


def test_loss_is_transformers_own(llama: Any) -> None:
    task = Language(TEXT, TEXT, tokenizer=tokenizer(), length=20, row=16)
    ids, labels = next(iter(task.calibration(3)))
    assert ids.shape == (3, 16)
    expected = llama(ids, labels=ids).loss
    assert torch.allclose(task.loss(llama, (ids, labels)), expected)
    assert torch.allclose(task.loss(llama, ids), expected)
    assert torch.allclose(task.loss(llama, {"input_ids": ids}), expected)


def test_the_protocol_says_how(llama: Any) -> None:
    task = Language(TEXT, TEXT, tokenizer=tokenizer(), length=20, name="a tale")
    windows, rest = divmod(len(TEXT), 20)
    expected = (
        f"{windows * 19} tokens of a tale (as it is): {windows} windows of 20, stride 20, without "
        f"the first token of each; no special tokens; {rest} tokens at the end are left out"
    )
    assert task.protocol == expected == task.evaluate(llama).protocol


def test_a_file_with_the_models_tokenizer(llama: Any, tmp_path: Path) -> None:
    model = tmp_path / "model"
    tokenizer().save_pretrained(model)
    (tmp_path / "tale.txt").write_text(TEXT)
    (tmp_path / "lines.txt").write_text("A\n\nbc\n")
    task = resolve(f"text:{tmp_path}/tale.txt,length=20,row=16,windows=2", f"hf:{model}")
    assert isinstance(task, Language) and task.name == "tale.txt"
    tail = len(TEXT) // 10
    ids = torch.tensor(tokenizer()(TEXT[-tail:])["input_ids"])
    assert task.test is not None and torch.equal(task.test.ids, ids[:40].view(2, 20))
    joined = resolve(
        f"text:{tmp_path}/tale.txt,test={tmp_path}/lines.txt,length=5,row=16,join=blank", str(model)
    )
    assert joined.test.ids.tolist() == [tokenizer()("A\n\nbc")["input_ids"]]
    assert "lines joined by blank lines" in joined.protocol
    with pytest.raises(ObcError, match="no option 'lenght'; there are"):
        resolve(f"text:{tmp_path}/tale.txt,lenght=20", str(model))


def test_a_data_set_of_hf(tmp_path: Path) -> None:
    datasets = pytest.importorskip("datasets")
    rows = datasets.Dataset.from_dict({"text": ["a b", "", "c."]})
    task = Language(test=rows, tokenizer=tokenizer(), length=4)
    assert task.test is not None
    assert task.test.ids.flatten().tolist() == tokenizer()("a b\n\n\n\nc.")["input_ids"][:8]
    datasets.DatasetDict(train=rows, test=rows).save_to_disk(tmp_path / "data")
    tokenizer().save_pretrained(tmp_path / "model")
    named = resolve(f"text:hf:{tmp_path}/data,length=4,row=4", f"hf:{tmp_path}/model")
    assert torch.equal(named.test.ids, task.test.ids)


def test_speed_is_told(llama: Any) -> None:
    task = Language(TEXT, TEXT, tokenizer=tokenizer(), length=20, row=8)
    speed = task.speed(llama)
    assert set(speed) == {"prefill tokens/s", "decode tokens/s"} and min(speed.values()) > 0


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: Language(" \n", tokenizer=tokenizer()), "the text is empty"),
        (lambda: Language(test="abc", tokenizer=tokenizer()), "3 tokens, less than one window of"),
        (lambda: Language(TEXT), "a text needs a tokenizer"),
        (lambda: Language(TEXT, tokenizer="no/such folder"), "no tokenizer can be loaded from"),
        (lambda: Language(torch.zeros(9)), "tokens are a row of whole numbers"),
        (lambda: Language(test=torch.arange(9), length=4, stride=5), "a stride is from 1 to"),
        (lambda: Language(test=torch.arange(9), length="x"), "a whole number from 2, not 'x'"),
        (lambda: Language(test=torch.arange(9), length=2.5), "a whole number from 2, not 2.5"),
        (lambda: Language(test=torch.arange(9), length=0), "a whole number from 2, not 0"),
        (lambda: Language(test=torch.arange(9), length=4, windows=-1), "windows is .* from 1"),
        (lambda: Language([1, 2]), "a text, token ids or a data set"),
        (lambda: resolve("text:no/file.txt,tokenizer=x", None), "no text at no/file.txt|tokenizer"),
        (lambda: resolve("text:tale.txt", None), "a text needs a tokenizer"),
        (lambda: Language(TEXT, tokenizer="/no/such/folder"), "there is no folder '/no/such"),
    ],
)
def test_what_cannot_be(make: Any, message: str) -> None:
    with pytest.raises(ObcError, match=message):
        make()


def test_a_tokenizer_and_windows_that_do_not_fit_the_model(llama: Any) -> None:
    with pytest.raises(ObcError, match=r"a token is 60, and the model's vocabulary ends at 52"):
        Language(test=torch.full((40,), 60), length=20).evaluate(llama)
    with pytest.raises(ObcError, match=r"a window of 50 tokens is longer than the model's 41"):
        Language(test=torch.ones(100).long(), length=50).evaluate(llama)


class Looks(nn.Module):
    """Each token's logits are told what the next one is."""

    def forward(self, ids: torch.Tensor) -> torch.Tensor:
        return nn.functional.one_hot(ids.roll(-1, 1), 11).float()


def test_a_model_that_sees_what_it_is_to_predict(llama: Any) -> None:
    """It would have the best perplexity of all; a decoder is not refused, in half precision too."""
    ids = torch.arange(200) % 11
    with pytest.raises(ObcError, match="Looks sees the tokens that it is to predict"):
        Language(test=ids, length=20).evaluate(Looks())
    sizes = {"hidden_size": 32, "intermediate_size": 48}  # of whole 16 bytes, for experts' kernels
    mixture = decoder("Mixtral", **sizes, num_local_experts=4, num_experts_per_tok=2)
    for model in (llama, mixture, copy.deepcopy(mixture).bfloat16()):
        assert Language(test=ids, length=20).evaluate(model).perplexity > 1
    hf = import_transformers()
    few = {"num_hidden_layers": 1, "num_attention_heads": 4, "vocab_size": 53}
    masked = hf.BertForMaskedLM(hf.BertConfig(**sizes, **few))
    with pytest.raises(ObcError, match="BertForMaskedLM sees the tokens"):
        Language(test=ids, length=20).evaluate(masked)


def test_models_of_other_ends() -> None:
    ids = torch.arange(200) % 11
    with pytest.raises(ObcError, match="T5ForConditionalGeneration reads one text and writes"):
        Language(test=ids, length=20).evaluate(t5(gated=False))
    with pytest.raises(ObcError, match=r"puts out \[1, 5\] for \[1, 20\] tokens"):
        Language(test=ids, length=20).evaluate(bert("eager"))


@pytest.mark.parametrize(
    ("rows", "message"), [([None, "a b"], "holds None"), ([1, 2], "holds 1"), ([], "is empty")]
)
def test_data_sets_without_a_text(rows: list[Any], message: str, tmp_path: Path) -> None:
    datasets = pytest.importorskip("datasets")
    data = datasets.Dataset.from_dict({"text": rows})
    with pytest.raises(ObcError, match=message):
        Language(test=data, tokenizer=tokenizer(), length=4)
    datasets.DatasetDict(train=data, test=data).save_to_disk(tmp_path / "data")
    tokenizer().save_pretrained(tmp_path / "model")
    with pytest.raises(ObcError, match=message):
        resolve(f"text:hf:{tmp_path}/data,length=4,row=4", f"hf:{tmp_path}/model")


def test_a_decoder_is_planned_by_its_task(llama: Any) -> None:
    task = Language(TEXT, TEXT, tokenizer=tokenizer(), length=20, row=16)
    plan = obc.plan(llama, task=task, target="params=80%", rows=2, step=0.1)
    assert plan.after is not None and plan.before is not None
    assert plan.after.params <= 0.8 * plan.before.params
    assert isinstance(llama, nn.Module)


@pytest.mark.parametrize("rows", [1, 2])
def test_gradients_of_single_rows_need_no_vmap(
    llama: Any, rows: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The task looks at its ids, which vmap hides; a large model's rows run alone in any case."""
    task = Language(TEXT, TEXT, tokenizer=tokenizer(), length=20, row=16)
    batch = next(iter(task.calibration(rows)))
    names = ["model.layers.0.mlp.up_proj.weight"]
    expected = torch.zeros_like(llama.get_parameter(names[0]))
    for i in range(rows):
        value = task.loss(llama, [x[i : i + 1] for x in batch])
        (gradient,) = torch.autograd.grad(value, [llama.get_parameter(names[0])])
        expected += gradient.square()
    monkeypatch.setattr(single, "_NUMBERS", 1)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        found = single.squares(llama, task.loss, batch, names)[names[0]]
    assert expected.any() and torch.allclose(found, expected, rtol=1e-4)
