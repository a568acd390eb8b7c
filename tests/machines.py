"""`make test-machines`: the tests on machines of another make, as far as one machine can be them.

    python tests/machines.py            all rows (the verdicts of `avx2` are in it)
    python tests/machines.py avx2 load  those

A row runs the tests in place under other settings, or in a clone of its own (of what is committed) with a
new environment, which is removed afterwards. What a row needs and this machine lacks (a Python, `taskset`,
being root to become somebody else) is said, and the row is left out. Prints a table; exit
code 1 where a row failed.
"""

from __future__ import annotations

import contextlib
import os
import platform
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
CORES = os.cpu_count() or 1
PYTHONS = ("3.11.2", "3.11", "3.12", "3.13")
# Where results are numbers that a CPU's kernels make; what files hold and where they are is bytes, what is
# said of processes that hang, stop, fail or miss a file is words.
NUMERIC = (
    "tests/parity",
    "tests/prove",
    "tests/converters",
    "--ignore=tests/converters/checkpoint",
    "--ignore=tests/converters/hosts",
    "--ignore=tests/converters/inference",
    "--ignore=tests/converters/output/test_memory.py",
    "--ignore=tests/converters/output/test_resume.py",
    "--ignore=tests/converters/remote",
    "--ignore=tests/parity/sides/test_process.py",
    "--ignore=tests/prove/record/test_stop.py",
    "--ignore=tests/prove/test_resume.py",
    "--ignore=tests/prove/test_run.py",
    "--ignore=tests/prove/test_waiting.py",
    "--ignore=tests/prove/test_whose_error.py",
)
# Of these, where a last bit decides between "matches" and "differs" and not only how near a tolerance is;
# CI runs them at each change.
VERDICTS = (
    "tests/parity/judge",
    "tests/parity/emulate",
    "tests/parity/tasks",
    "tests/parity/test_compare.py",
    "tests/parity/test_faults.py",
    "tests/parity/test_outputs.py",
    "tests/parity/test_pairs.py",
    "tests/parity/test_precision.py",
    "tests/prove/compare",
    "tests/prove/test_faults.py",
    "tests/converters/layers",
)
# What starts processes and waits for them.
WAITING = ("tests/prove", "tests/observe", "tests/shims", "tests/report", "tests/devices")
PYTEST = ("-m", "pytest", "-q", "-m", "not long", "-n", "2", "--dist", "loadfile")
NOBODY = 65534

AVX2 = {
    "OPENBLAS_CORETYPE": "Haswell",
    "ATEN_CPU_CAPABILITY": "avx2",
    "ONEDNN_MAX_CPU_ISA": "AVX2",
    "MKL_ENABLE_INSTRUCTIONS": "AVX2",
    # With LLVM's optimizations, which the other tests leave out.
    "XLA_FLAGS": "--xla_cpu_max_isa=AVX2 --xla_backend_optimization_level=3",
}
# XLA itself goes no lower than AVX: below, its compiler aborts at float16 (`LLVM ERROR: … __truncsfhf2`).
SSE = {
    "OPENBLAS_CORETYPE": "Nehalem",
    "ATEN_CPU_CAPABILITY": "default",
    "ONEDNN_MAX_CPU_ISA": "SSE41",
    "MKL_ENABLE_INSTRUCTIONS": "SSE4_2",
    "XLA_FLAGS": "--xla_cpu_max_isa=AVX",
}
ELSEWHERE = {"LC_ALL": "C", "TZ": "Asia/Kathmandu"}


@dataclass(frozen=True)
class Row:
    """A machine.

    Attributes:
        what: it in words.
        tests: files and folders; () is the whole suite.
        settings: environment variables.
        before: what stands before the command.
        run: how it is run; it returns the command's exit code and its last line.
    """

    what: str
    run: Callable[[Row], tuple[int, str]]
    tests: tuple[str, ...] = ()
    settings: Mapping[str, str] = field(default_factory=dict)
    before: tuple[str, ...] = ()
    python: str = ""


class LeftOutError(Exception):
    """The row cannot be run here; the text says why."""


def command(
    words: list[str], row: Row, folder: Path, user: int | None = None, **settings: str
) -> tuple[int, str]:
    """Run it, showing what it prints; its exit code and its last line."""
    last = ""
    environment = {**os.environ, **row.settings, **settings}
    process = subprocess.Popen(
        [*row.before, *words],
        cwd=folder,
        env=environment,
        user=user,
        group=user,
        extra_groups=[] if user is not None else None,
        umask=0o077 if user is not None else -1,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        errors="replace",
    )
    assert process.stdout is not None
    for line in process.stdout:
        print(line, end="", flush=True)
        last = line.strip() or last
    return process.wait(), last.strip("= ")


def in_place(row: Row) -> tuple[int, str]:
    """This checkout, with the Python that runs this."""
    if row.before and shutil.which(row.before[0]) is None:
        raise LeftOutError(f"{row.before[0]} is not installed")
    return command([sys.executable, *PYTEST, *row.tests], row, ROOT)


def with_avx2(row: Row) -> tuple[int, str]:
    """In place, with the kernels of older CPUs; a CPU that has no newer ones is this machine already."""
    if platform.machine() == "x86_64" and " avx512f " not in Path("/proc/cpuinfo").read_text():
        raise LeftOutError(
            "this CPU has no more than AVX2, so the other tests have run as this row"
        )
    return in_place(row)


def under_load(row: Row) -> tuple[int, str]:
    """In place, with four busy processes a core beside it."""
    busy = [subprocess.Popen([sys.executable, "-c", "while True: pass"]) for _ in range(4 * CORES)]
    try:
        return in_place(row)
    finally:
        for process in busy:
            process.kill()
            process.wait()


def anew(row: Row) -> tuple[int, str]:
    """A clone, its own environment, another Python."""
    program = interpreter(row.python)
    with clone("tpu-migrate") as folder:
        return made_and_tested(row, folder, program)


def as_somebody(row: Row) -> tuple[int, str]:
    """The same as an ordinary user, whose home is read-only, in a path with a space."""
    if os.getuid() != 0:
        raise LeftOutError("only root can become another user; run the whole as one instead")
    program = interpreter(row.python, of_all=True)
    with clone("tpu migrate") as folder:
        place = folder.parent
        for name, mode in (("home", 0o555), ("temporary", 0o700)):
            (place / name).mkdir()
            (place / name).chmod(mode)
        for path in (place, *place.rglob("*")):
            if path.name != "home":
                os.chown(path, NOBODY, NOBODY, follow_symlinks=False)
        home, temporary = str(place / "home"), str(place / "temporary")
        return made_and_tested(row, folder, program, NOBODY, HOME=home, TMPDIR=temporary)


def made_and_tested(
    row: Row, folder: Path, program: str, user: int | None = None, **settings: str
) -> tuple[int, str]:
    code, last = command(["make", "install", f"PYTHON={program}"], row, folder, user, **settings)
    if code:
        return code, f"make install: {last}"
    return command([".venv/bin/python", *PYTEST, *row.tests], row, folder, user, **settings)


@contextlib.contextmanager
def clone(name: str) -> Iterator[Path]:
    """The last commit in a folder of this name; all of it goes afterwards."""
    place = Path(tempfile.mkdtemp(prefix="machines-"))
    try:
        subprocess.run(["git", "clone", "--quiet", str(ROOT), str(place / name)], check=True)
        yield place / name
    finally:
        shutil.rmtree(place, ignore_errors=True)


def interpreter(version: str, *, of_all: bool = False) -> str:
    """A Python of this version; `of_all`: one that is not below this user's home.

    Raises:
        LeftOutError: none is found.
    """
    minor = ".".join(version.split(".")[:2])
    tried = [f"python{minor}", f"/usr/bin/python{minor}", f"/usr/local/bin/python{minor}"]
    versions = Path(os.environ.get("PYENV_ROOT", Path.home() / ".pyenv")) / "versions"
    tried += [str(path / "bin" / "python") for path in sorted(versions.glob(f"{minor}.*"))]
    asked = "import sys; print('.'.join(map(str, sys.version_info[:3])))"
    for name in tried:
        program = shutil.which(name)
        if program is None or (of_all and Path(program).is_relative_to(Path.home())):
            continue
        said = subprocess.run([program, "-c", asked], capture_output=True, text=True).stdout.strip()
        if said == version or said.startswith(f"{version}."):
            return program
    raise LeftOutError(f"no Python {version}")


ROWS = {
    "avx2": Row("a CPU with AVX2 only, as far as variables say so", with_avx2, NUMERIC, AVX2),
    "avx2-verdicts": Row("the same, the tests of verdicts", with_avx2, VERDICTS, AVX2),
    "sse": Row("a CPU with SSE only, XLA with AVX", in_place, NUMERIC, SSE),
    "elsewhere": Row("`LC_ALL=C`, Kathmandu's time", in_place, (), ELSEWHERE),
    "one-core": Row("one core", in_place, WAITING, before=("taskset", "-c", "0")),
    "load": Row(f"{4 * CORES} busy processes on {CORES} cores", under_load, WAITING),
    **{f"python{v}": Row(f"Python {v}, a fresh clone", anew, python=v) for v in PYTHONS},
    "user": Row(
        "an ordinary user, read-only home, umask 077, a path with a space, SSE only",
        as_somebody,
        (),
        {**SSE, **ELSEWHERE},
        python="3.11",
    ),
}


def main(names: list[str]) -> int:
    unknown = [name for name in names if name not in ROWS]
    if unknown:
        print(f"no such machine: {', '.join(unknown)}; there are {', '.join(ROWS)}")
        return 2
    lines, failed = [], False
    for name in names or [name for name in ROWS if name != "avx2-verdicts"]:
        row, start = ROWS[name], time.monotonic()
        print(f"== {name}: {row.what}", flush=True)
        try:
            code, last = row.run(row)
            failed |= code != 0
        except LeftOutError as reason:
            last = f"left out: {reason}"
        minutes = (time.monotonic() - start) / 60
        tests = " ".join(row.tests) or "all"
        lines.append(f"| {name} | {row.what} | {tests} | {last} | {minutes:.0f} |")
    print("\n| row | machine | tests | result | minutes |\n|---|---|---|---|---|")
    print("\n".join(lines))
    return int(failed)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
