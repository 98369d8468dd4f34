"""Hostile plans, each sealed as if it had been saved so: only its content can give it away."""

from __future__ import annotations

import json
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

from tests.files.attacks.raw import Attack, Damage, seal

GONE = object()
BIG = 10**30


def at(path: str, value: Any) -> Damage:
    """Set one entry, or remove it."""

    def edit(content: dict[str, Any]) -> None:
        *parents, last = path.split("/")
        node: Any = content
        for part in parents:
            node = node[int(part) if isinstance(node, list) else part]
        if value is GONE:
            del node[last]
        else:
            node[last] = value

    return edited(edit)


def edited(edit: Callable[[dict[str, Any]], None]) -> Damage:
    def damage(folder: Path) -> None:
        content = json.loads((folder / "plan.json").read_bytes())
        edit(content)
        seal(folder, json.dumps(content).encode())

    return damage


def text(change: Callable[[str], str]) -> Damage:
    """Change the plan as text, for what no JSON writer would write."""
    return lambda folder: seal(folder, change((folder / "plan.json").read_text()).encode())


def replaced(content: bytes) -> Damage:
    return lambda folder: seal(folder, content)


def insert(words: str) -> Damage:
    """Something at the beginning of the outermost object."""
    return text(lambda t: t.replace("{", "{" + words, 1))


def example(value: Any) -> Damage:
    return at("plans/0/example", value)


def kept(*channels: Any) -> Damage:
    return at("plans/0/sites/0/kept", list(channels))


def tensor(*shape: Any, dtype: Any = "float32", **more: Any) -> dict[str, Any]:
    return {"tensor": list(shape), "dtype": dtype, **more}


def deep_example(folder: Path) -> None:
    """So deep that it has to be written by hand."""
    inside = '{"tuple": [' * 50_000 + '{"value": 1}' + "]}" * 50_000
    at("plans/0/example", "HERE")(folder)
    text(lambda t: t.replace('"HERE"', inside))(folder)


def too_large(folder: Path) -> None:
    """A gigabyte that takes no room."""
    os.truncate(folder / "plan.json", 2**30)


def nested(depth: int) -> Any:
    node: Any = {"value": 1}
    for _ in range(depth):
        node = {"tuple": [node]}
    return node


def renamed_tensor(name: str) -> Damage:
    def edit(content: dict[str, Any]) -> None:
        content["tensors"][name] = content["tensors"].pop("0.weight")

    return edited(edit)


def inline(data: str, shape: list[int], dtype: str = "F32") -> Damage:
    """One tensor more, whose numbers stand in the plan."""
    entry = {"dtype": dtype, "shape": shape, "sha256": "0" * 64, "data": data}
    return edited(lambda content: content["tensors"].__setitem__("more", entry))


def other_model(content: dict[str, Any]) -> None:
    """A plan for a model that is wider and has one layer more."""
    content["plans"][0]["shapes"] |= {"0.weight": [9, 4], "0.bias": [9], "5.weight": [2, 2]}


NOT = "is not an artifact this version reads"
OTHER = "the plan is for another model"
ATTACKS: dict[str, Attack] = {
    # Indices.
    "index out of range": (kept(0, 8), f"{NOT}.*channel 8 is out of range"),
    "index negative": (kept(-1, 2), f"{NOT}.*channel -1 is out of range"),
    "index twice": (kept(1, 1, 2), f"{NOT}.*channel 1 is kept twice"),
    "index unsorted": (kept(2, 1), f"{NOT}.*must be in order"),
    "index beyond 64 bits": (kept(0, BIG), f"{NOT}.*out of range"),
    "index no number": (kept("0"), f"{NOT}.*sites.0.kept.0"),
    "index a truth value": (kept(True), f"{NOT}.*sites.0.kept.0"),
    "index a fraction": (kept(0.5), f"{NOT}.*sites.0.kept.0"),
    "nothing kept": (kept(), f"{NOT}.*sites.0.kept"),
    "fewer kept than stored": (kept(0, 1), r"'0.weight' is \[2, 4\] in the model after the cut"),
    "other channels kept": (kept(0, 1, 2, 3, 4, 5, 6), "after the cut"),
    # Sizes.
    "site of another size": (at("plans/0/sites/0/size", 9), "has 8 channels here, 9 in the plan"),
    "site of huge size": (at("plans/0/sites/0/size", BIG), "has 8 channels here"),
    "site unknown": (at("plans/0/sites/nine", {"size": 2, "kept": [0]}), "no site named 'nine'"),
    "site with a path for a name": (
        at("plans/0/sites/..~1..~1etc~1passwd", {"size": 2, "kept": [0]}),
        "no site named",
    ),
    "shape of another model": (edited(other_model), OTHER),
    "shape huge": (at("plans/0/shapes/0.weight", [BIG, 4]), OTHER),
    "shape negative": (at("plans/0/shapes/0.weight", [-8, 4]), OTHER),
    "shape deep": (at("plans/0/shapes/0.weight", [1] * 10_000), OTHER),
    "shape missing": (at("plans/0/shapes/0.weight", GONE), OTHER),
    # Examples, which are built before the model is run.
    "example huge": (example(tensor(2**40)), f"{NOT}.*at most"),
    "example huge by parts": (
        example({"tuple": [tensor(2**25), tensor(2**25), tensor(1)]}),
        f"{NOT}.*an example of 67108865 numbers",
    ),
    "example overflowing": (example(tensor(0, 2**26, 2**26, 2**26)), f"{NOT}.*an example of"),
    "example of many dimensions": (example(tensor(*[1] * 100)), f"{NOT}.*at most 16 dimensions"),
    "example negative": (example(tensor(-1)), f"{NOT}.*whole numbers"),
    "example of another type": (example(tensor(1, dtype="load")), f"{NOT}.*dtype"),
    "example of no type": (example(tensor(1, dtype=["float32"])), f"{NOT}.*dtype"),
    "example out of its range": (
        example(tensor(1, dtype="uint8", values=[-1])),
        f"{NOT}.*do not fit its dtype",
    ),
    "example without a range": (
        example(tensor(9999, dtype="int64", low=5, high=3)),
        f"{NOT}.*lower one first",
    ),
    "example a pickle": (example({"pickle": "gASV"}), f"{NOT}.*no 'pickle'"),
    "example too deep": (example(nested(120)), NOT),
    "example much too deep": (deep_example, NOT),
    "example the model rejects": (example(tensor(1, 7)), "the model rejects the example"),
    "example of nothing": (example({"tuple": []}), "the model rejects the example"),
    "example missing": (example(None), "keeps no example"),
    # JSON that readers disagree on, or that costs more than it weighs.
    "cost NaN": (
        text(lambda t: t.replace('"seconds": 0.5', '"seconds": NaN')),
        f"{NOT}.*NaN is no number",
    ),
    "cost negative": (at("plans/0/before/macs", -1), f"{NOT}.*before.macs"),
    "cost a fraction": (at("plans/0/before/macs", 0.5), f"{NOT}.*before.macs"),
    "score a text": (at("plans/0/history/0/scores/0", ["x"]), f"{NOT}.*scores"),
    "NaN": (insert('"costs": NaN,'), f"{NOT}.*NaN is no number"),
    "infinity": (insert('"costs": -Infinity,'), f"{NOT}.*-Infinity is no number"),
    "infinity spelt out": (insert('"costs": 1e999,'), f"{NOT}.*1e999 is too large"),
    "huge number": (insert('"costs": ' + "9" * 5000 + ","), NOT),
    "key twice": (insert('"version": 1,'), f"{NOT}.*'version' stands there twice"),
    "key twice deep inside": (
        text(lambda t: t.replace('"size": 8', '"size": 7, "size": 8')),
        f"{NOT}.*'size' stands there twice",
    ),
    "nesting of lists": (insert('"a": ' + "[" * 10**5 + "]" * 10**5 + ","), NOT),
    "nesting of objects": (insert('"a": ' + '{"a":' * 10**5 + "1" + "}" * 10**5 + ","), NOT),
    "nesting without end": (replaced(b"[" * 10**6), NOT),
    "empty": (replaced(b""), NOT),
    "null": (replaced(b"null"), NOT),
    "list": (replaced(b"[]"), NOT),
    "not UTF-8": (replaced(b'{"format": "\xff"}'), NOT),
    "byte order mark": (text(lambda t: "\ufeff" + t), NOT),
    "two documents": (text(lambda t: t + t), NOT),
    "comment": (insert("/* */"), NOT),
    "half a character": (insert(r'"\ud800": 1,'), NOT),
    "too large": (too_large, "has at most"),
    # Fields.
    "another version": (at("version", 2), f"{NOT}.*version"),
    "version as text": (at("version", "1"), f"{NOT}.*version"),
    "another format": (at("format", "obc.plan"), f"{NOT}.*format"),
    "unknown field": (at("run", "rm"), f"{NOT}.*run"),
    "unknown field in a plan": (at("plans/0/run", "rm"), f"{NOT}.*plans.0.run"),
    "no plans": (at("plans", []), "in the model after the cut|is .* in the model"),
    "a plan twice": (
        edited(lambda c: c["plans"].append(c["plans"][0])),
        f"{OTHER}|{NOT}",
    ),
    "a file to be deleted": (at("beside", ["../../precious"]), f"{NOT}.*beside"),
    # Tensors.
    "tensor of another shape": (at("tensors/0.bias/shape", [7]), r"in plan\.json"),
    "tensor of huge shape": (at("tensors/0.bias/shape", [BIG]), r"in plan\.json"),
    "tensor of negative shape": (at("tensors/0.bias/shape", [-1]), f"{NOT}.*shape"),
    "tensor of another type": (at("tensors/0.bias/dtype", "F64"), r"in plan\.json"),
    "tensor missing": (at("tensors/0.bias", GONE), "of which plan.json knows nothing"),
    "tensor with another digest": (at("tensors/0.bias/sha256", "0" * 64), "'0.bias' is damaged"),
    "tensor inside that is in the file": (
        at("tensors/0.bias/data", "AAAAAA=="),
        "of which plan.json knows nothing",
    ),
    "tensor inside of huge shape": (inline("AAAAAA==", [BIG]), "4 bytes, not those of its shape"),
    "tensor inside no base64": (inline("*", [1]), "'more' in plan.json is no base64"),
    "tensor inside no ASCII": (inline("ß===", [1]), "'more' in plan.json is no base64"),
    "tensor inside of unknown type": (inline("AAAA", [3], "PICKLE"), "which this version does not"),
    "tensor inside with another digest": (inline("AAAAAA==", [1]), "'more' is damaged"),
    "tensor without a digest": (at("tensors/0.bias/sha256", ""), f"{NOT}.*sha256"),
    "tensor with a path for a name": (renamed_tensor("../../0.weight"), "holds no '../../0"),
    "tensor with an absolute name": (renamed_tensor("/etc/passwd"), "holds no '/etc/passwd'"),
    "tensor with zero bytes in its name": (renamed_tensor("0\x00.weight"), "holds no"),
    "tie to itself": (at("ties/0.bias", "0.bias"), f"{NOT}.*tied"),
    "tie to nothing": (at("ties/x", "y"), f"{NOT}.*tied"),
    "tie that the model has not": (at("ties/x", "0.bias"), "'x' is tied to None in the model"),
}
