"""Findings in a project's tests are counted and fail nothing."""

from __future__ import annotations

from pathlib import Path

import pytest

from migrate.check.config import Config
from migrate.check.project import check_paths
from migrate.report.text.check import check_as_json, check_summary

READ = "import torch\n\ndef f():\n    torch.cuda.cudart()\n"


@pytest.mark.parametrize(
    "name", ["tests/helpers.py", "test/run.py", "test_model.py", "model_test.py", "conftest.py"]
)
def test_findings_in_tests_are_counted_and_fail_nothing(tmp_path: Path, name: str) -> None:
    (tmp_path / name).parent.mkdir(exist_ok=True)
    (tmp_path / name).write_text(READ)
    (tmp_path / "latest.py").write_text("x = 1\n")
    checked = check_paths([tmp_path], Config())
    assert not checked.findings
    assert checked.in_tests
    assert not checked.failed
    assert "1 more in 1 test file" in list(check_summary(checked))[-1]
    assert check_as_json(checked)["in_tests"]


@pytest.mark.parametrize("named", ["tests", "tests/test_a.py"])
def test_tests_that_are_named_are_listed(tmp_path: Path, named: str) -> None:
    (tmp_path / "tests").mkdir()
    (tmp_path / "tests/test_a.py").write_text(READ)
    checked = check_paths([tmp_path / named], Config())
    assert checked.findings
    assert not checked.in_tests


def test_a_script_with_a_name_like_a_test_is_none(tmp_path: Path) -> None:
    (tmp_path / "testing.py").write_text(READ)
    (tmp_path / "contest.py").write_text(READ)
    assert {one.path.name for one in check_paths([tmp_path], Config()).findings} == {
        "testing.py",
        "contest.py",
    }


MAIN = "\n\nif __name__ == '__main__':\n    f()\n"


@pytest.mark.parametrize(
    ("name", "text", "expected"),
    [
        ("vae_var_test.py", READ + MAIN, False),
        ("test_speed.py", READ + MAIN, False),
        ("model_test.py", READ, True),
        (
            "test_model.py",
            READ.replace("def f", "def test_f") + MAIN.replace("f()", "test_f()"),
            True,
        ),
        ("test_case.py", "import unittest\n" + READ + MAIN.replace("f()", "unittest.main()"), True),
        ("tests/run.py", READ + MAIN, True),
    ],
)
def test_a_script_that_is_run_and_holds_no_test(
    tmp_path: Path, name: str, text: str, expected: bool
) -> None:
    path = tmp_path / name
    path.parent.mkdir(exist_ok=True)
    path.write_text(text)
    checked = check_paths([tmp_path], Config())
    assert bool(checked.in_tests) == expected
    assert bool(checked.findings) != expected
