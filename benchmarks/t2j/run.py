"""Converts scripts of the benchmark by `migrate train` and judges the programs.

    python benchmarks/t2j/run.py gpt2_sft llama_sft [--train=--no-proof] [--timeout SECONDS]

A line for each task goes to benchmarks/history/t2j.csv: what `migrate train` says itself, and the three
stages of the judge. Families that are held back are refused without --held-back.
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
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[2]))

from benchmarks import history
from benchmarks.t2j import freeze, tasks
from benchmarks.t2j.judge import STAGES

HERE = Path(__file__).resolve().parent
SAID = {0: "equal", 1: "differs", 2: "refused"}
# Verdicts beside "different" whose exit code is 1 too: the script itself has no more digits.
LIMITED = ("amplifies", "cancels")
# The verdict that trainings are equal, and that interface.py cannot have a function of the script.
EXCEPT_NAMES = "match except names"
PASSED, FALSELY = "all stages", "called equal, but a stage fails"
WORDS = {True: "passed", False: "failed", None: ""}


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("tasks", nargs="+", metavar="TASK", help="name of a script, as gpt2_sft")
    parser.add_argument("--train", action="append", default=[], help="option of `migrate train`")
    parser.add_argument("--timeout", type=float, default=1500, help="seconds for one command")
    parser.add_argument("--held-back", action="store_true", help="allow the families held back")
    parser.add_argument("--keep", type=Path, help="folder for the programs and their logs")
    asked = parser.parse_args()
    for task in asked.tasks:
        if task not in tasks.read_tasks():
            parser.error(f"{task}: no such task")
        if task.rpartition("_")[0] in freeze.read()["held_back"] and not asked.held_back:
            parser.error(
                f"{task}: its family is held back; pass --held-back at the end of the work"
            )
    for task in asked.tasks:
        with tempfile.TemporaryDirectory(prefix="t2j-run-") as work:
            line = measured(task, asked.keep or Path(work), asked.train, asked.timeout)
        print(json.dumps(line), flush=True)
        history.append("t2j", line)
    return 0


def measured(task: str, folder: Path, options: list[str], timeout: float) -> dict[str, object]:
    """Convert one script and judge the program; return the line of the history."""
    folder = folder.resolve()
    script, program = HERE / "scripts" / f"{task}.py", folder / task
    shutil.rmtree(program, ignore_errors=True)  # of an earlier run, under --keep
    start = time.monotonic()
    command = [sys.executable, "-m", "migrate", "train", str(script), "-o", str(program)]
    entry = tasks.read_task(script)
    if scores := entry.get("scores"):
        command += ["--scores", scores]
    else:  # the judge compares the program's own batches
        command += ["--batch-names", ",".join(entry["batch"])]
    code, text = run(
        [*command, "--timeout", str(timeout), *options], timeout, folder / f"{task}.log"
    )
    said = SAID.get(code, "failed") if code is not None else "too long"
    words = [line.partition(":")[0] for line in text.splitlines()]
    if code == 0 and EXCEPT_NAMES in words:
        said = "equal except names"
    if code == 1:
        said = next((word for word in LIMITED if word in words), said)
    if code == 0 and "--no-proof" in options:
        said = "not compared"
    line: dict[str, object] = {"task": task, "migrate train": said}
    reason = last_message(text, script) if not program.exists() else ""
    stages = dict.fromkeys(STAGES, "")
    if program.exists():
        answer = folder / f"{task}.json"
        judge = [sys.executable, str(HERE / "judge.py"), str(program), str(script)]
        code, text = run([*judge, "--json", str(answer)], timeout, folder / f"{task}.judge")
        if answer.exists():
            verdicts = json.loads(answer.read_text())
            stages = {v["stage"]: WORDS[v["passed"]] for v in verdicts}
            reason = next((v["reason"] for v in verdicts if v["passed"] is False), "")
        else:
            reason = "the judge did not end"
    seconds = round(time.monotonic() - start)
    failed = WORDS[False] in stages.values()
    sums = {
        PASSED: int(all(stages[stage] == WORDS[True] for stage in STAGES)),
        FALSELY: int(said == SAID[0] and failed),
    }
    return {**line, **stages, "reason": reason[:200], "seconds": seconds, **sums}


def run(command: list[str], timeout: float, log: Path) -> tuple[int | None, str]:
    """Run a command beside the scripts; return its exit code, None if it took too long, and its output.

    `migrate train` mirrors the folder that it runs in for each of its runs: that is not the whole repository.
    """
    paths = os.pathsep.join(filter(None, (str(HERE.parents[1]), os.environ.get("PYTHONPATH"))))
    with log.open("w") as file:
        try:
            done = subprocess.run(
                command,
                stdout=file,
                stderr=file,
                timeout=timeout + 60,
                check=False,
                cwd=HERE / "scripts",
                env={**os.environ, "PYTHONPATH": paths},
            )
        except subprocess.TimeoutExpired:
            return None, log.read_text()
    return done.returncode, log.read_text()


def last_message(text: str, script: Path) -> str:
    """Last line that starts at the margin, without the folder of the script."""
    lines = [line for line in text.splitlines() if line.strip() and not line.startswith((" ", "…"))]
    said = lines[-1] if lines else "no message"
    return said.replace(f"{script.parent}/", "").removeprefix("migrate: ")


if __name__ == "__main__":
    sys.exit(main())
