"""Rewrite `torch.cuda.is_available()` for a script that runs on CUDA, the CPU and a TPU."""

from __future__ import annotations

from collections.abc import Iterator

import libcst as cst

from migrate.catalogue import torch_cuda
from migrate.catalogue.entry import names
from migrate.catalogue.words import EXITS
from migrate.reading.values.devices import DEVICE, Kind
from migrate.rewrite.edits.gpu_conditions import any_of, asked_part, is_asked
from migrate.rewrite.rule import Edit, Rule
from migrate.rewrite.rules.devices.kept_devices import device_for
from migrate.rewrite.styles.cuda_only import is_cuda
from migrate.rewrite.workspace import Workspace
from migrate.syntax.tree import code

BFLOAT16 = names(*torch_cuda.BFLOAT16)


def question(rule: Rule, call: cst.Call, context: Workspace) -> Iterator[Edit]:
    """Yield the edit of one question: is there an accelerator?

    A choice of the device is that of shims, one of the backend too; any other choice stays, so that the
    run on the CPU takes the branch that it took.
    """
    asked, negated = _with_not(call, context)
    above = context.parent(asked)
    if isinstance(above, cst.BooleanOperation) and _asks_twice(above, context):
        if asked is above.right:
            return  # answered with the first
        asked = above
    choice = context.parent(asked)
    if isinstance(choice, cst.IfExp) and choice.test is asked:
        chosen, other = choice.body, choice.orelse
        if negated:
            chosen, other = other, chosen
        if _is_device(chosen, other, context):
            yield _device(rule, choice, context)
            return
        if {"nccl", "gloo"} <= {code(side).strip("'\"") for side in (chosen, other)}:
            shims = context.imports.require("shims")
            backend = cst.parse_expression(f"{shims}.backend().group_backend")
            message = f"`{code(choice)}` → the backend of the replica's device"
            yield rule.edit(choice, lambda _: backend, message, consumes=[choice])
            return
    yield _answer(rule, call, asked, negated, context)


def insists(above: cst.CSTNode | None, condition: cst.BaseExpression, answer: object) -> bool:
    """Whether the script refuses to run without a GPU: `assert`, or `if not …: raise`.

    Args:
        above: the statement, or whatever is above the condition.
        condition: the condition that asks.
        answer: its value if there is an accelerator.
    """
    if isinstance(above, cst.Assert):
        return above.test is condition and answer is True
    if not isinstance(above, cst.If) or above.orelse is not None or answer is not False:
        return False
    last = above.body.body[-1]
    ends = last.body[-1] if isinstance(last, cst.SimpleStatementLine) else last
    return above.test is condition and (
        isinstance(ends, cst.Raise)
        or (isinstance(ends, cst.Expr) and code(ends.value).split("(")[0] in EXITS)
    )


def _with_not(call: cst.Call, context: Workspace) -> tuple[cst.BaseExpression, bool]:
    asked = asked_part(call, context)
    negated = any_of(asked, context) is False
    above = context.parent(asked)
    if isinstance(above, cst.UnaryOperation) and isinstance(above.operator, cst.Not):
        return above, not negated
    return asked, negated


def _asks_twice(both: cst.BooleanOperation, context: Workspace) -> bool:
    """Whether both sides of `and` ask for a GPU, or those of `or` for none: the answer is that of one."""
    positive = isinstance(both.operator, cst.And)
    return all(_wants(side, context) is positive for side in (both.left, both.right))


def _wants(node: cst.BaseExpression, context: Workspace) -> bool | None:
    """Return whether `node` is true with a GPU (True) or without (False), or None for any other question."""
    if isinstance(node, cst.UnaryOperation) and isinstance(node.operator, cst.Not):
        inside = _wants(node.expression, context)
        return None if inside is None else not inside
    if isinstance(node, cst.Call):
        bfloat16 = context.qualified_name(node.func) in BFLOAT16
        return True if is_asked(node, context) and not bfloat16 else None
    return any_of(node, context)


def _is_device(chosen: cst.BaseExpression, other: cst.BaseExpression, context: Workspace) -> bool:
    """Whether a choice is between an accelerator and the CPU."""
    kinds = (context.devices.kind(chosen), context.devices.kind(other))
    return kinds[0] in (Kind.CUDA, Kind.INDEX, Kind.XLA) and kinds[1] is Kind.CPU


def _device(rule: Rule, choice: cst.IfExp, context: Workspace) -> Edit:
    place: cst.BaseExpression = choice
    branch = context.parent(context.parent(choice))
    word = device_for(choice, context)
    if (
        isinstance(branch, cst.Call)
        and context.qualified_name(branch.func) in DEVICE
        and len(branch.args) == 1
        and code(context.vocabulary.device(branch)) == context.vocabulary.device_said
    ):
        place, word = branch, context.vocabulary.device(branch)
    elif code(choice.body).startswith("torch.device") and "device_type" in code(word):
        torch = context.imports.require("torch")
        word = cst.parse_expression(f"{torch}.device({code(word)})")
    message = f"`{code(place)}` → {code(word)}"
    return rule.edit(place, lambda _: word, message, consumes=[place])


def _answer(
    rule: Rule, call: cst.Call, asked: cst.BaseExpression, negated: bool, context: Workspace
) -> Edit:
    """Return the edit of a question whose answer stays a question."""
    shims = context.imports.require("shims")
    cpu = context.string("cpu").value
    above = context.parent(asked)
    if context.qualified_name(call.func) in BFLOAT16:
        test = is_cuda(context, "!=")
        message = f"`{code(call)}`: asked on CUDA only, elsewhere there is bfloat16"

        def both(updated: cst.Call) -> cst.BooleanOperation:
            either = cst.BooleanOperation(test, cst.Or(), updated)
            return either.with_changes(lpar=[cst.LeftParen()], rpar=[cst.RightParen()])

        return rule.edit(call, both, message, consumes=[call.func])
    answer = cst.parse_expression(f"{shims}.device_type() {'==' if negated else '!='} {cpu}")
    loose = isinstance(above, cst.Comparison | cst.ComparisonTarget | cst.UnaryOperation)
    if loose or asked.lpar:
        answer = answer.with_changes(lpar=[cst.LeftParen()], rpar=[cst.RightParen()])
    message = f"`{code(asked)}` → `{code(answer)}`"
    return rule.edit(asked, lambda _: answer, message, consumes=[asked])
