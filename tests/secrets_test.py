# Copyright 2026 The authors of this repository. Licensed under the Apache License, Version 2.0.
"""No code runs what it reads, and no file of a run contains a secret."""

import ast
import subprocess

from tests.support.monobeast import IN_ORDER
from tests.support.processes import ROOT, Program

# What makes objects of bytes or code of text. `multiprocessing` is allowed for what it is used: the
# parent starts its own children (`spawn`), which get their arguments through a private pipe, and
# messages are bytes (`send_bytes`, `recv_bytes`); what pickles between living processes is not.
FORBIDDEN_MODULES = {"pickle", "cPickle", "dill", "cloudpickle", "joblib", "shelve", "marshal"}
FORBIDDEN_NAMES = {"eval", "exec", "Unpickler", "unsafe_load", "full_load", "set_start_method"}
PICKLING = {"Manager", "Queue", "SimpleQueue", "JoinableQueue", "Pool", "send", "recv"}
MULTIPROCESSING = {"multiprocessing", "context", "torch.multiprocessing", "mp"}


def findings(text):
    """The forbidden names that the Python text uses, as (line, name)."""
    for node in ast.walk(ast.parse(text)):
        if isinstance(node, ast.Import | ast.ImportFrom):
            modules = [alias.name for alias in node.names]
            if isinstance(node, ast.ImportFrom):
                modules = [node.module or "", *(f"{node.module}.{name}" for name in modules)]
            for module in modules:
                if module.partition(".")[0] in FORBIDDEN_MODULES:
                    yield node.lineno, module
        elif isinstance(node, ast.Call):
            name, _, last = ast.unparse(node.func).rpartition(".")
            keywords = {k.arg: ast.unparse(k.value) for k in node.keywords}
            if (not name and last in FORBIDDEN_NAMES) or last in FORBIDDEN_NAMES - {"eval"}:
                yield node.lineno, last
            elif last == "load" and name in ("torch", "yaml", "np", "numpy"):
                safe = {"torch": "weights_only", "np": None, "numpy": None, "yaml": "yaml"}[name]
                if safe and keywords.get(safe) != "True":
                    yield node.lineno, f"{name}.load without {safe}=True"
            elif last in PICKLING and name in MULTIPROCESSING:
                yield node.lineno, f"{name}.{last}"
            if keywords.get("weights_only") == "False" or keywords.get("allow_pickle") == "True":
                yield node.lineno, "a keyword that lets pickles in"


def test_the_tree_holds_nothing_that_runs_what_it_reads():
    listed = subprocess.run(["git", "ls-files", "*.py"], cwd=ROOT, capture_output=True, text=True)
    names = listed.stdout.split() or [str(p.relative_to(ROOT)) for p in ROOT.glob("[!.]*/*.py")]
    assert "monobeast.py" in names
    found = [
        f"{name}:{line}: {what}"
        for name in names
        for line, what in findings((ROOT / name).read_text())
        # torch.load as a user calls it: the file that it is given is the test's own.
        if (name, what) != ("tests/checkpoint_test.py", "torch.load without weights_only=True")
    ]
    assert not found, "\n".join(found)


def test_the_look_sees_it_and_lets_the_rest_be():
    for text in (
        *("from pickle import loads", "import torch, marshal", "eval('1')", "torch.load(path)"),
        *("yaml.load(file)", "np.load(path, allow_pickle=True)", "context.Manager()"),
    ):
        assert list(findings(text)), text
    assert not list(findings("net.eval(); torch.load(path, weights_only=True); queue.Queue()"))


SECRET = "s3cr3t-t0ken-0123456789"


def test_a_run_leaves_no_secret_in_its_files(tmp_path):
    """They contain no secret of the environment variables or of the repository's URL. The files
    of all beasts are written by libtorchbeast/run.py."""
    tree, saved = tmp_path / "tree", tmp_path / "saved"
    saved.mkdir()
    subprocess.run(["git", "clone", "-q", "--shared", ROOT, tree], check=True)
    url = f"https://user:{SECRET}@git.invalid/repository"
    subprocess.run(["git", "-C", tree, "remote", "set-url", "origin", url], check=True)
    options = {"AWS_SECRET_ACCESS_KEY": SECRET, f"TOKEN_{SECRET}": "its name tells it"}
    options["before"] = ["env", "-C", tree]
    with Program(saved, *IN_ORDER, "--total_steps", 200, **options) as program:
        assert program.wait_for_end() == 0, program.printed()
    files = [path for path in saved.rglob("*") if path.is_file()]
    assert {"meta.json", "logs.csv", "out.log", "model.tar", "printed"} <= {p.name for p in files}
    assert [p.name for p in files if SECRET.encode() in p.read_bytes()] == []
