# Copyright 2026 The authors of this repository. Licensed under the Apache License, Version 2.0.
"""Which actors count as hung, what the log says of them, and when their failures end the run."""

import multiprocessing
from threading import Thread

import pytest
import torch

from libtorchbeast import actors as actors_module
from libtorchbeast.actors import ActorMemory, Actors
from libtorchbeast.flags import UserError
from libtorchbeast.workers import PipeEvent, Process
from tests.support.monobeast import parse

N = 4
TRACEBACK = b"!Traceback (most recent call last):\n  in step\nRuntimeError: the sofa"
REFUSAL = b"!Traceback (most recent call last):\n  in step\nUserError: Your network is wrong"
ROLLOUT = b"0"
KILLED = "Actor 0 failed; its unfinished rollout is dropped. It was killed, because"


class FakeProcess:
    """A process that the test lets send messages. Killed, it ends without a message."""

    exitcode = None
    has_message, receive = Process.has_message, Process.receive
    send = lambda self, message: None
    ask_to_end = lambda self: None
    end = lambda self, deadline: -9

    def __init__(self):
        self.from_child, self._to_parent = multiprocessing.Pipe(duplex=False)
        self.sentinel, self._ended = multiprocessing.Pipe(duplex=False)
        self.says = self._to_parent.send_bytes

    def kill(self):
        self.exitcode = -9
        self._to_parent.close()
        self._ended.close()


class Crew:
    """The actors of a run, without processes, and their clock."""

    def __init__(self, monkeypatch, num_actors, *flags):
        words = ["--num_actors", num_actors, "--envs_per_actor", N, "--num_buffers", N * num_actors]
        self.flags = parse(*words, "--open_timeout", 20, "--step_timeout", 10, *flags)
        self.now = 1000.0
        monkeypatch.setattr(actors_module.time, "monotonic", self.clock)
        memory = ActorMemory(num_actors)
        memory.shapes = {"reward": ((2, N), torch.float32)}
        memory.reserve(self.flags, {}, 0)
        self.times, self.wakeup = memory.times, PipeEvent()
        self.actors = Actors(lambda actor, life: FakeProcess(), self.flags, memory)

    def __getitem__(self, actor):
        return self.actors._processes[actor]

    def clock(self):
        self.now += 1e-6  # else waits of pipes would not end
        return self.now

    def look(self, seconds=0):
        """Lets the time pass, and the main loop look once in each second."""
        for second in range(seconds + 1):
            self.now += bool(second)
            self.actors.wait(self.wakeup, 0.0)

    def gets(self, actor, message):
        self[actor].says(message)
        self.look()

    def acts(self, seconds):
        """Lets actor 0 choose actions for so long, without a rollout."""
        for _ in range(seconds):
            self.times["sign_of_life"][0] = self.times["call_began"][0] = self.now
            self.look(1)


def test_an_actor_whose_pipes_stay_open_in_another_process_is_replaced(monkeypatch):
    crew = Crew(monkeypatch, 2)
    dead = crew[1]
    dead.exitcode = -9  # what its environment has forked lives on
    crew.look()
    assert crew[1] is not dead and crew.actors.restarts == 1


def test_an_opening_is_limited_from_one_environment_to_the_next(monkeypatch, caplog):
    """So a slow simulator takes as long as it needs. The log says what is being waited for. An
    actor that opens gives no sign of life, because it may hold Python's lock."""
    crew = Crew(monkeypatch, 2)
    first, second = (crew.times.begin_opening(actor) for actor in (0, 1))
    second(1)
    for count in range(1, N):
        crew.look(19)
        first(count), second(count + 1)
    assert crew.actors.restarts == 0
    assert [text.partition(". ")[0] for text in caplog.messages] == [
        f"After {seconds} s actor 0 waits for its environment {number} of 4"
        for seconds, number in ((5, 1), (10, 1), (20, 2), (40, 3))
    ]
    assert "(--envs_per_actor)" in caplog.text


def test_a_killed_actor_is_reported_once_and_as_that(monkeypatch, caplog):
    crew = Crew(monkeypatch, 1)
    crew.look(29)  # it stops in its imports
    assert not caplog.messages
    caplog.set_level("ERROR", "libtorchbeast")
    crew.look(3)
    crew.times.begin_opening(0)
    crew.look(22)
    crew.times.begin_opening(0)(N)
    crew.times["call_began"][0] = 0  # it chooses actions
    crew.look(12)
    assert caplog.messages == [
        f"{KILLED} it has opened no environment 30 s after its start (--open_timeout)",
        f"{KILLED} environment 1 of 4 took longer than --open_timeout 20 to open",
        f"{KILLED} it gave no sign of life for 10 s (--step_timeout)",
    ]


def test_a_first_rollout_that_takes_long_is_told(monkeypatch, caplog):
    crew = Crew(monkeypatch, 1)
    crew.times.begin_opening(0)(N)
    crew.acts(8)
    assert caplog.messages[0].startswith("After 5 s no rollout, 20 steps of 4 environments, is")
    crew[0].says(ROLLOUT)
    caplog.clear()
    crew.acts(20)
    assert caplog.messages == []


@pytest.mark.parametrize("num_actors, failures", [(1, 2), (3, 3), (20, 11)])
@pytest.mark.parametrize(
    "traceback, said",
    [(TRACEBACK, "RuntimeError: the sofa"), (REFUSAL, "Your network is wrong")],
    ids=["any error", "a user's mistake"],
)
def test_failures_that_are_all_alike_end_the_run_at_once(
    monkeypatch, caplog, num_actors, failures, traceback, said
):
    """One traceback is enough. A single actor is tried twice, and of many a few are."""
    crew = Crew(monkeypatch, num_actors)
    with pytest.raises(UserError, match=f"and all failures are alike: {said}$"):
        for i in range(failures):
            assert crew.actors.restarts == i
            crew.gets(i % num_actors, traceback)
    assert caplog.text.count("Traceback") == 1 and len(caplog.messages) == failures


@pytest.mark.parametrize("why", ["another cause", "a rollout"])
def test_other_failures_end_it_only_when_they_are_too_many(monkeypatch, caplog, why):
    """It ends in one line. The traceback of each cause stands once in the log before."""
    crew = Crew(monkeypatch, 2, "--max_actor_restarts", 4)
    if why == "a rollout":
        crew[0].says(ROLLOUT)
    crew.gets(0, TRACEBACK)
    crew.gets(0, TRACEBACK)
    crew.gets(1, TRACEBACK + b" and the table" * (why == "another cause"))
    assert crew.actors.restarts == 3
    crew.gets(1, TRACEBACK)
    with pytest.raises(UserError, match="5 actors failed .* actor 1: RuntimeError: the sofa$"):
        crew.gets(1, TRACEBACK)
    assert caplog.text.count("Traceback") == 1 + (why == "another cause")


def test_failures_of_more_than_ten_minutes_ago_do_not_count(monkeypatch):
    crew = Crew(monkeypatch, 2, "--max_actor_restarts", 2)
    crew[0].says(ROLLOUT)
    for _ in range(6):
        crew.gets(1, TRACEBACK)
        crew.now += 301
    assert crew.actors.restarts == 6


def test_closing_ends_the_iterators_of_all_learner_threads(monkeypatch):
    crew = Crew(monkeypatch, 1)
    threads = [Thread(target=list, args=[crew.actors.rollouts()], daemon=True) for _ in range(3)]
    for thread in threads:
        thread.start()
    crew.actors.close()
    for thread in threads:
        thread.join(10)
    assert not any(thread.is_alive() for thread in threads)


@pytest.mark.parametrize("num_actors", [1, 2])
def test_a_kill_after_failures_is_not_alike(monkeypatch, num_actors):
    crew = Crew(monkeypatch, num_actors)
    crew.gets(0, TRACEBACK)
    crew[num_actors - 1].kill()
    crew.look()
    assert crew.actors.restarts == 2
