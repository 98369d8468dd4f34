"""Recipes: strict, explained when wrong, and equal to the paper's table cell by cell."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest
import torch

import obc
from obc.data import NAMES
from obc.models import fitted, resolve
from obc.models.resolver import OWN
from obc.tuning.recipe import Recipe, known

ROOT = Path(__file__).resolve().parents[2]
PAPER = ROOT.parent / "shared" / "paper.tex"
COLUMNS = (
    "vgg19-cifar100",
    "resnet56-cifar10",
    "resnet50-imagenet",
    "mobilenet_v2-imagenet",
    "vit_b_16-imagenet",
)
RIGHT: dict[str, Any] = {"lr": 0.1, "epochs": 10, "batch_size": 32}

# Typed in from the table, a row at a time, in the order of COLUMNS.
TABLE: dict[str, tuple[Any, ...]] = {
    "sparse learning": (True, True, True, True, False),
    "N": (50, 50, 50, 50, 50),
    "Jacobian batch size": (128, 128, 256, 256, 64),
    "p": (1 / 400, 1 / 400, 1 / 100, 1 / 100, 1 / 100),
    "optimizer": ("sgd", "sgd", "sgd", "sgd", "adamw"),
    "base learning rate (lr)": (0.01, 0.01, 0.04, 0.036, 0.000125),
    "base lr for C and D": (0.002, 0.02, 0.01, None, 0.000025),
    "learning rate schedule": ([60, 80], [60, 80], "cosine", "cosine", "cosine"),
    "weight decay (wd)": (0.0005, 0.0005, 0.001, 0.00002, 0.05),
    "wd for C and D": (0.0005, 0, 0, None),  # the printed row has no cell for ViT
    "optimizer momentum": (0.9, 0.9, 0.9, 0.9, [0.9, 0.999]),
    "batch size": (128, 128, 256 * 4, 512 * 4, 128 * 4),
    "total tuning epochs": (100, 100, 100, 300, 100),
    "warmup epochs": (0, 0, 0, 0, 30),
    "warmup decay": (None, None, None, None, 0.033),
    "distillation coefficient": (None, None, 0.5, None, 0.5),
    "distillation T": (None, None, 4, None, 4),
    "mixup": (None, None, None, None, 0.8),
    "cutmix": (None, None, None, None, 1.0),
    "random erasing": (None, None, None, None, 0.25),
    "label smoothing": (None, None, None, None, 0.11),
    "gradient clip": (None, None, None, None, 1),
    "exp. mov. avg. (EMA)": (None, None, None, None, 0.99998),
    "auto mixed precision (AMP)": (None, None, True, True, True),
}


def rows(recipe: Recipe) -> dict[str, Any]:
    """A recipe as the table would print it."""
    assert recipe.prune is not None
    sgd = recipe.optimizer == "sgd"
    return {
        "sparse learning": recipe.sparse is not None,
        "N": recipe.prune.rows,
        "Jacobian batch size": recipe.prune.batch_size,
        "p": recipe.prune.step,
        "optimizer": recipe.optimizer,
        "base learning rate (lr)": recipe.lr,
        "base lr for C and D": recipe.ep_lr,
        "learning rate schedule": recipe.milestones or recipe.schedule,
        "weight decay (wd)": recipe.weight_decay,
        "wd for C and D": recipe.ep_weight_decay,
        "optimizer momentum": recipe.momentum if sgd else recipe.betas,
        "batch size": recipe.batch_size,
        "total tuning epochs": recipe.epochs,
        "warmup epochs": recipe.warmup_epochs,
        "warmup decay": recipe.warmup_factor if recipe.warmup_epochs else None,
        "distillation coefficient": recipe.distill or None,
        "distillation T": recipe.temperature if recipe.distill else None,
        "mixup": recipe.mixup or None,
        "cutmix": recipe.cutmix or None,
        "random erasing": recipe.erasing or None,
        "label smoothing": recipe.label_smoothing or None,
        "gradient clip": recipe.clip,
        "exp. mov. avg. (EMA)": recipe.ema,
        "auto mixed precision (AMP)": recipe.amp != "no" or None,
    }


@pytest.mark.parametrize("column", range(5), ids=COLUMNS)
def test_every_number_is_the_tables(column: int) -> None:
    found = rows(Recipe.load(COLUMNS[column]))
    assert found.keys() == TABLE.keys()
    for row, cells in TABLE.items():
        if column < len(cells):
            assert found[row] == cells[column], row


@pytest.mark.skipif(not PAPER.is_file(), reason="the paper is not beside the repository")
def test_the_typed_table_is_the_papers() -> None:
    printed = printed_table(PAPER.read_text())
    assert list(printed) == list(TABLE)
    for row, cells in TABLE.items():
        assert printed[row] == list(cells), row


def printed_table(text: str) -> dict[str, list[Any]]:
    body = text[: text.index(r"\label{tbl:hyper}")].rpartition(r"\midrule")[2]
    body = body.partition(r"\bottomrule")[0]
    found = {}
    for line in re.split(r"\\\\", body):
        name, *cells = line.split("&")
        if cells:
            name = re.sub(r"\\cite\{.*?\}|[$]|\\t(?=[CD])", "", name)
            found[" ".join(name.split())] = [value(c.strip()) for c in cells]
    found["sparse learning"] = [bool(v) for v in found["sparse learning"]]
    return found


def value(cell: str) -> Any:
    """What a cell says, in the types of TABLE."""
    cell = cell.removeprefix("linear, ")
    if cell in ("-", r"\XSolidBrush"):
        return None
    if cell == r"\Checkmark":
        return True
    if re.fullmatch(r"[\d.]+", cell):
        return float(cell)
    if match := re.fullmatch(r"(\d+)/(\d+)", cell):
        return int(match[1]) / int(match[2])
    if match := re.fullmatch(r"(\d+)\*(\d+)", cell):
        return int(match[1]) * int(match[2])
    if match := re.fullmatch(r"\(?([\d.]+), ([\d.]+)\)?", cell):
        return [float(match[1]), float(match[2])]
    return cell.lower()


def test_targets_and_what_is_ignored() -> None:
    prune = {name: Recipe.load(name).prune for name in COLUMNS}
    found = {n: (p.target, p.ignore, p.equivalent, p.criterion) for n, p in prune.items() if p}
    assert found == {
        "vgg19-cifar100": ("macs=8.98x", [], True, "jacobian"),
        "resnet56-cifar10": ("macs=2.10x", [], True, "jacobian"),
        "resnet50-imagenet": ("macs=2.03x", ["layer*.0.downsample.0"], True, "jacobian"),
        "mobilenet_v2-imagenet": ("macs=2.2x", ["features.18.0"], False, "jacobian"),
        "vit_b_16-imagenet": (
            "macs=1.77x",
            ["conv_proj", "encoder.layers.*.self_attention"],
            True,
            "jacobian",
        ),
    }


@pytest.mark.parametrize("name", COLUMNS[2:])
def test_the_ignored_layers_leave_what_the_paper_prunes(name: str) -> None:
    recipe = Recipe.load(name)
    assert recipe.model is not None and recipe.prune is not None
    size = 32 if "vit" in name else 64
    model = resolve(fitted(recipe.model, (3, size, size), 1000)).eval()
    sites = obc.trace(model, torch.zeros(1, 3, size, size), ignore=recipe.prune.ignore)
    puts = {m.layer for s in sites for m in s.members if m.role == "out"}
    if "vit" in name:
        assert puts == {f"encoder.layers.encoder_layer_{i}.mlp.0" for i in range(12)}
    elif "resnet" in name:
        wanted = {n for n, _ in model.named_modules() if re.fullmatch(r"layer\d\.\d\.conv[12]", n)}
        assert puts == wanted | {"conv1"}, "the stem is no shortcut"
    else:
        kinds = (torch.nn.Conv2d,)
        every = {n for n, m in model.named_modules() if isinstance(m, kinds)}
        assert puts == every - {"features.18.0"}


def test_every_shipped_recipe_loads_and_names_what_exists() -> None:
    names = known()
    assert set(COLUMNS) < set(names)
    assert {"resnet20-digits", "resnet20-fashion_mnist", "resnet20-cifar10"} < set(names)
    for name in names:
        recipe = Recipe.load(name)
        assert recipe.data in NAMES or recipe.model == "hf:HuggingFaceTB/SmolLM2-135M-Instruct"
        assert recipe.model in OWN or recipe.data is None
        assert recipe.prune is not None


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"learning_rate": 1.0}, "learning_rate: no such field; .*there are model, data"),
        ({"epoch": 3}, "epoch: no such field; did you mean 'epochs'"),
        (
            {"prune": {"target": "macs=2x", "row": 3}},
            "prune.row: no such field; did you mean 'rows'",
        ),
        ({"lr": -1.0}, r"lr: .*greater than 0, not -1.0"),
        ({"lr": "fast"}, "lr: .*number, not 'fast'"),
        ({"lr": float("nan")}, "lr: .*finite"),
        ({"lr": True}, "lr: .*number, not True"),
        ({"optimizer": "adam"}, "optimizer: .*'sgd' or 'adamw', not 'adam'"),
        ({"schedule": "step"}, "schedule: .*'multistep', 'cosine' or 'constant'"),
        ({"epochs": 0}, "epochs: .*greater than or equal to 1"),
        ({"epochs": 2.5}, "epochs: .*integer, not 2.5"),
        ({"milestones": [8, 4]}, "milestones: must rise"),
        ({"milestones": [5, 10]}, "milestones: must lie below epochs = 10"),
        ({"milestones": [5], "schedule": "cosine"}, "only with schedule = 'multistep'"),
        ({"milestones": [2], "warmup_epochs": 3}, "milestones: must lie above warmup_epochs = 3"),
        ({"warmup_epochs": 10}, "warmup_epochs: must lie below epochs"),
        ({"accumulate": 5}, "accumulate: must divide batch_size = 32"),
        ({"amp": "half"}, "amp: .*'no', 'fp16' or 'bf16'"),
        ({"ema": 1.0}, "ema: .*less than 1"),
        ({"distill": 1.5}, "distill: .*less than or equal to 1"),
        ({"temperature": 0.0}, "temperature: .*greater than 0"),
        ({"erasing": 2.0}, "erasing: .*less than or equal to 1"),
        ({"betas": [0.9]}, "betas: .*at least 2"),
        ({"prune": {}}, "prune.target: must be given"),
        (
            {"sparse": {"epochs": 2, "lr": 0.1, "strength": 0.1, "milestones": [2]}},
            "sparse.milestones: must lie below epochs = 2",
        ),
        ({"sparse": {"epochs": 1, "lr": 0.1, "strength": -1}}, "sparse.strength: .*greater than 0"),
    ],
)
def test_impossible_values_are_refused_with_their_field(change: dict[str, Any], words: str) -> None:
    Recipe(**RIGHT)
    with pytest.raises(obc.ObcError, match=words):
        Recipe(**{**RIGHT, **change})


def test_a_missing_field_and_a_change_are_checked() -> None:
    with pytest.raises(obc.ObcError, match="lr: must be given"):
        Recipe(epochs=1, batch_size=1)
    recipe = Recipe(**RIGHT).changed(epochs=3)
    assert (recipe.epochs, recipe.lr) == (3, 0.1)
    with pytest.raises(obc.ObcError, match="epochs"):
        recipe.changed(epochs=0)


def test_files(tmp_path: Path) -> None:
    file = tmp_path / "mine.toml"
    file.write_text("lr = 1\nepochs = 2\nbatch_size = 4\n[prune]\ntarget = 'macs=2x'")
    assert Recipe.load(file).lr == 1.0
    file.write_text("lr = = 1")
    with pytest.raises(obc.ObcError, match=r"mine.toml cannot be read as TOML"):
        Recipe.load(file)
    file.write_bytes(b"\xff\xfe")
    with pytest.raises(obc.ObcError, match="cannot be read"):
        Recipe.load(file)
    file.write_text("lr = 1\nepochs = 2\nbatch_size = 0")
    with pytest.raises(obc.ObcError, match=r"mine.toml: batch_size"):
        Recipe.load(file)
    with pytest.raises(obc.ObcError, match="did you mean 'resnet56-cifar10'"):
        Recipe.load("resnet56-cifar")
