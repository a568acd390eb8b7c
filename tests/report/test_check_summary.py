"""The terminal view of `migrate check`: every mark is explained where it stands."""

from __future__ import annotations

from pathlib import Path

import pytest

from migrate.check.config import Config
from migrate.check.finding import Finding, Fix
from migrate.check.hazard import Severity
from migrate.check.project import Checked
from migrate.report.text.check import check_lines
from migrate.rewrite.check_findings import check_and_mend

ERROR = Severity.ERROR


@pytest.mark.parametrize(
    ("fixes", "said"),
    [
        ((Fix.NONE,), ""),
        ((Fix.SAFE, Fix.NONE), "[*] `migrate rewrite` fixes 1 finding; "),
        (
            (Fix.SAFE, Fix.UNSAFE),
            "[*] `migrate rewrite` fixes 2 findings, 1 of them [*unsafe]: XLA301 is right only if "
            "every replica reaches the save; ",
        ),
    ],
)
def test_the_last_line_explains_the_marks(fixes: tuple[Fix, ...], said: str) -> None:
    condition = "every replica reaches the save"
    findings = tuple(
        Finding(
            *(Path("x.py"), 1, 1, 1, 2, "XLA301", "name", ERROR, "message"),
            fix=fix,
            condition=condition if fix is Fix.UNSAFE else "",
        )
        for fix in fixes
    )
    last = list(check_lines(Checked(1, findings), "text"))[-1]
    more = list(check_lines(Checked(2, findings, imported=1), "text"))[-1]
    assert "in 1 of 2 files (1 imported)" in more
    assert f"in 1 of 1 file; {said}explain a code with `migrate check --explain CODE`" in last


def test_errors_in_imported_files_are_counted(tmp_path: Path) -> None:
    (tmp_path / "setup.py").write_text(
        "import torch.distributed as dist\n\n\ndef start():\n    dist.init_process_group('nccl')\n"
    )
    script = tmp_path / "train.py"
    script.write_text("from setup import start\n\nif __name__ == '__main__':\n    start()\n")
    checked = check_and_mend([script], Config(select=("XLA823",)))
    last = list(check_lines(checked, "text"))[-1]
    assert last.startswith(f"1 more error in {tmp_path / 'setup.py'}, ")
    assert last.endswith(f"migrate check {tmp_path}")
    assert check_and_mend([tmp_path], Config(select=("XLA823",))).beside == {}
    many = list(check_lines(Checked(1, (), imported=2, unread=2, folder=tmp_path), "text"))[-1]
    assert many.startswith("2 imported files may have more errors, ")
