"""Make the result of a collective ready before some of the replicas read it."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import libcst as cst

from migrate.check.rules.ranks.pending_read import waits_for
from migrate.reading.collectives.pending import Pending, ReadOfPending, pending_of
from migrate.reading.facts import facts_of
from migrate.rewrite.rule import Edit, Rule, RuleFinding, left_alone, reported, rewritten
from migrate.rewrite.workspace import Workspace
from migrate.syntax.tree import code


class CollectiveSync(Rule):
    """Run a collective before some replicas alone read its result.

    **Why.** With CUDA `dist.all_reduce(x)` has been started in all replicas when the next line runs. On XLA
    it runs with its graph. Where then `if rank == 0: print(x.item())` reads the result, the graph with the
    collective runs in the first replica alone, and it waits for the others for ever.

    **What it does.** `torch_xla.sync()` goes below the collective, in all replicas: below the division of an
    average and what else is computed of the result right after it, once below several collectives in a row,
    and below the loop where the collectives are in one of their own. The call of a function of the script
    that returns such a value, or leaves it in its argument, counts as a collective. The call of a function,
    also of another file, that uses an argument below such a test counts as a read. So does a part of the
    result by the replica's index, `x[rank * n :]`: the collective would be in another graph on each replica.

    **Left alone.** Collectives in the step: the graph ends with it. Results that all replicas read first, or
    that meet `xm.save` or a rendezvous on the way. Everything with `--style portable`: the collectives of
    `shims` run at once outside of a step.

    **Reported.** A collective under a condition of the rank, and one in the statement that holds the read.
    Functions of other files: `migrate check` speaks of them (XLA308).

    Source: torch_xla 2.9 (measured on two replicas: without the line the simulated replicas part).
    """

    name = "collective-sync"
    code = "XLA308"
    reported_as = "XLA308"  # at the read
    nodes = (cst.Module,)
    after = True
    examples = (
        rewritten(
            """
            import torch
            import torch.distributed as dist


            def report(losses, count, rank):
                mean = torch.stack(losses).cuda().mean()
                dist.all_reduce(mean, op=dist.ReduceOp.AVG)  # over the replicas
                dist.all_reduce(count)
                seen = count.sum()
                print("reduced")
                if rank == 0:
                    print("mean", mean.item(), "of", seen.item())
            """,
            """
            import torch
            import torch.distributed as dist
            import torch_xla


            def report(losses, count, rank):
                mean = torch.stack(losses).to("xla").mean()
                dist.all_reduce(mean, op=dist.ReduceOp.SUM)  # over the replicas
                mean.div_(dist.get_world_size())
                dist.all_reduce(count)
                seen = count.sum()
                torch_xla.sync()
                print("reduced")
                if rank == 0:
                    print("mean", mean.item(), "of", seen.item())
            """,
        ),
        rewritten(
            """
            import torch.distributed as dist


            def reduced(x):
                total = x.detach().clone()
                dist.all_reduce(total)
                return total / dist.get_world_size()


            def log(stats, loss, rank, distributed, writer):
                loss = reduced(loss.cuda())
                if distributed:
                    for value in stats.values():
                        dist.all_reduce(value)
                if rank == 0:
                    writer.add_scalar("loss", loss)
                    print(f"{stats['hits']}")
            """,
            """
            import torch.distributed as dist
            import torch_xla


            def reduced(x):
                total = x.detach().clone()
                dist.all_reduce(total)
                return total / dist.get_world_size()


            def log(stats, loss, rank, distributed, writer):
                loss = reduced(loss.to("xla"))
                torch_xla.sync()
                if distributed:
                    for value in stats.values():
                        dist.all_reduce(value)
                    torch_xla.sync()
                if rank == 0:
                    writer.add_scalar("loss", loss)
                    print(f"{stats['hits']}")
            """,
        ),
        left_alone(
            """
            import torch.distributed as dist
            import torch_xla
            import torch_xla.core.xla_model as xm


            def log(loss, total, best, rank):
                dist.all_reduce(loss)
                value = loss.item()
                if rank == 0:
                    print(value, loss.item(), loss.shape)
                dist.all_reduce(total)
                xm.rendezvous("total")
                if rank == 0:
                    print(total)
                dist.all_reduce(best)
                return best


            def train(model, loader, optimizer, rank):
                for x in loader:
                    with torch_xla.step():
                        loss = model(x.to("xla")).mean()
                        loss.backward()
                        optimizer.step()
                        dist.all_reduce(loss)
                    if rank == 0:
                        print(loss.item())
            """
        ),
        reported(
            """
            import torch.distributed as dist


            def log(loss, rank, group):
                if rank < 4:
                    dist.all_reduce(loss, group=group)
                if rank == 0:
                    print(loss.item())
            """,
            "wait for the others for ever",
        ),
    )

    def find(self, node: cst.CSTNode, context: Workspace) -> Iterable[Edit | RuleFinding]:
        """Yield the line below each collective that needs it, and the reads that cannot be helped."""
        if context.portable:
            return
        facts = facts_of(context)
        pending = pending_of(facts)
        needs = []
        for read in pending.reads():
            if read.elsewhere:
                continue  # the hazard speaks of it
            places = [_place(call, read, pending, context) for call in read.collectives]
            reads = [place for place in places if place is not None]
            if len(reads) == len(places):
                needs.append((read, reads))
                continue
            yield from self.report(read.read, waits_for(read, facts))
        # What is run in the function that makes it is no longer pending for its callers.
        inside = {
            id(c) for read, _ in needs for c in read.collectives if id(c) not in pending.inner
        }
        needs = [
            (read, places)
            for read, places in needs
            if not all(pending.inner.get(id(c), {0}) <= inside for c in read.collectives)
        ]
        for place, read in _chosen(needs, context):
            yield self._edit(place, read, context)

    def _edit(self, place: cst.CSTNode, read: ReadOfPending, context: Workspace) -> Edit:
        sync = f"{context.imports.require('torch_xla')}.sync()"
        line = cst.parse_statement(sync)

        def replace(updated: cst.BaseStatement) -> cst.FlattenSentinel[cst.BaseStatement]:
            return cst.FlattenSentinel([updated, line])

        who = (
            "each replica computes with its index" if read.by_index else "some replicas alone read"
        )
        message = f"{sync} below: {who} `{code(read.read)}`"
        wrong = f"{who} `{code(read.read)}`: {sync} has to run on all replicas before"
        return self.edit(place, replace, message, wrong=wrong)


def _place(
    call: cst.Call, read: ReadOfPending, pending: Pending, context: Workspace
) -> cst.CSTNode | None:
    """Return the statement below which all replicas have to run `call`, or None if there is none."""
    if context.guards.around(call) is not None:
        return None
    around = {id(read.read), *(id(above) for above in context.ancestors(read.read))}
    place = context.statement_around(call)
    for above in context.ancestors(place):
        if id(above) in around or isinstance(above, cst.FunctionDef):
            break
        if isinstance(above, cst.For | cst.While):
            place = above
    block = context.parent(place)
    if id(place) in around or not isinstance(block, cst.IndentedBlock | cst.Module):
        return None
    later = iter(block.body[block.body.index(place) + 1 :])
    for statement in later:
        if id(statement) not in pending.lazy or id(statement) in around:
            break
        place = statement
    return place


def _chosen(
    needs: Sequence[tuple[ReadOfPending, Sequence[cst.CSTNode]]], context: Workspace
) -> list[tuple[cst.CSTNode, ReadOfPending]]:
    """Return the fewest places that serve all reads, each with the first read that it serves.

    Args:
        needs: each read with the places below its collectives.
        context: the script.
    """

    def at(node: cst.CSTNode) -> tuple[int, int]:
        start = context.position(node)
        return start.line, start.column

    every = [place for _, places in needs for place in places]
    chosen: dict[int, tuple[cst.CSTNode, ReadOfPending]] = {}
    for read, places in sorted(needs, key=lambda need: at(need[0].read)):
        around = {id(above) for above in context.ancestors(read.read)}
        # Whoever comes to the read has come past these.
        passed = [p for p in every if id(context.parent(p)) in around and at(p) < at(read.read)]
        for place in places:
            later = [p for p in passed if at(p) >= at(place)]
            if not any(id(p) in chosen for p in later):
                best = max(later, key=at, default=place)
                chosen.setdefault(id(best), (best, read))
    return list(chosen.values())
