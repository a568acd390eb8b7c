"""Launches of torch_xla in scripts that move to torch_tpu."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

import libcst as cst

from migrate.catalogue.target import TPU, TPU_ONLY
from migrate.reading.values.environment import sets
from migrate.rewrite.edits.nodes import first_in, keyword_arg
from migrate.rewrite.rule import (
    Edit,
    Rule,
    RuleFinding,
    Stage,
    left_alone,
    reported,
    rewritten,
)
from migrate.rewrite.rules.launch.tpu_launch import SET
from migrate.rewrite.workspace import Workspace
from migrate.syntax.tree import bind, code

LAUNCHES = frozenset({"torch_xla.launch", "torch_xla.distributed.xla_multiprocessing.spawn"})
PARAMETERS = ("fn", "args", "nprocs", "join", "daemon", "start_method")
OF_LAUNCH = ("fn", "args", "start_method", "debug_single_process")
BY_HAND = (
    f"{SET}(nproc_per_node=N), then torch.multiprocessing.spawn(fn, args=…, nprocs=N), with RANK, LOCAL_RANK "
    "and WORLD_SIZE set in each rank"
)


class LaunchFromXla(Rule):
    """Spawn the ranks that torch_xla.launch started.

    **What it does.** `torch_xla.launch(fn, args=…)` and `xmp.spawn` become `mp.spawn` with a rank for each
    chip of the host, below the lines that set the environment of torch_tpu, the address at which the ranks
    meet, and the world size. The worker begins with its rank.

    **Reported.** A launch that is a part of another statement, that chooses how processes start, whose
    arguments cannot be read, or whose worker is in another file.

    **Under torchrun.** torch_xla.launch starts nothing there; `mp.spawn` does. Start the script itself.

    **Several hosts.** torch_xla.launch joins the hosts of a slice. The lines written here start the ranks of
    one host: `RANK` and `WORLD_SIZE` do not count the others.

    Source: torch_tpu 0.2.0 (measured with 2 ranks on XLA:CPU).
    """

    name = "launch-from-xla"
    code = "XLA897"
    targets = TPU_ONLY
    stage = Stage.LAUNCH
    nodes = (cst.Call,)
    words = r"launch|spawn"
    examples = (
        rewritten(
            """
            import torch_xla


            def worker(index, epochs):
                print(index, epochs)


            if __name__ == "__main__":
                torch_xla.launch(worker, args=(3,))
            """,
            """
            import os
            import torch
            import torch.multiprocessing as mp


            def worker(index, epochs):
                os.environ["RANK"] = os.environ["LOCAL_RANK"] = str(index)
                print(index, epochs)


            if __name__ == "__main__":
                nprocs = torch.accelerator.device_count()
                torch.tpu.distributed.set_tpu_launch_env(nproc_per_node=nprocs)
                os.environ.setdefault("MASTER_ADDR", "localhost")
                os.environ.setdefault("MASTER_PORT", "29500")
                os.environ["WORLD_SIZE"] = os.environ["LOCAL_WORLD_SIZE"] = str(nprocs)
                mp.spawn(worker, args=(3,), nprocs=nprocs)
            """,
            target=TPU,
        ),
        left_alone(
            """
            from launcher import launch

            launch(print)
            """,
            target=TPU,
        ),
        reported(
            """
            import torch_xla

            from workers import worker

            torch_xla.launch(worker)
            """,
            "nproc_per_node=N",
            target=TPU,
        ),
    )

    def find(self, node: cst.CSTNode, context: Workspace) -> Iterable[Edit | RuleFinding]:
        """Yield the edits of one launch, or the finding."""
        assert isinstance(node, cst.Call)
        name = context.qualified_name(node.func)
        if name not in LAUNCHES:
            return
        bound = bind(node, OF_LAUNCH if name == "torch_xla.launch" else PARAMETERS)
        line, statement = context.statement_around(node), context.parent(node)
        fn = bound.get("fn") if bound else None
        worker = (
            context.functions.get(fn.value.value)
            if fn is not None and isinstance(fn.value, cst.Name)
            else None
        )
        parameters = (
            [] if worker is None else [*worker.params.posonly_params, *worker.params.params]
        )
        forks = bound is not None and "start_method" in bound
        plain = (
            not forks
            and isinstance(statement, cst.Expr)
            and isinstance(line, cst.SimpleStatementLine)
        )
        if bound is None or worker is None or not parameters or not plain:
            yield from self.report(node, f"{code(node.func)}: {BY_HAND}")
            return
        yield self._spawn(node, line, bound, context)
        yield from self._worker(worker, parameters[0].name.value, context)

    def _spawn(
        self, node: cst.Call, line: cst.CSTNode, bound: dict[str, cst.Arg], context: Workspace
    ) -> Edit:
        """Return the edit of the launch, with the lines above it."""
        torch, os = context.imports.require("torch"), context.imports.require("os")
        mp = context.imports.require("torch.multiprocessing", "mp")
        kept = [node.args.index(bound[name]) for name in ("fn", "args") if name in bound]

        def text(value: str) -> str:
            return context.string(value).value

        world, local = text("WORLD_SIZE"), text("LOCAL_WORLD_SIZE")
        above = [
            f"nprocs = {torch}.accelerator.device_count()",
            f"{SET.replace('torch', torch, 1)}(nproc_per_node=nprocs)",
            *(
                f"{os}.environ.setdefault({text(name)}, {text(value)})"
                for name, value in (("MASTER_ADDR", "localhost"), ("MASTER_PORT", "29500"))
                if not sets(name, context)
            ),
            f"{os}.environ[{world}] = {os}.environ[{local}] = str(nprocs)",
        ]
        function = cst.parse_expression(f"{mp}.spawn")
        count = keyword_arg("nprocs", cst.Name("nprocs"))

        def replace(updated: cst.SimpleStatementLine) -> cst.FlattenSentinel[cst.BaseStatement]:
            call = cst.ensure_type(cst.ensure_type(updated.body[0], cst.Expr).value, cst.Call)
            args = [
                call.args[index].with_changes(
                    comma=cst.Comma(whitespace_after=cst.SimpleWhitespace(" "))
                )
                for index in kept
            ]
            spawn = cst.Call(function, [*args, count])
            lines = [cst.parse_statement(line) for line in above]
            lines[0] = lines[0].with_changes(leading_lines=updated.leading_lines)
            last = updated.with_changes(leading_lines=[], body=[cst.Expr(spawn)])
            return cst.FlattenSentinel([*lines, last])

        gone = [arg for index, arg in enumerate(node.args) if index not in kept]
        message = (
            f"{code(node.func)} → torch.multiprocessing.spawn, with the environment of torch_tpu"
        )
        return self.edit(line, replace, message, consumes=[node.func, *gone])

    def _worker(self, worker: cst.FunctionDef, rank: str, context: Workspace) -> Iterator[Edit]:
        """Yield the edit that sets the ranks in the worker."""
        os = context.imports.require("os")
        targets = " = ".join(
            f"{os}.environ[{context.string(name).value}]" for name in ("RANK", "LOCAL_RANK")
        )
        statement = cst.ensure_type(
            cst.parse_statement(f"{targets} = str({rank})"), cst.SimpleStatementLine
        )
        yield self.edit(
            worker.body,
            lambda updated: first_in(updated, statement),
            f"{targets} = str({rank}): torch_tpu takes the chip of this rank",
        )
