# Copyright 2026 The authors of this repository. Licensed under the Apache License, Version 2.0.
"""Builds PolyBeast's extension, libtorchbeast._C: `make poly` does it, or

    python setup.py build_ext --inplace

against the system's gRPC C++ and protobuf (pkg-config: grpc++, protobuf). `pip install -e .` does
it too, and leaves the extension out where they are missing: MonoBeast works without it.
"""

import os
import shlex
import subprocess
import sys

from setuptools import Extension, setup
from setuptools.command.build_ext import build_ext

HOW = """\
The C++ extension needs g++, pkg-config, and gRPC C++ and protobuf with their protoc:
    sudo apt-get install -y g++ pkg-config libgrpc++-dev libprotobuf-dev protobuf-compiler-grpc
    conda install -c conda-forge cxx-compiler pkg-config grpc-cpp libprotobuf
    brew install pkg-config grpc protobuf"""
PROTO, SRC = "libtorchbeast/proto", "libtorchbeast/src"


def pkg_config(option: str) -> list[str]:
    """Raises OSError or CalledProcessError if there is no pkg-config, gRPC or protobuf."""
    command = ["pkg-config", option, "grpc++", "protobuf"]
    return shlex.split(subprocess.run(command, check=True, capture_output=True, text=True).stdout)


class BuildExtension(build_ext):
    """Generates the messages' C++ with the system's protoc, then compiles all of it."""

    def run(self) -> None:
        try:
            self.libraries_of_grpc = pkg_config("--libs")
            self.flags_of_grpc = pkg_config("--cflags")
            os.makedirs(self.build_temp, exist_ok=True)
            plugin = subprocess.run(["which", "grpc_cpp_plugin"], check=True, capture_output=True)
            subprocess.run(
                ["protoc", f"-I{PROTO}", f"--cpp_out={self.build_temp}"]
                + [f"--grpc_out={self.build_temp}"]
                + [f"--plugin=protoc-gen-grpc={plugin.stdout.decode().strip()}"]
                + [f"{PROTO}/rpcenv.proto"],
                check=True,
            )
        except (OSError, subprocess.CalledProcessError) as error:
            sys.exit(f"setup.py: error: {error}\n{HOW}")
        super().run()

    def build_extension(self, extension: Extension) -> None:
        import pybind11

        generated = [f"{self.build_temp}/rpcenv.pb.cc", f"{self.build_temp}/rpcenv.grpc.pb.cc"]
        extension.sources = extension.sources + generated
        extension.include_dirs = [pybind11.get_include(), SRC, self.build_temp]
        extension.extra_compile_args += self.flags_of_grpc
        extension.extra_link_args += self.libraries_of_grpc
        super().build_extension(extension)


def extensions() -> list[Extension]:
    try:
        pkg_config("--exists")
    except (OSError, subprocess.CalledProcessError):
        if "build_ext" not in sys.argv:  # which says what is missing, in BuildExtension.run
            print(f"PolyBeast's extension is left out. {HOW}", file=sys.stderr)
            return []
    return [
        Extension(
            "libtorchbeast._C",
            [f"{SRC}/binding.cc", f"{SRC}/grpc_transport.cc"],
            depends=[f"{SRC}/{name}" for name in os.listdir(SRC)] + [f"{PROTO}/rpcenv.proto"],
            extra_compile_args="-std=c++17 -O2 -g0 -fvisibility=hidden -Wall -Wextra".split(),
            extra_link_args=["-Wl,--as-needed"] if sys.platform == "linux" else [],
        )
    ]


def requirements(name: str) -> list[str]:
    with open(name) as file:
        lines = [line.split("#")[0].strip() for line in file]
    return [line for line in lines if line and not line.startswith("-r")]


setup(
    name="torchbeast",
    version="0.4.0",
    python_requires=">=3.11",
    install_requires=requirements("requirements.txt"),
    packages=["libtorchbeast", "libtorchbeast.proto"],
    py_modules=["monobeast", "polybeast", "polybeast_env", "vtrace", "atari_wrappers"],
    ext_modules=extensions(),
    cmdclass={"build_ext": BuildExtension},
)
