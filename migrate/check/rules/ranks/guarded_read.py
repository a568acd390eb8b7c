"""Values of the device that only some replicas read or create."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

import libcst as cst

from migrate.catalogue.words import SYNCS
from migrate.check.common import method
from migrate.check.hazard import Hazard, Hit, Severity, example
from migrate.check.rules.ranks.parting import GraphDifference
from migrate.check.rules.ranks.parting.created_values import is_made_on_device, loaded, made
from migrate.check.rules.ranks.parting.ends import cut_early, synchronized
from migrate.check.rules.ranks.parting.evaluations import evaluations
from migrate.check.rules.ranks.parting.read_at import reads_at
from migrate.check.rules.ranks.parting.reads import handed_on, in_called, reads
from migrate.check.rules.ranks.parting.unrun import kept_from
from migrate.check.rules.ranks.parting.watched import watched
from migrate.reading.facts import Facts


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

    `wandb.watch(model)` reads the gradients, and with `log="all"` the weights, every `log_freq` steps, by
    hooks that run amid the step. Under a test of the rank only the graphs of that replica are cut.

    Nothing is reported of what is computed and read right below `torch_xla.sync()` or `dist.reduce(…)` of all
    replicas, which leave nothing pending (`dist.all_reduce` does).

    **What to do.** Compute inside the step, and read after it. Where all replicas compute and read, only the
    printing goes under the condition.
    """

    code = "XLA305"
    name = "guarded-read"
    severity = Severity.ERROR
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
        example(
            """
            import torch
            import torch.distributed as dist


            def train(model, loader, optimizer, rank):
                for step, (x, y) in enumerate(loader):
                    x, y = x.cuda(), y.cuda()
                    out = model(x)
                    loss = torch.nn.functional.cross_entropy(out, y)
                    loss.backward()
                    optimizer.step()
                    mean = loss.detach().clone()
                    dist.all_reduce(mean)  # reported as XLA308
                    if rank == 0:
                        mean = mean.item() / 8
                        print(mean)
                    wrong = (out.argmax(1) != y).sum()
                    if rank == 0:
                        wrong = wrong.item()  # XLA305
                        print(wrong)
                        for turn in range(2):
                            if turn:
                                print(far.item())  # XLA305
                            far = (out - y).abs().max()
            """
        ),
        example(
            """
            import torch
            import wandb


            class Trainer:
                def __init__(self, model, rank):
                    self.model = model.cuda()
                    if rank == 0:
                        run = wandb.init(project="cells")
                        wandb.watch(self.model, log="all")  # XLA305
                        run.watch(self.model)  # XLA305
                        wandb.watch(self.model, log=None)

                def train(self, loader, optimizer):
                    wandb.watch(self.model, log_freq=1000)
                    for x in loader:
                        loss = self.model(x.cuda()).mean()
                        loss.backward()
                        optimizer.step()
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
        """Yield one read under a test of the rank, or the first tensor that is created under it."""
        return (self.hit(parting.node, parting.message) for parting in partings(node, facts))


def partings(node: cst.CSTNode, facts: Facts) -> Iterator[GraphDifference]:
    """Yield the difference of the replicas' graphs at `node`, for one of the causes in `parting`."""
    if isinstance(node, cst.Call) and is_made_on_device(node, facts):
        yield from made(node, facts)
        return
    if isinstance(node, cst.Call) and facts.names.of(node.func) in SYNCS:
        yield from synchronized(node, facts)
        return
    if isinstance(node, cst.Call) and (cut := list(cut_early(node, facts))):
        yield from cut
        return
    if isinstance(node, cst.Call) and method(node) == "load_state_dict":
        yield from loaded(node, facts)
        return
    is_read = any(facts.values.on_device(read) for read in reads_at(node, facts))
    guard = kept_from(node, facts) if is_read else None
    if guard is not None:
        yield from reads(node, guard, facts)
    elif isinstance(node, cst.Call):
        yield from handed_on(node, facts)
        yield from in_called(node, facts)
        yield from watched(node, facts)
        yield from evaluations(node, facts)
