# Copyright 2026 The authors of this repository. Licensed under the Apache License, Version 2.0.
"""Threads that fail, signals that stop a program, and signs of life."""

import atexit
import ctypes
import functools
import os
import platform
import select
import signal
import subprocess
import sys
import threading
import time
import traceback

import psutil
import pytest
import torch

from libtorchbeast import workers
from libtorchbeast.workers import PipeEvent, Threads, stop_signals_set
from tests.support.processes import ROOT, wait_for

GUARD = 60.0  # seconds; against a hang only


@pytest.fixture
def wakeup():
    event = PipeEvent()
    yield event
    event.close()


# ------------------------------------------------------------------------------------------ threads
def woken(event):
    """Waits as a main loop does."""
    return bool(select.select([event], [], [], GUARD)[0]) and event.is_set()


def test_the_first_failure_of_a_thread_wins_and_wakes(wakeup, caplog):
    threads, go_on = Threads(wakeup), threading.Event()

    def fail_later():
        go_on.wait(GUARD)
        raise ValueError("the second")

    def lose_the_ball(where):
        raise RuntimeError(f"the ball is under {where}")

    threads.start(fail_later, (), "later")
    threads.join(0.01)  # it is not waited for
    threads.raise_failure()  # there is none
    assert not wakeup.is_set()
    threads.start(lose_the_ball, ("the sofa",), "earlier")
    assert woken(wakeup)
    go_on.set()
    threads.join(GUARD)
    with pytest.raises(RuntimeError, match="under the sofa") as error:
        threads.raise_failure()
    assert traceback.extract_tb(error.value.__traceback__)[-1].name == "lose_the_ball"
    assert "Thread earlier failed: RuntimeError" in caplog.text
    assert "Thread later failed: ValueError('the second')" in caplog.text


def test_a_thread_that_ends_without_a_failure_wakes_too(wakeup):
    threads = Threads(wakeup)
    threads.start(lambda: None, (), "short")
    assert woken(wakeup)
    threads.join(GUARD)
    threads.raise_failure()


# ---------------------------------------------------------------------------------------- processes
def fork_and_end(inbox, outbox):
    """As an environment whose simulator lives on, with all pipes of its process."""
    if helper := os.fork():
        outbox.send_bytes(b"%d" % helper)
        os._exit(3)
    time.sleep(GUARD)
    os._exit(0)


def crash_or_hang(inbox, outbox):
    if next(inbox) == b"crash":
        ctypes.string_at(0)
    time.sleep(GUARD)


class RegisteredEarly:
    """Becomes an exit function where it is unpickled, as if a module that a child imports before it
    calls its target had registered one."""

    def __reduce__(self):
        return atexit.register, (functools.partial(print, "an exit function", end=""),)


def end_while_a_thread_adds(inbox, outbox, _):
    numbers = torch.zeros(1000)

    def add():
        while True:
            numbers.add_(1)

    for _ in range(4):
        threading.Thread(target=add, daemon=True).start()
    if next(inbox, None) == b"raise":
        raise ValueError("of the child")


def test_the_end_of_a_process_is_noticed_though_what_it_forked_lives_on():
    process = workers.Process(fork_and_end, (), name="forks")
    helper = int(process.receive())
    try:
        assert process.receive() is None and process.has_message()
        assert psutil.Process(helper).status() != psutil.STATUS_ZOMBIE  # it was not waited for
    finally:
        os.kill(helper, signal.SIGKILL)
    assert process.end(GUARD) == 3


def test_a_crash_in_c_names_the_line_and_the_signal_and_what_hangs_is_killed(caplog):
    crashes = workers.Process(crash_or_hang, (), "crashes")
    crashes.send(b"crash")
    assert workers.in_words(crashes.end(GUARD)) == "exit code -11: Segmentation fault"
    assert "in crash_or_hang" in caplog.text and workers.in_words(1) == "exit code 1"
    hangs = workers.Process(crash_or_hang, (), "hangs")
    hangs.send(b"hang")
    assert hangs.end(0.1) == -signal.SIGKILL


def test_a_process_ends_well_while_a_daemon_thread_is_inside_torch(caplog):
    caplog.set_level("INFO")
    own = end_while_a_thread_adds, (RegisteredEarly(),)
    ends, fails = (workers.Process(*own, name=name) for name in ("ends", "fails"))
    fails.send(b"raise")
    assert fails.receive().startswith(workers.Process.FAILURE)
    assert (ends.end(GUARD), fails.end(GUARD)) == (0, 1)
    assert "Fatal Python error" not in caplog.text
    wait_for(lambda: caplog.text.count("an exit function") == 2)


# ----------------------------------------------------------------------------------------- programs
PROGRAM = """
import sys
import helper
print(helper.NAME, sys.argv[1:], sys.stdin.read())
"""


def test_a_program_and_what_it_imports_are_found_from_any_folder(tmp_path, monkeypatch):
    for name in ("programs", "helpers", "elsewhere"):
        (tmp_path / name).mkdir()
    (tmp_path / "programs/program_of_a_test.py").write_text(PROGRAM)
    (tmp_path / "helpers/helper.py").write_text("NAME = 'mine'")
    (tmp_path / "elsewhere/program_of_a_test.py").write_text("raise Exception('another one')")
    monkeypatch.syspath_prepend(tmp_path / "programs")
    monkeypatch.syspath_prepend(tmp_path / "helpers")  # as `python -m` puts the working directory
    monkeypatch.chdir(tmp_path / "elsewhere")
    with workers.start_program("program_of_a_test") as process:
        printed, _ = process.communicate(b"flags")
    assert printed == b"mine ['--flags_from_stdin'] flags\n"


# ------------------------------------------------------------------------------------------ signals
SIGNALS = [signal.SIGINT, signal.SIGTERM, signal.SIGHUP]


@pytest.fixture
def seen():
    """The signals that reached the handlers that were there before."""
    seen = []
    handlers = {s: signal.signal(s, lambda number, frame: seen.append(number)) for s in SIGNALS}
    yield seen
    for number, handler in handlers.items():
        signal.signal(number, handler)


@pytest.mark.parametrize("number", SIGNALS)
def test_a_signal_to_stop_wakes_and_the_handlers_before_come_back(wakeup, seen, number):
    with pytest.raises(ValueError), stop_signals_set(wakeup) as names:
        assert not wakeup.is_set()
        signal.raise_signal(number)
        assert woken(wakeup)
        raise ValueError
    assert seen == [] and names == [number.name]
    for each in SIGNALS:
        signal.raise_signal(each)
    assert seen == SIGNALS


def test_under_nohup_a_closed_terminal_stops_nothing(wakeup, seen):
    signal.signal(signal.SIGHUP, signal.SIG_IGN)
    with stop_signals_set(wakeup):
        signal.raise_signal(signal.SIGHUP)
        assert not wakeup.is_set()
        signal.raise_signal(signal.SIGTERM)
        assert wakeup.is_set()
    assert signal.getsignal(signal.SIGHUP) is signal.SIG_IGN


# ------------------------------------------------------------------------------------ signs of life
@pytest.fixture
def clock(monkeypatch):
    now = [100.0]
    monkeypatch.setattr(workers.time, "monotonic", lambda: now[0])
    return now


def test_a_watcher_that_was_stopped_itself_takes_nothing_for_silence(clock):
    silence_timer = workers.SilenceTimer()
    for later, silence in [(1, 1), (2, 3), (4, 7), (3600, 7), (3, 10)]:
        clock[0] += later
        silence_timer.tick()
        assert silence_timer.silence(100.0) == silence
    assert silence_timer.silence(clock[0] - 2) == 2
    assert silence_timer.silence(clock[0] - 1000) == 3  # a sign in the middle of the stop


def test_a_hang_is_found_although_the_watcher_stalls_again_and_again(clock):
    """Each checkpoint may hold it up for 6 s. A hang of 1,400 s was not found so."""
    silence_timer, hung_since = workers.SilenceTimer(), clock[0]
    for second in range(1, 1401):
        clock[0] += 6 if second % 30 == 0 else 0.5
        silence_timer.tick()
        if silence_timer.silence(hung_since) > 60:
            break
    assert clock[0] - hung_since < 90


# ------------------------------------------------------------------------------------------- memory
REUSE = """
import resource, sys, threading
from libtorchbeast import workers
if sys.argv[1] == "kept":
    workers.before_imports("__mp_main__")

def page_faults():
    before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
    blocks = [bytearray(16 << 20) for _ in range(8)]  # freed on return
    return resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before

work = lambda: page_faults() and print(page_faults())
work()  # as an actor
thread = threading.Thread(target=work)  # as a learner, on heaps of its own
thread.start()
thread.join()
"""


@pytest.mark.skipif(platform.libc_ver()[0] != "glibc", reason="needs glibc's malloc")
def test_freed_memory_is_used_again_without_the_kernel():
    def page_faults(how):
        command = [sys.executable, "-c", REUSE, how]
        return [int(n) for n in subprocess.check_output(command, cwd=ROOT).split()]

    for kept, returned in zip(page_faults("kept"), page_faults("returned"), strict=True):
        assert kept < returned / 10
