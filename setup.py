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
from setuptools.command.build_ext import build_ext

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


class BuildExtension(build_ext):
    user_options = build_ext.user_options + [("without-grpc", None, "build without gRPC C++")]
    boolean_options = build_ext.boolean_options + ["without-grpc"]

    def initialize_options(self) -> None:
        super().initialize_options()
        self.without_grpc = False
        self.force = True  # an extension of the other kind, with or without gRPC, may be there

    def build_extension(self, extension: Extension) -> None:
        import pybind11

        extension.include_dirs = [pybind11.get_include(), SRC]
        extension.sources.append(f"{SRC}/{'no' if self.without_grpc else 'grpc'}_transport.cc")
        if not self.without_grpc:
            try:
                flags, libraries = pkg_config("--cflags"), pkg_config("--libs")
            except (OSError, subprocess.CalledProcessError) as error:
                sys.exit(f"setup.py: error: {error}\n{HOW}")
            extension.extra_compile_args += flags
            extension.extra_link_args += libraries
        super().build_extension(extension)


def extensions() -> list[Extension]:
    try:
        pkg_config("--exists")
    except (OSError, subprocess.CalledProcessError):
        if "build_ext" not in sys.argv:  # build_ext itself says what is missing
            print("PolyBeast's extension is left out: pkg-config finds no grpc++", file=sys.stderr)
            return []
    return [
        Extension(
            "libtorchbeast._C",
            [f"{SRC}/binding.cc"],  # and the transport, which is chosen when it is built
            extra_compile_args="-std=c++17 -O2 -g0 -fvisibility=hidden -Wall -Wextra".split(),
            extra_link_args=["-Wl,--as-needed"] if sys.platform == "linux" else [],
        )
    ]


# pyproject.toml has the rest.
setup(ext_modules=extensions(), cmdclass={"build_ext": BuildExtension})
