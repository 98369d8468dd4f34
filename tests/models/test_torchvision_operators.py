"""A torchvision whose compiled library does not load is imported all the same, where asked for."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

from obc.models.torchvision_operators import install

# As torchvision does on import, and with no compiled library that would declare the operator.
BROKEN = """
import torch
for name in ("torchvision::nms", "torchvision::qnms"):
    torch.library.register_fake(name)(lambda boxes, scores, threshold: boxes)
"""


def run(program: str, folder: Path) -> subprocess.CompletedProcess[str]:
    environment = {**os.environ, "PYTHONPATH": str(folder)}
    return subprocess.run(
        [sys.executable, "-S", "-c", f"import sys; sys.path += {sys.path}\n{program}"],
        capture_output=True,
        text=True,
        env=environment,
    )


def test_an_environment_that_was_helped_imports_torchvision(tmp_path: Path) -> None:
    (tmp_path / "torchvision").mkdir()
    (tmp_path / "torchvision" / "__init__.py").write_text(BROKEN)
    before = run("import torchvision", tmp_path)
    assert "torchvision::nms does not exist" in before.stderr
    install(tmp_path)
    start = f"import site; site.addsitedir({str(tmp_path)!r})"
    after = run(f"{start}; print('torch' in sys.modules); import torchvision", tmp_path)
    assert after.returncode == 0, after.stderr
    assert after.stdout == "False\n", "a Python that does not want torchvision does not pay"
