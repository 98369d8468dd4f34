"""Texts as token ids, cut into windows: rows to train and calibrate on, windows to evaluate on."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from obc.data.sources import Samples
from obc.errors import ObcError
from obc.running.checks import check_whole

UNSCORED = -100  # a label that no loss counts, as in torch and transformers
_TOKENS = 8192  # of one batch of an evaluation


class Windows(Samples):
    """Windows of a row of tokens, as batches of (ids, labels); a source of a task's data.

    Window i begins at token i · stride. A label says which token counts: each is predicted once,
    from all that stands before it in its window, so what a window shares with the one before is
    context only, and the first token of all is never predicted. What does not fill a window at the
    end is left out.

    Args:
        tokens: one row of ids, or rows [windows, length] that are windows already.
        length: tokens of a window.
        stride: from one window to the next; as long as a window unless given.
        limit: take so many windows from the beginning.

    >>> windows = Windows(torch.arange(9), 4, stride=2)
    >>> windows.ids.tolist()
    [[0, 1, 2, 3], [2, 3, 4, 5], [4, 5, 6, 7]]
    >>> windows.labels.tolist()
    [[-100, 1, 2, 3], [-100, -100, 4, 5], [-100, -100, 6, 7]]
    """

    def __init__(
        self, tokens: Tensor, length: int, stride: int | None = None, limit: int | None = None
    ) -> None:
        if tokens.is_floating_point() or tokens.ndim not in (1, 2):
            raise ObcError(
                f"tokens are a row of whole numbers, or rows of them, not {tokens.dtype} "
                f"{list(tokens.shape)}"
            )
        check_whole("the length of a window", length, 2)
        step = length if stride is None else stride
        check_whole("stride", step)
        if limit is not None:
            check_whole("windows", limit, 1)
        if not 1 <= step <= length:
            raise ObcError(f"a stride is from 1 to the window's length, {length}, not {step}")
        if tokens.shape[-1] < length:
            raise ObcError(
                f"the text has {tokens.shape[-1]} tokens, less than one window of {length}; "
                "take a longer text or a shorter window (length=…)"
            )
        rows = tokens.long().unfold(-1, length, step).reshape(-1, length)
        self.ids = rows if limit is None else rows[:limit]
        super().__init__(self.ids)
        self.labels = self.ids.clone()
        self.labels[:, : max(1, length - step)] = UNSCORED
        if tokens.ndim == 1:
            self.labels[0] = self.ids[0]
            self.labels[0, 0] = UNSCORED
        self.length, self.stride = length, step
        covered = (len(self.ids) - 1) * step + length
        self.rest = tokens.shape[-1] - covered if tokens.ndim == 1 else 0

    def test(
        self, size: int = 256, *, rank: int = 0, world: int = 1, half: int | None = None
    ) -> Iterator[Any]:
        """In order, as many at a time as make some thousand tokens."""
        size = min(size, max(1, _TOKENS // self.length))
        return super().test(size, rank=rank, world=world, half=half)

    def _batches(self, picks: list[Tensor]) -> Iterator[Any]:
        return ((self.ids[at], self.labels[at]) for at in picks)

    def described(self) -> dict[str, Any]:
        """What a run is recognised by."""
        return {"windows": len(self), "length": self.length, "stride": self.stride}


def read_text(path: str | os.PathLike[str], join: str = "") -> str:
    """A text file as it is, or its lines joined by blank lines (`join="blank"`).

    Files of WikiText have a paragraph on each line; evaluations join them by blank lines.
    """
    if join not in ("", "blank"):
        raise ObcError(f"join is 'blank', lines joined by blank lines, or nothing, not '{join}'")
    try:
        text = Path(path).read_text(encoding="utf-8")
    except FileNotFoundError:
        raise ObcError(f"no text at {path}") from None
    except (OSError, UnicodeDecodeError) as error:
        raise ObcError(f"{path} cannot be read as text: {error}") from None
    if join:
        text = "\n\n".join(line for line in text.splitlines() if line.strip())
    if not text.strip():
        raise ObcError(f"{path} is empty")
    if "\0" in text:
        raise ObcError(f"{path} cannot be read as text: it has NUL bytes, as no text does")
    return text


def tokenized(text: str, tokenizer: Any) -> Tensor:
    """The ids of a text, without special tokens at its ends."""
    ids = tokenizer(text, add_special_tokens=False, verbose=False)["input_ids"]
    return torch.tensor(ids, dtype=torch.long)
