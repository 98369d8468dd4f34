"""`import obc` loads what a prune needs, and rooms do not stand in for verbs."""

from __future__ import annotations

import subprocess
import sys

HEAVY = (
    *("rich", "jinja2", "typer", "matplotlib", "PIL", "accelerate", "kornia", "tensorboard"),
    *("sklearn", "transformers", "datasets", "torchvision", "torchmetrics", "onnx"),
)


def run(code: str) -> str:
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_nothing_heavy_is_loaded() -> None:
    prune = (
        "import torch; net = torch.nn.Sequential(torch.nn.Linear(4, 8), torch.nn.Linear(8, 2));"
        "obc.prune(net, torch.zeros(1, 4), [torch.randn(64, 4)] * 8,"
        " lambda m, x: m(x).square().mean(), target='macs=2x', step=0.5)"
    )
    for code, loaded in (("", []), (prune, ["rich"])):  # which is asked for a progress line
        told = run(f"import sys, obc; {code}\nprint([n for n in {HEAVY} if n in sys.modules])")
        assert told == f"{loaded}\n"


def test_the_check_sees_what_is_loaded() -> None:
    assert run(f"import sys, jinja2\nprint([n for n in {HEAVY} if n in sys.modules])") == (
        "['jinja2']\n"
    )


def test_rooms_and_verbs_live_side_by_side() -> None:
    rooms = "import obc.tracing, obc.reporting, obc.tasks"
    assert run(f"{rooms}; print(callable(obc.trace), callable(obc.report))") == "True True\n"
    assert run("import obc; obc.tracing.sites, obc.reporting.page, obc.tasks.Classification") == ""
