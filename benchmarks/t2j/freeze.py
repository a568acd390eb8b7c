"""Keeps the scripts as they were before the tool first ran on them.

    python benchmarks/t2j/freeze.py            # names what has changed; exit code 1 if something has
    python benchmarks/t2j/freeze.py --write    # writes frozen.toml, once
    python benchmarks/t2j/freeze.py --amend-judge REASON

frozen.toml has the date, the families held back, and a SHA-256 of each script and of the judge's files. A
script is never changed. A fault of the judge may be mended: the reason and the date are then added.
"""

from __future__ import annotations

import argparse
import datetime
import hashlib
import json
import random
import sys
import tomllib
from pathlib import Path
from typing import Any

HERE = Path(__file__).parent
FROZEN = HERE / "frozen.toml"
JUDGE = ("bands.py", "judge.py", "recorder.py", "tasks.py", "tasks.toml")
SEED = 40
KNOWN = "gpt2"  # has the program written by hand: not for the draw


def scripts() -> list[Path]:
    """The scripts, sorted."""
    return sorted((HERE / "scripts").glob("*.py"))


def draw_held_back() -> list[str]:
    """Draw five families by chance, always the same ones."""
    families = sorted({path.stem.rpartition("_")[0] for path in scripts()} - {KNOWN})
    return sorted(random.Random(SEED).sample(families, 5))


def hashes() -> dict[str, dict[str, str]]:
    """SHA-256 of each script and of each file of the judge."""
    parts = {"scripts": scripts(), "judge": [HERE / name for name in JUDGE]}
    return {
        part: {path.name: hashlib.sha256(path.read_bytes()).hexdigest() for path in paths}
        for part, paths in parts.items()
    }


def read() -> dict[str, Any]:
    """Return what frozen.toml has."""
    return tomllib.loads(FROZEN.read_text())


def changed() -> list[str]:
    """Names of files that are new, gone or not as frozen."""
    frozen, now = read(), hashes()
    return sorted(
        name
        for part, new in now.items()
        for name in frozen[part].keys() | new.keys()
        if frozen[part].get(name) != new.get(name)
    )


def write(judge_reasons: list[dict[str, str]], date: datetime.date) -> None:
    """Write frozen.toml."""
    held = ", ".join(f'"{family}"' for family in draw_held_back())
    lines = [
        "# Written by freeze.py before the tool first ran on any of the scripts. Do not edit.",
        f"date = {date.isoformat()}",
        f"held_back = [{held}]  # never run with the tool before the end",
    ]
    for part, named in hashes().items():
        lines += ["", f"[{part}]", *(f'"{name}" = "{value}"' for name, value in named.items())]
    for entry in judge_reasons:
        lines += [
            "",
            "[[amended]]",
            *(f"{key} = {json.dumps(text)}" for key, text in entry.items()),
        ]
    FROZEN.write_text("\n".join(lines) + "\n")


def amend(reason: str) -> int:
    """Take the judge's files as they are now; refuse if a script has changed."""
    if others := [name for name in changed() if name not in JUDGE]:
        print(f"{others[0]}: a script is never changed", file=sys.stderr)
        return 1
    old = read()
    entry = {"date": datetime.date.today().isoformat(), "reason": reason}
    write([*old.get("amended", []), entry], old["date"])
    return 0


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--write", action="store_true", help="write frozen.toml for the first time")
    parser.add_argument(
        "--amend-judge", metavar="REASON", help="take the judge's files as they are"
    )
    asked = parser.parse_args()
    if asked.write:
        if FROZEN.exists():
            print("frozen.toml exists", file=sys.stderr)
            return 2
        write([], datetime.date.today())
    if asked.amend_judge:
        return amend(asked.amend_judge)
    names = changed()
    for name in names:
        print(f"{name}: not as frozen")
    return 1 if names else 0


if __name__ == "__main__":
    sys.exit(main())
