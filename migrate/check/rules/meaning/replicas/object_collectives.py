"""Collectives of Python objects raise on XLA."""

from __future__ import annotations

from migrate.check.common import GroupHazard
from migrate.check.hazard import Severity, example


class ObjectCollectives(GroupHazard):
    """Collectives of Python objects raise on XLA.

    **Why.** Objects are sent as byte tensors whose length differs between replicas; the XLA backend
    refuses. The evaluator of faster_coco_eval sends its results so, from tensors of CUDA or of the host.

    **What to do.** A group of the CPU beside the main one: `dist.new_group(backend="gloo")`, passed as
    `group=`.

    Source: torch_xla 2.9, measured; pytorch/xla#5492; faster_coco_eval 1.6.6, 1.8.0, measured.
    """

    code = "XLA811"
    name = "object-collectives"
    severity = Severity.ERROR
    examples = (
        example(
            """
            import torch.distributed as dist


            def collect(rows, out):
                dist.all_gather_object(out, rows)  # XLA811
            """
        ),
        example(
            """
            import torch.distributed as dist
            from faster_coco_eval.utils.pytorch import FasterCocoEvaluator


            class Evaluator(FasterCocoEvaluator):  # XLA811
                pass


            class OverGloo(FasterCocoEvaluator):
                def synchronize_between_processes(self):
                    parts = [None] * dist.get_world_size()
                    group = dist.new_group(backend="gloo")
                    dist.all_gather_object(parts, self.results, group=group)


            def judge(truth):
                return FasterCocoEvaluator(truth, ["bbox"])  # XLA811
            """
        ),
        example(
            """
            import torch.distributed as dist


            def collect(x, out):
                dist.all_gather(out, x)
                dist.all_gather_object(out, 3, group=dist.new_group(backend="gloo"))
            """
        ),
    )
    mended = example(
        """
        import torch.distributed as dist

        gloo = dist.new_group(backend="gloo")


        def collect(rows, out):
            dist.all_gather_object(out, rows, group=gloo)
        """
    )
