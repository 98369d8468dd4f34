"""A task of one's own through everything: plan, tune, compare, report and the command line."""

from __future__ import annotations

import copy
import json
import os
import subprocess
import sys
import time
from pathlib import Path

import pytest
import torch

import obc
from obc.experiments.comparison import Comparison, criteria, curve
from obc.reporting.figures import best_points
from tests.cli.running import done
from tests.tasks.own import EXAMPLES, example

ROOT = EXAMPLES.parent
RECIPE = obc.Recipe(lr=0.01, epochs=8, batch_size=32, schedule="cosine")


@pytest.fixture(scope="module")
def regression() -> tuple[obc.tasks.Task, torch.nn.Module]:
    """The task and a model that has learned it."""
    made = example("task_regression")
    torch.manual_seed(0)
    model, task = made.net(), made.task()
    before = task.evaluate(model).rmse
    tuned = obc.finetune(model, task, RECIPE)
    assert tuned.last is not None and tuned.last.rmse < 0.9 * before
    assert tuned.folder is None, "nothing was written"
    return task, model.eval()


def test_the_best_epoch_is_the_one_with_the_least_error(
    regression: tuple[obc.tasks.Task, torch.nn.Module], tmp_path: Path
) -> None:
    task, model = regression
    hot = RECIPE.changed(lr=0.3, schedule="constant", epochs=6)
    tuned = obc.finetune(copy.deepcopy(model), task, hot, out=tmp_path / "run")
    errors = [h["rmse"] for h in tuned.history]
    assert tuned.best is not None and tuned.best.value == min(errors) < max(errors)
    again = copy.deepcopy(model)
    from safetensors.torch import load_file

    again.load_state_dict(load_file(tmp_path / "run" / "best.safetensors"))
    assert task.evaluate(again).value == tuned.best.value


def test_planned_by_the_task_alone(regression: tuple[obc.tasks.Task, torch.nn.Module]) -> None:
    task, model = regression
    plan = obc.plan(model, task=task, target="macs=2x", rows=4, step=0.05)
    pruned = obc.apply(copy.deepcopy(model), plan)
    assert plan.after is not None and obc.cost(pruned, task.example()).macs == plan.after.macs
    by_hand = obc.plan(
        model, task.example(), task.calibration(), task.loss, target="macs=2x", rows=4, step=0.05
    )
    assert plan.kept == by_hand.kept


def test_a_teacher_of_any_output(regression: tuple[obc.tasks.Task, torch.nn.Module]) -> None:
    task, teacher = regression
    torch.manual_seed(1)
    student = example("task_regression").net(width=16)
    recipe = RECIPE.changed(distill=1.0, epochs=8)
    batch = next(iter(task.calibration(64)))

    def apart() -> float:
        with torch.no_grad():
            return float((student(batch[0]) - teacher(batch[0])).square().mean())

    before = apart()
    obc.finetune(student, task, recipe, teacher=teacher)
    assert apart() < 0.2 * before


def test_a_comparison_knows_that_less_is_better(
    regression: tuple[obc.tasks.Task, torch.nn.Module], tmp_path: Path
) -> None:
    task, model = regression
    settings = {"rows": 4, "step": 0.1}
    job = Comparison(tmp_path, task, ["macs=60%", "macs=30%"], settings, 32)
    cells = [job.cell(model, variant, 0) for variant in criteria(["random", "jacobian"])]
    curves = [curve([cell]) for cell in cells]
    metric = task.metrics[0]
    best = best_points(curves, metric)
    for place in (1, 2):
        values = [c.points[place].quality for c in curves]
        (winner,) = (n for n, places in enumerate(best) if place in places)
        assert values[winner] == min(values) < max(values)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """`obc tune`, then `obc prune`, of a task in a file."""
    out = tmp_path_factory.mktemp("own")
    file = EXAMPLES / "task_regression.py"
    recipe = out / "recipe.toml"
    recipe.write_text(f'task = "{file}:task"\nlr = 0.01\nepochs = 3\nbatch_size = 32\n')
    done("tune", f"{file}:net", "--recipe", recipe, "--out", out / "dense")
    quick = ("--rows", 4, "--step", 0.1, "--batch-size", 32)
    done(
        *("prune", out / "dense", "--task", f"{file}:task", "--target", "macs=2x", *quick),
        *("--out", out / "half"),
    )
    return out


def test_the_command_line_takes_a_task_from_a_file(folder: Path) -> None:
    file = EXAMPLES / "task_regression.py"
    found = done("eval", folder / "half", "--task", f"{file}:task")
    assert found["rmse"] > 0 and "top1" not in found
    assert found["protocol"] == "100 samples of diabetes, eval mode"
    record = json.loads((folder / "half" / "record.json").read_text())
    assert record["metric"]["name"] == "rmse" and not record["metric"]["higher"]
    assert record["latency"][-1]["quality"] == pytest.approx(found["rmse"])
    page = (folder / "half" / "report.html").read_text(encoding="utf-8")
    assert "rmse ↓" in page and "ccuracy" not in page and "top-1" not in page


def test_compare_marks_the_least_error(folder: Path) -> None:
    file, out = EXAMPLES / "task_regression.py", folder / "compare"
    quick = ("--rows", 4, "--step", 0.1, "--keep", "50", "--seeds", 1, "--batch-size", 32)
    found = done(
        *("compare", folder / "dense", "--task", f"{file}:task", *quick),
        *("--criteria", "random,jacobian", "--out", out),
    )
    values = {c["criterion"]: c["points"][1]["quality"] for c in found["criteria"]}
    page = (out / "report.html").read_text(encoding="utf-8")
    marked = [part for part in page.split("<tr")[1:] if part.startswith(' class="best"')]
    assert len(marked) == 1 and min(values, key=lambda name: values[name]) in marked[0]
    assert (out / "criteria.csv").read_text().splitlines()[0].split(",")[6] == "rmse"


def test_two_inputs(tmp_path: Path) -> None:
    made = example("task_two_inputs")
    torch.manual_seed(0)
    task, model = made.task(), made.Asked()
    assert set(task.example()) == {"pixels", "question"}
    tuned = obc.finetune(model, task, obc.Recipe(lr=0.1, epochs=4, batch_size=64, accumulate=2))
    assert tuned.last is not None and tuned.last.right > 70
    plan = obc.plan(model, task=task, target="params=2x", rows=4, step=0.05)
    pruned = obc.apply(copy.deepcopy(model), plan)
    assert sum(p.numel() for p in pruned.parameters()) <= plan.before.params / 2  # type: ignore[union-attr]
    assert task.evaluate(pruned).right > 50


def test_bad_names(tmp_path: Path) -> None:
    file = tmp_path / "mine.py"
    file.write_text("def make():\n    return 3\ndef broken():\n    raise ValueError('no')\n")
    for name, words in (
        (f"{file}:make", "gives a int, not a task"),
        (f"{file}:broken", "cannot be made: ValueError: no"),
        (f"{file}:mak", "did you mean 'make'"),
        ("digitz", "did you mean 'digits'"),
    ):
        with pytest.raises(obc.ObcError, match=words):
            obc.tasks.resolve(name)


KILLED = """
import sys, torch, obc
from obc.tuning import run
sys.path.insert(0, sys.argv[2])
import task_regression
torch.set_num_threads(1)
run.SAVE_STEPS = 3
torch.manual_seed(0)
model, task = task_regression.net(), task_regression.task()
recipe = obc.Recipe(lr=0.02, epochs=60, batch_size=16, schedule="cosine", ema=0.9)
print("ready", flush=True)
obc.finetune(model, task, recipe, out=sys.argv[1], tracker=None)
print("done", flush=True)
"""


def start(out: Path) -> subprocess.Popen[str]:
    path = os.pathsep.join([str(ROOT / "src"), os.environ.get("PYTHONPATH", "")])
    command = [sys.executable, "-c", KILLED, str(out), str(EXAMPLES)]
    given = {**os.environ, "PYTHONPATH": path, "OMP_NUM_THREADS": "1"}
    return subprocess.Popen(command, env=given, stdout=subprocess.PIPE, text=True)


@pytest.mark.slow
def test_killed_while_learning_a_regression_it_ends_with_the_same_bits(tmp_path: Path) -> None:
    with start(tmp_path / "whole") as whole:
        assert whole.stdout is not None and whole.stdout.read() == "ready\ndone\n"
    with start(tmp_path / "parts") as run:
        assert run.stdout is not None and run.stdout.readline() == "ready\n"
        while not (tmp_path / "parts" / "last.safetensors").is_file():
            time.sleep(0.002)
        run.kill()
        assert run.wait() == -9, "it was killed while it ran"
    with start(tmp_path / "parts") as run:
        assert run.stdout is not None and run.stdout.read() == "ready\ndone\n"
    for name in ("model.safetensors", "best.safetensors", "last.safetensors", "result.json"):
        a, b = ((tmp_path / n / name).read_bytes() for n in ("whole", "parts"))
        assert a == b, name
