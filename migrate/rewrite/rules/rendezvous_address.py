"""The rendezvous address of NCCL and Gloo goes."""

from __future__ import annotations

from collections.abc import Iterable

import libcst as cst

from migrate.rewrite.context import Context
from migrate.rewrite.rule import Edit, Finding, Rule, left_alone, reported, rewritten
from migrate.rewrite.tree import code, string_value

VARIABLES = frozenset({"MASTER_ADDR", "MASTER_PORT"})


class RendezvousAddress(Rule):
    """Remove the lines that set MASTER_ADDR and MASTER_PORT.

    **What it does.** With `init_method="xla://"` the TPU runtime finds the hosts by itself. A leftover
    `MASTER_ADDR = 'localhost'` would be taken for the address of the first host and keep the hosts of a
    pod apart, so the lines that set these variables go, also an `if` around nothing else.

    **Reported.** A script that also reads the variable elsewhere: there the lines stay.

    Source: torch_xla 2.9, `torch_xla/_internal/rendezvous.py`, which reads MASTER_ADDR first.
    """

    name = "rendezvous-address"
    nodes = (cst.SimpleStatementLine, cst.If)
    examples = (
        rewritten(
            """
            import os

            import torch.distributed as dist


            def setup(rank, world_size):
                os.environ['MASTER_ADDR'] = 'localhost'
                os.environ['MASTER_PORT'] = '12355'

                # initialize the process group
                dist.init_process_group('gloo', rank=rank, world_size=world_size)
            """,
            """
            import torch.distributed as dist
            import torch_xla.distributed.xla_backend


            def setup(rank, world_size):
                # initialize the process group
                dist.init_process_group('xla', init_method='xla://')
            """,
        ),
        left_alone(
            """
            import os

            os.environ['OMP_NUM_THREADS'] = '1'
            """
        ),
        reported(
            """
            import os

            os.environ['MASTER_ADDR'] = 'localhost'
            print('first host:', os.environ['MASTER_ADDR'])
            """,
            "is also read",
        ),
    )

    def find(self, node: cst.CSTNode, context: Context) -> Iterable[Edit | Finding]:
        """Yield the removal of a statement, or of an `if` that holds nothing else."""
        if isinstance(node, cst.If):
            if not self._goes_whole(node, context):
                return
            names = sorted({self._variable(line, context) or "" for line in node.body.body})
            message = f"sets {', '.join(names)}: the TPU runtime finds the hosts itself"
            yield self.edit(node, lambda _: cst.RemoveFromParent(), message, consumes=[node])
            return
        name = self._variable(node, context)
        above = context.parent(context.parent(node)) if name else None
        if name is None or (isinstance(above, cst.If) and self._goes_whole(above, context)):
            return
        if self._is_read(name, context):
            yield from self.report(
                node, f"{name} is also read: left as it is; with xla:// nothing needs it"
            )
            return
        message = f"sets {name}: the TPU runtime finds the hosts itself"
        yield self.edit(node, lambda _: cst.RemoveFromParent(), message, consumes=[node])

    def _variable(self, line: cst.CSTNode, context: Context) -> str | None:
        """Return the variable that the statement sets, if setting it is all that it does."""
        if not isinstance(line, cst.SimpleStatementLine) or len(line.body) != 1:
            return None
        statement = line.body[0]
        if isinstance(statement, cst.Assign) and len(statement.targets) == 1:
            return _subscripted(statement.targets[0].target, context)
        if isinstance(statement, cst.Expr) and isinstance(statement.value, cst.Call):
            call = statement.value
            if context.qualified_name(call.func) == "os.environ.setdefault" and call.args:
                name = string_value(call.args[0].value)
                return name if name in VARIABLES else None
        return None

    def _goes_whole(self, node: cst.If, context: Context) -> bool:
        """Whether the `if` does nothing but set the variables, and they may go."""
        if node.orelse is not None or not isinstance(node.body, cst.IndentedBlock):
            return False
        if isinstance(context.parent(node), cst.If):  # an elif
            return False
        names = [self._variable(line, context) for line in node.body.body]
        return all(name is not None and not self._is_read(name, context) for name in names)

    def _is_read(self, name: str, context: Context) -> bool:
        """Whether the script mentions the variable other than to set it or to ask whether it is set.

        RPC reads it too, inside torch.
        """
        if context.uses_rpc:
            return True
        for string in context.all_of(cst.SimpleString, cst.ConcatenatedString):
            if string_value(string) != name or isinstance(
                context.parent(string), cst.ConcatenatedString
            ):
                continue
            statement = context.statement_around(string)
            asked = isinstance(statement, cst.If) and "environ" in code(statement.test)
            if self._variable(statement, context) != name and not asked:
                return True
        return False


def _subscripted(target: cst.BaseExpression, context: Context) -> str | None:
    """Return NAME of `os.environ['NAME']` if it is one of the variables."""
    if not isinstance(target, cst.Subscript) or len(target.slice) != 1:
        return None
    if context.qualified_name(target.value) != "os.environ":
        return None
    index = target.slice[0].slice
    name = string_value(index.value) if isinstance(index, cst.Index) else None
    return name if name in VARIABLES else None
