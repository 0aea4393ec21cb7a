# Copyright 2026 The authors of this repository. Licensed under the Apache License, Version 2.0.
"""A run in a terminal: its curve, drawn and shown, and what happens when the terminal is closed."""

import logging
import os
import re
import signal
import sys
from unittest import mock

import numpy as np

from libtorchbeast.loggers import display
from libtorchbeast.loggers.display import HEIGHT, POINTS, WIDTH, Curve, Display, console, one_line
from libtorchbeast.loggers.files import copy_of_log
from libtorchbeast.workers import Patient
from tests.support.processes import load, rows
from tests.support.terminal import InTerminal, command_of


def with_games(rows):
    return [row["step"] for row in rows if "mean_game_return" in row]


def test_the_display_shows_the_curve_of_the_whole_run_also_after_a_resume(savedir):
    logs = savedir / "run/logs.csv"
    header, first, *later = logs.read_text().splitlines()
    cells = first.split(",")
    cells[header.split(",").index("mean_game_return")] = ""  # as before the first games' end
    logs.write_text("\n".join([header, ",".join(cells), *later, ""]))
    before = with_games(rows(savedir / "run"))
    with InTerminal(savedir, command_of(savedir, "monobeast")) as program:
        program.wait_while_reading(lambda: with_games(program.rows())[-1] > before[-1])
        os.kill(program.pid, signal.SIGINT)
        program.wait_while_reading(program.has_ended)
        text = program.printed()
    after = with_games(rows(savedir / "run"))
    assert re.search("[\u2801-\u28ff]", text)  # of Braille; U+2800 is blank
    first, last = re.findall(r"([\d,]+) +game return over steps +([\d,]+)", text)[-1]
    assert (first, last) == (f"{before[0]:,.0f}", f"{after[-1]:,.0f}")


def test_a_closed_terminal_saves_and_ends_the_run(tmp_path):
    """As an SSH connection that breaks closes it. workers_test.py has what nohup changes."""
    with InTerminal(tmp_path, command_of(tmp_path, "polybeast")) as program:
        program.wait_for_step(0)
        program.close_terminal()
        assert program.wait_for_end() == 0, (tmp_path / "run/out.log").read_text()
    assert load(tmp_path / "run")["step"] == rows(tmp_path / "run")[-1]["step"] > 0
    assert not list(tmp_path.glob("torchbeast*"))


def test_the_table_has_what_the_program_logs_and_keeps_the_last_evaluation():
    assert "entropy -" in one_line({"step": 1000})
    evaluated = {"step": 10, "td_error": 0.5, "eval_step": 8, "mean_eval_return": 0.75}
    parts = {"log.last_row": {}, "state.hours": 1.0}
    run = mock.Mock(path="r[/b]", flags=mock.MagicMock(), **parts)
    run.spec.name, run.flags.total_steps, run.learner.step, run.stats.games = "G[b]", 100, 20, 3
    display = Display(run)
    for newest in (evaluated, {"step": 20, "td_error": 0.25}):
        run.log.last_row = row = newest
        with console.capture() as shown:
            console.print(display._render(), width=120)
        text = " ".join(shown.get().split())
        for seen in (text, one_line(row)):  # instead of an entropy
            assert f"TD error {row['td_error']:.4f}" in seen and "entropy" not in seen
        assert "evaluation 0.75 at step 8" in text and "baseline loss" not in text
        assert "G[b]" in text and "r[/b]" in text  # no markup


def curve_of(points):
    curve = Curve()
    for step, value in points:
        curve.add(step, value)
    return curve


def test_a_curve_has_its_range_at_its_sides_and_is_drawn_where_its_values_are():
    assert curve_of([(0, 1.0)]).lines("") == []
    lines = curve_of([(1000, -21.0), (2000, 0.0), (11000, 18.5)]).lines("return")
    assert len(lines) == HEIGHT + 1 and {len(line) for line in lines} == {WIDTH + 7}
    assert [line[:7] for line in lines] == [" 18.50 ", *2 * [" " * 7], "-21.00 ", " " * 7]
    assert lines[-1].split() == ["1,000", "return", "11,000"]
    drawn = [line[7:] for line in lines[:-1]]
    assert drawn[0][-1] == "\u2809" and drawn[-1][0] == "\u28e0"  # both ends
    lines = curve_of([(0, 0.0), (1, 3.0), (2, 3.0)]).lines("")
    drawn = [line[5:] for line in lines[:-1]]
    ink = np.array([[character != "\u2800" for character in line] for line in drawn])
    assert ink.any(axis=0).all()
    half = WIDTH // 2
    assert ink[0, half:].all() and not ink[1:, half + 1 :].any()
    assert [ink[i, : half - 1].argmax() for i in range(HEIGHT)] == [18, 12, 6, 0]
    assert curve_of([(0, 2.0), (1, 2.0)]).lines("")[0] == "2.00 " + "\u2809" * WIDTH


def test_a_curve_of_a_week_stays_small_and_spans_it_all():
    values = 20 * np.sin(np.arange(60_480) / 8000)
    curve = curve_of((1000 * i, value) for i, value in enumerate(values.tolist()))
    curve.add(5000, 1e9)  # a row that was there already
    steps, kept = zip(*curve._points, strict=True)
    assert len(steps) <= 2 * POINTS and (steps[0], steps[-1]) == (0, 60_479_000)
    assert max(np.diff(steps)) < 60_479_000 / WIDTH * 1.5
    np.testing.assert_array_equal(kept, values[np.array(steps) // 1000])
    assert curve.lines("")[0].split()[0] == "20.00"


def test_a_program_whose_stderr_is_closed_logs_to_nobody(monkeypatch):
    monkeypatch.setattr(sys, "stderr", None)  # as Python has it after 2>&-
    for name, value in (("handlers", []), ("level", logging.WARNING)):
        monkeypatch.setattr(logging.root, name, value)
    display.set_up_logging()
    logging.warning("Nobody reads this.")
    sys.stderr.flush()


def test_a_stopped_reader_holds_nothing_up():
    reader, writer = os.pipe()
    with open(reader, "rb") as reads, open(writer, "w") as pipe:
        patient = Patient(pipe)
        for _ in range(100):  # it waits for a second, once
            patient.write("x" * 5000)
        assert set(reads.read1(2**20)) == set(b"x")
        assert patient.write("y" * 5000) == 5000 and not patient.isatty()
        assert reads.read1(2**20) == b"y" * 5000


def test_out_log_has_what_was_logged_before_it_was_opened(tmp_path, monkeypatch):
    for name, value in (("handlers", []), ("level", logging.WARNING)):
        monkeypatch.setattr(logging.root, name, value)
    display.set_up_logging()
    logging.info("At the start.")
    with copy_of_log(tmp_path / "out.log"):
        logging.info("Later.")
    with copy_of_log(tmp_path / "of another run"):
        logging.info("Much later.")
    ends = lambda name: [x.split(": ")[-1] for x in (tmp_path / name).read_text().splitlines()]
    assert ends("out.log") == ["At the start.", "Later."]
    assert ends("of another run") == ["Much later."]
