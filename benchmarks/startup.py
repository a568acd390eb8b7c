"""How long `migrate --help` takes, against its limit of 0.2 s and against an empty Python process.

    python benchmarks/startup.py

Prints the median of 20 runs of each, in turn, after one warm-up, and the ratios; exit code 1 over the
limit.
"""

from __future__ import annotations

import statistics
import subprocess
import sys
import time
from pathlib import Path

from history import append

LIMIT_SECONDS = 0.2
RUNS = 20
COMMANDS = {
    "migrate --help": [str(Path(sys.executable).with_name("migrate")), "--help"],
    "python -c pass": [sys.executable, "-c", "pass"],
}


def seconds(command: list[str]) -> float:
    started = time.perf_counter()
    subprocess.run(command, check=True, capture_output=True)
    return time.perf_counter() - started


def main() -> int:
    times: dict[str, list[float]] = {name: [] for name in COMMANDS}
    for run in range(RUNS + 1):
        for name, command in COMMANDS.items():
            taken = seconds(command)
            if run > 0:
                times[name].append(taken)
    medians = {name: statistics.median(taken) for name, taken in times.items()}
    for name, median in medians.items():
        print(f"{name}: median {median * 1000:.0f} ms of {RUNS} runs")
    ours, empty = medians.values()
    print(f"ratio to an empty process: {ours / empty:.1f}")
    print(f"ratio to the limit of {LIMIT_SECONDS} s: {ours / LIMIT_SECONDS:.2f}")
    append(
        "startup",
        {
            "run": "migrate --help",
            f"median of {RUNS}, ms": f"{ours * 1000:.0f}",
            "÷ python -c pass": f"{ours / empty:.1f}",
            f"÷ limit of {LIMIT_SECONDS} s": f"{ours / LIMIT_SECONDS:.2f}",
        },
    )
    return 0 if ours <= LIMIT_SECONDS else 1


if __name__ == "__main__":
    sys.exit(main())
