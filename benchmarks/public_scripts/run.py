"""Run public DDP scripts on synthetic data: unedited through `python -m shims`, or rewritten.

    python benchmarks/public_scripts/run.py --repositories DIR [--backend cpu] [--only NAME]
    python benchmarks/public_scripts/run.py --repositories DIR --rewritten [--prove] [--only NAME]
    python benchmarks/public_scripts/run.py --repositories DIR --prove [--over] --target torch_tpu …
    python benchmarks/public_scripts/run.py --repositories DIR --prove --sharded --target torch_tpu
    python benchmarks/public_scripts/run.py --repositories DIR --prove --small [--target torch_tpu]

With `--rewritten`, `migrate rewrite` rewrites the copy, or the folder of it that the script's line names,
and `migrate run --replicas 2` starts the result; no edit is made by hand. With `--prove` the original and
the result are run and compared instead, as `migrate prove` does, each in a copy of its own, as some of
them go on from what an earlier run has saved; every dropout and autocast are switched off. With
`--over` the script is rewritten for torch_xla first, and what that wrote for the target: what moves off
torch_xla later has to train the same. `--small` takes the examples of this repository and the small
projects `cases+NAME` in DIR. A script that does not train the same, and of which the rewrite reported
errors, is "refused", with their codes; so is one that `migrate rewrite` does not take.

DIR holds checkouts named OWNER+NAME; none of their code is in this repository, and nothing is written
to them: each run has a copy. What the scripts import (torchvision, hydra, boto3, blobfile) must be
importable; `site/` stands in for some of the rest, as each script's line says. Prints a line for each
script. Those of `--small`, `--sharded`, `--over` and of proofs for torch_tpu are also added to
benchmarks/history; for `--small` a line has the verdicts of both targets, each from its newest run.
"runs" means exit code 0, training steps in every rank, and weights that agree between the ranks before the
last step; otherwise the last error line.
"""

from __future__ import annotations

import argparse
import json
import os
import re
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from dataclasses import dataclass, replace
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1]))

from history import append, newest
from places import prepared
from proving import Proved, proved
from rewriting import MIGRATE, rewritten
from scripts import CASES, EXAMPLES, SCRIPTS, SHARDED, Script

from migrate.catalogue.target import TARGETS, TPU, XLA

ROOT = Path(__file__).parents[2]
RANKS = 2
SECONDS = 400
REWRITTEN = "rewritten"


@dataclass(frozen=True)
class Ended:
    """How a script ended: "runs", "refused" (by the shims, with a reason) or "fails".

    `rewriting` has the numbers of rewrites and findings, where it was rewritten first.
    """

    how: str
    seconds: float
    text: str
    rewriting: str = ""


def run(script: Script, repositories: Path, backend: str, scratch: Path, seconds: float) -> Ended:
    """Run one script in a copy of its repository."""
    place = prepared(script, repositories, scratch)
    path = place.repository / script.path
    rewriting = ""
    if backend == REWRITTEN:
        done = rewritten(script, place.repository)
        path, rewriting = done.path, done.counts
    args = place.args(f"{script.args} {script.args_on_xla if backend != 'cpu' else ''}")
    start = ["--start", script.start] if script.start else []
    command = [sys.executable, "-m", "shims", f"--ranks={RANKS}", "--backend", backend, *start]
    command.append(str(path))
    if backend == REWRITTEN:
        command = [*MIGRATE, "run", "--no-report", f"--replicas={RANKS}", str(path), "--"]
    records = scratch / "records"
    records.mkdir()
    variables = place.variables | {"PUBLIC_SCRIPTS_RECORDS": str(records)}
    if backend == "cpu":
        del variables["XLA_FLAGS"]
    started = time.monotonic()
    with subprocess.Popen(
        [*command, *args],
        env={**os.environ, **variables},
        cwd=place.folder,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        errors="replace",
    ) as process:
        try:
            output, _ = process.communicate(timeout=seconds)
        except subprocess.TimeoutExpired:
            # Asked to end, so that it ends its ranks too.
            process.send_signal(signal.SIGTERM)
            output, _ = process.communicate()
            steps = _steps(records)
            text = f"still running after {seconds:.0f} s; steps {steps}"
            return Ended("fails", seconds, text, rewriting)
    (scratch / "output.txt").write_text(output)
    took = time.monotonic() - started
    if process.returncode == 0:
        return replace(_judged(records, took), rewriting=rewriting)
    lines = re.findall(r"^.*(?:Error|Exception|error:).*$", output, re.M)
    refused = [line for line in lines if "NotAnsweredError" in line or "shims.errors." in line]
    text = (refused or lines or output.splitlines() or ["no message"])[-1].strip()[:300]
    return Ended("refused" if refused else "fails", took, text, rewriting)


def _judged(records: Path, seconds: float) -> Ended:
    """What a script that ended well has done: a process that made no step is no proof of anything."""
    steps = _steps(records)
    if sorted(steps) != list(range(RANKS)) or not all(steps.values()):
        return Ended("fails", seconds, f"exit code 0, but steps by rank: {steps}")
    last = min(steps.values())
    weights = {repr(lines[last - 1]["weights"]) for lines in _records(records).values()}
    if len(weights) > 1:
        return Ended("fails", seconds, f"the ranks' weights part: {sorted(weights)}")
    return Ended("runs", seconds, f"steps in each rank: {last}")


def _steps(records: Path) -> dict[int, int]:
    return {rank: len(lines) for rank, lines in _records(records).items()}


def _records(records: Path) -> dict[int, list[dict[str, float]]]:
    found = {}
    for file in records.glob("*.jsonl"):
        lines = [json.loads(line) for line in file.read_text().splitlines()]
        found[int(lines[0]["rank"])] = lines
    return found


def _chosen(options: argparse.Namespace) -> tuple[Script, ...]:
    if options.small:
        return (*EXAMPLES, *CASES)
    return SHARDED if options.sharded else SCRIPTS


def _note(script: Script, proof: Proved, options: argparse.Namespace) -> None:
    """Append a line to the history of what is measured."""
    line = {"script": script.name, "torch_tpu": proof.verdict, "what": proof.what}
    packages = ("torch", "torch_tpu")
    if options.small:
        # Each target has an environment of its own: the other's verdict is that of its newest run.
        earlier = newest("small-scripts", script.name)
        columns = [f"{target}{more}" for target in TARGETS for more in ("", " figures")]
        verdicts = {name: earlier.get(name, "") for name in columns}
        verdicts[options.target] = proof.verdict
        verdicts[f"{options.target} figures"] = proof.what
        line = {"script": script.name, "ranks": str(script.ranks), **verdicts}
        append("small-scripts", line, note=script.stands_in, packages=(*packages, "torch_xla"))
    elif options.sharded:
        line |= {"rewritten": proof.rewriting, "made small": script.stands_in}
        append("sharded-scripts", line, packages=packages)
    elif options.over:
        append("over", line, packages=packages)
    elif options.target == TPU:
        earlier = newest("public-scripts-torch-tpu", script.name)
        line["torch_xla"] = earlier.get("torch_xla", "")
        append("public-scripts-torch-tpu", line, packages=(*packages, "torchvision"))


def main() -> int:
    """Run the scripts; return the exit code."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--repositories", type=Path, required=True)
    parser.add_argument("--backend", default="cpu", choices=["cpu", "cuda", "xla"])
    parser.add_argument("--rewritten", action="store_const", const=REWRITTEN, dest="backend")
    parser.add_argument(
        "--prove", action="store_true", help="compare the rewrite with the original"
    )
    parser.add_argument("--target", choices=TARGETS, default=XLA, help="of the proofs")
    parser.add_argument(
        "--over", action="store_true", help="prove the rewrite of its rewrite for torch_xla"
    )
    parser.add_argument(
        "--sharded", action="store_true", help="the scripts that shard a model by FSDP2"
    )
    parser.add_argument("--small", action="store_true", help="the examples and small projects")
    parser.add_argument("--only", default="", help="part of the name of the scripts to run")
    parser.add_argument("--seconds", type=float, default=SECONDS, help="for each script")
    parser.add_argument("--output", type=Path, help="keep what the scripts printed in this folder")
    options = parser.parse_args()
    failed = 0
    for script in _chosen(options):
        if options.only not in script.name:
            continue
        with tempfile.TemporaryDirectory() as folder:
            scratch = Path(folder)
            repositories = ROOT if script.repository == "examples" else options.repositories
            if options.prove:
                proof = proved(
                    script,
                    repositories,
                    scratch,
                    script.ranks,
                    options.seconds,
                    options.target,
                    over=options.over,
                )
                failed += proof.verdict not in ("equal", "vacuous", "refused", "original fails")
                print(f"| {script.name} | {proof.cells} | {script.stands_in} |", flush=True)
                _note(script, proof, options)
                continue
            ended = run(script, repositories, options.backend, scratch, options.seconds)
            if options.output is not None and (scratch / "output.txt").is_file():
                options.output.mkdir(parents=True, exist_ok=True)
                name = re.sub(r"\W+", "_", f"{script.name} {options.backend}")
                shutil.copy(scratch / "output.txt", options.output / f"{name}.txt")
        failed += ended.how == "fails"
        cells = [script.name, options.backend, ended.how, f"{ended.seconds:.0f} s", ended.text]
        print(f"| {' | '.join([*cells, ended.rewriting, script.stands_in])} |", flush=True)
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
