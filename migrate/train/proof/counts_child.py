"""Counts of a written program in a process of its own, and losses of parts of its micro-batches.

python -m migrate.train.proof.counts_child FOLDER RECORD OUTPUT

The program is in FOLDER, RECORD is the pickled run of the script. OUTPUT is JSON: `counts` of the
micro-batches of each update, and `halves` of some: loss and count of all rows, and of each half of them.

Of a script that multiplies its gradients, OUTPUT has the counts of later updates too, and no halves.
"""

from __future__ import annotations

import json
import pickle
import sys
from collections import Counter
from collections.abc import Mapping
from importlib import import_module
from pathlib import Path
from typing import Any

import numpy as np

from migrate.train.proof.arrays import reader
from migrate.train.proof.dropouts import nothing_dropped

# Micro-batches whose halves are computed, at most: each may have sizes of its own to compile.
_MOST = 4


def main() -> None:
    """Count the elements of the recorded micro-batches."""
    folder, record, output = map(Path, sys.argv[1:])
    sys.path.insert(0, str(folder))
    import jax
    from flax import linen

    linen.Dropout.__call__ = nothing_dropped
    loss: Any = import_module("loss")
    train: Any = import_module("train")
    recorded = pickle.loads(record.read_bytes())
    updates = [[micro["batch"] for micro in u["micro"]] for u in recorded["updates"]]
    updates += [batches for batches, _ in recorded["later_scaled"] if batches]
    key = (train.KEY,) if hasattr(train, "KEY") else ()
    state = train.load()
    loss_of, inputs_of = jax.jit(loss.loss_of), reader(loss)

    def count(inputs: Any) -> float:
        return float(train.count(state.params, state.variables, inputs))

    def measured(inputs: Any) -> tuple[float, float]:
        return float(loss_of(state.params, state.variables, inputs, *key)), count(inputs)

    with jax.default_matmul_precision("highest"):
        counts = [[count(inputs_of(batch)) for batch in micro] for micro in updates]
        why = ""
        halves: list[list[tuple[float, float]]] = []
        for batch in [batch for micro in updates * (not recorded["scaled"]) for batch in micro]:
            inputs = inputs_of(batch)
            if len(halves) < _MOST and (parts := _halves(inputs)):
                try:
                    halves.append([measured(part) for part in (inputs, *parts)])
                except Exception as error:
                    why = f"{type(error).__name__}: {str(error).splitlines()[0] if str(error) else ''}"
                    break
    output.write_text(json.dumps({"counts": counts, "halves": halves, "why": why}))


def _halves(inputs: Mapping[str, Any]) -> list[dict[str, Any]]:
    """Both halves of the rows of a batch; empty if it has one row."""
    sizes = [len(value) for value in inputs.values() if np.ndim(value)]
    rows = Counter(sizes).most_common(1)[0][0] if sizes else 1
    if rows < 2:
        return []

    def part(first: int, last: int) -> dict[str, Any]:
        return {
            name: value[first:last] if np.ndim(value) and len(value) == rows else value
            for name, value in inputs.items()
        }

    return [part(0, rows // 2), part(rows // 2, rows)]


if __name__ == "__main__":
    main()
