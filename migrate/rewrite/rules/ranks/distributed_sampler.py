"""Samplers share the data out among the replicas that there are."""

from __future__ import annotations

from collections.abc import Iterable

import libcst as cst

from migrate.catalogue.prescan import named
from migrate.rewrite.edits.nodes import argument
from migrate.rewrite.rule import Edit, Rule, RuleFinding, left_alone, reported, rewritten
from migrate.rewrite.rules.ranks.sampler_counts import PARAMETERS, SAMPLERS, own_count
from migrate.rewrite.workspace import Workspace
from migrate.syntax.tree import bind, code, keyword


class DistributedSampler(Rule):
    """Tell a sampler how many replicas there are.

    **Why.** A TPU decides how many replicas run. A `DistributedSampler` that is told 2 of 8 gives several
    replicas the same samples, or raises, where the rank is not below the number.

    **What it does.** A number of the script's own becomes `xr.world_size()`: a literal, a name for one, a
    count of GPUs, an option such as `args.world_size` that nothing sets from the process group.

    **Left alone.** `dist.get_world_size()`; WORLD_SIZE of the environment, which the launcher of the
    rewritten script sets; what a launched worker asks for itself; `num_replicas=1`, with which every
    replica sees all samples; a number of which the file does not show what it is. `set_epoch` and
    `drop_last` stay: a shorter last batch costs one more compilation, of which `migrate check` speaks
    (XLA108), and leaving it out would change what is trained on.

    **Reported.** A fixed rank beside a fixed number: every replica would get the same share. A fixed number
    for a sampler that is not PyTorch's.

    Source: torch 2.9, `torch/utils/data/distributed.py`.
    """

    name = "distributed-sampler"
    code = "XLA849"
    nodes = (cst.Call,)
    words = named(SAMPLERS) + "|num_replicas"
    examples = (
        rewritten(
            """
            import torch
            import torch.distributed as dist
            from torch.utils.data import DistributedSampler as Shared

            REPLICAS = 4


            def loaders(dataset):
                rank = dist.get_rank()
                train = Shared(dataset, num_replicas=REPLICAS, rank=rank, shuffle=True)
                test = torch.utils.data.distributed.DistributedSampler(dataset, 2, rank)
                return train, test, Shared(dataset, num_replicas=torch.cuda.device_count())
            """,
            """
            import torch
            import torch.distributed as dist
            import torch_xla.runtime as xr
            from torch.utils.data import DistributedSampler as Shared

            REPLICAS = 4


            def loaders(dataset):
                rank = dist.get_rank()
                train = Shared(dataset, num_replicas=xr.world_size(), rank=rank, shuffle=True)
                test = torch.utils.data.distributed.DistributedSampler(dataset, xr.world_size(), rank)
                return train, test, Shared(dataset, num_replicas=xr.world_size())
            """,
        ),
        rewritten(
            """
            import argparse

            import torch.distributed as dist
            from torch.utils.data import DistributedSampler

            parser = argparse.ArgumentParser()
            parser.add_argument("--world-size", default=1, type=int)


            def sampler(dataset, args):
                return DistributedSampler(dataset, num_replicas=args.world_size, rank=dist.get_rank())
            """,
            """
            import argparse

            import torch.distributed as dist
            import torch_xla.runtime as xr
            from torch.utils.data import DistributedSampler

            parser = argparse.ArgumentParser()
            parser.add_argument("--world-size", default=1, type=int)


            def sampler(dataset, args):
                return DistributedSampler(dataset, num_replicas=xr.world_size(), rank=dist.get_rank())
            """,
        ),
        left_alone(
            """
            import os

            import torch.distributed as dist
            from samplers import DistributedSampler as Other
            from torch.utils.data import DistributedSampler


            def join(args):
                args.world_size = int(os.environ["WORLD_SIZE"])
                os.environ["WORLD_SIZE"] = str(args.world_size)


            def samplers(dataset, args, tasks):
                count = dist.get_world_size()
                yield DistributedSampler(dataset, num_replicas=args.world_size, rank=args.rank)
                yield DistributedSampler(dataset, num_replicas=count, rank=dist.get_rank())
                yield DistributedSampler(dataset, num_replicas=tasks)
                yield DistributedSampler(dataset, num_replicas=1, rank=0)
                yield Other(dataset, num_replicas=count)
            """
        ),
        reported(
            """
            from torch.utils.data import DistributedSampler


            def share(dataset):
                return DistributedSampler(dataset, num_replicas=4, rank=3)
            """,
            "the same share",
        ),
        reported(
            """
            from samplers import RepeatingSampler


            def share(dataset, rank):
                return RepeatingSampler(dataset, num_replicas=4, rank=rank)
            """,
            "torch_xla.runtime.world_size()",
        ),
    )

    def find(self, node: cst.CSTNode, context: Workspace) -> Iterable[Edit | RuleFinding]:
        """Yield the edit of one sampler, or the finding."""
        assert isinstance(node, cst.Call)
        if context.qualified_name(node.func) not in SAMPLERS:
            fixed = keyword(node, "num_replicas")
            if fixed is not None and _is_number(fixed.value) and code(fixed.value) != "1":
                message = (
                    f"{code(fixed)}: there are as many replicas as the TPU has devices, "
                    f"{context.vocabulary.say('world size')}"
                )
                yield from self.report(node, message)
            return
        count = own_count(node, context)
        if count is None:
            return
        rank = (bind(node, PARAMETERS) or {}).get("rank")
        if rank is not None and _is_number(rank.value):
            message = (
                f"{code(node)}: every replica gets the same share of the data; rank="
                f"{context.vocabulary.say('rank')} of {context.vocabulary.say('world size')}"
            )
            yield from self.report(node, message)
            return
        asked = context.vocabulary.expression("world size")
        yield self.edit(
            count,
            lambda updated: updated.with_changes(value=asked),
            f"{argument(count)} → as many replicas as there are",
            consumes=[count],
        )


def _is_number(value: cst.BaseExpression) -> bool:
    return isinstance(value, cst.Integer)
