"""`Language`: the next token of a text, judged by perplexity."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from obc.data.tokens import UNSCORED, Windows, read_text, tokenized
from obc.errors import ObcError
from obc.models.resolver import library, options_of
from obc.running.forward import evaluating
from obc.running.processes import Group
from obc.running.timing import race
from obc.tasks.classification import divergence, logits_of
from obc.tasks.evaluation import Evaluation, Metric
from obc.tasks.task import Split, Task, device_of

_ROW = 256  # tokens of a row to calibrate and train on
_TAIL = 10  # one part in so many, from the end of a single text, is kept for evaluation
_EXAMPLE = 32  # tokens to trace and to count with
_LENGTH = 2048  # tokens of a window to evaluate on
_BRIEF = 4096  # tokens, where three models are evaluated one after the other
_ROUNDING = 64  # steps of the type: products of experts round by how many tokens they get
_START, _NEW = 8, 32  # tokens to begin with and to generate when decoding is timed

_OPTIONS = {
    *("test", "join", "config", "tokenizer", "length", "stride", "windows", "row"),
}


class Language(Task):
    """Next-token cross-entropy; perplexity = exp(Σ −log p(token) / tokens) over windows of a text.

    `train` and `test` are texts, token ids (a vector, or rows that are windows already), or HF
    data sets with a column "text", whose rows are joined by blank lines. With `train` alone its
    last tenth is kept for evaluation.

    Args:
        train: what calibration and training rows are cut from.
        test: what perplexity is measured on.
        tokenizer: of transformers; a folder or a name loads it. Token ids need none.
        length: tokens of a window of the evaluation.
        stride: from one window to the next; smaller than `length`, windows share context.
        windows: evaluate on so many windows from the beginning; on all of them if None.
        row: tokens of a calibration or training row.
        name: what the task is called in titles.
        joining: how the text was put together, for the protocol.

    >>> ids = torch.arange(64) % 7
    >>> task = Language(ids, ids, length=16, row=8)
    >>> even = nn.Sequential(nn.Embedding(7, 4), nn.Linear(4, 7))
    >>> _ = nn.init.zeros_(even[1].weight), nn.init.zeros_(even[1].bias)
    >>> str(task.evaluate(even))
    'perplexity 7.00, loss 1.9459'
    """

    metrics = (
        Metric("perplexity", higher=False, digits=2),
        Metric("loss", higher=False, digits=4),
    )
    # Scores of 32 rows of 256 tokens rank well, those of six do not; few steps, since each costs
    # as much as a minute of training. What 2,048 tokens fit does not hold, what 8,192 fit does.
    # Layers of a channel as separate terms rank decoders better than the group as one block.
    planning: Mapping[str, Any] = {
        "rows": 32,
        "block": "member",
        "step": 0.1,
        "pace": "cost",
        "sites": "ffn,heads",
        "batch_size": 1,
        "samples": 64,
    }
    # Measured: `o_proj` and `down_proj` bring back more on what the pruned decoder reads, with
    # residual sums as targets; the other weights of a layer add a twentieth to it.
    residual, fitted_on = True, "sums"

    def __init__(
        self,
        train: Any = None,
        test: Any = None,
        *,
        tokenizer: Any = None,
        length: int = _LENGTH,
        stride: int | None = None,
        windows: int | None = None,
        row: int = _ROW,
        name: str = "",
        joining: str = "as it is",
    ) -> None:
        super().__init__(name=name)
        named = isinstance(tokenizer, (str, Path))
        self.tokenizer = load_tokenizer(tokenizer) if named else tokenizer
        self.joining = joining
        tokens, tests = self._tokens(train), self._tokens(test)
        if tokens is not None and tests is None and tokens.ndim == 1:
            tail = len(tokens) // _TAIL
            tokens, tests = tokens[: len(tokens) - tail], tokens[len(tokens) - tail :]
        if tokens is not None:
            self.train = Windows(tokens, row if tokens.ndim == 1 else tokens.shape[1])
        if tests is not None:
            long = length if tests.ndim == 1 else tests.shape[1]
            self.test = Windows(tests, long, stride, windows)

    def _tokens(self, data: Any) -> Tensor | None:
        """Token ids of whatever stands for a text."""
        if data is None or isinstance(data, Tensor):
            return data
        if hasattr(data, "column_names"):  # a `datasets.Dataset`
            if "text" not in data.column_names:
                raise ObcError(f"the data set has no column 'text', but {data.column_names}")
            self.joining = "rows joined by blank lines"
            rows = list(data["text"])
            if odd := [row for row in rows if not isinstance(row, str)]:
                raise ObcError(
                    f"the column 'text' of the data set holds {odd[0]!r}, which is no text"
                )
            data = "\n\n".join(rows)
        if not isinstance(data, str):
            raise ObcError(
                f"a text, token ids or a data set with a column 'text', not {type(data).__name__}"
            )
        if not data.strip():
            raise ObcError("the text is empty")
        if self.tokenizer is None:
            raise ObcError("a text needs a tokenizer: tokenizer=FOLDER, or token ids instead")
        return tokenized(data, self.tokenizer)

    @property
    def protocol(self) -> str:
        """Window, stride, joining, tokens and first tokens."""
        test = self.test
        if not isinstance(test, Windows):
            return super().protocol
        scored = int((test.labels != UNSCORED).sum())
        first = 1 if test.stride == test.length else test.length - test.stride
        return (
            f"{scored:,} tokens of {self.name} ({self.joining}): {len(test)} windows of "
            f"{test.length:,}, stride {test.stride:,}, without the first "
            f"{'token' if first == 1 else f'{first:,} tokens'} of each; no special tokens; "
            f"{test.rest:,} tokens at the end are left out"
        )

    def example(self) -> Any:
        """The first tokens of a row: a trace and its proof run the example once for each site."""
        return self._row()[:, :_EXAMPLE]

    def _row(self) -> Tensor:
        source = self._source("test" if self.train is None else "train")
        ids: Tensor = next(iter(source.test(1)))[0]
        return ids

    def loss(self, model: nn.Module, batch: Any) -> Tensor:
        """The mean of −log p over the tokens that count."""
        ids, labels = self._pair(batch, model)
        logits = _logits(model, ids)
        # Labels are moved instead of logits cut: a gradient as large as these is not copied.
        after = F.pad(labels[:, 1:], (0, 1), value=UNSCORED)
        return F.cross_entropy(logits.flatten(0, 1), after.flatten(), ignore_index=UNSCORED)

    def outcomes(self, model: nn.Module, batch: Any) -> Tensor:
        """Of each window: Σ −log p, and how many tokens it sums over."""
        ids, labels = self._pair(batch, model)
        logits = _logits(model, ids)
        sums = [
            F.cross_entropy(own[:-1], target[1:], ignore_index=UNSCORED, reduction="sum").double()
            for own, target in zip(logits, labels, strict=True)
        ]
        counts = (labels[:, 1:] != UNSCORED).sum(1).double()
        return torch.stack([torch.stack(sums), counts], 1)

    def summary(self, totals: Tensor, count: int) -> Sequence[float]:
        """Perplexity and the mean of −log p."""
        loss = float(totals[0] / totals[1])
        return math.exp(loss) if loss < 700 else math.inf, loss

    def distance(self, student: Any, teacher: Any, temperature: float) -> Tensor:
        """T² · KL(softmax(teacher / T) ‖ softmax(student / T)), the mean over all positions."""
        ours, theirs = (logits_of(x).flatten(0, -2) for x in (student, teacher))
        return divergence(ours, theirs, temperature)

    def speed(self, model: nn.Module) -> dict[str, float]:
        """Tokens per second: of a row at once, and one after another with a KV cache."""
        device = device_of(model)
        ids = self._row().to(device)
        runs: list[Callable[[], object]] = [lambda: model(ids)]
        if hasattr(model, "generate"):
            runs += [partial(_generate, model, ids[:, :_START], new) for new in (1, 1 + _NEW)]
        with torch.no_grad(), evaluating(model):
            times = [min(taken) for taken in race(runs, turns=3, seconds=0, device=device)]
        speeds = {"prefill tokens/s": ids.numel() / times[0]}
        if len(times) > 1:  # what the first new token takes is prefill
            speeds["decode tokens/s"] = _NEW / max(times[2] - times[1], 1e-9)
        return speeds

    def _pair(self, batch: Any, model: nn.Module) -> tuple[Tensor, Tensor]:
        """Ids and labels on the model's device; labels are the ids where there are none."""
        labels = None
        if isinstance(batch, Mapping):
            batch, labels = batch["input_ids"], batch.get("labels")
        elif isinstance(batch, (tuple, list)):
            batch, labels = batch if len(batch) == 2 else (batch[0], None)
        if not isinstance(batch, Tensor) or batch.ndim != 2:
            raise ObcError("a batch of text is token ids, [rows, tokens], or a pair with labels")
        device = device_of(model)
        ids = batch.to(device)
        self.check(model, batch)
        return ids, ids if labels is None else labels.to(device)

    @torch.no_grad()
    def evaluate(
        self, model: nn.Module, split: Split = "test", group: Group | None = None
    ) -> Evaluation:
        """Perplexity of a model that sees no token before it has predicted it."""
        self._check_order(model)
        return super().evaluate(model, split, group)

    def _check_order(self, model: nn.Module) -> None:
        """Refuse a model whose logits change with a later token: it has only to look it up."""
        source = self._source("test")
        ids, _ = self._pair(next(iter(source.test(1))), model)
        ids = ids[:1, :_EXAMPLE]
        others = ids[ids != ids[0, -1]]
        if not len(others):
            return
        changed = ids.clone()
        changed[0, -1] = others[0]
        with evaluating(model):
            before, after = (_logits(model, x)[:, :-1] for x in (ids, changed))
        kinds = (p.dtype for p in model.parameters() if p.is_floating_point())
        step = torch.finfo(next(kinds, before.dtype)).eps
        if (before - after).abs().max() > _ROUNDING * step * before.abs().max():
            raise ObcError(
                f"{type(model).__name__} sees the tokens that it is to predict, so its perplexity "
                "would say nothing; a text task is for models that read from left to right, as a "
                "…ForCausalLM does"
            )

    def check(self, model: nn.Module, ids: Tensor) -> None:
        """Refuse ids that the model has no embedding for, and windows that it has no place for."""
        config = getattr(model, "config", None)
        if getattr(config, "is_encoder_decoder", False):
            raise ObcError(
                f"{type(model).__name__} reads one text and writes another; a text task is for "
                "models that go on with the text they read, as a …ForCausalLM does"
            )
        vocabulary = getattr(config, "vocab_size", None)
        if isinstance(vocabulary, int) and int(ids.max()) >= vocabulary:
            raise ObcError(
                f"the tokenizer does not fit the model: a token is {int(ids.max())}, and the "
                f"model's vocabulary ends at {vocabulary - 1}; take the model's own tokenizer"
            )
        most = getattr(config, "max_position_embeddings", None)
        if isinstance(most, int) and ids.shape[1] > most:
            raise ObcError(
                f"a window of {ids.shape[1]} tokens is longer than the model's {most} positions; "
                f"take length={most} or less"
            )


def _logits(model: nn.Module, ids: Tensor) -> Tensor:
    """One row of logits for each token."""
    logits = logits_of(model(ids))
    if logits.ndim != 3 or logits.shape[:2] != ids.shape:
        raise ObcError(
            f"{type(model).__name__} puts out {list(logits.shape)} for {list(ids.shape)} tokens; "
            "a text task is for models that predict each next token, as a …ForCausalLM does"
        )
    return logits


def _generate(model: Any, start: Tensor, new: int) -> None:
    """So many tokens, one after another, with a KV cache."""
    model.generate(
        start,
        attention_mask=torch.ones_like(start),
        min_new_tokens=new,
        max_new_tokens=new,
        do_sample=False,
        use_cache=True,
        pad_token_id=0,
    )


def load_tokenizer(name: str | Path) -> Any:
    """A tokenizer of transformers, from a folder or by its name."""
    transformers = library("transformers", "hf")
    place = Path(name)
    if not place.is_dir() and (place.is_absolute() or len(place.parts) > 2):
        raise ObcError(f"there is no folder '{name}' to load a tokenizer from")
    try:
        return transformers.AutoTokenizer.from_pretrained(name)
    except Exception as error:
        reason = (str(error).strip() or type(error).__name__).splitlines()[0]
        raise ObcError(
            f"no tokenizer can be loaded from '{name}' ({reason}); name another: tokenizer=FOLDER"
        ) from None


def from_text(place: str, model: str | None) -> Language:
    """The task of "text:FILE[,option=…]" for a model, whose tokenizer is taken unless named.

    Options are those of `Language`, and `test=FILE`, a text to evaluate on; `join=blank`, which
    joins lines by blank lines, as WikiText wants it. "hf:NAME" instead of a file is a data set of
    HF `datasets`, with `config=NAME` where it has several: split "train" to calibrate on, "test"
    to evaluate on.
    """
    path, options = options_of(place)
    unknown = options.keys() - _OPTIONS
    if unknown:
        raise ObcError(
            f"text:{place}: no option '{min(unknown)}'; there are {', '.join(sorted(_OPTIONS))}"
        )
    tokenizer = options.pop("tokenizer", None) or _tokenizer_of(model)
    if path.startswith("hf:"):
        train, test = _splits(path.removeprefix("hf:"), options.pop("config", None))
        joining = "rows joined by blank lines"
    else:
        join = options.pop("join", "")
        train = read_text(path, join)
        test = read_text(options.pop("test"), join) if "test" in options else None
        joining = "lines joined by blank lines" if join else "as it is"
    name = Path(path).name
    return Language(train, test, tokenizer=tokenizer, name=name, joining=joining, **options)


def brief(data: str | None) -> str | None:
    """The name of a text with some 4,096 tokens to evaluate on, unless it says how many.

    >>> brief("text:tale.txt,length=512"), brief("text:tale.txt,windows=9"), brief("digits")
    ('text:tale.txt,length=512,windows=8', 'text:tale.txt,windows=9', 'digits')
    """
    options = options_of(data)[1] if data is not None else {}
    if data is None or not data.startswith("text:") or "windows" in options:
        return data
    return f"{data},windows={max(1, _BRIEF // int(options.get('length', _LENGTH)))}"


def _tokenizer_of(model: str | None) -> str:
    """Where the tokenizer of a model lies, from the model's name."""
    if model is None:
        raise ObcError("a text needs a tokenizer: text:FILE,tokenizer=FOLDER")
    name = options_of(model)[0]
    return name.removeprefix("hf:")


def _splits(name: str, config: str | None) -> tuple[Any, Any]:
    datasets = library("datasets", "hf")
    try:
        folder = Path(name).is_dir() and (Path(name) / "dataset_dict.json").is_file()
        loaded = datasets.load_from_disk(name) if folder else datasets.load_dataset(name, config)
        return loaded["train"], loaded["test"]
    except KeyError as error:
        raise ObcError(f"the data set '{name}' has no split {error}") from None
    except IndexError:  # what `load_from_disk` makes of no rows
        raise ObcError(f"the data set '{name}' is empty") from None
    except Exception as error:
        reason = (str(error).strip() or type(error).__name__).splitlines()[0]
        raise ObcError(f"no data set '{name}': {reason}") from None
