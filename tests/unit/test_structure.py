"""The rules that keep the seam a seam."""

from __future__ import annotations

import ast
import json
import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch

from shared.halves import Half, load_half
from tests.processes import ROOT


def imports(folder: str) -> Iterator[tuple[Path, str]]:
    """Every module that a file below ``folder`` imports, outside of ``if TYPE_CHECKING`` blocks."""
    for path in sorted((ROOT / folder).rglob("*.py")):
        tree = ast.parse(path.read_text())
        typing_only = {
            inner
            for node in ast.walk(tree)
            if isinstance(node, ast.If) and isinstance(node.test, ast.Name) and node.test.id == "TYPE_CHECKING"
            for inner in ast.walk(node)
        }
        for node in ast.walk(tree):
            if node in typing_only:
                continue
            if isinstance(node, ast.Import):
                yield from ((path, alias.name) for alias in node.names)
            elif isinstance(node, ast.ImportFrom) and node.module:
                yield path, node.module


@pytest.mark.parametrize(
    ("folder", "forbidden"),
    [
        ("services/encoder", ("services.language", "services.loadtest", "services.fleet", "examples", "ray", "vllm")),
        ("services/language", ("services.encoder", "services.loadtest", "services.fleet", "examples", "ray")),
        # It sees the pair as any client does; and it has no need of torch.
        (
            "services/loadtest",
            ("services.encoder", "services.language", "services.fleet", "torch", "transformers", "zmq", "ray"),
        ),
        ("services/fleet", ("services.loadtest", "examples", "vllm")),
        ("shared", ("services",)),
        ("services/language/api", ("torch", "zmq", "transformers")),
        ("services", ("tests", "benchmarks")),
        ("shared", ("examples", "tests", "benchmarks")),
    ],
)
def test_nothing_imports_what_it_must_not_know(folder: str, forbidden: tuple[str, ...]) -> None:
    wrong = [
        f"{path.relative_to(ROOT)} imports {name}"
        for path, name in imports(folder)
        if name.startswith(tuple(f"{module}." for module in forbidden)) or name in forbidden
    ]
    assert wrong == []


def test_vllm_is_known_to_its_own_package_only() -> None:
    paths = {path.relative_to(ROOT) for path, name in imports("services/language") if name.partition(".")[0] == "vllm"}
    assert paths
    assert all(path.is_relative_to("services/language/engine/vllm") for path in paths)


TREE = ("services", "shared", "examples", "benchmarks", "tests")
MAKES_OBJECTS = {"pickle", "cPickle", "_pickle", "dill", "cloudpickle", "marshal", "shelve", "joblib", "jsonpickle", "copyreg"}
"""Modules that make any object, and so call anything, as the bytes say that they read."""
CALLS = {
    "torch.load",
    "torch.jit.load",
    "torch.hub.load",
    "torch.package",
    "torch.serialization",
    "pandas.read_pickle",
    "yaml.load",
    "yaml.unsafe_load",
    "yaml.full_load",
    "eval",
    "exec",
    "compile",
    "__import__",
}
METHODS = {"send_pyobj", "recv_pyobj"}
KEYWORDS = {"allow_pickle": True, "trust_remote_code": True, "weights_only": False}
ALLOWED = {"shared/foreign.py": ["trust_remote_code"]}
"""The one place that runs code of a checkpoint, where EPD_TRUST_REMOTE_CODE asks for it."""


def called(node: ast.expr, modules: dict[str, str]) -> str:
    """What an expression names, in full: ``t.load`` is ``torch.load`` after ``import torch as t``."""
    if isinstance(node, ast.Attribute):
        return f"{called(node.value, modules)}.{node.attr}"
    return modules.get(node.id, node.id) if isinstance(node, ast.Name) else ""


def unsafe(source: str, forbidden: set[str]) -> list[str]:
    """Everything in a program that makes objects of bytes, imports ``forbidden``, or runs what it reads."""
    tree, found, modules = ast.parse(source), [], dict[str, str]()
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            modules |= {alias.asname or alias.name.partition(".")[0]: alias.name for alias in node.names if alias.asname}
            found += [alias.name for alias in node.names if alias.name.partition(".")[0] in forbidden]
        elif isinstance(node, ast.ImportFrom) and node.module:
            names = {alias.asname or alias.name: f"{node.module}.{alias.name}" for alias in node.names}
            modules |= names
            found += [node.module] if node.module.partition(".")[0] in forbidden else []
            found += [name for name in names.values() if name.startswith(tuple(CALLS))]
    for node in ast.walk(tree):
        if isinstance(node, ast.Attribute) and node.attr in METHODS:
            found.append(node.attr)
        elif isinstance(node, ast.Attribute | ast.Name) and (name := called(node, modules)) in CALLS and "." in name:
            found.append(name)
        elif isinstance(node, ast.Call):
            name = called(node.func, modules)
            found += [name] if name in CALLS and "." not in name else []
            found += [
                keyword.arg
                for keyword in node.keywords
                if keyword.arg in KEYWORDS
                and not (isinstance(keyword.value, ast.Constant) and keyword.value.value is not KEYWORDS[keyword.arg])
            ]
            arguments = [argument.value for argument in node.args if isinstance(argument, ast.Constant)]
            found += [str(value) for value in arguments if name.endswith("import_module") and value in forbidden]
    return found


@pytest.mark.parametrize("folder", TREE)
def test_nothing_is_ever_unpickled(folder: str) -> None:
    # The pipes of multiprocessing pickle; a benchmark may have its own child measure, but no service has any.
    forbidden = MAKES_OBJECTS | ({"multiprocessing"} if folder in ("services", "shared") else set())
    sources = {str(path.relative_to(ROOT)): path.read_text() for path in sorted((ROOT / folder).rglob("*.py"))}
    assert sources
    found = {path: unsafe(source, forbidden) for path, source in sources.items()}
    assert {path: names for path, names in found.items() if names != ALLOWED.get(path, [])} == {}


@pytest.mark.parametrize(
    "program",
    [
        "import pickle",
        "import pickle as safe",
        "from pickle import loads",
        "import os, marshal",
        "import multiprocessing.connection",
        "from multiprocessing import Queue",
        "if False:\n    def f():\n        import dill",
        "import importlib; importlib.import_module('pickle')",
        "import torch; torch.load('a')",
        "import torch as t; t.load('a')",
        "import torch; read = torch.load",
        "from torch import load",
        "from torch import load as read; read('a')",
        "from torch.serialization import load",
        "import torch; torch.load('a', weights_only=True)",
        "f(weights_only=False)",
        "import numpy; numpy.load('a', allow_pickle=True)",
        "numpy.load('a', allow_pickle=flag)",
        "Model.from_pretrained('a', trust_remote_code=True)",
        "socket.recv_pyobj()",
        "read = socket.recv_pyobj",
        "yaml.load(text)",
        "eval(text)",
        "exec(text)",
        "__import__('os')",
    ],
)
def test_the_test_of_it_sees_it(program: str) -> None:
    assert unsafe(program, MAKES_OBJECTS | {"multiprocessing"})


def test_the_test_of_it_sees_nothing_else() -> None:
    program = "import re, json, torch; re.compile('a'); json.load(f); model.eval(); torch.nn; f(trust_remote_code=False)"
    assert unsafe(program, MAKES_OBJECTS | {"multiprocessing"}) == []


@pytest.mark.parametrize("half", ["vision", "language"])
@pytest.mark.parametrize("name", ["pytorch_model.bin", "model.pt", "pytorch_model-00001-of-00001.bin"])
def test_weights_that_are_a_pickle_are_refused_unread(demo_model: Path, tmp_path: Path, half: Half, name: str) -> None:
    for path in demo_model.iterdir():
        if path.suffix != ".safetensors":
            shutil.copy(path, tmp_path)
    trap = tmp_path / "trap"
    (tmp_path / name).write_bytes(b"cposix\nsystem\n(S'touch " + str(trap).encode() + b"'\ntR.")
    index = {"metadata": {}, "weight_map": {"lm_head.weight": name}}
    (tmp_path / "pytorch_model.bin.index.json").write_text(json.dumps(index))
    with pytest.raises((OSError, ValueError)):
        load_half(tmp_path, half, torch.device("cpu"), torch.float32)
    assert not trap.exists()


@pytest.mark.parametrize("half", ["vision", "language"])
def test_nor_are_they_read_where_the_configuration_names_them(demo_model: Path, tmp_path: Path, half: Half) -> None:
    folder = Path(shutil.copytree(demo_model, tmp_path / "model"))
    config = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps(config | {"transformers_weights": "adapter_model.bin"}))
    torch.save({}, folder / "adapter_model.bin")
    with pytest.raises(ValueError, match=r"adapter_model\.bin is not in the safetensors format"):
        load_half(folder, half, torch.device("cpu"), torch.float32)
