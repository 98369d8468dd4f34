"""A quality target gives the cheapest nested plan that keeps it, judged on samples of its own."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest
import torch

import obc
from obc.costs import latency
from obc.planning.estimate import estimate_search
from obc.planning.judgement import judge
from obc.planning.promise import Search, most_places
from obc.planning.quality import Quality
from tests.planning.nets import task, trained

SETTINGS: dict[str, Any] = {"step": 0.06, "rows": 2}


@pytest.fixture(scope="module")
def net() -> torch.nn.Module:
    return trained()


@pytest.fixture(scope="module")
def plan(net: torch.nn.Module) -> obc.Plan:
    made: obc.Plan = obc.plan(net, task=task(), target="accuracy-1.5%", **SETTINGS)
    return made


def test_the_promise_is_that_of_the_model_that_prune_makes(
    net: torch.nn.Module, plan: obc.Plan
) -> None:
    data = task()
    small, same, _ = obc.prune(net, task=data, target="accuracy-1.5%", details=True, **SETTINGS)
    assert same == plan
    evaluations = data.evaluate(net, "promise"), data.evaluate(small, "promise")
    judged = judge(Quality.parse("accuracy-1.5%").of(data.metrics), data, *evaluations)
    promise = plan.promise
    assert promise is not None and promise.samples == 2000
    assert (promise.estimate, promise.bound) == (judged.estimate, judged.bound)
    assert judged.bound <= 1.5
    assert "promised: top-1 falls by at most 1.5 points" in plan.summary().replace("\n", " ")


def test_all_of_the_run_is_in_the_plan(plan: obc.Plan) -> None:
    frontier = plan.frontier()
    steps = {place.step for place in frontier}
    assert 0 in steps and len(plan.history) in steps and max(steps) > len(plan.history)
    costs = [frontier.cost(place).macs for place in frontier]
    assert costs == sorted(costs, reverse=True)
    assert all(place.bound >= place.loss for place in frontier)
    lines = frontier.csv().splitlines()
    assert lines[0] == "step,macs,params,channels,split,metric,value,loss,bound,samples"
    assert len(lines) == len(frontier) + 1


def test_any_place_can_be_taken_without_a_new_run(net: torch.nn.Module, plan: obc.Plan) -> None:
    last = len(plan.history) + len(plan.beyond)
    for step in (1, len(plan.history) - 1, last):
        other = plan.at(step)
        assert len(other.history) == step and len(other.beyond) == last - step
        assert other.promise is None
        cut = obc.apply(trained(), other)
        counted = obc.cost(cut, task().example())
        assert other.after is not None
        assert (counted.macs, counted.params) == (other.after.macs, other.after.params)
    half = plan.at("macs=2x")
    assert half.after is not None and half.before is not None
    assert half.after.macs * 2 <= half.before.macs < plan.at(len(half.history) - 1).after.macs * 2  # type: ignore[union-attr]
    assert plan.at(len(plan.history)) is plan
    assert plan.at(last).at(len(plan.history)).kept == plan.kept
    with pytest.raises(obc.ObcError, match="the run went only as far as macs="):
        plan.at("macs=1000x")
    with pytest.raises(obc.ObcError, match="there is no step 999"):
        plan.at(999)


def test_old_plans_are_written_as_before_and_new_ones_come_back(
    plan: obc.Plan, tmp_path: Path
) -> None:
    assert not {"promise", "places", "beyond"} & obc.Plan(sites={}, shapes={}).model_dump().keys()
    plan.save(tmp_path / "plan.json")
    assert obc.Plan.load(tmp_path / "plan.json") == plan


def test_places_are_judged_in_order_up_to_the_first_failure(
    net: torch.nn.Module, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Once a place has failed on the promise split, no smaller model is looked at there."""
    looks: list[tuple[int, bool]] = []
    honest = Search.judged

    def noted(self: Search, step: int, split: Any) -> Any:
        judged = honest(self, step, split)
        if split == "promise" and step:
            looks.append((step, judged.bound <= self.terms.limit))
        return judged

    monkeypatch.setattr(Search, "judged", noted)
    monkeypatch.setattr(Search, "frontier", lambda self: [])
    plan = obc.plan(net, task=task(), target="accuracy-1.5%", **SETTINGS)
    order = [step for step, _ in looks[:-1]]  # the last look writes the promise down
    assert order == sorted(set(order))
    assert [ok for _, ok in looks[:-1]].count(False) <= 1
    assert looks[-1] == (len(plan.history), True)


@pytest.mark.parametrize(
    ("target", "error"),
    [
        ("accuracy-0.01%", "2000 samples to promise it by are too few even for the whole model"),
        ("accuracy>=99", "the whole model has 90.* could be promised"),
        (["accuracy-1%"], "one quality target at a time"),
    ],
)
def test_what_cannot_be_promised_says_what_could(
    net: torch.nn.Module, target: Any, error: str
) -> None:
    with pytest.raises(obc.ObcError, match=error):
        obc.plan(net, task=task(), target=target, **SETTINGS)


def test_a_promise_that_fails_on_its_split_says_what_could_be_and_how_many_samples_would_do() -> (
    None
):
    with pytest.raises(obc.ObcError, match=r"not to be promised; at macs=.* could be promised"):
        obc.plan(trained(width=4), task=task(1600), target="accuracy-0.6%", **SETTINGS)


def test_a_quality_target_needs_a_task(net: torch.nn.Module) -> None:
    with pytest.raises(obc.ObcError, match="is judged by a task"):
        obc.plan(net, torch.zeros(1, 12), target="accuracy-1%")


def test_a_run_may_come_to_its_end_before_the_promise_is_broken() -> None:
    net, settings = trained(width=6), {"step": 0.3, "rows": 1}
    plan = obc.plan(net, task=task(800), target="accuracy-90%", **settings)
    assert all(site.floor == len(site.kept) for site in plan.sites.values())
    with pytest.raises(obc.ObcError, match="all sites are at their floors"):
        obc.plan(net, task=task(800), target="accuracy-90%", max_ratio=0.0, **settings)


def test_another_cost_can_be_minimised(net: torch.nn.Module) -> None:
    plan = obc.plan(net, task=task(800), target="loss+20%", minimise="memory", step=0.1, rows=2)
    assert plan.after is not None and plan.after.memory is not None
    assert plan.promise is not None and plan.promise.method == "bootstrap"


@pytest.mark.slow
def test_measured_seconds_may_vary(net: torch.nn.Module, monkeypatch: pytest.MonkeyPatch) -> None:
    """A clock that errs by a fifth leads to no much larger model than one that does not err."""
    noise = torch.Generator().manual_seed(0)

    def found(error: float) -> int:
        def seconds(model: torch.nn.Module, example: Any) -> float:
            weights = sum(p.numel() for p in model.parameters())
            return weights * (1 + error * (2 * float(torch.rand((), generator=noise)) - 1))

        monkeypatch.setattr(latency, "seconds", seconds)
        plan = obc.plan(
            net, task=task(), target="accuracy-1.5%", minimise="latency", round_to=1, **SETTINGS
        )
        assert plan.after is not None and plan.promise is not None
        return plan.after.macs

    exact = found(0.0)
    assert max(found(0.2) for _ in range(3)) <= 1.25 * exact


def test_a_search_takes_no_more_than_was_told(net: torch.nn.Module, plan: obc.Plan) -> None:
    assert plan.before is not None
    steps = [*plan.history, *plan.beyond]
    share = steps[-1].after.macs / plan.before.macs
    told = estimate_search(net, task=task(), target="accuracy-1.5%", **SETTINGS)
    assert told.until == "macs=2x" and told.rows == 2 * told.steps > 0
    assert told.seconds > told.places * told.place > 0
    assert len(plan.places) - 2 <= most_places(share, len(steps)) < 4 * told.places
    assert f"up to {told.places} places" in str(told)
    with pytest.raises(obc.ObcError, match="there are top1, top5, loss, accuracy"):
        estimate_search(net, task=task(), target="acuracy-1%", **SETTINGS)


SCRIPT = """
import sys, time, torch
torch.set_num_threads(1)
import obc
from tests.planning.nets import task, trained
class Slow(type(task())):
    def evaluate(self, model, split="test", group=None):
        time.sleep(float(sys.argv[3]))
        print(split, flush=True)
        return super().evaluate(model, split, group)
data = task()
data.__class__ = Slow
plan = obc.plan(trained(), task=data, target="accuracy-1.5%", step=0.06, rows=2, resume=sys.argv[1])
plan.save(sys.argv[2])
"""


def test_a_killed_search_goes_on_and_evaluates_nothing_twice(
    plan: obc.Plan, tmp_path: Path
) -> None:
    words = [sys.executable, "-c", SCRIPT, str(tmp_path / "run"), str(tmp_path / "plan.json")]
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join([*sys.path, os.getcwd()])}
    killed = subprocess.Popen([*words, "0.2"], env=environment, stdout=subprocess.DEVNULL)
    made = tmp_path / "run" / "evaluations"
    while len(list(made.glob("*.safetensors")) if made.is_dir() else []) < 6:
        time.sleep(0.01)
        assert killed.poll() is None, "it ended before it was killed"
    os.kill(killed.pid, signal.SIGKILL)
    killed.wait()
    before = len(list(made.glob("*.safetensors")))
    rest = subprocess.run(
        [*words, "0"], env=environment, capture_output=True, text=True, check=True
    )
    assert obc.Plan.load(tmp_path / "plan.json") == plan
    assert before + len(rest.stdout.split()) == len(list(made.glob("*.safetensors")))
    assert len(plan.places) == len(list(made.glob("*.safetensors")))
