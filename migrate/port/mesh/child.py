"""A port on meshes of simulated devices, in a process of its own.

    python -m migrate.port.mesh.child REQUEST

REQUEST is a JSON file: the folder of the port, its weights, a file of inputs, meshes, and the file for the
answer. The process has as many devices as `XLA_FLAGS` says. Each mesh runs the forward pass and the
gradients of all weights, of the outputs times seeded random numbers; one device runs the same. The reference
is the same program in float64. A mesh with a larger error than allowed runs in float64 too.
"""

from __future__ import annotations

import json
import re
import sys
from collections import Counter
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import numpy as np

from migrate.parity.sides.jax.wide import Evaluation, widened
from migrate.port.mesh.results import FACTOR, FLOOR
from migrate.port.package import package_of

Arrays = dict[str, np.ndarray[Any, Any]]
_COLLECTIVE = re.compile(
    r" (all-reduce|all-gather|reduce-scatter|all-to-all|ragged-all-to-all|collective-permute)(?:-start)?\("
)


def main(request: Path) -> None:
    """Run the port as requested."""
    values = json.loads(request.read_text())
    answer: Any
    try:
        with package_of(Path(values["folder"])) as package:
            answer = _runs(package, values)
    except Exception as error:  # whatever the port's source raises
        answer = {"error": _line(error)}
    Path(values["answer"]).write_text(json.dumps(answer))


def _runs(package: Any, values: Mapping[str, Any]) -> list[dict[str, Any]]:
    import jax
    from safetensors.flax import load_file

    inputs = load_file(values["inputs"])
    model = package.build()
    keys = {name: jax.random.key(at) for at, name in enumerate(values["streams"])}
    if values["params"]:
        variables = package.load_params(Path(values["params"]))
    else:
        variables = jax.jit(model.init)(jax.random.key(0), **inputs)
    cotangents: dict[str, Any] = {}

    def forward(params: Any, others: Any, inputs: Any) -> dict[str, Any]:
        outputs = model.apply({**others, **params}, **inputs, rngs=keys)
        return _named(outputs)

    def loss(params: Any, others: Any, inputs: Any) -> tuple[Any, dict[str, Any]]:
        outputs = forward(params, others, inputs)
        parts = [(outputs[name] * times).sum() for name, times in cotangents.items()]
        return sum(parts[1:], parts[0]), outputs

    params = {"params": variables.get("params", {})}
    others = {name: value for name, value in variables.items() if name != "params"}
    shapes = jax.eval_shape(forward, params, others, inputs)
    random = np.random.default_rng(0)
    cotangents |= {
        name: random.standard_normal(shape.shape).astype(shape.dtype)
        for name, shape in shapes.items()
        if np.issubdtype(shape.dtype, np.floating)
    }

    def step(params: Any, others: Any, inputs: Any) -> tuple[dict[str, Any], dict[str, Any]]:
        if not cotangents:
            return forward(params, others, inputs), {}
        gradients, outputs = jax.grad(loss, has_aux=True)(params, others, inputs)
        return outputs, gradients

    exact = _in_float64(step, (params, others, inputs))
    alone = _numbers(jax.jit(step)(params, others, inputs))
    return [
        _run(package, step, (params, others, inputs), sizes, exact, alone)
        for sizes in values["meshes"]
    ]


def _run(
    package: Any,
    step: Callable[..., Any],
    arguments: tuple[Any, Any, Any],
    sizes: Mapping[str, int],
    exact: tuple[Arrays, Arrays],
    alone: tuple[Arrays, Arrays],
) -> dict[str, Any]:
    import jax

    params, others, inputs = arguments
    try:
        mesh = package.make_mesh(**sizes)
        placed = package.shard_params({**params, **others}, mesh)
        first = {"params": placed["params"]}
        rest = {name: value for name, value in placed.items() if name != "params"}
        batch = package.shard_batch(inputs, mesh)
        into = (None, jax.tree.map(lambda leaf: leaf.sharding, first))
        with jax.set_mesh(mesh):
            compiled = jax.jit(step, out_shardings=into).lower(first, rest, batch).compile()
            both = _numbers(compiled(first, rest, batch))
        shares = [judged(exact[at], alone[at], both[at]) for at in range(2)]
        wide = None
        if any(share > 1.0 for named in shares for share in named.values()):
            with jax.set_mesh(mesh):
                both = _in_float64(step, (first, rest, batch), into)
            wider = (judged(exact[at], alone[at], both[at]).values() for at in range(2))
            wide = max(share for named in wider for share in named)
    except Exception as error:  # whatever the port's source raises
        return {"error": _line(error)}
    outputs, gradients = shares
    worst = max(gradients, key=lambda name: gradients[name], default="")
    leaves = jax.tree.leaves(placed)
    here = sum(leaf.addressable_shards[0].data.nbytes for leaf in leaves)
    return {
        "output": max(outputs.values(), default=0.0),
        "gradient": max(gradients.values(), default=0.0),
        "worst": worst,
        "wide": wide,
        "collectives": dict(Counter(_COLLECTIVE.findall(compiled.as_text()))),
        "bytes": here / max(1, sum(leaf.nbytes for leaf in leaves)),
    }


def judged(exact: Arrays, alone: Arrays, both: Arrays) -> dict[str, float]:
    """The error of each array on a mesh, divided by the allowed error.

    Allowed are `FACTOR` times the error of one device, and `FLOOR`: both are sums of the same float32 terms
    in another order. Arrays of integers have to be equal.
    """
    shares = {}
    for name, reference in exact.items():
        if reference.dtype.kind not in "fc":
            shares[name] = 0.0 if np.array_equal(alone[name], both[name]) else np.inf
            continue
        if not np.array_equal(np.isfinite(alone[name]), np.isfinite(both[name])):
            shares[name] = np.inf
            continue
        size = _norm(reference)
        allowed = FACTOR * _norm(alone[name] - reference) + FLOOR * size
        error = _norm(both[name] - reference)
        shares[name] = error / allowed if allowed else (np.inf if error else 0.0)
    return {name: float(value) for name, value in shares.items()}


def _norm(array: Any) -> float:
    values = np.asarray(array, np.complex128 if np.iscomplexobj(array) else np.float64)
    return float(np.linalg.norm(values[np.isfinite(values)]))


def _in_float64(
    step: Callable[..., Any], arguments: Any, shardings: Any = None
) -> tuple[Arrays, Arrays]:
    """The results of the same program in float64.

    Args:
        step: the program.
        arguments: its arguments; on a mesh, placed there.
        shardings: of its results.
    """
    import jax

    closed, shape = jax.make_jaxpr(step, return_shape=True)(*arguments)
    with jax.enable_x64(True):
        wide = [widened(leaf) for leaf in jax.tree.leaves(arguments)]

        def run(leaves: Any) -> Any:
            results = _Float64().run(closed.jaxpr, closed.consts, leaves)
            return jax.tree.unflatten(jax.tree.structure(shape), results)

        return _numbers(jax.jit(run, out_shardings=shardings)(wide))


class _Float64(Evaluation):
    """The evaluation of a function traced in float32: sums of a scatter have a function of that dtype."""

    def equation(self, equation: Any, args: list[Any]) -> list[Any]:
        """Return the results of an equation."""
        import jax

        name = equation.primitive.name.replace("-", "_")
        scatter = getattr(jax.lax, name, None) if name.startswith("scatter") else None
        if scatter is None:
            return super().equation(equation, args)
        target, places, updates = args
        options = {
            key: equation.params[key] for key in ("indices_are_sorted", "unique_indices", "mode")
        }
        numbers = equation.params["dimension_numbers"]
        return [scatter(target, places, updates.astype(target.dtype), numbers, **options)]


def _numbers(results: tuple[Any, Any]) -> tuple[Arrays, Arrays]:
    outputs, gradients = (
        {name: np.asarray(leaf) for name, leaf in _named(tree).items()} for tree in results
    )
    return outputs, gradients


def _named(tree: Any) -> dict[str, Any]:
    import jax

    return {
        jax.tree_util.keystr(path, simple=True, separator="/"): leaf
        for path, leaf in jax.tree_util.tree_leaves_with_path(tree)
    }


def _line(error: BaseException) -> str:
    return f"{type(error).__name__}: {' '.join(str(error).split())[:300]}"


if __name__ == "__main__":
    main(Path(sys.argv[1]))
