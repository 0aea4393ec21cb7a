# Copyright 2026 The authors of this repository. Licensed under the Apache License, Version 2.0.
"""`pip install -e .` for those who want it; `make` needs only the requirements files."""

from setuptools import setup

with open("requirements.txt") as file:
    requirements = [line.split("#")[0].strip() for line in file]

setup(
    name="torchbeast",
    version="0.1.0",
    python_requires=">=3.11",
    install_requires=[r for r in requirements if r],
    packages=["libtorchbeast"],
    py_modules=["monobeast", "vtrace", "atari_wrappers"],
)
