"""faiss is used on GPUs."""

from __future__ import annotations

import re
from collections.abc import Iterable

import libcst as cst

from migrate.catalogue.target import BOTH
from migrate.check.common import is_a_type
from migrate.check.hazard import Hazard, Hit, Severity, example
from migrate.check.only_cuda import only_with_cuda
from migrate.reading.facts import Facts
from migrate.syntax.tree import nodes_of

COUNT = "faiss.get_num_gpus"
ON_GPUS = re.compile(
    r"faiss\.(\w+\.)*(Gpu\w+|StandardGpuResources|ToGpu\w+|bfKnn\w*|index_cpu_to_(all_)?gpus?(_\w+)?"
    r"|index_gpu_to_cpu|knn_gpu|pairwise_distance_gpu)"
)


class FaissGpu(Hazard):
    """faiss is used on GPUs.

    **Why.** A TPU host has no GPU, and the package of faiss that can be installed there, `faiss-cpu`, has
    none of the classes: `faiss.StandardGpuResources()` and `faiss.GpuIndexFlatL2(…)` raise
    `AttributeError`, `index_cpu_to_all_gpus` and `knn_gpu` a `NameError`.

    **What to do.** The index on the CPU, as it is made before it goes to the GPUs. What is behind
    `if faiss.get_num_gpus() > 0` does not run on a TPU host and may stay.

    Source: faiss-cpu 1.15.1 (measured).
    """

    code = "XLA417"
    name = "faiss-gpu"
    severity = Severity.ERROR
    targets = BOTH
    words = "faiss"
    nodes = (cst.Name, cst.Attribute)
    of_names = True
    examples = (
        example(
            """
            import faiss
            from faiss import StandardGpuResources


            def search(vectors, queries):
                index = faiss.IndexFlatIP(vectors.shape[1])
                options = faiss.GpuMultipleClonerOptions()  # XLA417
                index = faiss.index_cpu_to_all_gpus(index, co=options)  # XLA417
                index.add(vectors)
                return index.search(queries, 5)


            def cluster(vectors):
                resources = StandardGpuResources()  # XLA417
                return faiss.GpuIndexFlatL2(resources, 8)  # XLA417
            """
        ),
        example(
            """
            import faiss


            def search(vectors, queries):
                index = faiss.IndexFlatIP(vectors.shape[1])
                if faiss.get_num_gpus() > 0:
                    index = faiss.index_cpu_to_all_gpus(index)
                index.add(vectors)
                return index.search(queries, 5)
            """
        ),
    )
    mended = example(
        """
        import faiss


        def search(vectors, queries):
            index = faiss.IndexFlatIP(vectors.shape[1])
            index.add(vectors)
            return index.search(queries, 5)
        """
    )

    def find(self, node: cst.CSTNode, facts: Facts) -> Iterable[Hit]:
        """Yield one use of a name."""
        name = facts.names.of(node)
        if name is None or ON_GPUS.fullmatch(name) is None or is_a_type(node, facts):
            return
        if not _counts_gpus(node, facts):
            severity = Severity.INFO if only_with_cuda(node, facts) else self.severity
            yield self.hit(
                node, f"{name} raises without a GPU: search the index on the CPU", severity
            )


def _counts_gpus(node: cst.CSTNode, facts: Facts) -> bool:
    """Whether `node` runs only where faiss has counted a GPU."""
    below = node
    for above in facts.context.ancestors(node):
        if isinstance(above, cst.If | cst.IfExp) and below is above.body:
            calls = nodes_of(above.test, cst.Call)
            if any(facts.names.of(call.func) == COUNT for call in calls):
                return True
        below = above
    return False
