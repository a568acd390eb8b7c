"""`dist.barrier()` becomes `xm.rendezvous(tag)`."""

from __future__ import annotations

import builtins
from collections.abc import Iterable

import libcst as cst

from migrate.catalogue.words import LOG_METHODS
from migrate.check.hazard import Severity
from migrate.check.rules.ranks.guarded_collective import GuardedCollective
from migrate.reading.replicas.barrier_pairs import is_half, is_met
from migrate.reading.values.collectives import called, makes_gloo_group
from migrate.rewrite.rule import Edit, Rule, RuleFinding, checked, left_alone, reported, rewritten
from migrate.rewrite.rules.collectives.step_barriers import is_in_step
from migrate.rewrite.rules.collectives.written import as_shims
from migrate.rewrite.workspace import Workspace
from migrate.syntax.tree import bind, code, nodes_of

PARAMETERS = ("group", "async_op", "device_ids")
MONITORED = ("group", "timeout", "wait_all_ranks")


class Barrier(Rule):
    """Wait for the other replicas with `xm.rendezvous` instead of `dist.barrier`.

    **Why.** `dist.barrier()` does nothing on the XLA backend: a replica would read a file that another has
    not written yet.

    **What it does.** `dist.barrier()` becomes `xm.rendezvous("after_save")`: the tag names the call in the
    statement above, or else the function around it. torch_xla uses the tag in its log only. A second
    barrier with the same tag in a function has its number in the tag. The two halves of a pair, where one
    replica arrives before its work and the others after (`if rank != 0: barrier()` … `if rank == 0:
    barrier()`), have one tag. A rendezvous runs the pending graph and waits for it. A barrier in the middle
    of a step, before a collective of the same iteration, goes: the collective waits for all replicas, and a
    rendezvous would cut the step in two.

    **Reported.** A barrier that only some replicas reach, where the others do not plainly come to another
    half of it: all replicas have to come to a rendezvous. A barrier of a group that is not certainly one
    over gloo, one with `async_op=True`, and `monitored_barrier`, which is for gloo only: of a group that the
    file does not show this is information.

    Source: torch_xla 2.9, `ProcessGroupXla.barrier` and `xm.xla_rendezvous` (measured on two replicas,
    the pair too).
    """

    name = "barrier"
    code = "XLA306"
    beside_frameworks = True
    edited = Severity.WARNING
    nodes = (cst.Call,)
    words = "barrier"
    examples = (
        rewritten(
            """
            import torch.distributed as dist


            def prepare(folder, rank):
                if dist.is_initialized():
                    dist.barrier(device_ids=[rank])
                if rank == 0:
                    folder.mkdir()
                dist.barrier()  # the folder is there
                best = max(rank, 0)
                dist.barrier()
            """,
            """
            import torch.distributed as dist
            import torch_xla.core.xla_model as xm


            def prepare(folder, rank):
                if dist.is_initialized():
                    xm.rendezvous("prepare")
                if rank == 0:
                    folder.mkdir()
                xm.rendezvous("after_mkdir")  # the folder is there
                best = max(rank, 0)
                xm.rendezvous("prepare_2")
            """,
        ),
        rewritten(
            """
            from contextlib import contextmanager

            import torch.distributed as dist


            @contextmanager
            def first_alone(local_rank):
                if local_rank not in (-1, 0):
                    dist.barrier(device_ids=[local_rank])
                yield
                if local_rank == 0:
                    dist.barrier(device_ids=[0])
            """,
            """
            from contextlib import contextmanager
            import torch_xla.core.xla_model as xm


            @contextmanager
            def first_alone(local_rank):
                if local_rank not in (-1, 0):
                    xm.rendezvous("first_alone")
                yield
                if local_rank == 0:
                    xm.rendezvous("first_alone")
            """,
        ),
        rewritten(
            """
            import torch.distributed as dist


            def validate(model, loader, loss_fn):
                for images, target in loader:
                    loss = loss_fn(model(images.cuda()), target.cuda())
                    dist.barrier()
                    dist.all_reduce(loss)
                    print(loss.item())
                dist.barrier()
            """,
            """
            import torch.distributed as dist
            import torch_xla.core.xla_model as xm


            def validate(model, loader, loss_fn):
                for images, target in loader:
                    loss = loss_fn(model(images.to("xla")), target.to("xla"))
                    dist.all_reduce(loss)
                    print(loss.item())
                xm.rendezvous("validate")
            """,
        ),
        left_alone(
            """
            import torch.distributed as dist
            from threading import Barrier


            def wait(barrier: Barrier):
                barrier.wait()
                dist.barrier(group=dist.new_group(backend="gloo"))
            """
        ),
        reported(
            """
            import torch.distributed as dist


            def wait(group):
                dist.barrier(group=group)
            """,
            "waits for all replicas",
        ),
        reported(
            """
            import torch.distributed as dist


            def save(rank):
                if rank == 0:
                    dist.barrier()
                if rank == 0:
                    dist.barrier()
            """,
            "only some replicas",
        ),
        checked(
            """
            import threading

            import torch.distributed as dist

            threading.Barrier(2)
            barrier = threading.Barrier(2)
            barrier.wait()
            dist.barrier()  # XLA306
            dist.barrier(group=dist.new_group(backend="gloo"))
            dist.monitored_barrier()  # XLA306 error


            def joined(group):
                dist.monitored_barrier(group=group, timeout=group.options._timeout)  # XLA306 info
            """
        ),
    )

    def _monitored(self, node: cst.Call, context: Workspace) -> Iterable[RuleFinding]:
        """Yield the finding for a `monitored_barrier`, which raises for any group but one over gloo."""
        if any(makes_gloo_group(arg.value, context) for arg in node.args):
            return
        group = (bind(node, MONITORED) or {}).get("group")
        if group is not None and isinstance(group.value, cst.Name) and code(group.value) != "None":
            message = (
                "monitored_barrier takes a group over gloo only, on XLA as elsewhere: see that "
                f'`{code(group.value)}` is made with backend="gloo"'
            )
            yield from self.report(node, message, Severity.INFO)
            return
        message = f"monitored_barrier raises on XLA: use {context.vocabulary.say('barrier')}"
        yield from self.report(node, message)

    def find(self, node: cst.CSTNode, context: Workspace) -> Iterable[Edit | RuleFinding]:
        """Yield the edit of one barrier, or the finding."""
        assert isinstance(node, cst.Call)
        name = called(node, context)
        if name == "monitored_barrier":
            yield from self._monitored(node, context)
            return
        if name != "barrier":
            return
        bound = bind(node, PARAMETERS)
        group = bound.get("group") if bound is not None else None
        if group is not None and makes_gloo_group(group.value, context):
            return
        refused = _refused(bound, context)
        if refused:
            yield from self.report(node, refused)
            return
        around = context.function_around(node) or context.module
        halves = [b for b in _barriers(around, context) if is_half(b, context)]
        halved = any(half is node for half in halves)
        if halved and not is_met(node, halves, context):
            message = (
                "only some replicas come to this barrier; it does nothing on XLA, and a rendezvous "
                "would wait for the others for ever: let all replicas come to it, or remove it"
            )
            yield from self.report(node, message, code=GuardedCollective.code)
            return
        if is_in_step(node, context):
            message = "remove the barrier: the next collective of the step waits for all replicas"
            line = context.parent(context.parent(node))
            assert line is not None
            yield self.edit(line, lambda _: cst.RemoveFromParent(), message, consumes=[line])
            return
        if context.portable:
            yield as_shims(self, node, context, bound or {}, ("async_op", "device_ids"))
            return
        yield self._edit(node, halved, around, context)

    def _edit(
        self,
        node: cst.Call,
        halved: bool,
        around: cst.FunctionDef | cst.Module,
        context: Workspace,
    ) -> Edit:
        name = around.name.value if isinstance(around, cst.FunctionDef) else "main"
        tag = name if halved else _awaited(node, context) or name
        if not halved:
            alike = [
                barrier
                for barrier in _barriers(around, context)
                if not is_half(barrier, context) and not is_in_step(barrier, context)
                if (_awaited(barrier, context) or name) == tag
            ]
            number = next(i for i, barrier in enumerate(alike, 1) if barrier is node)
            tag = tag if number == 1 else f"{tag}_{number}"
        rendezvous = f"{context.imports.require('torch_xla.core.xla_model', 'xm')}.rendezvous"
        argument = cst.Arg(context.string(tag))

        def replace(updated: cst.Call) -> cst.Call:
            return updated.with_changes(func=cst.parse_expression(rendezvous), args=[argument])

        message = "barrier, which does nothing on XLA → rendezvous"
        return self.edit(node, replace, message, consumes=[node.func, *node.args])


def _refused(bound: dict[str, cst.Arg] | None, context: Workspace) -> str | None:
    """Return why the barrier `node` is not edited."""
    if bound is None:
        return f"barrier with * or ** arguments: {context.vocabulary.say('barrier')}"
    if not context.portable and "group" in bound and code(bound["group"].value) != "None":
        return (
            "barrier of a group: torch_xla.core.xla_model.rendezvous(tag) waits for all replicas; "
            "a group made by dist.new_group(backend='gloo') waits for its own"
        )
    if "async_op" in bound and code(bound["async_op"].value) != "False":
        return "barrier(async_op=True): a rendezvous on XLA waits at once"
    return None


def _awaited(node: cst.Call, context: Workspace) -> str | None:
    """Return "after_" and the name of the first call in the statement above; None if it does none.

    Functions of Python itself do not count.
    """
    line = context.parent(context.parent(node))
    block = context.parent(line) if line is not None else None
    if not isinstance(line, cst.SimpleStatementLine):
        return None
    if not isinstance(block, cst.IndentedBlock | cst.Module):
        return None
    place = next((index for index, statement in enumerate(block.body) if statement is line), 0)
    above = block.body[place - 1]
    if not place or not isinstance(above, cst.If | cst.With | cst.Try | cst.SimpleStatementLine):
        return None
    for statement in (
        small for run in nodes_of(above, cst.SimpleStatementLine) for small in run.body
    ):
        call = statement.value if isinstance(statement, cst.Expr | cst.Assign) else None
        if isinstance(call, cst.Call) and isinstance(call.func, cst.Name | cst.Attribute):
            func = call.func
            name = (func.attr if isinstance(func, cst.Attribute) else func).value
            if isinstance(func, cst.Name) and hasattr(builtins, name):
                continue  # `after_max` would name nothing
            if not LOG_METHODS.fullmatch(name) and called(call, context) != "barrier":
                return f"after_{name.strip('_')}"
    return None


def _barriers(around: cst.FunctionDef | cst.Module, context: Workspace) -> list[cst.Call]:
    """Return the barriers in `around`, those in functions inside it left out."""
    return [
        call
        for call in context.below(around, cst.Call)
        if called(call, context) == "barrier"
        and (context.function_around(call) or context.module) is around
    ]
