"""Optimizer implementations that exist for CUDA only."""

from __future__ import annotations

from collections.abc import Iterable

import libcst as cst

from migrate.catalogue.words import OPTIMIZER, TORCH_OPTIMIZER
from migrate.check.hazard import Severity
from migrate.model.calls.kind import Kind
from migrate.rewrite.edits.gpu_conditions import is_asked
from migrate.rewrite.edits.nodes import argument, with_args
from migrate.rewrite.rule import Edit, Rule, RuleFinding, checked, left_alone, reported, rewritten
from migrate.rewrite.styles.cuda_only import and_on_cuda, is_cuda
from migrate.rewrite.workspace import Workspace
from migrate.syntax.tree import code, dotted, keyword, last_part, nodes_of, string_value

# Of an optimizer: which code runs its step. XLA compiles the plain one into the graph of the step.
CHOICES = ("fused", "capturable")
WHY = "  # a state that CUDA saved has True, which raises for XLA tensors"


class FusedOptimizer(Rule):
    """Drop `fused=True` and `capturable=True` from optimizers.

    **What it does.** `fused=True` raises for XLA tensors, and there is nothing to gain: XLA fuses the
    whole step. A `fused` that the script computes goes too, and that of a `functools.partial`.
    `capturable` is about CUDA graphs. `foreach=True` runs and stays. The state of an optimizer, as a run on
    CUDA saved it, has `fused=True` in its groups: where the project makes such an optimizer, they are set to
    None after `optimizer.load_state_dict(…)`.

    **Reported.** A dictionary of arguments with `fused`, in a script that makes optimizers. `fused=True` that
    an optimizer of the project passes on: it is the project's own argument and stays. A state that is loaded
    within another statement.

    Source: torch 2.9 on torch_xla 2.9 (measured: Adam, AdamW and SGD raise with `fused=True`, also where a
    loaded state has it, and step with `foreach=True` and with `capturable=True`).
    """

    name = "fused-optimizer"
    code = "XLA807"
    beside_frameworks = True
    nodes = (cst.Call, cst.Dict)
    words = "fused|capturable|load_state_dict"
    examples = (
        rewritten(
            """
            from functools import partial

            import torch


            def make(model, args):
                makes = {"adam": partial(torch.optim.Adam, betas=(0.9, 0.95), fused=args.fused)}
                makes["sgd"] = torch.optim.SGD(model.parameters(), fused=torch.cuda.is_available())
                return makes, torch.optim.AdamW(model.parameters(), lr=0.1, fused=True)
            """,
            """
            from functools import partial

            import torch


            def make(model, args):
                makes = {"adam": partial(torch.optim.Adam, betas=(0.9, 0.95))}
                makes["sgd"] = torch.optim.SGD(model.parameters())
                return makes, torch.optim.AdamW(model.parameters(), lr=0.1)
            """,
        ),
        rewritten(
            """
            import torch


            def resume(model, saved):
                optimizer = torch.optim.AdamW(model.parameters(), lr=0.1, fused=True)
                optimizer.load_state_dict(saved["optimizer"])
                return optimizer
            """,
            """
            import torch


            def resume(model, saved):
                optimizer = torch.optim.AdamW(model.parameters(), lr=0.1)
                optimizer.load_state_dict(saved["optimizer"])
                for group in optimizer.param_groups:
                    group["fused"] = None  # a state that CUDA saved has True, which raises for XLA tensors
                return optimizer
            """,
        ),
        left_alone(
            """
            import torch


            def make(model):
                block = Block(fused=True)
                return torch.optim.AdamW(block.parameters(), lr=0.1, foreach=True, fused=False)
            """
        ),
        left_alone(
            """
            import torch


            class Muon(torch.optim.Optimizer):
                def __init__(self, params, fused=False, capturable=False):
                    super().__init__(params, {})
                    self.fused = fused


            def make(model):
                return Muon(model.parameters(), fused=True, capturable=True)
            """
        ),
        reported(
            """
            import torch


            class Decayed(torch.optim.AdamW):
                def __init__(self, params, **options):
                    super().__init__(params, **options)


            def make(model):
                return Decayed(model.parameters(), fused=True)
            """,
            "is given fused=True",
        ),
        reported(
            """
            import torch


            def make(model, use_fused):
                extra = dict(fused=True) if use_fused else dict()
                return torch.optim.AdamW(model.parameters(), **extra)
            """,
            "fused=True raises",
        ),
        checked(
            """
            import torch


            def make(model):
                conv = model.conv(fused=True)
                graphs = torch.optim.Adam(model.parameters(), capturable=True)  # XLA807 info
                return conv, graphs, torch.optim.AdamW(model.parameters(), fused=True)  # XLA807
            """
        ),
    )

    def find(self, node: cst.CSTNode, context: Workspace) -> Iterable[Edit | RuleFinding]:
        """Yield the edit of one construction of an optimizer, or the finding at its arguments."""
        if isinstance(node, cst.Call) and _loads_state(node, context):
            yield from self._loaded(node, context)
            return
        if context.portable:
            for value in self._choices(node, context):
                yield self._on_cuda(value, context)
            return
        if isinstance(node, cst.Dict):
            pairs = [e for e in node.elements if isinstance(e, cst.DictElement)]
            fused = any(string_value(e.key) == "fused" and _on(e.value) for e in pairs)
            if fused and _makes_optimizers(context):
                yield from self.report(node, _message("'fused': True"))
            return
        assert isinstance(node, cst.Call)
        if dotted(node.func) == "dict":
            arg = keyword(node, "fused")
            if arg is not None and _on(arg.value) and _makes_optimizers(context):
                yield from self.report(node, _message("fused=True"))
            return
        if not _makes_optimizer(node, context):
            return
        if context.run_by(node):
            yield from self._own(node, context)
            return
        gone: list[cst.Arg] = []
        for choice in CHOICES:
            arg = keyword(node, choice)
            if arg is not None and _on(arg.value):
                gone.append(arg)
        if gone:
            kept = [index for index, arg in enumerate(node.args) if arg not in gone]

            # What another rule edits in a computed value goes with it.
            written: list[cst.CSTNode] = [a for a in gone if isinstance(a.value, cst.Name)]
            written += [
                call for a in gone for call in context.below(a, cst.Call) if is_asked(call, context)
            ]

            def replace(updated: cst.Call) -> cst.Call:
                return with_args(updated, [updated.args[index] for index in kept])

            listed = ", ".join(argument(arg) for arg in gone)
            values = [code(arg.value) for arg in gone if arg is keyword(node, "fused")]
            yield self.edit(
                node,
                replace,
                f"without {listed}: XLA fuses the step",
                consumes=written,
                wrong=f"fused={values[0]} raises on XLA: leave it out" if values else "",
                severity=None if values else Severity.INFO,
            )

    def _loaded(self, call: cst.Call, context: Workspace) -> Iterable[Edit | RuleFinding]:
        """Yield the edit that takes `fused` from the groups of an optimizer that was given a saved state."""
        optimizer = code(cst.ensure_type(call.func, cst.Attribute).value)
        small = context.parent(call)
        line = context.parent(small)
        if _sets_fused(line, context):
            return
        on = code(is_cuda(context)) if context.portable else "None"
        message = (
            f"a state of {optimizer} that was saved on CUDA has fused=True, which raises for XLA tensors: "
            f'`for group in {optimizer}.param_groups: group["fused"] = {on}` after it'
        )
        alone = isinstance(line, cst.SimpleStatementLine) and len(line.body) == 1
        if not isinstance(small, cst.Expr) or not alone:
            yield from self.report(call, message)
            return
        key = context.string("fused").value
        added = cst.parse_statement(
            f"for group in {optimizer}.param_groups:\n    group[{key}] = {on}{WHY}\n",
            config=context.module.config_for_parsing,
        )
        assert line is not None
        yield self.edit(line, lambda updated: cst.FlattenSentinel([updated, added]), message)

    def _own(self, call: cst.Call, context: Workspace) -> Iterable[RuleFinding]:
        """Yield the finding at `fused=True` of an optimizer of the project, which may mean anything by it."""
        arg = keyword(call, "fused")
        if arg is None or not _on(arg.value):
            return
        here = context.called(call)
        unseen = len(here) < len(context.run_by(call)) or _may_be_torchs(call.func, context)
        if unseen or any(map(_passes_fused, here)):
            message = (
                f"`{code(call.func)}` is given fused=True: see that no optimizer of torch gets it, "
                "which raises for XLA tensors"
            )
            yield from self.report(call, message, Severity.INFO)

    def _choices(self, node: cst.CSTNode, context: Workspace) -> Iterable[cst.BaseExpression]:
        """Yield the values that choose an implementation for CUDA."""
        if isinstance(node, cst.Dict):
            if not _makes_optimizers(context):
                return
            pairs = [e for e in node.elements if isinstance(e, cst.DictElement)]
            expressions = [e.value for e in pairs if string_value(e.key) in CHOICES]
        else:
            assert isinstance(node, cst.Call)
            of_dict = dotted(node.func) == "dict" and _makes_optimizers(context)
            if not of_dict and (not _makes_optimizer(node, context) or context.run_by(node)):
                return
            args = [keyword(node, choice) for choice in CHOICES]
            expressions = [arg.value for arg in args if arg is not None]
        yield from (v for v in expressions if _on(v))

    def _on_cuda(self, value: cst.BaseExpression, context: Workspace) -> Edit:
        """Return the edit that leaves the choice `value` to CUDA."""
        message = f"{code(value)}: on CUDA only"
        test = is_cuda(context)
        asked = isinstance(value, cst.Call) and is_asked(value, context)
        if code(value) == "True" or asked:
            return self.edit(value, lambda _: test, message, consumes=[value])
        return self.edit(value, lambda updated: and_on_cuda(updated, test), message)


def _loads_state(call: cst.Call, context: Workspace) -> bool:
    """Whether `call` gives an optimizer a state that may be that of a fused one."""
    func = call.func
    if not isinstance(func, cst.Attribute) or func.attr.value != "load_state_dict":
        return False
    if not context.calls.makes_fused:
        return False
    kind = context.values.kind(func.value)
    named = OPTIMIZER.fullmatch(last_part(func.value)) is not None
    return kind is Kind.OPTIMIZER or (kind is Kind.UNKNOWN and named)


def _sets_fused(line: cst.CSTNode | None, context: Workspace) -> bool:
    """Whether the statement after `line` sets `fused` in the groups."""
    block = context.parent(line)
    body = list(block.body) if isinstance(block, cst.IndentedBlock | cst.Module) else []
    at = next((i for i, statement in enumerate(body) if statement is line), len(body))
    return any(
        "fused" in code(statement) and "param_groups" in code(statement)
        for statement in body[at + 1 : at + 2]
    )


def chooses_the_code(node: cst.CSTNode, context: Workspace) -> bool:
    """Whether `node` is part of an optimizer's `fused` argument, or of a dictionary for it. It is removed."""
    for above in context.within_statement(node):
        if isinstance(above, cst.Arg) and above.keyword is not None:
            call = context.parent(above)
            if above.keyword.value in CHOICES and isinstance(call, cst.Call):
                of_dict = dotted(call.func) == "dict" and _makes_optimizers(context)
                return of_dict or _makes_optimizer(call, context)
        if isinstance(above, cst.DictElement):
            return string_value(above.key) in CHOICES and _makes_optimizers(context)
    return False


def _makes_optimizer(call: cst.Call, context: Workspace) -> bool:
    """Whether `call` makes an optimizer of torch, or is `functools.partial(torch.optim.AdamW, …)`."""
    if context.values.kind(call) is Kind.OPTIMIZER:
        return True
    if context.qualified_name(call.func) != "functools.partial" or not call.args:
        return False
    name = context.qualified_name(call.args[0].value) or ""
    return TORCH_OPTIMIZER.fullmatch(name) is not None


def _may_be_torchs(function: cst.BaseExpression, context: Workspace) -> bool:
    """Whether the class `function` is chosen among some that include an optimizer of torch."""
    values = context.bound_values(function) if isinstance(function, cst.Name) else [function]
    return any(
        TORCH_OPTIMIZER.fullmatch(context.qualified_name(node) or "") is not None
        for value in values
        if value is not None
        for kind in (cst.Attribute, cst.Name)
        for node in nodes_of(value, kind)
    )


def _passes_fused(function: cst.FunctionDef) -> bool:
    """Whether a function passes its `fused`, or all that it is given by name, to another."""
    return any(
        arg.star == "**" or (arg.keyword is not None and arg.keyword.value == "fused")
        for arg in nodes_of(function.body, cst.Arg)
    )


def _makes_optimizers(context: Workspace) -> bool:
    return any(context.values.kind(call) is Kind.OPTIMIZER for call in context.all_of(cst.Call))


def _on(value: cst.BaseExpression) -> bool:
    # `shims.device_type() == "cuda"` is on where it works.
    return code(value) not in ("False", "None") and "device_type()" not in code(value)


def _message(what: str) -> str:
    return (
        f"an optimizer with {what}: fused=True raises for XLA tensors; drop it, XLA fuses the step"
    )
