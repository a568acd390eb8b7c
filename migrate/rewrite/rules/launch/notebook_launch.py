"""Fork the replicas in a notebook."""

from __future__ import annotations

from collections.abc import Iterable

import libcst as cst

from migrate.catalogue.launchers import LAUNCH
from migrate.reading.replicas.launch import is_forked, start_method, stays_in_process
from migrate.rewrite.edits.nodes import with_args
from migrate.rewrite.rule import Edit, Rule, RuleFinding, left_alone, reported, rewritten
from migrate.rewrite.workspace import Workspace

PORTABLE = frozenset({"shims.launch", "shims.ranks.launch"})


class NotebookLaunch(Rule):
    """Fork the replicas that a Jupyter notebook launches.

    **What it does.** `torch_xla.launch(fn)` in a cell gets `start_method='fork'`, also where another rule
    has just written it for `mp.spawn` or a `__main__` guard. A spawned process looks for `fn` in a module
    that it can import, and the functions of a notebook are in none.

    **When.** Only in notebooks, and not where `debug_single_process=True` keeps all in one process.

    **Reported.** A launch with `*` or `**` arguments, and `shims.launch`, which spawns. The functions are
    still found by their names: lambdas and functions in functions cannot be launched, and no cell before
    the launch may touch the device.

    Source: torch_xla 2.9 in a Jupyter kernel, measured: spawned, `AttributeError: Can't get attribute 'f'
    on <module '__main__'>` and a broken pool; forked, it works, time after time in one kernel; a lambda is
    a PicklingError also then; after a tensor on the device, `RuntimeError: Runtime is already initialized`.
    """

    name = "notebook-launch"
    code = "XLA707"
    nodes = (cst.Call,)
    after = True
    notebook = True
    examples = (
        rewritten(
            """
            import torch
            import torch.multiprocessing as mp

            def train(rank, epochs):
                print(rank, epochs)

            mp.spawn(train, args=(3,), nprocs=torch.cuda.device_count())
            """,
            """
            import torch_xla


            def train(rank, epochs):
                print(rank, epochs)

            torch_xla.launch(train, args=(3,), start_method="fork")
            """,
        ),
        rewritten(
            """
            import torch_xla.distributed.xla_multiprocessing as xmp

            def train(index):
                print(index)

            xmp.spawn(train, nprocs=None, start_method='spawn')
            """,
            """
            import torch_xla


            def train(index):
                print(index)

            torch_xla.launch(train, start_method='fork')
            """,
        ),
        left_alone(
            """
            import torch_xla

            def train(index):
                print(index)

            torch_xla.launch(train, start_method="fork")
            torch_xla.launch(train, debug_single_process=True)
            """
        ),
        reported(
            """
            import torch_xla

            def train(index):
                print(index)

            options = {"args": ()}
            torch_xla.launch(train, **options)
            """,
            "start_method='fork'",
        ),
        reported(
            """
            import shims

            def train(rank):
                print(rank)

            shims.launch(train)
            """,
            "in a module",
        ),
    )

    def find(self, node: cst.CSTNode, context: Workspace) -> Iterable[Edit | RuleFinding]:
        """Yield the edit of one launch."""
        assert isinstance(node, cst.Call)
        name = context.qualified_name(node.func)
        if name in PORTABLE:
            message = (
                "shims.launch spawns its ranks, which cannot find a function of a notebook: define the "
                "function in a module and import it, or use torch_xla.launch with start_method='fork'"
            )
            yield from self.report(node, message)
        elif name == LAUNCH:
            yield from self._launch(node, context)

    def _launch(self, node: cst.Call, context: Workspace) -> Iterable[Edit | RuleFinding]:
        if any(arg.star for arg in node.args):
            yield from self.report(
                node, "in a notebook the replicas are forked: start_method='fork'"
            )
            return
        if is_forked(node, context) or stays_in_process(node, context):
            return
        argument = start_method(node, context)
        fork = cst.Arg(
            context.string("fork", argument.value if argument is not None else None),
            keyword=cst.Name("start_method"),
            equal=cst.AssignEqual(cst.SimpleWhitespace(""), cst.SimpleWhitespace("")),
        )
        at = None if argument is None else next(i for i, a in enumerate(node.args) if a is argument)

        def replace(updated: cst.Call) -> cst.Call:
            if at is None:
                return with_args(updated, [*updated.args, fork])
            args = list(updated.args)
            args[at] = args[at].with_changes(value=fork.value)
            return updated.with_changes(args=args)

        message = (
            "the replicas are forked: a spawned process cannot import the functions of a notebook"
        )
        gone = [] if argument is None else [argument.value]
        yield self.edit(node, replace, message, consumes=gone)
