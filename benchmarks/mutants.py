# Copyright 2026 The authors of this repository. Licensed under the Apache License, Version 2.0.
"""Changes modules in one place at a time, and counts how many of the changes their tests notice.

    python -m benchmarks.mutants --modules vtrace rollouts --sample 10

A module with one change is a mutant: another operator, a condition or value that is not negated, a
number plus one, None instead of what is returned, or a missing statement. It is killed if one of
the module's tests fails or they do not end in time. If it survives, either the tests have a hole
there, or the change makes no difference: only reading tells which. Types, docstrings and the texts
of errors and log lines stay. The tests run in copies of the repository, in a temporary folder.
"""

import argparse
import ast
import asyncio
import contextlib
import itertools
import json
import os
import random
import re
import signal
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

import psutil

from tests.support.forks import ROOT, copy_repository

MODULES = {  # each module's name, its file, and the tests/NAME_test.py that concern it
    "learner": ("libtorchbeast/learner.py", "learner update optimizer skipped ranks"),
    "vtrace": ("vtrace.py", "vtrace transitions distributions"),
    "environment": ("libtorchbeast/environment.py", "environment game_numbers stream spec opening"),
    "rollouts": ("libtorchbeast/rollouts.py", "rollouts learner update past"),
    "actors": ("libtorchbeast/actors.py", "actors actor_failures"),
    "checkpoint": ("libtorchbeast/checkpoint.py", "checkpoint kept run"),
    "weights": ("libtorchbeast/weights.py", "weights inference"),
    "flags": ("libtorchbeast/flags.py", "flags recipes program"),
    "wire": ("libtorchbeast/rpcenv/wire.py", "wire properties stream"),
}
PAIRS = "Lt LtE,Gt GtE,Eq NotEq,Is IsNot,In NotIn,Add Sub,Mult Div,FloorDiv Mod,BitAnd BitOr,And Or"
SWAPS = {a: b for pair in PAIRS.split(",") for a, b in itertools.permutations(pair.split())}


class Mutant(NamedTuple):
    number: int  # among the module's
    line: int
    before: str
    after: str
    source: str  # of the whole module


def mutants_of(source: str) -> Iterator[Mutant]:
    number, data = itertools.count(), source.encode()  # ast counts columns in bytes
    starts = [0, *itertools.accumulate(map(len, data.splitlines(keepends=True)))]
    for node in nodes(ast.parse(source)):
        for old, new in changes(node):
            begin = starts[old.lineno - 1] + old.col_offset
            end = starts[old.end_lineno - 1] + old.end_col_offset
            after = ast.unparse(new)
            text = f"({after})" if isinstance(old, ast.expr) else after
            mutant = data[:begin] + text.encode() + data[end:]
            yield Mutant(next(number), old.lineno, ast.unparse(old), after, mutant.decode())


def nodes(node: ast.AST) -> Iterator[ast.AST]:
    """The node and those in it that may be changed: not f-strings, docstrings and log lines."""
    line = ast.unparse(node) if isinstance(node, ast.Expr) else ""
    if isinstance(node, ast.JoinedStr) or line.startswith(("'", '"', "...", "logger.")):
        return
    yield node
    for name, value in ast.iter_fields(node):
        if name not in ("annotation", "returns", "exc", "msg"):  # types, and what errors say
            for child in value if isinstance(value, list) else [value]:
                if isinstance(child, ast.AST):
                    yield from nodes(child)


def changes(node: Any) -> Iterator[tuple[Any, ast.AST]]:
    """Pairs of what is replaced, the node or a part of it, and what takes its place."""
    swapped = lambda op: getattr(ast, SWAPS[type(op).__name__])()
    match node:
        case ast.Compare(left, ops, right):
            for i, op in enumerate(ops):
                yield node, ast.Compare(left, [*ops[:i], swapped(op), *ops[i + 1 :]], right)
        case ast.BinOp(op=op) | ast.AugAssign(op=op) | ast.BoolOp(op=op):
            if type(op).__name__ in SWAPS:
                yield node, type(node)(**dict(ast.iter_fields(node)) | {"op": swapped(op)})
        case ast.UnaryOp():
            yield node, node.operand
        case ast.Constant(bool(value)):
            yield node, ast.Constant(not value)
        case ast.Constant(int(value) | float(value)):
            yield node, ast.Constant(value + 1)
        case ast.If(test) | ast.IfExp(test):
            if isinstance(test, ast.Name | ast.Attribute | ast.Call):
                yield test, ast.UnaryOp(ast.Not(), test)
        case ast.Return(ast.expr()) if ast.unparse(node) != "return None":
            yield node, ast.Return(ast.Constant(None))
        case ast.Assign([ast.Attribute() | ast.Subscript()]) | ast.Expr() | ast.Raise():
            yield node, ast.Pass()


async def failure(copy: Path, tests: list[str], limit: float | None = None) -> str | None:
    """Runs the tests in the copy of the repository, for `limit` seconds at most. Returns the first
    one that fails, or what else went wrong, or None."""
    words = f"-x -q -n0 -p no:cacheprovider -p no:hypothesispytest --basetemp={copy}-tests".split()
    env = os.environ | {"OMP_NUM_THREADS": "1", "TMPDIR": str(copy.parent)}
    with tempfile.TemporaryFile("w+") as printed:
        process = await asyncio.create_subprocess_exec(
            sys.executable, "-m", "pytest", *words, *tests,
            cwd=copy, env=env, stdout=printed, stderr=printed, start_new_session=True,
        )  # fmt: skip
        try:
            code = await asyncio.wait_for(process.wait(), limit)
        except TimeoutError:
            return f"not done after {limit:.0f} s"
        finally:
            with contextlib.suppress(psutil.NoSuchProcess):  # some have sessions of their own
                for child in psutil.Process(process.pid).children(recursive=True):
                    child.kill()
            with contextlib.suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)
            await process.wait()
        printed.seek(0)
        seen = re.search(r"^(?:FAILED|ERROR) (tests/.+?)(?: - .*)?$", printed.read(), re.MULTILINE)
    return None if code == 0 else seen[1] if seen else f"exit code {code}"


async def judge(
    file: str, tests: list[str], mutant: Mutant, limit: float, copies: asyncio.Queue[Path]
) -> dict[str, Any]:
    """Returns the mutant's row, after the tests have run in the next copy that is free."""
    copy = await copies.get()
    source = (copy / file).read_text()
    (copy / file).write_text(mutant.source)
    # Without a time of its own, another mutant's bytecode might be taken for this one's.
    os.utime(copy / file, (mutant.number, mutant.number))
    killed_by = await failure(copy, tests, limit)
    (copy / file).write_text(source)
    copies.put_nowait(copy)
    row = {"file": file, "line": mutant.line, "before": mutant.before, "after": mutant.after}
    print(*row.values(), killed_by or "SURVIVED", sep=" | ", flush=True)
    return row | {"killed_by": killed_by}


async def study(settings: argparse.Namespace, folder: Path) -> None:
    """Judges the mutants of each module, prints the scores and writes the rows."""
    asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, asyncio.current_task().cancel)
    copies: asyncio.Queue[Path] = asyncio.Queue()
    for i in range(settings.jobs):
        copies.put_nowait(copy_repository(folder / str(i), ROOT))
    rows, scores = [], ["module       killed"]
    for module in settings.modules:
        file, names = MODULES[module]
        tests = [f"tests/{name}_test.py" for name in names.split()]
        mutants = list(mutants_of((folder / "0" / file).read_text()))
        random.Random(f"{settings.seed} {module}").shuffle(mutants)
        began = time.monotonic()
        if failed := await failure(folder / "0", tests):
            sys.exit(f"{module}: its tests fail without a change: {failed}")
        limit = 20 + 4 * (time.monotonic() - began)
        async with asyncio.TaskGroup() as group:
            judges = [
                group.create_task(judge(file, tests, mutant, limit, copies))
                for mutant in sorted(mutants[: settings.sample])
            ]
        own = [task.result() for task in judges]
        killed = sum(bool(row["killed_by"]) for row in own)
        scores.append(f"{module:12} {killed} of {len(own)} ({killed / len(own):.0%})")
        rows.extend(own)
        settings.out.write_text(json.dumps(rows, indent=1) + "\n")
    print("\n".join(scores))


def main(argv: list[str] | None = None) -> None:
    parser = argparse.ArgumentParser(
        "benchmarks.mutants", description=__doc__, allow_abbrev=False,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )  # fmt: skip
    add = parser.add_argument
    add("--modules", nargs="+", choices=MODULES, default=[*MODULES], help="Modules to change.")
    add("--sample", type=int, default=25, help="Number of mutants of each module, at most.")
    add("--seed", type=int, default=0, help="Seed of the draw of the mutants.")
    add("--jobs", type=int, default=1, help="Number of mutants that are judged at the same time.")
    add("--out", type=Path, default=Path("build/mutants.json"), help="JSON file with a row each.")
    settings = parser.parse_args(argv)
    settings.out.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(prefix="mutants-") as folder:
        asyncio.run(study(settings, Path(folder)))


if __name__ == "__main__":
    main()
