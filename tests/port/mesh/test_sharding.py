"""The written functions: specs of weights and of an optimizer's state, and one line for bad input."""

from __future__ import annotations

import re
from types import ModuleType
from typing import Any

import jax
import jax.numpy as jnp
import optax
import pytest
from jax.sharding import AbstractMesh
from jax.sharding import PartitionSpec as P

from migrate.port.mesh.rules import PartitionRule
from migrate.port.mesh.source import sharding_text

RULES = (
    PartitionRule("up/kernel", ("fsdp", "tensor"), "hidden, column-parallel"),
    PartitionRule("down/kernel", ("tensor", "fsdp"), "hidden, row-parallel"),
    PartitionRule("norm/scale", (), "whole on each device"),
)
MESH = AbstractMesh((1, 2, 4), ("data", "fsdp", "tensor"))


def module(*rules: PartitionRule) -> Any:
    made = ModuleType("net.sharding")
    exec(sharding_text("Net", rules or RULES, ("table",)), made.__dict__)
    return made


def variables(width: int = 8) -> dict[str, Any]:
    kernel = jax.ShapeDtypeStruct((width, 16), jnp.float32)
    turned = jax.ShapeDtypeStruct((16, width), jnp.float32)
    scale = jax.ShapeDtypeStruct((width,), jnp.float32)
    return {
        "params": {"up": {"kernel": kernel}, "down": {"kernel": turned}, "norm": {"scale": scale}}
    }


def test_weights_have_the_specs_of_their_rules() -> None:
    assert module().partition_specs(variables(), MESH) == {
        "params": {
            "up": {"kernel": P("fsdp", "tensor")},
            "down": {"kernel": P("tensor", "fsdp")},
            "norm": {"scale": P(None)},
        }
    }


def test_axes_that_the_mesh_lacks_are_left_out() -> None:
    specs = module().partition_specs(variables(), AbstractMesh((8,), ("tensor",)))
    assert specs["params"]["up"]["kernel"] == P(None, "tensor")


def test_stacked_layers_are_whole_along_the_first_axis() -> None:
    stacked = {"layers": {"up": {"kernel": jax.ShapeDtypeStruct((3, 8, 16), jnp.float32)}}}
    specs = module().partition_specs(stacked, MESH)
    assert specs["layers"]["up"]["kernel"] == P(None, "fsdp", "tensor")


def test_the_state_of_an_optimizer_follows_the_weights() -> None:
    state = jax.eval_shape(optax.adamw(1e-3).init, variables()["params"])
    specs = module().partition_specs(state, MESH)
    assert specs[0].mu["up"]["kernel"] == specs[0].nu["up"]["kernel"] == P("fsdp", "tensor")
    assert specs[0].count == P()


def test_a_mesh_that_does_not_divide_an_axis() -> None:
    with pytest.raises(
        ValueError, match=r"^params/down/kernel: axis 1 of size 9 is not divisible by fsdp=2"
    ):
        module().partition_specs(variables(9), MESH)


def test_a_weight_without_a_rule() -> None:
    with pytest.raises(
        ValueError, match=r"^no rule names params/norm/scale: see RULES in sharding.py$"
    ):
        module(*RULES[:2]).partition_specs(variables(), MESH)


def test_a_rule_without_a_weight() -> None:
    more = PartitionRule("gate/kernel", ("fsdp", "tensor"), "hidden, column-parallel")
    with pytest.raises(ValueError, match=r"^rule 'gate/kernel' names no weight: see RULES"):
        module(*RULES, more).partition_specs(variables(), MESH)


def test_a_rule_with_more_axes_than_its_weight() -> None:
    made = module()
    made.RULES = ((r"norm/scale", P("fsdp", "tensor")), *made.RULES)
    with pytest.raises(ValueError, match=r"^params/norm/scale has 1 axes, rule 'norm/scale' 2"):
        made.partition_specs(variables(), MESH)


@pytest.mark.parametrize("axis", ["tensr", ("data", "fsdp")])
def test_a_rule_with_an_axis_that_no_mesh_has(axis: Any) -> None:
    made = module()
    made.RULES = (("up/kernel", P("fsdp", axis)), *made.RULES[1:])
    said = f"rule 'up/kernel' has {axis!r}, which is no axis of a mesh (data, fsdp, tensor, expert)"
    with pytest.raises(ValueError, match=f"^{re.escape(said)}: see RULES in sharding.py$"):
        made.partition_specs(variables(), MESH)


def test_a_mesh_of_the_users_own_may_have_an_axis_more() -> None:
    made = module()
    made.RULES = (("up/kernel", P("fsdp", "model")), *made.RULES[1:])
    mesh = AbstractMesh((2, 4), ("fsdp", "model"))
    specs = made.partition_specs(variables(), mesh)
    assert specs["params"]["up"]["kernel"] == P("fsdp", "model")


def test_another_number_of_devices() -> None:
    count = len(jax.devices())
    said = rf"^mesh fsdp={3 * count} \* tensor=2: {6 * count} devices, there are {count}$"
    with pytest.raises(ValueError, match=said):
        module().make_mesh(fsdp=3 * count, tensor=2)


def test_an_axis_of_the_mesh_that_no_rule_uses() -> None:
    devices = jax.devices() * 2
    count = len(devices)
    with pytest.raises(
        ValueError, match=rf"^mesh expert={count}: no rule divides a weight over expert$"
    ):
        module().make_mesh(expert=count, devices=devices)


def test_a_batch_that_the_mesh_does_not_divide() -> None:
    batch = {"table": jnp.ones((3, 2)), "x": jnp.ones((3, 2))}
    with pytest.raises(ValueError, match=r"^x: a batch of 3 is not divisible by data=1 \* fsdp=2$"):
        module().shard_batch({"x": batch["x"]}, MESH)


def test_without_a_mesh_activations_are_left_alone() -> None:
    x = jnp.ones((3, 2))
    assert module().constrain_batch(x) is x
