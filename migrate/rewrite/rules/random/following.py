"""Statements by which a replica seeds XLA where it joins, and after code that seeds torch alone."""

from __future__ import annotations

from collections.abc import Iterator

import libcst as cst

from migrate.model.draws.randomness import Start
from migrate.rewrite.rule import Edit, Rule, RuleFinding
from migrate.rewrite.rules.random.seeds import CUDA_SEED, XLA_SEED
from migrate.rewrite.workspace import Workspace
from migrate.syntax.tree import code

OWN = "# XLA starts all replicas at the same seed: each gets its own, as each GPU does."
WITHOUT = "# Where no seed is given, XLA would start all replicas at the same one."
UNSEEDED = (
    "nothing seeds the script, and XLA starts all replicas at the same seed: they draw the same noise and "
    "drop the same elements, unlike GPUs: torch_xla.manual_seed(torch.initial_seed() + xr.global_ordinal())"
)
BY_HAND = {
    Start.GIVEN: "where no seed is given, XLA starts all replicas at the same one, unlike GPUs: "
    "torch_xla.manual_seed(torch.initial_seed()) after the replica has joined",
    Start.OWN: "nothing seeds the script, and XLA starts all replicas at the same seed, unlike GPUs: "
    "torch_xla.manual_seed(torch.initial_seed() + xr.global_ordinal()) after the replica has joined",
    Start.HOST: "torch is seeded when the file is read, where XLA must not be touched: "
    "torch_xla.manual_seed(torch.initial_seed()) after the replica has joined",
}


def after_joining(
    rule: Rule, node: cst.Call, start: Start, context: Workspace
) -> Iterator[Edit | RuleFinding]:
    """Yield the edit that seeds XLA after `node`, by which a replica joins the process group."""
    small = context.parent(node)
    if not isinstance(small, cst.Expr | cst.Assign):
        yield from rule.report(node, f"{code(node.func)}: {BY_HAND[start]}")
        return
    if _is_followed(small, context):
        return
    if start is Start.HOST:
        message = (
            "torch_xla.manual_seed, with the seed that torch is given where the file is read: XLA must "
            "not be touched there"
        )
        yield statement_after(rule, small, host_seed(context), message, context)
        return
    if start is Start.GIVEN:
        message = (
            "torch_xla.manual_seed, with the seed of the host's generator: where none is given, XLA starts "
            "all replicas at the same one"
        )
        seed = host_seed(context)
        yield statement_after(rule, small, seed, message, context, comment=WITHOUT)
        return
    seed = host_seed(context, f" + {context.vocabulary.write('rank')}")
    message = (
        "torch_xla.manual_seed, for each replica its own: nothing seeds the script, and XLA starts all "
        "replicas at the same seed"
    )
    yield statement_after(rule, small, seed, message, context, comment=OWN, wrong=UNSEEDED)


def after_silent_seed(
    rule: Rule, node: cst.Call, context: Workspace
) -> Iterator[Edit | RuleFinding]:
    """Yield the edit that seeds the device after `node`, which seeds torch by code that stays as it is."""
    small = context.parent(node)
    seeds = context.vocabulary.say("seed")
    if not isinstance(small, cst.Expr | cst.Assign):
        message = f"{code(node)} does not seed XLA: {seeds}(torch.initial_seed()) after it"
        yield from rule.report(node, message)
    elif not _is_followed(small, context):
        message = f"{code(node)} does not seed XLA: {seeds} after it, with the same seed"
        yield statement_after(rule, small, host_seed(context), message, context)


def unseeded_here(
    rule: Rule, node: cst.Call, name: str, context: Workspace
) -> Iterator[Edit | RuleFinding]:
    """Yield the removal of a seed of the GPUs where XLA must not be touched.

    That is where the file is read, before the launch, and in the processes of a data loader.
    """
    if name not in CUDA_SEED:
        return
    small = context.parent(node)
    if isinstance(small, cst.Expr):
        message = f"remove {code(node)}: XLA must not be touched here"
        yield rule.edit(small, lambda _: cst.RemoveFromParent(), message, consumes=[node])
    else:
        yield from rule.report(node, f"{code(node)}: XLA must not be touched here")


def host_seed(context: Workspace, more: str = "") -> str:
    """Return the statement that gives the device the seed of the host's generator."""
    torch = context.imports.require("torch")
    return f"{context.vocabulary.write('seed')}({torch}.initial_seed(){more})"


def statement_after(
    rule: Rule,
    small: cst.CSTNode,
    statement: str,
    message: str,
    context: Workspace,
    *,
    comment: str = "",
    wrong: str = "",
) -> Edit:
    """Return the edit that writes `statement` after the small statement `small`."""
    line = context.parent(small)
    added = cst.ensure_type(cst.parse_statement(statement), cst.SimpleStatementLine)
    if isinstance(line, cst.SimpleStatementLine) and len(line.body) == 1:
        if comment:
            above = cst.EmptyLine(comment=cst.Comment(comment))
            added = added.with_changes(leading_lines=[above])
        return rule.edit(
            line, lambda updated: cst.FlattenSentinel([updated, added]), message, wrong=wrong
        )
    seed = added.body[0]
    return rule.edit(
        small, lambda updated: cst.FlattenSentinel([updated, seed]), message, wrong=wrong
    )


def _is_followed(small: cst.CSTNode, context: Workspace) -> bool:
    """Whether one of the next two statements after `small` seeds the device already."""
    line = context.parent(small)
    block = context.parent(line)
    if not isinstance(block, cst.IndentedBlock | cst.Module):
        return False
    at = next((i for i, statement in enumerate(block.body) if statement is line), len(block.body))
    return any(
        context.qualified_name(call.func) in (XLA_SEED, "shims.manual_seed")
        for statement in block.body[at + 1 : at + 3]
        if isinstance(statement, cst.SimpleStatementLine)
        for call in context.below(statement, cst.Call)
    )
