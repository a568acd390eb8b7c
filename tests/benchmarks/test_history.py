"""History of the benchmarks' figures, and the page that is made of it."""

from __future__ import annotations

import importlib.util
import sys
import tomllib
from pathlib import Path
from types import ModuleType

import pytest

ROOT = Path(__file__).parents[2]
HISTORY = ROOT / "benchmarks" / "history"


def loaded(name: str, path: Path, monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    monkeypatch.syspath_prepend(str(ROOT / "benchmarks"))
    spec = importlib.util.spec_from_file_location(name, path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    monkeypatch.setitem(sys.modules, name, module)
    spec.loader.exec_module(module)
    return module


@pytest.fixture
def history(monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    return loaded("history", ROOT / "benchmarks" / "history.py", monkeypatch)


@pytest.fixture
def figures(monkeypatch: pytest.MonkeyPatch, history: ModuleType) -> ModuleType:
    return loaded("figures", ROOT / "docs" / "figures.py", monkeypatch)


def test_a_measurement_is_appended_with_its_date_versions_and_machine(
    history: ModuleType, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("BENCHMARK_HISTORY", str(tmp_path))
    monkeypatch.setattr(
        sys, "argv", [str(ROOT / "benchmarks" / "x.py"), "/home/me/nanoGPT", "--into=../y/z", "-k"]
    )
    path = history.append("x", {"run": "a", "ms": 42})
    assert history.append("x", {"run": "a", "ms": 40, "limit": 50.0}, note="quiet") == path
    columns, (first, second) = history.read(path)
    assert columns == ["date", "run", "ms", "limit", "command", "versions", "machine", "note"]
    assert first["ms"] == "42"
    assert first["limit"] == ""
    assert second["limit"] == "50"
    assert second["note"] == "quiet"
    assert second["command"] == "python benchmarks/x.py nanoGPT --into=z -k"
    assert second["versions"].startswith("Python 3")
    assert "cores" in second["machine"]
    assert str(Path.home()) not in path.read_text()


def test_lines_of_another_case_are_refused(
    history: ModuleType, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("BENCHMARK_HISTORY", str(tmp_path))
    history.append("x", {"run": "a"})
    with pytest.raises(ValueError, match="'run'"):
        history.append("x", {"model": "a"})


def test_nothing_is_written_when_it_is_off(
    history: ModuleType, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("BENCHMARK_HISTORY", "off")
    assert history.append("x", {"run": "a"}) is None
    assert not (HISTORY / "x.csv").exists()


def test_the_newest_line_of_each_case_is_shown(figures: ModuleType, tmp_path: Path) -> None:
    path = tmp_path / "x.csv"
    path.write_text("date,run,ms\n2026-01-02,a,1\n2026-01-01,a,2\n2026-01-01,b,3\n2026-01-02,a,4\n")
    assert [line["ms"] for line in figures.newest(path)] == ["4", "3"]


def test_a_case_that_was_tried_again_counts_once(figures: ModuleType, tmp_path: Path) -> None:
    path = tmp_path / "rows.csv"
    path.write_text("set,type,status\na,x,crash\na,y,proven\na,x,proven\nb,x,time\n")
    rows = figures.counted({"source": str(path), "count": "status", "case": ["set", "type"]})
    assert {row["status"]: row["number"] for row in rows} == {
        "proven": "2",
        "time": "1",
        "all": "3",
    }


def test_how_lines_were_measured_is_said_once_where_it_is_the_same(figures: ModuleType) -> None:
    line = {"date": "2026-01-01", "run": "a|b", "ms": "1", "command": "make x", "machine": "m"}
    same = figures.table([line, line | {"run": "b"}])
    assert same[0] == "| run | ms |"
    assert same[2] == "| a\\|b | 1 |"
    assert same[-1] == "Measured: 2026-01-01; `make x`; m."
    other = figures.table([line, line | {"run": "b", "date": "2026-01-02", "machine": "n"}])
    assert other[0] == "| run | ms | date | how |"
    assert other[3] == "| b | 1 | 2026-01-02 | b |"
    assert other[-3:] == ["- b: n", "", "Measured: `make x`."]


def test_the_page_is_what_the_data_says(figures: ModuleType) -> None:
    assert not figures.stale(), "run `python docs/figures.py`"


def test_every_file_of_the_history_is_a_subject_or_kept_as_data() -> None:
    subjects = tomllib.loads((HISTORY / "subjects.toml").read_text())
    # A file may have two tables.
    shown = {s["name"] for group in subjects["group"] for s in group["subject"] if "name" in s}
    assert sorted([*shown, *subjects["data_only"]]) == sorted(
        path.stem for path in HISTORY.glob("*.csv")
    )
