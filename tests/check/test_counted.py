"""Findings that repeat in a file, and those of tests."""

from __future__ import annotations

from pathlib import Path

import pytest
from click.testing import CliRunner

from migrate.check.config import Config
from migrate.check.project import check_paths
from migrate.cli import commands
from migrate.report.text.check import check_as_json, check_summary

READ = "import torch\n\ndef f():\n    torch.cuda.cudart()\n"


def test_what_a_file_says_many_times_is_one_finding(tmp_path: Path) -> None:
    script = "import torch\n\n" + "torch.cuda.cudart()\n" * 20
    (tmp_path / "a.py").write_text(script)
    (tmp_path / "b.py").write_text("\n".join(script.splitlines()[:5]) + "\n")
    findings = check_paths([tmp_path], Config()).findings
    assert findings
    [one] = [f for f in findings if f.path.name == "a.py" and "times in this file" in f.message]
    assert "20 times in this file: 3, 4, 5, 6, 7, …" in one.message
    assert not any("times in" in f.message for f in findings if f.path.name == "b.py")


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


def test_the_findings_of_a_rewrite_are_not_repeated_either(tmp_path: Path) -> None:
    lines = "".join(f"x{n} = distribute_tensor(a, b)\n" for n in range(20))
    script = f"import torch\nfrom torch.distributed.tensor import distribute_tensor\n\n{lines}"
    (tmp_path / "a.py").write_text(script)
    arguments = ["rewrite", str(tmp_path / "a.py"), "--diff"]
    shown = CliRunner().invoke(commands, arguments).output.splitlines()
    found = [line for line in shown if "/a.py:" in line and "distribute_tensor" in line]
    assert len(found) == 1
    assert "20 times in this file: 4, 5, 6, 7, 8, …" in found[0]


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
