"""torch.compile on torch_tpu."""

from __future__ import annotations

from collections.abc import Iterable

import libcst as cst

from migrate.catalogue.target import TPU, TPU_ONLY
from migrate.check.hazard import Severity
from migrate.model.calls.kind import Kind
from migrate.rewrite.edits.nodes import argument, with_args
from migrate.rewrite.rule import (
    Edit,
    Rule,
    RuleFinding,
    checked,
    left_alone,
    reported,
    rewritten,
)
from migrate.rewrite.workspace import Workspace
from migrate.syntax.tree import code, keyword, string_value

COMPILE = "torch.compile"
# Backends that compile for no device of their own.
ANYWHERE = frozenset({"tpu", "eager", "aot_eager"})


class TpuCompile(Rule):
    """Compile for the TPU: torch.compile without the backend and the mode of GPUs.

    **Why.** torch_tpu makes `"tpu"` the default backend of `torch.compile`. `mode="reduce-overhead"` and
    `"max-autotune"` are a TypeError, and `backend="inductor"` is a RuntimeError with tensors of a TPU.
    `model.compile()` of a module is the same call.

    **What it does.** `backend=` goes where it names a compiler for GPUs, and so does `mode=`.

    **Reported.** A backend or a mode that the call does not show, and `options=`, which are the backend's.

    Source: torch_tpu 0.2.0 with torch 2.13 (measured on XLA:CPU).
    """

    name = "tpu-compile"
    code = "XLA806"
    targets = TPU_ONLY
    nodes = (cst.Call,)
    words = "compile"
    examples = (
        rewritten(
            """
            import torch

            model = torch.compile(model, mode="reduce-overhead", fullgraph=True)
            step = torch.compile(step, backend="inductor")
            """,
            """
            import torch

            model = torch.compile(model, fullgraph=True)
            step = torch.compile(step)
            """,
            target=TPU,
        ),
        left_alone(
            """
            import torch

            model = torch.compile(model)
            plain = torch.compile(model, backend="eager", mode="default")
            """,
            target=TPU,
        ),
        reported(
            """
            import torch

            model = torch.compile(model, backend=args.backend)
            """,
            "see that it is 'tpu'",
            target=TPU,
        ),
        checked(
            """
            import torch

            first = torch.compile(model, mode="max-autotune")  # XLA806
            second = torch.compile(model, dynamic=False)
            """,
            target=TPU,
        ),
    )

    def find(self, node: cst.CSTNode, context: Workspace) -> Iterable[Edit | RuleFinding]:
        """Yield the edit of one call, or the findings at what it does not show."""
        assert isinstance(node, cst.Call)
        if not _compiles(node, context):
            return
        gone = []
        backend, mode = keyword(node, "backend"), keyword(node, "mode")
        if backend is not None:
            named = string_value(backend.value)
            if named is None and code(backend.value) != "None":
                message = f"backend={code(backend.value)}: see that it is 'tpu', or leave it out"
                yield from self.report(backend.value, message)
            elif named is not None and named not in ANYWHERE:
                gone.append(backend)
        if mode is not None and code(mode.value) != "None":
            named = string_value(mode.value)
            if named is None:
                message = f"mode={code(mode.value)}: raises for another mode than 'default'"
                yield from self.report(mode.value, message)
            elif named != "default":
                gone.append(mode)
        if (options := keyword(node, "options")) is not None:
            message = f"{argument(options)}: see that these are options of the backend 'tpu'"
            yield from self.report(options.value, message, Severity.INFO)
        if not gone:
            return
        at = [index for index, arg in enumerate(node.args) if arg in gone]

        def replace(updated: cst.Call) -> cst.Call:
            kept = [arg for index, arg in enumerate(updated.args) if index not in at]
            return with_args(updated, kept)

        names = ", ".join(argument(arg) for arg in gone)
        wrong = f"{names} raises on a TPU: leave it out"
        yield self.edit(node, replace, f"remove {names}: of GPUs", consumes=gone, wrong=wrong)


def _compiles(call: cst.Call, context: Workspace) -> bool:
    """Whether `call` compiles: `torch.compile(model)`, `model.compile()` of a module, a partial call."""
    if context.qualified_name(call.func) == COMPILE:
        return True
    if isinstance(call.func, cst.Attribute) and call.func.attr.value == "compile":
        return context.values.kind(call.func.value) is Kind.MODEL
    first = call.args[0].value if call.args else None
    return context.qualified_name(call.func) == "functools.partial" and (
        first is not None and context.qualified_name(first) == COMPILE
    )
