"""timm's loader of images, which sends the batches to CUDA by itself."""

from __future__ import annotations

from collections.abc import Iterable

import libcst as cst

from migrate.reading.tree.prescan import spelled
from migrate.reading.tree.tree import code, keyword
from migrate.rewrite.rule import Finding, Rule, Safety, left_alone, reported
from migrate.rewrite.workspace import Workspace

MAKERS = frozenset(
    {
        "timm.data.create_loader",
        "timm.data.loader.create_loader",
        "timm.data.PrefetchLoader",
        "timm.data.loader.PrefetchLoader",
    }
)


class TimmLoader(Rule):
    """Report a loader of timm's that sends the batches to CUDA.

    **Why.** `timm.data.create_loader` puts a prefetcher around its DataLoader, unless `use_prefetcher=False`.
    That moves the batches to CUDA and normalises them there; where there is no GPU, making it raises "Found
    no NVIDIA driver".

    **Reported.** One that is given no `device=`. timm before 0.6 knows none; `use_prefetcher=False`
    (`--no-prefetcher` in timm's own scripts) is right for each version: the transform normalises then, and
    the script's loop has to move the batches.

    Source: timm 1.0.31 (measured: with `device=torch.device('xla')` the batches arrive on the device).
    """

    name = "timm-loader"
    safety = Safety.REPORT_ONLY
    nodes = (cst.Call,)
    words = spelled(MAKERS)
    examples = (
        reported(
            """
            from timm.data import create_loader


            def load(dataset, args):
                return create_loader(dataset, batch_size=8, use_prefetcher=args.prefetcher)
            """,
            "use_prefetcher=False",
        ),
        left_alone(
            """
            from timm.data import create_loader


            def load(dataset, device):
                yield create_loader(dataset, batch_size=8, use_prefetcher=False)
                yield create_loader(dataset, batch_size=8, device=device)
            """
        ),
    )

    def find(self, node: cst.CSTNode, context: Workspace) -> Iterable[Finding]:
        """Yield the finding for one loader."""
        assert isinstance(node, cst.Call)
        if context.qualified_name(node.func) not in MAKERS:
            return
        prefetches = keyword(node, "use_prefetcher")
        off = prefetches is not None and code(prefetches.value) == "False"
        if off or keyword(node, "device") is not None or any(arg.star for arg in node.args):
            return
        device = "shims.device()" if context.portable else "torch.device('xla')"
        yield from self.report(
            node,
            f"timm's prefetcher sends the batches to CUDA: device={device} (timm 0.6 and newer), or "
            "use_prefetcher=False and move them in the loop",
        )
