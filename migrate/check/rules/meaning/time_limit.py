"""A loop over tensors that a time limit ends."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

import libcst as cst

from migrate.catalogue.words import CLOCKS, PLAIN
from migrate.check.hazard import Hazard, Hit, Severity, example
from migrate.model.calls.effect import BOTH
from migrate.reading.facts import Facts
from migrate.reading.flow.index_numbers import COMPUTING
from migrate.reading.steps.leaving import leaves_loop
from migrate.syntax.tree import code

# Functions of torch that compute no tensor, and read none.
OTHERS = PLAIN - {"allclose", "equal"} | {"load"}
# Maximum number of assignments followed from a test to the clock.
DEEPEST = 3


class TimeLimit(Hazard):
    """A time limit of the host's clock ends a loop over tensors.

    **Why.** On XLA the first turns compile, each new shape compiles again, and a read waits for all that is
    pending. A limit that a GPU never reaches is used up by that: the remaining turns are dropped, and the
    result is another one. Replicas reach the limit in different turns, and hang at the next collective.

    **What to do.** Limit the number of turns, or leave the limit out. Where a job has to end in time, let the
    first replica decide, broadcast the decision, and warm up before the clock starts.

    A limit that raises an error is not reported, nor one in a training loop of a single process.
    """

    code = "XLA884"
    name = "time-limit"
    severity = Severity.WARNING
    words = r"\btime\b|perf_counter|monotonic|default_timer"
    nodes = (cst.If, cst.While)
    examples = (
        example(
            """
            import time

            import torch


            def suppress(predictions, threshold, limit):
                start = time.time()
                kept = [torch.zeros((0, 6), device="cuda")] * len(predictions)
                for index, x in enumerate(predictions):
                    x = x[x[:, 4].argsort(descending=True)[:100]]
                    kept[index] = torch.cat((x, x * threshold), 1)
                    if (time.time() - start) > limit:  # XLA884
                        print("time limit exceeded")
                        break
                return kept


            def refine(model, x, seconds):
                x, end = x.cuda(), time.perf_counter() + seconds
                while time.perf_counter() < end:  # XLA884
                    x = model(x)
                return x
            """
        ),
        example(
            """
            import time
            from pathlib import Path

            import torch


            def wait(path, limit):
                start = time.time()
                while not Path(path).exists():
                    if time.time() - start > limit:
                        return None
                    time.sleep(1)
                return torch.load(path, map_location="cpu")


            def infer(model, batches, limit):
                start, results = time.time(), []
                for x in batches:
                    results.append(model(x.cuda()))
                    if time.time() - start > limit:
                        raise TimeoutError(limit)
                    if time.time() - start > 10:
                        print("slow")
                return results
            """
        ),
    )
    mended = example(
        """
        import torch


        def suppress(predictions, threshold):
            kept = [torch.zeros((0, 6), device="cuda")] * len(predictions)
            for index, x in enumerate(predictions):
                x = x[x[:, 4].argsort(descending=True)[:100]]
                kept[index] = torch.cat((x, x * threshold), 1)
            return kept
        """
    )

    def find(self, node: cst.CSTNode, facts: Facts) -> Iterable[Hit]:
        """Yield the test of a loop, or a test that leaves a loop, if the test reads a clock."""
        assert isinstance(node, cst.If | cst.While)
        if not _reads_clock(node.test, facts):
            return
        loop = node if isinstance(node, cst.While) else _left_loop(node, facts)
        if loop is None or not _computes(loop, facts):
            return
        if facts.context.effects.of(loop) & BOTH and not facts.context.calls.replicated:
            return
        message = (
            f"`{code(node.test)}` ends the loop by the host's clock: compilations and reads of XLA use the "
            "limit up, and the remaining turns are dropped; limit the number of turns"
        )
        yield self.hit(node.test, message)


def _left_loop(test: cst.If, facts: Facts) -> cst.For | cst.While | None:
    """Return the loop that a branch of `test` leaves, if one does."""
    branches = [test.body, *([test.orelse] if isinstance(test.orelse, cst.Else) else [])]
    leaves = any(leaves_loop(branch) for branch in branches)
    return facts.context.loop_around(test) if leaves else None


def _computes(loop: cst.For | cst.While, facts: Facts) -> bool:
    """Whether a turn of `loop` computes tensors."""
    for call in facts.below(loop.body, cst.Call):
        module, _, name = (facts.names.of(call.func) or "").rpartition(".")
        if facts.values.is_tensor(call) or (module in COMPUTING and name not in OTHERS):
            return True
    return False


def _reads_clock(test: cst.BaseExpression, facts: Facts) -> bool:
    """Whether `test` compares what a clock says."""
    return any(
        _follows_clock(side, facts)
        for comparison in facts.below(test, cst.Comparison)
        for side in _sides(comparison)
    )


def _sides(comparison: cst.Comparison) -> Iterator[cst.BaseExpression]:
    yield comparison.left
    yield from (target.comparator for target in comparison.comparisons)


def _follows_clock(value: cst.BaseExpression, facts: Facts, depth: int = DEEPEST) -> bool:
    """Whether `value` is computed from what a clock says."""
    if any(facts.names.of(call.func) in CLOCKS for call in facts.below(value, cst.Call)):
        return True
    if depth == 0:
        return False
    names = [value] if isinstance(value, cst.Name) else []
    if isinstance(value, cst.BinaryOperation):
        names = [side for side in (value.left, value.right) if isinstance(side, cst.Name)]
    for name in names:
        binding = facts.bindings.nearest(name)
        bound = binding.value if binding is not None else None
        if isinstance(bound, cst.BaseExpression) and _follows_clock(bound, facts, depth - 1):
            return True
    return False
