"""Models that no test names: are they cut right, or refused by the trace, and how much is free?

A run that was cut short goes on where it stopped.
"""

from __future__ import annotations

import json
from dataclasses import asdict

from benchmarks._harness import RESULTS, save, show
from tests.sweep.families import SWEEP
from tests.sweep.judge import Line, judge


def main() -> None:
    path = RESULTS / "sweep.partial.json"
    done = json.loads(path.read_text()) if path.exists() else {}
    for family in SWEEP:
        if family.kind not in done:
            done[family.kind] = asdict(judge(family))
            path.write_text(json.dumps(done))
    lines = [Line(**done[family.kind]) for family in SWEEP]
    rows = [(x.family, x.verdict, x.sites, f"{x.free:.0%}", x.seconds) for x in lines]
    show("The sweep", ("family", "verdict", "sites", "free", "CPU seconds"), rows)
    save("sweep", {"lines": [asdict(line) for line in lines]})
    path.unlink()


if __name__ == "__main__":
    main()
