"""Use the unwrapped model where one replica alone evaluates."""

from __future__ import annotations

from collections.abc import Iterable

import libcst as cst

from migrate.catalogue.words import NO_GRADIENTS
from migrate.check.hazard import Severity
from migrate.check.rules.ranks.guarded_forward import lone_forward
from migrate.reading.facts import facts_of
from migrate.reading.replicas.first_replica import on_first
from migrate.reading.replicas.wrapped import wraps
from migrate.rewrite.rule import Edit, Rule, RuleFinding, left_alone, reported, rewritten
from migrate.rewrite.workspace import Workspace
from migrate.syntax.tree import code


class UnwrappedForward(Rule):
    """Evaluate on the first replica with the model itself, not with DistributedDataParallel around it.

    **What it does.** Below `if rank == 0:` and `with torch.no_grad():`, `model(x)` of a wrapped model becomes
    `model.module(x)`: the wrapper's forward hands the buffers of the first replica to the others, which never
    come to it. On XLA the first replica would wait for them. Without gradients the wrapper does nothing else,
    and the buffers are the first replica's own. A model that is wrapped under a condition becomes
    `(model.module if hasattr(model, "module") else model)(x)`.

    **Left alone.** A forward of all replicas; one with gradients, whose backward pass is for all replicas
    (XLA304 reports it).

    **Reported.** The same below a test that lets another replica pass.

    Source: torch 2.9, `DistributedDataParallel._pre_forward`.
    """

    name = "unwrapped-forward"
    code = "XLA304"
    edited = Severity.WARNING
    nodes = (cst.Call,)
    examples = (
        rewritten(
            """
            import torch
            from torch.nn.parallel import DistributedDataParallel as DDP


            def train(net, rank, loader, rows):
                model = DDP(net.to('xla'), gradient_as_bucket_view=True)
                if rank == 0:
                    with torch.no_grad():
                        for row in rows:
                            print(model(row.to('xla')).mean())
            """,
            """
            import torch
            from torch.nn.parallel import DistributedDataParallel as DDP


            def train(net, rank, loader, rows):
                model = DDP(net.to('xla'), gradient_as_bucket_view=True)
                if rank == 0:
                    with torch.no_grad():
                        for row in rows:
                            print(model.module(row.to('xla')).mean())
            """,
        ),
        rewritten(
            """
            import torch
            from torch.nn.parallel import DistributedDataParallel as DDP


            def train(net, rank, replicas, x):
                model = net.to('xla')
                if replicas > 1:
                    model = DDP(model, gradient_as_bucket_view=True).to('xla')
                if rank == 0 and x is not None:
                    with torch.inference_mode():
                        print(model(x))
            """,
            """
            import torch
            from torch.nn.parallel import DistributedDataParallel as DDP


            def train(net, rank, replicas, x):
                model = net.to('xla')
                if replicas > 1:
                    model = DDP(model, gradient_as_bucket_view=True).to('xla')
                if rank == 0 and x is not None:
                    with torch.no_grad():
                        print((model.module if hasattr(model, "module") else model)(x))
            """,
        ),
        left_alone(
            """
            import torch
            import torch_xla
            from torch.nn.parallel import DistributedDataParallel as DDP


            def train(net, rank, x):
                model = DDP(net.to('xla'), gradient_as_bucket_view=True)
                with torch.no_grad():
                    out = model(x)
                torch_xla.sync()
                if rank == 0:
                    with torch.no_grad():
                        print(out, net(x), model.module(x))
            """
        ),
        reported(
            """
            import torch
            from torch.nn.parallel import DistributedDataParallel as DDP


            def train(net, rank, x):
                model = DDP(net.to('xla'), gradient_as_bucket_view=True)
                if rank == 1:
                    with torch.no_grad():
                        print(model(x))
            """,
            "other replicas do not come to",
        ),
    )

    def find(self, node: cst.CSTNode, context: Workspace) -> Iterable[Edit | RuleFinding]:
        """Yield the edit of one forward, or the finding."""
        assert isinstance(node, cst.Call)
        lone = lone_forward(node, facts_of(context))
        if lone is None or lone.is_unwrapped or not _without_gradients(node, context):
            return
        name, guard = node.func, lone.guard
        if not isinstance(guard, cst.If) or not _is_below(node, guard, context):
            return
        if on_first(guard.test, context) is None:
            message = (
                f"the forward of the wrapped model hands its buffers to all replicas: the other replicas do "
                f"not come to it below `if {code(guard.test)}:`; {code(name)}.module, or all"
            )
            yield from self.report(node, message)
            return
        text = code(name)
        if not any(_always_runs(value, node, context) for value in wraps(name, context)):
            text = f'({text}.module if hasattr({text}, "module") else {text})'
        else:
            text = f"{text}.module"
        message = "the first replica evaluates alone: the wrapper's forward is for all replicas"
        yield self.edit(name, lambda _: cst.parse_expression(text), message)


def _without_gradients(call: cst.Call, context: Workspace) -> bool:
    """Whether `call` stands below `with torch.no_grad():` in its function."""
    for above in context.ancestors(call):
        if isinstance(above, cst.FunctionDef):
            return False
        if isinstance(above, cst.With) and any(
            isinstance(item.item, cst.Call)
            and context.qualified_name(item.item.func) in NO_GRADIENTS
            for item in above.items
        ):
            return True
    return False


def _is_below(node: cst.CSTNode, guard: cst.If, context: Workspace) -> bool:
    """Whether `node` stands in the branch that `guard` lets pass."""
    return any(above is guard.body for above in context.ancestors(node))


def _always_runs(value: cst.CSTNode, before: cst.CSTNode, context: Workspace) -> bool:
    """Whether the statement with `value` runs wherever `before` does: it stands in a block around it."""
    block = context.parent(context.statement_around(value))
    return any(above is block for above in context.ancestors(before))
