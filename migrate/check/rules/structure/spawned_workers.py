"""Samples of worker processes that cannot be pickled."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

import libcst as cst

from migrate.catalogue.launchers import LAUNCHERS
from migrate.check.hazard import Hazard, Hit, Severity, example
from migrate.check.rules.structure.worker_function import has_no_name
from migrate.reading.facts import Facts
from migrate.reading.replicas.launch import is_forked, stays_in_process
from migrate.syntax.tree import bind, code, last_part, string_value

LOADER = "torch.utils.data.DataLoader"
PARAMETERS = (
    *("dataset", "batch_size", "shuffle", "sampler", "batch_sampler", "num_workers", "collate_fn"),
    *("pin_memory", "drop_last", "timeout", "worker_init_fn", "multiprocessing_context"),
)
SENT = ("dataset", "collate_fn", "worker_init_fn")  # what each worker process receives
DEEPEST = 8


class SpawnedWorkers(Hazard):
    """Worker processes of a DataLoader in a replica get what cannot be pickled.

    **Why.** A process that torchrun starts forks its workers: they have all objects without a copy. A replica
    of `torch_xla.launch` is itself spawned, and Python lets what it starts be spawned, too. The data set and
    the functions of the loader are then pickled, and a lambda, a function or a class inside of a function
    raises at the first batch: "Can't pickle local object".

    **What to do.** Define it at module level, or fork the workers: `DataLoader(…,
    multiprocessing_context="fork")` where `num_workers` is above 0.

    Source: torch_xla 2.9, `_internal/pjrt.py`, and Python's `multiprocessing.spawn.prepare` (measured).
    """

    code = "XLA851"
    name = "spawned-workers"
    severity = Severity.ERROR
    nodes = (cst.Call,)
    words = "DataLoader"
    examples = (
        example(
            """
            import torch
            import torch_xla
            from torch.utils.data import DataLoader, Dataset
            from torchvision import transforms


            class Rows(Dataset):
                def __init__(self, transform):
                    self.transform = transform

                def __getitem__(self, index):
                    return self.transform(index)


            def read(folder, transform):
                return Rows(transform)


            def worker(index, size, folder):
                def cut(row):
                    return row[:size]

                class Cut(Rows):
                    pass

                steps = transforms.Compose([transforms.ToTensor(), transforms.Lambda(lambda x: 2 * x)])
                rows = Rows(cut)
                loaders = [
                    DataLoader(Rows(lambda row: row[:size]), num_workers=2),  # XLA851
                    DataLoader(rows, num_workers=size),  # XLA851
                    DataLoader(Rows(steps), num_workers=2),  # XLA851
                    DataLoader(Cut(int), num_workers=2),  # XLA851
                    DataLoader(read(folder, transform=steps), num_workers=2),  # XLA851
                    DataLoader(Rows(int), 8, True, None, None, 2, lambda rows: rows),  # XLA851
                    DataLoader(Rows(int), num_workers=2, worker_init_fn=lambda index: None),  # XLA851
                ]
                return loaders


            if __name__ == "__main__":
                torch_xla.launch(worker, args=(8, "data"))
            """
        ),
        example(
            """
            import torch
            import torch_xla
            from torch.utils.data import DataLoader, Dataset


            class Rows(Dataset):
                def __init__(self, transform):
                    self.transform = transform

                def __getitem__(self, index):
                    return self.transform(index)


            def double(x):
                return 2 * x


            def worker(index, count, read):
                rows = Rows(lambda row: row)
                numbers = sorted(range(8), key=lambda i: -i)
                return [
                    DataLoader(Rows(double), num_workers=2, sampler=numbers),
                    DataLoader(rows),
                    DataLoader(rows, num_workers=0),
                    DataLoader(read().map(lambda row: row), num_workers=2),
                    DataLoader(rows, num_workers=2, multiprocessing_context="fork"),
                ]


            if __name__ == "__main__":
                torch_xla.launch(worker, args=(8,))
            """
        ),
        example(
            """
            from torch.utils.data import DataLoader


            def loader(rows):
                return DataLoader(rows, num_workers=2, collate_fn=lambda rows: rows)
            """
        ),
    )
    mended = example(
        """
        import torch_xla
        from torch.utils.data import DataLoader


        def keep(rows):
            return rows


        def worker(index):
            return DataLoader(range(8), num_workers=2, collate_fn=keep)


        if __name__ == "__main__":
            torch_xla.launch(worker)
        """
    )

    def find(self, node: cst.CSTNode, facts: Facts) -> Iterable[Hit]:
        """Yield one loader."""
        assert isinstance(node, cst.Call)
        if facts.names.of(node.func) != LOADER or not _are_spawned(facts):
            return
        bound = bind(node, PARAMETERS) or {}
        workers = bound.get("num_workers")
        if workers is None or code(workers.value) == "0":
            return
        context = bound.get("multiprocessing_context")
        if context is not None and string_value(context.value) != "spawn":
            return
        for name in SENT:
            value = bound[name].value if name in bound else None
            for part in _nameless(value, node, facts, DEEPEST):
                what = "a lambda" if isinstance(part, cst.Lambda) else f"`{code(part)}`"
                message = (
                    f"the workers of this loader are spawned in a replica of torch_xla.launch, and {what} in "
                    f"`{name}` cannot be pickled: define it at module level, or give the loader "
                    'multiprocessing_context="fork" where it has workers'
                )
                yield self.hit(node, message)
                return


def _are_spawned(facts: Facts) -> bool:
    """Whether the script runs in replicas that are spawned."""
    context = facts.context
    launches = [
        call for call in context.all_of(cst.Call) if context.qualified_name(call.func) in LAUNCHERS
    ]
    if launches:
        return not any(is_forked(c, context) or stays_in_process(c, context) for c in launches)
    return context.calls.replicated and context.calls.imported


def _nameless(
    value: cst.CSTNode | None, loader: cst.Call, facts: Facts, depth: int
) -> Iterator[cst.BaseExpression]:
    """Yield what no module has by name among the parts of `value`, also through variables."""
    if value is None or depth == 0:
        return
    if isinstance(value, cst.Lambda):
        yield value
    elif isinstance(value, cst.Name):
        if has_no_name(value, loader, facts) or _is_local_class(value, facts):
            yield value
            return
        binding = facts.values.bindings.nearest(value)
        if binding is not None:
            yield from _nameless(binding.value, loader, facts, depth - 1)
    elif isinstance(value, cst.Call):
        if isinstance(value.func, cst.Name) and _is_local_class(value.func, facts):
            yield value.func
            return
        for arg in value.args:
            # `build(transform=steps)` keeps an object; `rows.map(lambda row: …)` runs the function at once.
            if _keeps_arguments(value) or _is_made(arg.value, facts):
                yield from _nameless(arg.value, loader, facts, depth - 1)
    elif isinstance(value, cst.List | cst.Tuple):
        for element in value.elements:
            yield from _nameless(element.value, loader, facts, depth - 1)


def _is_local_class(name: cst.Name, facts: Facts) -> bool:
    """Whether `name` is a class that a function defines."""
    return any(
        isinstance(binding.node, cst.ClassDef)
        and facts.context.function_around(binding.node) is not None
        for binding in facts.context.bindings(name)
    )


def _keeps_arguments(call: cst.Call) -> bool:
    """Whether what `call` makes holds its arguments: a class by its capital letter, or `partial`."""
    last = last_part(call.func)
    return last[:1].isupper() or last == "partial"


def _is_made(value: cst.BaseExpression, facts: Facts) -> bool:
    """Whether `value` is an object that keeps its arguments, also as a variable."""
    if isinstance(value, cst.Name):
        binding = facts.values.bindings.nearest(value)
        value = binding.value if binding is not None else value  # type: ignore[assignment]
    return isinstance(value, cst.Call) and _keeps_arguments(value)
