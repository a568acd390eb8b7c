"""The program's own batches in a process of its own, beside the recorded ones.

python -m migrate.train.proof.data_child FOLDER RECORD OUTPUT
"""

from __future__ import annotations

import itertools
import json
import pickle
import sys
from collections.abc import Iterator, Mapping
from importlib import import_module
from pathlib import Path
from typing import Any

import numpy as np

from migrate.train.proof.causes.data import data_cause


def main() -> None:
    """Compare the batches of `data.py` with the record; write the first difference and its cause."""
    folder, record, output = map(Path, sys.argv[1:])
    sys.path.insert(0, str(folder))
    data = import_module("data")

    recorded = pickle.loads(record.read_bytes())
    seen: list[Any] = []

    def noted() -> Iterator[Any]:
        for micro in data.batches():
            if len(seen) < len(recorded["updates"]):
                seen.append(micro)
            yield micro

    batches = noted()
    difference = difference_of(batches, recorded)
    cause = ""
    if difference:
        for _ in itertools.islice(batches, len(recorded["updates"]) - len(seen)):
            pass
        cause = data_cause(seen, recorded["updates"])
    output.write_text(json.dumps({"difference": difference, "cause": cause}))


def difference_of(own: Iterator[Any], recorded: Mapping[str, Any]) -> str:
    """First difference of the program's own batches from the recorded ones, and of their end.

    Args:
        own: micro-batches of each update.
        recorded: the recorded run: its updates, the number of later ones, and whether the script ended.
    """
    updates = recorded["updates"]
    difference = ""
    for number, update in enumerate(updates):
        micro = next(own, None)
        if micro is None:
            difference = f"update {number}: the data end here"
        elif len(micro) != len(update["micro"]):
            difference = f"update {number}: {len(micro)} micro-batches, not {len(update['micro'])}"
        else:
            for position, (ours, theirs) in enumerate(zip(micro, update["micro"], strict=True)):
                name = _differs(ours, theirs["batch"])
                if name is not None:
                    difference = f"update {number}, micro-batch {position}: {name} differs"
                    break
        if difference:
            return difference
    return _end_differs(own, recorded) if recorded.get("ended") else ""


def _end_differs(own: Iterator[Any], recorded: Mapping[str, Any]) -> str:
    """Compare the end of the data with that of a script that ended by itself."""
    count = len(recorded["updates"])
    last = count + recorded["later"]
    for number in range(count, last + 1):
        more = next(own, None) is not None
        if not more and number < last:
            return f"update {number}: the data end here"
        if more and number == last:
            return f"update {number}: the script ended before it, but the data do not"
    return ""


def _differs(a: Any, b: Any, name: str = "") -> str | None:
    """Name of the first part that differs."""
    if isinstance(b, dict):
        if not isinstance(a, dict) or not set(b) <= set(a):
            return name or "the batch"
        parts = (_differs(a[key], b[key], f"{name}.{key}".strip(".")) for key in b)
        return next((part for part in parts if part is not None), None)
    if isinstance(b, list):
        if not isinstance(a, list) or len(a) != len(b):
            return name
        parts = (_differs(x, y, f"{name}.{i}") for i, (x, y) in enumerate(zip(a, b, strict=True)))
        return next((part for part in parts if part is not None), None)
    if isinstance(b, np.ndarray):
        return None if np.array_equal(np.asarray(a), b, equal_nan=b.dtype.kind == "f") else name
    return None if a == b or b is None else name


if __name__ == "__main__":
    main()
