"""Whether the rewrite holds on projects that it was not made with: checkouts of anything.

    python benchmarks/strangers.py CHECKOUT... [--target TARGET] [--into DIR] [--json FILE] [--seconds N]

Each project is rewritten as a whole, into a folder of its own, and linted; the result is rewritten again.
These must hold of the result, each compared with the original, so that only what we made counts:

- loops: no loop that trains without a step or a finding (the reading of `step_loops/run.py`); torch_tpu has
  no steps, and none is looked for;
- names: none is read on a path that does not bind it, and bound on that path before (mypy); none that held
  a number holds the name of a device;
- CUDA: no `torch.cuda`, `.cuda()`, "nccl", "cuda" or "cuda:0" in code without a finding on its statement;
- ranks: no collective, `xm.save` or `xm.rendezvous` under a test of the rank, in a called function of another
  file either, without a finding;
- imports: each resolves as it did, and torch_xla has what is asked of it;
- compiles: each file that Python compiled before;
- settled: a second rewrite changes nothing;
- errors: no internal error, and no more than --seconds.

Prints each failure with file and line of the result, then a row for each project with the time of the
rewrite by one process (user and system) and its peak memory. Exit code 1 where anything fails.
"""

from __future__ import annotations

import argparse
import json
import resource
import subprocess
import sys
import tempfile
import time
from collections import defaultdict
from collections.abc import Iterable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, dataclass, field
from pathlib import Path

from history import append
from invariants import (
    Broken,
    Code,
    Pair,
    attributes_read,
    compiles,
    cuda_left,
    numbers_lost,
    steps_in_steps,
    unbound,
    under_a_rank,
    unresolved,
)
from rich import box
from rich.console import Console
from rich.table import Table
from step_loops.run import Checkout, in_silence

from migrate.catalogue.target import TARGETS, TPU, XLA, Target
from migrate.check.config import Config
from migrate.check.finding import Finding
from migrate.check.project import check_paths
from migrate.errors import MigrateError
from migrate.rewrite.folder import rewrite_folder
from migrate.rewrite.left.codes import NAMING_LINES
from migrate.rewrite.options import RewriteOptions
from migrate.rewrite.results import FolderRewrite, Note
from migrate.rewrite.write import write_folder

INVARIANTS = ("loops", "names", "cuda", "ranks", "imports", "compiles", "settled", "errors")
SECONDS = 900


@dataclass
class Row:
    """A project, and what became of it.

    Attributes:
        files, lines: of Python and notebooks.
        edited: how many files changed.
        seconds, megabytes: of the rewrite.
        findings: what is left to do by hand.
        hazards: what the linter says of the result.
        broken: the failures of each invariant, with file and line.
    """

    project: str
    files: int = 0
    lines: int = 0
    edited: int = 0
    seconds: float = 0.0
    megabytes: int = 0
    findings: int = 0
    hazards: int = 0
    broken: dict[str, list[str]] = field(default_factory=lambda: {name: [] for name in INVARIANTS})

    @property
    def holds(self) -> bool:
        """Whether all invariants do."""
        return not any(self.broken.values())


def judged(folder: Path, into: Path, target: Target = XLA) -> Row:
    """Rewrite the project in `folder` into `into`, and hold the result to the invariants."""
    row = Row(folder.name)
    started = time.process_time()
    options = RewriteOptions(config=Config(target=target))
    done = rewrite_folder(folder, options=options, processes=1)
    row.seconds = round(time.process_time() - started, 1)
    row.megabytes = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss // 1024
    write_folder(done, into, force=True)
    checked = check_paths([into], Config(target=target)).findings
    row.edited, row.findings, row.hazards = len(done.changed), len(done.left_to_do), len(checked)
    row.broken["errors"] = [
        f"{file.name}:1: {file.problem}" for file in done.problems if _is_ours(file.problem)
    ]
    again = rewrite_folder(into, options=options, processes=1)
    for file in (*again.changed, *(file for file in again.problems if _is_ours(file.problem))):
        row.broken["settled"].append(
            f"{file.name}:{_first_change(file.diff())}: {file.problem or 'changes again'}"
        )
    for file in done.changed:
        if (wrong := compiles(file.name, file.before, file.after)) is not None:
            row.broken["compiles"].append(str(wrong))
    pairs = _pairs(done, into, checked)
    row.files = done.scripts + len(done.notebooks)
    row.lines = sum(len(pair.before.lines) for pair in pairs)
    with tempfile.TemporaryDirectory() as scratch:
        row.broken["names"] = _told(
            [
                *unbound(pairs, Path(scratch), into.parent / ".mypy"),
                *(broken for pair in pairs for broken in numbers_lost(pair)),
            ]
        )
    read = attributes_read(pair.after for pair in pairs)
    row.broken["cuda"] = _told(broken for pair in pairs for broken in cuda_left(pair, read))
    row.broken["ranks"] = _told(under_a_rank(pairs))
    row.broken["imports"] = _told(unresolved(pairs))
    if target == TPU:
        return row
    silence = in_silence(Checkout(folder), done)
    row.broken["loops"] = [
        *(f"{name}:{line}: nothing is said" for name, line in silence.loops),
        *_told(broken for pair in pairs for broken in steps_in_steps(pair)),
    ]
    return row


def _is_ours(problem: str) -> bool:
    """Whether a file was not rewritten by a fault of ours; not for one that is no Python 3."""
    return "internal error" in problem or "would change" in problem or "rule" in problem


def _first_change(diff: str) -> str:
    for line in diff.splitlines():
        if line.startswith("@@"):
            return line.split("+")[1].split(",")[0].split(" ")[0]
    return "1"


def _told(found: Iterable[Broken]) -> list[str]:
    return [str(broken) for broken in sorted(set(found))]


def _pairs(done: FolderRewrite, into: Path, checked: Iterable[Finding]) -> list[Pair]:
    """Return all files of the project that parse, before and after."""
    notes: dict[Path, list[Note]] = defaultdict(list)
    hazards: dict[Path, list[Finding]] = defaultdict(list)
    for name, note in done.left_to_do:
        notes[name].append(note)
    for one in checked:
        hazards[one.path.relative_to(into)].append(one)
    pairs = []
    for path in sorted(into.rglob("*")):
        name = path.relative_to(into)
        if path.suffix not in (".py", ".ipynb") or not path.is_file() or path.is_symlink():
            continue
        try:
            before = Code(name, (done.folder / name).read_bytes())
            after = Code(name, path.read_bytes())
        except (SyntaxError, ValueError, MigrateError, RecursionError):
            continue
        found = (
            n for note in notes[name] for at in _lines(note) for n in before.line(at, note.cell)
        )
        said = (n for one in hazards[name] for n in after.line(one.line, one.cell))
        pairs.append(Pair(before, after, found, said))
    return pairs


def _lines(note: Note) -> Iterable[int]:
    """Return the lines that a finding is on, and others of its lines that it names."""
    if note.rule not in NAMING_LINES:
        return (note.line,)
    return (note.line, *(related.line for related in note.related if related.path is None))


def run(folder: Path, into: Path, seconds: float, target: Target = XLA) -> Row:
    """Judge a project in a process of its own, which may fail or take too long."""
    command = [sys.executable, __file__, "--one", str(folder), "--into", str(into)]
    command += ["--target", target]
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=seconds, check=False)
    except subprocess.TimeoutExpired:
        why = f".:1: takes more than {seconds:.0f} s"
    else:
        if done.returncode == 0:
            return Row(**json.loads(done.stdout.splitlines()[-1]))
        why = f".:1: {(done.stderr.splitlines() or ['no message'])[-1]}"
    row = Row(folder.name)
    row.broken["errors"].append(why)
    return row


def table(rows: Iterable[Row]) -> Table:
    """Return a row for each project, as Markdown shows tables too."""
    shown = Table(box=box.MARKDOWN)
    shown.add_column("project")
    for title in ("files", "lines", "edited", "s", "MB", "findings", *INVARIANTS):
        shown.add_column(title, justify="right")
    for row in rows:
        figures = (row.files, row.lines, row.edited, row.seconds, row.megabytes, row.findings)
        counts = (len(row.broken[name]) for name in INVARIANTS)
        shown.add_row(row.project.replace("+", "/"), *map(str, (*figures, *counts)))
    return shown


def main() -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("checkouts", type=Path, nargs="*", metavar="CHECKOUT")
    parser.add_argument("--target", choices=TARGETS, default=XLA, help="of the rewrite")
    parser.add_argument("--into", type=Path, help="keep the rewritten projects in this folder")
    parser.add_argument("--json", type=Path, metavar="FILE", help="write the rows to this file too")
    parser.add_argument("--seconds", type=float, default=SECONDS, help="for each project")
    parser.add_argument("--one", type=Path, help=argparse.SUPPRESS)
    parser.add_argument("-j", type=int, default=1, dest="processes", help="projects at a time")
    options = parser.parse_args()
    if options.one is not None:
        print(json.dumps(asdict(judged(options.one, options.into, options.target))))
        return 0
    if missing := [str(folder) for folder in options.checkouts if not folder.is_dir()]:
        parser.error(f"no such folder: {', '.join(missing)}")
    rows = []
    with tempfile.TemporaryDirectory() as made, ThreadPoolExecutor(options.processes) as pool:
        into = (options.into or Path(made)).resolve()
        into.mkdir(parents=True, exist_ok=True)
        jobs = [
            pool.submit(
                run, folder.resolve(), into / folder.resolve().name, options.seconds, options.target
            )
            for folder in options.checkouts
        ]
        for job in jobs:
            row = job.result()
            rows.append(row)
            for name, broken in row.broken.items():
                for one in broken:
                    print(f"{name}: {row.project}/{one}", flush=True)
            print(
                f"{row.project}: {'holds' if row.holds else 'fails'}", file=sys.stderr, flush=True
            )
            if options.json is not None:
                options.json.write_text(json.dumps([asdict(one) for one in rows], indent=1))
    for row in rows:
        figures = {"files": row.files, "lines": row.lines, "edited": row.edited}
        figures |= {"s": f"{row.seconds:.1f}", "MB": row.megabytes, "findings": row.findings}
        broken = {name: len(row.broken[name]) for name in INVARIANTS}
        subject = "strangers" if options.target == XLA else f"strangers-{options.target}"
        append(subject, {"project": row.project.replace("+", "/", 1)} | figures | broken)
    Console(width=240, emoji=False, markup=False, highlight=False).print(table(rows))
    return 0 if all(row.holds for row in rows) else 1


if __name__ == "__main__":
    sys.exit(main())
