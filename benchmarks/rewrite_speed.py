"""How fast scripts and projects are rewritten, beside libcst's own runner with a transform that does nothing.

    python benchmarks/rewrite_speed.py [--lines N] [FOLDER...]

The project is made of installed packages, copied into a temporary folder until it has N lines. Prints the
lines per second on one process and on two, of `migrate rewrite`, `migrate check` and libcst's runner, and
how long the rewrite of one script of 500 lines takes from the shell (median of 5), the bytecode of the
modules being there, as pip leaves it. Beside the time on the clock stands user time, which other work on the
machine disturbs less; the limits are held against it: 2,000 lines a second and core, 1.5 s for the script.
Exit code 1 beyond a limit.
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

LIMIT_LINES = 2000
LIMIT_SECONDS = 1.5
RUNS = 5
PACKAGES = Path(sysconfig.get_path("purelib"))
FOLDERS = ("transformers/models", "torch/distributed")
OURS = """
import sys
from pathlib import Path
from migrate.rewrite.folder import rewrite_folder
if __name__ == "__main__":
    done = rewrite_folder(Path(sys.argv[1]), processes=int(sys.argv[2]))
    print(len(done.files), done.untouched, len(done.changed), len(done.problems))
"""
CHECK = """
import os
import sys
from pathlib import Path
from migrate.check.config import Config
from migrate.check.project import check_paths
if __name__ == "__main__":
    os.sched_setaffinity(0, sorted(os.sched_getaffinity(0))[: int(sys.argv[2])])
    done = check_paths([Path(sys.argv[1])], Config())
    print(done.files, len(done.findings))
"""
THEIRS = """
import sys
from libcst.codemod import CodemodContext, VisitorBasedCodemodCommand
from libcst.codemod import gather_files, parallel_exec_transform_with_prettyprint
class Nothing(VisitorBasedCodemodCommand):
    DESCRIPTION = "Change nothing."
if __name__ == "__main__":
    result = parallel_exec_transform_with_prettyprint(
        Nothing(CodemodContext()), gather_files([sys.argv[1]]), jobs=int(sys.argv[2]),
        hide_progress=True,
    )
    print(result.successes, result.failures)
"""
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
    command: list[str], environment: Mapping[str, str] | None = None
) -> tuple[float, float, str]:
    """Run `command`; return seconds on the clock, seconds of user time, and what it printed."""
    before = resource.getrusage(resource.RUSAGE_CHILDREN).ru_utime
    started = time.perf_counter()
    done = subprocess.run(command, check=True, capture_output=True, text=True, env=environment)
    wall = time.perf_counter() - started
    user = resource.getrusage(resource.RUSAGE_CHILDREN).ru_utime - before
    return wall, user, done.stdout.strip()


def project(folder: Path, place: Path, lines: int) -> bool:
    """Print the figures of the project in `folder`; return whether it is within the limit."""
    programs = (
        ("migrate rewrite", OURS),
        ("migrate check", CHECK),
        ("libcst, nothing done", THEIRS),
    )
    for number, (_, text) in enumerate(programs):
        (place / f"program_{number}.py").write_text(text)
    within = True
    for processes in (1, 2):
        users = []
        for number, (title, _) in enumerate(programs):
            program = str(place / f"program_{number}.py")
            wall, user, printed = measured([sys.executable, program, str(folder), str(processes)])
            users.append(user)
            print(
                f"{title}, {processes} process{'es' * (processes > 1)}: {lines / wall:,.0f} lines/s on "
                f"the clock, {lines / user:,.0f} lines a second of user time ({printed})",
                flush=True,
            )
        rewriting, checking, nothing = users
        ratios = f"rewrite {rewriting / nothing:.2f}, check {checking / nothing:.2f}"
        print(f"  user time, ratio to libcst's: {ratios}", flush=True)
        within &= lines / users[0] >= LIMIT_LINES
    return within


def single(place: Path) -> bool:
    """Print how long one script takes from the shell; return whether it is within the limit."""
    source = place / "train.py"
    source.write_text(script())
    command = [str(Path(sys.executable).with_name("migrate")), "rewrite", str(source)]
    command += ["-o", str(place / "rewritten.py"), "--force"]
    with_bytecode = {k: v for k, v in os.environ.items() if k != "PYTHONDONTWRITEBYTECODE"}
    with_bytecode["PYTHONPYCACHEPREFIX"] = str(place / "bytecode")
    measured(command, with_bytecode)
    runs = [measured(command, with_bytecode)[:2] for _ in range(RUNS)]
    wall, user = (statistics.median(run[kind] for run in runs) for kind in (0, 1))
    lines = source.read_text().count("\n")
    print(
        f"one script of {lines} lines from the shell, median of {RUNS}: {wall:.2f} s on the clock, "
        f"{user:.2f} s of user time; ratio of user time to {LIMIT_SECONDS} s: {user / LIMIT_SECONDS:.2f}"
    )
    return user <= LIMIT_SECONDS


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("folders", nargs="*", type=Path)
    parser.add_argument("--lines", type=int, default=100_000)
    options = parser.parse_args()
    folders = options.folders or [PACKAGES / folder for folder in FOLDERS]
    print(f"{len(os.sched_getaffinity(0))} cores, load {os.getloadavg()[0]:.1f}")
    with tempfile.TemporaryDirectory() as made:
        place = Path(made)
        script_within = single(place)
        folder = place / "project"
        lines = copied(folders, folder, options.lines)
        files = sum(1 for _ in _files(folder))
        print(f"project: {lines:,} lines in {files} files")
        within = project(folder, place, lines)
    return 0 if within and script_within else 1


if __name__ == "__main__":
    sys.exit(main())
