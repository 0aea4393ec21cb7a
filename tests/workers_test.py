# Copyright 2026 The authors of this repository. Licensed under the Apache License, Version 2.0.
"""Signs of life of threads and processes."""

from libtorchbeast import workers


def test_a_watcher_that_was_stopped_itself_takes_nothing_for_silence(monkeypatch):
    now = 100.0
    monkeypatch.setattr(workers.time, "monotonic", lambda: now)
    silence_timer = workers.SilenceTimer()
    for later, silence in [(1, 1), (2, 3), (4, 7), (60, 0), (3, 3)]:
        now += later
        silence_timer.tick()
        assert silence_timer.silence(100.0) == silence
    assert silence_timer.silence(now - 2) == 2
