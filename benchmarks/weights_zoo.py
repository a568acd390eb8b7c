"""What becomes of every key of the models of transformers, with the module tree and without it.

    python benchmarks/weights_zoo.py [TYPE…] [--csv FILE]

Each type is built tiny on the CPU with random values (`tests/converters/zoo`). With the module: keys mapped,
tied, dropped and refused, for linen and nnx, and whether the way back is exact and the plan's mapping file
gives the same plan. Without it: the share of
keys whose layout is found as the module tree says it is, found otherwise (wrong), or refused, with no
assumption and with those of a user who knows the model. Exit code 1 if a key is wrong, inexact, or refused
with the module.
"""

from __future__ import annotations

import argparse
import csv
import os
import statistics
import sys
from collections import Counter
from collections.abc import Iterable
from pathlib import Path

os.environ["HF_HUB_OFFLINE"] = "1"
sys.path.insert(0, str(Path(__file__).parents[1]))

from tests.converters.zoo.measure import Measured, Shares, measure
from tests.converters.zoo.tiny import ALL_TYPES, NotBuiltError

COLUMNS = (
    "type",
    "keys",
    "mapped",
    "tied",
    "dropped",
    "refused",
    "inexact",
    "right alone",
    "wrong alone",
    "refused alone",
    "assumptions",
    "right assuming",
    "wrong assuming",
    "refused assuming",
    "seconds",
)


def main() -> int:
    parser = argparse.ArgumentParser()
    parser.add_argument("types", nargs="*", help="all that can be built, if none is named")
    parser.add_argument("--csv", type=Path, help="a row for each type, to this file")
    arguments = parser.parse_args()
    done: list[Measured] = []
    not_built: list[str] = []
    types = arguments.types or ALL_TYPES
    for number, model_type in enumerate(types, 1):
        print(f"\r{number} of {len(types)}: {model_type:<40}", end="", file=sys.stderr, flush=True)
        try:
            done.append(measure(model_type))
        except NotBuiltError as error:
            not_built.append(str(error))
    print(file=sys.stderr)
    if arguments.csv:
        with arguments.csv.open("w", newline="") as file:
            writer = csv.writer(file)
            writer.writerow(COLUMNS)
            writer.writerows(map(row, done))
    report(done, not_built)
    bad = [
        it
        for it in done
        if it.refused or it.inexact or it.unlike or it.alone.wrong or it.assuming.wrong
    ]
    return 1 if bad or not done else 0


def row(it: Measured) -> list[object]:
    outcomes = it.outcomes["linen"]
    counts = [outcomes[name] for name in ("mapped", "tied", "dropped", "refused")]
    alone = [it.alone.right, it.alone.wrong, it.alone.refused]
    assuming = [it.assuming.right, it.assuming.wrong, it.assuming.refused]
    said = len(it.assumptions)
    seconds = f"{it.seconds:.2f}"
    return [it.model_type, it.keys, *counts, len(it.inexact), *alone, said, *assuming, seconds]


def report(done: list[Measured], not_built: list[str]) -> None:
    for it in done:
        for line in (
            *it.refused,
            *it.inexact,
            *it.unlike,
            *it.alone.wrong_keys,
            *it.assuming.wrong_keys,
        ):
            print(f"{it.model_type}: {line}")
    keys = sum(it.keys for it in done)
    print(f"{len(done)} types built, {len(not_built)} not; {keys} keys")
    print()
    print(
        "| with the module tree | mapped | tied | dropped | refused | way back exact | mapping files alike |"
    )
    print("|---|---|---|---|---|---|---|")
    for api in ("linen", "nnx"):
        total = sum((Counter(it.outcomes[api]) for it in done), Counter())
        inexact = sum(line.startswith(api) for it in done for line in it.inexact)
        kinds = " | ".join(str(total[name]) for name in ("mapped", "tied", "dropped", "refused"))
        exact = f"{inexact} keys not" if inexact else "all"
        alike = sum(api not in it.unlike for it in done)
        print(f"| {api} | {kinds} | {exact} | {alike} of {len(done)} |")
    print()
    print("| without the module | right | wrong | refused | types complete | assumptions |")
    print("|---|---|---|---|---|---|")
    print(shares("none assumed", [it.alone for it in done], "0"))
    said = [len(it.assumptions) for it in done]
    if done:
        given = f"median {statistics.median(said):g}, at most {max(said)}"
        print(shares("with those of a user", [it.assuming for it in done], given))


def shares(name: str, found: Iterable[Shares], assumptions: str) -> str:
    found = list(found)
    right, wrong, refused = (
        sum(getattr(it, what) for it in found) for what in ("right", "wrong", "refused")
    )
    total = max(1, right + wrong + refused)
    complete = sum(not it.wrong and not it.refused for it in found)
    return (
        f"| {name} | {right} ({right / total:.2%}) | {wrong} | {refused} ({refused / total:.2%}) "
        f"| {complete} of {len(found)} | {assumptions} |"
    )


if __name__ == "__main__":
    sys.exit(main())
