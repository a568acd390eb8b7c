"""`torch.multiprocessing.spawn` becomes `torch_xla.launch`."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

import libcst as cst

from migrate.catalogue.launchers import SPAWN, SPAWN_PARAMETERS
from migrate.catalogue.prescan import spelled
from migrate.catalogue.words import words
from migrate.check.rules.structure.main_guard import MainGuard, launches_on_import
from migrate.check.rules.structure.worker_function import WorkerFunction, has_no_name
from migrate.reading.facts import facts_of
from migrate.reading.replicas.one_device import one_device
from migrate.rewrite.edits.branch import body_of
from migrate.rewrite.edits.nodes import with_args, without
from migrate.rewrite.rule import Edit, Rule, RuleFinding, Stage, left_alone, reported, rewritten
from migrate.rewrite.rules.launch.fixed_counts import lost_counts
from migrate.rewrite.rules.launch.indirect_launch import indirect_launch
from migrate.rewrite.rules.launch.joined_spawn import Joined, joined_at_once
from migrate.rewrite.rules.launch.world_size import WorldSize
from migrate.rewrite.workspace import Workspace
from migrate.syntax.tree import bind, code, elements

MULTIPROCESSING = ("multiprocessing", "torch.multiprocessing")
GET_CONTEXT = ("multiprocessing.get_context", "torch.multiprocessing.get_context")
INHERITED = words(
    "Array Barrier BoundedSemaphore Condition Event JoinableQueue Lock Pipe Queue RLock Semaphore "
    "SimpleQueue Value"
)


class MpSpawn(Rule):
    """Launch the workers with `torch_xla.launch` instead of `torch.multiprocessing.spawn`.

    **What it does.** `mp.spawn(fn, args=A, nprocs=N)` becomes `torch_xla.launch(fn, args=A)`. The number
    of processes is not given: there is one per TPU device, and `nprocs=` is a TypeError there.

    **World size.** A CUDA script counts its devices before it spawns and passes the count on. On a TPU
    nothing may touch the runtime before the launch, so the worker asks for it:
    `world_size = torch_xla.runtime.world_size()` becomes its first statement, and the parameter, the
    argument and the count go. Where the worker does not use it, no statement is added. With
    `nprocs=len(devices)`, the worker's `len(devices)` becomes that call.

    **Also** `mp.start_processes`, which takes the same arguments; its `start_method` stays.

    `if n > 1: mp.spawn(worker, …)` with `else: worker(0, …)` becomes the launch alone, which starts one
    replica where there is one device. What is computed of the number on an object that the worker receives
    (`h.batch_size = h.batch_size // h.num_gpus`, `cfg["batch"] //= cfg["gpus"]`), and printed of that, goes
    to the worker; so does the number itself, also where only a function reads it that the worker calls.

    A function of the script that launches what it is given, `run(fn, world_size)`, loses its `world_size`
    in the same way, with the calls of it and each worker that they pass. Code that only counts the devices
    before the launch, or checks their number (`assert n_gpus >= 2`), goes.

    `mp.spawn(…, join=False)` that is joined in the same expression or in the next statement
    (`context.join()`, `while not context.join(): pass`) waits as a launch does: the join goes.

    **Reported.** A queue, a lock or a value of multiprocessing among the arguments, which the launch cannot
    pickle; a spawn that does not wait at once (`join=False`), a call with `*args` or `**kwargs`, a script
    built on `torch.distributed.rpc`; a lambda or nested worker, and a launch without a `__main__` guard
    (rewritten all the same); a world size that is passed to a worker whose definition is not in
    the script; other uses of the script's own number of processes, such as
    `dataset[rank::WORLD_SIZE]`, or `devices[rank]` of a list whose length was their number; `nprocs=1`,
    and a function that launches different fixed numbers of processes (`run(worker, 1)` and
    `run(worker, 2)`), which all become a replica on each chip.

    Source: torch_xla 2.9, `torch_xla.launch`; the worker's index is the global ordinal.
    """

    name = "mp-spawn"
    code = "XLA713"
    stage = Stage.LAUNCH
    nodes = (cst.Call,)
    words = spelled(SPAWN)
    examples = (
        rewritten(
            """
            import torch
            import torch.multiprocessing as mp


            def worker(rank, world_size, epochs):
                print(rank, world_size, epochs)


            if __name__ == '__main__':
                world_size = torch.cuda.device_count()
                # One process per device
                mp.spawn(worker, args=(world_size, 10), nprocs=world_size, join=True)
            """,
            """
            import torch_xla
            import torch_xla.runtime as xr


            def worker(rank, epochs):
                world_size = xr.world_size()
                print(rank, world_size, epochs)


            if __name__ == '__main__':
                # One process per device
                torch_xla.launch(worker, args=(10,))
            """,
        ),
        rewritten(
            """
            import torch
            import torch.distributed as dist
            import torch.multiprocessing as mp


            def train(rank, world_size):
                dist.init_process_group("nccl", rank=rank, world_size=world_size)


            def evaluate(rank, world_size):
                print(rank, world_size)


            def run(fn, world_size):
                mp.spawn(fn, args=(world_size,), nprocs=world_size, join=True)


            if __name__ == "__main__":
                n_gpus = torch.cuda.device_count()
                assert n_gpus >= 2, f"needs 2 GPUs, found {n_gpus}"
                world_size = n_gpus
                run(train, world_size)
                run(evaluate, world_size)
            """,
            """
            import torch.distributed as dist
            import torch_xla
            import torch_xla.distributed.xla_backend
            import torch_xla.runtime as xr


            def train(rank):
                dist.init_process_group("xla", init_method="xla://")


            def evaluate(rank):
                world_size = xr.world_size()
                print(rank, world_size)


            def run(fn):
                torch_xla.launch(fn)


            if __name__ == "__main__":
                run(train)
                run(evaluate)
            """,
        ),
        left_alone(
            """
            from pool import mp

            mp.spawn(print, nprocs=2)
            """
        ),
        rewritten(
            """
            import torch.multiprocessing as mp


            def worker(rank):
                pass


            if __name__ == "__main__":
                mp.start_processes(worker, nprocs=8, start_method="fork")
            """,
            """
            import torch_xla


            def worker(rank):
                pass


            if __name__ == "__main__":
                torch_xla.launch(worker, start_method="fork")
            """,
        ),
        rewritten(
            """
            import torch.multiprocessing as mp


            def worker(rank):
                pass


            if __name__ == "__main__":
                context = mp.spawn(worker, nprocs=2, join=False)
                # All of them
                context.join()
                mp.spawn(worker, nprocs=2, join=False).join()
                processes = mp.spawn(worker, nprocs=2, join=False)
                while not processes.join():
                    pass
                print("done")
            """,
            """
            import torch_xla


            def worker(rank):
                pass


            if __name__ == "__main__":
                torch_xla.launch(worker)
                # All of them
                torch_xla.launch(worker)
                torch_xla.launch(worker)
                print("done")
            """,
        ),
        reported(
            """
            import torch.multiprocessing as mp


            def worker(rank):
                pass


            if __name__ == '__main__':
                context = mp.spawn(worker, nprocs=2, join=False)
                print("waiting")
                context.join()
            """,
            "join=False",
        ),
        reported(
            """
            import torch.multiprocessing as mp


            def worker(rank):
                pass


            if __name__ == '__main__':
                context = mp.spawn(worker, nprocs=2, join=False)
            """,
            "join=False",
        ),
        reported(
            """
            import torch.multiprocessing as mp


            def main():
                mp.spawn(lambda rank: print(rank), nprocs=2)
            """,
            "define it at module level",
        ),
        reported(
            """
            import torch.multiprocessing as mp


            def worker(rank):
                print(rank)


            mp.spawn(worker, nprocs=2)
            """,
            "while the file is read",
        ),
        reported(
            """
            import torch.multiprocessing as mp


            def worker(rank, size):
                print(rank, size)


            def run(size):
                mp.spawn(worker, args=(size,), nprocs=size)


            if __name__ == "__main__":
                run(1)
                run(2)
            """,
            "1 and 2 processes asked for",
        ),
        reported(
            """
            import torch.multiprocessing as mp

            WORLD_SIZE = 2


            def worker(rank, dataset):
                return dataset[rank::WORLD_SIZE]


            def main(dataset):
                mp.spawn(worker, args=(dataset,), nprocs=WORLD_SIZE)
            """,
            "as many replicas as the TPU has devices",
        ),
        reported(
            """
            import torch
            import torch.multiprocessing as mp


            def worker(rank, results):
                results.put(rank)


            if __name__ == "__main__":
                results = mp.get_context("spawn").Queue()
                mp.spawn(worker, args=(results,), nprocs=2)
            """,
            "pickles its arguments",
        ),
    )

    def find(self, node: cst.CSTNode, context: Workspace) -> Iterable[Edit | RuleFinding]:
        """Yield the edits of one spawning call, its worker and its count of devices."""
        assert isinstance(node, cst.Call)
        if context.qualified_name(node.func) not in SPAWN:
            return
        bound = bind(node, SPAWN_PARAMETERS)
        if bound is None or "fn" not in bound:
            yield from self.report(
                node,
                f"mp.spawn with * or ** arguments: write {context.vocabulary.say('launch')} by hand",
            )
            return
        if context.uses_rpc:
            yield from self.report(
                node, "RPC has no equivalent on XLA: its processes stay as they are"
            )
            return
        joined = joined_at_once(node, context) if "join" in bound else None
        if "join" in bound and code(bound["join"].value) != "True" and joined is None:
            launch = context.vocabulary.say("launch")
            message = f"{launch} always waits for its replicas: join=False has no equivalent"
            yield from self.report(node, message)
            return
        if joined is not None:
            yield from self._without_join(joined)
        yield from self._not_launchable(node, bound["fn"].value, context)
        for value in elements(bound["args"]) if "args" in bound else ():
            if _is_inherited(value.value, context):
                message = (
                    f"`{code(value.value)}` cannot be handed to {context.vocabulary.say('launch')}, which "
                    "pickles its arguments: make it with multiprocessing.Manager()"
                )
                yield from self.report(value.value, message)
        if "nprocs" in bound and (lost := lost_counts(bound["nprocs"].value, context)):
            yield from self.report(node, lost)
        indirect = indirect_launch(node, bound, context)
        if indirect is not None:
            yield from indirect.edits(self)
            yield self._launch(node, context, bound, indirect.passed)
            return
        size = WorldSize(self, context, node, bound)
        passed = size.passed()
        if passed is not None and not size.may_be_dropped(passed):
            message = (
                f"the worker receives `{code(passed.value)}`, which is not known before the launch: "
                f"let it call {context.vocabulary.say('world size')} instead"
            )
            yield from self.report(node, message)
            passed = None
        yield from size.edits(passed)
        for place, message in size.other_uses():
            yield from self.report(place, message)
        yield self._launch(node, context, bound, passed)
        single = one_device(node, context)
        if single is not None:
            test, instead = single
            yield self.edit(
                test,
                lambda updated: body_of(updated, updated.body),
                f"remove `if {code(test.test)}`: one device is launched like several",
                consumes=[test.test, instead],
            )

    def _without_join(self, joined: Joined) -> Iterator[Edit]:
        """Yield the removal of a join: a launch waits for its replicas."""
        message = "remove .join(): a launch waits for its replicas"
        if joined.chained is not None:
            name = cst.ensure_type(joined.chained.func, cst.Attribute).attr
            yield self.edit(joined.chained, _joined_itself, message, consumes=[name])
        if joined.assign is not None and joined.line is not None:
            yield self.edit(
                joined.assign,
                lambda updated: cst.Expr(updated.value, semicolon=updated.semicolon),
                f"remove `{joined.spelled}`: a launch returns nothing",
                consumes=[joined.assign.targets[0]],
            )
            yield self.edit(
                joined.line,
                lambda _: cst.RemoveFromParent(),
                message,
                consumes=[joined.line],
            )

    def _not_launchable(
        self, node: cst.Call, fn: cst.BaseExpression, context: Workspace
    ) -> Iterator[RuleFinding]:
        """Yield what keeps a spawned process from running the worker."""
        facts = facts_of(context)
        if has_no_name(fn, node, facts):
            message = "a lambda or a nested function cannot be launched: define it at module level"
            yield from self.report(node, message, code=WorkerFunction.code)
        if launches_on_import(node, facts):
            message = (
                "launched while the file is read: the replicas read it too. Put the launch under "
                "`if __name__ == '__main__':`"
            )
            yield from self.report(node, message, code=MainGuard.code)

    def _launch(
        self,
        node: cst.Call,
        context: Workspace,
        bound: dict[str, cst.Arg],
        dropped: cst.BaseElement | None,
    ) -> Edit:
        launch = context.vocabulary.write("launch")
        dropped_names = (
            "nprocs",
            "join",
            "daemon",
            *(["start_method"] if context.portable else []),
        )
        gone = {id(bound[name]) for name in dropped_names if name in bound}
        index_of = {id(arg): index for index, arg in enumerate(node.args)}
        keep = [index_of[id(arg)] for arg in node.args if id(arg) not in gone]
        args_index = index_of[id(bound["args"])] if "args" in bound else None
        drop_at = None if dropped is None else elements(bound["args"]).index(dropped)
        if drop_at is not None and len(elements(bound["args"])) == 1:
            assert args_index is not None
            if bound["args"].keyword is not None or keep[-1] == args_index:
                keep.remove(args_index)  # args=() says nothing
                drop_at, dropped = None, None
                gone.add(id(bound["args"]))

        def replace(updated: cst.Call) -> cst.Call:
            args = [updated.args[index] for index in keep]
            if drop_at is not None and args_index is not None:
                at = keep.index(args_index)
                args[at] = args[at].with_changes(value=without(args[at].value, drop_at))
            return with_args(updated, args).with_changes(func=cst.parse_expression(launch))

        consumed: list[cst.CSTNode] = [node.func, *(a for a in node.args if id(a) in gone)]
        if dropped is not None:
            consumed.append(dropped)
        message = f"{code(node.func)} → {context.vocabulary.say('launch')}"
        return self.edit(node, replace, message, consumes=consumed)


def _joined_itself(updated: cst.Call) -> cst.BaseExpression:
    """Return the launch of `launch(…).join()`."""
    return cst.ensure_type(updated.func, cst.Attribute).value


def _is_inherited(value: cst.BaseExpression, context: Workspace) -> bool:
    """Whether `value` is a queue, a lock or the like of multiprocessing, which processes only inherit."""
    bound = context.bound_to(value)[1] if isinstance(value, cst.Name) else value
    if not isinstance(bound, cst.Call):
        return False
    func = bound.func
    of: cst.CSTNode | None = func.value if isinstance(func, cst.Attribute) else None
    if isinstance(of, cst.Name):  # `context = mp.get_context("spawn")`
        of = context.bound_to(of)[1]
    if isinstance(func, cst.Attribute) and isinstance(of, cst.Call):
        asked = context.qualified_name(of.func)
        return func.attr.value in INHERITED and asked in GET_CONTEXT
    module, _, last = (context.qualified_name(func) or "").rpartition(".")
    return last in INHERITED and module in MULTIPROCESSING
