# Copyright 2026 The authors of this repository. Licensed under the Apache License, Version 2.0.
"""`pip install` makes the programs known in every folder, also where there is no gRPC."""

import re
import subprocess
import sys
import sysconfig
import tomllib
import venv
from pathlib import Path

import pytest

from tests.support.forks import copy_repository
from tests.support.processes import ROOT


@pytest.mark.parametrize("program, options", [("monobeast", []), ("polybeast_env", ["--editable"])])
def test_an_installed_program_is_found_from_any_folder(tmp_path, program, options):
    """In an environment of its own, with this one's packages. No gRPC is found, and so no C++ is
    compiled, which would take a minute."""
    copy, python = copy_repository(tmp_path / "copy"), tmp_path / "venv/bin/python"
    venv.create(tmp_path / "venv")
    [site_packages] = tmp_path.glob("venv/lib/*/site-packages")
    (site_packages / "this.pth").write_text(sysconfig.get_path("purelib"))

    def run(*words, **options):
        done = subprocess.run(words, cwd=tmp_path, capture_output=True, text=True, **options)
        assert done.returncode == 0, done.stdout + done.stderr
        return done.stdout + done.stderr

    pip = [sys.executable, "-m", "pip", "--python", python, "install", "--verbose", "--no-deps"]
    without_grpc = {"PATH": "/usr/bin:/bin", "PKG_CONFIG_LIBDIR": "/nowhere"}
    printed = run(*pip, "--no-build-isolation", "--no-index", *options, copy, env=without_grpc)
    assert "PolyBeast's extension is left out: pkg-config finds no grpc++" in printed
    assert run(python, "-m", program, "--help").startswith(f"usage: {program} ")
    [proto] = (tmp_path / ("copy" if options else "venv")).rglob("rpcenv.proto")
    where = "import libtorchbeast.rpcenv as rpcenv; print(rpcenv.__file__)"
    assert Path(run(python, "-c", where).strip()).parent == proto.parent


def test_every_module_at_the_top_is_installed_and_pip_told_what_a_build_needs():
    """In an empty environment it then brings what setup.py imports."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())
    installed = project["tool"]["setuptools"]["py-modules"]
    assert {*installed, "setup"} == {path.stem for path in ROOT.glob("*.py")}
    needed = project["build-system"]["requires"]
    assert {re.match(r"\w+", package)[0] for package in needed} == {"pybind11", "setuptools"}
