"""History of the benchmarks' figures: one CSV file a subject, in benchmarks/history/.

    from history import append

    append("startup", {"run": "migrate --help", "median of 20, ms": 42, "÷ limit of 0.2 s": 0.21})

A line is a measurement: its date, its figures, and the command, versions and machine that gave them. The
first column after the date says which case was measured; docs/figures.md shows the newest line of each case
(`make docs`). `BENCHMARK_HISTORY=FOLDER` writes elsewhere, `BENCHMARK_HISTORY=off` nowhere.
"""

from __future__ import annotations

import csv
import os
import platform
import shlex
import sys
from collections.abc import Iterable, Mapping
from datetime import UTC, datetime
from importlib.metadata import PackageNotFoundError, version
from io import StringIO
from pathlib import Path

HISTORY = Path(__file__).with_name("history")
# What says how a line was measured; these columns come last.
ORIGIN = ("command", "versions", "machine", "note")
PACKAGES = ("torch", "torch_xla", "jax", "flax", "transformers", "libtpu", "libcst")


def append(
    subject: str, *cases: Mapping[str, object], note: str = "", packages: Iterable[str] = PACKAGES
) -> Path | None:
    """Append a line for each case to the subject's file, and return the file.

    Args:
        subject: name of the file, without its suffix.
        *cases: column → figure; the first column names the case and is the same in every line of the file.
        note: what a reader has to know about these lines.
        packages: the packages whose versions decide the figures.

    Raises:
        ValueError: the first column is another one than the file's.
    """
    folder = os.environ.get("BENCHMARK_HISTORY", str(HISTORY))
    if folder == "off":
        return None
    path = Path(folder) / f"{subject}.csv"
    origin = {
        "date": f"{datetime.now(UTC):%Y-%m-%d}",
        "command": command(),
        "versions": versions(packages),
        "machine": machine(),
        "note": note,
    }
    columns, lines = read(path) if path.exists() else (["date"], [])
    for case in cases:
        first = next(iter(case))
        if len(columns) > 1 and columns[1] not in {first, *ORIGIN}:
            raise ValueError(f"{path}: lines begin with {columns[1]!r}, this one with {first!r}")
        lines.append(origin | {name: _text(value) for name, value in case.items()})
        columns += [name for name in case if name not in columns]
    columns = [name for name in columns if name not in ORIGIN] + list(ORIGIN)
    text = StringIO()
    writer = csv.DictWriter(text, columns, restval="", lineterminator="\n")
    writer.writeheader()
    writer.writerows(lines)
    path.parent.mkdir(parents=True, exist_ok=True)
    written = path.with_suffix(".new")
    written.write_text(text.getvalue())
    written.replace(path)
    return path


def newest(subject: str, case: str) -> dict[str, str]:
    """Newest line of a case in the subject's file; empty: it was not measured yet."""
    path = Path(os.environ.get("BENCHMARK_HISTORY", str(HISTORY))) / f"{subject}.csv"
    if not path.is_file():
        return {}
    columns, lines = read(path)
    return next((line for line in reversed(lines) if line[columns[1]] == case), {})


def _text(value: object) -> str:
    return f"{value:g}" if isinstance(value, float) else str(value)


def read(path: Path) -> tuple[list[str], list[dict[str, str]]]:
    """Columns and lines of a CSV file, oldest line first."""
    with path.open(newline="") as file:
        reader = csv.DictReader(file)
        lines = list(reader)
        return list(reader.fieldnames or ()), lines


def command() -> str:
    """Return the command that runs now, as a user would type it, without folders of this machine."""
    script, root = Path(sys.argv[0]).resolve(), Path(__file__).resolve().parents[1]
    name = script.relative_to(root) if script.is_relative_to(root) else script.name
    return shlex.join(["python", str(name), *map(_without_folder, sys.argv[1:])])


def _without_folder(word: str) -> str:
    """Return an argument with the last part alone of a path that leads out of the repository."""
    option, equals, path = word.rpartition("=")
    outside = os.path.isabs(path) or path.startswith("..")
    return f"{option}{equals}{Path(path).name}" if outside else word


def versions(packages: Iterable[str] = PACKAGES) -> str:
    """Return the versions of Python and of the installed packages."""
    texts = [f"Python {platform.python_version()}"]
    for package in packages:
        try:
            texts.append(f"{package} {version(package)}")
        except PackageNotFoundError:
            continue
    return ", ".join(texts)


def machine() -> str:
    """Return cores, memory, processor and load of this machine."""
    cores = len(os.sched_getaffinity(0))
    gigabytes = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") / 1e9
    return f"{cores} cores, {gigabytes:.0f} GB, {_processor()}; load {os.getloadavg()[0]:.0f}"


def _processor() -> str:
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
    except OSError:
        return platform.machine()
    names = [line.partition(":")[2].strip() for line in lines if line.startswith("model name")]
    return names[0] if names else platform.machine()
