"""The end of one replica alone, in a training loop."""

from __future__ import annotations

from collections.abc import Iterable

import libcst as cst

from migrate.check.failing_imports import handlers_of
from migrate.check.hazard import Hazard, Hit, Severity, example
from migrate.model.calls.effect import BOTH
from migrate.reading.facts import Facts
from migrate.reading.replicas.own_values import decided_alone
from migrate.syntax.origins import at_line
from migrate.syntax.tree import code, last_part, nodes, nodes_of

EXITS = frozenset({"sys.exit", "exit", "quit"})
# End the process, and with it the run.
ABORTS = frozenset({"os._exit", "os.abort"})
OF_FINITE = frozenset({"isfinite", "isnan", "isinf"})
# What these give of a tensor is mostly the same on all replicas.
OF_SHAPE = frozenset({"shape", "size", "ndim", "dim", "dtype", "device", "numel"})


class LoneExit(Hazard):
    """A replica ends itself for a value of its own, and the others wait for it.

    **Why.** `if not math.isfinite(loss_value): sys.exit(1)` tests the loss of one replica. Under torchrun the
    end of one process ends the run: the agent kills the others. `torch_xla.launch` waits for all replicas,
    also after a `SystemExit` or an exception in one of them. The others wait for that one in their next
    collective: the run stands still, and the exception is not printed.

    `os._exit` is the other way round: a process that is gone breaks the pool of processes. The launch raises
    `BrokenProcessPool`, whatever the exit code is, and ends the other replicas of this host where they are.
    `if rank == 0: os._exit(0)` at the end of the training is then an error, and cuts the others short.

    `if rank == 0: break` in the training loop is such an end too, where one replica alone has reached its
    target: the others train on, and wait. With NCCL they raise once the first one has left its group.

    **What to do.** Let all replicas decide the same: reduce the flag, and test what comes of it,
    `xm.all_reduce(xm.REDUCE_MAX, bad)`. Or end the process with `os._exit(1)`, below a flush of what it has
    printed. Replicas on other hosts still wait. Where the training has ended, let the function return.
    To stop at a target that one replica finds, broadcast the flag, and leave the loop on all replicas.

    **Left alone.** `os._exit` of a failure, in all replicas or by a replica's own value. Tests of values
    that went through a collective, of settings and of counters; an exception
    that the loop itself catches; what functions raise that the step calls, which mostly ask for settings,
    where they do not ask whether numbers are finite.

    Source: torch_xla 2.9, `run_multiprocess` in `torch_xla/_internal/pjrt.py`; the pool of processes
    measured: `sys.exit` and `raise` wait for the others, `os._exit` ends all, with status 1.
    """

    code = "XLA879"
    name = "lone-exit"
    severity = Severity.WARNING
    nodes = (cst.Call, cst.Raise, cst.Break, cst.Return)
    words = r"exit\(|quit\(|\b(raise|break|return)\b"
    examples = (
        example(
            """
            import math
            import os
            import sys

            import torch
            import torch.distributed as dist


            def reduced(value):
                total = torch.tensor(value)
                dist.all_reduce(total)
                return total.item()


            def train(model, loader, optimizer):
                for x in loader:
                    loss = model(x.to("xla")).mean()
                    loss_value = loss.item()
                    if not math.isfinite(loss_value):
                        print("Loss is {}, stopping training".format(loss_value))
                        sys.exit(1)  # XLA879
                    optimizer.zero_grad()
                    loss.backward()
                    optimizer.step()
                    if loss_value > 1e6:
                        raise ValueError("diverged")  # XLA879
                    print(reduced(loss_value))
                if dist.get_rank() == 0:
                    print("done")
                    os._exit(7)  # XLA879


            def main(model, loader, optimizer):
                dist.init_process_group("xla", init_method="xla://")
                train(model, loader, optimizer)
                os._exit(0)  # XLA879
            """
        ),
        example(
            """
            import torch
            import torch.distributed as dist


            def train(model, loader, optimizer, score):
                rank, enough = dist.get_rank(), torch.zeros((), device="xla")
                for step, x in enumerate(loader):
                    loss = model(x.to("xla")).mean()
                    optimizer.zero_grad()
                    loss.backward()
                    optimizer.step()
                    if rank == 0:
                        for name in score(step):
                            if name == "done":
                                break
                        if score(step) > 0.9:
                            print("target reached")
                            break  # XLA879
                        if step == 100:
                            return loss  # XLA879
                        enough.fill_(step > 50)
                    dist.broadcast(enough, 0)
                    if enough.item():
                        break


            def main(model, loader, optimizer, score):
                dist.init_process_group("xla", init_method="xla://")
                train(model, loader, optimizer, score)
            """
        ),
        example(
            """
            import math
            import os
            import sys

            import torch.distributed as dist


            def train(model, loader, optimizer, most):
                if len(loader) < 3:
                    os._exit(1)
                for step, x in enumerate(loader):
                    loss = model(x.to("xla")).mean()
                    optimizer.zero_grad()
                    loss.backward()
                    optimizer.step()
                    if not math.isfinite(loss.item()):
                        os._exit(1)
                    if step == most:
                        sys.exit(0)
                    mean = loss.detach().clone()
                    dist.all_reduce(mean)
                    if not math.isfinite(mean.item()):
                        sys.exit(1)
                    if x.shape[1] != 3:
                        raise ValueError("no image")


            def main(model, loader, optimizer):
                dist.init_process_group("xla", init_method="xla://")
                train(model, loader, optimizer, 100)
            """
        ),
    )
    mended = example(
        """
        import math
        import sys

        import torch
        import torch.distributed as dist


        def train(model, loader, optimizer):
            total = torch.zeros((), device="xla")
            for x in loader:
                loss = model(x.to("xla")).mean()
                optimizer.zero_grad()
                loss.backward()
                optimizer.step()
                total += loss.detach()
            dist.all_reduce(total)
            if not math.isfinite(total.item()):
                sys.exit(1)


        def main(model, loader, optimizer):
            dist.init_process_group("xla", init_method="xla://")
            train(model, loader, optimizer)
        """
    )

    def find(self, node: cst.CSTNode, facts: Facts) -> Iterable[Hit]:
        """Yield the place where one replica ends itself, or leaves the training loop."""
        if isinstance(node, cst.Break | cst.Return):
            if (guard := _leaves_alone(node, facts)) is not None:
                at = at_line(facts.context.position(guard).line)
                yield self.hit(
                    node,
                    f"`{code(node)}` leaves the training loop in some replicas only, by the test in {at}: "
                    "the others train on, and wait for this one in their next collective for ever; let all "
                    "replicas decide the same, by a flag that they broadcast or reduce",
                )
            return
        if isinstance(node, cst.Call):
            if facts.names.of(node.func) in ABORTS:
                yield from self._abort(node, facts)
                return
            if code(node.func) not in EXITS:
                return
            says = code(node)
        else:
            assert isinstance(node, cst.Raise)
            says = "the exception"
        context = facts.context
        is_in_training = _is_in_training(node, facts)
        if not context.calls.replicated or not (is_in_training or facts.steps.inside(node)):
            return
        if any(handlers_of(node, facts)) or facts.guards.around(node) is not None:
            return
        alone = decided_alone(node, context)
        if alone is None or alone.unfollowed is not None or _is_of_shape(alone.value, facts):
            return
        if not is_in_training and not _asks_whether_finite(alone.condition.test):
            return
        test = code(alone.condition.test)
        yield self.hit(
            node,
            f"{says} ends one replica alone, as `{test}` may differ between the replicas. The others wait "
            "for it, and torch_xla.launch for them. Test a value that all replicas have reduced, or end the "
            "process with os._exit(1)",
        )

    def _abort(self, node: cst.Call, facts: Facts) -> Iterable[Hit]:
        """Yield the end of a process that the launch takes for a failure, though it may be none."""
        context = facts.context
        if not context.calls.replicated or context.function_around(node) is None:
            return
        guard = facts.guards.around(node)
        status = code(node.args[0].value) if node.args else ""
        if context.launch.before(node) or (guard is None and status != "0"):
            return
        alone = ""
        if guard is not None:
            alone = f", by the condition in {at_line(context.position(guard).line)} in some replicas only"
        yield self.hit(
            node,
            f"{code(node)} ends the process{alone}: torch_xla.launch raises BrokenProcessPool, whatever the "
            "exit code, and ends the other replicas where they are; let the function return in all",
        )


def _leaves_alone(node: cst.Break | cst.Return, facts: Facts) -> cst.CSTNode | None:
    """Return the test of the rank by which some replicas alone leave a training loop, or None."""
    guard = facts.guards.around(node)
    if guard is None or not isinstance(guard, cst.If) or not facts.context.calls.replicated:
        return None
    loops = {id(loop) for loop in facts.steps.loops}
    inside = False
    for above in facts.context.ancestors(node):
        if above is guard:
            inside = True
        elif isinstance(above, cst.FunctionDef | cst.ClassDef):
            return None
        elif isinstance(above, cst.For | cst.While):
            if any(id(loop) in loops for loop in nodes(above)):
                return guard if inside and not _all_leave(guard) else None
            if isinstance(node, cst.Break):
                return None  # of a loop in the turn
    return None


def _all_leave(guard: cst.If) -> bool:
    """Whether the replicas that the test keeps out leave, too."""
    other = guard.orelse
    if other is None:
        return False
    return any(isinstance(node, cst.Break | cst.Return | cst.Raise) for node in nodes(other))


def _asks_whether_finite(test: cst.BaseExpression) -> bool:
    """Whether `test` asks numbers, whatever holds them, whether they are finite: no setting is asked that."""
    return any(last_part(call.func) in OF_FINITE for call in nodes_of(test, cst.Call))


def _is_in_training(node: cst.CSTNode, facts: Facts) -> bool:
    """Whether a training loop of the script holds `node`, or a function that makes a part of the step itself.

    A check in another function that a loop calls is mostly one of settings.
    """
    loops = {id(loop) for loop in facts.steps.loops}
    if any(id(above) in loops for above in facts.context.ancestors(node)):
        return True
    function = facts.context.function_around(node)
    return function is not None and bool(facts.context.effects.of(function.body) & BOTH)


def _is_of_shape(value: cst.CSTNode, facts: Facts) -> bool:
    """Whether the value is asked only for its shape, its type or its device."""
    above = facts.context.parent(value)
    return isinstance(above, cst.Attribute) and last_part(above) in OF_SHAPE
