"""Collectives that only some replicas reach."""

from __future__ import annotations

from collections.abc import Iterable

import libcst as cst

from migrate.check.hazard import Hazard, Hit, Severity, example
from migrate.model.facts import Definition
from migrate.reading.facts import Facts
from migrate.reading.replicas.barrier_pairs import is_half, is_met
from migrate.reading.replicas.guards import Guard
from migrate.reading.values.collectives import MPI_WORLD, OBJECTS, OF_MPI, OF_XLA, TENSORS
from migrate.syntax.origins import at_line
from migrate.syntax.tree import code, keyword

COLLECTIVE = frozenset(
    [f"torch.distributed.{name}" for name in (*TENSORS, *OBJECTS, "barrier")]
    + [f"torch_xla.core.xla_model.{name}" for name in OF_XLA]
    + [f"{MPI_WORLD}.{name}" for name in OF_MPI]
)


class GuardedCollective(Hazard):
    """A collective runs in some replicas only.

    **Why.** The replicas that do not come to it are waited for: all hang.

    **What to do.** Call it in every replica, then `torch_xla.sync()` (XLA308), and put only what uses the
    result under the condition. The two halves of an asymmetric pair of barriers, each under its condition,
    become `xm.rendezvous(tag)` with one tag, and are no hazard.

    Source: pytorch/xla#3625, #8660.
    """

    code = "XLA302"
    name = "guarded-collective"
    severity = Severity.ERROR
    nodes = (cst.Call,)
    examples = (
        example(
            """
            import torch.distributed as dist


            def finish(loss, rank):
                if rank == 0:
                    dist.all_reduce(loss)  # XLA302
                    print(loss)


            def load(local_rank, read):
                if local_rank not in [-1, 0]:
                    dist.barrier()  # XLA302
                return read()
            """
        ),
        example(
            """
            import torch.distributed as dist


            def total(x):
                dist.all_reduce(x)  # XLA302


            def log(x, rank):
                if rank == 0:
                    total(x)
                else:
                    print(x)
                return dist.reduce(x, 0) if rank == 0 else None  # XLA302


            def leaves(x, rank):
                if rank != 0:
                    return None
                dist.broadcast(x, src=0)  # XLA302
                return x
            """
        ),
        example(
            """
            import torch.distributed as dist


            def evaluate(signal, rank, args):
                sharded = args.sharded and args.distributed
                is_first = rank == 0
                if not sharded and not is_first:
                    return
                if sharded:
                    dist.broadcast(signal, src=0)
                dist.all_reduce(signal)  # XLA302
            """
        ),
        example(
            """
            import subprocess

            import torch.distributed as dist
            import torch_xla.core.xla_model as xm


            def inner(x, rank, group):
                if rank < 4:
                    dist.broadcast(x, 0, group=group)


            def share(rows, rank, part):
                if rank == 0:
                    dist.scatter(part, rows, src=0)
                else:
                    dist.scatter(part, src=0)
                return subprocess.run(["date"]) if rank else None


            def run(loss):
                dist.all_reduce(loss)


            def sums(parts, rank, world_size):
                return [
                    dist.reduce(parts[i], rank) if i == rank else dist.reduce(parts[i], i)
                    for i in range(world_size)
                ]


            def total(x):
                dist.all_reduce(x)


            def in_turn(x, rank):
                if rank == 0:
                    total(x)
                elif rank == 1:
                    total(-x)
                else:
                    total(x * 2)


            def leaves(x, rank):
                if rank != 0:
                    dist.broadcast(x, src=0)
                    return None
                dist.broadcast(x, src=0)
                return x


            def first_alone(local_rank, read):
                if local_rank not in (-1, 0):
                    xm.rendezvous("first_alone")
                read()
                if local_rank == 0:
                    xm.rendezvous("first_alone")


            def finish(loss, rank, world_size):
                if world_size > 1 and dist.is_initialized():
                    dist.all_reduce(loss)
                if rank == 0:
                    print(loss, dist.get_world_size())
            """
        ),
    )
    mended = example(
        """
        import torch.distributed as dist
        import torch_xla
        import torch_xla.core.xla_model as xm


        def finish(loss, rank):
            dist.all_reduce(loss)
            torch_xla.sync()
            if rank == 0:
                print(loss)


        def load(read):
            rows = read()
            xm.rendezvous("read")
            return rows
        """
    )

    def find(self, node: cst.CSTNode, facts: Facts) -> Iterable[Hit]:
        """Yield one collective under a condition of the rank."""
        assert isinstance(node, cst.Call)
        name = facts.names.of(node.func)
        if facts.context.effects.meets(node):
            yield from self._called(node, facts)
            return
        # The condition selects the replicas of the group.
        if name not in COLLECTIVE or _of_a_group(node):
            return
        guard = self._guard(node.func, facts)
        if guard is None:
            return
        if not self._has_other_half(node.func, guard, facts):
            line = facts.context.position(guard).line
            happens = "the others wait for ever"
            if name == "torch.distributed.barrier":
                happens = "does nothing on XLA, and a rendezvous here would wait for ever"
            message = f"{name}: in some replicas only ({at_line(line)}): {happens}"
            yield self.hit(node.func, message, subject=name)

    def _called(self, node: cst.Call, facts: Facts) -> Iterable[Hit]:
        """Yield the call of a function with a collective that all replicas call elsewhere."""
        context = facts.context
        ran = [
            definition for definition in context.run_by(node) if not _is_guarded(definition, facts)
        ]
        guard = self._guard(node.func, facts) if ran else None
        if not isinstance(guard, cst.If | cst.FunctionDef):
            return
        line = context.position(guard).line
        near = ran[0].path == context.file
        where = at_line(ran[0].line, None if near else ran[0].path)
        message = (
            f"{code(node.func)} ({where}) makes a collective, called in some replicas only "
            f"({at_line(line)}): "
            "the others wait for ever, or for another one"
        )
        yield self.hit(node.func, message)

    def _guard(self, node: cst.CSTNode, facts: Facts) -> Guard | None:
        """Return the test that keeps some replicas from `node` and from the same collective elsewhere."""
        guard = facts.guards.around(node)
        while guard is not None and self._in_both(node, guard, facts):
            if isinstance(guard, cst.FunctionDef):
                return None
            node = guard  # all replicas that reach the guard reach the node
            guard = facts.guards.around(node)
        return guard

    def _has_other_half(self, node: cst.CSTNode, guard: cst.CSTNode, facts: Facts) -> bool:
        """Whether replicas that skip a barrier reach another barrier of the same function."""
        name = facts.names.of(node) or ""
        if not name.endswith((".barrier", ".rendezvous")) or not isinstance(guard, cst.If):
            return False
        around = facts.context.function_around(node) or facts.context.module
        halves = [
            call
            for call in facts.below(around, cst.Call)
            if facts.names.of(call.func) == name and is_half(call, facts.context)
        ]
        own = next((half for half in halves if half.func is node), None)
        return own is not None and is_met(own, halves, facts.context)

    def _in_both(self, node: cst.CSTNode, guard: cst.CSTNode, facts: Facts) -> bool:
        """Whether replicas that skip `node` reach the same collectives elsewhere.

        Elsewhere is the other branch, the code after a branch that leaves, or another call of the function.
        """
        context = facts.context
        if isinstance(guard, cst.FunctionDef):
            mentions = context.guards.mentions_of(guard)
            around = [(mention, context.guards.around(mention)) for mention in mentions]
            return bool(around) and all(
                above is not None and above is not guard and self._in_both(mention, above, facts)
                for mention, above in around
            )
        if not isinstance(guard, cst.If | cst.IfExp):
            return False
        inside = any(above is guard for above in context.ancestors(node))
        if isinstance(guard, cst.If) and (not inside or (guard.orelse is None and _leaves(guard))):
            block = context.parent(guard)
            if not isinstance(block, cst.IndentedBlock | cst.Module):
                return False
            after = block.body[block.body.index(guard) + 1 :]
            other = [name for statement in after for name in _meetings(statement, facts)]
            return _meetings(guard.body, facts) == other
        if guard.orelse is None:
            return False
        return _meetings(guard.body, facts) == _meetings(guard.orelse, facts)


def _is_guarded(definition: Definition, facts: Facts) -> bool:
    """Whether only some replicas run a function of this file. Its collectives are reported inside it."""
    return any(
        facts.guards.around(function.body) is function
        for function in facts.context.here([definition])
    )


def _leaves(guard: cst.If) -> bool:
    last = guard.body.body[-1] if guard.body.body else None
    last = last.body[-1] if isinstance(last, cst.SimpleStatementLine) else last
    return isinstance(last, cst.Return | cst.Continue)


def _meetings(branch: cst.CSTNode, facts: Facts, depth: int = 4) -> list[str]:
    """Return the names of the collectives in `branch` and in functions that it calls."""
    if isinstance(branch, cst.If) and branch.orelse is not None and facts.guards.asks(branch.test):
        first, second = (_meetings(block, facts, depth) for block in (branch.body, branch.orelse))
        return first if first == second else [*first, "or", *second]
    names: list[str] = []
    for call in facts.below(branch, cst.Call):
        name = facts.names.of(call.func) or ""
        if name in COLLECTIVE:
            names.append(name)
            continue
        here = facts.context.called(call) if depth else []
        for function in here[:1]:
            names += _meetings(function.body, facts, depth - 1)
        if not here and facts.context.effects.meets(call):
            names += [
                f"{definition.path}:{definition.line}"
                for definition in facts.context.run_by(call)[:1]
            ]
    return names


def _of_a_group(call: cst.Call) -> bool:
    """Whether a collective has its own group."""
    group = keyword(call, "group")
    return group is not None and code(group.value) not in ("None", "dist.group.WORLD")
