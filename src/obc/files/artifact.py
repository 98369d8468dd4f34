"""`plan.json` of an artifact: what was cut, and which tensors `model.safetensors` must hold."""

from __future__ import annotations

import json
import re
from typing import Annotated, Literal

from pydantic import BaseModel, ConfigDict, Field, model_validator

from obc.errors import ObcError
from obc.plans.plan import Plan
from obc.tracing.experts import moved

Count = Annotated[int, Field(ge=0)]
_NUMBERS = re.compile(r"\[\n([-+.\deE,\s]+)\]")  # no text: a line break in one is written \\n
Form = Literal["folded", "inserted", "inserted-bn"]
Tokenizer = Literal[
    "tokenizer.json",
    "tokenizer_config.json",
    "tokenizer.model",
    "special_tokens_map.json",
    "added_tokens.json",
    "chat_template.jinja",
    "vocab.json",
    "vocab.txt",
    "merges.txt",
]
Beside = Literal["config.json", "generation_config.json", "modeling_pruned.py", Tokenizer]


class Stored(BaseModel):
    """One tensor: its type as safetensors names it, its shape, and its bytes' hash.

    `data` are its bytes in base64 where it is not in the file of tensors.
    """

    model_config = ConfigDict(extra="forbid", frozen=True, strict=True)

    dtype: str
    shape: list[Count]
    sha256: str = Field(pattern=r"^[0-9a-f]{64}$")
    data: str | None = None


class Artifact(BaseModel):
    """A pruned model on disk; docs/format.md says what each field means."""

    model_config = ConfigDict(extra="forbid", frozen=True, strict=True)

    format: Literal["obc.artifact"] = "obc.artifact"
    version: Literal[1] = 1
    model: str | None = None
    kind: str
    plans: list[Plan]
    equivalent: Form | None = None
    tensors: dict[str, Stored]
    ties: dict[str, str] = {}
    beside: list[Beside] = []

    @model_validator(mode="after")
    def _consistent(self) -> Artifact:
        for name, first in self.ties.items():
            if name in self.tensors or first not in self.tensors:
                raise ValueError(f"'{name}' is tied to '{first}', but one is stored, not both")
        for before, after in zip(self.plans, self.plans[1:], strict=False):
            where = before.moves
            left = {new for n in before.shapes if (new := moved(n, where)) is not None}
            if left != after.shapes.keys():
                raise ValueError("the plans are for different models")
        if self.equivalent and not self.plans:
            raise ValueError("an equivalent pruning has a plan")
        return self

    def text(self) -> str:
        """JSON with one line for each list of numbers."""
        try:
            content = self.model_dump()
            for entry in content["tensors"].values():
                if entry["data"] is None:  # nearly all of them
                    del entry["data"]
            spread = json.dumps(content, indent=1, allow_nan=False)
        except ValueError:
            raise ObcError("the model's plan holds a number that is not finite") from None
        return _NUMBERS.sub(lambda match: f"[{' '.join(match[1].split())}]", spread) + "\n"
