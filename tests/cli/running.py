"""Commands run in this process, or as a user runs them: through the entry point in a shell."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

from typer.testing import CliRunner, Result

from obc.cli import app

# In an environment that was set up for this checkout the script lies beside the interpreter.
_SCRIPT = Path(sys.executable).parent / "obc"
ENTRY = [str(_SCRIPT)] if _SCRIPT.is_file() else [sys.executable, "-m", "obc.cli"]
SOURCE = Path(__file__).resolve().parents[2] / "src"


def run(*arguments: object) -> Result:
    """A command in this process."""
    return CliRunner().invoke(app, [str(a) for a in arguments])


def done(*arguments: object) -> Any:
    """A command that must succeed; what its --json says."""
    found = run(*arguments, "--json")
    assert found.exit_code == 0, found.output
    return json.loads(found.stdout)


def environment() -> dict[str, str]:
    return {**os.environ, "OMP_NUM_THREADS": "1", "PYTHONPATH": str(SOURCE)}


def shell(*arguments: object, cwd: Path | None = None) -> subprocess.CompletedProcess[str]:
    """The real command in a process of its own, its output in pipes."""
    return subprocess.run(
        [*ENTRY, *map(str, arguments)], capture_output=True, text=True, cwd=cwd, env=environment()
    )
