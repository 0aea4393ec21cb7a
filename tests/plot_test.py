# Copyright 2026 The authors of this repository. Licensed under the Apache License, Version 2.0.
"""What is drawn: the right points of the right runs, and a clear word where there is nothing."""

import math
import os
from functools import partial
from pathlib import Path
from unittest import mock

import pytest
from matplotlib.figure import Figure

from libtorchbeast.tools.plot import SEED, find_logs, group_name, main, plot, read_curve

HEADER = "hours,step,frame,mean_game_return"


@pytest.fixture
def figures(monkeypatch):
    saved = []
    monkeypatch.setattr(Figure, "savefig", lambda figure, *args, **more: saved.append(figure))
    return saved


def make_csv(path, lines):
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text("\n".join(lines) + "\n")
    return path


def make_rows(path, points):
    """A run with rows of (step, return). Returns its CSV file."""
    lines = [HEADER, *(f"{i},{s},{4 * s},{y}" for i, (s, y) in enumerate(points))]
    return make_csv(path / "logs.csv", lines)


def make_run(savedir, xpid, returns):
    """A run with a row for each return, "" for none. Returns its folder."""
    return str(make_rows(Path(savedir, xpid), enumerate(returns)).parent)


def test_a_path_may_have_another_column_than_the_rest(tmp_path, figures):
    table = ["step,frame,hours,mean_game_return,mean_eval_return/a:B-v0", "1,4,0.5,7,8"]
    runs = [str(make_csv(tmp_path / name / "logs.csv", table)) for name in "ab"]
    plot([runs[0], f"{runs[1]}:mean_eval_return/a:B-v0"], "plot.png")
    assert [[*line.get_ydata()] for line in figures[0].axes[0].get_lines()] == [[7], [8]]
    assert figures[0].get_supylabel() == "mean game return, mean eval return/a:B-v0"
    time = figures[0].axes[-1]
    assert [*time.get_lines()[0].get_xdata()] == [30] and time.get_xlabel() == "minutes of training"
    long = make_csv(tmp_path / "long/logs.csv", [HEADER, "1,1,4,7"])
    plot([str(long), runs[0]], "plot.png", x="hours")
    axes = figures[1].axes[0]
    assert [*axes.get_lines()[1].get_xdata()] == [0.5] and axes.get_xlabel() == "hours of training"
    with pytest.raises(ValueError, match="expected one column, seen step and mean_game_return"):
        plot([f"{runs[0]}:step", runs[0]], "plot.png")


def test_paths_of_every_kind(tmp_path):
    first, second = make_run(tmp_path, "a", [1.0]), make_run(tmp_path, "b", [2.0])
    (tmp_path / "latest").symlink_to("b")
    logs = [Path(first) / "logs.csv", Path(second) / "logs.csv"]
    assert find_logs(first) == find_logs(first + "/logs.csv") == logs[:1]
    assert find_logs(str(tmp_path)) == logs  # `latest` is not a third run
    assert find_logs(str(tmp_path / "latest")) == logs[1:]
    lines = plot([str(tmp_path), first, str(tmp_path / "latest")], str(tmp_path / "plot.png"))
    assert [line.name for line in lines] == ["a", "b"]
    alike = [first, make_run(tmp_path / "other", "a", [1.0])]
    lines = plot(alike, str(tmp_path / "plot.png"))
    assert [line.name for line in lines] == [f"{path}/logs.csv" for path in alike]


def test_empty_cells_and_a_cut_line_are_skipped(tmp_path):
    lines = [HEADER, "0,1,4,", "0.5,2,8,5.5", "0.75,,12,6", ",4,16,7"]
    path = make_csv(tmp_path / "logs.csv", lines)
    path.write_text(path.read_text() + "2,5,20,1")
    curve = read_curve(path, "mean_game_return")
    assert (curve.y, curve.steps, curve.frames) == ([5.5, 7.0], [2.0, 4.0], [8.0, 16.0])
    assert curve.hours == pytest.approx([0.5, math.nan], nan_ok=True)
    path.write_text("")
    assert read_curve(path, "mean_game_return").y == []


def test_an_evaluation_is_drawn_at_the_step_of_its_weights(tmp_path):
    for column in ("mean_eval_return", "eval_game_win"):
        lines = [f"step,frame,hours,eval_step,{column}", "10,40,0.1,,", "20,80,0.2,15,7"]
        curve = read_curve(make_csv(tmp_path / "logs.csv", lines), column)
        assert curve[2:] == ([7.0], [15.0], [60.0], [0.2])


def test_a_run_without_a_game_is_named_and_left_out(tmp_path, figures, caplog):
    make_run(tmp_path, "young", ["", ""])
    make_run(tmp_path, "old", [1.0])
    [line] = plot([f"{tmp_path}/young:mean_game_return", f"{tmp_path}/old"], "plot.png", "step")
    assert line.name == "old" and figures[0].get_supylabel() == "step"
    assert "young/logs.csv has no mean_game_return yet" in caplog.text
    make_csv(tmp_path / "winner" / "logs.csv", ["step,frame,hours,game_win", "1,4,0.5,1"])
    [line] = plot([str(tmp_path)], "plot.png", "game_win")
    assert line.name == "winner" and "old/logs.csv has no game_win yet" in caplog.text


# ========================================================================================== groups
def test_a_group_is_the_mean_and_the_range_of_its_runs_where_all_have_rows(tmp_path, figures):
    rows = [(0, 0), (10, 10), (30, 30)], [(5, 15), (15, 25), (40, 50)], [(0, 8), (40, 8)]
    for i, points in enumerate(rows):
        make_rows(tmp_path / f"pong-{i}", points)
    (line,) = plot([str(tmp_path)], "plot.png", group_by=SEED)
    assert line.name == "pong (3 runs)"
    assert line.mean.steps == [5, 10, 15, 30]
    assert line.mean.frames == [20, 40, 60, 120]
    assert line.low == [5, 8, 8, 8] and line.high == [15, 20, 25, 40]
    assert line.mean.y == pytest.approx([28 / 3, 38 / 3, 16, 26])


@pytest.mark.parametrize(
    "run, pattern, name",
    [
        ("runs/pong-seed12", SEED, "pong"),
        ("runs/pong-lstm_s3", SEED, "pong-lstm"),
        ("pong/0", SEED, "pong"),
        ("runs/breakout-v5", SEED, "breakout-v5"),
        ("runs/pong_learning_rate=1e-3", SEED, "pong_learning_rate=1e-3"),
        ("runs/pong_level=-3", SEED, "pong_level=-3"),
        ("runs/a-lstm-1", "lstm|mlp", "lstm"),
        ("runs/a-lstm-1", r"([a-z]+)-\d", "lstm"),
        ("poly/pong-1", "^[^/]*", "poly"),
    ],
)
def test_the_group_of_a_run(run, pattern, name):
    assert group_name(Path("/logs", run, "logs.csv"), pattern) == name
    assert group_name(Path("/logs", run + ".csv"), pattern) == name


def test_groups_of_a_study_that_was_made_twice_are_two(tmp_path):
    paths = [
        make_run(tmp_path / study, f"pong_seed{i}", [y])
        for study, y in (("a", 1), ("b", 9))
        for i in "12"
    ]
    paths.append(make_run(tmp_path / "b", "ice_seed3", [5]))
    lines = plot(paths, tmp_path / "plot.png", group_by=SEED)
    names = [line.name.split(" ")[0] for line in lines]
    assert names == [f"{tmp_path}/a/pong", f"{tmp_path}/b/pong", "ice"]
    assert [line.mean.y for line in lines] == [[1.0], [9.0], [5.0]]


@pytest.mark.parametrize(
    "flags, names, lines_of_panels",
    [
        ("", "a-1, a-2, b-1", [3, 3, 3]),  # over steps, frames and hours
        ("--panel_by .+", "a-1, a-2, b-1", [1, 1, 1]),  # a panel for each
        ("--groups --panel_by .+", "a (2 runs), b (1 run)", [1, 1]),
        ("--group_by a|b", "a (2 runs), b (1 run)", [2, 2, 2]),
    ],
)
def test_groups_from_the_command_line(tmp_path, figures, capsys, flags, names, lines_of_panels):
    for name in ("a-1", "a-2", "b-1"):
        make_run(tmp_path / "runs", name, [1.0, 2.0])
    main([str(tmp_path / "runs"), "--out", "plot.png", *flags.split()])
    assert capsys.readouterr().out == f"plot.png: mean_game_return of {names}\n"
    assert [len(axes.get_lines()) for axes in figures[0].axes] == lines_of_panels


def test_six_panels_are_two_full_rows(tmp_path, figures):
    for name in "abcdef":
        make_run(tmp_path, name, [1.0])
    plot([str(tmp_path)], "plot.png", panel_by=".+")
    assert figures[0].axes[0].get_subplotspec().get_gridspec().get_geometry() == (2, 3)


def legend(figure):
    return [text.get_text() for text in figure.legends[0].get_texts()]


def test_a_panel_for_each_game_has_a_line_for_each_setting(tmp_path, figures):
    names = ["Pong_lr=1-1", "Pong_lr=1-2", "Pong_lr=2-1", "Qbert_lr=2-1"]
    for value, name in enumerate(names):
        make_run(tmp_path, name, [value, value])
    drawn = partial(plot, [str(tmp_path)], "plot.png", group_by=SEED, x="frames")
    drawn(panel_by=r"(\w+?)_")
    panels = [axes for axes in figures[0].axes if axes.get_visible()]
    assert [axes.get_title() for axes in panels] == ["Pong", "Qbert"]
    assert legend(figures[0]) == ["lr=1 (2 runs)", "lr=2 (1 run)"]
    assert [[*line.get_ydata()] for line in panels[0].get_lines()] == [[0.5, 0.5], [2, 2]]
    colors = [[line.get_color() for line in axes.get_lines()] for axes in panels]
    assert colors[0][1] == colors[1][0] != colors[0][0]
    assert panels[0].get_xlabel() == "emulator frames"
    drawn(panel_by=r"(\w+?)_", labels=["a", "b"])
    assert legend(figures[1]) == ["a", "b"]
    with pytest.raises(ValueError, match="--labels: expected 2, one for each of .* seen .'a'"):
        drawn(panel_by=r"(\w+?)_", labels=["a"])
    with pytest.raises(ValueError, match="--panel_by 'Pong' matches nothing in the name 'Qbert"):
        drawn(panel_by="Pong")


@pytest.mark.parametrize("length", [5, 16, 40])
def test_the_names_of_the_lines_are_within_the_picture(tmp_path, figures, length):
    for seed in range(5):
        make_run(tmp_path, f"run-{seed}", [0, 1])
    labels = [f"{seed:0{length}}" for seed in range(5)]
    plot([str(tmp_path)], "plot.png", x="steps", labels=labels)
    figures[0].canvas.draw()
    box = figures[0].legends[0].get_window_extent()
    assert 0 <= box.x0 and box.x1 <= figures[0].bbox.x1


def test_names_are_text_also_those_that_are_markup_or_no_utf_8(tmp_path, capsys):
    names = ["a[$x_1$", "_b$^{$", os.fsdecode(b"\xff")]
    runs = [make_run(tmp_path, name, [1.0, 2.0]) for name in names]
    drawn = []
    with mock.patch.object(Figure, "legend", lambda *args, **more: drawn.extend(args[2])):
        main([*runs, "--out", str(tmp_path / "plot.png")])
    assert drawn == ["a[$x_1$", "_b$^{$", "?"]
    main([*runs, "--out", str(tmp_path / "plot.png"), "--panel_by", ".+", "--groups"])
    assert capsys.readouterr().out.endswith("of a[$x_1$ (1 run), _b$^{$ (1 run), ? (1 run)\n")


def test_the_band_may_be_the_interval_of_the_mean(tmp_path, figures):
    runs = [make_run(tmp_path, f"a-{i}", [float(i)]) for i in range(4)]
    (line,) = plot(runs, "plot.png", group_by=SEED, interval=True)
    # Of 4^4 resamples of 0, 1, 2, 3 the sum of 2 % is below 2, and that of 6 % below 3.
    assert (line.low, line.mean.y, line.high) == ([0.5], [1.5], [2.5])


def test_a_run_that_cuts_its_group_short_is_named(tmp_path, figures, caplog):
    paths = [make_rows(tmp_path / f"a-{i}", [(0, 1), (10 * i, 1)]) for i in (1, 2)]
    (line,) = plot([*map(str, paths)], "plot.png", group_by=SEED)
    assert line.mean.steps == [0, 10]
    said = f"a is drawn to step 10, where {paths[0]} ends; another of its runs has 20"
    assert said in caplog.text


def test_the_suffix_says_the_format(tmp_path):
    run = make_run(tmp_path / "runs", "a", [1.0, 2.0])
    for name, begins in (("x.pdf", b"%PDF"), ("x.svg", b"<?xml"), ("x", b"\x89PNG")):
        plot([run], str(tmp_path / name))
        assert (tmp_path / name).read_bytes().startswith(begins)


# ========================================================================================== errors
def check_error(argv, capsys, *words):
    with pytest.raises(SystemExit) as error:
        main([*argv, "--out", "/nonexistent/plot.png"])
    message = str(error.value)
    assert message.startswith("plot: ") and "\n" not in message
    for word in words:
        assert word in message
    assert capsys.readouterr().out == ""


def test_errors_are_one_line_and_say_what_is_there(tmp_path, capsys):
    run = make_run(tmp_path / "runs", "a", [1.0])
    young = make_run(tmp_path / "young", "b", [""])
    bad = make_csv(tmp_path / "bad.csv", [HEADER, "0,1,2,high"])
    empty = tmp_path / "empty"
    empty.mkdir()
    check_error([str(tmp_path / "no")], capsys, "no does not exist")
    check_error([str(empty)], capsys, "no logs.csv in or below", "nothing")
    (empty / "other.txt").touch()
    check_error([str(empty)], capsys, "['other.txt']")
    check_error([str(empty), str(empty / "other.txt")], capsys, "no run and no CSV file among")
    check_error([run, "--y", "loss"], capsys, "no run has a loss; ", "'mean_game_return'")
    said = "no run has a mean_gamereturn (did you mean mean_game_return?)"
    check_error([run, "--y", "mean_gamereturn"], capsys, said)
    check_error([young], capsys, "no run has a mean_game_return yet; ")
    check_error([str(bad)], capsys, "bad.csv", "'high'")
    check_error([run], capsys, "/nonexistent/plot.png")
    with pytest.raises(SystemExit, match="plot: Format 'doc' is not supported .supported formats"):
        main([run, "--out", str(tmp_path / "plot.doc")])
    with mock.patch("os.path.expanduser", lambda path: path):
        check_error(["~/runs"], capsys, "~/runs: expected a folder: this user has no home folder")
    main([str(empty), run, "--out", str(tmp_path / "some.png")])  # as SAVEDIR/*
    assert (tmp_path / "some.png").exists()


def test_errors_about_groups_say_what_was_seen(tmp_path, capsys):
    far = [make_rows(tmp_path / f"far-{i}", [(10 * i, 1), (10 * i + 5, 2)]) for i in range(2)]
    back = str(make_rows(tmp_path / "back", [(1, 1), (9, 1), (5, 1)]))
    seen = f"the runs of group 'far' have no steps in common: {far[0]} 0-5, {far[1]} 10-15"
    check_error([*map(str, far), "--groups"], capsys, seen)
    check_error([back, "--groups"], capsys, f"{back}: its steps go back")
    check_error([back, "--group_by", "((("], capsys, "'(((' is no regular expression")
    check_error([back, "--group_by", "lstm"], capsys, "'lstm' matches nothing in the run", "/back'")
