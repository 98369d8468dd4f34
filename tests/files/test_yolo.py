"""Pruned models of ultralytics where their users work: in a subprocess, as it is AGPL and talks."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest
from torch import nn

from obc.errors import ObcError
from obc.files.yolo import as_yolo
from tests.boxed import write_yolo
from tests.vision import installed

ROOT = Path(__file__).resolve().parents[2]


def run(program: str, folder: Path, *words: str) -> str:
    """A Python program in a fresh process; what it prints."""
    environment = {
        **os.environ,
        "PYTHONPATH": os.pathsep.join(map(str, (ROOT / "src", ROOT))),
        "YOLO_CONFIG_DIR": str(folder / "settings"),
        "YOLO_AUTOINSTALL": "false",
        "YOLO_OFFLINE": "true",
    }
    done = subprocess.run(
        [sys.executable, *(words or ("-c", program))],
        capture_output=True,
        text=True,
        cwd=folder,
        env=environment,
    )
    assert done.returncode == 0, done.stderr[-3000:] + done.stdout[-2000:]
    return done.stdout


def test_importing_obc_imports_no_ultralytics(tmp_path: Path) -> None:
    program = "import sys, obc, obc.files.yolo, obc.tasks; print('ultralytics' in sys.modules)"
    assert run(program, tmp_path).strip() == "False"


def test_other_models_are_refused() -> None:
    with pytest.raises(ObcError, match="a Linear is no model of ultralytics"):
        as_yolo(nn.Linear(2, 2))


# Beside a CPU-only torch, PyPI's torchvision imports, but its operators do not load.
OPERATORS = """
import torch, torchvision

def nms(boxes, scores, threshold):
    kept = []
    for i in scores.argsort(descending=True).tolist():
        low = torch.maximum(boxes[i, :2], boxes[kept, :2])
        both = (torch.minimum(boxes[i, 2:], boxes[kept, 2:]) - low).clamp(min=0).prod(-1)
        area = (boxes[[i, *kept], 2:] - boxes[[i, *kept], :2]).prod(-1)
        if not (both > threshold * (area[0] + area[1:] - both)).any():
            kept.append(i)
    return torch.tensor(kept, dtype=torch.long)

if not torchvision.extension._has_ops():
    torchvision.ops.nms = nms
"""

SETUP = (
    OPERATORS
    + """
import copy, torch, obc
from obc.files.yolo import as_yolo, trainer_for
from obc.tasks import resolve

task = resolve("yolo:data.yaml,size=64")
torch.manual_seed(0)
model = obc.models.resolve("ultralytics:yolo11n", num_classes=2).eval()
"""
)

LOSS = (
    SETUP
    + """
batch = next(iter(task.images.test(2)))
before = {n: b.clone() for n, b in model.named_buffers()}
ours = task.loss(model, batch)
assert all(torch.equal(b, before[n]) for n, b in model.named_buffers())
assert getattr(model, "criterion", None) is None and isinstance(model.args, dict)

from types import SimpleNamespace
theirs = copy.deepcopy(model)
theirs.args = SimpleNamespace(**model.args)
rows = [(i, c, b) for i, (bs, cs) in enumerate(batch.objects()) for c, b in zip(cs, bs)]
boxes = torch.stack([b for _, _, b in rows])
middle, sides = (boxes[:, :2] + boxes[:, 2:]) / 2, boxes[:, 2:] - boxes[:, :2]
loss, _ = theirs.loss({
    "img": batch.images,
    "batch_idx": torch.tensor([i for i, _, _ in rows]),
    "cls": torch.tensor([[float(c)] for _, c, _ in rows]),
    "bboxes": torch.cat([middle, sides], 1) / 64,
})
torch.testing.assert_close(ours, loss.sum() / 2)

assert not torch.allclose(ours, loss.sum())

from obc.models.boxes import cornered
from obc.models.suppression import CONFIDENCE, MOST, OVERLAP, detections
from ultralytics.utils.nms import non_max_suppression
with torch.no_grad():
    raw = model(batch.images)[0]
    raw[:, 4:] = torch.rand(raw[:, 4:].shape) ** 3
    kept = detections(cornered(raw[0, :4].T), raw[0, 4:].T)
    (theirs, *_) = non_max_suppression(raw, CONFIDENCE, OVERLAP, multi_label=True, max_det=MOST)
torch.testing.assert_close(torch.sort(kept.scores).values, torch.sort(theirs[:, 4]).values)
print("classes", list(task.precision(model).classes))
"""
)

PRUNE = (
    SETUP
    + """
small = obc.prune(model, task=task, target="macs=1.5x", criterion="random", step=0.2, samples=0)
whole, cut = (obc.cost(m, task.example()).macs for m in (model, small))
assert cut <= whole / 1.5 and type(small) is type(model)
assert {type(m) for m in small.modules()} == {type(m) for m in model.modules()}
account = obc.recalibrate(copy.deepcopy(small), model, task, samples=4)
notes = {fit.name: fit.note for fit in account.fits}
assert "constant" in notes["model.23.dfl.conv.weight"]  # the bins of distances
obc.save(small, "small", reference="ultralytics:yolo11n,num_classes=2")
again = obc.load("ultralytics:yolo11n,num_classes=2", "small")
x = task.example()
with torch.no_grad():
    torch.testing.assert_close(again.eval()(x)[0], small.eval()(x)[0])
widths = [p.shape for p in small.parameters()]

# `forward_split` is what ultralytics exports; it splits by a width that the block remembers.
halved = [m for m in small.modules() if hasattr(m, "forward_split")]
narrower = [m for m in halved if m.cv1.conv.out_channels != 2 * m.c]
assert narrower
for block in narrower:
    try:
        block.forward_split(torch.zeros(1, block.cv1.conv.in_channels, 4, 4))
    except RuntimeError:
        continue
    raise AssertionError
for block in as_yolo(small).model.modules():
    if hasattr(block, "forward_split"):
        features = torch.rand(1, block.cv1.conv.in_channels, 4, 4)
        with torch.no_grad():
            torch.testing.assert_close(block.forward_split(features), block(features))

yolo = as_yolo(small)
image = str(task.images.entries[0].file)
found = yolo.predict(image, imgsz=64, verbose=False, conf=0.0001)
assert len(found) == 1 and [p.shape for p in small.parameters()] == widths  # not fused in place
yolo = as_yolo(small)
yolo.save("small.pt")  # ultralytics' own file

yolo.train(data="data.yaml", epochs=1, imgsz=64, batch=4, workers=0, plots=False, verbose=False,
           optimizer="SGD", lr0=0.001, device="cpu", project="runs", name="first", amp=False)
assert [p.shape for p in yolo.model.parameters()] == widths
moved = [not torch.equal(a, b) for a, b in zip(small.parameters(), yolo.model.parameters())]
assert sum(moved) > len(moved) / 2
small.load_state_dict(yolo.model.state_dict())
obc.save(small, "tuned", reference="ultralytics:yolo11n,num_classes=2")

exported = as_yolo(small).export(format="onnx", imgsz=64, simplify=False, verbose=False)
import onnxruntime
session = onnxruntime.InferenceSession(exported, providers=["CPUExecutionProvider"])
(out,) = session.run(None, {session.get_inputs()[0].name: x.numpy()})
with torch.no_grad():
    torch.testing.assert_close(torch.from_numpy(out), small.eval()(x)[0], rtol=1e-3, atol=1e-2)
print("whole way")
"""
)

PLAIN = (
    OPERATORS
    + """
import sys
from ultralytics import YOLO
yolo = YOLO("small.pt")
assert len(yolo.predict("images/train/p0.png", imgsz=64, verbose=False)) == 1
assert not any(name == "obc" or name.startswith("obc.") for name in sys.modules)
widths = [p.shape for p in YOLO("small.pt").model.parameters()]

from obc.files.yolo import trainer_for
yolo = YOLO("small.pt")
yolo.train(trainer=trainer_for("detect"), data="data.yaml", epochs=1, imgsz=64, batch=4, workers=0,
           plots=False, verbose=False, device="cpu", project="runs", name="second", amp=False)
assert [p.shape for p in yolo.model.parameters()] == widths
import obc
model = obc.models.resolve("ultralytics:small.pt")
assert [p.shape for p in model.parameters()] == widths
fixed = [name for name, p in model.named_parameters() if not p.requires_grad]
assert fixed == ["model.23.dfl.conv.weight"]
try:
    obc.models.resolve("ultralytics:small.pt", num_classes=7)
except obc.ObcError as error:
    assert "brings its number of classes" in str(error)
else:
    raise AssertionError
print("reloaded")
"""
)


@pytest.mark.slow
@pytest.mark.skipif(not installed("ultralytics"), reason="no ultralytics")
class TestUltralytics:
    def test_loss_is_its_own(self, tmp_path: Path) -> None:
        write_yolo(tmp_path)
        assert "classes" in run(LOSS, tmp_path)

    def test_pruned_predicts_trains_exports_and_reloads(self, tmp_path: Path) -> None:
        write_yolo(tmp_path)
        assert "whole way" in run(PRUNE, tmp_path)
        assert "reloaded" in run(PLAIN, tmp_path)

    def test_the_command_line(self, tmp_path: Path) -> None:
        write_yolo(tmp_path)
        words = "-m obc.cli prune ultralytics:yolo11n --data yolo:data.yaml,size=64 --target"
        options = "macs=1.5x --rows 1 --step 0.5 --batch-size 2 --recalibrate 4 --out small"
        run("", tmp_path, *f"{words} {options}".split())
        assert (tmp_path / "small" / "model.safetensors").is_file()
