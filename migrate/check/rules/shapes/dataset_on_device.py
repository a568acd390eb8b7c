"""A data set whose samples are taken from tensors on the device."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

import libcst as cst

from migrate.check.hazard import Hazard, Hit, Severity, example
from migrate.reading.facts import Facts
from migrate.syntax.tree import keyword

TENSOR_DATASETS = frozenset({"torch.utils.data.TensorDataset", "torch.utils.data.StackDataset"})


class DatasetOnDevice(Hazard):
    """A data set takes its samples from tensors on the device.

    **Why.** The loader asks for one sample after another, `x[17]`, and stacks them. On XLA each index is a
    constant of a graph, so that every batch compiles a new graph. On a GPU the same saves the transfer.

    **What to do.** Keep the data set on the CPU and move each batch. Data that has to stay on the device is
    taken by a tensor of indices: `x[torch.randint(len(x), (64,), device=x.device)]` is one graph.

    Source: torch_xla 2.9 (measured: `TensorDataset` of tensors on the device compiles once for each batch).
    """

    code = "XLA114"
    name = "dataset-on-device"
    severity = Severity.WARNING
    nodes = (cst.Call, cst.FunctionDef)
    words = r"TensorDataset|StackDataset|__getitem__"
    examples = (
        example(
            """
            import torch
            from torch.utils.data import DataLoader, Dataset, TensorDataset


            class Rows(Dataset):
                def __init__(self, x, y):
                    self.x = x.cuda()
                    self.y = y

                def __getitem__(self, i):
                    return self.x[i], self.y[i]  # XLA114


            def loaders(x, y):
                x = x.cuda()
                return DataLoader(TensorDataset(x, y.cuda())), DataLoader(Rows(x, y))  # XLA114
            """
        ),
        example(
            """
            import torch
            from torch.utils.data import DataLoader, TensorDataset

            torch.set_default_device("cuda")
            x = torch.randn(64, 16)
            loader = DataLoader(TensorDataset(x, torch.zeros(64)), batch_size=8)  # XLA114
            """
        ),
        example(
            """
            import torch
            from torch.utils.data import DataLoader, Dataset, TensorDataset


            class Rows(Dataset):
                def __init__(self, x, device):
                    self.x = x
                    self.mean = x.mean(0).to(device)

                def __getitem__(self, i):
                    return self.x[i]


            def train(x, y, model, optimizer):
                for a, b in DataLoader(TensorDataset(x, y)):
                    model(a.cuda(), b.cuda()).backward()
                    optimizer.step()
                x = x.cuda()
                return model(x[torch.randint(len(x), (64,), device="cuda")], y.cuda())
            """
        ),
    )
    mended = example(
        """
        import torch
        from torch.utils.data import DataLoader, Dataset, TensorDataset


        class Rows(Dataset):
            def __init__(self, x, y):
                self.x = x
                self.y = y

            def __getitem__(self, i):
                return self.x[i], self.y[i]


        def loaders(x, y):
            return DataLoader(TensorDataset(x, y)), DataLoader(Rows(x, y))
        """
    )

    def find(self, node: cst.CSTNode, facts: Facts) -> Iterable[Hit]:
        """Yield one data set of tensors, or the first sample that a data set takes from the device."""
        message = (
            "each sample is an index into a tensor on the device, a constant of the graph: every batch "
            "compiles again; keep the data on the CPU and move each batch"
        )
        if isinstance(node, cst.Call):
            if facts.names.of(node.func) in TENSOR_DATASETS and any(
                _is_on_device(arg.value, facts) for arg in node.args if not arg.star
            ):
                yield self.hit(node, message)
        elif isinstance(node, cst.FunctionDef) and node.name.value == "__getitem__":
            at = next(_taken(node, facts), None)
            if at is not None and _is_dataset(node, facts):
                yield self.hit(at, message)


def _is_on_device(value: cst.BaseExpression, facts: Facts) -> bool:
    """Whether `value` is a tensor on the device, also if it is created there by default."""
    if facts.values.on_device(value):
        return True
    if isinstance(value, cst.Name):
        assignment = facts.bindings.nearest(value)
        origin = assignment.value if assignment is not None else None
    else:
        origin = value
    if not isinstance(origin, cst.Call) or not (facts.names.of(origin.func) or "").startswith(
        "torch."
    ):
        return False
    named = keyword(origin, "device") is not None
    return facts.context.devices.by_default and not named and not facts.values.is_surely_cpu(origin)


def _taken(function: cst.FunctionDef, facts: Facts) -> Iterator[cst.Subscript]:
    """Yield where `function` indexes a tensor on the device by the index that it is given."""
    names = {parameter.name.value for parameter in function.params.params[1:2]}
    for taken in facts.below(function.body, cst.Subscript):
        index = taken.slice[0].slice
        if not isinstance(index, cst.Index) or not facts.values.on_device(taken.value):
            continue
        if any(name.value in names for name in facts.below(index.value, cst.Name)):
            yield taken


def _is_dataset(function: cst.FunctionDef, facts: Facts) -> bool:
    """Whether the class around `function` is a data set, or a loader of the script is given it."""
    around = facts.context.class_around(function)
    names = [facts.names.of(base.value) or "" for base in around.bases] if around else []
    if around is None or any(name.startswith("torch.utils.data.") for name in names):
        return around is not None
    return around.name.value.endswith("Dataset")
