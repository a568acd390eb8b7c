"""`sharding.py` of a port: its partition rules, and the functions that apply them."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import groupby

from migrate.port.mesh.rules import PartitionRule

SHARDING = "sharding.py"
NAMES = ("make_mesh", "partition_specs", "shard_batch", "shard_params", "shardings")


def sharding_text(
    model: str,
    rules: Sequence[PartitionRule],
    unbatched: Sequence[str],
    unread: Sequence[PartitionRule] = (),
    collections: Sequence[str] = ("params",),
    *,
    attends: bool = False,
) -> str:
    """The source of `sharding.py`.

    Args:
        model: the model's class.
        rules: the rules, in the order in which they are tried.
        unbatched: inputs whose first axis is no batch.
        unread: rules of weights that the model's forward does not read.
        collections: collections of variables that the rules name.
        attends: whether the source calls its attention by `attend_on_mesh`.
    """
    names = ", ".join(f'"{name}"' for name in sorted(collections))
    inputs = f"frozenset({sorted(unbatched)!r})" if unbatched else "frozenset()"
    text = _SHARDING + _ATTEND if attends else _SHARDING
    text = text.replace("CALLABLE", "Callable, " if attends else "")
    text = text.replace("WHOLE_INPUTS", inputs).replace("MODEL", model)
    more = _UNREAD.replace("LINES", _lines(unread)) if unread else ""
    text = text.replace("COLLECTION_NAMES", f"{{{names}}}")
    text = text.replace("UNREAD_RULES", more).replace("LINES", _lines(rules))
    return text.replace("ALL_RULES", "(*RULES, *UNREAD)" if unread else "RULES")


def _lines(rules: Sequence[PartitionRule]) -> str:
    lines = []
    for why, group in groupby(rules, key=lambda rule: rule.why):
        lines.append(f"    # {why}")
        lines += [f'    (r"{rule.pattern}", {_spec(rule.spec)}),' for rule in group]
    return "".join(f"{line}\n" for line in lines)


def _spec(spec: Sequence[str | None]) -> str:
    return (
        f"P({', '.join('None' if axis is None else f'{chr(34)}{axis}{chr(34)}' for axis in spec)})"
    )


_UNREAD = """\
# Weights that the forward does not read.
UNREAD: tuple[tuple[str, P], ...] = (
LINES)
"""
_SHARDING = '''\
"""MODEL on a device mesh: which axis of each weight is divided over which axis of the mesh.

    mesh = make_mesh(fsdp=4, tensor=2)
    variables = shard_params(load_params(), mesh)
    with jax.set_mesh(mesh):
        outputs = jax.jit(model.apply)(variables, **shard_batch(inputs, mesh))
"""

import math
import re
from collections.abc import CALLABLEMapping, Sequence
from typing import Any

import jax
from jax.sharding import AbstractMesh, AxisType, Mesh, NamedSharding
from jax.sharding import PartitionSpec as P

# The axes of `make_mesh`.
AXES = ("data", "fsdp", "tensor", "expert")
# The batch is divided over these axes of the mesh.
BATCH = ("data", "fsdp")
# The end of a weight's path, and the mesh axis of each of its axes; the first rule that matches counts.
# A weight with more axes than its rule (stacked layers) is whole along the first ones.
RULES: tuple[tuple[str, P], ...] = (
LINES)
UNREAD_RULES# Collections of the variables that the rules name.
COLLECTIONS = COLLECTION_NAMES
# Inputs that have no batch.
WHOLE: frozenset[str] = WHOLE_INPUTS


def make_mesh(
    data: int = 1,
    fsdp: int = 1,
    tensor: int = 1,
    expert: int = 1,
    devices: Sequence[jax.Device] | None = None,
) -> Mesh:
    """A mesh of all devices, or of these.

    Raises:
        ValueError: the axes have another number of devices, or no rule divides a weight over an axis.
    """
    sizes = dict(zip(AXES, (data, fsdp, tensor, expert), strict=True))
    count = len(jax.devices() if devices is None else devices)
    if math.prod(sizes.values()) != count:
        said = " * ".join(f"{axis}={size}" for axis, size in sizes.items() if size != 1) or "data=1"
        raise ValueError(f"mesh {said}: {math.prod(sizes.values())} devices, there are {count}")
    used = {"data", *(axis for _, spec in RULES for axis in spec)}
    for axis, size in sizes.items():
        if size > 1 and axis not in used:
            raise ValueError(f"mesh {axis}={size}: no rule divides a weight over {axis}")
    kinds = (AxisType.Auto,) * len(sizes)
    return jax.make_mesh(tuple(sizes.values()), tuple(sizes), kinds, devices=devices)


def partition_specs(tree: Any, mesh: Mesh | AbstractMesh) -> Any:
    """The spec of each array: of `load_params()`, or of an optimizer's state, which has the same paths.

    Raises:
        ValueError: the mesh does not divide an axis, no rule names an array, a rule names none, has an
            axis that no mesh has, or more axes than its weight.
    """
    sizes, unused = dict(mesh.shape), dict(RULES)
    of_model = isinstance(tree, Mapping) and tree.keys() >= COLLECTIONS
    problems = [
        f"rule {rule!r} has {axis!r}, which is no axis of a mesh ({', '.join(AXES)})"
        for rule, spec in ALL_RULES
        for axis in spec
        if axis not in (None, *AXES, *sizes)
    ]

    def spec_of(path: tuple[Any, ...], leaf: Any) -> P:
        name = jax.tree_util.keystr(path, simple=True, separator="/")
        named = ((rule, spec) for rule, spec in ALL_RULES if re.search(rf"(^|/)({rule})$", name))
        rule, spec = next(named, (None, P()))
        if rule is None and leaf.ndim:
            problems.append(f"no rule names {name}")
        unused.pop(rule, None)
        if leaf.ndim < len(spec):  # factors in an optimizer's state are smaller than their weight
            if of_model:
                problems.append(f"{name} has {leaf.ndim} axes, rule {rule!r} {len(spec)}")
            return P()
        spec = P(*[None] * (leaf.ndim - len(spec)), *(axis if axis in sizes else None for axis in spec))
        for place, axis in enumerate(spec):
            if axis is not None and leaf.shape[place] % sizes[axis]:
                size = f"axis {place} of size {leaf.shape[place]}"
                problems.append(f"{name}: {size} is not divisible by {axis}={sizes[axis]}")
        return spec

    specs = jax.tree_util.tree_map_with_path(spec_of, tree)
    if of_model:
        problems += [f"rule {rule!r} names no weight" for rule in unused]
    if problems:
        more = f" (and {len(problems) - 1} more)" if len(problems) > 1 else ""
        raise ValueError(f"{problems[0]}{more}: see RULES in sharding.py")
    return specs


def shardings(tree: Any, mesh: Mesh) -> Any:
    """The sharding of each array, for `in_shardings` and `out_shardings` of `jax.jit`."""
    specs = partition_specs(tree, mesh)
    return jax.tree.map(lambda spec: NamedSharding(mesh, spec), specs)


def shard_params(variables: Any, mesh: Mesh) -> Any:
    """The variables on the devices of the mesh, each weight divided by its rule."""
    return jax.device_put(variables, shardings(variables, mesh))


def shard_batch(batch: Mapping[str, Any], mesh: Mesh) -> dict[str, Any]:
    """Inputs on the devices of the mesh, with the batch divided over `data` and `fsdp`.

    Raises:
        ValueError: the mesh does not divide the batch.
    """
    parts = math.prod(mesh.shape[axis] for axis in BATCH)
    placed = {}
    for name, array in batch.items():
        divided = name not in WHOLE and array.ndim > 0 and array.shape[0] > 1
        if divided and array.shape[0] % parts:
            said = "data={data} * fsdp={fsdp}".format(**mesh.shape)
            raise ValueError(f"{name}: a batch of {array.shape[0]} is not divisible by {said}")
        placed[name] = jax.device_put(array, NamedSharding(mesh, P(BATCH) if divided else P()))
    return placed


def constrain_batch(x: jax.Array) -> jax.Array:
    """An activation with its batch divided over `data` and `fsdp`; without `jax.set_mesh` as it is."""
    axes = tuple(axis for axis in BATCH if axis in jax.sharding.get_abstract_mesh().axis_names)
    return jax.lax.with_sharding_constraint(x, P(axes)) if axes else x


def conv_in_groups(x: jax.Array, kernel: jax.Array, *args: Any, **options: Any) -> jax.Array:
    """A convolution in groups, with its batch divided over all axes of the mesh, or whole.

    XLA adds up the gradient of such a kernel over all devices, also where several of them have the same
    rows (jax 0.10.2): it would be a multiple of what it is.
    """
    mesh = jax.sharding.get_abstract_mesh()
    if not mesh.axis_names:
        return jax.lax.conv_general_dilated(x, kernel, *args, **options)
    spec = P(mesh.axis_names) if x.shape[0] % mesh.size == 0 else P()
    x = jax.lax.with_sharding_constraint(x, spec)
    y = jax.lax.conv_general_dilated(x, kernel, *args, **options)
    return jax.lax.with_sharding_constraint(y, spec)
'''
_ATTEND = '''

def attend_on_mesh(
    function: Callable[..., jax.Array],
    query: jax.Array,
    key: jax.Array,
    value: jax.Array,
    **options: Any,
) -> jax.Array:
    """Attention of each device's rows and heads, so that a kernel can compute it.

    The batch is divided over `data` and `fsdp`, heads over `tensor`. If the mesh does not divide them,
    without `jax.set_mesh`, and for queries without a batch, the function is called as it is.

    Args:
        function: the attention, of queries, keys and values.
        query: the queries, of (batch, length, heads, width).
        key: the keys.
        value: the values.
        options: other arguments; `mask` and `bias` are of (batch, heads, queries, keys), sides may be 1.
    """
    mesh = jax.sharding.get_abstract_mesh()
    if not mesh.axis_names or mesh.manual_axes or query.ndim != 4:
        return function(query, key, value, **options)
    batch, _, heads, _ = query.shape
    rows = tuple(axis for axis in BATCH if axis in mesh.axis_names)
    many = "tensor" if "tensor" in mesh.axis_names else None
    # A single head of keys is whole on each device.
    few = many if key.shape[2] > 1 else None
    parts = mesh.shape["tensor"] if many else 1
    if batch % math.prod(mesh.shape[axis] for axis in rows) or (key.shape[2] if few else heads) % parts:
        return function(query, key, value, **options)
    arrays = {"query": query, "key": key, "value": value}
    specs = {"query": P(rows, None, many), **dict.fromkeys(("key", "value"), P(rows, None, few))}
    for name in ("mask", "bias"):
        array = options.pop(name, None)
        if array is not None:
            arrays[name] = array.reshape((1,) * (4 - array.ndim) + array.shape)
            sides = zip(arrays[name].shape, (batch, heads), (rows, many))
            specs[name] = P(*(axes if side == size else None for side, size, axes in sides))
    attend = jax.shard_map(
        lambda arrays: function(**arrays, **options),
        in_specs=(specs,),
        out_specs=specs["query"],
        check_vma=False,
    )
    return attend(arrays)
'''
