"""The environment of torch_tpu in scripts that start their own ranks."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

import libcst as cst

from migrate.catalogue.launchers import SPAWN, SPAWN_PARAMETERS
from migrate.catalogue.prescan import spelled
from migrate.catalogue.target import TPU, TPU_ONLY
from migrate.check.hazard import Severity
from migrate.reading.values.environment import sets
from migrate.reading.values.process_loops import process_loop
from migrate.rewrite.edits.nodes import argument, first_in
from migrate.rewrite.rule import (
    Edit,
    Rule,
    RuleFinding,
    Stage,
    left_alone,
    reported,
    rewritten,
)
from migrate.rewrite.rules.random.tpu_seeds import seed_lines
from migrate.rewrite.workspace import Workspace
from migrate.syntax.tree import bind, code, string_value

SET = "torch.tpu.distributed.set_tpu_launch_env"
# Numbers of ranks that some TPU host has.
RANKS = frozenset({1, 2, 4, 8})
BY_HAND = (
    f"call {SET}(nproc_per_node=…) before the processes start, in the parent, and set RANK, LOCAL_RANK and "
    "WORLD_SIZE in each of them"
)


class TpuLaunch(Rule):
    """Set the environment of torch_tpu before a script spawns its ranks.

    **What it does.** `torch.tpu.distributed.set_tpu_launch_env(nproc_per_node=N)` is put above
    `mp.spawn(fn, nprocs=N)`, which stays, and above a loop `for rank in range(N)` that starts each rank as a
    process. The worker begins with `os.environ["LOCAL_RANK"] = str(rank)`, by
    which torch_tpu takes a chip; the other two variables are set where it joins the process group
    ([tpu-process-group](tpu-process-group.md)).

    **Left alone.** Scripts that torchrun starts: it sets the ranks.

    **Reported.** Ranks that are started as processes in another way; workers that are forked, since a forked
    process cannot open the device; a worker of another file; a number of ranks that no TPU host has.

    Source: torch_tpu 0.2.0 (its `distributed.py`; measured with 2 ranks on XLA:CPU).
    """

    name = "tpu-launch"
    code = "XLA713"
    targets = TPU_ONLY
    stage = Stage.LAUNCH
    nodes = (cst.Call,)
    words = f"{spelled(SPAWN)}|Process"
    examples = (
        rewritten(
            """
            import torch
            import torch.multiprocessing as mp


            def worker(rank, epochs):
                print(rank, epochs)


            if __name__ == "__main__":
                # one process per device
                mp.spawn(worker, args=(3,), nprocs=4)
            """,
            """
            import os

            import torch
            import torch.multiprocessing as mp


            def worker(rank, epochs):
                os.environ["LOCAL_RANK"] = str(rank)
                print(rank, epochs)


            if __name__ == "__main__":
                # one process per device
                torch.tpu.distributed.set_tpu_launch_env(nproc_per_node=4)
                mp.spawn(worker, args=(3,), nprocs=4)
            """,
            target=TPU,
        ),
        left_alone(
            """
            import multiprocessing


            def load(shard):
                return shard


            if __name__ == "__main__":
                multiprocessing.Process(target=load, args=(0,)).start()
            """,
            target=TPU,
        ),
        reported(
            """
            import torch.distributed as dist
            import torch.multiprocessing as mp


            def run(rank, size):
                dist.init_process_group("nccl", rank=rank, world_size=size)


            if __name__ == "__main__":
                mp.Process(target=run, args=(0, 2)).start()
                mp.Process(target=run, args=(1, 2)).start()
            """,
            "before the processes start",
            target=TPU,
        ),
        reported(
            """
            import torch.multiprocessing as mp


            def worker(rank):
                print(rank)


            if __name__ == "__main__":
                mp.spawn(worker, nprocs=3)
            """,
            "no TPU host has 3 chips",
            target=TPU,
        ),
    )

    def find(self, node: cst.CSTNode, context: Workspace) -> Iterable[Edit | RuleFinding]:
        """Yield the edits and findings for one call that starts ranks."""
        assert isinstance(node, cst.Call)
        if context.qualified_name(node.func) not in SPAWN:
            if context.launch.starts_replica(node):
                yield from self._processes(node, context)
            return
        bound = bind(node, SPAWN_PARAMETERS)
        if bound is None or "fn" not in bound:
            yield from self.report(node, f"{code(node.func)} with * or ** arguments: {BY_HAND}")
            return
        method = bound.get("start_method")
        if method is not None and string_value(method.value) != "spawn":
            message = f"{argument(method)}: a forked process cannot open the TPU, use 'spawn'"
            yield from self.report(method.value, message)
        yield from self._count(node, bound.get("nprocs"))
        yield from self._environment(node, bound, context)
        yield from self._worker(node, bound["fn"].value, context)

    def _processes(self, node: cst.Call, context: Workspace) -> Iterator[Edit | RuleFinding]:
        """Yield the edits of a loop over ranks that starts each as a process."""
        loop = process_loop(node, context)
        if loop is None:
            if not _is_set(context):
                yield from self.report(node, f"{code(node.func)}: {BY_HAND}")
            return
        yield from self._count(node, loop.count)
        yield from self._worker(node, loop.target.value, context)
        if _is_set(context):
            return
        text = SET.replace("torch", context.imports.require("torch"), 1)

        def replace(updated: cst.For) -> cst.FlattenSentinel[cst.BaseStatement]:
            number = _number(updated)
            above = cst.parse_statement(f"{text}(nproc_per_node={number})")
            above = above.with_changes(leading_lines=updated.leading_lines)
            return cst.FlattenSentinel([above, updated.with_changes(leading_lines=[])])

        wrong = f"torch_tpu raises without its environment: {SET} before it"
        yield self.edit(loop.loop, replace, f"{SET} before the loop", wrong=wrong)

    def _count(self, node: cst.Call, count: cst.Arg | None) -> Iterator[RuleFinding]:
        number = "1" if count is None else code(count.value)
        if number.isdigit() and int(number) not in RANKS:
            message = (
                f"no TPU host has {number} chips: 1, 4 or 8 (v5e, v6e), 1, 2, 4 or 8 (v4, v5p), 2, 4 or 8 "
                "(v7x)"
            )
            yield from self.report(node, message, Severity.WARNING)

    def _environment(
        self, node: cst.Call, bound: dict[str, cst.Arg], context: Workspace
    ) -> Iterator[Edit | RuleFinding]:
        """Yield the edit that sets torch_tpu's variables above the call."""
        if _is_set(context):
            return
        line = context.statement_around(node)
        if not isinstance(line, cst.SimpleStatementLine):
            yield from self.report(node, f"{code(node.func)}: {BY_HAND}")
            return
        text = SET.replace("torch", context.imports.require("torch"), 1)
        last = code(node.func)

        def replace(updated: cst.SimpleStatementLine) -> cst.FlattenSentinel[cst.BaseStatement]:
            calls = (call for call in context.below(updated, cst.Call) if code(call.func) == last)
            now = bind(next(calls, node), SPAWN_PARAMETERS) or bound
            count = now.get("nprocs")
            number = "1" if count is None else code(count.value)
            above = cst.parse_statement(f"{text}(nproc_per_node={number})")
            above = above.with_changes(leading_lines=updated.leading_lines)
            return cst.FlattenSentinel([above, updated.with_changes(leading_lines=[])])

        wrong = f"torch_tpu raises without its environment: {SET} before it"
        yield self.edit(line, replace, f"{SET} before {code(node.func)}", wrong=wrong)

    def _worker(
        self, node: cst.Call, fn: cst.BaseExpression, context: Workspace
    ) -> Iterator[Edit | RuleFinding]:
        """Yield the edit that sets the local rank in the worker."""
        worker = context.functions.get(fn.value) if isinstance(fn, cst.Name) else None
        parameters = (
            [] if worker is None else [*worker.params.posonly_params, *worker.params.params]
        )
        if worker is None or not parameters:
            message = (
                f"`{code(fn)}` is no function of this file: let it begin with "
                'os.environ["LOCAL_RANK"] = str(rank), by which torch_tpu takes a chip'
            )
            yield from self.report(node, message)
            return
        if sets("LOCAL_RANK", context) or not _is_first(node, fn, context):
            return
        os, key = context.imports.require("os"), context.string("LOCAL_RANK").value
        line = f"{os}.environ[{key}] = str({parameters[0].name.value})"
        lines = [cst.parse_statement(text) for text in (line, *(seed_lines(context) or ()))]

        def replace(updated: cst.BaseSuite) -> cst.BaseSuite:
            for statement in reversed(lines):
                updated = first_in(updated, cst.ensure_type(statement, cst.SimpleStatementLine))
            return updated

        yield self.edit(worker.body, replace, f"{line}: torch_tpu takes the chip of this rank")


def _number(loop: cst.For) -> str:
    """Return the number of turns of `for rank in range(number):`."""
    return code(cst.ensure_type(loop.iter, cst.Call).args[0].value)


def _is_set(context: Workspace) -> bool:
    """Whether the script sets the environment of torch_tpu itself."""
    return any(context.qualified_name(call.func) == SET for call in context.all_of(cst.Call))


def _is_first(node: cst.Call, fn: cst.BaseExpression, context: Workspace) -> bool:
    """Whether `node` is the first launch of the worker `fn`, which begins with its rank once."""
    launches = (
        call
        for call in context.all_of(cst.Call)
        if (run := _run_by(call, context)) is not None and code(run) == code(fn)
    )
    return next(launches, node) is node


def _run_by(call: cst.Call, context: Workspace) -> cst.BaseExpression | None:
    """Return the worker of a launch that is edited here."""
    if context.qualified_name(call.func) in SPAWN:
        bound = bind(call, SPAWN_PARAMETERS) or {}
        return bound["fn"].value if "fn" in bound else None
    loop = process_loop(call, context) if context.launch.starts_replica(call) else None
    return None if loop is None else loop.target.value
