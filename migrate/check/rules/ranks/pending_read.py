"""Hazard of reads, on some replicas only, of a pending result of a collective."""

from __future__ import annotations

from collections.abc import Iterable

import libcst as cst

from migrate.check.hazard import Hazard, Hit, Severity, example
from migrate.reading.collectives.pending import ReadOfPending, pending_of
from migrate.reading.facts import Facts
from migrate.syntax.origins import at_line
from migrate.syntax.tree import code


class PendingReadHazard(Hazard):
    """The result of a collective is read in some replicas only, before the collective has run.

    **Why.** With torch_xla a collective runs when its graph does. `dist.all_reduce(x)` in all replicas and
    `if rank == 0: print(x.item())` after it: the read runs the graph with the collective in the first replica
    alone, and it waits for the others, for ever. With CUDA the collective has been started in all of them.

    **What to do.** `torch_xla.sync()` in all replicas between the two; `migrate rewrite` writes it. Or read
    in all replicas, and put only the printing under the condition. The end of a step, `xm.rendezvous` and
    `xm.save` run what is pending, too.

    A read runs the graph of the tensor that is read and of no other: after `x.sum().item()` in all replicas
    `x` itself still waits. A part of the result by the replica's index, `x[rank * n :]`, is such a read,
    too: the collective is in another graph on each replica. The `compute()` of a metric of torchmetrics is a
    collective. What a function of another file leaves pending
    is a warning: it may have been read there.

    Source: torch_xla 2.9 (measured on two replicas).
    """

    code = "XLA308"
    name = "pending-read"
    severity = Severity.ERROR
    nodes = (cst.Module,)
    examples = (
        example(
            """
            import torch
            import torch.distributed as dist
            import torch_xla.core.xla_model as xm


            def evaluate(correct, total, rank, writer):
                dist.all_reduce(correct)
                accuracy = correct / total
                if rank == 0:
                    writer.add_scalar("accuracy", accuracy)  # XLA308


            def mean(x):
                x = xm.all_reduce("sum", x)
                return x / xm.xrt_world_size()


            def finish(losses, epoch):
                loss = mean(torch.stack(losses))
                if not xm.is_master_ordinal():
                    return
                print(f"epoch {epoch}: {loss.mean():.3f}")  # XLA308


            def share(order, rank, world_size):
                dist.broadcast(order, src=0)
                n = len(order) // world_size
                return order[rank * n : rank * n + n]  # XLA308
            """
        ),
        example(
            """
            import torch_xla
            import torch.distributed as dist
            import torch_xla.core.xla_model as xm


            def evaluate(correct, total, rank):
                dist.all_reduce(correct)
                torch_xla.sync()
                if rank == 0:
                    print(correct.item() / total)


            def by_all(loss, rank):
                dist.all_reduce(loss)
                value = loss.item()
                if rank == 0:
                    print(value, loss.item(), loss.shape)


            def train(model, loader, optimizer, rank):
                for x in loader:
                    with torch_xla.step():
                        loss = model(x.to("xla")).mean()
                        loss.backward()
                        optimizer.step()
                        dist.all_reduce(loss)
                    if rank == 0:
                        print(loss.item())


            def save(mean, path):
                dist.all_reduce(mean)
                xm.save({"mean": mean}, path)
                if xm.is_master_ordinal():
                    print(mean)
            """
        ),
    )
    mended = example(
        """
        import torch
        import torch.distributed as dist
        import torch_xla


        def evaluate(correct, total, rank, writer):
            dist.all_reduce(correct)
            accuracy = correct / total
            torch_xla.sync()
            if rank == 0:
                writer.add_scalar("accuracy", accuracy)
        """
    )

    def find(self, node: cst.CSTNode, facts: Facts) -> Iterable[Hit]:
        """Yield every such read of the script."""
        for read in pending_of(facts).reads():
            severity = Severity.WARNING if read.elsewhere else None
            yield self.hit(read.read, waits_for(read, facts), severity)


def waits_for(read: ReadOfPending, facts: Facts) -> str:
    """Return the message for a read that waits for a collective."""
    call = read.collectives[-1]
    what = f"`{code(call.func)}` ({at_line(facts.context.position(call).line)})"
    to_do = "call torch_xla.sync() on all replicas first"
    if read.elsewhere:
        return (
            f"only some replicas read this: they wait for the others for ever if a collective of {what} is "
            f"still pending; {to_do}"
        )
    if read.by_index:
        return (
            f"each replica takes a part of the result of {what} by its index, while the collective is still "
            f"pending: their graphs differ, and they wait for each other for ever; {to_do}"
        )
    return (
        f"only some replicas read the result of {what} while the collective is still pending: they wait for "
        f"the others for ever; {to_do}"
    )
