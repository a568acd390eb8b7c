"""How many models `migrate port` ports by the rule that counts: values, gradients and a second size.

    python benchmarks/port_zoo.py [--set transformers|timm|torchvision|diffusers|gallery] [--only TYPE…]
                                  [--again STATUS…] [--limit N] [--seconds 120] [--shuffle SEED] [--quick]
                                  [--api linen|nnx] [--csv benchmarks/port_zoo.csv] [--summary]

Each model of `benchmarks/zoo.py` is built tiny and random and ported in a process of its own. "Proven" is:

- every output is within 1e-5 (relative L2, float32 under jit) of the original's in float64, or no more than
  twice as far as torch's own float32 is,
- so is the gradient of every parameter and floating input, of the outputs times seeded random cotangents; or,
  with port and original both in float64, it is within 1e-9 (1e-6 with attention, whose softmax JAX computes
  in float32): then float32's difference is the rounding of XLA's kernels, and the row says so,
- the original was built at a second size, and each of its settings is followed there (all of these are
  changed at once, and the outputs agree) or refused by name: another value of each of these raises.

Rows are appended as soon as they are known; a model that has a row is not run again unless its status is
named with --again ("all": any), and its last row counts. Other statuses: values, gradients, sizes (a refusal
that does not refuse), no second size (the constructor does not give the model again), and those of
`benchmarks/zoo.py`: missing ops, export failed, refused, weights refused, ties, crash, time (so many seconds
of CPU), random.

With `--api nnx` the port is written in Flax NNX; its rows are in benchmarks/port_zoo_nnx.csv.

Not run here, and part of `migrate port`: layer by layer, a TPU's precision, bfloat16, training, `init`.
"""

from __future__ import annotations

import argparse
import csv
import multiprocessing
import os
import random
import re
import signal
import sys
from collections import Counter, defaultdict
from dataclasses import fields
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

if __name__ == "__main__":  # not for whoever imports it: the tests ask a hub of their own
    os.environ |= {"HF_HUB_OFFLINE": "1", "JAX_PLATFORMS": "cpu", "TF_CPP_MIN_LOG_LEVEL": "3"}
sys.path.insert(0, str(Path(__file__).parents[1]))

from benchmarks import zoo
from benchmarks.zoo_models import gallery
from benchmarks.zoo_models.proven import Row, prove

SETS = {
    "transformers": "huggingface",
    "timm": "timm",
    "torchvision": "torchvision",
    "diffusers": "diffusers",
    "gallery": "gallery",
}
COLUMNS = ("set", "date", *(one.name for one in fields(Row)))
# Wall clock, in seconds of the CPU that it may take: other work may be on the machine.
_PATIENCE = 6


def main(words: list[str]) -> int:
    """Run what is asked, and print the summary."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--api", choices=("linen", "nnx"), default="linen")
    parser.add_argument("--csv", type=Path)
    parser.add_argument("--set", choices=SETS, default="transformers")
    parser.add_argument("--only", nargs="*", default=[])
    parser.add_argument("--again", nargs="*", default=[], help="statuses, or all")
    parser.add_argument("--limit", type=int, help="models to run at most")
    parser.add_argument("--seconds", type=int, default=120, help="CPU time for a model")
    parser.add_argument("--shuffle", type=int, metavar="SEED", help="the order of the models")
    parser.add_argument("--quick", action="store_true", help="first what took least in zoo.py")
    parser.add_argument("--summary", action="store_true", help="run nothing")
    asked = parser.parse_args(words)
    ending = "" if asked.api == "linen" else f"_{asked.api}"
    asked.csv = asked.csv or Path(__file__).with_name(f"port_zoo{ending}.csv")
    if not asked.summary and not run(asked):
        print("nothing to run")
    print(summary(asked.set, list(read(asked.csv, asked.set).values())))
    return 0


def run(asked: argparse.Namespace) -> int:
    """Run the models that have no row, and return how many these were."""
    names = gallery.names if asked.set == "gallery" else zoo.ZOOS[SETS[asked.set]]
    wanted = [one for one in names() if not asked.only or one[0] in asked.only]
    if asked.shuffle is not None:
        random.Random(asked.shuffle).shuffle(wanted)
    if asked.quick:
        took = earlier(SETS[asked.set])
        wanted.sort(key=lambda model: took.get(model[0], float("inf")))
    rows, again = read(asked.csv, asked.set), set(asked.again)
    wanted = [
        one for one in wanted if one[0] not in rows or {rows[one[0]]["status"], "all"} & again
    ][: asked.limit]
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload(zoo.PRELOADED)
    for number, (name, kind) in enumerate(wanted, 1):
        row = in_process(context, SETS[asked.set], name, asked.seconds, asked.api) | {"kind": kind}
        append(asked.csv, {"set": asked.set, "date": f"{datetime.now(UTC):%Y-%m-%d}", **row})
        said = (
            f"{number} of {len(wanted)} {name}: {row['status']} {row['seconds']} s {row['reason']}"
        )
        print(said[:200], flush=True)
    return len(wanted)


def earlier(name_of_zoo: str) -> dict[str, float]:
    """Seconds of each model in the rows of `benchmarks/zoo.py`."""
    file = Path(__file__).with_name("zoo_models") / f"{name_of_zoo}_ported.csv"
    return {name: float(row["seconds"] or "inf") for name, row in zoo.read(file).items()}


def in_process(
    context: Any, name_of_zoo: str, name: str, seconds: int, api: str = "linen"
) -> dict[str, str]:
    """The row of a model, made in a process of its own."""
    patience = _PATIENCE * seconds
    row, ended = zoo.answered(context, prove, (name_of_zoo, name, api), patience, cpu=seconds)
    if ended not in (None, -signal.SIGXCPU):
        row = Row(name, status="crash", reason=f"its process ended ({ended})")
    row = row or Row(name, status="time", reason=f"over {seconds} s")
    found: dict[str, str] = row.as_dict()
    return found


def read(path: Path, name_of_set: str) -> dict[str, dict[str, str]]:
    """The last row of each model of a set."""
    if not path.exists():
        return {}
    with path.open(newline="") as file:
        return {row["type"]: row for row in csv.DictReader(file) if row["set"] == name_of_set}


def append(path: Path, row: dict[str, str]) -> None:
    """Add a row, and the header to a new file."""
    new = not path.exists()
    with path.open("a", newline="") as file:
        writer = csv.DictWriter(file, COLUMNS, lineterminator="\n")
        if new:
            writer.writeheader()
        writer.writerow(row)


def summary(name_of_set: str, rows: list[dict[str, str]]) -> str:
    """Counts, and the causes of what is not proven."""
    judged = [row for row in rows if row["status"] != "random"]
    proven = [row for row in judged if row["status"] == "proven"]
    share = f" ({len(proven) / len(judged):.1%})" if judged else ""
    lines = [f"{name_of_set}: proven {len(proven)} of {len(judged)} tried{share}"]
    following = sum(bool(row["followed"]) for row in proven)
    lines.append(f"of these with at least one setting that is followed: {following}")
    settings = [sum(len(row[what].split()) for row in proven) for what in ("followed", "refused")]
    lines.append(f"their settings: {settings[0]} followed, {settings[1]} refused by name")
    costs = sorted(float(row["sizes"]) for row in rows if row["sizes"])
    if costs:
        middle, most = costs[len(costs) // 2], costs[-1]
        lines.append(f"CPU of the second size: median {middle:.1f} s, most {most:.1f} s")
    counts = Counter(row["status"] for row in judged if row["status"] != "proven")
    lines += [f"{status}: {count}" for status, count in counts.most_common()]
    groups: dict[str, list[dict[str, str]]] = defaultdict(list)
    for row in judged:
        if row["status"] != "proven":
            groups[f"{row['status']}: {_cause(row['reason'])}"].append(row)
    for _, group in sorted(groups.items(), key=lambda item: -len(item[1])):
        names = ", ".join(row["type"] for row in group)
        lines.append(f"{len(group)} × {group[0]['status']}: {names}: {group[0]['reason'][:240]}")
    return "\n".join(lines)


def _cause(reason: str) -> str:
    return re.sub(r"\W+", " ", re.sub(r"[\w./]*[\d/][\w./]*|'[^']*'", "#", reason))[:60]


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
