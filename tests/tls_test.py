# Copyright 2026 The authors of this repository. Licensed under the Apache License, Version 2.0.
"""TLS between learner and servers: what is refused, and how it is said. Real servers, the real
client; who may not come in at all is in tests/faults/access.py."""

import itertools
import json
import os
import re
import shutil
import sys

import pytest
from cryptography.hazmat.primitives import serialization

import polybeast
import polybeast_env
from libtorchbeast.rpcenv.local_servers import LocalServers
from libtorchbeast.rpcenv.server import OPTIONS
from libtorchbeast.rpcenv.tls import load_tls
from libtorchbeast.tools import certificates
from libtorchbeast.tools.certificates import make_ca
from tests.faults import access
from tests.faults._breaking import ServerFleet
from tests.faults.harness import hold
from tests.support.client import free_port
from tests.support.polybeast import beast
from tests.support.processes import ROOT, Command, rows
from tests.support.tls import check, flags_of

REFUSED = "perhaps the server does not accept this --tls_cert"
OTHER_HOST = "its certificate is another host's"
UNTRUSTED = "certificate has expired, is no server's, or not of --tls_ca"
TOLD = {  # why a server refuses a learner; the other learners are told REFUSED
    "no certificate": f"{REFUSED}; its log says why",
    "plaintext": "perhaps the server wants TLS: --tls_cert",
}
SAID = {  # why a learner does not believe a server; of the other servers it says UNTRUSTED
    "another host's name": OTHER_HOST,
    "another host's IP address": OTHER_HOST,
    "plaintext": "the server speaks no TLS",
}


@pytest.fixture(scope="module")
def ca():
    return make_ca(days=1)


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """A cluster's certificates: a learner's, and of a host that is this one."""
    folder = tmp_path_factory.mktemp("certificates") / "new"
    certificates.main([str(folder), "--hosts", "127.0.0.1,localhost,::1", "--days", "1"])
    return folder


# ========================================================================================== access
def test_no_stranger_gets_in(monkeypatch):
    """The server hangs up on the idle after 10 s as a rule; here sooner."""
    assert OPTIONS["grpc.server_handshake_timeout_ms"] == 10_000
    monkeypatch.setitem(OPTIONS, "grpc.server_handshake_timeout_ms", 4000)
    hold(access.no_stranger_gets_in(knocks=1, scans=14, idle=20))


def test_a_refused_learner_is_told_why_and_one_that_does_not_believe_a_server_says_so(ca):
    with access.serving(access.host_of(ca)) as address:
        for who, stranger in access.strangers(ca).items():
            seen = access.knock(address, stranger)
            assert seen.startswith("UNAVAILABLE: ") and TOLD.get(who, REFUSED) in seen, who
    for who, impostor in access.impostors(ca).items():
        with access.serving(impostor) as address:
            seen = access.knock(address, access.learner_of(ca))
        assert seen.startswith("UNAVAILABLE: ") and SAID.get(who, UNTRUSTED) in seen, who


def test_nobody_there_is_no_matter_of_tls(ca):
    for tls in (access.learner_of(ca), None):
        assert access.knock(f"{access.HOST}:{free_port()}", tls).endswith("Connection refused")


@pytest.mark.skipif(os.getuid() != 0, reason="only root can be another user")
def test_another_user_may_not_connect_to_a_socket():
    hold(access.no_other_user_gets_in())


def test_unix_sockets_get_no_tls(ca, tmp_path):
    address = f"unix:{tmp_path}/s"
    with access.serving(access.host_of(ca), address=address):
        assert access.knock(address, None) == access.knock(address, access.learner_of(ca)) == ""


# ========================================================================================= programs
@pytest.mark.usefixtures("as_before")
def test_a_cluster_with_what_the_command_makes_trains_and_tells_no_secret(tmp_path, folder, capfd):
    shared = "--env tests.support.envs:Catch-v0 --envs_per_server 4 --server_addresses".split()
    shared += [f"localhost:{free_port()}"]
    ours = flags_of(folder, "learner")
    learning = [*"--net monobeast.Net --batch_size 4 --total_steps 500".split(), *ours]
    (tmp_path / "servers").mkdir()
    command = [sys.executable, "-m", "polybeast_env", *shared, *flags_of(folder, "localhost")]
    with Command(tmp_path / "servers", command) as servers:
        beast(tmp_path, *shared, *learning)
    path, printed = tmp_path / "run", [*capfd.readouterr(), servers.printed()]
    last = rows(path)[-1]
    assert last["step"] >= 500 and last["streams"] == 1 and last["stream_failures"] == 0
    assert json.loads((path / "meta.json").read_text())["flags"]["tls_key"] == ours[3]
    secret = (folder / "learner.key").read_bytes().splitlines()[1]
    files = [file for file in path.rglob("*") if file.is_file()]
    assert len(files) > 3 and not any(secret in file.read_bytes() for file in files)
    assert all(printed[1:]) and secret not in "".join(printed).encode()


def test_pem_files_are_read_once(tmp_path, folder):
    """A server that starts again has the certificates of the first start, whatever the files hold
    then: new ones would be no match for the learner's."""
    here = shutil.copytree(folder, tmp_path / "here")
    learner = load_tls(polybeast.parse(["--env", "CartPole-v1", *flags_of(here, "learner")]))
    address = f"127.0.0.1:{free_port()}"
    flags = ["--env", "CartPole-v1", *flags_of(here, "127.0.0.1")]
    with ServerFleet(tmp_path, *flags, addresses=[address]) as servers:
        servers.wait_for(lambda: servers.printed().count("Serving") == 1)
        assert access.knock(address, learner) == ""
        for path in here.iterdir():
            path.write_text("no certificate")
        servers.kill(0)
        servers.wait_for(lambda: re.search("Serving.*(Serving|PEM form)", servers.printed(), re.S))
        assert access.knock(address, learner) == ""


def test_local_servers_get_no_flags_of_tls(folder):
    words = ["--env", "CartPole-v1", "--num_servers", "1", *flags_of(folder, "learner")]
    flags = polybeast.parse(words)
    with LocalServers(flags) as servers:  # a Unix socket with TLS flags would be refused
        assert servers.describe(60.0).name == "CartPole-v1"


def test_other_machines_are_reached_with_tls_or_an_explicit_insecure(folder):
    where = ["--server_addresses", "envs-1:5000"]
    learner = flags_of(folder, "learner")
    assert check(*where).startswith("envs-1:5000 needs TLS (--tls_cert, --tls_key, --tls_ca) or")
    assert check(*where, "--insecure") == check(*where, *learner) == ""
    assert check("--server_addresses", "127.0.0.1:5000,unix:/tmp/x") == ""
    both = check(*where, "--insecure", *learner)
    assert both == "--insecure True: expected to be left out with --tls_cert"


def test_all_three_are_needed(folder):
    words = flags_of(folder, "learner")
    pairs = dict(zip(words[::2], words[1::2], strict=True))
    for given in (*itertools.combinations(pairs, 1), *itertools.combinations(pairs, 2)):
        missing = next(flag for flag in pairs if flag not in given)
        seen = check(*itertools.chain(*((flag, pairs[flag]) for flag in given)))
        assert seen == f"{missing} None: expected a PEM file, because {given[0]} is given"


@pytest.mark.parametrize("flag", ["--tls_cert", "--tls_key", "--tls_ca"])
def test_a_file_that_cannot_be_used_is_named_with_its_flag(folder, tmp_path, flag):
    words = flags_of(folder, "learner")
    place = words.index(flag) + 1
    kind = "a key" if flag == "--tls_key" else "certificates"
    noise = tmp_path / "noise"

    def said_of(path):
        words[place] = str(path)
        return check(*words).removeprefix(f"{flag} {path}: ")

    assert said_of(tmp_path / "missing") == "No such file or directory"
    assert said_of(tmp_path) == "Is a directory"
    for data in (b"", b"\xff\x00", (folder / "ca.crt").read_bytes()[:200]):
        noise.write_bytes(data)
        assert said_of(noise) == f"expected {kind} in PEM form"


def test_a_key_that_is_another_s_or_has_a_passphrase_is_refused(folder, tmp_path):
    words = flags_of(folder, "learner")
    words[3] = f"{folder}/localhost.key"
    assert check(*words) == f"--tls_key {words[3]}: expected the key of --tls_cert {words[1]}"
    pair = certificates.certify_learner(make_ca(1), 1)
    form, secret = serialization.PrivateFormat.PKCS8, serialization.BestAvailableEncryption(b"x")
    (tmp_path / "key").write_bytes(pair.key.private_bytes(certificates.PEM, form, secret))
    words[3] = f"{tmp_path}/key"
    assert check(*words) == f"--tls_key {words[3]}: expected a key without a passphrase"


def test_a_key_is_not_shown_by_accident(folder):
    flags = polybeast_env.parse(flags_of(folder, "learner"))
    assert repr(load_tls(flags)) == "Tls(...)"


def test_security_md_names_the_versions_that_are_pinned():
    (pin,) = re.findall(r"^grpcio==(\S+)", (ROOT / "requirements-env.txt").read_text(), re.M)
    assert f"`grpcio` {pin}, pinned" in (ROOT / "SECURITY.md").read_text()
