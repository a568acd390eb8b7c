"""A sparse gradient, or a sparse tensor."""

from __future__ import annotations

from collections.abc import Iterable

import libcst as cst

from migrate.catalogue.target import BOTH, TPU
from migrate.check.common import NamedHazard, method, receiver
from migrate.check.hazard import Hit, Severity, example
from migrate.check.reads import lies_on_device
from migrate.reading.facts import Facts
from migrate.reading.names.parsed import Parsed
from migrate.syntax.tree import code, keyword

EMBEDDINGS = frozenset(
    {
        "torch.nn.Embedding",
        "torch.nn.Embedding.from_pretrained",
        "torch.nn.functional.embedding",
        "torch.nn.modules.sparse.Embedding",
    }
)
# Methods of a tensor that make a sparse one of it.
TO_SPARSE = frozenset(
    {"to_sparse", "to_sparse_coo", "to_sparse_csr", "to_sparse_csc", "to_sparse_bsr"}
)
MAKERS = frozenset(
    f"torch.sparse_{kind}_tensor" for kind in ("bsr", "compressed", "coo", "csc", "csr")
)
TO_SPARSE_GRAPH = "torch_geometric.transforms.ToSparseTensor"
NO_SPARSE = (
    "a sparse tensor, of which XLA has none: it raises; compute with the dense one, or on the host"
)
POSITION = 6  # of `sparse` among the arguments of each
MESSAGE = (
    "the gradient of the embedding is a sparse tensor, which XLA has not: loss.backward() raises; leave "
    "sparse=True out, and take Adam for SparseAdam"
)
# Measured on XLA:CPU, torch_tpu 0.2.0: SGD steps; `coalesce`, Adagrad and SparseAdam abort; `norm` raises.
ON_TORCH_TPU = (
    "the gradient of the embedding is a sparse tensor, of which torch_tpu has few operators: SparseAdam and "
    "Adagrad end the process, clipping raises, SGD works; leave sparse=True out, and take Adam for SparseAdam"
)
FEW = "a sparse tensor, of which torch_tpu has few operators; compute with the dense one, or on the host"


class SparseGradients(NamedHazard):
    """An embedding has sparse gradients, or a tensor of the device is sparse.

    **Why.** `sparse=True` makes the gradient of an embedding a sparse tensor, and there are none on XLA:
    `backward` raises a NotImplementedError (`aten::_sparse_coo_tensor_with_dims_and_tensors`).
    `torch.optim.SparseAdam` in turn refuses the dense gradients that XLA has.

    **What to do.** Leave `sparse=True` out, and train the embedding with `torch.optim.Adam` or
    `torch.optim.SGD`. Adam then moves the rows that are in no batch too, where their moments are not zero:
    the losses are not exactly those of SparseAdam.

    A sparse tensor is refused in the same way: `to_sparse()` of a tensor of the device, `torch.sparse.mm`,
    `torch.sparse_coo_tensor(…, device="xla")`, what `ToSparseTensor()` of torch_geometric makes. On the host
    they work: move the dense result.

    `nn.EmbeddingBag(sparse=True)` runs: on XLA its gradient is dense all the same.

    Source: torch 2.9, torch_xla 2.9, torch_tpu 0.2.0, measured.
    """

    code = "XLA606"
    name = "sparse-gradients"
    severity = Severity.ERROR
    targets = BOTH
    on_torch_tpu = (
        "Sparse gradients are made; SparseAdam, Adagrad and `coalesce` end the process with an abort of the "
        "compiler (on XLA:CPU), `norm` and `to_sparse` raise. SGD works."
    )
    nodes = (cst.Name, cst.Attribute, cst.Call)
    words = r"[Ee]mbedding|[Ss]parse"
    examples = (
        example(
            """
            import torch
            import torch.nn.functional as F
            from torch import nn

            users = nn.Embedding(1000, 8, sparse=True)  # XLA606
            items = nn.Embedding(1000, 8, None, None, 2.0, False, True)  # XLA606
            known = nn.Embedding.from_pretrained(table, freeze=False, sparse=True)  # XLA606
            optimizer = torch.optim.SparseAdam(users.parameters())  # XLA606


            def look_up(ids, weight, sparse: bool):
                return F.embedding(ids, weight, sparse=sparse)  # XLA606 info
            """
        ),
        example(
            """
            import torch
            import torch_geometric.transforms as T

            READY = T.Compose([T.ToDevice("cuda"), T.ToSparseTensor()])  # XLA606


            class Graph(torch.nn.Module):
                def __init__(self, edges):
                    super().__init__()
                    self.near = torch.sparse_coo_tensor(edges, torch.ones(4), (8, 8)).to_dense()

                def forward(self, x):
                    near = torch.sparse_coo_tensor(x, x, device="cuda")  # XLA606
                    return torch.sparse.mm(near, x) + x.to_sparse()  # XLA606 # XLA606
            """
        ),
        example(
            """
            from torch import nn
            from layers import Embedding

            users = nn.Embedding(1000, 8, sparse=False)
            items = Embedding(1000, 8, sparse=True)
            bag = nn.EmbeddingBag(1000, 8, sparse=True)
            """
        ),
    )
    mended = example(
        """
        import torch
        from torch import nn

        users = nn.Embedding(1000, 8)
        optimizer = torch.optim.Adam(users.parameters())
        """
    )

    def find(self, node: cst.CSTNode, facts: Facts) -> Iterable[Hit]:
        """Yield one embedding that is made or looked up in, or one optimizer."""
        if not isinstance(node, cst.Call):
            yield from super().find(node, facts)
            return
        if _is_sparse(node, facts):
            said = FEW if facts.target == TPU else NO_SPARSE
            yield self.hit(node, f"{code(node.func)}: {said}")
            return
        value = sparse_argument(node, facts.context)
        if value is None or code(value) in ("False", "0", "None"):
            return
        sure = code(value) in ("True", "1")
        said = ON_TORCH_TPU if facts.target == TPU else MESSAGE
        message = said if sure else f"where sparse={code(value)} is true, {said}"
        yield self.hit(value, message, None if sure else Severity.INFO)


def _is_sparse(call: cst.Call, facts: Facts) -> bool:
    """Whether `call` makes a sparse tensor on the device, or computes with one and tensors of the device."""
    name = facts.names.of(call.func)
    if name == TO_SPARSE_GRAPH:
        return True
    if name in MAKERS:
        return facts.values.on_device(call)
    if name is None and method(call) in TO_SPARSE:
        values = [receiver(call)]
    elif name is not None and name.startswith("torch.sparse."):
        values = [arg.value for arg in call.args]
    else:
        return False
    return any(lies_on_device(value, facts) for value in values)


def sparse_argument(call: cst.Call, context: Parsed) -> cst.BaseExpression | None:
    """Return what an embedding is given as `sparse`, or None if it is given none."""
    name = context.qualified_name(call.func)
    if name not in EMBEDDINGS:
        return None
    named = keyword(call, "sparse")
    if named is not None:
        return named.value
    plain = call.args[: POSITION + 1]
    if len(plain) > POSITION and not any(arg.star or arg.keyword for arg in plain):
        return plain[POSITION].value
    return None
