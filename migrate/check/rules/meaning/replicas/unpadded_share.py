"""Data divided by hand without padding, where all replicas meet in every turn of the loop over it."""

from __future__ import annotations

from collections.abc import Iterable

import libcst as cst

from migrate.check.hazard import Hazard, Hit, Severity, example
from migrate.model.replicated.uneven_turns import UnevenTurns
from migrate.reading.facts import Facts
from migrate.syntax.origins import at_line


class UnpaddedShare(Hazard):
    """Replicas get different numbers of samples, and meet in every turn of the loop over them.

    **Why.** `indices[rank::world_size]` gives some replicas one sample more, unless the number of samples is
    a multiple of the number of replicas. With one batch more a replica waits forever in the collective of
    its last turn. With a last batch of another size it runs another graph. On GPUs that is fine; on XLA a
    collective is a part of the graph, and replicas that run different graphs with a collective hang. Both
    depend on the number of replicas: data that is even on 8 GPUs may not be even on 32 chips.

    Collectives are an `all_reduce` or a barrier, here or in a function of another file, and the average of
    the gradients in a training step. The buffers that DistributedDataParallel sends do not count: without
    gradients it sends them in the first forward pass alone.

    **What to do.** `DistributedSampler` pads the shares to one length. Or cut the data to a multiple on all
    replicas, `indices[: len(indices) - len(indices) % world_size]`, which drops the same samples everywhere.
    `drop_last=True` alone keeps the sizes equal, not the number of batches: the finding is a warning then.

    **Left alone.** Loops without a collective, which are only compiled once more for the last batch (XLA108);
    data that the file pads or cuts; loops in a `Join` context (XLA316 reports that).

    Source: torch 2.9 and torch_xla 2.9 on simulated replicas: 15 and 17 samples, 2 replicas, batches of 4.
    """

    code = "XLA872"
    name = "unpadded-share"
    severity = Severity.ERROR
    nodes = (
        cst.Call,
        cst.Subscript,
        cst.ListComp,
        cst.SetComp,
        cst.DictComp,
        cst.GeneratorExp,
    )
    of_facts = ("uneven_turns",)
    examples = (
        example(
            """
            import numpy as np
            import torch
            import torch.distributed as dist
            from torch.utils.data import DataLoader, Subset, SubsetRandomSampler


            def evaluate(model, dataset):
                indices = np.arange(dist.get_rank(), len(dataset), dist.get_world_size())  # XLA872
                loader = DataLoader(dataset, batch_size=64, sampler=SubsetRandomSampler(indices))
                for images, labels in loader:
                    correct = (model(images.cuda()).argmax(1) == labels.cuda()).sum()
                    dist.all_reduce(correct)


            def sizes(dataset, rank, world_size):
                mine = Subset(dataset, range(rank, len(dataset), world_size))  # XLA872 warning
                for images in DataLoader(mine, batch_size=64, drop_last=True):
                    dist.all_reduce(images.cuda().sum())


            def files(paths, rank, world_size):
                for path in paths[rank::world_size]:  # XLA872
                    total = torch.load(path).cuda().sum()
                    dist.all_reduce(total)
            """
        ),
        example(
            """
            import numpy as np
            import torch
            import torch.distributed as dist
            from torch.utils.data import DataLoader, DistributedSampler, SubsetRandomSampler


            def evaluate(model, dataset):
                loader = DataLoader(dataset, batch_size=64, sampler=DistributedSampler(dataset))
                for images, labels in loader:
                    correct = (model(images.cuda()).argmax(1) == labels.cuda()).sum()
                    dist.all_reduce(correct)


            def once(model, dataset, rank, world_size):
                indices = np.arange(rank, len(dataset), world_size)
                loader = DataLoader(dataset, batch_size=64, sampler=SubsetRandomSampler(indices))
                correct = torch.zeros(1, device="cuda")
                for images, labels in loader:
                    correct += (model(images.cuda()).argmax(1) == labels.cuda()).sum()
                dist.all_reduce(correct)


            def cut(paths, rank, world_size):
                paths = paths[: len(paths) - len(paths) % world_size]
                for path in paths[rank::world_size]:
                    dist.all_reduce(torch.load(path).cuda())
            """
        ),
    )
    mended = example(
        """
        import torch.distributed as dist
        from torch.utils.data import DataLoader, DistributedSampler


        def evaluate(model, dataset):
            sampler = DistributedSampler(dataset, shuffle=False)
            for images, labels in DataLoader(dataset, batch_size=64, sampler=sampler):
                correct = (model(images.cuda()).argmax(1) == labels.cuda()).sum()
                dist.all_reduce(correct)
        """
    )

    def find(self, node: cst.CSTNode, facts: Facts) -> Iterable[Hit]:
        """Yield one division."""
        known = facts.context.calls.uneven_turns
        turns = known.get(facts.context.place(node)) if known else None
        if turns is None:
            return
        severity = Severity.WARNING if turns.share.drops else None
        yield self.hit(node, _message(turns), severity)


def _message(turns: UnevenTurns) -> str:
    loop = at_line(turns.line, None if turns.path == turns.share.path else turns.path)
    met = f"meet in {turns.meeting} in every turn of the loop of {loop}"
    if turns.share.drops:
        return (
            f"nothing pads this share, and the replicas {met}: with drop_last=True one may still have one "
            "batch more, and waits forever: DistributedSampler pads, or cut the data to a multiple on all"
        )
    if turns.share.batched:
        return (
            f"nothing pads this share, and the replicas {met}: with one batch more a replica waits forever, "
            "and with a last batch of another size it runs another graph, which hangs on XLA: "
            "DistributedSampler pads, or cut the data to a multiple on all"
        )
    return (
        f"nothing pads this share, and the replicas {met}: one with a turn more waits forever: cut the data "
        "to a multiple of the number of replicas on all"
    )
