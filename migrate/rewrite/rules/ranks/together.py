"""Let all replicas compute what the first replica alone computes on the device."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence

import libcst as cst

from migrate.catalogue.words import READS
from migrate.check.rules.ranks.guarded_read import GuardedRead, partings
from migrate.check.rules.ranks.parting import GraphDifference
from migrate.reading.facts import Facts, facts_of
from migrate.reading.replicas.first_replica import joined, on_first
from migrate.rewrite.edits.lift import marked
from migrate.rewrite.edits.nodes import split_blank
from migrate.rewrite.rule import (
    Edit,
    Replacement,
    Rule,
    RuleFinding,
    left_alone,
    reported,
    rewritten,
)
from migrate.rewrite.rules.ranks.work import ON_HOST, BranchWork, CannotError, made_by, work_of
from migrate.rewrite.rules.saving.unguard import keep_to_first
from migrate.rewrite.workspace import Workspace
from migrate.syntax.tree import code, nodes_of


class Together(Rule):
    """Let all replicas compute what the first one computes on the device for its log.

    **Why.** Below `if rank == 0:` a value that is computed and read on the device, a validation, a summary of
    the model run graphs that the other replicas do not have: before the next collective they part, and all
    hang.

    **What it does.** `with shims.together(tells=rank == 0):` takes the place of the test: all replicas run
    the block. What prints, logs and writes in it stays below the test, and what that is given of the device
    is read above it: a tensor by `.cpu()`, what may be a list or a dict of them, as a model returns it, by
    `shims.on_host`. Where the test does not hold, the block prints nothing, and the random numbers of
    Python, numpy, torch and XLA go on as if it had not been run: the training of the other replicas does not
    change. A branch above that makes what the block needs (the loader of the validation set) is run by all in
    the same way. Every replica validates with the whole set, as the first one did.

    **Reported.** XLA305, where the block also writes files or trains in between, has a condition that may
    differ between the replicas, calls what cannot be followed, or binds names that are read after it. So is a
    block that takes batches from the training's iterator (`next(batches)`): the other replicas would miss
    them.

    **Safety.** A module that the block leaves in another state (a counter of its own) is then so in all
    replicas.

    Source: torch_xla 2.9 (replicas with other graphs wait for each other), `shims.together`.
    """

    name = "together"
    code = "XLA305"
    nodes = (cst.Module,)
    after = True
    examples = (
        rewritten(
            """
            import torch
            import torch.nn.functional as F


            def train(model, loader, optimizer, rank, writer):
                for step, (x, y) in enumerate(loader):
                    x, y = x.cuda(), y.cuda()
                    out = model(x)
                    loss = F.cross_entropy(out, y)
                    loss.backward()
                    optimizer.step()
                    if rank == 0:
                        # how far off?
                        if step % 10 == 0:
                            with torch.no_grad():
                                error = F.l1_loss(out, y).item()
                            print(step, error, F.mse_loss(out, torch.zeros_like(out)).item())
                            writer.add_image("out", out[0])
            """,
            """
            import shims
            import torch
            import torch.nn.functional as F
            import torch_xla


            def train(model, loader, optimizer, rank, writer):
                for step, (x, y) in enumerate(loader):
                    with torch_xla.step():
                        x, y = x.to("xla"), y.to("xla")
                        out = model(x)
                        loss = F.cross_entropy(out, y)
                        loss.backward()
                        optimizer.step()
                    with shims.together(tells=rank == 0):
                        # how far off?
                        if step % 10 == 0:
                            with torch.no_grad():
                                error = F.l1_loss(out, y).item()
                            mse_loss_read = F.mse_loss(out, torch.zeros_like(out)).item()
                            if rank == 0:
                                print(step, error, mse_loss_read)
                            out_read = out[0].cpu()
                            if rank == 0:
                                writer.add_image("out", out_read)
            """,
        ),
        rewritten(
            """
            import torch
            import torch.nn.functional as F
            from torch.utils.data import DataLoader


            def train(model, loader, held_out, optimizer, rank):
                if rank == 0:
                    validation = DataLoader(held_out)
                    log = open("log.txt", "w")
                for step, (x, y) in enumerate(loader):
                    x, y = x.cuda(), y.cuda()
                    loss = F.cross_entropy(model(x), y)
                    loss.backward()
                    optimizer.step()
                    if step % 100 == 0 and rank == 0:
                        model.eval()
                        total = 0.0
                        with torch.no_grad():
                            for x, y in validation:
                                total += F.cross_entropy(model(x.cuda()), y.cuda()).item()
                        log.write(f"{total}")
                        model.train()
            """,
            """
            import shims
            import torch
            import torch.nn.functional as F
            import torch_xla
            from torch.utils.data import DataLoader


            def train(model, loader, held_out, optimizer, rank):
                with shims.together(tells=rank == 0):
                    validation = DataLoader(held_out)
                    if rank == 0:
                        log = open("log.txt", "w")
                for step, (x, y) in enumerate(loader):
                    with torch_xla.step():
                        x, y = x.to("xla"), y.to("xla")
                        loss = F.cross_entropy(model(x), y)
                        loss.backward()
                        optimizer.step()
                    if step % 100 == 0:
                        with shims.together(tells=rank == 0):
                            model.eval()
                            if rank == 0:
                                total = 0.0
                            with torch.no_grad():
                                for x, y in validation:
                                    with torch_xla.step():
                                        batch_loss = F.cross_entropy(model(x.to("xla")), y.to("xla"))
                                    if rank == 0:
                                        total += batch_loss.item()
                            if rank == 0:
                                log.write(f"{total}")
                            model.train()
            """,
        ),
        left_alone(
            """
            import torch
            import torch_xla


            def train(model, loader, optimizer, rank):
                for step, x in enumerate(loader):
                    with torch_xla.step():
                        loss = model(x.to("xla")).mean()
                        loss.backward()
                        optimizer.step()
                    if rank == 0 and step % 10 == 0:
                        print(step, loss.item())
            """
        ),
        reported(
            """
            import torch
            import torch.nn.functional as F
            import torch_xla


            def train(model, loader, optimizer, rank):
                error, best = 0.0, 1.0
                for step, (x, y) in enumerate(loader):
                    with torch_xla.step():
                        out = model(x.to("xla"))
                        loss = F.cross_entropy(out, y.to("xla"))
                        loss.backward()
                        optimizer.step()
                    if rank == 0:
                        error = F.l1_loss(out, y.to("xla")).item()
                    if error > best:
                        break
            """,
            "`error` is read after the branch",
        ),
        reported(
            """
            import torch
            import torch.nn.functional as F


            def estimate_loss(model, batches):
                with torch.no_grad():
                    x, y = next(batches)
                    return F.cross_entropy(model(x.cuda()), y.cuda()).item()


            def train(model, loader, optimizer, rank):
                batches = iter(loader)
                for step in range(1000):
                    x, y = next(batches)
                    loss = F.cross_entropy(model(x.cuda()), y.cuda())
                    loss.backward()
                    optimizer.step()
                    optimizer.zero_grad()
                    if rank == 0:
                        error = estimate_loss(model, batches)
                        print(step, error)
            """,
            "`error = estimate_loss(model, batches)` does more than compute",
        ),
        reported(
            """
            import torch
            import torch.nn.functional as F


            def show(model, x, path):
                with torch.no_grad():
                    y = model.module(x)
                with open(path, "w") as file:
                    file.write(str(y.cpu()))


            def train(model, loader, held_out, optimizer, rank):
                held_out = held_out.cuda()
                for step, (x, y) in enumerate(loader):
                    loss = F.cross_entropy(model(x.cuda()), y.cuda())
                    loss.backward()
                    optimizer.step()
                    if step % 10 == 0 and rank == 0:
                        show(model, held_out, f"{step}.txt")
            """,
            "computes on the device, and does more",
        ),
        reported(
            """
            import functools

            import torch
            import torch.distributed as dist
            import torch.nn.functional as F


            def on_first(function):
                @functools.wraps(function)
                def wrapper(*args):
                    return function(*args) if dist.get_rank() == 0 else None

                return wrapper


            @on_first
            def show(model, x):
                with torch.no_grad():
                    print(model.module(x).mean().item())


            def train(model, loader, held_out, optimizer, rank):
                held_out = held_out.cuda()
                for step, (x, y) in enumerate(loader):
                    loss = F.cross_entropy(model(x.cuda()), y.cuda())
                    loss.backward()
                    optimizer.step()
                    if step % 10 == 0 and rank == 0:
                        show(model, held_out)
            """,
            "computes on the device, and does more",
        ),
        rewritten(
            """
            import torch
            import torch.nn.functional as F
            from torchvision.utils import save_image


            def accuracy(out, y):
                return float((out.argmax(1) == y).float().mean())


            def evaluate(model, held_out):
                total = 0.0
                with torch.no_grad():
                    for x, y in held_out:
                        total += accuracy(model(x.cuda()), y.cuda())
                return total / len(held_out)


            def train(model, loader, held_out, images, optimizer, rank):
                images = images.cuda()
                for step, (x, y) in enumerate(loader):
                    loss = F.cross_entropy(model(x.cuda()), y.cuda())
                    loss.backward()
                    optimizer.step()
                    if step % 10 == 0 and rank == 0:
                        print(evaluate(model, held_out))
                    if step % 20 == 0 and rank == 0:
                        with torch.no_grad():
                            out = model(images)
                        save_image(out, f"{step}.png")
            """,
            """
            import shims
            import torch
            import torch.nn.functional as F
            import torch_xla
            from torchvision.utils import save_image


            def accuracy(out, y):
                return float((out.argmax(1) == y).float().mean())


            def evaluate(model, held_out):
                total = 0.0
                with torch.no_grad():
                    for x, y in held_out:
                        total += accuracy(model(x.to("xla")), y.to("xla"))
                return total / len(held_out)


            def train(model, loader, held_out, images, optimizer, rank):
                images = images.to("xla")
                for step, (x, y) in enumerate(loader):
                    with torch_xla.step():
                        loss = F.cross_entropy(model(x.to("xla")), y.to("xla"))
                        loss.backward()
                        optimizer.step()
                    if step % 10 == 0:
                        with shims.together(tells=rank == 0):
                            evaluate_read = evaluate(model, held_out)
                            if rank == 0:
                                print(evaluate_read)
                    if step % 20 == 0:
                        with shims.together(tells=rank == 0):
                            with torch.no_grad():
                                out = model(images)
                            out_read = shims.on_host(out)
                            if rank == 0:
                                save_image(out_read, f"{step}.png")
            """,
        ),
    )

    def find(self, node: cst.CSTNode, context: Workspace) -> Iterable[Edit | RuleFinding]:
        """Yield the edits of the branches for the first replica, and of the branches that they need."""
        if not context.guards.any:
            return
        branches: dict[int, BranchWork] = {}
        needed: dict[int, frozenset[str]] = {}
        for guard in context.all_of(cst.If):
            if not context.guards.asks(guard.test) or on_first(guard.test, context) is None:
                continue
            if context.guards.around(guard) is not None:
                continue
            facts = facts_of(context)
            hits, may_part = _parts(guard, facts)
            if not hits and not may_part:
                continue
            try:
                work = work_of(guard, facts, needed.get(id(guard), frozenset()))
                for maker, names in work.makers:
                    known = needed.get(id(maker.guard), frozenset())
                    needed[id(maker.guard)] = known | names
                    of_both = needed[id(maker.guard)]
                    if id(maker.guard) in branches:
                        branches[id(maker.guard)] = work_of(maker.guard, facts, of_both)
                    else:
                        branches[id(maker.guard)] = made_by(maker.guard, facts, of_both)
            except CannotError as why:
                for hit in hits[:1]:
                    yield from self.report(hit.node, f"{hit.message}; not rewritten: {why}")
                continue
            branches[id(guard)] = work
        for work in branches.values():
            yield from self._edits(work, context)

    def _edits(self, work: BranchWork, context: Workspace) -> Iterator[Edit]:
        guard, rest = work.guard, work.rest
        message = f"all replicas run it, not those alone that pass `if {code(guard.test)}:`"
        if not context.portable:
            message += "; `shims` is a part of tpu-migrate: install it on the TPU's hosts"
        shims = context.imports.require("shims")
        asked = joined(rest.asked)

        def replace(updated: cst.If) -> cst.With | cst.If:
            tells = cst.Arg(
                asked.deep_clone(),
                keyword=cst.Name("tells"),
                equal=cst.AssignEqual(
                    whitespace_before=cst.SimpleWhitespace(""),
                    whitespace_after=cst.SimpleWhitespace(""),
                ),
            )
            call = cst.Call(cst.parse_expression(f"{shims}.together"), [tells])
            block = cst.With([cst.WithItem(call)], updated.body)
            if not rest.others:
                return block.with_changes(leading_lines=updated.leading_lines)
            test = joined(tuple(other.deep_clone() for other in rest.others))
            return updated.with_changes(test=test, body=cst.IndentedBlock([block]))

        wrong = (
            f"only the replicas that pass `if {code(guard.test)}:` compute on the device below it: compute "
            "on all replicas, and print or log on one"
        )
        yield self.edit(guard, replace, message, wrong=wrong)
        taken = {name.value for name in context.all_of(cst.Name)}
        wrong = "some replicas only compute this: compute it on all, and print or log it on one"
        for block in work.blocks:
            message = "split: statements that print or log stay on the first replica"
            yield self.edit(block, keep_to_first(asked.deep_clone()), message, wrong=wrong)
        for statement in work.kept:
            lines = []
            for value, how in work.read.get(id(statement), ()):
                name = _fresh(value, taken, context)
                text = code(value)
                copied = f"{shims}.{ON_HOST}({text})" if how == ON_HOST else f"{text}{how}"
                lines.append(cst.parse_statement(f"{name} = {copied}"))
                read = f"{name}: read in all replicas"
                yield self.edit(value, lambda _, name=name: cst.Name(name), read, wrong=wrong)
            yield self.edit(
                statement, _read_above(lines), "stays on the first replica", wrong=wrong
            )


def _read_above(lines: Sequence[cst.BaseStatement]) -> Callable[[cst.BaseStatement], Replacement]:
    def replace(updated: cst.BaseStatement) -> Replacement:
        if not lines:
            return marked(updated)
        above, inside = split_blank(getattr(updated, "leading_lines", ()))
        first = lines[0].with_changes(leading_lines=above)
        return cst.FlattenSentinel(
            [first, *lines[1:], marked(updated.with_changes(leading_lines=inside))]
        )

    return replace


def _fresh(value: cst.BaseExpression, taken: set[str], context: Workspace) -> str:
    """Return a name that the script does not use for what is read of `value`."""
    names = [
        name for name in context.below(value, cst.Name) if context.qualified_name(name) is None
    ]
    base = f"{names[0].value if names else 'value'}_read"
    name, number = base, 1
    while name in taken:
        number += 1
        name = f"{base}_{number}"
    taken.add(name)
    return name


def _parts(guard: cst.If, facts: Facts) -> tuple[list[GraphDifference], bool]:
    """Return where replicas diverge in the branch of `guard`, as XLA305 reports it, and whether they may."""
    context = facts.context
    function = context.function_around(guard)
    trains = function is not None and bool(context.effects.of(function))
    if not trains and not facts.steps.found and not facts.steps.between(guard):
        return [], False
    nodes = [node for kind in GuardedRead.nodes for node in nodes_of(guard.body, kind)]
    hits = [hit for node in nodes for hit in partings(node, facts)]
    return hits, trains and any(map(_reads_computed, nodes))


def _reads_computed(node: cst.CSTNode) -> bool:
    func = node.func if isinstance(node, cst.Call) else None
    if not isinstance(func, cst.Attribute) or func.attr.value not in READS:
        return False
    return isinstance(func.value, cst.Call | cst.BinaryOperation)
