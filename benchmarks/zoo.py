"""How many models `migrate port` ports: transformers' types, timm, torchvision, diffusers.

    python benchmarks/zoo.py --csv FILE [--zoo huggingface|timm|torchvision|diffusers] [--only TYPE…]
                             [--again STATUS…] [--seconds 120] [--shuffle SEED] [--failures FILE]
                             [--keep DIR] [--against CSV] [--summary]

Each model is built tiny and random, runs in torch, is ported, gets its weights by `converters`, and runs in
Flax under `jax.jit` on the same inputs, in a process of its own. A row is added to the CSV as soon as it is
known; a model that has one is not run again, unless its status is named with --again. Statuses: yes
(relative L2 of every output to torch's float32, or to its float64, < 1e-5 in float32), missing ops, export
failed, refused, weights refused, mismatch, rounding (above 1e-5, and no further from float64 than twice what
torch's own float32 is), ties (a mismatch where the model chooses among equal scores), crash, time, random
(torch itself gives other values each time), no compiler.

With --shuffle the models come in a drawn order, so that a part of a run says something of the whole. With
--against only those of another CSV are run, and each that was ported there and is not here is named.

timm, torchvision and diffusers are measured where they can be imported (a folder on PYTHONPATH will do).
Exit code 1 if a model of the run was a mismatch, or is named by --against.
"""

from __future__ import annotations

import argparse
import csv
import multiprocessing
import os
import random
import re
import resource
import sys
from collections import Counter, defaultdict
from collections.abc import Callable
from pathlib import Path
from typing import Any

if __name__ == "__main__":  # not for whoever imports it: the tests ask a hub of their own
    os.environ |= {"HF_HUB_OFFLINE": "1", "JAX_PLATFORMS": "cpu", "TF_CPP_MIN_LOG_LEVEL": "3"}
sys.path.insert(0, str(Path(__file__).parents[1]))

from benchmarks.zoo_models import huggingface, packages
from benchmarks.zoo_models.measured import COLUMNS, measure

ZOOS = {
    "huggingface": huggingface.names,
    "timm": packages.timm_names,
    "torchvision": packages.torchvision_names,
    "diffusers": packages.diffusers_names,
}
# Imported once, before each model's process branches off; nothing of this repository, which may change.
PRELOADED = ["torch", "numpy", "jax", "flax.linen", "sympy", "torch.export", "transformers"]
Row = dict[str, Any]


def main() -> int:
    parser = argparse.ArgumentParser()
    parser.add_argument("--csv", type=Path, required=True)
    parser.add_argument("--zoo", choices=ZOOS, default="huggingface")
    parser.add_argument("--only", nargs="*", default=[])
    parser.add_argument("--again", nargs="*", default=[], help="statuses, or all")
    parser.add_argument("--seconds", type=float, default=120.0)
    parser.add_argument("--shuffle", type=int, metavar="SEED", help="the order of the models")
    parser.add_argument("--against", type=Path, metavar="CSV", help="of an earlier run")
    parser.add_argument("--failures", type=Path, help="write them grouped by cause to this file")
    parser.add_argument("--keep", type=Path, help="keep the sources in this folder")
    parser.add_argument("--summary", action="store_true", help="run nothing")
    given = parser.parse_args()
    rows = read(given.csv)
    if not given.summary:
        run(given, rows)
    print(summary(given.zoo, list(rows.values())))
    lost = [] if given.against is None else worse(read(given.against), rows)
    for said in lost:
        print(said)
    return 1 if lost or any(row["ported"] == "mismatch" for row in rows.values()) else 0


def worse(before: dict[str, Row], now: dict[str, Row]) -> list[str]:
    """What was ported before and is not now."""
    return [
        f"{name} was ported, now: {row['ported']} {row['reason']}"
        for name, row in now.items()
        if row["ported"] != "yes" and before.get(name, {}).get("ported") == "yes"
    ]


def run(given: argparse.Namespace, rows: dict[str, Row]) -> None:
    wanted = [one for one in ZOOS[given.zoo]() if not given.only or one[0] in given.only]
    if given.against is not None:
        known = read(given.against)
        wanted = [one for one in wanted if one[0] in known]
    if given.shuffle is not None:
        random.Random(given.shuffle).shuffle(wanted)
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload(PRELOADED)
    for number, (name, kind) in enumerate(wanted, 1):
        old = rows.get(name)
        if old is not None and not {old["ported"], "all"} & set(given.again):
            continue
        keep = None if given.keep is None else given.keep / name
        row = in_process(context, given.zoo, name, keep, given.seconds)
        row |= {"type": name, "class": kind}
        rows[name] = row
        write(given.csv, rows)
        if given.failures is not None:
            given.failures.write_text(failures(rows, len(wanted)))
        print(
            f"{number} of {len(wanted)} {name}: {row['ported']} {row['reason']}"[:200], flush=True
        )


def in_process(context: Any, zoo: str, name: str, keep: Path | None, seconds: float) -> Row:
    row: Row = dict.fromkeys(COLUMNS, "")
    found, ended = answered(context, measure, (zoo, name, keep), seconds)
    if ended is not None:
        found = {"ported": "crash", "reason": f"its process ended ({ended})"}
    return row | (found or {"ported": "time", "reason": f"over {seconds:g} s"})


def answered(
    context: Any,
    function: Callable[..., Any],
    arguments: tuple[Any, ...],
    seconds: float,
    cpu: int = 0,
) -> tuple[Any, int | None]:
    """What a function gives in a process of its own, which prints nothing.

    Args:
        context: of multiprocessing.
        function: of a module.
        arguments: of it.
        seconds: to wait for it; then the answer is None.
        cpu: seconds of CPU after which the system ends the process; 0: as many as it takes.

    Returns:
        The answer, and the exit code of a process that ended without one.
    """
    ours, theirs = context.Pipe(duplex=False)
    process = context.Process(target=_child, args=(theirs, function, arguments, cpu))
    process.start()
    theirs.close()
    answer, ended = None, None
    try:
        if ours.poll(seconds):
            answer = ours.recv()
    except EOFError:
        process.join(5)
        ended = process.exitcode
    process.kill()
    process.join()
    return answer, ended


def _child(pipe: Any, function: Callable[..., Any], arguments: tuple[Any, ...], cpu: int) -> None:
    if cpu:
        resource.setrlimit(resource.RLIMIT_CPU, (cpu, cpu + 5))
    silent = os.open(os.devnull, os.O_WRONLY)
    os.dup2(silent, 1)
    os.dup2(silent, 2)
    pipe.send(function(*arguments))


def read(path: Path) -> dict[str, Row]:
    if not path.exists():
        return {}
    with path.open(newline="") as file:
        return {row["type"]: dict(row) for row in csv.DictReader(file)}


def write(path: Path, rows: dict[str, Row]) -> None:
    new = path.with_suffix(".new")
    with new.open("w", newline="") as file:
        writer = csv.DictWriter(file, COLUMNS, lineterminator="\n")
        writer.writeheader()
        writer.writerows(rows.values())
    new.replace(path)


def summary(zoo: str, rows: list[Row]) -> str:
    """Return the table."""
    counts = Counter(row["ported"] for row in rows)
    judged = [row for row in rows if row["ported"] != "random"]
    yes = [row for row in judged if row["ported"] == "yes"]
    lines = [f"| {zoo} | models |", "|---|---|"]
    share = f" ({len(yes) / len(judged):.1%})" if judged else ""
    lines.append(f"| ported, relative L2 < 1e-5 | {len(yes)} of {len(judged)}{share} |")
    lines += [f"| {name} | {count} |" for name, count in counts.most_common() if name != "yes"]
    both = [(int(row["lines"]), int(row["original_lines"])) for row in yes if row["original_lines"]]
    if both:
        made, theirs = (sum(one) for one in zip(*both, strict=True))
        within = sum(mine <= 0.7 * other for mine, other in both)
        lines.append(f"| lines of the ports ÷ of the originals | {made / max(theirs, 1):.2f} |")
        lines.append(f"| ports of at most 0.7 × the original's lines | {within} of {len(both)} |")
    return "\n".join(lines)


def failures(rows: dict[str, Row], wanted: int) -> str:
    """Those that failed, by cause: what is told apart are words, not names and numbers."""
    groups: dict[tuple[str, str], list[Row]] = defaultdict(list)
    for row in rows.values():
        if row["ported"] not in ("yes", "random"):
            groups[row["ported"], _cause(row)].append(row)
    yes = sum(row["ported"] == "yes" for row in rows.values())
    lines = [f"{len(rows)} of {wanted} run, {yes} ported", ""]
    for (status, _), group in sorted(groups.items(), key=lambda one: -len(one[1])):
        lines.append(f"## {len(group)} × {status}: {group[0]['reason'][:400]}")
        lines.append(", ".join(row["type"] for row in group))
        lines += [f"  - {row['type']}: {row['reason'][:200]}" for row in group[1:3]]
        lines.append("")
    return "\n".join(lines)


def _cause(row: Row) -> str:
    reason = row["reason"]
    if row["ported"] == "missing ops":
        return ", ".join(sorted(re.findall(r"[\w.]+(?=: )", reason)))
    place = reason[reason.rfind("(") :]
    if re.fullmatch(r"\([\w.]+\.py:\d+\)", place) and "modeling.py" not in place:
        return reason.partition(":")[0] + place
    return re.sub(r"\W+", " ", re.sub(r"[\w.]*\d[\w.]*|'[^']*'", "#", reason))[:80]


if __name__ == "__main__":
    sys.exit(main())
