"""LlamaForCausalLM on a device mesh: which axis of each weight is divided over which axis of the mesh.

mesh = make_mesh(fsdp=4, tensor=2)
variables = shard_params(load_params(), mesh)
with jax.set_mesh(mesh):
    outputs = jax.jit(model.apply)(variables, **shard_batch(inputs, mesh))
"""

import math
import re
from collections.abc import Mapping, Sequence
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
    # vocabulary
    (r"lm_head/kernel", P("fsdp", "tensor")),
    (r"embed_tokens/embedding", P("tensor", "fsdp")),
    # heads, column-parallel: o_proj sums over it
    (r"(k_proj|q_proj|v_proj)/kernel", P("fsdp", "tensor")),
    # heads, row-parallel: sums over what k_proj, q_proj and v_proj wrote
    (r"o_proj/kernel", P("tensor", "fsdp")),
    # hidden, column-parallel: down_proj sums over it
    (r"(gate_proj|up_proj)/kernel", P("fsdp", "tensor")),
    # hidden, row-parallel: sums over what gate_proj and up_proj wrote
    (r"down_proj/kernel", P("tensor", "fsdp")),
    # whole on each device
    (r"(input_layernorm|post_attention_layernorm|norm)/weight", P()),
)
# Collections of the variables that the rules name.
COLLECTIONS = {"params"}
# Inputs that have no batch.
WHOLE: frozenset[str] = frozenset()


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
        for rule, spec in RULES
        for axis in spec
        if axis not in (None, *AXES, *sizes)
    ]

    def spec_of(path: tuple[Any, ...], leaf: Any) -> P:
        name = jax.tree_util.keystr(path, simple=True, separator="/")
        named = ((rule, spec) for rule, spec in RULES if re.search(rf"(^|/)({rule})$", name))
        rule, spec = next(named, (None, P()))
        if rule is None and leaf.ndim:
            problems.append(f"no rule names {name}")
        unused.pop(rule, None)
        if leaf.ndim < len(spec):  # factors in an optimizer's state are smaller than their weight
            if of_model:
                problems.append(f"{name} has {leaf.ndim} axes, rule {rule!r} {len(spec)}")
            return P()
        spec = P(
            *[None] * (leaf.ndim - len(spec)), *(axis if axis in sizes else None for axis in spec)
        )
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
