"""The written program in a process of its own: what it computes of recorded batches.

python -m migrate.train.proof.child FOLDER RECORD START OUTPUT

RECORD is the pickled run of the script, START the weights that it starts from as the program has them.
"""

from __future__ import annotations

import pickle
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from importlib import import_module
from pathlib import Path
from typing import Any

import numpy as np

from migrate.train.noise import with_noise
from migrate.train.proof.arrays import norm, reader
from migrate.train.proof.compare import SHIFT, rounding_elements
from migrate.train.proof.dropouts import nothing_dropped, samples_dropped
from migrate.train.proof.evaluations import evaluated
from migrate.train.results import DROPOUT, NOISE

# Factors of the recorded gradients for which the optimizer alone is run: they show its momentum. The second
# is so small that clipping by a norm leaves it alone: clipped to one size, updates of any betas are equal.
SCALES = (1.0, -(2.0**-10), 2.0)
# Keys whose losses are compared: a small rate drops nothing with some of them.
_KEYS = 8
EVALUATE = "evaluate.py"


def main() -> None:
    """Run the program in FOLDER on the batches in RECORD, and write what it gives."""
    folder, record, start, output = map(Path, sys.argv[1:])
    sys.path.insert(0, str(folder))
    import jax
    from flax import linen
    from safetensors.numpy import load_file

    recorded = pickle.loads(record.read_bytes())
    wide = recorded.get("wide", False)
    jax.config.update("jax_enable_x64", wide)
    updates = [batches_of(update, wide=wide) for update in recorded["updates"]]
    count = len(recorded["optimizer"].rates)
    optimizer: Any = import_module("optimizer")
    sums: list[Any] = []
    optimizer.optimizer = told(optimizer.optimizer, sums)
    loss: Any = import_module("loss")
    drawing, inputs_of = loss.loss_of, reader(loss)
    if not hasattr(loss, "inputs_of"):
        updates = [[*map(inputs_of, micro)] for micro in updates]
    if recorded["noise"]:
        loss.loss_of = with_noise(drawing)
    train: Any = import_module("train")

    key = (train.KEY,) if hasattr(train, "KEY") else ()
    own = train.load()
    arguments = (own.params, own.variables, inputs_of(updates[0][0]), *key)
    results: dict[str, Any] = {f"start:{name}": x for name, x in arrays_of(own)}
    results |= losses_of_keys(drawing, arguments, keyed=bool(key))
    # With dropout the losses of two frameworks differ.
    dropout = linen.Dropout.__call__
    compared = samples_dropped(dropout) if recorded["noise"] else nothing_dropped
    linen.Dropout.__call__ = compared
    sites = recorded.get("evaluations", ()) if (folder / EVALUATE).exists() else ()

    def evaluate(state: Any, update: int) -> None:
        linen.Dropout.__call__ = dropout  # an evaluation drops nothing by itself
        evaluated(state, sites, update, results)
        linen.Dropout.__call__ = compared

    keys: list[bytes] = []
    value_and_grad = train.value_and_grad
    if key:
        train.value_and_grad = told_keys(train.value_and_grad, keys)
    with jax.default_matmul_precision("highest"):
        state = train.load(start)
        batch = inputs_of(updates[0][0])
        _, gradients = train.value_and_grad(state.params, state.variables, batch, *key)
        results |= {f"gradient:{name}": x for name, x in leaves(gradients)}
        evaluate(state, 0)
        for number, micro in enumerate(updates):
            state, losses, rate = train.train_step(state, micro)
            results[f"losses:{number}"] = np.array([float(x) for x in losses])
            results[f"rate:{number}"] = np.float64(rate)
            evaluate(state, number + 1)
            if number == 0:
                jax.effects_barrier()
                results |= {f"sum:{name}": x for name, x in leaves(sums[0] if sums else {})}
            if number in (0, len(updates) - 1):
                which = "last" if number else "first"
                results |= {f"{which}:{name}": x for name, x in arrays_of(state)}
        for later in recorded.get("evaluated_states", {}):
            file = start.with_suffix(f".{later}.safetensors")
            if later > len(updates) and file.exists():
                evaluate(train.load(file), later)
        if hasattr(state, "average"):
            results |= {f"average:{name}": x for name, x in leaves(state.average)}
        if recorded["divides"] and not wide:
            way = sum(max(rates) for rates in recorded["optimizer"].rates[: len(updates)])
            both = dict(leaves(sums[0] if sums else {})), load_file(start.with_suffix(".sums"))
            before = train.load(start)

            def statistics_of(params: Any) -> Any:
                value, _ = value_and_grad(params, before.variables, batch, *key)
                return value[1] if isinstance(value, tuple) else {}

            forwards = sum(map(len, updates))
            for name, shift in shifted(statistics_of, before.params, both, way):
                results[f"{SHIFT}-last:{name}"] = forwards * shift
        sums.append(None)  # what follows is no update of the program
        gradients = load_file(start.with_suffix(".sums"))
        if not wide:
            results |= optimized(optimizer.optimizer, train.load(start), gradients, SCALES[:count])
        for number in range(len(updates), count):
            results[f"rate:{number}"] = np.float64(train.learning_rate_of(number))
    results["keys"] = np.array([len(keys), len(set(keys))])
    arrays: Any = {name: np.asarray(value) for name, value in results.items()}
    np.savez(output, **arrays)


def batches_of(update: Mapping[str, Any], *, wide: bool) -> list[Any]:
    """Micro-batches of a recorded update, in float64 if it is compared in float64."""
    import jax

    batches = [micro["batch"] for micro in update["micro"]]
    return jax.tree.map(_widened, batches) if wide else batches


def _widened(value: Any) -> Any:
    """A number of a batch in float64, if it is one of float32."""
    dtype = getattr(value, "dtype", None)
    return value.astype(np.float64) if dtype == np.float32 else value


def leaves(tree: Any) -> Iterator[tuple[str, np.ndarray[Any, Any]]]:
    """Yield path and array of each leaf of nested dictionaries."""
    import jax

    for path, leaf in jax.tree_util.tree_leaves_with_path(tree):
        yield "/".join(part.key for part in path), np.array(leaf)


def arrays_of(state: Any) -> Iterator[tuple[str, np.ndarray[Any, Any]]]:
    """Yield path and array of each parameter and other variable of a state."""
    yield from leaves({"params": state.params, **state.variables})


def shifted(
    statistics_of: Callable[[Any], Any], params: Any, sums: Sequence[Mapping[str, Any]], way: float
) -> Iterator[tuple[str, np.ndarray[Any, Any]]]:
    """Yield how far elements whose gradient is rounding shift each statistic, in one loss.

    A bias in front of a BatchNorm has a true gradient of zero. Adam divides its rounding, and so moves it:
    only the running mean sees that.

    Args:
        statistics_of: parameters → new statistics of a loss.
        params: the parameters.
        sums: gradients of the first update, the program's and the script's.
        way: how far the optimizer may move an element; two programs may go opposite ways.
    """
    import jax

    own, theirs = sums
    whole = norm(theirs)

    def moved(path: Any, value: Any) -> Any:
        name = "/".join(part.key for part in path)
        if name not in own or name not in theirs:
            return value
        return value + np.float32(2 * way) * rounding_elements(own[name], theirs[name], whole)

    before = dict(leaves(statistics_of(params)))
    after = statistics_of(jax.tree_util.tree_map_with_path(moved, params))
    for name, value in leaves(after):
        yield name, np.abs(value - before[name])


def losses_of_keys(loss_of: Any, arguments: Sequence[Any], *, keyed: bool) -> dict[str, Any]:
    """Count the losses that some keys give: by the masks of dropout alone, and by other random numbers alone.

    Args:
        loss_of: the program's loss.
        arguments: its arguments; the key is the last one.
        keyed: whether it has a key.

    Returns:
        By the name of the comparison: the number of different losses, and of keys.
    """
    import jax
    from flax import linen

    make_rng = linen.Module.make_rng

    def same_noise(self: Any, name: str = "params") -> Any:
        key = make_rng(self, name)
        return jax.random.key(0) if name == "noise" else key

    counts: dict[str, Any] = {}
    for name, owner, attribute, other in (
        (DROPOUT, linen.Module, "make_rng", same_noise),
        (NOISE, linen.Dropout, "__call__", samples_dropped(linen.Dropout.__call__)),
    ):
        before = getattr(owner, attribute)
        setattr(owner, attribute, other)
        try:
            losses: set[float] = set()
            run = jax.jit(lambda *values: loss_of(*values))
            for number in range(_KEYS if keyed else 1):
                keys = [jax.random.fold_in(arguments[-1], number)] if keyed else []
                value = run(*arguments[: len(arguments) - len(keys)], *keys)
                losses.add(float(value[0] if isinstance(value, tuple) else value))
        finally:
            setattr(owner, attribute, before)
        counts[name] = np.array([len(losses), _KEYS if keyed else 0])
    return counts


def told(optimizer: Any, sums: list[Any]) -> Any:
    """The optimizer; the gradients that each update gets are appended to `sums`."""
    import jax
    import optax

    def update(grads: Any, *args: Any, **kwargs: Any) -> Any:
        jax.debug.callback(lambda values: sums.append(jax.tree.map(np.array, values)), grads)
        return optimizer.update(grads, *args, **kwargs)

    return optax.GradientTransformation(optimizer.init, update)


def told_keys(value_and_grad: Any, keys: list[bytes]) -> Any:
    """The function; the key of each call is appended to `keys`."""
    import jax

    def called(*args: Any) -> Any:
        keys.append(np.asarray(jax.random.key_data(args[-1])).tobytes())
        return value_and_grad(*args)

    return called


def optimized(
    optimizer: Any, state: Any, gradients: dict[str, Any], scales: tuple[float, ...]
) -> dict[str, Any]:
    """Weights after updates by the optimizer alone, with the script's own gradients times `scales`."""
    import jax
    import optax

    first = jax.tree_util.tree_map_with_path(
        lambda path, x: gradients["/".join(part.key for part in path)], state.params
    )
    params, inner = state.params, optimizer.init(state.params)
    for scale in scales:
        scaled = jax.tree.map(lambda x, scale=scale: x * np.float32(scale), first)
        updates, inner = optimizer.update(scaled, inner, params)
        params = optax.apply_updates(params, updates)
    return {f"optimized:params/{name}": x for name, x in leaves(params)}


if __name__ == "__main__":
    main()
