"""Jobs of `migrate launch`: validated by launchers, mistakes refused, preempted and continued.

    python benchmarks/launch_jobs.py [--python PATH]

Counts the outcomes of tests/launch. PATH is an interpreter with the launchers' packages (docs/launch.md).
"""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
import tempfile
import xml.etree.ElementTree as ET
from collections import Counter
from pathlib import Path

from history import append

ROOT = Path(__file__).parents[1]
# What a figure is called → the file and the test that it counts.
FIGURES = {
    "written: launcher × slice × program": ("test_validated.py", "test_the_files_of_a_job"),
    "accepted by the launcher's own parser": ("test_validated.py", "test_the_launchers_own_parser"),
    "planted mistakes refused with the remedy": (
        "test_refused.py",
        "test_a_mistake_is_refused_with_the_remedy",
    ),
    "preempted at random steps, same losses": ("test_started.py", "test_ten_preemptions"),
    "launchers whose start script continued": ("test_started.py", "test_each_launchers_start"),
}


def outcomes(file: str, name: str, python: str) -> Counter[str]:
    with tempfile.TemporaryDirectory() as folder:
        report = Path(folder) / "report.xml"
        command = [
            sys.executable,
            "-m",
            "pytest",
            "-q",
            "-p",
            "no:cacheprovider",
            "-m",
            "long or not long",
        ]
        command += [f"tests/launch/{file}", "-k", name, f"--junit-xml={report}"]
        environment = os.environ | {"LAUNCH_PYTHON": python}
        subprocess.run(command, cwd=ROOT, env=environment, check=False)
        counts: Counter[str] = Counter()
        for case in ET.parse(report).iter("testcase"):
            states = {child.tag for child in case} & {"failure", "error", "skipped"}
            counts[states.pop() if states else "passed"] += 1
    return counts


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--python", default=sys.executable)
    options = parser.parse_args()
    cases = []
    for figure, (file, name) in FIGURES.items():
        counts = outcomes(file, name, options.python)
        # The ten preemptions are one test.
        times = 10 if "ten_preemptions" in name else 1
        of = times * (counts.total() - counts["skipped"])
        row = {"figure": figure, "passed": times * counts["passed"], "of": of}
        print(row | {"skipped": counts["skipped"]})
        cases.append(row | {"without a parser": counts["skipped"] or ""})
    append("launch-jobs", *cases)


if __name__ == "__main__":
    main()
