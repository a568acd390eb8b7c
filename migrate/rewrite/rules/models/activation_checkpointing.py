"""Activation checkpointing: recompute in the backward what the forward did not keep."""

from __future__ import annotations

from collections.abc import Iterable

import libcst as cst

from migrate.rewrite.edits.nodes import with_args
from migrate.rewrite.rule import Edit, Finding, Rule, left_alone, reported, rewritten
from migrate.rewrite.workspace import Workspace
from migrate.syntax.tree import code, keyword

CHECKPOINT = "torch.utils.checkpoint.checkpoint"
SEQUENTIAL = "torch.utils.checkpoint.checkpoint_sequential"


class ActivationCheckpointing(Rule):
    """Checkpoint activations with `torch_xla.utils.checkpoint`.

    **What it does.** `torch.utils.checkpoint.checkpoint(block, x)` becomes
    `torch_xla.utils.checkpoint.checkpoint(block, x)`: torch's raises for XLA tensors, and without the
    barrier in torch_xla's the compiler would merge the second forward with the first.

    **Reported.** `use_reentrant=False`: torch_xla has the reentrant form only, in which at least one
    input must require a gradient; where none does, as in the first block over raw data, the parameters
    inside get none. Other options of the form without reentrance, keyword arguments of the function, and
    `checkpoint_sequential`.

    Source: torch 2.9 on torch_xla 2.9 (measured).
    """

    name = "activation-checkpointing"
    code = "XLA808"
    nodes = (cst.Call,)
    words = "checkpoint"
    examples = (
        rewritten(
            """
            import torch.utils.checkpoint as checkpoint


            def forward(blocks, x):
                for block in blocks:
                    x = checkpoint.checkpoint(block, x, use_reentrant=True)
                return x
            """,
            """
            import torch_xla.utils.checkpoint


            def forward(blocks, x):
                for block in blocks:
                    x = torch_xla.utils.checkpoint.checkpoint(block, x, use_reentrant=True)
                return x
            """,
        ),
        left_alone(
            """
            from mylib.checkpoint import checkpoint

            checkpoint(model, 'last.pt')
            """
        ),
        reported(
            """
            from torch.utils.checkpoint import checkpoint


            def forward(block, x):
                return checkpoint(block, x, use_reentrant=False)
            """,
            "one input must require a gradient",
        ),
        reported(
            """
            from torch.utils.checkpoint import checkpoint_sequential


            def forward(blocks, x):
                return checkpoint_sequential(blocks, 4, x, use_reentrant=True)
            """,
            "one block at a time",
        ),
    )

    def find(self, node: cst.CSTNode, context: Workspace) -> Iterable[Edit | Finding]:
        """Yield the edit of one checkpointed call, or why it is left."""
        assert isinstance(node, cst.Call)
        name = context.qualified_name(node.func)
        if name == SEQUENTIAL:
            message = (
                "checkpoint_sequential raises for XLA tensors: call "
                f"{context.vocabulary.say('checkpoint activations')} on one block at a time"
            )
            yield from self.report(node, message)
        if name != CHECKPOINT:
            return
        said = context.vocabulary.say("checkpoint activations")
        if refused := self._refused(node, said, context.portable):
            yield from self.report(node, refused)
            return
        function = context.vocabulary.expression("checkpoint activations")
        reentrant = keyword(node, "use_reentrant") if context.portable else None
        kept = [index for index, arg in enumerate(node.args) if arg is not reentrant]

        def replace(updated: cst.Call) -> cst.Call:
            args = [updated.args[index] for index in kept]
            return with_args(updated, args).with_changes(func=function)

        gone = [] if reentrant is None else [reentrant]
        yield self.edit(node, replace, f"checkpoint → {said}", consumes=[node.func, *gone])

    def _refused(self, call: cst.Call, said: str, portable: bool) -> str | None:
        """Return why the call cannot be the checkpoint `said`, or None."""
        reentrant = keyword(call, "use_reentrant")
        if not portable and reentrant is not None and code(reentrant.value) != "True":
            return (
                f"checkpoint with {code(reentrant.value)} for use_reentrant: torch's raises for XLA "
                f"tensors, and {said} is reentrant only: one input must require a gradient"
            )
        known = {"use_reentrant", "preserve_rng_state"}
        others = [
            arg.keyword.value for arg in call.args if arg.keyword and arg.keyword.value not in known
        ]
        if others or any(arg.star == "**" for arg in call.args):
            what = ", ".join(others) or "** arguments"
            return f"checkpoint with {what}: {said} passes positional arguments only"
        return None
