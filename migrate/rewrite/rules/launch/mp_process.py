"""A loop that starts one `Process` a device becomes `torch_xla.launch`."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

import libcst as cst

from migrate.catalogue.launchers import PROCESS
from migrate.reading.values.process_loops import ProcessLoop, process_loop
from migrate.rewrite.rule import Edit, Rule, RuleFinding, left_alone, reported, rewritten
from migrate.rewrite.rules.launch.world_size import WorldSize
from migrate.rewrite.workspace import Workspace
from migrate.syntax.tree import code, keyword


class MpProcess(Rule):
    """Launch with `torch_xla.launch` what a loop over ranks started as processes.

    **What it does.** `for rank in range(n): p = Process(target=f, args=(rank, n, …)); p.start()` and the
    loop that joins the processes become `torch_xla.launch(f, args=(…))`, which waits for all replicas. The
    number of processes is treated as the rule mp-spawn treats it: the worker asks for it.

    **When.** The loop does nothing else, the worker's first argument is the loop's variable, and the
    worker joins a process group.

    **Left alone.** Processes that join no process group: loaders, servers.

    **Reported.** Processes that join a process group and are started otherwise: with several functions,
    with `kwargs`, outside of such a loop, by a class that derives from `Process`, or by a pool. The function
    may join by what it calls in another file.

    Source: torch_xla 2.9, `torch_xla.launch`.
    """

    name = "mp-process"
    code = "XLA714"
    nodes = (cst.Call,)
    words = r"Process|Pool|\.start\("
    examples = (
        rewritten(
            """
            import torch.distributed as dist
            import torch.multiprocessing as mp


            def run(rank, size, epochs, backend='gloo'):
                dist.init_process_group(backend, rank=rank, world_size=size)
                print(size, epochs)


            if __name__ == '__main__':
                size = 2
                processes = []
                # One process per device
                for rank in range(size):
                    p = mp.Process(target=run, args=(rank, size, 3))
                    p.start()
                    processes.append(p)

                for p in processes:
                    p.join()
            """,
            """
            import torch.distributed as dist
            import torch_xla
            import torch_xla.distributed.xla_backend
            import torch_xla.runtime as xr


            def run(rank, epochs, backend='gloo'):
                size = xr.world_size()
                dist.init_process_group('xla', init_method='xla://')
                print(size, epochs)


            if __name__ == '__main__':
                # One process per device
                torch_xla.launch(run, args=(3,))
            """,
        ),
        left_alone(
            """
            from multiprocessing import Process


            def load(shard):
                print(shard)


            for shard in range(4):
                p = Process(target=load, args=(shard,))
                p.start()
            """
        ),
        reported(
            """
            import torch.distributed as dist
            from torch.multiprocessing import Process


            def serve(rank):
                dist.init_process_group("gloo", rank=rank, world_size=2)


            def train(rank):
                dist.init_process_group("gloo", rank=rank, world_size=2)


            if __name__ == "__main__":
                server = Process(target=serve, args=(0,))
                server.start()
                trainer = Process(target=train, args=(1,))
                trainer.start()
            """,
            "one function that branches on its index",
        ),
    )

    def find(self, node: cst.CSTNode, context: Workspace) -> Iterable[Edit | RuleFinding]:
        """Yield the edits of one loop that starts processes, or why it is left."""
        assert isinstance(node, cst.Call)
        if not context.launch.starts_replica(node):
            return
        if context.uses_rpc:
            yield from self.report(
                node, "RPC has no equivalent on XLA: its processes stay as they are"
            )
            return
        loop = process_loop(node, context)
        if loop is None:
            yield from self.report(node, self._by_hand(node, context))
            return
        yield from self._launch(loop, context)

    def _by_hand(self, node: cst.Call, context: Workspace) -> str:
        """Return what to do about a process that is not started by a loop that does nothing else."""
        launch = context.vocabulary.say("launch")
        loops = (cst.For, cst.While, cst.BaseComp)
        several = any(isinstance(above, loops) for above in context.ancestors(node))
        argument = keyword(node, "target")
        if argument is None and context.qualified_name(node.func) not in PROCESS and node.args:
            argument, several = node.args[0], True  # of a pool
        if (
            several
            and argument is not None
            and isinstance(argument.value, cst.Name | cst.Attribute)
        ):
            worker = code(argument.value)
            return (
                f"the processes that this starts join a process group: start them with "
                f"{launch}({worker}, args=(…)), which gives {worker} the index of the replica first "
                "and waits for all"
            )
        return (
            f"{launch} runs the same function in every replica: write the processes as one function "
            "that branches on its index, and launch that"
        )

    def _launch(self, loop: ProcessLoop, context: Workspace) -> Iterator[Edit | RuleFinding]:
        bound = {"fn": loop.target, "nprocs": loop.count, "args": loop.args}
        size = WorldSize(self, context, loop.call, bound, first=0)
        passed = size.passed()
        if passed is not None and not size.may_be_dropped(passed):
            message = (
                f"the worker receives `{code(passed.value)}`, which is not known before the launch: "
                f"let it call {context.vocabulary.say('world size')} instead"
            )
            yield from self.report(loop.call, message)
            passed = None
        yield from size.edits(passed, [loop.loop])
        for place, message in size.other_uses(besides=[loop.loop]):
            yield from self.report(place, message)
        kept = [code(e.value) for e in loop.elements()[1:] if e is not passed]
        args = f", args=({', '.join(kept)}{',' if len(kept) == 1 else ''})" if kept else ""
        launches = context.vocabulary.write("launch")
        launch = cst.parse_statement(f"{launches}({code(loop.target.value)}{args})")
        message = f"the processes of the loop → {context.vocabulary.say('launch')}"
        yield self.edit(
            loop.loop,
            lambda updated: launch.with_changes(leading_lines=updated.leading_lines),
            message,
            consumes=[loop.loop],
        )
        for statement in loop.removed:
            yield self.edit(
                statement,
                lambda _: cst.RemoveFromParent(),
                f"{context.vocabulary.say('launch')} waits for its replicas",
                consumes=[statement],
            )
