"""The state of a run: all that decides how it goes on, so that a killed run can be resumed.

The algorithm works on this object itself and writes it after every step; what else a run holds
(the working copy, the open batches) is made from it.
"""

from __future__ import annotations

import os
from pathlib import Path
from typing import Literal

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from obc.criteria.evidence import Findings
from obc.disk import claim, writing
from obc.errors import ObcError
from obc.plans.plan import Plan, PlanStep
from obc.search.carry import Carried
from obc.search.ranking import Chunk
from obc.search.stream import Position

_FILE = "run.json"
Facts = dict[str, str | int | float | bool | None]


class State(BaseModel):
    """One run of Algorithm 1, as far as it has come."""

    model_config = ConfigDict(extra="forbid", strict=True, ser_json_inf_nan="constants")

    format: Literal["obc.run"] = "obc.run"
    version: Literal[3] = 3
    run: Facts  # the settings, the targets, the model: another run has others
    carried: Carried
    position: Position = Field(default_factory=Position)  # in the batches
    history: list[PlanStep] = []
    landed: list[Plan] = []  # one for each target that is met, the loosest first
    since: list[Chunk] = []  # removed after the last landing
    seconds: float | None = None  # of the whole model, for a latency target
    findings: Findings | None = None  # how layers are looked at, from the first batch


def read(folder: str | os.PathLike[str], new: State) -> State:
    """The state in a folder, which must be of the same run; the new one if there is none."""
    path = claim.make(folder) / _FILE
    if not path.exists():
        return new
    try:
        state = State.model_validate_json(path.read_bytes())
    except (OSError, ValidationError) as error:
        text = str(error).splitlines()[0]
        raise ObcError(
            f"{path} is not a run this version can go on with: {text}; {claim.ADVICE}"
        ) from None
    claim.check_same(folder, state.run, new.run)
    return state


def write(folder: str | os.PathLike[str], state: State) -> None:
    """Write the state aside and rename it: whoever kills the run, one whole state is there."""
    text = state.model_dump_json()
    writing.write(Path(folder) / _FILE, lambda aside: aside.write_text(text, encoding="utf-8"))
