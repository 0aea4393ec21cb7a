# Copyright 2026 The authors of this repository. Licensed under the Apache License, Version 2.0.
"""The extension's type stub, _C.pyi, has the names that the extension has."""

import ast
from pathlib import Path

from libtorchbeast import _C

STUB = ast.parse(Path(_C.__file__).with_name("_C.pyi").read_text())
PROTOCOLS = {"__init__", "__iter__", "__len__", "__next__"}


def declared(node):
    """The names that a module or class of the stub declares, without private ones."""
    names = {d.name for d in node.body if isinstance(d, ast.ClassDef | ast.FunctionDef)}
    names |= {d.target.id for d in node.body if isinstance(d, ast.AnnAssign)}
    return {name for name in names if name in PROTOCOLS or not name.startswith("_")}


def existing(owner):
    return {name for name in vars(owner) if name in PROTOCOLS or not name.startswith("_")}


def test_the_stub_declares_what_the_extension_has():
    assert declared(STUB) == existing(_C)
    for node in STUB.body:
        if isinstance(node, ast.ClassDef) and not issubclass(getattr(_C, node.name), Exception):
            assert declared(node) | {"__init__"} == existing(getattr(_C, node.name)) | {"__init__"}
