"""Memory figures and properties of a GPU."""

from __future__ import annotations

from collections.abc import Iterable

import libcst as cst

from migrate.catalogue import catalogue
from migrate.catalogue.entry import OnXla, names, public
from migrate.catalogue.prescan import named
from migrate.catalogue.torch_cuda import ANSWERED, ASKED, ELSEWHERE, IGNORED, INITIALIZED, XM
from migrate.check.hazard import Severity
from migrate.check.only_cuda import only_with_cuda
from migrate.reading.facts import facts_of
from migrate.rewrite.rule import Edit, Rule, RuleFinding, checked, left_alone, reported, rewritten
from migrate.rewrite.rules.random.seeds import runs_at_launch
from migrate.rewrite.styles.cuda_only import is_cuda, only_on_cuda
from migrate.rewrite.workspace import Workspace
from migrate.syntax.tree import code

GONE = names(*IGNORED)
# Of these, what raises where there is no GPU.
RAISING = names(*(entry for entry in IGNORED if entry.on_xla is OnXla.RAISES))
FIGURES = names(*ASKED)
ASKING = FIGURES | names(*INITIALIZED)
ANSWERS = names(*ANSWERED)
XR = "torch_xla.runtime"
# In the portable style what of `shims.memory()` says the same.
FIELDS = {"torch.cuda.memory_allocated": "used", "torch.cuda.max_memory_allocated": "peak"}


class CudaMemory(Rule):
    """Ask torch_xla for the device's name and memory, and remove calls that only manage a GPU's memory.

    **What it does.** `torch.cuda.empty_cache()`, `reset_peak_memory_stats()` and their like go: XLA plans
    the memory of a whole graph. `memory_allocated()` and `max_memory_allocated()`, which are silently 0 on
    XLA, become the bytes in use and at the peak of `xm.get_memory_info()` on a TPU, and 0 on the CPU, which
    has no such figure. `get_device_name()`, which raises, becomes `xm.xla_device_hw(…)`: "TPU" or "CPU".

    **Reported.** Other figures and properties; any of them in the process that starts the replicas, where
    XLA must not be asked.

    Source: torch_xla 2.9 (measured: memory_allocated() is 0, get_device_properties() raises,
    get_memory_info() is unimplemented on the CPU).
    """

    name = "cuda-memory"
    code = "XLA802"
    beside_frameworks = True
    edited = Severity.WARNING
    nodes = (cst.Expr, cst.Call)
    words = named(GONE | ASKING)
    examples = (
        rewritten(
            """
            import torch


            def train(model, epochs):
                torch.cuda.memory._record_memory_history()
                for epoch in range(epochs):
                    torch.cuda.empty_cache()
                    torch.cuda.reset_peak_memory_stats()
                    model(epoch)
            """,
            """
            def train(model, epochs):
                for epoch in range(epochs):
                    model(epoch)
            """,
        ),
        left_alone(
            """
            from pool import empty_cache, memory_allocated

            empty_cache()
            print(memory_allocated())
            """
        ),
        rewritten(
            """
            import torch

            peak = f'{torch.cuda.max_memory_allocated()}'
            """,
            """
            import torch_xla.core.xla_model as xm
            import torch_xla.runtime as xr

            peak = f'{(xm.get_memory_info()["peak_bytes_used"] if xr.device_type() == "TPU" else 0)}'
            """,
        ),
        rewritten(
            """
            import torch

            print(f"{torch.cuda.memory.memory_allocated() / 1e6:.0f} MB")
            print(f'{torch.cuda.get_device_name(0)}')
            """,
            """
            import torch_xla
            import torch_xla.core.xla_model as xm
            import torch_xla.runtime as xr

            print(f"{(xm.get_memory_info()['bytes_used'] if xr.device_type() == 'TPU' else 0) / 1e6:.0f} MB")
            print(f'{xm.xla_device_hw(torch_xla.device())}')
            """,
        ),
        reported(
            """
            import torch

            properties = torch.cuda.get_device_properties(0)
            """,
            "raises on XLA",
        ),
        checked(
            """
            import torch

            print(torch.cuda.max_memory_allocated() / 2**20)  # XLA802 error
            print(len(torch.cuda.memory_snapshot()))  # XLA802 error
            torch.cuda.empty_cache()  # XLA802 info
            torch.cuda.reset_max_memory_cached()  # XLA802 error
            if torch.cuda.is_available():
                print(torch.cuda.mem_get_info()[0])  # XLA802 info
            """
        ),
    )

    def find(self, node: cst.CSTNode, context: Workspace) -> Iterable[Edit | RuleFinding]:
        """Yield the removal of a statement, or the finding on a figure."""
        if isinstance(node, cst.Expr):
            call = node.value
            callee = context.qualified_name(call.func) if isinstance(call, cst.Call) else None
            if context.portable:
                if callee in RAISING:
                    yield only_on_cuda(self, node, context, "nothing else has its memory")
            elif callee in GONE:
                message = f"remove {code(node)}: XLA plans the memory of a whole graph"
                yield self.edit(node, lambda _: cst.RemoveFromParent(), message, consumes=[node])
            return
        assert isinstance(node, cst.Call)
        name = public(context.qualified_name(node.func) or "")
        if context.portable and name in FIELDS:
            shims = context.imports.require("shims")
            figure = cst.parse_expression(f"{shims}.memory(missing=0).{FIELDS[name]}")
            yield self.edit(
                node, lambda _: figure, f"{code(node)} → {code(figure)}", consumes=[node]
            )
        elif name in ASKING and context.portable:
            asked = code(is_cuda(context))
            yield from self.report(node, f"{name}: 0, empty or an error elsewhere: ask if {asked}")
        elif name in ANSWERS and not runs_at_launch(node, context):
            answer = _answer(node, name, context)
            yield self.edit(
                node,
                lambda _: answer,
                f"{name} → {code(answer)}",
                consumes=[node],
                severity=Severity.ERROR,
                wrong=f"{name}: {catalogue.NAMES[name].says()}",
            )
        elif name in ASKING and (entry := catalogue.of(name)):
            never = only_with_cuda(node, facts_of(context))
            severity = Severity.INFO if never else None
            yield from self.report(node, f"{name}: {entry.says()}", severity, subject=name)


def _answer(call: cst.Call, name: str, context: Workspace) -> cst.BaseExpression:
    """Return the expression of the catalogue for a figure, with the script's names of modules."""
    text = catalogue.NAMES[name].native.removesuffix(ELSEWHERE)
    text = text.replace(XM, context.imports.require(XM, "xm"))
    if XR in text:
        text = text.replace(XR, context.imports.require(XR, "xr"))
    if "torch_xla.device" in text:
        text = text.replace("torch_xla.device", f"{context.imports.require('torch_xla')}.device")
    around = [above for above in context.ancestors(call) if isinstance(above, cst.FormattedString)]
    quote = context.quote
    if around:  # before Python 3.12 the quote of the string around it ends that string
        quote = '"' if any("'" in string.start for string in around) else "'"
    text = text.replace("'", quote)
    answer = cst.parse_expression(text)
    if isinstance(answer, cst.IfExp):
        answer = answer.with_changes(lpar=[cst.LeftParen()], rpar=[cst.RightParen()])
    return answer
