"""How fast scripts and projects are rewritten, beside a libcst parse and print of the same files.

    python benchmarks/rewrite_speed.py [PROJECT...]

PROJECT are checkouts of repositories; without any, a project is made of installed packages. For each it
prints the user time of `migrate rewrite` and `migrate check` on the whole folder, in one process, as a
ratio to a parse and print by libcst in the same run (the bytecode of all modules being there, as pip leaves
it; garbage is collected as in the commands), and the peak memory; beside them what libcst's own analyses of
the same trees take, once: what a codemod with them needs before its first rule. Then how long the rewrite
of one script of 500 lines takes from the shell (median of 5), and how the time of one script grows when what
it holds is doubled five times: functions that move to the device, assignments to one name, names, classes,
findings, training loops; 2 is linear. User time is what other work on the machine disturbs least. Exit code
1 beyond a limit.
"""

from __future__ import annotations

import argparse
import os
import resource
import shutil
import statistics
import subprocess
import sys
import sysconfig
import tempfile
import time
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

from history import append

LIMIT_RATIO = 3.0  # to libcst's parse and print
LIMIT_MEMORY = 600  # MB
LIMIT_SECONDS = 1.5
LIMIT_GROWTH = 2.5  # where what a script holds is doubled
RUNS = 5
LINES = 100_000
PACKAGES = Path(sysconfig.get_path("purelib"))
FOLDERS = ("transformers/models", "torch/distributed")
MEMORY = "print(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss // 1024)"
REWRITE = f"""
import resource, sys
from pathlib import Path
from migrate.syntax.interpreter import collect_seldom
collect_seldom()
from migrate.rewrite.folder import rewrite_folder
rewrite_folder(Path(sys.argv[1]), processes=1)
{MEMORY}
"""
CHECK = f"""
import os, resource, sys
from pathlib import Path
from migrate.syntax.interpreter import collect_seldom
os.sched_setaffinity(0, sorted(os.sched_getaffinity(0))[:1])
collect_seldom()
from migrate.check.config import Config
from migrate.check.project import check_paths
check_paths([Path(sys.argv[1])], Config())
{MEMORY}
"""
PARSE_AND_PRINT = f"""
import resource, sys
from pathlib import Path
import libcst
from migrate.rewrite.folder import files_of
for path in files_of(Path(sys.argv[1])):
    if path.suffix == ".py" and not path.is_symlink():
        try:
            libcst.parse_module(path.read_bytes()).bytes
        except libcst.ParserSyntaxError:
            pass
{MEMORY}
"""
ANALYZED = f"""
import resource, sys
from pathlib import Path
import libcst
from libcst import metadata
from migrate.syntax.interpreter import collect_seldom
from migrate.rewrite.folder import files_of
collect_seldom()
ASKED = [
    metadata.PositionProvider, metadata.ParentNodeProvider, metadata.ScopeProvider,
    metadata.QualifiedNameProvider, metadata.ExpressionContextProvider,
]
for path in files_of(Path(sys.argv[1])):
    if path.suffix == ".py" and not path.is_symlink():
        try:
            module = libcst.parse_module(path.read_bytes())
        except libcst.ParserSyntaxError:
            continue
        module.bytes
        metadata.MetadataWrapper(module, unsafe_skip_copy=True).resolve_many(ASKED)
{MEMORY}
"""
GROWTH = """
import sys, time
from pathlib import Path
from migrate.syntax.interpreter import collect_seldom
from migrate.syntax.source import parse
from migrate.rewrite.pipeline import rewrite_source
collect_seldom()
scripts = eval(sys.stdin.read())
rewrite_source(parse(scripts[0], Path("script.py")))
for script in scripts:
    started = time.process_time()
    rewrite_source(parse(script, Path("script.py")))
    print(time.process_time() - started)
"""
# What a script is made of, n times: the lines at its head, and what is repeated.
BEGUN = "\n\ndef main():\n    x = torch.zeros(1).cuda()\n"
REPEATED = {
    "functions": ("", "\n\ndef f{n}(x):\n    y = x.cuda()\n    return y + {n}\n"),
    "assignments": (BEGUN, "    x = x + {n}\n"),
    "names": (BEGUN, "    x{n} = x + {n}\n"),
    "classes": (
        "",
        "\n\nclass C{n}(torch.nn.Module):\n    def forward(self, x):\n        return x * {n}\n",
    ),
    "findings": ("", "\n\ndef f{n}(x):\n    torch.distributed.new_group([0, {n}])\n    return x\n"),
    "training loops": (
        "",
        "\n\ndef train{n}(model, loader, optimizer):\n    model.cuda()\n    for x in loader:\n"
        "        loss = model(x.cuda()).sum()\n        loss.backward()\n        optimizer.step()\n",
    ),
}
FEWEST, DOUBLINGS = 25, 5
# One epoch of an ordinary script: what it has besides are as many lines of ordinary functions.
SCRIPT = """
import os

import torch
import torch.distributed as dist
import torch.multiprocessing as mp
from torch.nn.parallel import DistributedDataParallel as DDP


def main(rank, world_size):
    dist.init_process_group('nccl', rank=rank, world_size=world_size)
    torch.cuda.set_device(rank)
    model = torch.nn.Linear(8, 1).cuda(rank)
    model = DDP(model, device_ids=[rank])
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for step, (x, y) in enumerate(loader()):
        x, y = x.cuda(rank, non_blocking=True), y.cuda(rank, non_blocking=True)
        optimizer.zero_grad()
        loss = (model(x) - y).pow(2).mean()
        loss.backward()
        optimizer.step()
        if step % 10 == 0 and rank == 0:
            print(step, loss.item())
    if rank == 0:
        torch.save(model.state_dict(), 'model.pt')
    dist.destroy_process_group()


def loader():
    for _ in range(100):
        yield torch.ones(4, 8), torch.ones(4, 1)


if __name__ == '__main__':
    mp.spawn(main, args=(torch.cuda.device_count(),), nprocs=torch.cuda.device_count())
"""
FUNCTION = """

def accuracy_{n}(output, target, topk=(1,)):
    with torch.no_grad():
        maxk = max(topk)
        batch_size = target.size(0)
        _, pred = output.topk(maxk, 1, True, True)
        pred = pred.t()
        correct = pred.eq(target.view(1, -1).expand_as(pred))
        results = []
        for k in topk:  # {n}
            correct_k = correct[:k].reshape(-1).float().sum(0, keepdim=True)
            results.append(correct_k.mul_(100.0 / batch_size))
        return results
"""


def script() -> str:
    """Return a training script of 500 lines."""
    head, guard = SCRIPT.split("\n\nif __name__")
    number = 0
    while head.count("\n") < 500 - FUNCTION.count("\n"):
        head += FUNCTION.format(n=number)
        number += 1
    return f"{head}\n\nif __name__{guard}"


def copied(folders: Sequence[Path], to: Path, lines: int) -> int:
    """Copy Python files of `folders` into `to` until they have `lines` lines; return how many."""
    total = 0
    for index, folder in enumerate(folders):
        until = lines * (index + 1) / len(folders)
        for path in _files(folder):
            if total >= until:
                break
            place = to / folder.name / path.relative_to(folder)
            place.parent.mkdir(parents=True, exist_ok=True)
            shutil.copyfile(path, place)
            total += place.read_bytes().count(b"\n")
    return total


def _files(folder: Path) -> Iterator[Path]:
    return (path for path in sorted(folder.rglob("*.py")) if path.is_file())


def measured(
    command: list[str], environment: Mapping[str, str] | None = None, given: str | None = None
) -> tuple[float, float, str]:
    """Run `command`; return seconds on the clock, seconds of user time, and what it printed."""
    before = resource.getrusage(resource.RUSAGE_CHILDREN).ru_utime
    started = time.perf_counter()
    done = subprocess.run(
        command, check=True, capture_output=True, text=True, env=environment, input=given
    )
    wall = time.perf_counter() - started
    user = resource.getrusage(resource.RUSAGE_CHILDREN).ru_utime - before
    return wall, user, done.stdout.strip()


def with_bytecode(place: Path) -> dict[str, str]:
    """Return the environment in which Python keeps the bytecode of modules in a folder."""
    environment = {k: v for k, v in os.environ.items() if k != "PYTHONDONTWRITEBYTECODE"}
    return environment | {"PYTHONPYCACHEPREFIX": str(place / "bytecode")}


def project(folder: Path, place: Path) -> bool:
    """Print the figures of the project in `folder`; return whether it is within the limits.

    Args:
        folder: the project.
        place: a folder with a script, on which each program runs first: then all modules have bytecode.
    """
    lines = sum(path.read_bytes().count(b"\n") for path in _files(folder))
    environment = with_bytecode(place)
    figures = []
    for program in (PARSE_AND_PRINT, REWRITE, CHECK, ANALYZED):
        measured([sys.executable, "-c", program, str(place / "single")], environment)
        _, user, printed = measured([sys.executable, "-c", program, str(folder)], environment)
        figures.append((user, int(printed)))
    (least, _), *ours, (analyzed, _) = figures
    said = [
        f"{title} {user:.1f} s = {user / least:.1f} x, {memory} MB"
        for title, (user, memory) in zip(("rewrite", "check"), ours, strict=True)
    ]
    said.append(f"libcst's own analyses, once, {analyzed:.1f} s = {analyzed / least:.1f} x")
    shown = f"{folder.name}, {lines:,} lines: parse and print {least:.1f} s"
    print(f"{shown}; {'; '.join(said)}", flush=True)
    case = {"project": folder.name, "lines": f"{lines:,}", "parse and print": f"{least:.1f} s"}
    for title, (user, memory) in zip(("migrate rewrite", "migrate check"), ours, strict=True):
        case[title] = f"{user:.1f} s, {user / least:.1f} x, {memory} MB"
    case["libcst's own analyses"] = f"{analyzed / least:.1f} x"
    append("rewrite-speed", case | {"limit": f"{LIMIT_RATIO:g} x, {LIMIT_MEMORY} MB"})
    return all(user / least <= LIMIT_RATIO and memory <= LIMIT_MEMORY for user, memory in ours)


def growth() -> bool:
    """Print how the time grows with what a script holds; return whether it is within the limit."""
    within = True
    for title, (head, repeated) in REPEATED.items():
        counts = [FEWEST << doubling for doubling in range(DOUBLINGS + 1)]
        scripts = [
            ("import torch\n" + head + "".join(repeated.format(n=n) for n in range(count))).encode()
            for count in counts
        ]
        _, _, printed = measured([sys.executable, "-c", GROWTH], given=repr(scripts))
        seconds = [float(line) for line in printed.splitlines()]
        last = seconds[-1] / seconds[-2]
        shown = ", ".join(f"{one:.2f}" for one in seconds)
        sizes = f"{counts[0]} to {counts[-1]}"
        print(f"{title}, {sizes}: {shown} s; the last doubling {last:.1f} x", flush=True)
        append(
            "rewrite-linear",
            {
                "script of 25, 50, … 800": title,
                "seconds": f"{seconds[0]:.2f} to {seconds[-1]:.2f}",
                "last doubling": f"{last:.1f} x",
                "limit": LIMIT_GROWTH,
            },
        )
        within &= last <= LIMIT_GROWTH
    return within


def single(place: Path) -> bool:
    """Print how long one script takes from the shell; return whether it is within the limit."""
    source = place / "single" / "train.py"
    source.parent.mkdir()
    source.write_text(script())
    command = [str(Path(sys.executable).with_name("migrate")), "rewrite", str(source)]
    command += ["-o", str(place / "rewritten.py"), "--force"]
    environment = with_bytecode(place)
    measured(command, environment)
    runs = [measured(command, environment)[:2] for _ in range(RUNS)]
    wall, user = (statistics.median(run[kind] for run in runs) for kind in (0, 1))
    lines = source.read_text().count("\n")
    print(
        f"one script of {lines} lines from the shell, median of {RUNS}: {wall:.2f} s on the clock, "
        f"{user:.2f} s of user time; ratio of user time to {LIMIT_SECONDS} s: {user / LIMIT_SECONDS:.2f}"
    )
    case = {"script": f"{lines} lines, from the shell", "user s": f"{user:.2f}"}
    append("rewrite-single", case | {"limit": LIMIT_SECONDS})
    return user <= LIMIT_SECONDS


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("projects", nargs="*", type=Path)
    options = parser.parse_args()
    if missing := [str(folder) for folder in options.projects if not folder.is_dir()]:
        parser.error(f"no such folder: {', '.join(missing)}")
    print(f"{len(os.sched_getaffinity(0))} cores, load {os.getloadavg()[0]:.1f}")
    with tempfile.TemporaryDirectory() as made:
        place = Path(made)
        within = [single(place), growth()]
        projects = options.projects
        if not projects:
            projects = [place / "project"]
            copied([PACKAGES / folder for folder in FOLDERS], projects[0], LINES)
        within += [project(folder, place) for folder in projects]
    return 0 if all(within) else 1


if __name__ == "__main__":
    sys.exit(main())
