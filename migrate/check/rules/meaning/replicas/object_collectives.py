"""Collectives of Python objects raise on XLA."""

from __future__ import annotations

from collections.abc import Iterable

import libcst as cst

from migrate.check.common import GroupHazard, is_a_type
from migrate.check.hazard import Hit, Severity, example
from migrate.reading.catalogue import catalogue
from migrate.reading.facts import Facts

# The module of a library whose evaluator gathers results by a collective of its own.
EVALUATORS = "faster_coco_eval"
GATHERS = "synchronize_between_processes"


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

    def find(self, node: cst.CSTNode, facts: Facts) -> Iterable[Hit]:
        """Yield the use of one name; of an evaluator, where the results of several replicas meet in it."""
        name = facts.names.of(node) or ""
        if not name.startswith(EVALUATORS):
            yield from super().find(node, facts)
            return
        entry = catalogue.of_import(name)
        if entry is not None and entry.code == self.code and _meets(node, facts):
            yield self.hit(node, f"{name}: {entry.says()}")


def _meets(node: cst.CSTNode, facts: Facts) -> bool:
    """Whether the evaluator `node` is that of several replicas, and gathers by itself."""
    arg = facts.context.parent(node)
    made = facts.context.parent(arg)
    overrides = (
        isinstance(made, cst.ClassDef)
        and any(arg is base for base in made.bases)
        and any(
            isinstance(method, cst.FunctionDef) and method.name.value == GATHERS
            for method in made.body.body
        )
    )
    replicated = facts.context.calls.replicated or "shims" in facts.names.roots
    return replicated and not overrides and not is_a_type(node, facts)
