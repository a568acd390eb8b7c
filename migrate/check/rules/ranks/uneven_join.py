"""The context of DistributedDataParallel in which replicas end at different turns."""

from __future__ import annotations

from collections.abc import Iterable

import libcst as cst

from migrate.check.hazard import Hazard, Hit, Severity, example
from migrate.reading.facts import Facts
from migrate.reading.replicas.wrapped import is_wrapped
from migrate.syntax.tree import last_part, nodes_of


class UnevenJoin(Hazard):
    """A loop runs in DistributedDataParallel's `join`, which XLA does not run.

    **Why.** In `with model.join():` a replica without further batches repeats the collectives of the others.
    On XLA a collective is a part of the graph, and the replica has no graph of theirs: all hang. Where all
    have the same number of batches, the context still ends with a MAX of int64, which the TPU's compiler
    refuses, in the first epoch.

    **What to do.** Give all replicas the same number of batches, with `DistributedSampler` and
    `drop_last=True`, or with a number of steps that all know, and leave the context out.

    Source: torch 2.9, `DistributedDataParallel.join` (measured on two simulated replicas of torch_xla 2.9).
    """

    code = "XLA316"
    name = "uneven-join"
    severity = Severity.ERROR
    nodes = (cst.Attribute,)
    words = "join"
    examples = (
        example(
            """
            from contextlib import ExitStack, nullcontext

            from torch.nn.parallel import DistributedDataParallel


            def train(model, loader, optimizer):
                with model.join():  # XLA316
                    for x, y in loader:
                        loss = model(x.cuda(), y.cuda())
                        loss.backward()
                        optimizer.step()


            def chosen(model, loader, optimizer, wrapped):
                context = model.join if wrapped else nullcontext  # XLA316
                with context():
                    for x in loader:
                        model(x).sum().backward()


            def entered(net, loader):
                model = DistributedDataParallel(net)
                with ExitStack() as stack:
                    stack.enter_context(model.join(enable=True))  # XLA316
                    for x in loader:
                        model(x).sum().backward()
            """
        ),
        example(
            """
            import os
            import threading
            from contextlib import nullcontext


            def train(model, loader, folder, names, thread: threading.Thread, context):
                thread.join()
                join = ", ".join
                with open(os.path.join(folder, join(names))) as file, context():
                    return file.read()
            """
        ),
    )
    mended = example(
        """
        from torch.utils.data import DataLoader, DistributedSampler


        def train(model, dataset, optimizer):
            loader = DataLoader(
                dataset, batch_size=8, sampler=DistributedSampler(dataset), drop_last=True
            )
            for x, y in loader:
                loss = model(x, y)
                loss.backward()
                optimizer.step()
        """
    )

    def find(self, node: cst.CSTNode, facts: Facts) -> Iterable[Hit]:
        """Yield one `model.join`."""
        assert isinstance(node, cst.Attribute)
        if node.attr.value != "join" or facts.names.of(node) is not None:
            return
        if is_wrapped(node.value, facts.context) or _is_entered(node, facts):
            message = (
                "`join` of DistributedDataParallel: a replica without further batches has no graph of the "
                "others, all hang, and its end (a MAX of int64) does not compile for a TPU: give all "
                "replicas the same number of batches, and leave it out"
            )
            yield self.hit(node, message)


def _is_entered(join: cst.Attribute, facts: Facts) -> bool:
    """Whether a `with` statement enters `model.join()`, also by a name for `model.join`."""
    above = facts.context.parent(join)
    if isinstance(above, cst.Call) and above.func is join:
        user = facts.context.parent(above)
        if isinstance(user, cst.Arg):
            call = facts.context.parent(user)
            return isinstance(call, cst.Call) and last_part(call.func) == "enter_context"
        return isinstance(user, cst.WithItem)
    if isinstance(above, cst.IfExp):
        above = facts.context.parent(above)
    if not isinstance(above, cst.Assign) or not isinstance(above.targets[0].target, cst.Name):
        return False
    name = above.targets[0].target.value
    function = facts.context.function_around(join)
    return any(
        isinstance(item.item, cst.Call) and last_part(item.item.func) == name
        for item in nodes_of(function or facts.context.module, cst.WithItem)
    )
