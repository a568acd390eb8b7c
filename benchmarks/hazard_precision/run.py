"""How many of the findings of `migrate check` are right: a judged sample of public repositories.

    python benchmarks/hazard_precision/run.py --repositories FOLDER

FOLDER holds checkouts named OWNER+NAME. `sample.csv` has a row for each finding that was read and judged:
repository, file, line, code, severity, whether it was found by `check` or left by `rewrite`, the round in
which it was drawn, the verdict, and a hash of the line, so that a row counts only where the checkout has the
same line there. Samples are drawn by code, so that rare hazards are judged too: up to three findings of each,
with a seed.

A finding is true if what it says happens on a TPU when the line runs, and somebody who ports the script has
to look at it. Findings of severity info are not judged.

Prints, for each code, how many of the judged findings the present version still reports as an error or a
warning, and how many of these are false; exit code 1 above 5 % false.
"""

from __future__ import annotations

import argparse
import csv
import hashlib
import sys
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from migrate.check.config import Config
from migrate.check.hazard import Severity
from migrate.rewrite.check_findings import check_and_mend
from migrate.rewrite.pipeline import rewrite

SAMPLE = Path(__file__).parent / "sample.csv"
MOST_FALSE = 0.05


@dataclass(frozen=True)
class Judged:
    """A finding that somebody has read."""

    repository: str
    file: str
    line: int
    code: str
    severity: str
    by: str
    round: int
    verdict: str
    digest: str


def sample() -> list[Judged]:
    """Return the judged findings."""
    with SAMPLE.open(newline="") as rows:
        return [
            Judged(**{**row, "line": int(row["line"]), "round": int(row["round"])})  # type: ignore[arg-type]
            for row in csv.DictReader(rows)
        ]


def digest(path: Path, line: int) -> str:
    """Return a hash of a line, its indentation left out; empty where there is none."""
    lines = path.read_text(errors="replace").splitlines() if path.is_file() else []
    text = lines[line - 1].strip() if line <= len(lines) else ""
    return hashlib.sha256(text.encode()).hexdigest()[:12] if text else ""


def reported(folder: Path, rows: list[Judged]) -> Iterator[tuple[str, str, int, str]]:
    """Yield by, file, line and code of what the present version reports in a repository."""
    files = {row.file for row in rows}
    if any(row.by == "check" for row in rows):
        for one in check_and_mend([folder], Config(root=folder)).findings:
            name = one.path.relative_to(folder).as_posix()
            if one.severity is not Severity.INFO and name in files:
                yield "check", name, one.line, one.code
    for name in sorted({row.file for row in rows if row.by == "rewrite"}):
        for note in rewrite(folder / name).findings:
            yield "rewrite", name, note.line, note.rule


def main() -> int:
    """Print the figures; return the exit code."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--repositories", type=Path, required=True, metavar="FOLDER")
    repositories = parser.parse_args().repositories
    judged = sample()
    known = [r for r in judged if digest(repositories / r.repository / r.file, r.line) == r.digest]
    counts: Counter[tuple[str, str]] = Counter()
    for name in sorted({row.repository for row in known}):
        rows = [row for row in known if row.repository == name]
        found = set(reported(repositories / name, rows))
        for row in rows:
            still = (row.by, row.file, row.line, row.code) in found
            counts[row.code, row.verdict if still else f"{row.verdict}, no longer"] += 1
    for code in sorted({code for code, _ in counts}):
        right, wrong = counts[code, "true"], counts[code, "false"]
        gone = counts[code, "false, no longer"]
        lost = counts[code, "true, no longer"]
        print(f"{code}  true {right:3}  false {wrong:3}  mended {gone:3}  no longer found {lost:3}")
    right = sum(n for (_, verdict), n in counts.items() if verdict == "true")
    wrong = sum(n for (_, verdict), n in counts.items() if verdict == "false")
    share = wrong / max(1, right + wrong)
    print(f"{len(known)} of {len(judged)} judged findings are in these checkouts")
    print(
        f"{right + wrong} of them are reported as errors or warnings, {wrong} falsely: {share:.1%}"
    )
    return 1 if share > MOST_FALSE or not known else 0


if __name__ == "__main__":
    sys.exit(main())
