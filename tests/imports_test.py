# Copyright 2026 The authors of this repository. Licensed under the Apache License, Version 2.0.
"""What imports what: no circles, layers that hold, no torch on an environment machine."""

import ast
import graphlib
import subprocess
import sys

import pytest

from tests.support.processes import ROOT

PROGRAMS = "monobeast polybeast polybeast_env vtrace atari_wrappers".split()
PACKAGE = [path.relative_to(ROOT) for path in (ROOT / "libtorchbeast").rglob("*.py")]
MODULES = {".".join(path.with_suffix("").parts).removesuffix(".__init__") for path in PACKAGE}
OURS = MODULES | set(PROGRAMS)
BEASTS = {"monobeast", "polybeast", "polybeast_env"}
# What the modules of a folder may import besides each other; the folders' docstrings say so.
SMALL = {f"libtorchbeast.{name}" for name in "spec environment flags seeds workers".split()}
LAYERS = {
    "libtorchbeast.rpcenv": {"libtorchbeast"} | SMALL,
    "libtorchbeast.loggers": {"libtorchbeast"}
    | {f"libtorchbeast.{name}" for name in "flags rollouts workers".split()},
}
WITHOUT_TORCH = sorted(
    {name for name in MODULES if name.startswith("libtorchbeast.rpcenv")}
    | {"polybeast_env", "atari_wrappers"}
    | {"libtorchbeast.environment", "libtorchbeast.spec"}
)


def imports(name):
    """The modules of this repository that the module names in imports, in functions too."""
    path = ROOT / name.replace(".", "/")
    path = path / "__init__.py" if path.is_dir() else path.with_suffix(".py")
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names if alias.name in OURS)
        elif isinstance(node, ast.ImportFrom):
            parts = {f"{node.module}.{alias.name}" for alias in node.names} & OURS
            yield from parts or {node.module} & OURS


GRAPH = {name: set(imports(name)) for name in sorted(OURS)}


def test_no_circle():
    # The package's own module imports what it needs for an error message, when there is one.
    graph = {name: needed - {"libtorchbeast"} for name, needed in GRAPH.items()}
    assert len([*graphlib.TopologicalSorter(graph).static_order()]) >= len(OURS) - 1


@pytest.mark.parametrize("folder", LAYERS)
def test_a_folder_imports_itself_and_the_layer_below(folder):
    for name in sorted(MODULES):
        if name.startswith(folder):
            above = {m for m in GRAPH[name] - LAYERS[folder] if not m.startswith(folder)}
            assert not above, f"{name} imports {above}"


def test_only_beasts_import_tools():
    for name in sorted(OURS - BEASTS):
        tools = {m for m in GRAPH[name] if m.startswith("libtorchbeast.tools")}
        assert not tools or name.startswith("libtorchbeast.tools"), f"{name} imports {tools}"


def test_environment_machines_need_no_torch():
    code = "import importlib, sys; sys.modules['torch'] = None; [*map(importlib.import_module, "
    command = [sys.executable, "-c", f"{code}sys.argv[1:])]", *WITHOUT_TORCH]
    subprocess.run(command, cwd=ROOT, check=True)


def test_an_environment_machine_needs_neither_torch_nor_rich():
    """Nor gymnasium, for an environment that is none of its."""
    code = (
        "import sys, polybeast_env as p; p.create_env(p.parse(sys.argv[1:]));"
        "print({'torch', 'rich', 'gymnasium'} & set(sys.modules))"
    )
    command = [sys.executable, "-c", code, "--env", "Mock/4", "--envs_per_server", "2"]
    assert subprocess.check_output(command, cwd=ROOT, text=True) == "set()\n"


@pytest.mark.parametrize("name", sorted(OURS))
def test_a_module_has_its_tests(name):
    if not name.endswith(("rpcenv_pb2", "libtorchbeast", "rpcenv", "loggers", "tools")):
        assert "def test_" in (ROOT / f"tests/{name.rpartition('.')[2]}_test.py").read_text()
