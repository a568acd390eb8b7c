"""The terminal view of `migrate check`: every mark is explained where it stands."""

from __future__ import annotations

from pathlib import Path

import pytest

from migrate.check.finding import Finding, Fix
from migrate.check.hazard import Severity
from migrate.check.project import Checked
from migrate.report.text.check import check_lines

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
