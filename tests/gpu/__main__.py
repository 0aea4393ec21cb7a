# Copyright 2026 The authors of this repository. Licensed under the Apache License, Version 2.0.
"""Verifies and measures the accelerator's path, in at most twelve minutes and without a network.

    python -m tests.gpu                              # everything, on the machine's accelerator
    python -m tests.gpu --only "parity|races"
    python -m tests.gpu --device cpu --quick         # every line of it once, without an accelerator

Each stage runs in a process of its own with a limit of its own. One that fails, hangs or lacks a
package is reported, and the next one runs. The report, gpu.md and gpu.json in --out, is written
anew after each answer. Of a stage that was not good, all that it printed is in STAGE.log there. The
exit code is 0 if every stage was run and every promise was held.
"""

import argparse
import json
import re
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

from libtorchbeast.flags import real
from tests.faults.harness import Figure, line, promised
from tests.gpu import stages
from tests.gpu.stages import ROOT, STAGES, Stage

ASK_S = 60.0  # the same limit as the first stage's
LEAST_S = 5.0  # with less than this left, a stage is not begun

Row = dict[str, Any]  # stage, seconds, answers, and error if it failed


def make_parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        "tests.gpu", description=__doc__, allow_abbrev=False,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )  # fmt: skip
    add = parser.add_argument
    add("--device", default="", help="Default: the accelerator that torch finds. cpu, or sim (the "
        "tests' simulated device), runs the stages that can do without one.")  # fmt: skip
    add("--only", default="", metavar="REGEX", help="Run only the stages whose names match.")
    add("--minutes", type=real(0, 10_000), default=12.0, help="Limit of all stages together.")
    add("--quick", action="store_true", help="Do everything once, in small and without the "
        "stages' own limits. Speeds mean nothing.")  # fmt: skip
    add("--out", type=Path, default=Path("results/gpu"), help="Folder for the report.")
    return parser


def torch_finds(device: str) -> tuple[str, bool, str]:
    """The name of the device, or of the accelerator that torch finds; whether it exists; and what
    torch finds, in words. It is asked for in another process, because this one must not open it."""
    code = """if True:
        import sys, torch
        from libtorchbeast.accelerator import devices
        found = torch.accelerator.current_accelerator(check_available=True)
        name = sys.argv[1] or str(found or "")
        print(name, int(devices.exists(name)), devices.accelerators(), sep="\\n")
    """
    words = [sys.executable, "-c", code, device]
    try:
        done = subprocess.run(words, cwd=ROOT, capture_output=True, text=True, timeout=ASK_S)
    except subprocess.TimeoutExpired:
        sys.exit(f"tests.gpu: error: torch has not said in {ASK_S:.0f} s which devices there are")
    if done.returncode:
        last = done.stderr.strip().rpartition("\n")[2]
        sys.exit(f"tests.gpu: error: {sys.executable} cannot use torch 2.11 or newer ({last}); "
                 "make gpu PYTHON=.venv/bin/python takes the one of `make setup`")  # fmt: skip
    name, exists, found = done.stdout.splitlines()[-3:]
    return name, exists == "1", found


def main(argv: list[str] | None = None) -> int:
    flags = make_parser().parse_args(argv)
    refuse = lambda text: sys.exit(f"tests.gpu: error: {text}")
    try:
        chosen = [stage for stage in STAGES if re.search(flags.only, stage.name)]
    except re.error as error:
        refuse(f"--only {flags.only}: {error}")
    if not chosen:
        refuse(f"--only {flags.only}: no stage's name matches")
    device = flags.device
    if device not in ("cpu", "sim"):
        device, exists, found = torch_finds(device)
        if not device:
            refuse(f"{found}; --device cpu tries what can be tried without one")
        if not exists:
            refuse(f"--device {device}: expected cpu, sim or an accelerator, and {found}")
    options, rows = {"device": device, "quick": flags.quick}, []
    try:
        flags.out.mkdir(parents=True, exist_ok=True)
        write(flags.out, options, rows)
    except OSError as error:
        refuse(f"--out {flags.out}: {error}")
    end = time.monotonic() + 60 * flags.minutes
    for stage in chosen:
        rows.append({"stage": stage.name, "seconds": 0.0, "answers": []})
        run_stage(stage, options, end, rows, flags.out)
    print(summary(rows), flush=True)
    return 0 if all(map(is_held, rows)) else 1


def run_stage(stage: Stage, options: Row, end: float, rows: list[Row], out: Path) -> None:
    """Runs one stage and adds to the last of the `rows`, which are written after each answer."""
    row, log, start = rows[-1], out / f"{stage.name}.log", time.monotonic()
    print(f"== {stage.name}", flush=True)

    def save() -> None:
        row["seconds"] = round(time.monotonic() - start, 1)
        write(out, options, rows)

    def heard(answer: Row) -> None:
        row["answers"].append(answer)
        save()
        print(shown(answer), flush=True)

    if packages := stages.missing(stage):
        row["error"] = f"not run, because packages are missing: {', '.join(packages)}"
    elif end - start < LEAST_S:
        row["error"] = "not run, because no time was left"
    else:
        row["error"] = "it has not ended"  # what the report says if this program is stopped now
        save()
        limit = end - start if options["quick"] else min(stage.limit, end - start)
        ended = stages.run(stage, options, limit, heard, log)
        del row["error"]
        row |= ended
        if is_held(row):
            log.unlink()
        else:
            row["log"] = str(log)
    save()
    print(*failure(row, "FAILED: {}"), sep="\n", end="", flush=True)


def failure(row: Row, frame: str) -> list[str]:
    """What a report says of a stage that was not good, in lines."""
    said = {"error": frame, "printed": "```\n{}\n```", "log": "All that it printed: {}"}
    return [text.format(row[name]) + "\n" for name, text in said.items() if row.get(name)]


def is_held(row: Row) -> bool:
    return "error" not in row and all(answer.get("held", True) for answer in row["answers"])


# ========================================================================================== report
def figure_of(answer: Row) -> Figure:
    return Figure(*(answer[name] for name in Figure._fields))


def shown(answer: Row) -> str:
    if "say" in answer:
        return answer["say"]
    figure, limit = figure_of(answer), promised(figure_of(answer))
    words = f"{figure.what}: {figure.measured:.4g} {figure.unit}".strip()
    return words + (f" ({limit})" if limit else "") + ("" if answer["held"] else " NOT HELD")


def write(folder: Path, options: Row, rows: list[Row]) -> None:
    (folder / "gpu.json").write_text(json.dumps({**options, "stages": rows}, indent=1) + "\n")
    (folder / "gpu.md").write_text(markdown(options, rows))


def markdown(options: Row, rows: list[Row]) -> str:
    quick = " --quick: its speeds mean nothing" if options.get("quick") else ""
    lines = [f"# `make gpu` on {options['device']}{quick}", "", summary(rows)]
    for row in rows:
        lines += ["", f"## {row['stage']}, {row['seconds']} s", ""]
        lines += [f"- {answer['say']}" for answer in row["answers"] if "say" in answer]
        if figures := [answer for answer in row["answers"] if "what" in answer]:
            titles = ["measured", "", "promised", "held"]
            lines += ["", line(titles), line(["---"] * len(titles)), *map(table_line, figures)]
        lines += ["", *failure(row, "**Failed: {}**")]
    return "\n".join(lines) + "\n"


def table_line(answer: Row) -> str:
    figure = figure_of(answer)
    limit, held = promised(figure), "yes" if answer["held"] else "NO"
    number = f"{figure.measured:,.4g} {figure.unit}".strip()
    return line([figure.what, number, limit, held if limit else ""])


def summary(rows: list[Row]) -> str:
    good = [row["stage"] for row in rows if is_held(row)]
    bad = [f" {row['stage']}: {why_not(row)}." for row in rows if not is_held(row)]
    return f"Good: {', '.join(good) or 'nothing'}." + "".join(bad)


def why_not(row: Row) -> str:
    if "error" in row:
        return row["error"]
    first, *others = [answer["what"] for answer in row["answers"] if not answer.get("held", True)]
    return f"not held: {first}" + (f", and {len(others)} more" if others else "")


if __name__ == "__main__":
    for number in (signal.SIGTERM, signal.SIGHUP):  # as Ctrl-C, so that the stage ends, too
        signal.signal(number, signal.default_int_handler)
    try:
        sys.exit(main())
    except KeyboardInterrupt:
        sys.exit("tests.gpu: stopped; the report has what was done")
