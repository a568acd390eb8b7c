"""Findings that repeat in a file are reported once."""

from __future__ import annotations

from pathlib import Path

from click.testing import CliRunner

from migrate.check.config import Config
from migrate.check.project import check_paths
from migrate.cli import commands


def test_what_a_file_says_many_times_is_one_finding(tmp_path: Path) -> None:
    script = "import torch\n\n" + "torch.cuda.cudart()\n" * 20
    (tmp_path / "a.py").write_text(script)
    (tmp_path / "b.py").write_text("\n".join(script.splitlines()[:5]) + "\n")
    findings = check_paths([tmp_path], Config()).findings
    assert findings
    [one] = [f for f in findings if f.path.name == "a.py" and "times in this file" in f.message]
    assert "20 times in this file: 3, 4, 5, 6, 7, …" in one.message
    assert [f.line for f in findings if f.path.name == "b.py"] == [3, 4, 5]


def test_the_findings_of_a_rewrite_are_not_repeated_either(tmp_path: Path) -> None:
    lines = "".join(f"x{n} = distribute_tensor(a, b)\n" for n in range(20))
    script = f"import torch\nfrom torch.distributed.tensor import distribute_tensor\n\n{lines}"
    (tmp_path / "a.py").write_text(script)
    arguments = ["rewrite", str(tmp_path / "a.py"), "--diff"]
    shown = CliRunner().invoke(commands, arguments).output.splitlines()
    found = [line for line in shown if "/a.py:" in line and "distribute_tensor" in line]
    assert len(found) == 1
    assert "20 times in this file: 4, 5, 6, 7, 8, …" in found[0]
