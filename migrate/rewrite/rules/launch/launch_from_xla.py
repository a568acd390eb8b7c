"""Launches of torch_xla in scripts that move to torch_tpu."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

import libcst as cst

from migrate.catalogue.launchers import XLA_LAUNCHES
from migrate.catalogue.target import TPU, TPU_ONLY
from migrate.check.hazard import Severity
from migrate.reading.replicas.launch import INIT, is_forked, launch_parameters
from migrate.reading.values.environment import sets
from migrate.rewrite.edits.nodes import argument, first_in, keyword_arg, spread
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
from migrate.rewrite.rules.random.tpu_seeds import seed_lines
from migrate.rewrite.workspace import Workspace
from migrate.syntax.tree import bind, code, string_value

# Options that mp.spawn has only with these values.
DEFAULTS = {"join": "True", "daemon": "False"}
BY_HAND = (
    f"{SET}(nproc_per_node=N), then torch.multiprocessing.spawn(fn, args=…, nprocs=N), with RANK, LOCAL_RANK "
    "and WORLD_SIZE set in each rank, which joins the process group"
)
UNSEEDED = (
    "nothing seeds the ranks, which draw on their devices: torch_xla starts all of them at the same seed, "
    "torch_tpu each at a seed of its own; for the same numbers, torch.manual_seed(…) in the worker"
)


class LaunchFromXla(Rule):
    """Spawn the ranks that torch_xla.launch started.

    **What it does.** `torch_xla.launch(fn, args=…)` and `xmp.spawn` become `mp.spawn` with a rank for each
    chip of the host, below the lines that set the environment of torch_tpu, the address at which the ranks
    meet, and the world size. The worker begins with its rank, and joins the process group if nothing in the
    project does.

    **Forked ranks.** A forked process cannot open the TPU. A launch with `start_method="fork"` becomes a call
    of the worker: torchrun starts the script in each rank. A worker that only runs its file again goes.

    **Several hosts.** Each host starts its own ranks. `NNODES` and `NODE_RANK`, which
    `set_tpu_launch_env` sets on a slice of several hosts, count in `WORLD_SIZE` and `RANK`.

    **Reported.** A launch that is a part of another statement, that does not wait for its processes, whose
    arguments cannot be read, whose worker is in another file, or that forks in a notebook. A launch of ranks
    that draw on their devices while nothing seeds them: torch_xla starts them all at the same seed, torch_tpu
    does not.

    **Under torchrun.** torch_xla.launch starts nothing there; `mp.spawn` does. Start the script itself.

    Source: torch_tpu 0.2.0 (measured with 2 ranks on XLA:CPU).
    """

    name = "launch-from-xla"
    code = "XLA898"
    targets = TPU_ONLY
    stage = Stage.LAUNCH
    nodes = (cst.Call,)
    words = r"launch|spawn|init_process_group"
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
            import torch.distributed as dist
            import torch.multiprocessing as mp


            def worker(index, epochs):
                os.environ["LOCAL_RANK"] = str(index)
                index += int(os.environ.get("NODE_RANK", "0")) * int(os.environ["LOCAL_WORLD_SIZE"])
                os.environ["RANK"] = str(index)
                dist.init_process_group("tpu_dist")
                print(index, epochs)


            if __name__ == "__main__":
                nprocs = torch.accelerator.device_count()
                torch.tpu.distributed.set_tpu_launch_env(nproc_per_node=nprocs)
                os.environ.setdefault("MASTER_ADDR", "localhost")
                os.environ.setdefault("MASTER_PORT", "29500")
                os.environ["LOCAL_WORLD_SIZE"] = str(nprocs)
                os.environ["WORLD_SIZE"] = str(nprocs * int(os.environ.get("NNODES", "1")))
                mp.spawn(worker, args=(3,), nprocs=nprocs)
            """,
            target=TPU,
        ),
        rewritten(
            """
            import torch.distributed as dist
            import torch_xla
            import torch_xla.distributed.xla_backend


            def worker(index):
                dist.init_process_group("xla", init_method="xla://")
                print(index)


            if __name__ == "__main__":
                torch_xla.launch(worker, start_method="fork")
            """,
            """
            import os

            import torch.distributed as dist


            def worker(index):
                dist.init_process_group("tpu_dist")
                print(index)


            if __name__ == "__main__":
                worker(int(os.environ["RANK"]))
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
        if _is_moved(node, context):
            message = f"remove {code(node)}: each rank joins the group, whatever the option says"
            line = context.statement_around(node)
            yield self.edit(line, lambda _: cst.RemoveFromParent(), message, consumes=[line])
        if context.qualified_name(node.func) not in XLA_LAUNCHES:
            return
        launch = editable_launch(node, context)
        if launch is None:
            bound = bind(node, launch_parameters(node, context)) or {}
            options = ", ".join(
                argument(bound[option]) for option in _options(node, bound, context)
            )
            said = f"{code(node.func)} with {options}" if options else code(node.func)
            yield from self.report(node, f"{said}: {BY_HAND}")
            return
        worker, bound = launch
        if context.calls.draws_unseeded:
            yield from self.report(node, f"{code(node.func)}: {UNSEEDED}", Severity.INFO)
        if is_forked(node, context):
            yield from self._under_torchrun(node, worker, bound, context)
            return
        yield self._spawn(node, context.statement_around(node), bound, context)
        others = (
            call
            for call in context.all_of(cst.Call)
            if (other := editable_launch(call, context)) is not None and other[0] is worker
        )
        if next(others, node) is node:  # the worker begins with its rank once
            yield from self._worker(worker, _parameters_of(worker)[0].name.value, context)

    def _under_torchrun(
        self,
        node: cst.Call,
        worker: cst.FunctionDef,
        bound: dict[str, cst.Arg],
        context: Workspace,
    ) -> Iterator[Edit]:
        """Yield the edits of a launch that forks: torchrun starts the script in each rank."""
        consumed = [node.func, *node.args]
        around = [a for a in context.ancestors(node) if isinstance(a, cst.If)]
        if around and _runs_file(worker, context):
            message = f"remove {code(node.func)} of this file: torchrun starts it in each rank"
            yield self.edit(
                around[-1], lambda _: cst.RemoveFromParent(), message, consumes=consumed
            )
            message = f"remove {worker.name.value}: torchrun sets the variables of the ranks"
            yield self.edit(worker, lambda _: cst.RemoveFromParent(), message)
            return
        os = context.imports.require("os")
        rank = cst.parse_expression(f"int({os}.environ[{context.string('RANK').value}])")

        def replace(updated: cst.SimpleStatementLine) -> cst.SimpleStatementLine:
            call = cst.ensure_type(cst.ensure_type(updated.body[0], cst.Expr).value, cst.Call)
            now = bind(call, launch_parameters(node, context)) or bound
            others = spread(now["args"].value) if "args" in now else []
            lines = [
                line
                for line in updated.leading_lines
                if line.comment is None or not line.comment.value.startswith("# Forked:")
            ]
            run = cst.Call(cst.Name(worker.name.value), [cst.Arg(rank), *others])
            return updated.with_changes(leading_lines=lines, body=[cst.Expr(run)])

        message = (
            f"{code(node.func)} → {worker.name.value}: torchrun starts the script in each rank"
        )
        gone = [arg for name, arg in bound.items() if name != "args"]
        yield self.edit(
            context.statement_around(node), replace, message, consumes=[node.func, *gone]
        )

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
        above = [
            f"{number} = {_count(bound, torch)}",
            f"{SET.replace('torch', torch, 1)}(nproc_per_node={number})",
            *(
                f"{os}.environ.setdefault({text(name)}, {text(value)})"
                for name, value in (("MASTER_ADDR", "localhost"), ("MASTER_PORT", "29500"))
                if not sets(name, context)
            ),
            f"{os}.environ[{text('LOCAL_WORLD_SIZE')}] = str({number})",
            f"{os}.environ[{text('WORLD_SIZE')}] = "
            f"str({number} * int({os}.environ.get({text('NNODES')}, {text('1')})))",
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

    def _worker(self, worker: cst.FunctionDef, index: str, context: Workspace) -> Iterator[Edit]:
        """Yield the edit that sets the ranks in the worker, and joins the group if nothing does."""
        os = context.imports.require("os")

        def read(name: str) -> str:
            return f"{os}.environ[{context.string(name).value}]"

        node_rank = (
            f"{os}.environ.get({context.string('NODE_RANK').value}, {context.string('0').value})"
        )
        lines = [
            f"{read('LOCAL_RANK')} = str({index})",
            f"{index} += int({node_rank}) * int({read('LOCAL_WORLD_SIZE')})",
            f"{read('RANK')} = str({index})",
        ]
        lines += seed_lines(context) or ()
        joins = context.position(worker).line in context.calls.joining
        if not joins or any(_is_moved(call, context) for call in context.all_of(cst.Call)):
            dist = context.imports.require("torch.distributed", "dist")
            backend = context.string(context.vocabulary.group_backend).value
            lines.append(f"{dist}.init_process_group({backend})")
        statements = [
            cst.ensure_type(cst.parse_statement(line), cst.SimpleStatementLine) for line in lines
        ]

        def replace(updated: cst.BaseSuite) -> cst.BaseSuite:
            for statement in reversed(statements):
                updated = first_in(updated, statement)
            return updated

        message = f"the ranks of {worker.name.value} in its environment, as torch_tpu reads them"
        yield self.edit(worker.body, replace, message)


def joins_group(context: Workspace) -> bool:
    """Whether the script, or its project, joins a process group, or will after its launch is edited."""
    calls = (context.qualified_name(call.func) for call in context.all_of(cst.Call))
    return (
        context.calls.joins_group
        or context.calls.launches_xla
        or any(name in INIT or name in XLA_LAUNCHES for name in calls)
    )


def _is_optional(call: cst.Call, context: Workspace) -> bool:
    """Whether `call` joins torch_xla's group, as a statement, only under a condition.

    The functions of torch_xla work without the group, those of torch.distributed do not.
    """
    if context.qualified_name(call.func) not in INIT or "xla" not in code(call):
        return False
    line = context.statement_around(call)
    tests = [code(a.test) for a in context.ancestors(call) if isinstance(a, cst.If)]
    return (
        any("is_initialized" not in test and "__name__" not in test for test in tests)
        and isinstance(context.parent(call), cst.Expr)
        and isinstance(line, cst.SimpleStatementLine)
        and len(line.body) == 1
    )


def _is_moved(call: cst.Call, context: Workspace) -> bool:
    """Whether the workers of the script join the group instead of `call`, which does so only at times.

    A forked launch has no worker of its own that could: torchrun starts the script in each rank.
    """
    if not _is_optional(call, context) or not is_launched(context):
        return False
    return not any(
        editable_launch(other, context) is not None and is_forked(other, context)
        for other in context.all_of(cst.Call)
    )


def is_launched(context: Workspace) -> bool:
    """Whether the launches of torch_xla in the script are edited."""
    launches = [
        call
        for call in context.all_of(cst.Call)
        if context.qualified_name(call.func) in XLA_LAUNCHES
    ]
    return bool(launches) and all(editable_launch(call, context) for call in launches)


def _runs_file(worker: cst.FunctionDef, context: Workspace) -> bool:
    """Whether `worker` runs its own file again."""
    return any(
        context.qualified_name(call.func) == "runpy.run_path"
        and call.args
        and code(call.args[0].value) == "__file__"
        for call in context.below(worker, cst.Call)
    )


def _count(bound: dict[str, cst.Arg], torch: str) -> str:
    """Return the expression for the number of ranks on a host."""
    asked, single = bound.get("nprocs"), bound.get("debug_single_process")
    number = f"{torch}.accelerator.device_count()"
    if asked is not None and code(asked.value) != "None":
        # None, by which torch_xla takes all, may be what an option is by default.
        plain = isinstance(asked.value, cst.Integer)
        number = code(asked.value) if plain else f"{code(asked.value)} or {number}"
    if single is None or code(single.value) == "False":
        return number
    return "1" if code(single.value) == "True" else f"1 if {code(single.value)} else {number}"


def editable_launch(
    call: cst.Call, context: Workspace
) -> tuple[cst.FunctionDef, dict[str, cst.Arg]] | None:
    """Return the worker of a launch of torch_xla and its arguments, or None where it is left to the user."""
    if context.qualified_name(call.func) not in XLA_LAUNCHES:
        return None
    bound = bind(call, launch_parameters(call, context))
    line, statement = context.statement_around(call), context.parent(call)
    if not isinstance(statement, cst.Expr) or not isinstance(line, cst.SimpleStatementLine):
        return None
    if bound is None or "fn" not in bound or _options(call, bound, context):
        return None
    fn = bound["fn"].value
    worker = context.functions.get(fn.value) if isinstance(fn, cst.Name) else None
    return None if worker is None or not _parameters_of(worker) else (worker, bound)


def _options(call: cst.Call, bound: dict[str, cst.Arg], context: Workspace) -> list[str]:
    """Return the options of a launch that neither mp.spawn nor torchrun has."""
    options = [
        name
        for name, value in DEFAULTS.items()
        if name in bound and code(bound[name].value) != value
    ]
    method = bound.get("start_method")
    known = method is None or string_value(method.value) in ("spawn", "fork")
    if not known or (is_forked(call, context) and context.source.is_notebook):
        options.append("start_method")
    return options


def _parameters_of(worker: cst.FunctionDef) -> list[cst.Param]:
    return [*worker.params.posonly_params, *worker.params.params]
