"""The worker's index is the global ordinal: nothing is added to it."""

from __future__ import annotations

from collections.abc import Iterable

import libcst as cst

from migrate.rewrite.rule import Edit, Rule, RuleFinding, left_alone, reported, rewritten
from migrate.rewrite.rules.ranks.index_sums import added_index, is_rank_increment
from migrate.rewrite.workspace import Workspace
from migrate.syntax.tree import code


class GlobalIndex(Rule):
    """Take the rank of a replica from the index that the worker receives.

    **What it does.** `mp.spawn` counts the processes of one node, so that scripts for several nodes
    compute the rank: `rank = node * gpus + gpu`, `args.rank += gpu`. The index that `torch_xla.launch`
    gives is the global ordinal already: the sum becomes the index.

    **When.** In a launched worker, where its index is added to a product, and the process joins its group
    with the sum as its `rank=`; or where the product is one of a node's number and a number of GPUs, told by
    their names (`args.nr * args.gpus`, `rank * ngpus_per_node`).

    **Left alone.** Other sums, such as a seed (`seed * 1000 + rank`).

    **Reported.** The same sum with other names: look whether it computes the rank.

    Source: torch_xla 2.9, `torch_xla/_internal/pjrt.py`: a worker's index is `xr.global_ordinal()`.
    """

    name = "global-index"
    code = "XLA720"
    nodes = (cst.BinaryOperation, cst.AugAssign)
    examples = (
        rewritten(
            """
            import torch.multiprocessing as mp


            def worker(gpu, args):
                rank = args.node * args.gpus + gpu
                args.rank = args.rank * args.ngpus_per_node + gpu
                args.global_rank += gpu
                print(rank)


            def main(args):
                mp.spawn(worker, args=(args,), nprocs=4)
            """,
            """
            import torch_xla


            def worker(gpu, args):
                rank = gpu
                args.rank = gpu
                args.global_rank = gpu
                print(rank)


            def main(args):
                torch_xla.launch(worker, args=(args,))
            """,
        ),
        rewritten(
            """
            import torch.distributed as dist
            import torch_xla


            def worker(i, a, b):
                place = a * b + i
                dist.init_process_group('xla', init_method='xla://', rank=place)


            if __name__ == '__main__':
                torch_xla.launch(worker, args=(0, 8))
            """,
            """
            import torch.distributed as dist
            import torch_xla


            def worker(i, a, b):
                place = i
                dist.init_process_group('xla', init_method='xla://', rank=place)


            if __name__ == '__main__':
                torch_xla.launch(worker, args=(0, 8))
            """,
        ),
        left_alone(
            """
            import torch_xla


            def worker(rank, args):
                seed = args.seed * 1000 + rank
                total = args.count
                total += rank
                print(seed, total)


            if __name__ == '__main__':
                torch_xla.launch(worker, args=(None,))
            """
        ),
        reported(
            """
            import torch_xla


            def worker(gpu, block, gpus):
                print(block * gpus + gpu)


            if __name__ == '__main__':
                torch_xla.launch(worker, args=(0, 8))
            """,
            "global ordinal",
        ),
    )

    def find(self, node: cst.CSTNode, context: Workspace) -> Iterable[Edit | RuleFinding]:
        """Yield the edit of one sum, or of one `+=`."""
        if isinstance(node, cst.AugAssign):
            if is_rank_increment(node, context):
                yield self.edit(
                    node,
                    lambda updated: cst.Assign(
                        targets=[cst.AssignTarget(updated.target)], value=updated.value
                    ),
                    f"`{code(node)}`: the index is the global ordinal already",
                )
            return
        assert isinstance(node, cst.BinaryOperation)
        added = added_index(node, context)
        if added is None:
            return
        index, certain = added
        if not certain:
            message = (
                f"`{code(node)}`: if this is the rank, `{code(index)}` alone is: the index is the global "
                "ordinal, over all hosts"
            )
            yield from self.report(node, message)
            return
        message = f"`{code(node)}` → `{code(index)}`: the index is the global ordinal already"
        yield self.edit(node, lambda _: index, message, consumes=[node])
