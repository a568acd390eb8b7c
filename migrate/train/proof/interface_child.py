"""`interface.py` of a program in a process of its own.

python -m migrate.train.proof.interface_child FOLDER RECORD OUTPUT
"""

from __future__ import annotations

import json
import math
import pickle
import sys
from collections.abc import Mapping
from contextlib import nullcontext
from importlib import import_module
from pathlib import Path
from typing import Any

import numpy as np

from migrate.counts import many
from migrate.train.noise import jax_noise
from migrate.train.watch.values import plain

OWN = ("load", "weights", "loss_and_gradients", "step", "batches")
# Outputs of two frameworks in float32, relative L2.
_OUTPUTS = 1e-5


def main() -> None:
    """Call the interface with the script's weights and first batch, and write what differs."""
    folder, record, output = map(Path, sys.argv[1:])
    sys.path.insert(0, str(folder))
    recorded = pickle.loads(record.read_bytes())
    interface = import_module("interface")
    missing = [name for name in OWN if not callable(getattr(interface, name, None))]
    comparisons: dict[str, Any] = {}
    if missing:
        comparisons["interface"] = _found(False, f"interface.py has no {missing[0]}")
    else:
        import jax

        with jax.default_matmul_precision("highest"):
            comparisons = _compared(interface, recorded)
    output.write_text(json.dumps(comparisons))


def _compared(interface: Any, recorded: Mapping[str, Any]) -> dict[str, Any]:
    updates = [*recorded.get("parts", {"": recorded}).values()]
    every: dict[str, dict[str, Any]] = {}
    for update in reversed(updates):  # of a module the weights that its first update finds
        every |= _named(update)
    state = interface.load(every)
    back = interface.weights(state)
    unlike = [
        f"{module}.{name}"
        for module, arrays in every.items()
        for name, array in arrays.items()
        if not np.array_equal(back.get(module, {}).get(name), array)
    ]
    count = sum(map(len, every.values()))
    what = f"{count} entries of the state dict are read and given back"
    if unlike:
        what = f"{unlike[0]} comes back with another shape or other values"
    comparisons = {"parameters": _found(not unlike, what)}
    comparisons["interface"] = _found(True, f"{', '.join(OWN)} are there, and run")
    ours: list[Any] = []
    theirs: list[Any] = []
    for site, update in enumerate(updates):
        if site:
            state = interface.load({**every, **_named(update)})
        batch = update["updates"][0]["micro"][0]["batch"]
        noise = jax_noise if update["noise"] else nullcontext
        with noise():
            interface.loss_and_gradients(state, batch, site)
        if hasattr(interface, "outputs") and update["outputs"]:
            with noise():
                ours += [np.asarray(x) for x in interface.outputs(state, batch, site)]
            theirs += update["outputs"]
    if theirs:
        comparisons["outputs"] = _outputs(ours, theirs)
    return comparisons


def _named(recorded: Mapping[str, Any]) -> dict[str, dict[str, Any]]:
    """The weights that an update starts from: module → name → array."""
    named: dict[str, dict[str, Any]] = {}
    for name, tensor in recorded["state"].items():
        module, _, rest = name.partition(".")
        named.setdefault(module, {})[rest] = plain(tensor)
    return named


def _outputs(ours: list[Any], theirs: list[Any]) -> dict[str, Any]:
    if [x.shape for x in ours] != [x.shape for x in theirs]:
        return _found(False, f"{len(ours)} outputs of other shapes, in the script {len(theirs)}")
    worst = 0.0
    for a, b in zip(ours, theirs, strict=True):
        size = float(np.linalg.norm(b))
        ratio = float(np.linalg.norm(a.astype(np.float64) - b)) / (size or 1.0)
        worst = max(worst, math.inf if math.isnan(ratio) else ratio)
    what = f"{many(len(theirs), 'output')} of the model, first micro-batch"
    return _found(worst <= _OUTPUTS, what, worst, _OUTPUTS)


def _found(
    same: bool, what: str, worst: float | None = None, limit: float | None = None
) -> dict[str, Any]:
    shown = "inf" if worst is not None and math.isinf(worst) else worst
    return {"same": same, "worst": shown, "limit": limit, "what": what}


if __name__ == "__main__":
    main()
