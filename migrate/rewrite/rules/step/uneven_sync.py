"""Put device operations of a single replica into a separate graph, without collectives."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

import libcst as cst

from migrate.reading.collectives.pending import pending_of
from migrate.reading.collectives.uneven_graphs import Uneven, uneven_graphs
from migrate.reading.facts import facts_of
from migrate.rewrite.edits.nodes import below_line
from migrate.rewrite.rule import Edit, Rule, RuleFinding, left_alone, reported, rewritten
from migrate.rewrite.workspace import Workspace
from migrate.syntax.tree import code, nodes_of

LONGEST = 60  # characters of a quoted operation


class UnevenSync(Rule):
    """End the graph around what some replicas alone compute on the device.

    **Why.** With CUDA each replica runs what it likes between two collectives. On XLA nothing runs before the
    graph ends: what stands below `if rank == 0:` is a part of the first replica's graph, and if a collective
    is in that graph, too, the replicas run different programs that wait for each other.

    **What it does.** `torch_xla.sync()` in all replicas, above the test of the rank where a collective may be
    pending there, and below it where one follows: what the first replica alone computes is a program
    of its own then, with no collective in it. `shims.synchronize()` with `--style portable`.

    The same holds where the first replica alone fetches what all compute, as `print(x)`, `x.cpu()` and
    loggers do: the others still have it pending, and their next graph has more in it. `torch_xla.sync()` in
    all replicas, above the read. `x.item()` leaves `x` pending and needs none.

    So are calls that give values of the graph to a function of another file which only the first replica
    continues (`if not self.is_main: return`), as a logger does that reads them.

    A tensor without a dimension that is 0 in one replica and 1 in another differs, too, as
    `torch.tensor(stop, device=device)`: XLA makes a constant of the graph of each of the two. Where a
    collective is given one, the graph ends before.

    **Left alone.** What is copied from the host (`torch.tensor([n], device=device)`, `x.to(device)`): it is
    an input of the graph, which is the same in all replicas. Values that are read below the same test.

    **Reported.** Operations after `if rank != 0: return`, and in a branch that returns: no line below them
    runs in all replicas.

    Source: torch_xla 2.9: "We must produce the exact same graph in each replica to prevent hanging"
    (`core/xla_model.py`).
    """

    name = "uneven-sync"
    code = "XLA314"
    nodes = (cst.Module,)
    yields = (cst.If,)  # to `together`, by which all replicas run the branch
    after = True
    examples = (
        rewritten(
            """
            import torch
            import torch.distributed as dist


            def draw(count, steps):
                rank = dist.get_rank()
                if rank == 0:
                    which = torch.randint(0, steps, (count,), device="cuda")
                else:
                    which = torch.empty(count, dtype=torch.long, device="cuda")
                dist.broadcast(which, src=0)
                return which
            """,
            """
            import torch
            import torch.distributed as dist
            import torch_xla


            def draw(count, steps):
                rank = dist.get_rank()
                if rank == 0:
                    which = torch.randint(0, steps, (count,), device="xla")
                else:
                    which = torch.empty(count, dtype=torch.long, device="xla")
                torch_xla.sync()
                dist.broadcast(which, src=0)
                return which
            """,
        ),
        rewritten(
            """
            import torch
            import torch.distributed as dist


            class Totals:
                def __init__(self, rank):
                    self.chief = rank == 0
                    self.total = torch.zeros(1).cuda()

                def add(self, x):
                    dist.all_reduce(x)
                    # only one of them keeps it
                    if self.chief:
                        self.total += x
                    return x
            """,
            """
            import torch
            import torch.distributed as dist
            import torch_xla


            class Totals:
                def __init__(self, rank):
                    self.chief = rank == 0
                    self.total = torch.zeros(1).to("xla")

                def add(self, x):
                    dist.all_reduce(x)
                    torch_xla.sync()
                    # only one of them keeps it
                    if self.chief:
                        self.total += x
                    return x
            """,
        ),
        rewritten(
            """
            import torch
            import torch.distributed as dist


            def all_stop(losses, best):
                stop = torch.tensor(losses[-1] > best, device="cuda")
                dist.all_reduce(stop, op=dist.ReduceOp.MAX)
                return stop.item()
            """,
            """
            import torch
            import torch.distributed as dist
            import torch_xla


            def all_stop(losses, best):
                stop = torch.tensor(losses[-1] > best, device="xla")
                torch_xla.sync()
                dist.all_reduce(stop, op=dist.ReduceOp.MAX)
                return stop.item()
            """,
        ),
        rewritten(
            """
            import torch
            import torch.distributed as dist


            def watch(model, loader, rank):
                seen = torch.zeros(1).cuda()
                for x in loader:
                    x = x.cuda()
                    dist.all_reduce(seen)
                    out = x.mean() * 2
                    if rank == 0:
                        print(out)
            """,
            """
            import torch
            import torch.distributed as dist
            import torch_xla


            def watch(model, loader, rank):
                seen = torch.zeros(1).to("xla")
                for x in loader:
                    x = x.to("xla")
                    dist.all_reduce(seen)
                    out = x.mean() * 2
                    torch_xla.sync()
                    if rank == 0:
                        print(out)
            """,
        ),
        left_alone(
            """
            import torch
            import torch.distributed as dist
            import torch_xla


            def share(n, rank):
                size = torch.tensor([0]).to("xla")
                if rank == 0:
                    size = torch.tensor([n]).to("xla")
                dist.broadcast(size, src=0)
                if rank == 0:
                    print("shared")
                return size


            def counted(x, rank):
                if rank == 0:
                    total = (x.to("xla") * 2).sum()
                    print(total.item())
                dist.all_reduce(x)
                return x
            """
        ),
        reported(
            """
            import torch
            import torch.distributed as dist


            def start(rank):
                if rank == 0:
                    return torch.randn(4, device="cuda")
                return torch.empty(4, device="cuda")


            def share(rank):
                x = start(rank)
                dist.broadcast(x, src=0)
                return x
            """,
            "no line below",
        ),
    )

    def find(self, node: cst.CSTNode, context: Workspace) -> Iterable[Edit | RuleFinding]:
        """Yield the lines around each test of the rank that needs them."""
        above: dict[int, tuple[cst.CSTNode, Uneven]] = {}
        below: dict[int, tuple[cst.CSTNode, Uneven]] = {}
        facts = facts_of(context)
        reads = (
            () if context.portable else [r for r in pending_of(facts).reads() if not r.elsewhere]
        )
        ended = {id(call) for read in reads for call in read.collectives}  # by `collective-sync`
        guards = {id(read.guard) for read in reads}
        for hit in uneven_graphs(facts):
            if hit.before and not hit.unknown and id(hit.collective) in ended:
                continue
            if hit.alone.reads and id(hit.alone.guard) in guards:
                continue
            sides = [hit.before or hit.unknown or hit.alone.reads, not hit.before]
            if hit.alone.reads:  # then nothing is left to read below
                sides[1] = False
            places = [_above(hit, context), _below(hit, context)]
            missing = [p is None for p, needed in zip(places, sides, strict=True) if needed]
            if any(missing):
                yield from self.report(hit.alone.operation, _left(hit))
                continue
            for place, needed, chosen in zip(places, sides, (above, below), strict=True):
                if needed and place is not None:
                    chosen.setdefault(id(place), (place, hit))
        for key in {**above, **below}:
            place, hit = above.get(key) or below[key]
            yield self._edit(place, hit, key in above, key in below, context)

    def _edit(
        self, place: cst.CSTNode, hit: Uneven, above: bool, below: bool, context: Workspace
    ) -> Edit:
        sync = context.vocabulary.write("sync")
        line = cst.parse_statement(sync)

        def replace(updated: cst.BaseStatement) -> cst.FlattenSentinel[cst.BaseStatement]:
            statements: tuple[cst.BaseStatement, ...] = (updated,)
            if above and isinstance(updated, cst.SimpleStatementLine | cst.BaseCompoundStatement):
                statements = below_line(updated, sync)
            return cst.FlattenSentinel([*statements, *([line] if below else ())])

        where = " and ".join(
            word for word, needed in (("above", above), ("below", below)) if needed
        )
        does = "read" if hit.alone.reads else "compute"
        message = f"{sync} {where}: some replicas alone {does} `{_short(hit)}`"
        if hit.alone.guard is None and not hit.alone.elsewhere:
            message = (
                f"{sync} {where}: `{_short(hit)}` may be 0 here and 1 there, constants of the graph"
            )
        _, _, seen = message.partition(": ")
        wrong = f"{seen}: {sync} has to run on all replicas {where.replace('and', 'it, and')} it"
        return self.edit(place, replace, message, wrong=wrong)


def _short(hit: Uneven) -> str:
    """Return the text of the operation, or a long call without its arguments."""
    operation = hit.alone.operation
    text = code(operation)
    if isinstance(operation, cst.Call) and len(text) > LONGEST:
        return f"{code(operation.func)}(…)"
    return text


def _left(hit: Uneven) -> str:
    if hit.alone.reads:
        return (
            f"`{_short(hit)}` is read in some replicas only, the others have it in one graph with a "
            "collective, and no line above it runs in all replicas: read it in all of them"
        )
    return (
        f"`{_short(hit)}` is computed on the device in some replicas only, in one graph with a collective, "
        "and no line below it runs in all replicas: compute it in all of them, or on the host"
    )


def _statement(hit: Uneven, context: Workspace) -> cst.CSTNode | None:
    """Return the statement around the operation that all replicas reach."""
    guard: cst.CSTNode | None = hit.alone.guard
    if guard is None or isinstance(guard, cst.FunctionDef):
        guard = hit.alone.operation
    statement = context.statement_around(guard)
    if isinstance(guard, cst.If | cst.While | cst.Match):
        statement = guard
    for _ in range(20):
        above = context.parent(statement)
        around = context.guards.around(statement)
        if isinstance(above, cst.If):  # `elif rank == 0:`
            statement = above
        elif isinstance(around, cst.If | cst.While | cst.Match):
            statement = around
        elif around is None and isinstance(above, cst.IndentedBlock | cst.Module):
            return statement
        else:
            return None
    return None


def _above(hit: Uneven, context: Workspace) -> cst.CSTNode | None:
    return _statement(hit, context)


def _below(hit: Uneven, context: Workspace) -> cst.CSTNode | None:
    """Return the statement below which all replicas go on, or None if a branch of it leaves."""
    statement = _statement(hit, context)
    if statement is None:
        return None
    operation = hit.alone.operation
    inside = statement is context.statement_around(operation) or any(
        above is statement for above in context.ancestors(operation)
    )
    return statement if inside and not any(_leaving(statement)) else None


def _leaving(node: cst.CSTNode) -> Iterator[cst.CSTNode]:
    """Yield the statements by which a part of `node` leaves it."""
    yield from nodes_of(node, cst.Return)
    yield from nodes_of(node, cst.Break)
    yield from nodes_of(node, cst.Continue)
