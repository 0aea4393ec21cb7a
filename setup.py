# Copyright 2026 The authors of this repository. Licensed under the Apache License, Version 2.0.
"""Installs the package and builds PolyBeast's C++ extension, libtorchbeast._C.

    python setup.py build_ext --inplace          # builds the extension only; `make build` does this
    python setup.py build_ext --inplace --without-grpc    # the extension, which can reach no server
    pip install .                                # installs the programs and the extension
    pip install -e .                             # the same, but edits here take effect

The extension needs the system's gRPC C++ (grpc++ in pkg-config). If that is missing, `pip install`
leaves the extension out, because MonoBeast works without it; `pip install -v` says so. Without
gRPC PolyBeast's queues and batches work, but no run of PolyBeast does.
"""

import shlex
import subprocess
import sys

from setuptools import Extension, setup

HOW = """\
The C++ extension needs g++, pkg-config and gRPC C++:
    sudo apt-get install -y g++ pkg-config libgrpc++-dev
    conda install -c conda-forge cxx-compiler pkg-config grpc-cpp
    brew install pkg-config grpc"""
SRC = "libtorchbeast/src"


def pkg_config(option: str) -> list[str]:
    """The words that `pkg-config OPTION grpc++` prints. Raises OSError if pkg-config is not
    installed, and subprocess.CalledProcessError if gRPC C++ is not."""
    command = ["pkg-config", option, "grpc++"]
    return shlex.split(subprocess.run(command, check=True, capture_output=True, text=True).stdout)


def extensions() -> list[Extension]:
    without_grpc = "--without-grpc" in sys.argv  # setuptools does not know it
    flags, libraries = [], []
    if without_grpc:
        sys.argv.remove("--without-grpc")
    else:
        try:
            flags, libraries = pkg_config("--cflags"), pkg_config("--libs")
        except (OSError, subprocess.CalledProcessError) as error:
            if "build_ext" in sys.argv:
                sys.exit(f"setup.py: error: {error}\n{HOW}")
            print("PolyBeast's extension is left out: pkg-config finds no grpc++", file=sys.stderr)
            return []
    import pybind11

    options = "-std=c++17 -O2 -g0 -fvisibility=hidden -Wall -Wextra".split()
    as_needed = ["-Wl,--as-needed"] if sys.platform == "linux" else []
    return [
        Extension(
            "libtorchbeast._C",
            [f"{SRC}/binding.cc", f"{SRC}/{'no' if without_grpc else 'grpc'}_transport.cc"],
            include_dirs=[pybind11.get_include(), SRC],
            extra_compile_args=[*options, *flags],
            extra_link_args=[*as_needed, *libraries],
        )
    ]


# pyproject.toml has the rest. An extension of the other kind, with or without gRPC, may be there.
setup(ext_modules=extensions(), options={"build_ext": {"force": True}})
