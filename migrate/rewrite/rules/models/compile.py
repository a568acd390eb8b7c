"""torch.compile: XLA compiles the step without it."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence

import libcst as cst

from migrate.rewrite.edits.branch import is_plain_question
from migrate.rewrite.rule import Edit, Rule, RuleFinding, checked, left_alone, reported, rewritten
from migrate.rewrite.rules.models.compiled_names import asks_for_prefix
from migrate.rewrite.styles.cuda_only import only_on_cuda
from migrate.rewrite.workspace import Workspace
from migrate.syntax.tree import code, keyword, string_value

COMPILE = "torch.compile"
GOES = "remove torch.compile: XLA compiles the step"
RAISES = 'torch.compile: its default backend raises on XLA; drop it, or backend="openxla"'
# Measured to run on XLA tensors; the default, inductor, raises.
RUN_ON_XLA = frozenset({"openxla", "eager", "aot_eager"})
PREFIX_GOES = (
    "`_orig_mod.` is put before the names of parameters by torch.compile, which is removed: no name has "
    "it then, and what asks for it finds nothing; take the name without it (a checkpoint of the CUDA script "
    "has it)"
)
OPTIONS = frozenset({"backend", "dynamic", "fullgraph", "mode", "options"})


class Compile(Rule):
    """Drop `torch.compile`: XLA compiles the whole step.

    **What it does.** `model = torch.compile(model)` goes, with an `if` around it that holds nothing else;
    `f(torch.compile(net))` becomes `f(net)`, and the decorator goes. The default backend raises for XLA
    tensors. `backend="openxla"` trains to the same losses, but cuts a step into twice as many graphs,
    and fails around DistributedDataParallel; a script that asks for it keeps it.

    **Reported.** A backend that the script computes; `torch.compile` without a function, or handed on by
    name; the method `model.compile()`; reads of `_orig_mod`, which a model that is not compiled lacks,
    unless `hasattr` or `isinstance` has asked for it; names of parameters with `_orig_mod.` in them, which
    `torch.compile` puts there, where the script asks for them, chooses by them or makes them. Code that
    only takes the prefix off is right without it, too.

    Source: measured on two simulated replicas of torch_xla 2.9: 6 steps, 20 graph executions without,
    38 with `openxla`, the same losses to the last bit.
    """

    name = "compile"
    code = "XLA806"
    beside_frameworks = True
    nodes = (
        cst.Call,
        cst.Decorator,
        cst.Attribute,
        cst.If,
        cst.SimpleStatementLine,
        cst.SimpleString,
        cst.FormattedStringText,
    )
    words = "compile|_orig_mod"
    examples = (
        rewritten(
            """
            import torch


            @torch.compile(fullgraph=True)
            def activation(x):
                return x * torch.sigmoid(x)


            def build(net, args):
                if args.compile:
                    net = torch.compile(net, mode='max-autotune')
                net: torch.nn.Module = torch.compile(net)
                return Trainer(torch.compile(net.head), net)
            """,
            """
            import torch


            def activation(x):
                return x * torch.sigmoid(x)


            def build(net, args):
                return Trainer(net.head, net)
            """,
        ),
        left_alone(
            """
            import re

            import torch

            pattern = re.compile('a+')
            net = torch.compile(net, backend='openxla')
            bare = net._orig_mod if hasattr(net, '_orig_mod') else net
            if hasattr(net, '_orig_mod'):
                net = net._orig_mod
            """
        ),
        left_alone(
            """
            import torch
            from torch._dynamo import OptimizedModule


            def bare(self):
                network = self.network.module if self.is_ddp else self.network
                while isinstance(network, OptimizedModule):
                    network = network._orig_mod
                return network._orig_mod if isinstance(network, OptimizedModule) else network
            """
        ),
        reported(
            """
            import torch


            def build(net, args):
                net = torch.compile(net, backend=args.backend)
                return net._orig_mod
            """,
            "raises on XLA",
        ),
        reported(
            """
            import torch


            def reset(net):
                net = torch.compile(net)
                state = net.state_dict()
                if '_orig_mod.head' in state:
                    state['_orig_mod.head'] = torch.zeros_like(state['_orig_mod.head'])
                net.load_state_dict(state)
            """,
            "which is removed",
        ),
        left_alone(
            """
            import torch

            PREFIX = '_orig_mod.'


            def strip(state):
                for key in list(state):
                    if key.startswith(PREFIX):
                        state[key[len(PREFIX):]] = state.pop(key)
                return {key.replace('_orig_mod.', ''): value for key, value in state.items()}
            """
        ),
        reported(
            """
            import torch


            def build(model):
                model.compile(mode='reduce-overhead')
            """,
            "raises on XLA",
        ),
        checked(
            """
            import torch


            @torch.compile  # XLA806
            def norm(x):
                return x / x.norm()


            def make(model):
                model = torch.compile(model, backend="inductor")  # XLA806
                return torch.compile(model)  # XLA806
            """
        ),
    )

    def find(self, node: cst.CSTNode, context: Workspace) -> Iterable[Edit | RuleFinding]:
        """Yield the edit of one compiled function, or the finding at one that is left."""
        names = cst.SimpleString | cst.FormattedStringText
        if context.calls.led is not None and isinstance(node, names | cst.Attribute):
            return  # the script stays as it is, and what it compiles has its names
        if isinstance(node, names):
            if asks_for_prefix(node, context) and not _all_left(context):
                yield from self.report(_reported(node, context), PREFIX_GOES)
        elif context.portable and not isinstance(node, cst.Attribute):
            yield from self._portable(node, context)
        elif isinstance(node, cst.Decorator):
            yield from self._decorator(node, context)
        elif isinstance(node, cst.Call):
            yield from self._call(node, context)
        elif isinstance(node, cst.If | cst.SimpleStatementLine):
            yield from self._statement(node, context)
        elif isinstance(node, cst.Attribute) and _is_missing(node, context):
            yield from self.report(
                node, f"{code(node)}: a model that is not compiled has no _orig_mod"
            )

    def _portable(self, node: cst.CSTNode, context: Workspace) -> Iterator[Edit]:
        """Yield the edits in the portable style: shims compiles where torch.compile works."""
        if isinstance(node, cst.SimpleStatementLine):
            only = node.body[0] if len(node.body) == 1 else None
            call = only.value if isinstance(only, cst.Expr) else None
            if (
                isinstance(only, cst.Expr)
                and isinstance(call, cst.Call)
                and _is_method(call, context)
            ):
                yield only_on_cuda(self, only, context, "XLA compiles the step")
            return
        function: cst.BaseExpression | None = None
        if isinstance(node, cst.Decorator) and not isinstance(node.decorator, cst.Call):
            function = node.decorator
        elif isinstance(node, cst.Call) and not _is_left(node):
            function = node.func
        if function is not None and context.qualified_name(function) == COMPILE:
            ours = cst.parse_expression(f"{context.imports.require('shims')}.compile")
            message = "torch.compile → shims.compile: XLA compiles the step without it"
            yield self.edit(function, lambda _: ours, message, consumes=[function])

    def _decorator(self, node: cst.Decorator, context: Workspace) -> Iterator[Edit]:
        expression = node.decorator
        function = expression.func if isinstance(expression, cst.Call) else expression
        if context.qualified_name(function) != COMPILE:
            return
        if isinstance(expression, cst.Call) and not _goes(expression):
            return
        yield self._gone(node, [expression])

    def _call(self, call: cst.Call, context: Workspace) -> Iterator[Edit | RuleFinding]:
        if _is_method(call, context):
            message = (
                f"{code(call)}: its default backend raises on XLA: drop it, XLA compiles the step"
            )
            yield from self.report(call, message)
        if context.qualified_name(call.func) != COMPILE or _is_left(call):
            return
        above = context.parent(call)
        if isinstance(above, cst.Decorator) and _goes(call):
            return
        if not _goes(call) or not _compiled(call):
            message = (
                f"{code(call)}: the default backend raises on XLA: drop it, XLA compiles the step"
            )
            yield from self.report(call, message)
            return
        if isinstance(above, cst.Assign | cst.AnnAssign) and _is_to_itself(above, context):
            if not _compiles_to_itself(context.parent(above), context):  # not alone on its line
                yield self._gone(above, [above])
            return  # else its line goes
        gone = [call.func, *call.args[1:]]
        yield self.edit(
            call, lambda updated: updated.args[0].value, GOES, consumes=gone, wrong=RAISES
        )

    def _gone(self, node: cst.CSTNode, consumed: Sequence[cst.CSTNode]) -> Edit:
        """Return the edit that takes out a decorator or a statement."""
        return self.edit(
            node, lambda _: cst.RemoveFromParent(), GOES, consumes=consumed, wrong=RAISES
        )

    def _statement(
        self, node: cst.If | cst.SimpleStatementLine, context: Workspace
    ) -> Iterator[Edit]:
        if isinstance(node, cst.If):
            goes = _holds_nothing_else(node, context)
        else:
            block = context.parent(node)
            around = context.parent(block)
            whole = isinstance(around, cst.If) and _holds_nothing_else(around, context)
            goes = _compiles_to_itself(node, context) and not whole
        if goes:
            yield self._gone(node, [node])


def _reported(node: cst.CSTNode, context: Workspace) -> cst.CSTNode:
    """Return the string that a part of one is in."""
    above = context.parent(node)
    return above if isinstance(node, cst.FormattedStringText) and above is not None else node


def _all_left(context: Workspace) -> bool:
    """Whether the script compiles, and for backends that stay alone."""
    calls = [
        call for call in context.all_of(cst.Call) if context.qualified_name(call.func) == COMPILE
    ]
    return bool(calls) and all(map(_is_left, calls))


def _is_left(call: cst.Call) -> bool:
    backend = keyword(call, "backend")
    return backend is not None and string_value(backend.value) in RUN_ON_XLA


def _goes(call: cst.Call) -> bool:
    """Whether the call shows that it compiles for a backend that raises."""
    backend = keyword(call, "backend")
    shown = backend is None or string_value(backend.value) is not None
    return shown and not _is_left(call) and not any(arg.star for arg in call.args)


def _compiled(call: cst.Call) -> cst.BaseExpression | None:
    """Return what the call compiles, where that is its first argument."""
    first = call.args[0] if call.args else None
    named = first is not None and first.keyword is not None and first.keyword.value != "model"
    return None if first is None or named else first.value


def _is_to_itself(assign: cst.Assign | cst.AnnAssign, context: Workspace) -> bool:
    """Whether the assignment is `x = torch.compile(x, …)`, annotated or not."""
    call = assign.value
    if not isinstance(call, cst.Call) or context.qualified_name(call.func) != COMPILE:
        return False
    compiled = _compiled(call) if _goes(call) else None
    targets = [assign] if isinstance(assign, cst.AnnAssign) else assign.targets
    return len(targets) == 1 and compiled is not None and compiled.deep_equals(targets[0].target)


def _compiles_to_itself(line: cst.CSTNode | None, context: Workspace) -> bool:
    if not isinstance(line, cst.SimpleStatementLine) or len(line.body) != 1:
        return False
    statement = line.body[0]
    if not isinstance(statement, cst.Assign | cst.AnnAssign):
        return False
    return _is_to_itself(statement, context)


def _holds_nothing_else(node: cst.If, context: Workspace) -> bool:
    """Whether all that the `if` does is to compile, so that it can go."""
    alone = node.orelse is None and not isinstance(context.parent(node), cst.If)
    if not alone or not isinstance(node.body, cst.IndentedBlock):
        return False
    compiles = all(_compiles_to_itself(line, context) for line in node.body.body)
    return compiles and is_plain_question(node.test)


def _is_method(call: cst.Call, context: Workspace) -> bool:
    """Whether the call is `model.compile(…)` of torch.nn.Module."""
    function = call.func
    if not isinstance(function, cst.Attribute) or function.attr.value != "compile":
        return False
    if context.qualified_name(function) is not None or _is_left(call):
        return False
    receiver = code(function.value).rsplit(".", 1)[-1].lower()
    options = all(arg.keyword is not None and arg.keyword.value in OPTIONS for arg in call.args)
    return options and ("model" in receiver or receiver in ("net", "module"))


def _is_missing(node: cst.Attribute, context: Workspace) -> bool:
    """Whether `node` is `model._orig_mod`, and no test before has asked whether the model is compiled.

    Such tests are `hasattr(model, "_orig_mod")` and `isinstance(model, OptimizedModule)`.
    """
    if node.attr.value != "_orig_mod":
        return False
    model = code(node.value)
    asked = ((f"hasattr({model},", "_orig_mod"), (f"isinstance({model},", "OptimizedModule"))
    below: cst.CSTNode = node
    for above in context.ancestors(node):
        if isinstance(above, cst.If | cst.IfExp | cst.While) and below is above.body:
            test = code(above.test)
            tells = any(call in test and name in test for call, name in asked)
            if tells and not test.startswith("not "):
                return False
        below = above
    return True
