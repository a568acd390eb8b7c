"""torch_xla's own calls, old and new, in a script that is to run on CUDA, the CPU and a TPU."""

from __future__ import annotations

from collections.abc import Iterator

import libcst as cst
from libcst.helpers import get_full_name_for_node

from migrate.catalogue.launchers import SPAWN_PARAMETERS, XLA_LAUNCHES
from migrate.rewrite.edits.nodes import with_args
from migrate.rewrite.rule import Edit, Rule, RuleFinding
from migrate.rewrite.workspace import Workspace
from migrate.syntax.tree import bind, code

XM = "torch_xla.core.xla_model"
XR = "torch_xla.runtime"
# Questions and functions; those with a name after the dot take their arguments along, the others none.
ASKED = {
    f"{XM}.get_ordinal": "rank",
    f"{XM}.get_local_ordinal": "local_rank",
    f"{XM}.xrt_world_size": "world_size",
    f"{XM}.xla_device": "device",
    f"{XM}.wait_device_ops": "synchronize",
    f"{XR}.global_ordinal": "rank",
    f"{XR}.local_ordinal": "local_rank",
    f"{XR}.world_size": "world_size",
    f"{XR}.local_device_count": "local_world_size",
    f"{XM}.rendezvous": "barrier",
    "torch_xla.device": "device",
    "torch_xla.step": "step",
}
WITH_ARGUMENTS = {
    "torch_xla.manual_seed": "manual_seed",
    "torch_xla.utils.checkpoint.checkpoint": "checkpoint_activations",
}
LAUNCHED = (*SPAWN_PARAMETERS, "debug_single_process")
BACKEND = "torch_xla.distributed.xla_backend"


def portable_calls(
    rule: Rule, node: cst.CSTNode, context: Workspace
) -> Iterator[Edit | RuleFinding]:
    """Yield the edit of a call of torch_xla, or a finding if shims has no equivalent."""
    if isinstance(node, cst.SimpleStatementLine):
        yield from _import(rule, node, context)
    elif isinstance(node, cst.Call):
        yield from _call(rule, node, context)
    elif isinstance(node, cst.Attribute | cst.Name):
        yield from _rest(rule, node, context)


def _import(rule: Rule, line: cst.SimpleStatementLine, context: Workspace) -> Iterator[Edit]:
    """Yield the removal of the import that only registers the backend, which shims does."""
    only = line.body[0] if len(line.body) == 1 else None
    if not isinstance(only, cst.Import) or any(
        alias.evaluated_name != BACKEND or alias.asname is not None for alias in only.names
    ):
        return
    if all(_full_name(node, context) != BACKEND for node in context.nodes):
        message = "the XLA backend is registered by shims"
        yield rule.edit(line, lambda _: cst.RemoveFromParent(), message, consumes=[line])


def _full_name(node: cst.CSTNode, context: Workspace) -> str | None:
    above = context.parent(node)
    if isinstance(above, cst.ImportAlias) or not isinstance(node, cst.Attribute):
        return None
    return get_full_name_for_node(node)


def _call(rule: Rule, call: cst.Call, context: Workspace) -> Iterator[Edit | RuleFinding]:
    name = context.qualified_name(call.func) or ""
    if name in XLA_LAUNCHES:
        yield from _launch(rule, call, context)
        return
    word = ASKED.get(name) or WITH_ARGUMENTS.get(name)
    if word is None or (name.endswith("xla_device") and call.args):
        return
    function = cst.parse_expression(f"{context.imports.require('shims')}.{word}")
    keeps = name in WITH_ARGUMENTS

    def replace(updated: cst.Call) -> cst.Call:
        if keeps:
            return updated.with_changes(func=function)
        return cst.Call(function, lpar=updated.lpar, rpar=updated.rpar)

    gone = [call.func] if keeps else [call.func, *call.args]
    yield rule.edit(call, replace, f"{code(call)} → shims.{word}", consumes=gone)


def _launch(rule: Rule, call: cst.Call, context: Workspace) -> Iterator[Edit | RuleFinding]:
    bound = bind(call, LAUNCHED)
    single = bound is not None and "debug_single_process" in bound
    if bound is None or "fn" not in bound or single or context.source.is_notebook:
        message = f"{code(call.func)} with these arguments: shims.launch(fn, args=…)"
        yield from rule.report(call, message)
        return
    launch = context.vocabulary.expression("launch")
    kept = [call.args.index(arg) for key, arg in bound.items() if key in ("fn", "args")]

    def replace(updated: cst.Call) -> cst.Call:
        args = [updated.args[index] for index in kept]
        return with_args(updated, args).with_changes(func=launch)

    gone = [arg for key, arg in bound.items() if key not in ("fn", "args")]
    message = f"{code(call.func)} → shims.launch"
    yield rule.edit(call, replace, message, consumes=[call.func, *gone])


def _rest(rule: Rule, node: cst.Attribute | cst.Name, context: Workspace) -> Iterator[RuleFinding]:
    """Yield the finding at a name of torch_xla that no edit takes the place of."""
    above = context.parent(node)
    if isinstance(above, cst.Attribute | cst.ImportAlias | cst.ImportFrom | cst.AsName):
        return
    name = context.qualified_name(node) or ""
    if not name.startswith("torch_xla"):
        return
    called = isinstance(above, cst.Call) and above.func is node
    known = ASKED.keys() | WITH_ARGUMENTS.keys() | XLA_LAUNCHES
    if called and name in known and not (name.endswith("xla_device") and above.args):  # type: ignore[union-attr]
        return
    yield from rule.report(node, f"{name}: shims has no word for it, so that it needs torch_xla")
