# Copyright 2026 The authors of this repository. Licensed under the Apache License, Version 2.0.
"""The command that makes a cluster's certificates."""

import re
import subprocess
import sys

import pytest

from libtorchbeast.tools import certificates
from libtorchbeast.tools.certificates import make_ca
from tests.faults import access
from tests.support.processes import ROOT
from tests.support.tls import check

ERROR = "libtorchbeast.tools.certificates: error: "


def test_the_command_makes_files_that_only_their_user_reads_and_overwrites_none(tmp_path):
    folder = tmp_path / "a" / "b"
    command = [sys.executable, "-m", "libtorchbeast.tools.certificates", folder]
    words = ["--hosts", "envs-1, 10.0.0.5,[::1]", "--days", "3"]
    done = subprocess.run([*command, *words], cwd=ROOT, capture_output=True, text=True)
    assert done.returncode == 0 and not done.stderr
    names = ["10.0.0.5", "::1", "envs-1", "learner"]
    files = {path.name: path.read_bytes() for path in folder.iterdir()}
    assert files.keys() == {"ca.crt", *(f"{n}.{x}" for n in names for x in ("crt", "key"))}
    assert folder.stat().st_mode & 0o777 == 0o700
    for path in folder.glob("*.key"):
        assert path.stat().st_mode & 0o777 == 0o600
    for name in names:  # the flags that it prints are those that work
        (line,) = [line for line in done.stdout.splitlines() if line.startswith(f"{name}: ")]
        assert check(*line.removeprefix(f"{name}: ").split()) == ""
    with pytest.raises(SystemExit) as refused:
        certificates.main([str(folder), "--hosts", "another"])
    assert re.fullmatch(
        f"{ERROR}{folder}/.* exists already; choose another folder", *refused.value.args
    )
    assert {path.name: path.read_bytes() for path in folder.iterdir()} == files


def test_a_pair_that_was_written_signs_as_before(tmp_path):
    ca = make_ca(days=1)
    ca.write(tmp_path, "ca")
    texts = [(tmp_path / name).read_bytes() for name in ("ca.crt", "ca.key")]
    read = certificates.Pair.from_texts(*texts)
    assert read.texts() == ca.texts()
    with access.serving(access.host_of(read)) as address:
        assert access.knock(address, access.learner_of(ca)) == ""
    with pytest.raises(FileExistsError):
        ca.write(tmp_path, "ca")


@pytest.mark.parametrize(
    "words, text",
    [
        ("--hosts a,,b", "--hosts a,,b: expected names or IP addresses, seen ''"),
        ("--hosts ../x", "--hosts ../x: expected names or IP addresses, seen '../x'"),
        ("--hosts envs-1:5000", "seen 'envs-1:5000'"),
        ("--hosts a,b,a", "--hosts a,b,a: expected each once, and other names than 'a'"),
        ("--hosts learner", "expected each once, and other names than 'learner'"),
        ("--hosts a --days 0", "--days 0: expected at least 1 and at most 36500"),
    ],
)
def test_what_cannot_be_certified_is_refused(tmp_path, capsys, words, text):
    with pytest.raises(SystemExit) as refused:
        certificates.main([str(tmp_path / "new"), *words.split()])
    assert refused.value.code.startswith(ERROR) and refused.value.code.endswith(text)
    assert not (tmp_path / "new").exists()
