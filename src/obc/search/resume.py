"""What a run leaves behind after every step, so that it can go on where it was killed."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Literal

from pydantic import BaseModel, ConfigDict, ValidationError

from obc.disk import claim, writing
from obc.errors import ObcError
from obc.plans.plan import Plan, PlanStep

_FILE = "run.json"


class State(BaseModel):
    """Everything that decides how a run goes on."""

    model_config = ConfigDict(extra="forbid", strict=True, ser_json_inf_nan="constants")

    format: Literal["obc.run"] = "obc.run"
    version: Literal[2] = 2
    run: dict[str, str | int | float | bool | None]
    history: list[PlanStep] = []
    landed: list[Plan] = []
    since: list[tuple[int, list[int], list[float]]] = []  # removed after the last landing
    seconds: float | None = None  # of the model as it was
    batches: tuple[int, int] = (0, 0)  # the round, and how many of it were used
    rows: int = 0  # of a whole step
    weight: float = 0.0  # rows that the carried evidence stands for
    findings: dict[str, list[str]] | None = None
    evidence: dict[str, list[float]] = {}


def read(folder: str | os.PathLike[str], run: dict[str, str | int | float | bool | None]) -> State:
    """The state in a folder, which must be of the same run; a fresh one if there is none."""
    path = claim.make(folder) / _FILE
    if not path.exists():
        return State(run=run)
    try:
        state = State.model_validate_json(path.read_bytes())
    except (OSError, ValidationError) as error:
        text = str(error).splitlines()[0]
        raise ObcError(f"{path} is not a run this version can go on with: {text}") from None
    claim.check_same(folder, state.run, run)
    return state


def write(folder: str | os.PathLike[str], state: State) -> None:
    """Write the state aside and rename it: whoever kills the run, one whole state is there."""
    text = state.model_dump_json()
    writing.write(Path(folder) / _FILE, lambda aside: aside.write_text(text, encoding="utf-8"))
