"""What changed since an earlier run, and limits."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from migrate.fit.baseline import compared, read_baseline, share_of
from migrate.fit.errors import FitError


def report(needed: int = 1000, flops: float = 10.0, kind: str = "all-reduce") -> dict[str, Any]:
    return {
        "slices": [
            {
                "slice": "v5e-8",
                "state": "fits",
                "hbm": {"needed": needed, "available": 2000},
                "flops": flops,
                "lower_bound": {"seconds": 1.0},
                "collectives": [{"kind": kind, "times": 2}],
            }
        ]
    }


def test_what_is_the_same_is_not_said() -> None:
    assert compared(report(), report(), None) == ([], [])


def test_figures_and_exchanges_that_changed() -> None:
    changes, _ = compared(report(), report(1100, 5.0, "all-gather"), None)
    assert changes == [
        "v5e-8: HBM +10.0%",
        "v5e-8: operations -50.0%",
        "v5e-8: exchanges 2 all-reduce → 2 all-gather",
    ]


def test_another_verdict_and_another_slice() -> None:
    now = report()
    now["slices"][0]["state"] = "too big"
    now["slices"].append(dict(now["slices"][0], slice="v6e-8"))
    changes, _ = compared(report(), now, None)
    assert changes == ["v5e-8: fits → too big", "v6e-8: was not asked for then"]


def test_a_limit() -> None:
    assert compared(None, report(), share_of("50%"))[1] == []
    (line,) = compared(None, report(), share_of("49.9 %"))[1]
    assert line == "v5e-8: 50.00% of the HBM, more than 49.9%"


@pytest.mark.parametrize("text", ["", "90", "0%", "101%", "x%"])
def test_what_is_no_share(text: str) -> None:
    with pytest.raises(FitError, match="not a share"):
        share_of(text)


@pytest.mark.parametrize("text", ["{", "[]", '{"slices": 3}'])
def test_what_is_no_report(text: str, tmp_path: Path) -> None:
    (tmp_path / "a.json").write_text(text)
    with pytest.raises(FitError, match="pass the output of migrate fit --json"):
        read_baseline(tmp_path / "a.json")
    (tmp_path / "b.json").write_text(json.dumps(report()))
    assert read_baseline(tmp_path / "b.json") == report()
