"""The program's own batches in a process of its own, beside the recorded ones.

python -m migrate.train.proof.data_child FOLDER RECORD START OUTPUT

A program with rollouts is trained meanwhile, from the weights in START: its batches depend on the updates
before them.
"""

from __future__ import annotations

import itertools
import json
import pickle
import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from importlib import import_module
from pathlib import Path
from typing import Any

import numpy as np
import torch

from migrate.train.proof.causes.data import data_cause
from migrate.train.watch.seeds import seed_host, seed_torch
from migrate.train.write.texts import has_rollouts

# Relative L2 distance up to which floats of a rollout are equal: log-probabilities, values, advantages.
FLOAT_LIMIT = 1e-4


def main() -> None:
    """Compare the batches of `data.py` with the record; write the first difference and its cause."""
    folder, record, start, output = map(Path, sys.argv[1:])
    sys.path.insert(0, str(folder))
    # As in the recorded run, for what the script does not seed.
    seed_host()
    seed_torch()
    recorded = pickle.loads(record.read_bytes())
    with _drawn_between(recorded) as between:
        _compare(folder, recorded, start, output, between)


def _compare(
    folder: Path, recorded: Mapping[str, Any], start: Path, output: Path, between: list[int]
) -> None:
    """Compare the batches; `between` gets the loops before which the script alone drew numbers."""
    data = import_module("data")
    seen: list[Any] = []
    names: list[str] = []
    several = "parts" in recorded
    text = (folder / "data.py").read_text()
    rollouts = has_rollouts(text)
    if several:
        # Calls of modules between the updates are data too, if the program has them.
        own_names = recorded["parts"]
        events = [e for e in recorded["events"] if e["name"] in own_names or e["name"] in text]
        recorded = {**recorded, "updates": events}

    def noted() -> Iterator[Any]:
        for update in _trained(data, start, several) if rollouts else data.batches():
            name, micro = update if several else ("", update)
            if several and len(seen) == len(recorded["updates"]) and name not in recorded["parts"]:
                continue  # after the last recorded update
            if len(seen) < len(recorded["updates"]):
                seen.append(micro)
            names.append(name)
            yield micro

    batches = noted()
    difference = difference_of(batches, recorded, FLOAT_LIMIT if rollouts else 0.0)
    own = [update["name"] for update in recorded["updates"]] if several else []
    if not difference and names[: len(own)] != own:
        at = next(n for n, (a, b) in enumerate(zip(names, own, strict=False)) if a != b)
        difference = f"update {at}: {names[at]}, in the script {own[at]}"
    cause = ""
    if difference:
        for _ in itertools.islice(batches, len(recorded["updates"]) - len(seen)):
            pass
        cause = data_cause(seen, recorded["updates"], between)
    output.write_text(json.dumps({"difference": difference, "cause": cause}))


@contextmanager
def _drawn_between(recorded: Mapping[str, Any]) -> Iterator[list[int]]:
    """List the runs of the loop before which torch's generator is not where the script's was.

    The first run does not count. The script's generator was noted before each run of its loop over batches.
    """
    from torch.utils.data import DataLoader

    states = recorded.get("loops") or []
    runs = itertools.count()
    between: list[int] = []
    begin = DataLoader.__iter__

    def noted(self: Any) -> Any:
        number = next(runs)
        if 0 < number < len(states) and not np.array_equal(
            torch.get_rng_state().numpy(), states[number]["torch"]
        ):
            between.append(number)
        return begin(self)

    setattr(DataLoader, "__iter__", noted)  # noqa: B010
    try:
        yield between
    finally:
        setattr(DataLoader, "__iter__", begin)  # noqa: B010


def _trained(data: Any, start: Path, several: bool) -> Iterator[Any]:
    """Yield the micro-batches of each update, and make the update; of several, the name beside them."""
    import jax

    train: Any = import_module("train")
    with jax.default_matmul_precision("highest"):
        states = [train.load(start)]
        for micro in data.batches(lambda: train.in_torch(states[-1])):
            yield micro
            update = micro if several else (micro,)
            states[:] = [train.train_step(states[-1], *update)[0]]


def difference_of(own: Iterator[Any], recorded: Mapping[str, Any], limit: float = 0.0) -> str:
    """First difference of the program's own batches from the recorded ones, and of their end.

    Args:
        own: micro-batches of each update.
        recorded: the recorded run: its updates, the number of later ones, and whether the script ended.
        limit: relative L2 distance up to which arrays of floats count as equal; 0: bit for bit.
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
                name = _differs(ours, theirs["batch"], limit)
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


def _differs(a: Any, b: Any, limit: float, name: str = "") -> str | None:
    """Name of the first part that differs."""
    if isinstance(b, dict):
        if not isinstance(a, dict) or not set(b) <= set(a):
            return name or "the batch"
        parts = (_differs(a[key], b[key], limit, f"{name}.{key}".strip(".")) for key in b)
        return next((part for part in parts if part is not None), None)
    if isinstance(b, list):
        if not isinstance(a, list) or len(a) != len(b):
            return name
        pairs = enumerate(zip(a, b, strict=True))
        parts = (_differs(x, y, limit, f"{name}.{i}") for i, (x, y) in pairs)
        return next((part for part in parts if part is not None), None)
    if isinstance(b, np.ndarray):
        if limit and b.dtype.kind == "f" and np.shape(a) == b.shape:
            distance = np.linalg.norm(np.float64(a) - np.float64(b))
            return None if distance <= limit * np.linalg.norm(np.float64(b)) else name
        return None if np.array_equal(np.asarray(a), b, equal_nan=b.dtype.kind == "f") else name
    return None if a == b or b is None else name


if __name__ == "__main__":
    main()
