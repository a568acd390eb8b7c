"""Train whole public projects after `migrate rewrite`, on 2 simulated replicas, and prove them.

    python benchmarks/strangers_trained/run.py --checkouts DIR [--only NAME] [--stage rewrite|run|prove]

DIR holds checkouts named OWNER+NAME; none of their code is in this repository, and nothing is written to
them: each is copied. `migrate rewrite` rewrites the copy as a whole, `migrate run` trains the result and
`migrate prove` compares it with the original; no edit is made by hand. `projects.py` has for each project the
arguments that make it small, `data.py` its data, and `site/` what stands in for the packages that it imports.
Needed besides, installed or on PYTHONPATH: torchvision 0.24.1, pycocotools, yacs, termcolor, pytz,
typed-argument-parser.

Prints a row of a table for each project. Exit code 1 if one does not train or is not proven equal.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import subprocess
import sys
import tempfile
import time
from collections import Counter
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from projects import PROJECTS, Project

HERE = Path(__file__).parent
MIGRATE = str(Path(sys.executable).with_name("migrate"))
STAGES = ("rewrite", "run", "prove")


@dataclass(frozen=True)
class Done:
    """What a command printed as JSON, and how it ended."""

    returncode: int
    seconds: float
    printed: Any
    errors: str


class Bench:
    """One project in its folder: the copy, the rewrite of it, the data."""

    def __init__(self, project: Project, checkouts: Path, scratch: Path) -> None:
        """Copy the project and make its data."""
        self.project = project
        checkout = checkouts / project.repository
        self.commit = _git(checkout, "rev-parse", "--short=7", "HEAD")
        self.scratch = scratch
        self.original = scratch / project.repository
        self.rewritten = scratch / f"{project.repository}_xla"
        self.data = scratch / "data"
        if self.original.is_dir():
            return
        ignored = shutil.ignore_patterns(".git", "__pycache__")
        shutil.copytree(checkout, self.original, ignore=ignored)
        self.data.mkdir()
        project.prepare(self.original, self.data)

    def rewrite(self) -> Done:
        """Rewrite the whole project."""
        return self._migrate(
            "rewrite", "--json", str(self.original), "-o", str(self.rewritten), "--force"
        )

    def run(self) -> Done:
        """Train what the rewrite wrote, in folders of its own: the proof is to find no checkpoint of it."""
        folders = [self.scratch / name for name in ("run", "run_xla")]
        for folder, copied in zip(folders, (self.original, self.rewritten), strict=True):
            shutil.rmtree(folder, ignore_errors=True)
            shutil.copytree(copied, folder)
        script = folders[1] / self.project.script
        options = ("--json", "--replicas=2", f"--timeout={self.project.seconds}")
        return self._migrate("run", *options, str(script), "--", *self._args(), folder=folders[0])

    def prove(self) -> Done:
        """Compare it with the original."""
        options = ["--json", "--replicas=2", f"--timeout={self.project.seconds}"]
        options += ["--rewritten", str(self.rewritten / self.project.script)]
        options += self.project.to_prove.split()
        script = self.original / self.project.script
        return self._migrate(
            "prove", *options, str(script), "--", *self._args(), folder=self.original
        )

    def _args(self) -> list[str]:
        return self.project.args.format(data=self.data).split()

    def _migrate(self, *args: str, folder: Path | None = None) -> Done:
        path = [HERE / "site", HERE.parents[1], os.environ.get("PYTHONPATH", "")]
        variables = {
            "PYTHONPATH": os.pathsep.join(str(entry) for entry in path if str(entry)),
            "STRANGERS_PROJECT": self.project.name,
            "XLA_FLAGS": os.environ.get("XLA_FLAGS", "--xla_backend_optimization_level=0"),
        }
        started = time.monotonic()
        done = subprocess.run(
            [MIGRATE, *args],
            env={**os.environ, **variables},
            cwd=folder or self.scratch,
            capture_output=True,
            text=True,
            errors="replace",
            check=False,
        )
        took = time.monotonic() - started
        (self.scratch / f"{args[0]}.json").write_text(done.stdout)
        (self.scratch / f"{args[0]}.txt").write_text(done.stderr)
        try:
            printed = json.loads(done.stdout)
        except ValueError:
            printed = None
        return Done(done.returncode, took, printed, done.stderr)


def _git(folder: Path, *args: str) -> str:
    done = subprocess.run(["git", "-C", folder, *args], capture_output=True, text=True, check=False)
    return done.stdout.strip() or "?"


def row(bench: Bench, stages: tuple[str, ...]) -> tuple[bool, str]:
    """Take the project through the stages; return whether all is well, and its row."""
    cells = [bench.project.name, bench.commit]
    fine = True
    if "rewrite" in stages:
        done = bench.rewrite()
        if done.printed is None:
            return False, _row(*cells, f"rewrite fails: {_last(done.errors)}")
        left = Counter(finding["severity"] for finding in done.printed["left_to_do"])
        cells.append(", ".join(f"{count} {severity}" for severity, count in left.items()) or "0")
    if "run" in stages:
        done = bench.run()
        fine &= done.returncode == 0
        cells.append(_trained(done))
    if "prove" in stages:
        done = bench.prove()
        fine &= done.returncode == 0
        cells.append(_proven(done))
    return fine, _row(*cells)


def _row(*cells: str) -> str:
    return f"| {' | '.join(cells)} |"


def _trained(done: Done) -> str:
    report = (done.printed or {}).get("report")
    if done.returncode or not report:
        return f"fails after {done.seconds:.0f} s: {_last(done.errors)}"
    steps = [loop["optimizer_steps"] for loop in report["loops"]]
    return f"trains ({max(steps, default=0)}), {done.seconds:.0f} s"


def _proven(done: Done) -> str:
    proof = done.printed
    if proof is None:
        return f"no proof: {_last(done.errors)}"
    return f"{proof['verdict']}: {proof['message']}"


def _last(errors: str) -> str:
    lines = [line.strip() for line in errors.splitlines() if line.strip()]
    told = [line for line in lines if "Error" in line]
    return (told or lines or ["no message"])[-1][:300]


def main() -> int:
    """Take each project through the stages; return the exit code."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--checkouts", type=Path, required=True)
    parser.add_argument("--only", default="", help="part of the name of the projects to take")
    parser.add_argument("--stage", choices=STAGES, help="only this one, in the folder of --keep")
    parser.add_argument("--keep", type=Path, help="work in this folder, and leave it")
    options = parser.parse_args()
    if options.stage and not options.keep:
        parser.error("--stage needs the folder of --keep")
    stages = (options.stage,) if options.stage else STAGES
    fine = True
    for project in PROJECTS:
        if options.only not in project.name:
            continue
        with tempfile.TemporaryDirectory() as folder:
            scratch = (options.keep or Path(folder)) / project.name
            if scratch.exists() and options.stage in (None, "rewrite"):
                shutil.rmtree(scratch)
            bench = Bench(project, options.checkouts, scratch)
            done, line = row(bench, stages)
        fine &= done
        print(line, flush=True)
    return 0 if fine else 1


if __name__ == "__main__":
    sys.exit(main())
