"""The block of `docs/results.md` about language models, from the cells of `benchmarks.language`."""

from __future__ import annotations

from typing import Any

from benchmarks._harness import spread
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
            *_speed(points.get("speed")),
            f"Perplexity over {protocol['evaluation']}; goals: over {protocol['goals']}; Moby "
            f"Dick: {protocol['tale']}. Calibration: {protocol['calibration']}."
            f"{_rows(points)}",
        ]
    )


def as_cut(share: str) -> str:
    """Perplexities as cut, mean and deviation over draws, by JC, Hessian and l1."""
    points = benchmark("language").get("points", {})
    parts = []
    for name in ("jacobian", "hessian", "l1"):
        drawn = [
            point["cut"]["perplexity"]
            for key, point in points.items()
            if key.startswith(f"{name}, free, ") and key.endswith(f", {share}")
        ]
        ruined = bool(drawn) and min(drawn) > 1000  # by how much, tenths do not tell
        parts.append(f"{name} {f'{min(drawn):,.0f}' if ruined else spread(drawn)}")
    return ", ".join(parts)


def _cell(point: dict[str, Any]) -> str:
    """As cut → recalibrated."""
    texts = [
        f"{point[state]['perplexity']:.1f} ({point[state]['tale']:.0f})"
        for state in ("cut", "recalibrated")
        if state in point
    ]
    return " → ".join(texts)


def _rows(points: dict[str, Any]) -> str:
    told = sorted({p["rows"] for p in points.values() if "rows" in p})
    return f" Rows to recalibrate on: {' or '.join(told)}." if told else ""


def _speed(speeds: dict[str, Any] | None) -> list[str]:
    """Tokens per second, and how many times the whole model's."""
    if speeds is None:
        return []
    whole = speeds["whole"]
    names = [name for name, values in speeds.items() if isinstance(values, dict)]
    rows = [
        [name, *(f"{v:.1f} ({v / whole[what]:.2f}×)" for what, v in speeds[name].items())]
        for name in names
    ]
    return [
        table(["JC, widths and share gone", *whole], rows),
        "",
        "The processor's time of one thread, a row of 256 tokens at once and 32 one after another "
        "with a KV cache; the models take turns, the best of three rounds of three runs.",
        "",
    ]


def _goal(share: str, cells: dict[Any, Any], whole: dict[str, Any]) -> str:
    """What is left of the excess log-perplexity after recalibration, and what was to be left."""
    drawn = [p for key, p in cells.items() if key[:2] == ("jacobian", "free") and key[3] == share]
    points = [p for p in drawn if "more" in p.get("recalibrated", ())]
    if not points:
        return f"- {share}: not measured; the goal is {GOALS[share]}."
    told = []
    for point in points:
        cut, fitted = (point[state]["more"] - whole["more"] for state in ("cut", "recalibrated"))
        kept = "kept" if fitted / cut <= GOALS[share] else "missed"
        told.append(f"{cut:.3f} as cut and {fitted:.3f} recalibrated, {fitted / cut:.2f} ({kept})")
    seconds = " and ".join(f"{p['recalibration']:.0f} of {p['seconds']:.0f}" for p in points)
    return (
        f"- {share}: JC adds to the log-perplexity, draw by draw, {'; '.join(told)}. The goal is "
        f"at most {GOALS[share]} of it. Recalibration took {seconds} CPU seconds."
    )
