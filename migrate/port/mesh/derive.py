"""The partition rules of a port, derived from the traced program of its source."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from converters.graph.writing.boundaries import ATTEND
from migrate.parity.sides.shapes import shapes_in
from migrate.port.errors import PortError
from migrate.port.mesh.axes import SharedAxis, Traced, trace_axes
from migrate.port.mesh.choice import divisor, specs_of
from migrate.port.mesh.prove import batch_of, meshes, prove_meshes, shown
from migrate.port.mesh.results import MeshRun
from migrate.port.mesh.rules import PartitionRule, rules_of
from migrate.port.mesh.source import SHARDING, sharding_text
from migrate.port.package import package_of
from migrate.port.proof import BATCH
from migrate.port.weights import PARAMS

# Numbers of the axes of weights that the forward does not read begin here, above those of the trace.
_UNREAD = 10**9


@dataclass(frozen=True)
class Partition:
    """The partition of a port's weights.

    Attributes:
        rules: the rules, in the order in which they are tried.
        divisors: mesh axis → the largest power of two up to 128 that divides all axes along it.
    """

    rules: tuple[PartitionRule, ...]
    divisors: Mapping[str, int]


def write_rules(place: Path, port: Any) -> Partition:
    """Write `sharding.py` into the folder of a port.

    Args:
        place: the folder, with its source, its weights and a `sharding.py` without rules.
        port: result of the compiler.

    Raises:
        PortError: the source does not run.
    """
    try:
        with package_of(place) as package:
            traced, shapes, unread = _traced(package, port, place / PARAMS)
    except Exception as error:  # whatever the source raises
        line = " ".join(str(error).split())[:200]
        raise PortError(
            f"--mesh: the port does not run ({type(error).__name__}: {line})", "leave --mesh out"
        ) from error
    specs = {path.partition("/")[2]: spec for path, spec in specs_of(traced, shapes).items()}
    extra = {path.partition("/")[2] for path in unread}
    rules = rules_of({path: spec for path, spec in specs.items() if path not in extra})
    others = rules_of({path: spec for path, spec in specs.items() if path in extra})
    collections = {path.partition("/")[0] for path in shapes if path not in unread}
    text = sharding_text(
        port.model_class,
        rules,
        unbatched(port),
        others,
        sorted(collections),
        attends=ATTEND in port.modeling,
    )
    (place / SHARDING).write_text(text)
    lengths: dict[str, list[int]] = defaultdict(list)
    for path, shape in shapes.items():
        for axis, size in zip(specs[path.partition("/")[2]].spec, shape, strict=False):
            if axis is not None:
                lengths[axis].append(size)
    return Partition(rules, {axis: divisor(sizes) for axis, sizes in lengths.items()})


def unbatched(port: Any) -> tuple[str, ...]:
    """The inputs whose first axis is no batch."""
    return tuple(
        argument.name for argument in port.inputs if argument.shape and argument.shape[0] != BATCH
    )


def _traced(
    package: Any, port: Any, params: Path
) -> tuple[Traced, dict[str, tuple[int, ...]], Sequence[str]]:
    """The axes of the model, the shapes of its weights, and the weights that its forward does not read."""
    import jax

    model, inputs = package.build(), dict(package.INPUTS)
    variables = jax.eval_shape(model.init, jax.random.key(0), **inputs)
    keys = {name: jax.random.key(at) for at, name in enumerate(port.streams)}

    def forward(variables: Any, inputs: Any) -> Any:
        return model.apply(variables, **inputs, rngs=keys)

    leaves = jax.tree_util.tree_leaves_with_path(variables)
    shapes = {
        jax.tree_util.keystr(path, simple=True, separator="/"): leaf.shape for path, leaf in leaves
    }
    traced = trace_axes(jax.make_jaxpr(forward)(variables, inputs), list(shapes), len(inputs))
    stored = shapes_in(params) if params.exists() else {}
    more = {path: shape for path, shape in stored.items() if path not in shapes}
    axes, weights = dict(traced.axes), dict(traced.weights)
    for path, shape in more.items():
        first = _UNREAD + len(axes)
        numbers = tuple(range(first, first + len(shape)))
        axes |= {number: SharedAxis({size}) for number, size in zip(numbers, shape, strict=True)}
        weights[path] = numbers
    return replace(traced, axes=axes, weights=weights), {**shapes, **more}, list(more)


def compare_meshes(
    place: Path,
    params: Path | None,
    port: Any,
    partition: Partition,
    examples: Sequence[Mapping[str, Any]],
    work: Path,
    timeout: float,
) -> tuple[MeshRun, ...]:
    """Compare a port on meshes of simulated devices with one device.

    Args:
        place: folder of the port.
        params: its weights; None: those of `init`.
        port: result of the compiler.
        partition: its rules.
        examples: inputs.
        work: folder for intermediate files.
        timeout: seconds for all meshes.
    """
    requested = meshes(partition.rules, partition.divisors)
    whole = unbatched(port)
    if all(argument.name in whole for argument in port.inputs):
        why = "the recording fixed the batch"
        return tuple(MeshRun(shown(sizes), skipped=why) for sizes in requested)
    batch = batch_of(examples, whole)
    return prove_meshes(place, params, batch, port.streams, requested, work, timeout)
