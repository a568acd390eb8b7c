"""CUDA streams and NVTX ranges go."""

from __future__ import annotations

from collections.abc import Iterable

import libcst as cst

from migrate.catalogue import torch_cuda
from migrate.catalogue.entry import names
from migrate.catalogue.target import BOTH
from migrate.rewrite.edits.branch import unwrapped
from migrate.rewrite.rule import Edit, Rule, RuleFinding, left_alone, reported, rewritten
from migrate.rewrite.styles.cuda_only import contexts_on_cuda, is_cuda, only_on_cuda, or_none
from migrate.rewrite.workspace import Workspace
from migrate.syntax.tree import code, is_attribute_of_self

CONTEXTS = names(*torch_cuda.STREAM_CONTEXTS)
DEVICE_CONTEXTS = names(*torch_cuda.DEVICE_CONTEXTS)
MADE = names(*torch_cuda.STREAMS)
TOLD = names(*torch_cuda.TOLD)
# Methods that only streams, and tensors for the sake of streams, have.
METHODS = frozenset({"record_stream", "wait_stream"})


class CudaStreams(Rule):
    """Run in the one order that XLA has what a script runs on several CUDA streams.

    **What it does.** `with torch.cuda.stream(s):` becomes its body. `s.wait_stream(…)`,
    `x.record_stream(…)`, `torch.cuda.set_stream(…)` and NVTX ranges and marks go, and so does
    `s = torch.cuda.Stream()` when nothing else uses `s`. XLA overlaps transfers, collectives and
    computation by itself, and to the program it looks as if all ran in order: that is what a stream's
    waits secure.

    **Reported.** A stream that is used otherwise: passed on, or asked.

    Source: torch_xla 2.9 (measured: Stream(), current_stream() and record_stream raise).
    """

    name = "cuda-streams"
    code = "XLA828"
    targets = BOTH
    on_torch_tpu = "Streams of torch_tpu exist and do nothing yet; `record_stream` raises."
    beside_frameworks = True
    nodes = (cst.Call, cst.Expr, cst.With, cst.Assign)
    words = "tream|[Ee]vent"
    examples = (
        rewritten(
            """
            import torch


            class Prefetcher:
                def __init__(self, loader):
                    self.loader = iter(loader)
                    self.stream = torch.cuda.Stream()

                def load(self):
                    # the next batch, while this one is computed
                    with torch.cuda.stream(self.stream):
                        self.batch = next(self.loader).cuda(non_blocking=True)

                def next(self):
                    torch.cuda.current_stream().wait_stream(self.stream)
                    batch = self.batch
                    if batch is not None:
                        batch.record_stream(torch.cuda.current_stream())
                    return batch
            """,
            """
            class Prefetcher:
                def __init__(self, loader):
                    self.loader = iter(loader)

                def load(self):
                    # the next batch, while this one is computed
                    self.batch = next(self.loader).to("xla", non_blocking=True)

                def next(self):
                    batch = self.batch
                    return batch
            """,
        ),
        rewritten(
            """
            import torch
            from torch.cuda import nvtx

            profile = True
            if profile: nvtx.mark("start")
            side = torch.cuda.Stream()
            side.wait_stream(torch.cuda.current_stream())
            with torch.no_grad(), torch.cuda.stream(side):
                nvtx.range_push("forward")
                print(1)
                nvtx.range_pop()
            """,
            """
            import torch

            profile = True
            with torch.no_grad():
                print(1)
            """,
        ),
        left_alone(
            """
            import video

            stream = video.Stream()
            with stream:
                stream.wait_for(video.current_stream())
            """
        ),
        reported(
            """
            import torch

            stream = torch.cuda.Stream()
            copy(stream)
            """,
            "raises on XLA",
        ),
    )

    def find(self, node: cst.CSTNode, context: Workspace) -> Iterable[Edit | RuleFinding]:
        """Yield the removal of one use of a stream, or the finding on one that stays."""
        if context.portable:
            yield from self._portable(node, context)
        elif isinstance(node, cst.With):
            if any(_called(item.item, context) in CONTEXTS for item in node.items):
                both = CONTEXTS | DEVICE_CONTEXTS
                yield from unwrapped(self, node, both, "XLA keeps the order", context)
        elif isinstance(node, cst.Expr):
            if _is_told(node.value, context):
                message = f"remove {code(node)}: XLA keeps the order"
                yield self.edit(node, lambda _: cst.RemoveFromParent(), message, consumes=[node])
        elif isinstance(node, cst.Assign):
            if _made(node.value, context) and _only_orders(node, context):
                message = f"remove {code(node)}: XLA has no streams"
                yield self.edit(node, lambda _: cst.RemoveFromParent(), message, consumes=[node])
        elif _made(node, context) and not _is_spoken_for(node, context):
            message = f"{code(node)} raises on XLA, which has no streams: remove it"
            yield from self.report(node, message)

    def _portable(self, node: cst.CSTNode, context: Workspace) -> Iterable[Edit | RuleFinding]:
        """Yield the edits that leave streams to CUDA; elsewhere a stream is None."""
        if isinstance(node, cst.With):
            names = {item.item for item in node.items if _is_of_a_name(item.item, context)}
            kept = {"torch.cuda.stream"} if names else set()
            yield from contexts_on_cuda(self, node, CONTEXTS - kept, context)
        elif isinstance(node, cst.Expr) and _is_told(node.value, context):
            yield only_on_cuda(self, node, context, "which has streams")
        elif isinstance(node, cst.Call) and _made(node, context):
            above = context.parent(node)
            if isinstance(above, cst.Assign | cst.AnnAssign | cst.Arg | cst.Return):
                message = f"{code(node)}: None without CUDA"
                yield self.edit(
                    node, lambda updated: or_none(updated, context), message, consumes=[node]
                )
            elif not isinstance(context.parent(context.parent(above)), cst.Expr):
                message = f"{code(node)} raises without CUDA: ask if {code(is_cuda(context))}"
                yield from self.report(node, message)


def _is_of_a_name(node: cst.BaseExpression, context: Workspace) -> bool:
    """Whether `node` is `torch.cuda.stream(s)`, which does nothing where `s` is None."""
    named = isinstance(node, cst.Call) and context.qualified_name(node.func) == "torch.cuda.stream"
    return (
        named
        and isinstance(node, cst.Call)
        and isinstance(node.args[0].value if node.args else None, cst.Name | cst.Attribute)
    )


def _called(node: cst.CSTNode, context: Workspace) -> str | None:
    return context.qualified_name(node.func) if isinstance(node, cst.Call) else None


def _made(node: cst.CSTNode, context: Workspace) -> bool:
    return _called(node, context) in MADE


def _is_told(node: cst.CSTNode, context: Workspace) -> bool:
    """Whether `node` is a call that only orders streams, or marks a range for a profiler."""
    if not isinstance(node, cst.Call):
        return False
    if context.qualified_name(node.func) in TOLD:
        return True
    return isinstance(node.func, cst.Attribute) and node.func.attr.value in METHODS


def _is_spoken_for(node: cst.CSTNode, context: Workspace) -> bool:
    """Whether the stream that `node` creates is removed with the code around it."""
    above = context.parent(node)
    if isinstance(above, cst.Assign):
        return _only_orders(above, context)
    return _orders(node, context) or (
        # torch.cuda.current_stream().synchronize()
        isinstance(above, cst.Attribute) and above.attr.value == "synchronize"
    )


def _only_orders(assign: cst.Assign, context: Workspace) -> bool:
    """Whether what `assign` keeps is used for nothing but the order of streams."""
    if len(assign.targets) != 1:
        return False
    target = assign.targets[0].target
    if not (isinstance(target, cst.Name) or is_attribute_of_self(target)):
        return False
    values = context.values.given_to(target)
    if not all(_made(value, context) for value in values):
        return False
    mentions = [mention for mention in context.mentions(target) if mention is not target]
    if isinstance(target, cst.Name):
        owner, _ = context.bound_to(target)
        mentions = [
            m for m in mentions if isinstance(m, cst.Name) and context.bound_to(m)[0] is owner
        ]
    else:
        around = context.class_around(target)
        mentions = [m for m in mentions if context.class_around(m) is around]
    return all(
        isinstance(context.parent(mention), cst.AssignTarget) or _orders(mention, context)
        for mention in mentions
    )


def _orders(node: cst.CSTNode, context: Workspace) -> bool:
    """Whether the stream `node` stands where this rule removes it: in a `with`, a wait, a record."""
    above = context.parent(node)
    is_method = isinstance(above, cst.Attribute) and above.attr.value in METHODS
    call = context.parent(above)
    if not (is_method or isinstance(above, cst.Arg)) or not isinstance(call, cst.Call):
        return False
    around = context.parent(call)
    if isinstance(around, cst.WithItem):
        return _called(call, context) in CONTEXTS and around.asname is None
    return isinstance(around, cst.Expr) and _is_told(call, context)
