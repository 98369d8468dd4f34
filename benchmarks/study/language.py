"""The block of `docs/results.md` about language models, from the cells of `benchmarks.language`."""

from __future__ import annotations

from typing import Any

from benchmarks.study.sources import benchmark, table

SHARES = ("5%", "10%", "15%", "20%", "25%", "30%")
GOALS = {"20%": 0.75, "30%": 0.6}  # of the excess, recalibrated ÷ cut
WAYS = {"free": "", "uniform": ", one width over layers", "bias": ", FLAP's bias"}


def language() -> str:
    """Perplexities of what is there, the goals, and how it was measured; nothing without cells."""
    content = benchmark("language")
    points: dict[str, Any] = content.get("points", {})
    cells = {tuple(key.split(", ")): p for key, p in points.items() if "cut" in p}
    if not cells:
        return ""
    rows = []
    for name, way, draw in dict.fromkeys(key[:3] for key in cells):
        found = [cells.get((name, way, draw, share)) for share in SHARES]
        title = f"{name}{WAYS[way]}"
        rows.append([title, str(int(draw) + 1), *("" if p is None else _cell(p) for p in found)])
    whole = points["whole"]
    protocol = content["protocol"]
    return "\n".join(
        [
            table(["ranked by", "draw", *SHARES], rows),
            "",
            f"The whole model: {whole['perplexity']:.2f}, and {whole['tale']:.2f} on Moby Dick's "
            "tail, here in brackets.",
            "",
            *(_goal(share, cells, whole) for share in GOALS),
            "",
            "Tokens per second are not shown: other jobs took the cores meanwhile, now more, now "
            "less.",
            "",
            f"Perplexity over {protocol['evaluation']}; goals: over {protocol['goals']}; Moby "
            f"Dick: {protocol['tale']}. Calibration: {protocol['calibration']}.",
        ]
    )


def _cell(point: dict[str, Any]) -> str:
    """As cut → recalibrated."""
    texts = [
        f"{point[state]['perplexity']:.1f} ({point[state]['tale']:.0f})"
        for state in ("cut", "recalibrated")
        if state in point
    ]
    return " → ".join(texts)


def _goal(share: str, cells: dict[Any, Any], whole: dict[str, Any]) -> str:
    """What is left of the excess log-perplexity after recalibration, and what was to be left."""
    point = cells.get(("jacobian", "free", "0", share))
    if point is None:
        return f"- {share}: not measured; the goal is {GOALS[share]}."
    cut, fitted = (point[state]["more"] - whole["more"] for state in ("cut", "recalibrated"))
    ratio = fitted / cut
    kept = "kept" if ratio <= GOALS[share] else "missed"
    return (
        f"- {share}: JC adds {cut:.3f} to the log-perplexity as cut and {fitted:.3f} recalibrated, "
        f"{ratio:.2f} of it; the goal, at most {GOALS[share]}, is {kept}. "
        f"Scoring, cut and recalibration: {point['seconds']:.0f} CPU seconds."
    )
