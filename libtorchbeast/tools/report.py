# Copyright 2026 The authors of this repository. Licensed under the Apache License, Version 2.0.
"""Reports the results of a study (tools.sweep): tables with intervals, and curves.

    python -m libtorchbeast.tools.report ~/logs/torchbeast/NAME

It writes report.md, report.csv, report_runs.csv and pictures into that folder. The score of a run
is the last mean_game_return of its log: the mean return of its last 100 games. Runs that are not
complete have no score. docs/studies.md says how intervals and aggregates are computed.
"""

import contextlib
import csv
import math
import re
import sys
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from libtorchbeast.checkpoint import saved_step
from libtorchbeast.flags import SAVEDIR, Parser, expanded
from libtorchbeast.loggers.csv_table import last_row
from libtorchbeast.loggers.display import duration
from libtorchbeast.tools.plot import SEED, Curve, Line, Panel, draw, plot, read_curve, readable
from libtorchbeast.tools.study import Run, commit_of, flags_of, read_plan

REFERENCES = Path(__file__).with_name("scores.csv")
SAMPLES = 10_000  # of the bootstrap
MANY = 6  # settings; if there are more, each gets a panel of its own
NOT_SWEPT = {"xpid": "", "savedir": ""}  # flags that differ between the runs of any folder

# Takes resamples of each stratum [samples, n], where n may differ; returns [samples, ...].
Statistic = Callable[[Sequence[np.ndarray]], np.ndarray]


class Result(NamedTuple):
    """A run that is complete."""

    path: Path
    game: str  # its --env
    setting: tuple[str, ...]  # for each factor of the study, the values of its flags
    hours: float
    curve: Curve  # its last value is the score


class Study(NamedTuple):
    name: str
    commands: list[str]  # of tools.sweep
    factors: list[list[str]]  # names of the swept flags except env and seed; tied ones together
    seeds: bool  # whether seeds are swept, so that the runs of a setting form groups
    results: list[Result]
    left_out: list[str]  # why, for each run that has no score


class Estimate(NamedTuple):
    """A number with its 95 % interval; low and high are None if a stratum has a single score."""

    value: float
    low: float | None
    high: float | None

    def __str__(self) -> str:
        digits = lambda x: f"{x:.0f}" if abs(x) > 999 else f"{x:#.3g}".rstrip(".")
        value, *interval = (digits(x) for x in self if x is not None)
        return f"{value} ({' to '.join(interval)})" if interval else value


# ======================================================================================= statistics
def estimate(
    strata: Sequence[Sequence[float]], statistic: Statistic, samples: int = SAMPLES
) -> Estimate:
    """The statistic of the scores in all strata, with its percentile interval from the stratified
    bootstrap: each stratum is resampled separately, with replacement."""
    arrays = [np.asarray(scores, float) for scores in strata]
    value = float(statistic([array[None] for array in arrays])[0])
    if min(map(len, arrays)) < 2:
        return Estimate(value, None, None)
    random = np.random.default_rng(0)
    resamples = [scores[random.integers(n := len(scores), size=(samples, n))] for scores in arrays]
    low, high = np.percentile(statistic(resamples), [2.5, 97.5])
    return Estimate(value, float(low), float(high))


def mean(strata: Sequence[np.ndarray]) -> np.ndarray:
    """The mean of the strata's means, so that each counts the same."""
    return np.mean([scores.mean(-1) for scores in strata], axis=0)


def interquartile_mean(strata: Sequence[np.ndarray]) -> np.ndarray:
    """The mean of all scores without their lowest and highest quarter (Agarwal et al. 2021)."""
    scores = np.sort(np.concatenate(strata, axis=-1))
    cut = scores.shape[-1] // 4
    return scores[..., cut : scores.shape[-1] - cut].mean(-1)


def improvement(strata: Sequence[np.ndarray]) -> np.ndarray:
    """The probability of improvement (Agarwal et al. 2021): that of a game drawn at random, a run
    of one setting beats one of another. The first half of the strata has the games of the one, the
    second those of the other. A draw counts as half."""
    half = len(strata) // 2
    pairs = zip(strata[:half], strata[half:], strict=True)
    signs = (np.sign(a[..., :, None] - b[..., None, :]) for a, b in pairs)
    return np.mean([0.5 + 0.5 * sign.mean((-2, -1)) for sign in signs], axis=0)


# ========================================================================================== reading
def read_study(folder: Path, y: str) -> Study:
    """Reads the plan and all runs in the folder. Raises ValueError if no run is complete, or a log
    has no column `y`."""
    plan, folder = read_plan(folder), folder.resolve()
    found = {path.parent.resolve() for path in folder.glob("*/logs.csv")}
    place = {name: i for i, name in enumerate(plan["runs"])}
    paths = sorted(found, key=lambda path: (place.get(path.name, len(place)), path.name))
    planned = {name: run["values"].items() for name, run in plan["runs"].items()}
    switches = lambda path: {k: v for k, v in planned.get(path.name, ()) if v in ("on", "off")}
    flags = {path: flags_of(path) | switches(path) for path in paths}
    real = {name for of_run in flags.values() for name in of_run}  # no misspelt flag
    planned_factors = [names for names in plan["factors"] if real.issuperset(names)]
    swept = _separated(planned_factors) or _differing([*flags.values()])
    factors = [own for names in swept if (own := _without_env_and_seed(names, [*flags.values()]))]
    left_out = [f"- {name}: has not begun" for name in plan["runs"] if folder / name not in paths]
    results: list[Result] = []
    cells: dict[Any, list[dict[str, Any]]] = {}  # the flags of the runs of a game and setting
    commits: dict[Any, set[str]] = {}  # of the same
    for path in paths:
        run = Run(path, **plan["runs"].get(path.name, {"values": {}, "command": []}))
        row, total, step = last_row(path), run.total_steps(), saved_step(path)
        if step is None:  # it was published without its checkpoint, or has --disable_checkpoint
            step = int(row.get("step", 0))
        curve = read_curve(path / "logs.csv", y)
        if total is None or step < total or not curve.y:
            known = "an unknown number" if total is None else f"{total:,}"  # meta.json is damaged
            without = "" if curve.y else f", without a {y}"
            left_out.append(f"- {escaped(path.name)}: at step {step:,} of {known}{without}")
            continue
        values = run.values | {name: str(value) for name, value in flags[path].items()}
        setting = tuple(" ".join(values.get(name, "off") for name in names) for names in factors)
        game = values.get("env", "unknown")
        cell = cells.setdefault((game, setting), [])
        if run.values and flags[path] and flags[path] | NOT_SWEPT in cell:  # spelt differently
            left_out.append(f"- {escaped(path.name)}: another run has the same flags")
            continue
        cell.append(flags[path] | NOT_SWEPT)
        commits.setdefault((game, setting), set()).add(commit_of(path))
        results.append(Result(path, game, setting, row.get("hours", 0.0), curve))
    if not results:
        is_run = " (it is itself a run: give the folder above it)" * (folder / "logs.csv").exists()
        raise ValueError(f"{folder}: no run in it is complete and has a {y}{is_run}")
    differing = {name for cell in cells.values() for [name] in _differing(cell)} - {"seed"}
    if names := sorted(differing.difference(*swept)):
        left_out.append(f"- the runs of one setting differ in what is not swept: {names}")
    if mixed := set[str]().union(*(own for own in commits.values() if len(own) > 1)):
        said = "the runs of one setting have different commits (+ means uncommitted changes)"
        left_out.append(f"- {said}: {', '.join(sorted(mixed))}")
    seeds = any("seed" in names for names in swept)
    return Study(folder.name, plan["commands"], factors, seeds, results, left_out)


def _without_env_and_seed(names: list[str], flags: list[dict[str, Any]]) -> list[str]:
    """The other flags of a factor. Those that are tied to env, with one value for each game, are
    part of the game and left out."""
    own = [name for name in names if name not in ("env", "seed")]
    seen = {(of_run.get("env"), *(str(of_run.get(name)) for name in own)) for of_run in flags}
    is_free = own == names or len(seen) > len({env for env, *_ in seen})
    return own if is_free else []


def _separated(factors: list[list[str]]) -> list[list[str]]:
    """The factors of all commands of a study. Flags that are tied in one command, and in another
    stand alone or with others, are separated."""
    count = Counter(name for names in factors for name in names)
    separated: list[list[str]] = []
    for names in factors:
        is_elsewhere = any(count[name] > 1 for name in names)
        separated += [[name] for name in names] if is_elsewhere else [names]
    return [names for i, names in enumerate(separated) if names not in separated[:i]]


def _differing(flags: list[dict[str, Any]]) -> list[list[str]]:
    """Of a folder without a plan: the flags that all runs have, but not all with the same value."""
    names = [k for k in (flags or [{}])[0] if k not in NOT_SWEPT and all(k in f for f in flags)]
    return [[name] for name in names if any(f[name] != flags[0][name] for f in flags)]


def read_references(path: Path) -> dict[str, dict[str, str]]:
    """The columns game, random, reference and source of a CSV file, by game. Raises ValueError if a
    column is missing, or a game's scores are not two different numbers."""
    with open(path, newline="") as file:
        table = csv.DictReader(file)
        if missing := {"game", "random", "reference"} - set(table.fieldnames or []):
            raise ValueError(f"{path}: expected a column {min(missing)}, seen {table.fieldnames}")
        rows = {row["game"]: row for row in table}
    for game, row in rows.items():
        with contextlib.suppress(TypeError, ValueError):
            if float(row["random"]) != float(row["reference"]):
                continue
        seen = f"random {row['random']}, reference {row['reference']}"
        raise ValueError(f"{path}: expected two different numbers for {game}, seen {seen}")
    return rows


def game_of(env: str) -> str:
    """The game's name in the file of references: Pong of PongNoFrameskip-v4 and ALE/Pong-v5."""
    return re.sub(r"^ALE/|(NoFrameskip|Deterministic)?-v\d+$", "", env)


# =========================================================================================== tables
Cell = tuple[str, tuple[str, ...]]  # a game and a setting


class Report:
    """The report of a study, in the study's folder."""

    def __init__(self, folder: Path, study: Study, references: dict[str, dict[str, str]], y: str):
        self.folder, self.study, self.y = folder, study, y
        self.cells: dict[Cell, list[Result]] = {}
        for result in study.results:
            self.cells.setdefault((result.game, result.setting), []).append(result)
        self.games = list(dict.fromkeys(game for game, _ in self.cells))
        self.settings = list(dict.fromkeys(setting for _, setting in self.cells))
        kind, _, other = y.partition("/")  # `other` is one of --eval_env, with a return of its own
        games = self.games if kind in ("mean_game_return", "mean_eval_return") else []
        known = {game: references.get(game_of(other or game)) for game in games}
        self.references = {game: row for game, row in known.items() if row}

    def write(self) -> None:
        title = f"# {escaped(self.study.name)}"
        parts = [title, self.introduction(), self.of_games(), self.curves()]
        parts += [self.of_all_games()] if self.references else []
        parts += [self.improvements()] if 1 < len(self.settings) <= MANY else []
        parts += [self.of_factor(i) for i in range(len(self.study.factors))]
        if self.study.left_out:
            parts.append("\n".join(["## Left out, and what else to know\n", *self.study.left_out]))
        (self.folder / "report.md").write_text(readable("\n\n".join(parts)) + "\n")

    def introduction(self) -> str:
        commands = "".join(f"```bash\n{command}\n```\n\n" for command in self.study.commands)
        return (
            f"{commands}{len(self.study.results)} runs. The score of a run is the last {self.y} of "
            f"its log.\nIn parentheses: 95 % intervals over seeds, from {SAMPLES:,} samples of the "
            "stratified bootstrap.\nWith few seeds they are too narrow, with one there is none."
        )

    def of_games(self) -> str:
        """A row for each game and setting, also written to report.csv; report_runs.csv has one for
        each run."""
        names = ["game", *map(" ".join, self.study.factors), "seeds", "score"]
        rows: list[list] = []
        lines: list[list] = [[*names, "low", "high", "lowest", "highest", "hours"]]
        for (game, setting), results in self.cells.items():
            scores = self.scores((game, setting))
            hours = float(np.mean([result.hours for result in results]))
            *seen, said_hours = [f"{number:.4g}" for number in (min(scores), max(scores), hours)]
            score, cells = estimate([scores], mean), [game, *setting, len(scores)]
            rows.append([*cells, score, *seen, duration(3600 * hours)])
            lines.append([*cells, *score, *seen, said_hours])
        runs: list[list] = [["run", *names[:-2], "score", "step", "hours"]]
        for path, game, setting, hours, curve in self.study.results:
            runs.append([path.name, game, *setting, curve.y[-1], int(curve.steps[-1]), hours])
        for name, written in (("report.csv", lines), ("report_runs.csv", runs)):
            with open(self.folder / name, "w", newline="", errors="replace") as file:
                csv.writer(file, lineterminator="\n").writerows(written)
        return table([*names, "lowest", "highest", "time"], rows)

    def curves(self) -> str:
        """Draws a picture for each game: the mean of each setting's runs, and their range."""
        pictures = []
        for game in self.games:
            name = "report_" + re.sub(r"[^\w.-]+", "-", game) + ".png"
            paths = [str(result.path) for result in self.study.results if result.game == game]
            grouped = SEED if self.study.seeds else None
            panels = ".+" if len(self.settings) > MANY else None
            try:
                plot(paths, str(self.folder / name), self.y, group_by=grouped, panel_by=panels)
                pictures.append(f"![{game}: mean and range of the runs]({name})")
            except ValueError as error:
                pictures.append(f"{game} has no curves: {error}")
        return "\n\n".join(pictures)

    def scores(self, cell: Cell, at: float = math.inf) -> list[float]:
        """What the curves of a cell's runs have at a step: by default at the end, their scores."""
        return [float(np.interp(at, r.curve.steps, r.curve.y)) for r in self.cells[cell]]

    def name_of(self, setting: tuple[str, ...]) -> str:
        words = [f"{','.join(f)}={v}" for f, v in zip(self.study.factors, setting, strict=True)]
        return " ".join(words) or "all runs"

    def normalized(self, cells: Iterable[Cell], at: float = math.inf) -> list[list[float]]:
        """The scores (or those at a step) of those cells that have any and whose game has a
        reference, as (score - random) / (reference - random)."""
        strata = []
        for cell in cells:
            if cell in self.cells and cell[0] in self.references:
                row = self.references[cell[0]]
                low, high = float(row["random"]), float(row["reference"])
                strata.append([(score - low) / (high - low) for score in self.scores(cell, at)])
        return strata

    def of_all_games(self) -> str:
        """The aggregates of each setting over the games that have a reference."""
        cells = {
            self.name_of(setting): [(game, setting) for game in self.references]
            for setting in self.settings
        }
        strata = {name: games for name, own in cells.items() if (games := self.normalized(own))}
        rows = [[n, len(games), estimate(games, interquartile_mean)] for n, games in strata.items()]
        columns = ["random", "reference", "source"]
        sources = [[game, *(row[k] for k in columns)] for game, row in self.references.items()]
        text = "The interquartile mean of (score - random) / (reference - random):"
        means = table(["setting", "games", "interquartile mean"], rows)
        parts = ["## Over games", text, means, self.draw_means(cells)]
        return "\n\n".join([*parts, table(["game", *columns], sources)])

    def draw_means(self, cells: dict[str, list[Cell]]) -> str:
        """Draws each setting's interquartile mean, with its 95 % band, over the steps that all of
        its runs have. Returns the line of the report that shows the picture."""
        lines = []
        for label, own in cells.items():
            curves = [result.curve for cell in own for result in self.cells.get(cell, [])]
            start = max((curve.steps[0] for curve in curves), default=0.0)
            stop = min((curve.steps[-1] for curve in curves), default=0.0)
            if start < stop:
                x = np.linspace(start, stop, 26).tolist()
                strata = [self.normalized(own, at) for at in x]
                y = [estimate(scores, interquartile_mean, samples=1000) for scores in strata]
                values, low, high = np.array(y, float).T.tolist()
                lines.append(Line(label, Curve(self.folder, self.y, values, x, x, []), low, high))
        if not lines:
            return "It has no curve: no setting's runs have two steps in common."
        figure = draw([Panel("", "steps", lines)], "interquartile mean, normalized")
        figure.savefig(self.folder / "report_steps.png", dpi=120)
        return "![The interquartile mean over steps, with 95 % bands](report_steps.png)"

    def improvements(self) -> str:
        """How probable it is that a setting is better than another, in the games of both."""
        rows = []
        for one in self.settings:
            rows.append([self.name_of(one)])
            for other in self.settings:
                pair = [g for g in self.games if {(g, one), (g, other)} <= self.cells.keys()]
                strata = [self.scores((game, who)) for who in (one, other) for game in pair]
                is_other = one != other and pair
                rows[-1].append(str(estimate(strata, improvement)) if is_other else "")
        text = "That a run of the row's setting has a higher score in a game than the column's:"
        header = table(["", *(row[0] for row in rows)], rows)
        return f"## Probability of improvement\n\n{text}\n\n{header}"

    def of_factor(self, index: int) -> str:
        """The effect of one factor: means over those games and settings of the other factors that
        were run with each of its values. So two rows differ in nothing but this factor."""
        others: dict[Cell, dict[str, Cell]] = {}
        for game, setting in self.cells:
            rest = (*setting[:index], *setting[index + 1 :])
            others.setdefault((game, rest), {})[setting[index]] = game, setting
        values = list(dict.fromkeys(setting[index] for setting in self.settings))
        matched = [cells for cells in others.values() if len(cells) == len(values)]
        name = " ".join(f"--{flag}" for flag in self.study.factors[index])
        if not matched:
            return f"## Effect of {name}\n\nNo other setting was run with each of its values."
        games = list(dict.fromkeys(game for cells in matched for game, _ in cells.values()))
        rows: list[list] = []
        for value in values:
            cells = [by_value[value] for by_value in matched]
            strata = {g: [self.scores(cell) for cell in cells if cell[0] == g] for g in games}
            rows.append([value, sum(len(self.cells[cell]) for cell in cells)])
            rows[-1] += [estimate(strata[game], mean) for game in games]
            if normalized := self.normalized(cells):
                rows[-1].append(estimate(normalized, interquartile_mean))
        header = [name, "runs", *games, "interquartile mean"][: len(rows[0])]
        return f"## Effect of {name}\n\n{table(header, rows)}"


def table(header: Sequence, rows: Iterable[Sequence]) -> str:
    lines = [[*map(escaped, line)] for line in (header, *rows)]
    lines.insert(1, ["---"] * len(header))
    return "\n".join("| " + " | ".join(line) + " |" for line in lines)


def escaped(value: Any) -> str:
    """The text in Markdown, which reads none of its characters as its own."""
    return re.sub(r"([\\`*|<\[$~]|\b_|_\b)", r"\\\1", str(value))


def main(argv: Sequence[str] | None = None) -> None:
    """The command. A mistake of the user ends it with one line on stderr and exit code 1."""
    try:
        flags = make_parser().parse_args(argv)
        folder = given = Path(expanded(flags.folder))
        if not folder.is_dir():  # the name of a study, as for the sweep
            folder = Path(expanded(SAVEDIR)) / folder
        if not folder.is_dir():
            raise ValueError(f"there is no folder {given.resolve()}")
        references = read_references(Path(flags.reference))
        Report(folder, read_study(folder, flags.y), references, flags.y).write()
    except (OSError, ValueError) as error:
        sys.exit(f"report: {error}")
    print(readable(str(folder / "report.md")))


def make_parser() -> Parser:
    parser = Parser("python -m libtorchbeast.tools.report", __doc__)
    add = parser.add_argument
    add("folder", metavar="FOLDER", help="The folder of a study or of any runs, or a study's name.")
    scores = "Scores of games: a CSV file with the columns game, random, reference and source."
    add("--reference", default=str(REFERENCES), metavar="FILE", help=scores)
    add("--y", default="mean_game_return", help="The score's column.")
    return parser


if __name__ == "__main__":
    main()
