# Copyright 2026 The authors of this repository. Licensed under the Apache License, Version 2.0.
"""`python -m benchmarks.mutants`: which mutants it makes, which survive, and that it ends hangs."""

import json

from benchmarks import mutants

SOURCE = '''
def f(x: int = 1) -> "list[2 + 3]":
    """Text. 1 < 2"""
    self.é = x not in (None,  # 1 < 2
                       -y, True)
    if x:
        raise ValueError(f"{1 + 2}", 3 < 4)
    logger.info("text", 1)
    return a < b and not c
'''
CHANGES = """2: 1 -> 2, 4: self.é = x not in (None, -y, True) -> pass,
4: x not in (None, -y, True) -> x in (None, -y, True), 5: -y -> y, 5: True -> False, 6: x -> not x,
7: raise ValueError(f'{1 + 2}', 3 < 4) -> pass, 9: return a < b and (not c) -> return None,
9: a < b and (not c) -> a < b or not c, 9: a < b -> a <= b, 9: not c -> c"""


def test_every_place_is_changed_alone():
    found = list(mutants.mutants_of(SOURCE))
    seen = ", ".join(f"{mutant.line}: {mutant.before} -> {mutant.after}" for mutant in found)
    assert seen == CHANGES.replace("\n", " ")
    assert found[3].source == SOURCE.replace("-y", "(y)")


def test_every_module_and_its_tests_exist():
    for path, names in mutants.MODULES.values():
        each = [path, *(f"tests/{name}_test.py" for name in names.split())]
        assert [name for name in each if not (mutants.ROOT / name).exists()] == []


def test_one_is_killed_and_one_survives(tmp_path, monkeypatch, capsys):
    (tmp_path / "tests").mkdir()
    (tmp_path / "toy.py").write_text("ONE = 1\nUNUSED = 2\n")
    (tmp_path / "tests/toy_test.py").write_text("import toy\ndef test(): assert toy.ONE == 1\n")
    monkeypatch.setattr(mutants, "ROOT", tmp_path)
    monkeypatch.setattr(mutants, "MODULES", {"toy": ("toy.py", "toy")})
    mutants.main(["--out", str(tmp_path / "out/mutants.json")])
    rows = json.loads((tmp_path / "out/mutants.json").read_text())
    assert [row["killed_by"] for row in rows] == ["tests/toy_test.py::test", None]
    assert "toy          1 of 2 (50%)" in capsys.readouterr().out
    assert (tmp_path / "toy.py").read_text() == "ONE = 1\nUNUSED = 2\n"
