"""What `migrate fit` says of the public scripts and of every example, for a v5e-8 and a v6e-8.

    python benchmarks/public_scripts/fitting.py --repositories DIR [--csv FILE] [--only NAME] [--again STATE…]
    python benchmarks/public_scripts/fitting.py --summary [--csv FILE]

Each script is rewritten in a copy of its repository, as `run.py --rewritten` does, on the same synthetic
data, and run as the first of eight replicas until its step is known; that step is compiled for both slices.
Each is a process of its own with a cache of its own: the compiler is asked. `--quick` lets it take less
trouble, where a machine has no time for more: the verdict is one, the memory another, and the row says so. A
row is added to the CSV as soon as it is known; what has rows is not run again, unless its state is named with
--again (or `all`). Exit code 1 where a script has no verdict, or another one than "fits".
"""

from __future__ import annotations

import argparse
import csv
import json
import os
import subprocess
import sys
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from places import prepared
from rewriting import rewritten
from scripts import SCRIPTS, Script

ROOT = Path(__file__).parents[2]
SLICES = ("v5e-8", "v6e-8")
IMAGES = 64  # of each class: eight replicas make several steps of an epoch
FAST = (
    "--xla_backend_optimization_level=0"  # of the CPU's compiler, whose program makes a few steps
)
COLUMNS = (
    *("name", "slice", "state", "hbm", "of", "reduced", "exchanged", "exposed", "compile", "whole"),
    *("programs", "why"),
)
Row = dict[str, str]


@dataclass(frozen=True)
class Example:
    """A script of `examples/`.

    Attributes:
        path: from `examples/` on.
        args: `{out}` is an empty folder.
    """

    path: str
    args: str = ""


EXAMPLES = (
    Example("ddp_toy/before.py"),
    Example("transformer/before.py", args="--examples 1024"),
    *(
        Example(f"launch_{how}/before.py")
        for how in ("environments", "local_rank", "module", "process", "spawn", "torchrun")
    ),
    Example("portable/cuda_original.py", args="--epochs 6 --checkpoint {out}/checkpoint.pt"),
    Example("portable/train.py", args="--epochs 6 --checkpoint {out}/checkpoint.pt"),
)


def main() -> int:
    """Print the table; 1 where a script has no verdict, or does not fit."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--repositories", type=Path)
    parser.add_argument("--csv", type=Path, default=Path(__file__).with_name("fitting.csv"))
    parser.add_argument("--only", default="", help="part of the name of what is run")
    parser.add_argument("--again", nargs="*", default=[], help="states, or all")
    parser.add_argument("--seconds", type=float, default=1800.0, help="for each compilation")
    parser.add_argument("--quick", action="store_true", help="as of `migrate fit`")
    parser.add_argument("--summary", action="store_true", help="run nothing")
    given = parser.parse_args()
    rows = read(given.csv)
    if not given.summary:
        wanted: list[Script | Example] = [*EXAMPLES]
        if given.repositories:
            wanted += SCRIPTS
        for one in wanted:
            name = name_of(one)
            old = [row["state"] for row in rows if row["name"] == name]
            if given.only not in name or (old and not {*old, "all"} & set(given.again)):
                continue
            rows = [row for row in rows if row["name"] != name]
            rows += measured(one, given.repositories, given.seconds, quick=given.quick)
            write(given.csv, rows)
            print(f"{name}: {rows[-1]['state']} {rows[-1]['why']}", flush=True)
    print("\n".join(summary(rows)))
    return int(any(row["state"] != "fits" for row in rows))


def name_of(one: Script | Example) -> str:
    return f"examples/{one.path}" if isinstance(one, Example) else one.name


def measured(
    one: Script | Example, repositories: Path, seconds: float, *, quick: bool
) -> list[Row]:
    """A row for each slice."""
    with tempfile.TemporaryDirectory() as folder:
        scratch = Path(folder)
        command = [sys.executable, "-c", "from migrate.cli import main; main()", "fit", "--json"]
        command += ["--timeout", f"{seconds:g}", "--tpu", ",".join(SLICES), *["--quick"] * quick]
        where, variables = ROOT / "examples", {"PYTHONPATH": str(ROOT), "XLA_FLAGS": FAST}
        if isinstance(one, Example):
            command += [one.path, "--", *one.args.format(out=scratch).split()]
        else:
            place = prepared(one, repositories, scratch, IMAGES)
            path = rewritten(one, place.repository).path
            place.out.mkdir(exist_ok=True)  # a folder that was rewritten as a whole is another one
            torchrun = ["--torchrun"] if one.torchrun else []
            args = place.args(f"{one.args} {one.args_on_xla} {one.args_to_fit}")
            command += [*torchrun, str(path), "--", *args]
            where, variables = place.folder, place.variables
        started = time.monotonic()
        ran = subprocess.run(
            command,
            cwd=where,
            env={**os.environ, **variables, "XDG_CACHE_HOME": str(scratch / "cache")},
            capture_output=True,
            text=True,
            check=False,
        )
        took = time.monotonic() - started
        ran.stdout, ran.stderr = (
            one.replace(f"{scratch}/", "") for one in (ran.stdout, ran.stderr)
        )
    row = dict.fromkeys(COLUMNS, "") | {"name": name_of(one), "whole": f"{took:.0f}"}
    if ran.returncode not in (0, 1) or not ran.stdout:
        why = next(iter(reversed(ran.stderr.strip().splitlines())), "it said nothing")
        return [row | {"slice": ", ".join(SLICES), "state": "no verdict", "why": why[:400]}]
    found = json.loads(ran.stdout)
    rows = [row | of_slice(told, found["notes"]) for told in found["slices"]]
    return [one | {"why": f"--quick {one['why']}".strip()} if quick else one for one in rows]


def of_slice(told: dict[str, Any], notes: list[str]) -> Row:
    """What the table has of a slice."""
    hbm, exchanges = told["hbm"], told["collectives"]
    why = [told["why"], told["where"]] if told["state"] != "fits" else []
    several = next((one.split()[3] for one in notes if one.startswith("a step is ")), "1")
    return {
        "slice": told["slice"],
        "state": told["state"],
        "hbm": f"{hbm['needed'] / 2**20:.1f}",
        "of": f"{hbm['available'] / 2**20:.0f}",
        "reduced": str(sum(one["times"] for one in exchanges)),
        "exchanged": f"{sum(one['bytes'] for one in exchanges) / 1e6:.3g}",
        "exposed": str(sum(one["times"] for one in exchanges if not one["overlapped"])),
        "compile": f"{told['compile_seconds']:.0f}",
        "programs": several,
        "why": " ".join(filter(None, why)),
    }


def read(path: Path) -> list[Row]:
    if not path.exists():
        return []
    with path.open(newline="") as file:
        return [dict(row) for row in csv.DictReader(file)]


def write(path: Path, rows: list[Row]) -> None:
    new = path.with_suffix(".new")
    with new.open("w", newline="") as file:
        writer = csv.DictWriter(file, COLUMNS, lineterminator="\n")
        writer.writeheader()
        writer.writerows(rows)
    new.replace(path)


def summary(rows: list[Row]) -> list[str]:
    """Return the table."""
    lines = [
        "| script | slice | verdict | peak HBM, MiB | exchanges (exposed) | MB | compile, s | whole, s |",
        "|---|---|---|--:|--:|--:|--:|--:|",
    ]
    for row in rows:
        reduced = f"{row['reduced']} ({row['exposed']})" if row["reduced"] else ""
        cells = [row["name"], row["slice"], f"{row['state']} {row['why']}".strip(), row["hbm"]]
        cells += [reduced, row["exchanged"], row["compile"], row["whole"]]
        lines.append(f"| {' | '.join(cells)} |")
    return lines


if __name__ == "__main__":
    sys.exit(main())
