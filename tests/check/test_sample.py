"""The judged sample of findings is well formed; what it measures needs checkouts of public repositories."""

from __future__ import annotations

import csv
import re
from pathlib import Path

from migrate.rewrite.left.codes import all_codes

SAMPLE = Path(__file__).parents[2] / "benchmarks" / "hazard_precision" / "sample.csv"


def test_every_row_is_a_label_of_a_known_hazard() -> None:
    with SAMPLE.open(newline="") as file:
        rows = list(csv.DictReader(file))
    assert len(rows) > 300
    codes = set(all_codes())
    places = set()
    for row in rows:
        assert row["code"] in codes
        assert row["verdict"] in ("true", "false")
        assert row["by"] in ("check", "rewrite")
        assert int(row["line"]) > 0
        assert re.fullmatch("[0-9a-f]{12}", row["digest"])
        places.add((row["repository"], row["file"], row["line"], row["code"], row["by"]))
    assert len(places) == len(rows)
