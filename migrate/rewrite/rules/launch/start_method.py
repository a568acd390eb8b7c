"""Set the start method of a replica's processes again in the replica."""

from __future__ import annotations

from collections.abc import Iterable

import libcst as cst

from migrate.catalogue.prescan import spelled
from migrate.check.hazard import Severity
from migrate.rewrite.edits.nodes import with_args
from migrate.rewrite.rule import Edit, Rule, RuleFinding, left_alone, reported, rewritten
from migrate.rewrite.workspace import Workspace
from migrate.syntax.tree import bind, code

SETS = frozenset({"multiprocessing.set_start_method", "torch.multiprocessing.set_start_method"})


class StartMethod(Rule):
    """Let a replica set the start method of its worker processes.

    **What it does.** In a process that torchrun starts, `mp.set_start_method('spawn')` is the first to set
    one. A replica is itself spawned, which sets it: there the call raises "context has already been set". It
    becomes `mp.set_start_method('spawn', force=True)`.

    **Left alone.** A call in the process that launches; one that says `force`; one under a test of
    `get_start_method` or in a `try`, which expect that one is set.

    **Reported.** A call with arguments that cannot be told apart.

    Source: Python 3.11, `multiprocessing.spawn.prepare` (measured).
    """

    name = "start-method"
    code = "XLA716"
    edited = Severity.INFO
    nodes = (cst.Call,)
    words = spelled(SETS)
    examples = (
        rewritten(
            """
            import torch.multiprocessing as mp
            import torch_xla


            def worker(index):
                mp.set_start_method('spawn')


            if __name__ == '__main__':
                torch_xla.launch(worker)
            """,
            """
            import torch.multiprocessing as mp
            import torch_xla


            def worker(index):
                mp.set_start_method('spawn', force=True)


            if __name__ == '__main__':
                torch_xla.launch(worker)
            """,
        ),
        left_alone(
            """
            import torch.multiprocessing as mp
            import torch_xla


            def worker(index):
                if mp.get_start_method(allow_none=True) is None:
                    mp.set_start_method('spawn')
                try:
                    mp.set_start_method('spawn')
                except RuntimeError:
                    pass
                mp.set_start_method('spawn', force=True)


            if __name__ == '__main__':
                mp.set_start_method('spawn')
                torch_xla.launch(worker)
            """
        ),
        reported(
            """
            import torch.multiprocessing as mp
            import torch_xla


            def worker(index, options):
                mp.set_start_method(*options)


            if __name__ == '__main__':
                torch_xla.launch(worker, args=(('spawn',),))
            """,
            "force=True",
        ),
    )

    def find(self, node: cst.CSTNode, context: Workspace) -> Iterable[Edit | RuleFinding]:
        """Yield the edit of one call, or the finding."""
        assert isinstance(node, cst.Call)
        if context.qualified_name(node.func) not in SETS or not context.launch.in_replica(node):
            return
        if _expects_one(node, context):
            return
        bound = bind(node, ["method", "force"])
        if bound is None:
            message = f"{code(node)}: a replica has a start method already: force=True"
            yield from self.report(node, message)
        elif "force" not in bound:
            force = cst.Arg(
                keyword=cst.Name("force"),
                value=cst.Name("True"),
                equal=cst.AssignEqual(
                    cst.SimpleWhitespace(""),
                    cst.SimpleWhitespace(""),
                ),
            )
            message = "a replica is spawned, and has a start method already"
            yield self.edit(
                node, lambda updated: with_args(updated, [*updated.args, force]), message
            )


def _expects_one(call: cst.Call, context: Workspace) -> bool:
    """Whether the code around `call` expects that a start method may have been set."""
    for above in context.ancestors(call):
        if isinstance(above, cst.FunctionDef):
            return False
        if isinstance(above, cst.Try) and above.handlers:
            return True
        if isinstance(above, cst.If) and "get_start_method" in code(above.test):
            return True
    return False
