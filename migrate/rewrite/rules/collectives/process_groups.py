"""Process groups beside the default one."""

from __future__ import annotations

from collections.abc import Iterable

import libcst as cst

from migrate.catalogue.target import BOTH
from migrate.reading.values.collectives import called
from migrate.rewrite.edits.nodes import with_args
from migrate.rewrite.rule import Edit, Rule, RuleFinding, left_alone, reported, rewritten
from migrate.rewrite.rules.collectives.written import as_shims
from migrate.rewrite.workspace import Workspace
from migrate.syntax.tree import bind, code, string_value

PARAMETERS = (
    "ranks",
    "timeout",
    "backend",
    "pg_options",
    "use_local_synchronization",
    "group_desc",
    "device_id",
)


class ProcessGroups(Rule):
    """Make further process groups on the XLA backend.

    **What it does.** `dist.new_group(backend="nccl")` gets the backend `"xla"`, and `pg_options=`, which
    are NCCL's, go.

    **Left alone.** A group over gloo, which carries tensors of the CPU and Python objects, and a group of
    all replicas.

    **Reported.** A group of some of the ranks: XLA infers the other groups from it, as rows of a rectangle
    of all ranks, and every replica has to make the collective, each in its own group.

    Source: torch_xla 2.9, `torch_xla/distributed/xla_backend.py` (measured on two replicas).
    """

    name = "process-groups"
    code = "XLA838"
    targets = BOTH
    on_torch_tpu = "The backend is `'tpu_dist'`; ranks form any groups."
    nodes = (cst.Call,)
    words = "new_group"
    examples = (
        rewritten(
            """
            import torch.distributed as dist

            everybody = dist.new_group(backend='nccl', pg_options=options)
            """,
            """
            import torch.distributed as dist

            everybody = dist.new_group(backend='xla')
            """,
        ),
        left_alone(
            """
            import torch.distributed as dist
            from groups import new_group

            host = dist.new_group(ranks=[0, 1], backend='gloo')
            everybody = dist.new_group()
            other = new_group(backend='nccl')
            """
        ),
        reported(
            """
            import torch.distributed as dist


            def host_group(first, count):
                return dist.new_group(list(range(first, first + count)))
            """,
            "a rectangle",
        ),
    )

    def find(self, node: cst.CSTNode, context: Workspace) -> Iterable[Edit | RuleFinding]:
        """Yield the edit of one group, or the finding."""
        assert isinstance(node, cst.Call)
        if called(node, context) != "new_group":
            return
        bound = bind(node, PARAMETERS)
        if bound is None:
            yield from self.report(node, f"{code(node)}: the backend on XLA is 'xla', or 'gloo'")
            return
        backend = bound["backend"].value if "backend" in bound else None
        if string_value(backend) == "gloo":
            return
        others = bound.keys() - {"ranks", "timeout", "backend", "pg_options"}
        if context.portable and not others:
            dropped = ["pg_options", *(["backend"] if string_value(backend) == "nccl" else [])]
            yield as_shims(self, node, context, bound, dropped)
            return
        if "ranks" in bound and code(bound["ranks"].value) != "None" and not context.for_torch_tpu:
            message = (
                f"{code(node)}: on XLA the ranks are one row of a rectangle of all ranks, and every replica "
                "makes the collective, in the group of its row"
            )
            yield from self.report(node, message)
        options = bound.get("pg_options")
        named_nccl = string_value(backend) == "nccl" or (
            context.for_torch_tpu and string_value(backend) == "xla"
        )
        if context.portable:
            message = f"{code(node)}: shims.new_group has no {', '.join(sorted(others))}"
            yield from self.report(node, message)
            return
        if not named_nccl and options is None:
            return
        at = None if options is None else node.args.index(options)
        which = node.args.index(bound["backend"]) if named_nccl else None
        xla = context.string(context.vocabulary.group_backend, like=backend)

        def replace(updated: cst.Call) -> cst.Call:
            args = list(updated.args)
            if which is not None:
                args[which] = args[which].with_changes(value=xla)
            return with_args(updated, [arg for index, arg in enumerate(args) if index != at])

        gone = [*([backend] if named_nccl and backend else []), *([options] if options else [])]
        message = f"{code(node)} → on the {'TPU' if context.for_torch_tpu else 'XLA'} backend"
        yield self.edit(node, replace, message, consumes=gone)
