"""Page-locked memory is CUDA's: `pin_memory` goes."""

from __future__ import annotations

from collections.abc import Iterable

import libcst as cst

from migrate.rewrite.context import Context
from migrate.rewrite.rule import Edit, Finding, Rule, left_alone, reported, rewritten
from migrate.rewrite.tree import code, keyword, with_args

LOADERS = frozenset({"torch.utils.data.DataLoader", "torch.utils.data.dataloader.DataLoader"})


class PinnedMemory(Rule):
    """Load batches without page-locked memory.

    **Why.** Page-locked memory makes copies to a CUDA device faster. Without one,
    `DataLoader(pin_memory=True)` warns in every process and loads as if it were not there (measured).

    **What it does.** `pin_memory=True` and `pin_memory_device=` go.

    **Reported.** `pin_memory=args.pin_mem`: it can only warn.

    **The last batch.** `drop_last` is left as it is, since it changes which samples are trained on: a
    shorter last batch costs one more compilation.

    Source: torch 2.9, torch_xla 2.9 (measured).
    """

    name = "pinned-memory"
    nodes = (cst.Call,)
    examples = (
        rewritten(
            """
            from torch.utils.data import DataLoader


            def load(dataset, sampler):
                return DataLoader(dataset, batch_size=8, pin_memory=True, sampler=sampler)
            """,
            """
            from torch.utils.data import DataLoader


            def load(dataset, sampler):
                return DataLoader(dataset, batch_size=8, sampler=sampler)
            """,
        ),
        left_alone(
            """
            from loaders import DataLoader


            def load(dataset):
                return DataLoader(dataset, pin_memory=True)
            """
        ),
        reported(
            """
            from torch.utils.data import DataLoader


            def load(dataset, args):
                return DataLoader(dataset, pin_memory=args.pin_mem)
            """,
            "only warns",
        ),
    )

    def find(self, node: cst.CSTNode, context: Context) -> Iterable[Edit | Finding]:
        """Yield the edit of one loader, or the finding."""
        assert isinstance(node, cst.Call)
        pinned = keyword(node, "pin_memory")
        if pinned is None or context.qualified_name(node.func) not in LOADERS:
            return
        if not isinstance(pinned.value, cst.Name) or pinned.value.value != "True":
            if isinstance(pinned.value, cst.Attribute):
                message = f"pin_memory={code(pinned.value)} only warns on XLA: False is right"
                yield from self.report(node, message)
            return
        device = keyword(node, "pin_memory_device")
        gone = [i for i, arg in enumerate(node.args) if arg is pinned or arg is device]

        def replace(updated: cst.Call) -> cst.Call:
            args = [arg for index, arg in enumerate(updated.args) if index not in gone]
            return with_args(updated, args)

        yield self.edit(node, replace, "pin_memory=True goes: it is for CUDA", consumes=[pinned])
