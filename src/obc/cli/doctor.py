"""`obc doctor`: versions, devices, and which optional parts work in this environment."""

from __future__ import annotations

import importlib
import platform
from dataclasses import asdict, dataclass
from importlib.metadata import PackageNotFoundError, version

import torch
from rich.table import Table

from obc.cli.output import Output, Result

# Package, what it is for, and the line that installs it.
PARTS = (
    ("transformers", "hf: models", "pip install 'obc[hf]'"),
    ("datasets", "hf: data", "pip install 'obc[hf]'"),
    ("peft", "LoRA in recipes", "pip install 'obc[hf]'"),
    ("gguf", "export to GGUF", "pip install 'obc[hf]'"),
    ("torchvision", "torchvision: models", "pip install 'obc[vision]'"),
    ("timm", "timm: models", "pip install 'obc[vision]'"),
    ("ultralytics", "ultralytics: models (AGPL)", "pip install 'obc[ultralytics]'"),
    ("pycocotools", "mAP of detectors", "pip install 'obc[detection]'"),
    ("yaml", "yolo: data", "pip install 'obc[detection]'"),
    ("sklearn", "the digits of obc demo", "pip install 'obc[demo]'"),
    ("onnx", "export to ONNX", "pip install 'obc[onnx]'"),
    ("onnxscript", "export to ONNX", "pip install 'obc[onnx]'"),
    ("onnxruntime", "running ONNX files", "pip install 'obc[onnx]'"),
    ("openvino", "time in OpenVINO", "pip install 'obc[openvino]'"),
)
DISTRIBUTIONS = {"sklearn": "scikit-learn", "yaml": "PyYAML"}  # where it is not the package's name
UNTRIED = {"ultralytics"}  # AGPL, and writes settings as it is imported: only its version is read
SAME_INDEX = "pip install torchvision --index-url https://download.pytorch.org/whl/cpu"


@dataclass(frozen=True)
class Part:
    """An optional package: its version if it imports, or what is wrong and what would help."""

    name: str
    use: str
    version: str | None
    problem: str = ""
    remedy: str = ""


def doctor(out: Output) -> Result:
    """Show versions, devices and optional parts, with the line that installs what is missing.

    Example: obc doctor
    """
    devices = _devices()
    versions = {
        "obc": _version("obc") or "from a checkout",
        "Python": platform.python_version(),
        "torch": torch.__version__,
    }
    out.say(", ".join(f"{name} {number}" for name, number in versions.items()))
    out.say(f"devices: {', '.join(devices)}")
    with out.doing("importing optional parts"):
        parts = [_examined(*part) for part in PARTS]
    out.say(_table(parts))
    return {"versions": versions, "devices": devices, "parts": [asdict(part) for part in parts]}


def _devices() -> list[str]:
    devices = [f"cpu, threads: {torch.get_num_threads()}"]
    for index in range(torch.cuda.device_count()):
        device = torch.cuda.get_device_properties(index)
        devices.append(f"cuda:{index} ({device.name}, {device.total_memory / 2**30:.0f} GiB)")
    if torch.backends.mps.is_available():
        devices.append("mps")
    return devices


def _version(package: str) -> str | None:
    try:
        return version(DISTRIBUTIONS.get(package, package))
    except PackageNotFoundError:
        return None


def _examined(name: str, use: str, install: str) -> Part:
    number = _version(name)
    if number is None:
        return Part(name, use, None, "missing", install)
    try:
        _import(name)
    except Exception as error:  # a broken library may raise anything on its way in
        remedy = SAME_INDEX if "torchvision::" in str(error) else install
        return Part(name, use, number, f"does not import: {error}", remedy)
    return Part(name, use, number)


def _import(name: str) -> None:
    if name in UNTRIED:
        return
    module = importlib.import_module(name)
    if name == "transformers":
        _ = module.AutoModel  # its parts are imported when first asked for, and fail only then


def _table(parts: list[Part]) -> Table:
    table = Table("part", "for", "version", "what would help")
    for part in parts:
        remedy = f"{part.problem}: {part.remedy}" if part.problem else ""
        table.add_row(part.name, part.use, part.version or "-", remedy)
    return table
