"""Jobs of `migrate launch`: validated by launchers, mistakes refused, preempted and continued.

    python benchmarks/launch_jobs.py [--python PATH] [--torch-tpu PATH] [--only TEXT]

Counts the outcomes of tests/launch, by kind of program. The first PATH is an interpreter with the launchers'
packages (docs/launch.md), the second one with torch_tpu and its simulation (make install-torch-tpu).
"""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
import tempfile
import xml.etree.ElementTree as ET
from collections import Counter, defaultdict
from dataclasses import dataclass
from pathlib import Path

from history import append

ROOT = Path(__file__).parents[1]
TPU_PYTHON = ROOT / ".venv-torch-tpu" / "bin" / "python"
KINDS = {"torch_xla": "torch_xla script", "torch_tpu": "torch_tpu script", "jax": "JAX program"}


@dataclass(frozen=True)
class Figure:
    """A figure that counts tests.

    Attributes:
        name: what it is called.
        file: the file of tests/launch.
        test: the test.
        kind: kind of program of all cases; empty: the case's name has it.
        times: outcomes that one test stands for.
    """

    name: str
    file: str
    test: str
    kind: str = ""
    times: int = 1


PREEMPTED, CONTINUED = (
    "preempted at random steps, same losses",
    "launchers whose start script continued",
)
TPU_FILE, JAX_FILE = "test_started_on_torch_tpu.py", "test_started_trained.py"
FIGURES = (
    Figure("written: launcher × slice", "test_validated.py", "test_the_files_of_a_job"),
    Figure(
        "accepted by the launcher's own parser",
        "test_validated.py",
        "test_the_launchers_own_parser",
    ),
    Figure(
        "planted mistakes refused with the remedy",
        "test_refused.py",
        "test_a_mistake_is_refused_with_the_remedy",
    ),
    Figure(PREEMPTED, "test_started.py", "test_ten_preemptions", "torch_xla", 10),
    Figure(PREEMPTED, TPU_FILE, "test_ten_preemptions", "torch_tpu", 10),
    Figure(PREEMPTED, JAX_FILE, "test_ten_preemptions", "jax", 10),
    Figure(CONTINUED, "test_started.py", "test_each_launchers_start", "torch_xla"),
    Figure(CONTINUED, TPU_FILE, "test_each_launchers_start", "torch_tpu"),
    Figure(CONTINUED, JAX_FILE, "test_each_launchers_start", "jax"),
)


def outcomes(figure: Figure, python: str, parsers: str) -> dict[str, Counter[str]]:
    """Return how often tests passed, failed and were skipped, by kind of program."""
    with tempfile.TemporaryDirectory() as folder:
        report = Path(folder) / "report.xml"
        command = [python, "-m", "pytest", "-q", "-n", "0", "-p", "no:cacheprovider"]
        command += ["-m", "long or not long", f"tests/launch/{figure.file}", "-k", figure.test]
        environment = os.environ | {"LAUNCH_PYTHON": parsers}
        if figure.kind == "torch_tpu":
            environment["TORCH_DEVICE_BACKEND_AUTOLOAD"] = "0"
        words = [*command, f"--junit-xml={report}"]
        subprocess.run(words, cwd=ROOT, env=environment, check=False)
        counts: dict[str, Counter[str]] = defaultdict(Counter)
        for case in ET.parse(report).iter("testcase"):
            states = {child.tag for child in case} & {"failure", "error", "skipped"}
            kind = figure.kind or next(kind for kind in KINDS if kind in str(case.get("name")))
            counts[kind][states.pop() if states else "passed"] += 1
    return counts


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--python", default=sys.executable)
    parser.add_argument("--torch-tpu", default=str(TPU_PYTHON))
    parser.add_argument("--only", default="", help="part of the figures' names, or of their kind")
    options = parser.parse_args()
    for figure in FIGURES:
        if options.only not in f"{figure.name} {figure.kind}":
            continue
        python = options.torch_tpu if figure.kind == "torch_tpu" else sys.executable
        for kind, counts in outcomes(figure, python, options.python).items():
            of = figure.times * (counts.total() - counts["skipped"])
            row = {"figure": f"{figure.name}: {KINDS[kind]}"}
            row |= {"passed": figure.times * counts["passed"], "of": of}
            print(row | {"skipped": counts["skipped"]})
            append("launch-jobs", row | {"without a parser": counts["skipped"] or ""})


if __name__ == "__main__":
    main()
