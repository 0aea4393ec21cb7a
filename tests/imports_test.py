# Copyright 2026 The authors of this repository. Licensed under the Apache License, Version 2.0.
"""What imports what: no circles, layers that hold, no torch on an environment machine."""

import ast
import graphlib
import re
import subprocess
import sys

import pytest

import libtorchbeast
from tests.support.processes import ROOT

BEASTS = {"monobeast", "polybeast", "polybeast_env", "r2d2", "warpbeast"}
WRAPPERS = {"atari_wrappers", "minatar_wrappers"}
FILES = {
    ".".join(path.relative_to(ROOT).with_suffix("").parts).removesuffix(".__init__"): path
    for path in (ROOT / "libtorchbeast").rglob("*.py")
} | {name: ROOT / f"{name}.py" for name in (*BEASTS, *WRAPPERS, "vtrace")}
FOLDERS = {name for name, path in FILES.items() if path.stem == "__init__"}
EXTENSION = {f"libtorchbeast.{name}" for name in (*libtorchbeast._EXTENSION, "_C")}
TORCH_FREE = {"polybeast_env", *WRAPPERS, "libtorchbeast.environment", "libtorchbeast.spec"}
TORCH_FREE |= {name for name in FILES if name.startswith("libtorchbeast.rpcenv")}


def imports(path):
    """The names of this repository that the file imports, also in functions."""
    for node in ast.walk(ast.parse(path.read_text())):
        names = []
        if isinstance(node, ast.Import):
            names = [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom):
            inside = [f"{node.module}.{alias.name}" for alias in node.names]
            names = inside if node.module in FOLDERS else [node.module]
        yield from (name for name in names if name.partition(".")[0] in FILES)


GRAPH = {name: set(imports(path)) for name, path in sorted(FILES.items())}


def test_what_is_imported_is_there_and_in_no_circle():
    """A wrong import in a function would be found only when the function is called."""
    there = FILES.keys() | EXTENSION
    assert not {name: names - there for name, names in GRAPH.items() if names - there}
    graphlib.TopologicalSorter(GRAPH).prepare()  # raises CycleError, which names the circle


@pytest.mark.parametrize("layer", ["accelerator", "distributed", "loggers", "rpcenv"])
def test_a_folder_imports_itself_and_the_layer_below_which_its_docstring_names(layer):
    folder = f"libtorchbeast.{layer}"
    docstring = ast.get_docstring(ast.parse(FILES[folder].read_text()))
    (named,) = re.findall(r"modules of libtorchbeast\s\(([^)]*)\)", docstring)
    below = {f"libtorchbeast.{name}" for name in re.split(r",\s", named)}
    used = set().union(*(names for name, names in GRAPH.items() if name.startswith(folder)))
    outside = {name for name in used - EXTENSION if not name.startswith(folder)}
    assert outside - {"libtorchbeast"} == below


def test_only_beasts_import_tools():
    tools = "libtorchbeast.tools"
    for name in GRAPH.keys() - BEASTS:
        assert name.startswith(tools) or not any(m.startswith(tools) for m in GRAPH[name]), name


def test_an_environment_machine_needs_neither_torch_nor_rich():
    code = (
        "import importlib, sys; sys.modules |= {'torch': None, 'rich': None};"
        "[*map(importlib.import_module, sys.argv[1:])]; import polybeast_env as program;"
        "program.create_env(program.parse(['--env', 'CartPole-v1']))"
    )
    subprocess.run([sys.executable, "-c", code, *sorted(TORCH_FREE)], cwd=ROOT, check=True)


def test_a_module_has_its_tests():
    modules = GRAPH.keys() - FOLDERS - {"libtorchbeast.rpcenv.rpcenv_pb2"}
    paths = [ROOT / f"tests/{name.rpartition('.')[2]}_test.py" for name in modules]
    assert not [path for path in paths if not path.exists()]
