"""Seeds and states of random generators in a script that is to run on CUDA, the CPU and a TPU."""

from __future__ import annotations

from collections.abc import Iterator

import libcst as cst

from migrate.catalogue import catalogue
from migrate.catalogue.drawing import OTHER_SEEDERS, SEEDERS
from migrate.catalogue.entry import names
from migrate.catalogue.torch_cuda import RANDOM_SEEDS, STATE_OF_ALL, STATE_OF_ONE
from migrate.reading.values.devices import (
    GENERATOR,
    Kind,
    device_of_generator,
    makes_generator,
)
from migrate.rewrite.edits.nodes import with_args
from migrate.rewrite.rule import Edit, Rule, RuleFinding
from migrate.rewrite.rules.random.following import after_silent_seed
from migrate.rewrite.rules.random.seeds import CPU_SEED, CUDA_SEED, launches
from migrate.rewrite.workspace import Workspace
from migrate.syntax.tree import bind, code

OURS = "shims.manual_seed"
OF_OURS = "generator().device"
FORK = "torch.random.fork_rng"
STATES = names(*STATE_OF_ONE)
BY_HAND = names(*RANDOM_SEEDS, *STATE_OF_ALL)


def portable_rng(
    rule: Rule, node: cst.Call, name: str, context: Workspace
) -> Iterator[Edit | RuleFinding]:
    """Yield the edits and findings for one call that seeds, or that keeps or makes a state.

    A seed of the process that launches the replicas stays: on no device do they inherit it.
    """
    seeding, place = context.calls.seeding, context.place(node)
    if place in seeding.in_loaders:
        return  # in the processes of a data loader
    if place in seeding.silent or (place in seeding.early and _is_of_library(name)):
        yield from after_silent_seed(rule, node, context)
    elif name in CPU_SEED:
        used = context.devices.are_used or place in seeding.for_devices
        if used and not launches(node, context):
            yield from _seed(rule, node, context)
    elif name in CUDA_SEED:
        yield from _cuda_seed(rule, node, context)
    elif name in STATES:
        yield from _state(rule, node, name, context)
    elif makes_generator(node, context):
        yield from _generator(rule, node, name, context)
    elif name == FORK and forks_a_device(node):
        yield from rule.report(node, f"{code(node)}: raises without CUDA, with devices")
    elif name in BY_HAND and (entry := catalogue.of(name)):
        yield from rule.report(node, f"{name}: {entry.says(portable=True)}", subject=name)


def forks_a_device(call: cst.Call) -> bool:
    """Whether a call of `torch.random.fork_rng` asks for a device; with `devices=[]` it does not."""
    bound = bind(call, ("devices", "enabled"))
    if bound is None or "devices" not in bound:
        return bound is None or bool(bound)
    devices = bound["devices"].value
    return not (isinstance(devices, cst.List | cst.Tuple) and not devices.elements)


def _is_of_library(name: str) -> bool:
    return name.rpartition(".")[2] in SEEDERS and name.split(".")[0] not in OTHER_SEEDERS


def _seed(rule: Rule, node: cst.Call, context: Workspace) -> Iterator[Edit | RuleFinding]:
    if not isinstance(context.parent(node), cst.Expr):
        message = f"{code(node)} does not seed XLA: shims.manual_seed does, and returns nothing"
        yield from rule.report(node, message)
        return
    function = context.vocabulary.expression("seed")
    message = f"{code(node)} → shims.manual_seed: host and device"
    yield rule.edit(node.func, lambda _: function, message, consumes=[node.func])


def _cuda_seed(rule: Rule, node: cst.Call, context: Workspace) -> Iterator[Edit | RuleFinding]:
    """Remove a seed that `shims.manual_seed` sets too; another one stays, it does nothing elsewhere."""
    statement = context.parent(node)
    if launches(node, context):
        return
    if _is_seeded(node, context) and isinstance(statement, cst.Expr):
        message = f"remove {code(node)}: shims.manual_seed sets this seed"
        yield rule.edit(statement, lambda _: cst.RemoveFromParent(), message, consumes=[node])
        return
    message = f"{code(node)} seeds GPUs only: shims.manual_seed(seed) seeds host and device"
    yield from rule.report(node, message)


def _is_seeded(node: cst.Call, context: Workspace) -> bool:
    """Whether the same function gives the host the same seed."""
    around = context.function_around(node) or context.module
    args = [code(arg.value) for arg in node.args]
    return any(
        (context.qualified_name(call.func) or "") in CPU_SEED | {OURS}
        and [code(arg.value) for arg in call.args] == args
        for call in context.below(around, cst.Call)
    )


def _state(
    rule: Rule, node: cst.Call, name: str, context: Workspace
) -> Iterator[Edit | RuleFinding]:
    ours = "set_rng_state" if name.endswith("set_rng_state") else "rng_state"
    kept = 1 if ours == "set_rng_state" else 0
    if isinstance(context.parent(node), cst.Attribute) or any(arg.star for arg in node.args):
        message = f"{code(node)}: shims.{ours}, where the state is that of host and device"
        yield from rule.report(node, message)
        return
    function = cst.parse_expression(f"{context.imports.require('shims')}.{ours}")

    def replace(updated: cst.Call) -> cst.Call:
        if not kept:
            return cst.Call(function, lpar=updated.lpar, rpar=updated.rpar)
        state = updated.args[0].with_changes(keyword=None, equal=cst.MaybeSentinel.DEFAULT)
        return with_args(updated, [state]).with_changes(func=function)

    message = f"{code(node.func)} → shims.{ours}, of host and device: old states do not load"
    yield rule.edit(node, replace, message, consumes=[node.func, *node.args[kept:]])


def _generator(
    rule: Rule, node: cst.Call, name: str, context: Workspace
) -> Iterator[Edit | RuleFinding]:
    arg = device_of_generator(node, context)
    if arg is None or code(arg.value).endswith(OF_OURS):
        return
    kind = context.devices.kind(arg.value)
    if kind in (Kind.CUDA, Kind.INDEX, Kind.XLA):
        ours = f"{context.imports.require('shims')}.generator()"
        if name == GENERATOR:
            expression = cst.parse_expression(ours)
            message = f"{code(node)} → shims.generator(): of the GPU on CUDA, of the host elsewhere"
            yield rule.edit(node, lambda _: expression, message, consumes=[node])
            return
        device = cst.parse_expression(f"{ours}.device")
        message = (
            f"{code(node)} → on the device of shims.generator(): the GPU on CUDA, else the host"
        )
        yield rule.edit(arg, lambda a: a.with_changes(value=device), message, consumes=[arg])
    elif kind is Kind.UNKNOWN:
        message = f"{code(node)}: raises for an XLA device; use shims.generator()"
        yield from rule.report(node, message)
