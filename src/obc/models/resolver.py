"""`resolve`: any model by one name, whichever library or file it lives in."""

from __future__ import annotations

import importlib
import importlib.util
import re
from collections.abc import Callable, Mapping
from pathlib import Path
from types import ModuleType
from typing import Any, cast

import torch
from torch import nn

from obc.errors import ObcError, closest
from obc.models.mobilenet import mobilenet_v2
from obc.models.resnet import resnet20, resnet56
from obc.models.resnet50 import resnet50
from obc.models.resnet_padded import resnet20_padded, resnet56_padded
from obc.models.torchvision_operators import declare
from obc.models.vgg import vgg16, vgg19
from obc.models.vit import vit_small
from obc.models.vit_b_16 import vit_b_16
from obc.models.yolov7 import yolov7, yolov7_tiny

OWN: Mapping[str, Callable[..., nn.Module]] = {
    "resnet20": resnet20,
    "resnet56": resnet56,
    "resnet20_padded": resnet20_padded,
    "resnet56_padded": resnet56_padded,
    "vgg16": vgg16,
    "vgg19": vgg19,
    "vit_small": vit_small,
    "resnet50": resnet50,
    "mobilenet_v2": mobilenet_v2,
    "vit_b_16": vit_b_16,
    "yolov7": yolov7,
    "yolov7_tiny": yolov7_tiny,
}
_OPTIONS = re.compile(r"(,[a-z_]\w*=[^,=]+)+$", re.IGNORECASE)


def resolve(
    name: str, *, num_classes: int | None = None, pretrained: bool = False, **options: Any
) -> nn.Module:
    """A model by name; `options` go to whatever builds it.

    The name is one of ours (`resnet20`, `vit_small` …: those of `obc.models`), or
    `torchvision:resnet50`, `timm:convnext_tiny`, `hf:google/vit-base-patch16-224` (a hub name or
    a folder), `ultralytics:yolo11n` (a configuration, or a checkpoint of yours), or
    `path/to/file.py:factory`. `pretrained` loads the library's own weights, never from pickled
    files, but for ultralytics, which has no others. A name may bring options: "resnet20,width=8".

    >>> resolve("resnet20", num_classes=7).fc.out_features
    7
    >>> resolve("resnet20,num_classes=7").fc.out_features
    7
    """
    name, written = options_of(name)
    options = {**written, **options}
    if num_classes is not None:
        options["num_classes"] = num_classes
    kind, colon, rest = name.partition(":")
    if not colon:
        return _own(name, pretrained, options)
    if kind in _LIBRARIES and rest:
        return _LIBRARIES[kind](rest, pretrained, options)
    path, _, factory = name.rpartition(":")  # a path may have a colon of its own
    if path.endswith(".py"):
        if pretrained:
            options["pretrained"] = True
        return _build(f"{path}:{factory}", from_file(path, factory), options)
    raise ObcError(
        f"'{name}' names no model; names are {', '.join(OWN)}, torchvision:…, timm:…, hf:…, "
        "ultralytics:…, path/to/file.py:factory"
    )


def options_of(name: str) -> tuple[str, dict[str, Any]]:
    """A name without its options, and these.

    >>> options_of("timm:vit_tiny,num_classes=7,act_layer=relu")
    ('timm:vit_tiny', {'num_classes': 7, 'act_layer': 'relu'})
    """
    tail = _OPTIONS.search(name)
    if tail is None:
        return name, {}
    pairs = (part.split("=") for part in tail[0][1:].split(","))
    return name[: tail.start()], {key: _value(text) for key, text in pairs}


def _value(text: str) -> Any:
    if text in ("true", "false"):
        return text == "true"
    for kind in (int, float):
        try:
            return kind(text)
        except ValueError:
            continue
    return text


def _own(name: str, pretrained: bool, options: dict[str, Any]) -> nn.Module:
    if name not in OWN:
        raise ObcError(
            f"no model named '{name}'{closest(name, OWN)}; there are {', '.join(OWN)}, and "
            "torchvision:…, timm:…, hf:…, ultralytics:…, file.py:factory",
            section="names",
        )
    _no_weights(name, pretrained)
    if name == "vit_small" and "num_classes" in options:
        options["classes"] = options.pop("num_classes")
    return _build(name, OWN[name], options)


def _torchvision(name: str, pretrained: bool, options: dict[str, Any]) -> nn.Module:
    models = library("torchvision", "vision").models
    names = models.list_models()
    if name not in names:
        raise ObcError(f"torchvision has no model '{name}'{closest(name, names)}", section="names")
    weights = "DEFAULT" if pretrained else None
    return _build(
        f"torchvision:{name}", lambda **o: models.get_model(name, **o, weights=weights), options
    )


def _timm(name: str, pretrained: bool, options: dict[str, Any]) -> nn.Module:
    timm = library("timm", "vision")
    plain = name.partition(".")[0]  # what follows the dot names the weights
    if not timm.is_model(name):
        raise ObcError(
            f"timm has no model '{name}'{closest(plain, timm.list_models())}", section="names"
        )
    return _build(
        f"timm:{name}", lambda **o: timm.create_model(name, pretrained=pretrained, **o), options
    )


def _hugging_face(name: str, pretrained: bool, options: dict[str, Any]) -> nn.Module:
    transformers = library("transformers", "hf")
    if "num_classes" in options:
        options["num_labels"] = options.pop("num_classes")

    def build(**settings: Any) -> nn.Module:
        config = transformers.AutoConfig.from_pretrained(name, **settings)
        kinds = config.architectures or []
        kind = getattr(transformers, kinds[0], None) if kinds else None
        if kind is None:
            raise ObcError(
                f"the configuration of '{name}' names no class of transformers; its config.json "
                'says which by "architectures": ["LlamaForCausalLM"], for example'
            )
        if not pretrained:
            # Without weights there are shapes alone, of the type that the configuration says.
            meta = torch.get_default_device().type == "meta"
            fresh: nn.Module = kind._from_config(config) if meta else kind(config)
            return fresh
        trained: nn.Module
        trained, told = kind.from_pretrained(
            name, config=config, use_safetensors=True, output_loading_info=True
        )
        lacking = sorted(told["missing_keys"])
        if lacking and not settings:  # a head for other classes begins anew
            raise ObcError(
                f"the weights of '{name}' are not all there: {len(lacking)} tensors that its "
                f"config.json asks for are missing, '{lacking[0]}' among them"
            )
        return trained

    return _build(f"hf:{name}", build, options)


def _ultralytics(name: str, pretrained: bool, options: dict[str, Any]) -> nn.Module:
    """A model by its YAML file, or a checkpoint, read by the list of classes that ultralytics has.

    The library is under the AGPL, and is imported only here.
    """
    if name.endswith(".pt") and not Path(name).is_file():
        raise ObcError(f"no file {name}")
    yolo = library("ultralytics", "ultralytics").YOLO
    tasks = library("ultralytics.nn.tasks", "ultralytics")

    def build(num_classes: int | None = None) -> nn.Module:
        if name.endswith(".pt") or pretrained:
            if num_classes is not None:
                raise ObcError("a checkpoint brings its number of classes")
            file = name if name.endswith(".pt") else f"{name}.pt"
            content, _ = tasks.torch_safe_load(file, safe_only=True)
            trained: nn.Module = (content.get("ema") or content["model"]).float()
            # An average is saved, which asks for no gradient; only the bins of boxes are constants.
            for key, parameter in trained.named_parameters():
                parameter.requires_grad_(".dfl." not in key)
            return trained
        whole = yolo(name if name.endswith((".yaml", ".yml")) else f"{name}.yaml").model
        if num_classes is None:
            return cast(nn.Module, whole)
        fresh = type(whole)(whole.yaml, nc=num_classes, verbose=False)
        fresh.args, fresh.task = whole.args, whole.task
        return cast(nn.Module, fresh)

    return _build(f"ultralytics:{name}", build, options)


def from_file(file: str, factory: str) -> Callable[..., Any]:
    """A function of a Python file, which is run for it."""
    path = Path(file)
    if not path.is_file():
        raise ObcError(f"no file {path}")
    spec = importlib.util.spec_from_file_location(path.stem, path)
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    try:
        spec.loader.exec_module(module)
    except Exception as error:
        raise ObcError(f"{path} cannot be imported: {type(error).__name__}: {error}") from error
    if not callable(getattr(module, factory, None)):
        names = [n for n, v in vars(module).items() if callable(v) and not n.startswith("_")]
        raise ObcError(
            f"{path} has no function '{factory}'{closest(factory, names)}", section="names"
        )
    made: Callable[..., Any] = getattr(module, factory)
    return made


def library(name: str, extra: str) -> ModuleType:
    """A package that is loaded when it is used, or what to install."""
    declare()  # transformers and timm import torchvision too
    try:
        return importlib.import_module(name)
    except ImportError as error:
        raise ObcError(
            f"{name} is not installed ({error}): pip install 'obc[{extra}]'",
            section="what-is-not-installed",
        ) from None
    except RuntimeError as error:
        raise ObcError(
            f"{name} is installed but does not import beside this torch ({error}); "
            "torch and torchvision must come from the same index",
            section="what-is-not-installed",
        ) from None


def _build(name: str, make: Callable[..., Any], options: dict[str, Any]) -> nn.Module:
    try:
        model = make(**options)
    except ObcError:
        raise
    except Exception as error:
        raise ObcError(f"'{name}' cannot be built: {type(error).__name__}: {error}") from error
    if not isinstance(model, nn.Module):
        raise ObcError(f"'{name}' gives a {type(model).__name__}, not a torch.nn.Module")
    return model


def _no_weights(name: str, pretrained: bool) -> None:
    if pretrained:
        raise ObcError(f"'{name}' has no weights of its own: train it, or load a file into it")


_LIBRARIES = {
    "torchvision": _torchvision,
    "timm": _timm,
    "hf": _hugging_face,
    "ultralytics": _ultralytics,
}
