"""A program with several updates in a process of its own: what each of them computes of recorded batches.

python -m migrate.train.proof.updates_child FOLDER RECORD START OUTPUT STARTS

RECORD is the pickled record of all updates, START the weights that the script starts from as the program has
them. STARTS are, as JSON, files of the weights before the first update of each name.
"""

from __future__ import annotations

import json
import pickle
import sys
from collections import Counter
from collections.abc import Mapping
from importlib import import_module
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np

from migrate.train.noise import with_noise
from migrate.train.proof.child import (
    SCALES,
    arrays_of,
    batches_of,
    leaves,
    losses_of_keys,
    optimized,
    shifted,
    told,
    told_keys,
)
from migrate.train.proof.compare import SHIFT
from migrate.train.proof.dropouts import nothing_dropped, samples_dropped


def main() -> None:
    """Run the program in FOLDER on the batches in RECORD, and write what it gives."""
    folder, record, start, output = map(Path, sys.argv[1:5])
    starts = {name: Path(file) for name, file in json.loads(sys.argv[5]).items()}
    sys.path.insert(0, str(folder))
    import jax
    from flax import linen
    from safetensors.numpy import load_file

    whole = pickle.loads(record.read_bytes())
    wide = whole["wide"]
    jax.config.update("jax_enable_x64", wide)
    loss: Any = import_module("loss")
    drawing = {name: getattr(loss, name) for name in starts}
    for name in starts:
        if whole["parts"][name]["noise"]:
            setattr(loss, name, with_noise(drawing[name]))
    train: Any = import_module("train")
    own = train.load()
    results: dict[str, Any] = {}
    sums: dict[str, list[Any]] = {name: [] for name in starts}
    keys: dict[str, list[bytes]] = {name: [] for name in starts}
    arguments: dict[str, tuple[Any, ...]] = {}
    for name, update in train.UPDATES.items():
        others = {kind: update.part(tree) for kind, tree in own.variables.items()}
        batch = batches_of(whole["parts"][name]["updates"][0], wide=wide)[0]
        arguments[name] = (update.part(own.params), others, update.inputs_of(batch))
        counts_of_keys = losses_of_keys(drawing[name], (*arguments[name], train.KEY), keyed=True)
        results |= {f"{name}|{key}": x for key, x in counts_of_keys.items()}
    # With dropout the losses of two frameworks differ.
    noise = any(recorded["noise"] for recorded in whole["parts"].values())
    linen.Dropout.__call__ = samples_dropped(linen.Dropout.__call__) if noise else nothing_dropped
    plain = dict(train.VALUE_AND_GRAD)
    for name, update in train.UPDATES.items():
        results |= {f"{name}|start:{path}": x for path, x in arrays_of(own)}
        train.UPDATES[name] = update._replace(optimizer=told(update.optimizer, sums[name]))
        train.VALUE_AND_GRAD[name] = told_keys(train.VALUE_AND_GRAD[name], keys[name])
    with jax.default_matmul_precision("highest"):
        for name, update in train.UPDATES.items():
            state = train.load(starts[name])
            others = {kind: update.part(tree) for kind, tree in state.variables.items()}
            inputs = arguments[name][2]
            _, grads = train.VALUE_AND_GRAD[name](
                update.part(state.params), others, inputs, train.KEY
            )
            results |= {f"{name}|gradient:{path}": x for path, x in leaves(grads)}
            first = batches_of(whole["parts"][name]["updates"][0], wide=wide)
            train.train_step(train.load(starts[name]), name, first)
            jax.effects_barrier()
            results |= {f"{name}|sum:{path}": x for path, x in leaves(sums[name][0])}
            keys[name].clear()
        state, counts = train.load(start), Counter[str]()
        for entry in whole["events"]:
            name, micro = entry["name"], batches_of(entry, wide=wide)
            if name not in starts:  # a call that moves statistics, between two updates
                if name in getattr(train, "FORWARDS", ()):
                    state, *_ = train.train_step(state, name, micro)
                continue
            count = len(whole["parts"][name]["updates"])
            number = counts[name]
            counts[name] += 1
            state, losses, rate = train.train_step(state, name, micro)
            results[f"{name}|losses:{number}"] = np.array([float(x) for x in losses])
            results[f"{name}|rate:{number}"] = np.float64(rate)
            if number in (0, count - 1):
                which = "last" if number else "first"
                results |= {f"{name}|{which}:{path}": x for path, x in arrays_of(state)}
        if not wide:
            results |= _shifted(train, plain, whole, starts, arguments, results)
        for name, update in train.UPDATES.items():
            rates = whole["parts"][name]["optimizer"].rates
            file = starts[name]
            part = SimpleNamespace(params=update.part(train.load(file).params))
            gradients = load_file(file.with_suffix(".sums"))
            if not wide:
                done = optimized(update.optimizer, part, gradients, SCALES[: len(rates)])
                results |= {f"{name}|{path}": x for path, x in done.items()}
            for number in range(counts[name], len(rates)):
                results[f"{name}|rate:{number}"] = np.float64(update.learning_rate_of(number))
            results[f"{name}|keys"] = np.array([len(keys[name]), len(set(keys[name]))])
    arrays: Any = {name: np.asarray(value) for name, value in results.items()}
    np.savez(output, **arrays)


def _shifted(
    train: Any,
    value_and_grad: Mapping[str, Any],
    whole: Any,
    starts: Mapping[str, Path],
    arguments: Any,
    results: Mapping[str, Any],
) -> dict[str, Any]:
    """Measure how far elements whose gradient is rounding may shift statistics, by update and name."""
    from safetensors.numpy import load_file

    total: dict[str, Any] = {}
    for by in starts:  # the update whose optimizer divides the rounding
        recorded = whole["parts"][by]
        if not recorded["divides"]:
            continue
        way = sum(max(rates) for rates in recorded["optimizer"].rates[: len(recorded["updates"])])
        head = f"{by}|sum:"
        own = {key.removeprefix(head): x for key, x in results.items() if key.startswith(head)}
        sums = own, load_file(starts[by].with_suffix(".sums"))
        for name, update in train.UPDATES.items():
            state = train.load(starts[name])
            others = {kind: update.part(tree) for kind, tree in state.variables.items()}

            def statistics_of(params: Any, name: str = name, others: Any = others) -> Any:
                inputs = arguments[name][2]
                (_, new), _ = value_and_grad[name](params, others, inputs, train.KEY)
                return new

            forwards = sum(len(u["micro"]) for u in whole["parts"][name]["updates"])
            for path, shift in shifted(statistics_of, update.part(state.params), sums, way):
                total[path] = total.get(path, 0.0) + forwards * shift
    return {
        f"{name}|{SHIFT}-{which}:{path}": shift
        for name in starts
        for which in ("first", "last")
        for path, shift in total.items()
    }


if __name__ == "__main__":
    main()
