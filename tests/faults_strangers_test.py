# Copyright 2026 The authors of this repository. Licensed under the Apache License, Version 2.0.
"""Broken and hostile peers: tests/faults/strangers.py, scaled."""

from tests.faults import strangers
from tests.faults.harness import hold
from tests.support import corpus


def test_the_corpus_is_what_its_module_makes():
    expected = {name: corpus.to_file(m) for name, m in corpus.conversations().items()}
    assert {path.name: path.read_bytes() for path in corpus.FOLDER.iterdir()} == expected


def test_hostile_servers_are_refused_and_dropped():
    hold(strangers.refuses_servers(rollouts=30))


def test_hostile_clients_are_refused_and_dropped():
    hold(strangers.refuses_clients(resets=20))
