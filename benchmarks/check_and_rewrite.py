"""Whether `migrate check` says of whole projects exactly what `migrate rewrite` does.

python benchmarks/check_and_rewrite.py PROJECT ... [--target torch_xla|torch_tpu] [--csv FILE]

For each project: findings without a mark that the rewrite does not leave, what it leaves and check does not
say, edits without a marked finding on their line, and marks in the rewritten project. All four must be 0.
"""

from __future__ import annotations

import argparse
import csv
import os
import tempfile
from dataclasses import asdict, dataclass, replace
from pathlib import Path

from migrate.catalogue.target import TARGETS, XLA, Target
from migrate.check import project as checking
from migrate.check.config import Config
from migrate.check.finding import Finding, Fix
from migrate.rewrite.check_findings import findings_of
from migrate.rewrite.folder import rewrite_folder
from migrate.rewrite.left.codes import code_of
from migrate.rewrite.options import RewriteOptions
from migrate.rewrite.write import rewrite_into
from migrate.syntax.notebook.text import SUFFIX


@dataclass(frozen=True)
class Row:
    """What is counted of one project.

    Args:
        project: its name.
        target: the package that drives the TPU.
        findings, marked: what check says, and how much of it the rewrite mends.
        check_only, rewrite_only: what one of the commands leaves and the other does not name.
        unmarked_edits: edits on lines without a marked finding.
        marked_after: marks in the rewritten project.
        check_seconds, rewrite_seconds: CPU time, of all processes.
    """

    project: str
    target: Target
    findings: int
    marked: int
    check_only: int
    rewrite_only: int
    unmarked_edits: int
    marked_after: int
    check_seconds: float
    rewrite_seconds: float

    @property
    def agrees(self) -> bool:
        """Whether both commands say the same."""
        return not (
            self.check_only or self.rewrite_only or self.unmarked_edits or self.marked_after
        )


def measured(folder: Path, target: Target = XLA) -> Row:
    """Return what both commands say of a project."""
    config = Config(root=folder, target=target)
    options = RewriteOptions(config=config)
    began = _cpu_seconds()
    found = _within(findings_of([folder], config)[1], folder)
    checked = _cpu_seconds()
    done = rewrite_folder(folder, options=options)
    rewritten = _cpu_seconds()
    code = set(checking.python_files(folder, config))
    files = [
        file
        for file in done.files
        if not file.problem
        and (file.name.suffix not in (".py", SUFFIX) or folder / file.name in code)
    ]
    left = {
        (folder / file.name, note.cell, note.line, note.column, code_of(note))
        for file in files
        for note in (*file.findings, *file.hints)
    }
    unreadable = {folder / file.name for file in done.problems}
    said = {
        (one.path, one.cell, one.line, one.column, one.code)
        for one in found
        if one.fix is Fix.NONE and one.path not in unreadable and one.code != "XLA001"
    }
    marked = {(one.path, one.cell, one.line) for one in found if one.fix is not Fix.NONE}
    edits = [
        (folder / file.name, note.cell, note.line)
        for file in files
        for note in file.edits
        if note.rule != "comments"
    ]
    with tempfile.TemporaryDirectory() as place:
        after = Path(place) / folder.name
        rewrite_into(folder, after, options=options)
        again = _within(findings_of([after], replace(config, root=after))[1], after)
    return Row(
        folder.name,
        target,
        len(found),
        sum(one.fix is not Fix.NONE for one in found),
        len(said - left),
        len(left - said),
        sum(edit not in marked for edit in edits),
        sum(one.fix is not Fix.NONE for one in again),
        round(checked - began, 1),
        round(rewritten - checked, 1),
    )


def _cpu_seconds() -> float:
    """Return the CPU time of this process and of its children that have ended."""
    times = os.times()
    return times.user + times.system + times.children_user + times.children_system


def _within(findings: list[Finding], folder: Path) -> list[Finding]:
    """Return the findings without those in files that steps run outside of the project."""
    return [one for one in findings if one.path.is_relative_to(folder)]


def main() -> int:
    """Measure the projects that the user names; return 1 where the commands disagree."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("projects", nargs="+", type=Path)
    parser.add_argument("--target", choices=TARGETS, default=XLA)
    parser.add_argument("--csv", type=Path)
    asked = parser.parse_args()
    rows = []
    for folder in asked.projects:
        rows.append(measured(folder.resolve(), asked.target))
        print(rows[-1], flush=True)
        if asked.csv is not None:
            with asked.csv.open("w", newline="") as out:
                writer = csv.DictWriter(out, list(asdict(rows[0])))
                writer.writeheader()
                writer.writerows(map(asdict, rows))
    return not all(row.agrees for row in rows)


if __name__ == "__main__":
    raise SystemExit(main())
