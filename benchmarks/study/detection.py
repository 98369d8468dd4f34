"""The block of `docs/results.md` about detectors, from the cells of `benchmarks.detection`."""

from __future__ import annotations

import statistics
from typing import Any

from benchmarks._harness import spread
from benchmarks.detection import CRITERIA, UNITS
from benchmarks.study.sources import benchmark, table

NETWORKS = {
    "yolov7_tiny": "YOLOv7-tiny of half its width",
    "yolo11n": "YOLO11n of ultralytics",
}
BUDGETS = tuple(budget for budgets in UNITS.values() for budget in budgets)
SHOWN = (("map50", "mAP@0.5"), ("map", "mAP@0.5:0.95"))
STAGES = ("cut", "recalibrated")
TUNED = ("tuned from the cut", "tuned")
HALF = "channels=50%"
TWICE, KEPT = 2.0, 0.8  # of plain JC's mAP, or of the whole model's: either is enough

Cells = dict[tuple[str, str], list[dict[str, Any]]]


def detection() -> str:
    """Each network that was measured: mAP, after one epoch, milliseconds, and the goals."""
    return "\n\n".join(filter(None, map(_network, NETWORKS)))


def half() -> str:
    """mAP@0.5 as cut to half the channels, by JC and by the Hessian, network by network."""
    parts = []
    for name, title in NETWORKS.items():
        both = [
            spread(_values(_cells(name), criterion, HALF, "cut", "map50"), 3)
            for criterion in ("jacobian", "hessian")
        ]
        if all(both):
            parts.append(f"{title}: JC {both[0]}, Hessian {both[1]}")
    return "; ".join(parts)


def _cells(name: str) -> Cells:
    cells: Cells = {}
    for key, point in benchmark(f"detection_{name}").get("cells", {}).items():
        if key != "whole":
            criterion, _, budget = key.split("|")
            cells.setdefault((criterion, budget), []).append(point)
    return cells


def _network(name: str) -> str:
    content, cells = benchmark(f"detection_{name}"), _cells(name)
    if not cells:
        return ""
    whole = content["cells"]["whole"]
    parts = [
        f"**{NETWORKS[name]}**: {whole['params'] / 1e6:.2f} M parameters, "
        f"{whole['macs'] / 1e6:.0f} M MACs; mAP@0.5 {whole['map50']:.3f} ({_classes(whole)}), "
        f"mAP@0.5:0.95 {whole['map']:.3f}.",
        *(_precision(cells, metric, label) for metric, label in SHOWN),
        _tuned(cells),
        _milliseconds(cells),
        "\n".join([_half(cells, whole), _hessian(cells), _harm(cells)]),
        f"{content['evaluation']}. {content['calibration']}. Digest of the weights: "
        f"`{content['digest of the weights'][:16]}…`; with ±: mean and deviation over draws of "
        "calibration images, otherwise one draw.",
    ]
    return "\n\n".join(filter(None, parts))


def _classes(whole: dict[str, Any]) -> str:
    return ", ".join(f"{name} {values[0]:.3f}" for name, values in whole["classes"].items())


def _values(cells: Cells, criterion: str, budget: str, stage: str, metric: str) -> list[float]:
    points = cells.get((criterion, budget), [])
    return [point[stage][metric] for point in points if stage in point]


def _precision(cells: Cells, metric: str, label: str) -> str:
    """As cut → recalibrated, at each budget."""
    rows = []
    for criterion in CRITERIA:
        texts = [
            " → ".join(
                text for s in STAGES if (text := spread(_values(cells, criterion, b, s, metric), 3))
            )
            for b in BUDGETS
        ]
        if any(texts):
            rows.append([criterion, *texts])
    return table([f"{label}, ranked by", *BUDGETS], rows)


def _tuned(cells: Cells) -> str:
    """After one epoch, from the cut and from the recalibrated network."""
    rows = []
    for budget in BUDGETS:
        for criterion in CRITERIA:
            found = [_values(cells, criterion, budget, stage, "map50") for stage in TUNED]
            if all(found):
                rows.append([budget, criterion, *(spread(values, 3) for values in found)])
    header = ["mAP@0.5 after one epoch", "ranked by", "from the cut", "from the recalibrated"]
    return table(header, rows) if rows else ""


def _milliseconds(cells: Cells) -> str:
    """Of the ONNX files; the share is that of the turns they took, the median."""
    rows, worst = [], 0.0
    measured = [c for c in CRITERIA if any(criterion == c for criterion, _ in cells)]
    for budget in BUDGETS:
        texts = []
        for criterion in measured:
            point = next((p for p in cells.get((criterion, budget), []) if "onnx ms" in p), None)
            texts.append("" if point is None else f"{point['onnx ms']:.1f} ({_share(point)})")
            worst = max(worst, point["onnx error"]) if point is not None else worst
        if any(texts):
            rows.append([budget, *texts])
    if not rows:
        return ""
    refused = sum("onnx refused" in p for points in cells.values() for p in points)
    note = f" {refused} files were refused for differing more." if refused else ""
    return "\n\n".join(
        [
            table(["ms in ONNX Runtime (share of the whole)", *measured], rows),
            f"One image, one thread, the processor's time, both files taking turns; the outputs of "
            f"file and model differ by {worst:.0e} at most.{note}",
        ]
    )


def _share(point: dict[str, Any]) -> str:
    return f"{point['onnx share']:.2f}"


def _half(cells: Cells, whole: dict[str, Any]) -> str:
    """The goal at half the channels: twice plain JC's mAP, or four fifths of the whole model's."""
    cut, fitted = (_values(cells, "jacobian", HALF, stage, "map50") for stage in STAGES)
    if not cut:
        return "- JC at half the channels: not measured."
    before, after = statistics.mean(cut), statistics.mean(fitted)
    kept = after >= TWICE * before or after >= KEPT * whole["map50"]
    return (
        f"- JC at half the channels: {before:.3f} cut, {after:.3f} recalibrated, which is "
        f"{after / whole['map50']:.2f} of the whole model's. The goal, {TWICE:.0f} times the cut's "
        f"or {KEPT} of the whole model's, is {'kept' if kept else 'missed'}."
    )


def _hessian(cells: Cells) -> str:
    """At how many budgets JC is ahead of the Hessian, of those that both have; first draw."""
    text = []
    for stage in STAGES:
        pairs = [
            (a[0], b[0])
            for budget in BUDGETS
            if (a := _values(cells, "jacobian", budget, stage, "map50"))
            and (b := _values(cells, "hessian", budget, stage, "map50"))
        ]
        if pairs:
            ahead = sum(a > b for a, b in pairs)
            text.append(f"{stage}, at {ahead} of {len(pairs)} budgets")
    if not text:
        return "- JC against the Hessian: not measured."
    return f"- JC is ahead of the Hessian (each sample's gradient) {'; '.join(text)} (first draw)."


def _harm(cells: Cells) -> str:
    """How often recalibration helped, by the stricter mAP, the most it took away, and the judge."""
    points = [point for own in cells.values() for point in own]
    pairs = [(p["cut"]["map"], p["recalibrated"]["map"]) for p in points]
    better = sum(after >= before for before, after in pairs)
    before, after = max(pairs, key=lambda pair: pair[0] - pair[1])
    worst = f"; the most it took away was {before:.3f} → {after:.3f}" if after < before else ""
    return (
        f"- Of {len(pairs)} cuts, recalibration left {better} as good or better in "
        f"mAP@0.5:0.95{worst}.{_taken_back(points)}"
    )


def _taken_back(points: list[dict[str, Any]]) -> str:
    """What the judge kept from being changed, and what these fits would have led to."""
    judged = sum(point.get("judged") is not None for point in points)
    if not judged:
        return ""
    back = [(p["cut"]["map"], p["taken back"]["map"]) for p in points if "taken back" in p]
    fits = "; ".join(f"{before:.3f} → {after:.3f}" for before, after in back)
    which = f" ({fits} on test images)" if back else ""
    return (
        f" By mAP on training images that no fit has seen, {len(back) or 'none'} of {judged} fits "
        f"was taken back{which}."
    )
