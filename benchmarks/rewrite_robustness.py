"""Whether the rewrite stands on Python files that nobody wrote for it: installed packages and the library.

    python benchmarks/rewrite_robustness.py [FOLDER...] [--no-prescan] [--every N] [--seconds N]

Each folder's files are rewritten with all rules and all hazards; nothing is written. A failure is

- a crash, or two rules that claim the same code;
- an output that does not parse, or that a second run would change;
- an output with other line endings, another byte order mark or another encoding;
- a file that goes through reading and writing unedited and comes out other than it was;
- a file that is refused though Python itself compiles it;
- with `--no-prescan`: a file that the pre-scan takes for one of no interest, in which a rule finds something.

Prints the counts, and each failure with its place; exit code 1 where there is any.
"""

from __future__ import annotations

import argparse
import multiprocessing
import os
import resource
import sys
import sysconfig
import time
import traceback
import warnings
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from migrate.catalogue.prescan import concerns_rules
from migrate.model.calls.analysis import Analysis
from migrate.model.facts import ModuleCalls, calls_of_file
from migrate.model.project.project import Project
from migrate.rewrite.apply import RuleConflictError, apply
from migrate.rewrite.pipeline import NotStableError, check_stable, rewrite_source
from migrate.rewrite.workspace import Workspace
from migrate.syntax.source import NotPythonError, NotUtf8Error, Source, parse

PACKAGES = sorted({sysconfig.get_path("purelib"), sysconfig.get_path("platlib")})
STANDARD_LIBRARY = sysconfig.get_path("stdlib")
TOGETHER = 20  # files of one folder that are analyzed as one project, and rewritten by one process


@dataclass
class Tally:
    """What became of some files: how many of each kind, and what failed."""

    counts: Counter[str] = field(default_factory=Counter)
    failures: list[tuple[str, str]] = field(default_factory=list)  # kind, text
    refused: list[str] = field(default_factory=list)

    def fail(self, kind: str, text: str) -> None:
        self.failures.append((kind, text))

    def add(self, other: Tally) -> None:
        self.counts.update(other.counts)
        self.failures += other.failures
        self.refused += other.refused


@dataclass(frozen=True)
class Job:
    files: tuple[Path, ...]
    prescan: bool


def files_of(folder: Path) -> Iterator[Path]:
    for place, folders, names in os.walk(folder):
        folders[:] = sorted(
            name
            for name in folders
            if name not in ("__pycache__", "site-packages") and not name.startswith("__editable__")
        )
        yield from (Path(place, name) for name in sorted(names) if name.endswith(".py"))


def jobs_of(folders: Sequence[Path], every: int, prescan: bool) -> list[Job]:
    """Return the files, those of one folder together, those with the least to parse first."""
    found = list(dict.fromkeys(f for folder in folders for f in files_of(folder) if f.is_file()))
    by_folder: dict[Path, list[Path]] = {}
    for path in found[::every]:
        by_folder.setdefault(path.parent, []).append(path)
    jobs = [
        Job(tuple(files[at : at + TOGETHER]), prescan)
        for files in by_folder.values()
        for at in range(0, len(files), TOGETHER)
    ]
    return sorted(jobs, key=_size)


def _size(job: Job) -> int:
    """Return the bytes of `job` that are parsed."""
    contents = (path.read_bytes() for path in job.files)
    return sum(len(data) for data in contents if not job.prescan or concerns_rules(data))


def work(job: Job) -> Tally:
    """Rewrite the files of one folder."""
    warnings.simplefilter("ignore")  # escape sequences in what is parsed
    tally = Tally()
    tally.counts["files"] += len(job.files)
    data = {path: path.read_bytes() for path in job.files}
    tally.counts["lines"] += sum(content.count(b"\n") for content in data.values())
    parsed = [path for path in job.files if not job.prescan or concerns_rules(data[path])]
    tally.counts["decided by the pre-scan"] += len(job.files) - len(parsed)
    if not parsed:
        return tally
    calls = _analyzed(tally, parsed, {})
    for path in parsed:
        tally.counts["parsed"] += 1
        try:
            source = parse(data[path], path)
        except (NotPythonError, NotUtf8Error) as error:
            _refused(tally, path, data[path], error)
            continue
        except Exception:
            tally.fail("crash", f"{path}\n{traceback.format_exc(limit=-3)}")
            continue
        _one(tally, source, calls.get(path, ModuleCalls()))
    return tally


def _analyzed(
    tally: Tally, files: Sequence[Path], given: dict[Path, bytes]
) -> dict[Path, ModuleCalls]:
    try:
        analysis = Analysis(Project.of_files(files[0].parent, files, given))
        return {path: calls_of_file(analysis, path) for path in files}
    except Exception:
        tally.fail("crash", f"{files[0].parent}\n{traceback.format_exc(limit=-3)}")
        return {}


def _one(tally: Tally, source: Source, calls: ModuleCalls) -> None:
    path = source.path
    try:
        context = Workspace(source, calls)
        unedited = source.render(
            apply(context.module, (), context.imports, context.definitions, context.ancestors)
        )
        if unedited != source.data:
            tally.fail("not written back byte for byte", str(path))
        done = rewrite_source(source, calls=calls)
    except RuleConflictError as error:
        tally.fail("conflict", f"{path}: {error}")
        return
    except NotPythonError as error:
        tally.fail("does not parse", str(error))
        return
    except Exception:
        tally.fail("crash", f"{path}\n{traceback.format_exc(limit=-3)}")
        return
    tally.counts["edits"] += len(done.edits)
    tally.counts["findings"] += len(done.findings)
    if (done.edits or done.findings) and not concerns_rules(source.data):
        first = (done.edits or done.findings)[0]
        tally.fail("missed by the pre-scan", f"{path}:{first.line}: {first.rule}: {first.message}")
    if not done.changed:
        tally.counts["parsed, unchanged"] += 1
        return
    tally.counts["rewritten"] += 1
    if _outside(source.data) != _outside(done.data):
        tally.fail("other line endings or byte order mark", str(path))
    after = _analyzed(tally, [path], {path: done.data})
    try:
        check_stable(done.data, path, calls=after.get(path, ModuleCalls()))
    except RuleConflictError as error:
        tally.fail("conflict", f"second run: {path}: {error}")
    except NotStableError as error:
        kind = "does not parse" if "does not parse" in str(error) else "unstable"
        tally.fail(kind, str(error))
    except Exception:
        tally.fail("crash", f"second run: {path}\n{traceback.format_exc(limit=-3)}")


def _outside(data: bytes) -> tuple[bool, frozenset[bytes]]:
    """Return what an edit must not change: the byte order mark, and the line endings that occur."""
    endings = {ending for ending in (b"\r\n", b"\n", b"\r") if ending in data}
    if b"\r\n" in endings:
        rest = data.replace(b"\r\n", b"")
        endings = {b"\r\n"} | {ending for ending in (b"\n", b"\r") if ending in rest}
    return data.startswith(b"\xef\xbb\xbf"), frozenset(endings)


def _refused(tally: Tally, path: Path, data: bytes, error: Exception) -> None:
    kind = "refused: not UTF-8" if isinstance(error, NotUtf8Error) else "refused: not Python 3"
    tally.counts[kind] += 1
    tally.refused.append(str(error))
    try:
        compile(data, str(path), "exec", dont_inherit=True)
    except (SyntaxError, ValueError):
        return
    tally.fail("refused, Python compiles it", str(error))


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("folders", nargs="*", type=Path)
    parser.add_argument("--no-prescan", action="store_true", help="parse every file")
    parser.add_argument("--every", type=int, default=1, metavar="N", help="only each Nth file")
    parser.add_argument("--processes", type=int, default=len(os.sched_getaffinity(0)))
    parser.add_argument("--seconds", type=int, default=36_000, help="stop after that long")
    options = parser.parse_args()
    folders = options.folders or [Path(place) for place in (*PACKAGES, STANDARD_LIBRARY)]
    if missing := [str(folder) for folder in folders if not folder.is_dir()]:
        parser.error(f"no such folder: {', '.join(missing)}")
    started = time.perf_counter()
    jobs = jobs_of(folders, options.every, not options.no_prescan)
    total = Tally()
    # Each process works at few folders, so that memory is given back.
    with multiprocessing.get_context("spawn").Pool(options.processes, maxtasksperchild=40) as pool:
        for number, tally in enumerate(pool.imap_unordered(work, jobs), 1):
            total.add(tally)
            for kind, text in tally.failures:
                print(f"{kind}: {text}", flush=True)
            if number % 20 == 0:
                print(f"{number} of {len(jobs)} folders", file=sys.stderr, flush=True)
            if time.perf_counter() - started > options.seconds:
                print(f"stopped after {number} of {len(jobs)} folders")
                break
        else:
            pool.close()
            pool.join()
    used = resource.getrusage(resource.RUSAGE_CHILDREN).ru_utime
    for text in sorted(total.refused):
        print(f"refused: {text}")
    kinds = Counter(kind for kind, _ in total.failures)
    for name, count in (*total.counts.items(), *kinds.items()):
        print(f"{count:10,} {name}")
    wall = time.perf_counter() - started
    print(f"{len(total.failures):10,} failures; {used:.0f} s of user time, {wall:.0f} s")
    return 1 if total.failures else 0


if __name__ == "__main__":
    sys.exit(main())
