"""
Save, load and export
=====================

:func:`obc.save` writes the weights as safetensors and the plan as JSON; :func:`obc.load` cuts a
fresh model by that plan and fills it. :func:`obc.export` writes ONNX and ``.pt2`` files, which are
read back and compared with the model before they are kept.
"""

import tempfile
import time
from collections.abc import Callable
from pathlib import Path

import matplotlib.pyplot as plt
import onnxruntime
import torch
from torch.nn import functional as F

import obc
from obc.models import resnet20

torch.manual_seed(0)
torch.set_num_threads(1)  # what is compared below
folder, example = Path(tempfile.mkdtemp()), torch.randn(8, 3, 32, 32)
batches = [(torch.randn(16, 3, 32, 32), torch.randint(0, 10, (16,))) for _ in range(4)]
model = resnet20().eval()
small = obc.prune(
    model,
    example,
    batches,
    lambda model, batch: F.cross_entropy(model(batch[0]), batch[1]),
    target="macs=3x",
    rows=4,
    step=0.1,
    max_ratio=0.6,
)
models = {"whole": model, "pruned": small}

# %%
# Both can be loaded into a fresh network of the original size; a model that was never cut too.
for name, net in models.items():
    obc.save(net, folder / name)
    again = obc.load(resnet20(), folder / name).eval()
    assert torch.equal(again(example), net(example))
    print(name, sorted(file.name for file in (folder / name).iterdir()))

# %%
# Any program that reads ONNX or ``torch.export`` files runs the others, without obc.
for name, net in models.items():
    for kind in ("onnx", "pt2"):
        print(obc.export(net, example, folder / f"{name}.{kind}"))

# %%
# What lies on the disk:
KINDS = ("safetensors", "onnx", "pt2")


def kilobytes(name: str, kind: str) -> float:
    """The size of one file, the tensors of a saved folder or an export."""
    file = folder / name / "model.safetensors" if kind == KINDS[0] else folder / f"{name}.{kind}"
    return file.stat().st_size / 1024


figure, axes = plt.subplots(figsize=(7, 2.8), layout="constrained")
for name, colour, height in (("whole", "#d9dce1", 0.8), ("pruned", "#2a78d6", 0.5)):
    axes.barh(KINDS, [kilobytes(name, kind) for kind in KINDS], height, color=colour, label=name)
axes.invert_yaxis()
axes.set(xlabel="KB", title="Files of a ResNet-20 and of a third of it")
axes.legend()
plt.show()


# %%
# And what a batch of eight images takes, CPU time of one thread, best of 20:
def milliseconds(run: Callable[[], object]) -> float:
    """The fastest of twenty runs."""
    times = []
    for _ in range(20):
        begin = time.process_time()
        run()
        times.append(time.process_time() - begin)
    return 1000 * min(times)


options = onnxruntime.SessionOptions()
options.intra_op_num_threads = 1
taken: dict[str, list[float]] = {}
for name, net in models.items():
    session = onnxruntime.InferenceSession(str(folder / f"{name}.onnx"), options)
    feed = {session.get_inputs()[0].name: example.numpy()}
    with torch.inference_mode():
        taken[name] = [
            milliseconds(lambda net=net: net(example)),  # type: ignore[misc]
            milliseconds(lambda session=session, feed=feed: session.run(None, feed)),  # type: ignore[misc]
        ]

figure, axes = plt.subplots(figsize=(7, 2.4), layout="constrained")
for name, colour, height in (("whole", "#d9dce1", 0.8), ("pruned", "#2a78d6", 0.5)):
    axes.barh(("PyTorch", "ONNX Runtime"), taken[name], height, color=colour, label=name)
axes.invert_yaxis()
axes.set(xlabel="ms", title="Eight images of 32×32 pixels")
axes.legend()
plt.show()
