"""Launches of torch_xla in scripts that move to torch_tpu."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

import libcst as cst

from migrate.catalogue.launchers import SPAWN_PARAMETERS, XLA_LAUNCHES
from migrate.catalogue.target import TPU, TPU_ONLY
from migrate.reading.values.environment import sets
from migrate.rewrite.edits.nodes import argument, first_in, keyword_arg
from migrate.rewrite.rule import (
    Edit,
    Rule,
    RuleFinding,
    Stage,
    left_alone,
    reported,
    rewritten,
)
from migrate.rewrite.rules.launch.replica_function import free_name
from migrate.rewrite.rules.launch.tpu_launch import SET
from migrate.rewrite.workspace import Workspace
from migrate.syntax.tree import bind, code

OF_LAUNCH = ("fn", "args", "start_method", "debug_single_process")
# Options that may be left out, with what they are then.
DEFAULTS = {"nprocs": "None", "join": "True", "daemon": "False", "debug_single_process": "False"}
BY_HAND = (
    f"{SET}(nproc_per_node=N), then torch.multiprocessing.spawn(fn, args=…, nprocs=N), with RANK, LOCAL_RANK "
    "and WORLD_SIZE set in each rank"
)


class LaunchFromXla(Rule):
    """Spawn the ranks that torch_xla.launch started.

    **What it does.** `torch_xla.launch(fn, args=…)` and `xmp.spawn` become `mp.spawn` with a rank for each
    chip of the host, below the lines that set the environment of torch_tpu, the address at which the ranks
    meet, and the world size. The worker begins with its rank.

    **Reported.** A launch that is a part of another statement, that has options (how processes start, how
    many, whether it waits for them), whose arguments cannot be read, or whose worker is in another file.

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
        if context.qualified_name(node.func) not in XLA_LAUNCHES:
            return
        launch = editable_launch(node, context)
        if launch is None:
            bound = bind(node, _parameters(node, context)) or {}
            options = ", ".join(argument(bound[option]) for option in _options(bound))
            said = f"{code(node.func)} with {options}" if options else code(node.func)
            yield from self.report(node, f"{said}: {BY_HAND}")
            return
        worker, bound = launch
        yield self._spawn(node, context.statement_around(node), bound, context)
        others = (
            call
            for call in context.all_of(cst.Call)
            if (other := editable_launch(call, context)) is not None and other[0] is worker
        )
        if next(others, node) is node:  # the worker begins with its rank once
            yield from self._worker(worker, _parameters_of(worker)[0].name.value, context)

    def _spawn(
        self, node: cst.Call, line: cst.CSTNode, bound: dict[str, cst.Arg], context: Workspace
    ) -> Edit:
        """Return the edit of the launch, with the lines above it."""
        torch, os = context.imports.require("torch"), context.imports.require("os")
        mp = context.imports.require("torch.multiprocessing", "mp")
        kept = [node.args.index(bound[name]) for name in ("fn", "args") if name in bound]

        def text(value: str) -> str:
            return context.string(value).value

        number = free_name("nprocs", context, beside=(arg.keyword for arg in node.args))
        world, local = text("WORLD_SIZE"), text("LOCAL_WORLD_SIZE")
        above = [
            f"{number} = {torch}.accelerator.device_count()",
            f"{SET.replace('torch', torch, 1)}(nproc_per_node={number})",
            *(
                f"{os}.environ.setdefault({text(name)}, {text(value)})"
                for name, value in (("MASTER_ADDR", "localhost"), ("MASTER_PORT", "29500"))
                if not sets(name, context)
            ),
            f"{os}.environ[{world}] = {os}.environ[{local}] = str({number})",
        ]
        function = cst.parse_expression(f"{mp}.spawn")
        count = keyword_arg("nprocs", cst.Name(number))

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


def editable_launch(
    call: cst.Call, context: Workspace
) -> tuple[cst.FunctionDef, dict[str, cst.Arg]] | None:
    """Return the worker of a launch of torch_xla and its arguments, or None where it is left to the user."""
    if context.qualified_name(call.func) not in XLA_LAUNCHES:
        return None
    bound = bind(call, _parameters(call, context))
    line, statement = context.statement_around(call), context.parent(call)
    if not isinstance(statement, cst.Expr) or not isinstance(line, cst.SimpleStatementLine):
        return None
    if bound is None or "fn" not in bound or _options(bound):
        return None
    fn = bound["fn"].value
    worker = context.functions.get(fn.value) if isinstance(fn, cst.Name) else None
    return None if worker is None or not _parameters_of(worker) else (worker, bound)


def _parameters(call: cst.Call, context: Workspace) -> tuple[str, ...]:
    single = context.qualified_name(call.func) == "torch_xla.launch"
    return OF_LAUNCH if single else SPAWN_PARAMETERS


def _options(bound: dict[str, cst.Arg]) -> list[str]:
    """Return the options of a launch that mp.spawn with a rank for each chip would not have."""
    return [
        name
        for name, arg in bound.items()
        if name not in ("fn", "args") and code(arg.value) != DEFAULTS.get(name)
    ]


def _parameters_of(worker: cst.FunctionDef) -> list[cst.Param]:
    return [*worker.params.posonly_params, *worker.params.params]
