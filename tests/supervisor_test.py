# Copyright 2026 The authors of this repository. Licensed under the Apache License, Version 2.0.
"""The supervisor of environment servers: when it gives up, and when it tries again."""

import signal

import pytest

from libtorchbeast.rpcenv import supervisor


class Process:
    """A process that has sent these messages. Killed, it ends without another one."""

    name, sentinel, from_child = "Server 0", 0, 0

    has_message = lambda self: bool(self._messages)
    receive = lambda self: self._messages.pop(0)
    end = lambda self, deadline: self._exit_code

    def __init__(self, *messages):
        self._messages, self._exit_code = [*messages], 1

    def kill(self):
        self._messages.append(None)
        self._exit_code = -signal.SIGKILL


@pytest.fixture
def clock(monkeypatch):
    """A list with one number, the time."""
    now = [100.0]
    monkeypatch.setattr(supervisor.time, "monotonic", lambda: now[0])
    return now


def supervise(*processes):
    """The supervisor of one server, whose lives are these processes, and its worker."""
    lives = iter(processes)
    watched = supervisor.Supervisor(lambda index, life: next(lives), 1, 60.0, 20.0)
    return watched, *watched._workers


def test_an_address_in_use_ends_all_whoever_serves_first():
    processes = [Process(b"."), Process(b"!address in use")]
    watched = supervisor.Supervisor(lambda index, life: processes[index], 2, 60.0, 300.0)
    for worker in watched._workers:
        worker.start_if_due()
    watched._read_messages(watched._workers[0])
    with pytest.raises(supervisor.StartFailure, match="address in use"):
        watched._read_messages(watched._workers[1])


def test_a_server_that_is_killed_before_it_serves_is_started_again():
    """A kill is not the user's mistake, whether by hand or because memory ran out."""
    watched, worker = supervise(killed := Process())
    worker.start_if_due()
    killed.kill()
    watched._read_messages(worker)
    assert worker.process is None and worker.due > 0


def test_a_server_that_keeps_failing_is_started_less_and_less_often(clock):
    worker = supervisor._Worker(lambda index, life: Process(), 0)
    worker.was_ready, delays = True, []
    for lived in [0] * 8 + [6, 0]:
        worker.start_if_due()
        if lived:
            worker.record_sign_of_life()
        clock[0] += lived
        worker.schedule_restart(None)
        worker.start_if_due()
        assert worker.process is None
        delays.append(worker.due - clock[0])
        clock[0] = worker.due
    assert delays == [0.5, 1, 2, 4, 8, 16, 30, 30, 0.5, 1]


def test_a_server_that_hangs_is_told_and_killed_once(clock, caplog):
    """Before it serves for the first time that ends all, because a restart would not help."""
    watched, worker = supervise(Process(), Process(b"."), Process())

    def after(seconds):
        for _ in range(seconds):
            clock[0] += 1
            watched._silence_timer.tick()
            watched._kill_if_hung(worker)
            watched._say_who_is_not_ready()
            watched._read_messages(worker)

    worker.start_if_due()
    after(20)
    assert caplog.messages == [
        f"The first environment of Server 0 is being waited for, {s} s so far." for s in (5, 10)
    ]
    with pytest.raises(supervisor.StartFailure) as failure:
        after(1)
    why = "Server 0 took longer to start than 20 s, three times --open_timeout"
    assert str(failure.value) == why

    caplog.clear()
    caplog.set_level("ERROR", "libtorchbeast")
    worker.start_if_due()
    after(63)
    worker.start_if_due()
    after(21)
    assert caplog.messages == [
        f"Server 0 failed and starts again in {delay} s: {why}"
        for delay, why in [
            ("0.5", "it gave no sign of life for 60 s (--step_timeout) and was killed"),
            ("1", why),
        ]
    ]
