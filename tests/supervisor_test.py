# Copyright 2026 The authors of this repository. Licensed under the Apache License, Version 2.0.
"""The supervisor of environment servers: when it gives up, and when it tries again."""

import pytest

from libtorchbeast.rpcenv import supervisor


def test_an_address_in_use_ends_all_whoever_serves_first(tmp_path):
    class Process:
        name, sentinel, from_child = "Server", 0, 0

        def __init__(self, messages):
            self._messages = messages

        def has_message(self):
            return bool(self._messages)

        def receive(self):
            return self._messages.pop(0)

        def end(self, deadline):
            return 1

    processes = [Process([b"."]), Process([b"!address in use"])]
    watched = supervisor.Supervisor(lambda index, life: processes[index], 2, 60.0)
    for worker in watched._workers:
        worker.start_if_due()
    watched._read_messages(watched._workers[0])
    with pytest.raises(supervisor.StartFailure, match="address in use"):
        watched._read_messages(watched._workers[1])


def test_a_server_that_keeps_failing_is_started_less_and_less_often(monkeypatch):
    class Corpse:
        name = "Server 0"

        def end(self, deadline):
            return 1

    now = 100.0
    monkeypatch.setattr(supervisor.time, "monotonic", lambda: now)
    worker = supervisor._Worker(lambda index, life: Corpse(), 0)
    delays = []
    for lived in [0] * 8 + [6, 0]:
        worker.start_if_due()
        if lived:
            worker.record_sign_of_life()
        now += lived
        worker.schedule_restart(worker.clean_up(None))
        worker.start_if_due()
        assert worker.process is None
        delays.append(worker.due - now)
        now = worker.due
    assert delays == [0.5, 1, 2, 4, 8, 16, 30, 30, 0.5, 1]
