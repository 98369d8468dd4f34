"""The real command in a process of its own: pipes, exit codes, Ctrl-C, completion."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from obc.cli import main
from tests.cli.running import ENTRY, SOURCE, environment, shell


def test_the_entry_point_is_the_one_that_is_installed() -> None:
    text = (SOURCE.parent / "pyproject.toml").read_text(encoding="utf-8")
    assert 'obc = "obc.cli:main"' in text
    assert main.__module__.startswith("obc.cli")


def test_piped_output_is_clean() -> None:
    found = shell("show", "resnet20")
    assert (found.returncode, found.stderr) == (0, "")
    assert "12 sites" in found.stdout and "\x1b" not in found.stdout


def test_an_error_in_a_pipe() -> None:
    found = shell("show", "resnet21", "--json")
    assert found.returncode == 1
    assert found.stderr.startswith("error: ") and len(found.stderr.splitlines()) == 1
    assert "\x1b" not in found.stderr
    assert "resnet20" in json.loads(found.stdout)["error"]


def test_on_a_terminal_an_error_is_red() -> None:
    import pty

    outer, inner = pty.openpty()
    variables = {**environment(), "TERM": "xterm-256color"}
    variables.pop("NO_COLOR", None)
    ended = subprocess.run([*ENTRY, "show", "resnet21"], stdout=inner, stderr=inner, env=variables)
    os.close(inner)
    text = os.read(outer, 10_000).decode()
    os.close(outer)
    assert ended.returncode == 1
    assert "\x1b[1;31merror: no model named 'resnet21'" in text


@pytest.mark.slow
def test_ctrl_c_stops_and_the_same_command_goes_on(tmp_path: Path) -> None:
    recipe = tmp_path / "recipe.toml"
    lines = 'data = "digits"\nlr = 0.05\nepochs = 20\nbatch_size = 64\nschedule = "constant"\n'
    recipe.write_text(lines)
    out = tmp_path / "run"
    command = ["tune", "resnet20,width=4", "--recipe", str(recipe), "--out", str(out)]
    process = subprocess.Popen(
        [*ENTRY, *command], stderr=subprocess.PIPE, text=True, env=environment()
    )
    until = time.monotonic() + 120
    while not (out / "tuning" / "last.safetensors").exists() and time.monotonic() < until:
        time.sleep(0.1)
    process.send_signal(signal.SIGINT)
    _, said = process.communicate(timeout=60)
    assert process.returncode == 130
    assert said == "stopped: the same command goes on from here\n"
    assert not (out / "model.safetensors").exists()
    assert shell(*command).returncode == 0
    whole = shell(*command[:-1], tmp_path / "whole")  # never stopped
    assert whole.returncode == 0, whole.stderr
    for name in ("model.safetensors", "plan.json"):
        assert (out / name).read_bytes() == (tmp_path / "whole" / name).read_bytes()


@pytest.mark.slow
def test_a_shell_completes_commands_and_names() -> None:
    def completed(words: str) -> str:
        last = len(words.split(" ")) - 1
        variables = {
            **environment(),
            "_OBC_COMPLETE": "complete_bash",
            "COMP_WORDS": words,
            "COMP_CWORD": str(last),
        }
        entry = [sys.executable, "-c", "from obc.cli import main; main()"]
        return subprocess.run(entry, capture_output=True, text=True, env=variables).stdout

    assert completed("obc comp").split() == ["compare"]
    assert "jacobian" in completed("obc prune resnet20 --criterion jac").split()
    assert "resnet20-digits" in completed("obc run resnet20-d").split()
