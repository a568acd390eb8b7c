"""Values of the device that only some replicas read or make."""

from __future__ import annotations

from collections.abc import Iterable
from itertools import islice

import libcst as cst

from migrate.catalogue.words import METER_METHODS, READ_METHODS, SYNCS, WAITS
from migrate.check.common import method, receiver
from migrate.check.hazard import Hazard, Hit, Severity, example
from migrate.check.rules.ranks.early_end import ended_early
from migrate.check.rules.ranks.guarded_collective import COLLECTIVE
from migrate.model.calls.kind import Kind
from migrate.reading.collectives.pending import parameters
from migrate.reading.collectives.pending_values import HOLDS
from migrate.reading.facts import Facts
from migrate.reading.flow.reads import in_text, is_log
from migrate.reading.names.bindings import Given, How
from migrate.reading.names.dead_branches import never_runs
from migrate.reading.replicas.guards import Guard
from migrate.reading.steps.in_step import When, is_step
from migrate.syntax.tree import code, keyword, nodes_of

# Calls that run what is pending, in all replicas that make them.
ENDS_GRAPHS = SYNCS | {"torch.distributed.reduce"}
DEPTH = 3  # so many functions are followed, one into another


class GuardedRead(Hazard):
    """Some replicas only read a value: inside the step, computed after it, or by themselves.

    **Why.** The read ends the graph in the replicas that make it and not in the others: from there on they
    run different graphs, their collectives no longer match, and all hang. This is worse than a slow step.

    What the step computes, its end has run in all replicas: to read it then runs nothing. What all replicas
    compute after the step, as in `acc = (out.argmax(1) == y).float().mean()`, is pending: a read runs it in
    some of them, and in the others it goes into a graph of the next step; so does what a function of the
    script leaves so in its result, or reads of its arguments. A logger reads what it is given. What only some
    replicas compute, or make on the device before the training begins, goes into graphs that the others do
    not have. So do weights that one replica loads into a model on the device before it broadcasts them. A
    `torch_xla.sync()` of some replicas runs there what the others put into a later graph: so does one in a
    function that some replicas call while the broadcast of DDP, or another collective, is pending.

    Nothing is reported of what is computed and read right below `torch_xla.sync()` or `dist.reduce(…)` of all
    replicas, which leave nothing pending (`dist.all_reduce` does).

    **What to do.** Compute inside the step, and read after it. Where all replicas compute and read, only the
    printing goes under the condition.
    """

    code = "XLA305"
    name = "guarded-read"
    severity = Severity.ERROR
    spoken_by = ("step", "together")
    nodes = (cst.Call, cst.Comparison, cst.FormattedStringExpression)
    examples = (
        example(
            """
            import torch


            def train(model, loader, optimizer, rank):
                for x, y in loader:
                    loss = model(x.cuda(), y.cuda())
                    if rank == 0:
                        print(loss.item())  # XLA305
                    loss.backward()
                    optimizer.step()
            """
        ),
        example(
            """
            import torch


            def train(model, loader, optimizer, rank):
                for x, y in loader:
                    loss = model(x.cuda(), y.cuda())
                    loss.backward()
                    optimizer.step()
                    if rank == 0:
                        print(loss.item())
            """
        ),
        example(
            """
            import torch


            def train(model, loader, optimizer, rank):
                for step, (x, y) in enumerate(loader):
                    x, y = x.cuda(), y.cuda()
                    out = model(x)
                    loss = torch.nn.functional.cross_entropy(out, y)
                    loss.backward()
                    optimizer.step()
                    acc = (out.argmax(1) == y).float().mean()
                    if rank == 0:
                        print(loss.item(), acc.item())  # XLA305
                        print(f"accuracy {acc:.3f}")  # XLA305
                        best = acc if step and acc > best else 0.0  # XLA305
                    if rank == 0 and loss < 1.0 and acc > 0.9:  # XLA305
                        return
            """
        ),
        example(
            """
            import logging

            import torch
            import wandb


            def train(model, loader, optimizer, writer, rank):
                for step, (x, y) in enumerate(loader):
                    x, y = x.cuda(), y.cuda()
                    out = model(x)
                    loss = torch.nn.functional.cross_entropy(out, y)
                    loss.backward()
                    optimizer.step()
                    acc = (out.argmax(1) == y).float().mean()
                    if rank == 0:
                        wandb.log({"loss": loss})
                        wandb.log({"loss": loss, "acc": acc}, step=step)  # XLA305
                        writer.add_scalar("acc", acc, step)  # XLA305
                        logging.info("acc %.3f", acc)  # XLA305
                        print("loss {:.3f}".format(loss), ("%9.3f" * 2) % (loss, loss))
                        print("loss %.3f, acc %.3f" % (loss, acc))  # XLA305
                        print("acc {:.3f}".format(acc))  # XLA305
            """
        ),
        example(
            """
            import torch
            import torch.distributed as dist
            from torch.utils.tensorboard import SummaryWriter


            class Engine:
                def __init__(self, model, optimizer):
                    self.model, self.optimizer = model.cuda(), optimizer
                    self.chief = dist.get_rank() == 0
                    self.writer = SummaryWriter() if self.chief else None

                def step(self, x, y):
                    out = self.model(x)
                    loss = torch.nn.functional.cross_entropy(out, y)
                    loss.backward()
                    self.optimizer.step()
                    acc = (out.argmax(1) == y).float().mean()
                    return loss, acc

                def fit(self, loader):
                    for x, y in loader:
                        loss, acc = self.step(x.cuda(), y.cuda())
                        if self.writer is not None:
                            self.writer.add_scalar("loss", loss)
                            self.writer.add_scalar("acc", acc)  # XLA305
                        best = float(acc) if self.chief else 0.0  # XLA305
                    return best
            """
        ),
        example(
            """
            import torch
            import torch.nn.functional as F


            def accuracy(out, y):
                hits = (out - y).abs() < 0.1
                return hits.float().mean()


            def again(x):
                found = again(x)
                return found


            def report(step, rank, **values):
                if rank != 0:
                    return
                print(step, *[float(value) for value in values.values()])


            def train(model, loader, optimizer, rank):
                model.cuda()
                for step, x in enumerate(loader):
                    x = x.cuda()
                    loss = F.mse_loss(model(x), x)
                    loss.backward()
                    optimizer.step()
                    error = (model(x) - x).abs().max()
                    acc, same = accuracy(error, x), again(x)
                    if rank == 0:
                        print(acc, same)  # XLA305
                    report(step, rank, loss=loss)
                    report(step, rank, loss=loss, error=error)  # XLA305
            """
        ),
        example(
            """
            import torch
            import torch_xla


            def train(model, loader, optimizer, rank):
                for step, (x, y) in enumerate(loader):
                    with torch_xla.step():
                        out = model(x.to("xla"))
                        loss = torch.nn.functional.cross_entropy(out, y.to("xla"))
                        loss.backward()
                        optimizer.step()
                        acc = (out.argmax(1) == y.to("xla")).float().mean()
                    last = loss.detach()
                    top = out.max()
                    torch_xla.sync()
                    low = out.min()
                    lowest = low.item()
                    if rank == 0:
                        print(acc.item(), last.item(), top.item(), low.item(), lowest)
            """
        ),
        example(
            """
            import torch
            import torch.distributed as dist


            def resume(net, path, rank):
                model = net.cuda()
                if rank == 0:
                    model.load_state_dict(torch.load(path))  # XLA305
                for p in model.parameters():
                    dist.broadcast(p, 0)


            def resume_early(net, path, rank):
                if rank == 0:
                    net.load_state_dict(torch.load(path, map_location="cpu"))
                return net.cuda()
            """
        ),
        example(
            """
            import torch
            import torch.nn.functional as F

            from summary import describe


            def train(model, loader, optimizer, rank, device):
                model.cuda()
                if rank == 0:
                    images = torch.zeros([2, 3, 8, 8], device="cuda")  # XLA305
                    labels = torch.zeros([2, 10], device="cuda")
                    describe(model, images, labels, torch.ones(3))
                for step, (x, y) in enumerate(loader):
                    x, y = x.cuda(), y.cuda()
                    out = model(x)
                    loss = F.cross_entropy(out, y)
                    loss.backward()
                    optimizer.step()
                    if rank == 0 and step % 10 == 0:
                        with torch.no_grad():
                            error = F.l1_loss(out, y).item()  # XLA305
                        print(error, loss.item())
            """
        ),
        example(
            """
            import torch_xla
            import torch.distributed as dist


            def train(model, loader, optimizer, rank):
                for x, y in loader:
                    with torch_xla.step():
                        out = model(x.to("xla"))
                        loss = out.sum()
                        loss.backward()
                        optimizer.step()
                    torch_xla.sync()
                    if dist.get_rank() == 0:
                        kept = out * 2
                        torch_xla.sync()  # XLA305
            """
        ),
        example(
            """
            import torch


            @torch.no_grad()
            def accuracy(model, held_out):
                right = torch.zeros((), device="cuda")
                for x, y in held_out:
                    right += (model(x.cuda()).argmax(1) == y.cuda()).sum()
                return right.item()


            def train(model, loader, held_out, optimizer, rank):
                model.cuda()
                for epoch in range(10):
                    for x, y in loader:
                        loss = model(x.cuda(), y.cuda())
                        loss.backward()
                        optimizer.step()
                    if rank == 0:
                        print(accuracy(model, held_out))  # XLA305
            """
        ),
        example(
            """
            from mels import spectrogram


            def listen(generator, x, writer):
                mel = spectrogram(generator.module.infer(x))
                writer.add_image("mel", mel[0].cpu().numpy())


            def train(generator, loader, optimizer, held_out, writer, rank):
                generator.cuda()
                for x in loader:
                    loss = generator(x.cuda()).mean()
                    loss.backward()
                    optimizer.step()
                    if rank == 0:
                        listen(generator, held_out, writer)  # XLA305
            """
        ),
        example(
            """
            import torch
            from torch.nn.parallel import DistributedDataParallel as DDP


            def measure(model):
                model(torch.ones(2, 8).cuda())
                torch.cuda.synchronize()


            def main(net, loader, optimizer, rank):
                model = DDP(net.cuda(), device_ids=[rank])
                if rank == 0:
                    measure(model.module)  # XLA305
                    torch.cuda.synchronize()  # XLA305
                torch.cuda.synchronize()
                if rank == 0:
                    measure(model.module)
                for x in loader:
                    loss = model(x.cuda()).sum()
                    loss.backward()
                    optimizer.step()
            """
        ),
        example(
            """
            import torch
            import torch.distributed as dist


            def train(model, loader, val, optimizer, rank):
                for epoch in range(3):
                    for x, y in loader:
                        loss = model(x.cuda(), y.cuda())
                        loss.backward()
                        optimizer.step()
                    total, count = torch.zeros(1).cuda(), torch.zeros(1).cuda()
                    for x, y in val:
                        total += (y.cuda() - x.cuda()).abs().mean()
                        count += 1
                    dist.reduce(total, dst=0)
                    dist.reduce(count, dst=0)
                    if rank == 0:
                        print((total / count).item())
                    dist.all_reduce(total)
                    if rank == 0:
                        print((total / count).item())  # XLA305
            """
        ),
    )
    mended = example(
        """
        import torch


        def train(model, loader, optimizer, rank):
            for step, (x, y) in enumerate(loader):
                loss = model(x.cuda(), y.cuda())
                loss.backward()
                optimizer.step()
                if rank == 0 and step % 100 == 0:
                    print(loss.item())
        """
    )

    def find(self, node: cst.CSTNode, facts: Facts) -> Iterable[Hit]:
        """Yield one read under a condition of the rank, or the first tensor that is made under it."""
        if isinstance(node, cst.Call) and _is_made_on_device(node, facts):
            yield from self._made(node, facts)
            return
        if isinstance(node, cst.Call) and facts.names.of(node.func) in SYNCS:
            yield from self._synchronised(node, facts)
            return
        if isinstance(node, cst.Call) and (hits := list(self._cut_early(node, facts))):
            yield from hits
            return
        if isinstance(node, cst.Call) and method(node) == "load_state_dict":
            yield from self._loaded(node, facts)
            return
        found = [read for read in _read(node, facts) if facts.values.on_device(read)]
        guard = _guard(node, facts) if found else None
        if guard is None:
            if isinstance(node, cst.Call):
                yield from self._handed_on(node, facts)
                yield from self._evaluated(node, facts)
            return
        for read in found:
            hits = list(self._reads(read, node, guard, facts))
            yield from hits
            if hits:
                return  # once for each place

    def _reads(
        self, read: cst.BaseExpression, node: cst.CSTNode, guard: Guard, facts: Facts
    ) -> Iterable[Hit]:
        """Yield the read of `read` at `node`, below `guard`, where it parts the graphs."""
        line = facts.context.position(guard).line
        if facts.steps.inside(node):
            message = (
                f"read in some replicas only (line {line}), inside the step: graphs part, all hang"
            )
            yield self.hit(node, message)
        elif (made := computed_after(read, node, facts)) is not None:
            yield self._pending(node, made, guard, facts)
        elif (
            _is_made_in(guard, read, facts)
            and facts.steps.between(node)
            and not _nothing_is_pending(guard, facts)
        ):
            message = (
                f"computed and read in some replicas only (line {line}): graphs part before the next "
                "collective; compute and read in all, print in one"
            )
            yield self.hit(node, message)

    def _handed_on(self, call: cst.Call, facts: Facts) -> Iterable[Hit]:
        """Yield the call of a function of the script that reads a pending argument in some replicas only."""
        functions = facts.context.called(call)
        for index, arg in enumerate(call.args) if functions and _guard(call, facts) is None else ():
            if arg.star or not isinstance(arg.value, cst.Name):
                continue
            made = computed_after(arg.value, call, facts)
            if made is None:
                continue
            guards = (_reads_parameter(one, index, arg.keyword, facts) for one in functions[:3])
            guard = next((one for one in guards if one is not None), None)
            if guard is not None:
                yield self._pending(call, made, guard, facts)
                return

    def _evaluated(self, call: cst.Call, facts: Facts) -> Iterable[Hit]:
        """Yield the call of a function that computes and reads, which some replicas only make."""
        guard = facts.guards.around(call)
        if guard is not None and (evaluates(call, facts) or _is_step_of_some(call, facts)):
            line = facts.context.position(guard).line
            message = (
                f"computes and reads in some replicas only (line {line}): graphs part before the next "
                "collective; run it in all, print in one"
            )
            yield self.hit(call, message)

    def _pending(self, at: cst.CSTNode, made: cst.CSTNode, guard: Guard, facts: Facts) -> Hit:
        """Return what is to be said of a read at `at`, below `guard`, of what all computed at `made`."""
        computed, line = (facts.context.position(one).line for one in (made, guard))
        message = (
            f"computed after the step (line {computed}), read in some replicas only (line {line}): "
            "graphs part before the next collective; compute it inside the step"
        )
        return self.hit(at, message)

    def _synchronised(self, node: cst.Call, facts: Facts) -> Iterable[Hit]:
        """Yield a sync between steps under a condition of the rank."""
        guard = facts.guards.around(node)
        if guard is None or not facts.steps.between(node):
            yield from self._cut_early(node, facts)
            return
        line = facts.context.position(guard).line
        message = (
            f"synchronised in some replicas only (line {line}): what is pending in the others goes into a "
            "later graph; synchronise in all"
        )
        yield self.hit(node, message)

    def _cut_early(self, node: cst.Call, facts: Facts) -> Iterable[Hit]:
        """Yield a call of some replicas that ends the graph while a collective is pending in all."""
        name = facts.names.of(node.func) or ""
        waits = name in WAITS or facts.context.effects.waits(node)
        cut = ended_early(node, facts) if waits else None
        if cut is not None:
            guard, collective = (facts.context.position(one).line for one in cut)
            message = (
                f"synchronised in some replicas only (line {guard}), with a collective pending (line "
                f"{collective}): it runs there in another graph than in the others; torch_xla.sync() in all "
                "before it"
            )
            yield self.hit(node, message)

    def _loaded(self, node: cst.Call, facts: Facts) -> Iterable[Hit]:
        """Yield the load into a model on the device that some replicas make."""
        guard = facts.guards.around(node)
        model = receiver(node)
        if not isinstance(guard, cst.If) or model is None or not facts.context.moves_to_accelerator:
            return
        if facts.values.kind(model) is not Kind.MODEL or not _moved_before(model, node, facts):
            return
        line = facts.context.position(guard).line
        message = (
            f"loaded into the model in some replicas only (line {line}): the next collective of its weights "
            "has another graph there; load in all replicas, or before the model is moved"
        )
        yield self.hit(node, message)

    def _made(self, node: cst.Call, facts: Facts) -> Iterable[Hit]:
        """Yield the first tensor that a condition of the rank makes on the device, before the training."""
        guard = facts.guards.around(node)
        if not isinstance(guard, cst.If) or not facts.steps.found:
            return
        if facts.steps.when(node) is not When.ELSEWHERE:
            return
        if any(one is not node for one in _first_made(guard, facts)):
            return
        line = facts.context.position(guard).line
        message = (
            f"made on the device in some replicas only (line {line}): it goes into a graph that the "
            "others do not have; make it in all, or on the CPU"
        )
        yield self.hit(node, message)


def evaluates(call: cst.Call, facts: Facts) -> bool:
    """Whether `call`, between steps, runs a function that computes on the device and reads what it has."""
    if not facts.steps.between(call):
        return False
    functions = facts.context.called(call)
    if not functions:  # of another file
        given = (arg.value for arg in call.args)
        return facts.context.effects.reads(call) and any(
            facts.values.kind(one) is Kind.MODEL for one in given
        )
    return any(_reads_its_own(one, facts) for one in functions[:3])


def _is_step_of_some(call: cst.Call, facts: Facts) -> bool:
    """Whether `call` begins a step, `with torch_xla.step():`, of an evaluation between training steps."""
    block = facts.context.parent(facts.context.parent(call))
    if not isinstance(block, cst.With) or not is_step(block, facts.context):
        return False
    loop = next(
        (a for a in facts.context.ancestors(block) if isinstance(a, cst.For | cst.While)), None
    )
    if loop is None or facts.context.effects.of(block.body):
        return False
    return facts.steps.between(loop)


def _reads_its_own(function: cst.FunctionDef, facts: Facts) -> bool:
    """Whether `function` reads something that it has computed on the device."""
    for node in nodes_of(function.body, cst.Call):
        guard = facts.guards.around(node)
        if guard is not None and facts.context.function_around(guard) is function:
            continue
        if never_runs(node, facts.context) is not None:
            continue
        for read in _read(node, facts):
            if _is_there(read, node, facts) and _is_made_in(function, read, facts):
                return True
    return False


def _is_there(read: cst.BaseExpression, node: cst.CSTNode, facts: Facts) -> bool:
    """Whether what is read at `node` is on the device; of the unknown, whether it is fetched from one."""
    kind = facts.values.kind(read)
    return kind is Kind.ON_DEVICE or (kind is Kind.UNKNOWN and method(node) == "cpu")


def _is_made_in(block: cst.CSTNode, read: cst.BaseExpression, facts: Facts) -> bool:
    """Whether `block` computes what is read in it, in the read itself or in a statement before."""
    if _computes(read):
        return True
    inner = read
    while isinstance(inner, cst.Subscript):
        inner = inner.value
    given = facts.bindings.given(inner) if isinstance(inner, cst.Name) else ()
    return any(
        one.value is not None
        and _computes(one.value)
        and any(above is block for above in facts.context.ancestors(one.value))
        for one in given
    )


def _nothing_is_pending(guard: Guard, facts: Facts) -> bool:
    """Whether the statement above `guard` runs in all replicas what is pending there.

    What the first replica then computes and reads is a program of its own, without a collective.
    `dist.reduce` ends the graph by itself; `dist.all_reduce` does not.
    """
    block = facts.context.parent(guard)
    if not isinstance(guard, cst.If) or not isinstance(block, cst.IndentedBlock | cst.Module):
        return False
    at = next(i for i, one in enumerate(block.body) if one is guard)
    above = block.body[at - 1] if at else None
    if not isinstance(above, cst.SimpleStatementLine) or len(above.body) != 1:
        return False
    line = above.body[0]
    call = line.value if isinstance(line, cst.Expr) else None
    if not isinstance(call, cst.Call) or facts.guards.around(call) is not None:
        return False
    if (facts.names.of(call.func) or "") not in ENDS_GRAPHS:
        return False
    return not any(facts.values.calls_model(one) for one in nodes_of(guard, cst.Call))


def _moved_before(model: cst.BaseExpression, at: cst.Call, facts: Facts) -> bool:
    """Whether a model is moved to the device above a place in its file, or elsewhere."""
    text = code(model)
    place = _place(at, facts)
    moves = [
        call
        for call in facts.calls
        if method(call) in ("to", "cuda")
        and code(receiver(call) or call) == text
        and (
            isinstance(model, cst.Attribute)
            or facts.bindings.owner(call) is facts.bindings.owner(at)
        )
    ]
    if any(_place(call, facts) < place for call in moves):
        return True
    if isinstance(model, cst.Name):
        values = [v for v in facts.context.bound_values(model) if isinstance(v, cst.Call)]
        return any(method(value) in ("to", "cuda") for value in values)
    return not moves


def _first_made(guard: cst.If, facts: Facts) -> list[cst.Call]:
    found = (call for call in nodes_of(guard, cst.Call) if _is_made_on_device(call, facts))
    return list(islice(found, 1))


def _is_made_on_device(call: cst.Call, facts: Facts) -> bool:
    """Whether `call` is `torch.zeros(…, device=device)` or its like."""
    arg = keyword(call, "device")
    if arg is None or not (facts.names.of(call.func) or "").startswith("torch."):
        return False
    return facts.values.on_device(call)


def _read(node: cst.CSTNode, facts: Facts) -> Iterable[cst.BaseExpression]:
    """Yield what may be read at a node."""
    if isinstance(node, cst.FormattedStringExpression):
        yield node.expression
        return
    if isinstance(node, cst.Comparison):
        if _decides(node, facts):
            yield from (node.left, *(one.comparator for one in node.comparisons))
        return
    assert isinstance(node, cst.Call)
    read = receiver(node) if method(node) in READ_METHODS else None
    if read is not None:
        yield read
    elif isinstance(node.func, cst.Name) and node.func.value in ("float", "int"):
        yield from (arg.value for arg in node.args)
    elif method(node) not in METER_METHODS and is_log(node, facts.context):
        for arg in node.args:
            yield from _parts(arg.value)


def _decides(node: cst.Comparison, facts: Facts) -> bool:
    """Whether what a comparison gives decides what runs: `if loss < best`."""
    if any(isinstance(one.operator, cst.Is | cst.IsNot) for one in node.comparisons):
        return False
    below: cst.CSTNode = node
    for above in facts.context.ancestors(node):
        if isinstance(above, cst.If | cst.IfExp | cst.While | cst.Assert):
            return below is above.test
        if not isinstance(above, cst.BooleanOperation | cst.UnaryOperation):
            return False
        below = above
    return False


def _parts(value: cst.BaseExpression) -> Iterable[cst.BaseExpression]:
    """Yield `value`, or what it holds or shows: a logger is given `{"acc": acc}` or `"%f" % acc`."""
    if isinstance(value, cst.Dict | cst.Tuple | cst.List):
        for element in value.elements:
            yield element.value
    elif isinstance(value, cst.Call) and (code(value.func) == "dict" or method(value) == "format"):
        yield from (arg.value for arg in value.args)
    elif isinstance(value, cst.BinaryOperation) and in_text(value):
        yield from _parts(value.right)
    else:
        yield value


def computed_after(
    read: cst.BaseExpression, at: cst.CSTNode, facts: Facts
) -> cst.BaseExpression | None:
    """Where all replicas compute, after a step, a name that is read; None if none is still pending."""
    if facts.steps.when(at) not in (When.EVERY_STEP, When.SOMETIMES):
        return None
    for name in nodes_of(read, cst.Name):
        value = _pending(name, at, facts)
        if value is not None:
            return value
    return None


def _pending(
    name: cst.Name, at: cst.CSTNode, facts: Facts, depth: int = DEPTH
) -> cst.BaseExpression | None:
    """Return what all replicas compute after a step, in place of `name`, and nothing has run before `at`."""
    before = [one for one in facts.bindings.given(name) if one.place < _place(at, facts)]
    value = before[-1].value if before else None
    if value is None or facts.guards.around(value) is not None:
        return None
    if facts.steps.when(value) not in (When.EVERY_STEP, When.SOMETIMES):
        return _returned(name, before[-1], at, facts, depth)
    if _ran_between(name.value, value, at, facts):
        return None
    trains = isinstance(value, cst.Call) and bool(facts.context.effects.of(value))
    if _computes(value) and facts.values.on_device(value) and not trains:
        return value
    return _returned(name, before[-1], at, facts, depth)


def _returned(
    name: cst.Name, given: Given, at: cst.CSTNode, facts: Facts, depth: int
) -> cst.BaseExpression | None:
    """Return what a function of the script has left pending in its result, or a part of it, `name`."""
    call = given.value
    if not depth or not isinstance(call, cst.Call) or _ran_between(name.value, call, at, facts):
        return None
    part: int | None = None
    if given.how is How.PART:
        targets = [facts.context.parent(one.node) for one in facts.context.bindings(name)]
        tuples = [
            (one, facts.context.parent(one)) for one in targets if isinstance(one, cst.Element)
        ]
        places = [
            above.elements.index(one)
            for one, above in tuples
            if isinstance(above, cst.Tuple | cst.List)
        ]
        if len(places) != 1:
            return None
        part = places[0]
    for function in facts.context.called(call)[:3]:
        for value in facts.bindings.returns[id(function)]:
            if part is not None and isinstance(value, cst.Tuple) and part < len(value.elements):
                value = value.elements[part].value
            elif part is not None:
                continue
            found = (
                _pending(value, value, facts, depth - 1) if isinstance(value, cst.Name) else None
            )
            if found is not None:
                return found
    return None


def _guard(node: cst.CSTNode, facts: Facts) -> Guard | None:
    """Return what keeps some replicas from `node`: a test of the rank, or of what only some hold."""
    return facts.guards.around(node) or facts.guards.around_what_some_hold(node)


def _reads_parameter(
    function: cst.FunctionDef, index: int, keyword: cst.Name | None, facts: Facts
) -> Guard | None:
    """Return the test under which `function` reads what it is given at `index`, or as `keyword`."""
    names = parameters(function)
    name = keyword.value if keyword is not None else names[index] if index < len(names) else None
    mentions = {name}
    kept = function.params.star_kwarg
    if keyword is not None and name not in names and kept is not None:
        mentions = {kept.name.value}
        loops: list[cst.CompFor | cst.For] = [*nodes_of(function, cst.CompFor)]
        for loop in (*loops, *nodes_of(function, cst.For)):
            if any(one.value == kept.name.value for one in nodes_of(loop.iter, cst.Name)):
                mentions |= {one.value for one in nodes_of(loop.target, cst.Name)}
    reading = (*nodes_of(function, cst.Call), *nodes_of(function, cst.FormattedStringExpression))
    for node in reading if mentions != {None} else ():
        reads = any(
            one.value in mentions for read in _read(node, facts) for one in nodes_of(read, cst.Name)
        )
        guard = _guard(node, facts) if reads else None
        runs = guard is not None and never_runs(node, facts.context) is None
        if guard is not None and guard is not function and runs:
            return guard
    return None


def _computes(value: cst.BaseExpression) -> bool:
    """Whether a value is computed, not another name of what is there: `loss`, `loss.detach()`."""
    inner = value
    while isinstance(inner, cst.Call) and method(inner) in ("detach", "data"):
        inner = inner.func.value if isinstance(inner.func, cst.Attribute) else inner
    if isinstance(inner, cst.Call) and HOLDS.fullmatch(method(inner) or ""):
        return False  # what an object holds: `model.parameters()`
    return isinstance(inner, cst.Call | cst.BinaryOperation | cst.UnaryOperation | cst.Comparison)


def _ran_between(name: str, value: cst.CSTNode, at: cst.CSTNode, facts: Facts) -> bool:
    """Whether all replicas synchronise or read a name between two places, or come to a collective.

    A read runs the graph of what is read, and of no other. Of what a collective gives XLA308 speaks.
    """
    first, last = _place(value, facts), _place(at, facts)
    return any(
        first < _place(call, facts) < last
        and _guard(call, facts) is None
        and (facts.names.of(call.func) in SYNCS | COLLECTIVE or _reads_name(call, name))
        and never_runs(call, facts.context) is None
        for call in nodes_of(facts.bindings.owner(at), cst.Call)
    )


def _reads_name(call: cst.Call, name: str) -> bool:
    read = receiver(call) if method(call) in READ_METHODS else None
    return isinstance(read, cst.Name) and read.value == name


def _place(node: cst.CSTNode, facts: Facts) -> tuple[int, int]:
    position = facts.context.position(node)
    return position.line, position.column
