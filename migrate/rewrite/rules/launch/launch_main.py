"""A script that torchrun starts gets its replicas from `torch_xla.launch`."""

from __future__ import annotations

from collections.abc import Callable, Iterable

import libcst as cst

from migrate.reading.replicas.launch import Style
from migrate.rewrite.rule import Edit, Rule, RuleFinding, Stage, left_alone, reported, rewritten
from migrate.rewrite.rules.launch.guard_body import (
    InModuleNamespace,
    WithoutAnnotations,
    shared_names,
)
from migrate.rewrite.rules.launch.replica_function import (
    free_name,
    head_of_replica,
    index_name,
    instead_of_torchrun,
    is_launching_process,
    launch_of_file,
    launch_statement,
    uses_hydra,
)
from migrate.rewrite.workspace import Workspace

HANDLER = "XLA841"  # the code of the hazard signal-handler


class LaunchMain(Rule):
    """Launch the replicas of a script that torchrun, SLURM or MPI started once a device.

    **What it does.** The body of `if __name__ == '__main__':` moves into a function `_mp_fn`, which
    `torch_xla.launch` runs in each replica: `python script.py` starts all replicas of this host. Before
    anything else `_mp_fn` sets RANK, LOCAL_RANK, WORLD_SIZE and LOCAL_WORLD_SIZE from the runtime, so that
    the script, and the modules that it imports, take the branch that they took under torchrun.
    Started by torchrun, the script works as before. The replicas of a script with `@hydra.main` are forked,
    as hydra finds no configuration in a spawned one. What functions of the script read of the
    names that the body assigns is declared `global`. `exec(text)` and `locals()` in the body get the module's
    names, which were theirs: names that a text assigns in a function are lost, with no error.

    **When.** The script itself starts no processes, and what runs under its guard joins a process group
    (`init_process_group`, or a function of its own modules such as `init_distributed_mode`) or uses
    DistributedDataParallel or DistributedSampler. A call that switches the group off,
    `set_up(distributed=False)`, joins none. A script that asks for its rank when it is read, before
    the guard, is the rule module-script's.

    **Reported.** `signal.signal` in such a script: it works in the main thread only, and the runtime runs
    a replica in another. torch_xla holds two replicas in one process on TPU v2 and v3; there they would
    share the environment.

    Source: torch_xla 2.9, `torch_xla.launch` and `torch_xla/_internal/pjrt.py` (run on simulated replicas).
    """

    name = "launch-main"
    code = "XLA711"
    stage = Stage.LAUNCH
    nodes = (cst.If, cst.Call)
    examples = (
        rewritten(
            """
            import hydra
            import torch.distributed as dist


            @hydra.main(config_path=".", config_name="config")
            def main(config):
                dist.init_process_group("nccl")


            if __name__ == "__main__":
                main()
            """,
            """
            import os

            import hydra
            import torch.distributed as dist
            import torch_xla
            import torch_xla.distributed.xla_backend
            import torch_xla.runtime as xr


            @hydra.main(config_path=".", config_name="config")
            def main(config):
                dist.init_process_group("xla", init_method="xla://")


            def _mp_fn(index):
                if "TORCHELASTIC_RUN_ID" not in os.environ:  # else torchrun has set them
                    os.environ["RANK"] = str(index)
                    os.environ["LOCAL_RANK"] = str(xr.local_ordinal())
                    os.environ["WORLD_SIZE"] = str(xr.world_size())
                    os.environ["LOCAL_WORLD_SIZE"] = str(xr.local_device_count())
                main()


            if __name__ == "__main__":
                # Forked: hydra looks for the configuration beside the module __main__.
                torch_xla.launch(_mp_fn, start_method="fork")
            """,
        ),
        rewritten(
            """
            import argparse
            import os

            import torch.distributed as dist


            def main(epochs):
                dist.init_process_group("nccl")
                print(os.environ["LOCAL_RANK"], epochs)


            if __name__ == "__main__":
                parser = argparse.ArgumentParser()
                parser.add_argument("--epochs", type=int, default=3)
                args = parser.parse_args()

                # Each process trains its share
                main(args.epochs)
            """,
            """
            import argparse
            import os

            import torch.distributed as dist
            import torch_xla
            import torch_xla.distributed.xla_backend
            import torch_xla.runtime as xr


            def main(epochs):
                dist.init_process_group("xla", init_method="xla://")
                print(os.environ["LOCAL_RANK"], epochs)


            def _mp_fn(index):
                if "TORCHELASTIC_RUN_ID" not in os.environ:  # else torchrun has set them
                    os.environ["RANK"] = str(index)
                    os.environ["LOCAL_RANK"] = str(xr.local_ordinal())
                    os.environ["WORLD_SIZE"] = str(xr.world_size())
                    os.environ["LOCAL_WORLD_SIZE"] = str(xr.local_device_count())
                parser = argparse.ArgumentParser()
                parser.add_argument("--epochs", type=int, default=3)
                args = parser.parse_args()

                # Each process trains its share
                main(args.epochs)


            if __name__ == "__main__":
                torch_xla.launch(_mp_fn)
            """,
        ),
        rewritten(
            """
            import os

            import utils


            def train():
                print(args.epochs, os.environ.get('RANK'))


            if __name__ == '__main__':
                args: object = utils.parse()
                utils.init_distributed_mode(args)
                train()
            """,
            """
            import os

            import utils
            import torch_xla
            import torch_xla.runtime as xr


            def train():
                print(args.epochs, os.environ.get('RANK'))


            def _mp_fn(index):
                global args
                if 'TORCHELASTIC_RUN_ID' not in os.environ:  # else torchrun has set them
                    os.environ['RANK'] = str(index)
                    os.environ['LOCAL_RANK'] = str(xr.local_ordinal())
                    os.environ['WORLD_SIZE'] = str(xr.world_size())
                    os.environ['LOCAL_WORLD_SIZE'] = str(xr.local_device_count())
                args = utils.parse()
                utils.init_distributed_mode(args)
                train()


            if __name__ == '__main__':
                torch_xla.launch(_mp_fn)
            """,
        ),
        rewritten(
            """
            import os

            import torch.distributed as dist


            def read(text):
                scope = {}
                exec(text, scope)
                return scope


            if __name__ == "__main__":
                rate = 0.1
                exec(open("settings.py").read())
                settings = {name: value for name, value in locals().items() if name in ("rate",)}
                dist.init_process_group("nccl")
                print(os.environ["LOCAL_RANK"], settings, eval("rate * 2"))
            """,
            """
            import os

            import torch.distributed as dist
            import torch_xla
            import torch_xla.distributed.xla_backend
            import torch_xla.runtime as xr


            def read(text):
                scope = {}
                exec(text, scope)
                return scope


            def _mp_fn(index):
                global rate, settings
                if "TORCHELASTIC_RUN_ID" not in os.environ:  # else torchrun has set them
                    os.environ["RANK"] = str(index)
                    os.environ["LOCAL_RANK"] = str(xr.local_ordinal())
                    os.environ["WORLD_SIZE"] = str(xr.world_size())
                    os.environ["LOCAL_WORLD_SIZE"] = str(xr.local_device_count())
                rate = 0.1
                exec(open("settings.py").read(), globals())
                settings = {name: value for name, value in globals().items() if name in ("rate",)}
                dist.init_process_group("xla", init_method="xla://")
                print(os.environ["LOCAL_RANK"], settings, eval("rate * 2", globals()))


            if __name__ == "__main__":
                torch_xla.launch(_mp_fn)
            """,
        ),
        left_alone(
            """
            from torch.nn.parallel import DistributedDataParallel as DDP


            def wrap(model):
                return DDP(model.to('xla'), gradient_as_bucket_view=True)


            def self_test():
                print('parts of a model, each by itself')


            if __name__ == '__main__':
                self_test()
            """
        ),
        reported(
            """
            import signal

            import torch.distributed as dist


            def main():
                signal.signal(signal.SIGTERM, lambda *_: None)
                dist.init_process_group("nccl")


            if __name__ == "__main__":
                main()
            """,
            "main thread",
        ),
    )

    def find(self, node: cst.CSTNode, context: Workspace) -> Iterable[Edit | RuleFinding]:
        """Yield the edit of the guard, or a finding for a call that a replica cannot make."""
        if isinstance(node, cst.Call):
            if (
                context.launch.style in (Style.MAIN, Style.MODULE)
                and context.qualified_name(node.func) == "signal.signal"
                and context.launch.in_replica(node)
            ):
                message = (
                    "signal.signal works in the main thread only, and a replica runs in another: set the "
                    "handler before the launch, or under `threading.current_thread() is "
                    "threading.main_thread()`"
                )
                yield from self.report(node, message, code=HANDLER)
            return
        if context.launch.style is not Style.MAIN or node is not context.launch.guard:
            return
        assert isinstance(node, cst.If)
        if context.portable and uses_hydra(context):
            message = "each replica runs the file; shims.launch_script starts them"
            yield self.edit(node, _below_launch(context), message)
            return
        function = free_name("_mp_fn", context)
        index = index_name(context)
        shared = shared_names(node, context)
        launch = launch_statement(function, context)
        head = head_of_replica(index, context)
        if shared:
            head.insert(0, f"global {', '.join(sorted(shared))}")

        def replace(updated: cst.If) -> cst.FlattenSentinel[cst.BaseStatement]:
            lines = "\n".join(f"    {line}" for line in head or ["pass"])
            # As the module is indented, so that the body keeps its own indentation.
            main = cst.ensure_type(
                cst.parse_statement(f"def {function}({index}):\n{lines}\n"), cst.FunctionDef
            )
            plain = updated.body.visit(WithoutAnnotations(shared))
            assert isinstance(plain, cst.BaseSuite)
            body = plain.visit(InModuleNamespace(context))
            assert isinstance(body, cst.BaseSuite)
            statements = (
                body.body
                if isinstance(body, cst.IndentedBlock)
                else [cst.SimpleStatementLine(cst.ensure_type(body, cst.SimpleStatementSuite).body)]
            )
            block = cst.ensure_type(main.body, cst.IndentedBlock)
            indent = body.indent if isinstance(body, cst.IndentedBlock) else None
            footer = body.footer if isinstance(body, cst.IndentedBlock) else ()
            main = main.with_changes(
                body=block.with_changes(
                    body=[*(block.body if head else ()), *statements],
                    indent=indent,
                    footer=footer,
                ),
                leading_lines=updated.leading_lines,
            )
            launched = cst.parse_statement(launch)
            blank = cst.EmptyLine(indent=False)
            guard = updated.with_changes(
                body=cst.IndentedBlock(body=[launched], indent=indent), leading_lines=[blank, blank]
            )
            return cst.FlattenSentinel([main, guard])

        starts = context.vocabulary.say("launch")
        message = f"each replica runs the code under the `__main__` test, as {function}; {starts} starts them"
        message += instead_of_torchrun(context)
        wrong = (
            "nothing starts a replica for each chip: run the code under the `__main__` test in each, "
            f"by {starts}"
        )
        yield self.edit(node, replace, message, wrong=wrong)


def _below_launch(context: Workspace) -> Callable[[cst.If], cst.If]:
    """Return the edit of the guard that lets each replica run the file, as hydra needs it."""
    launch = cst.ensure_type(
        cst.parse_statement(
            f"if {is_launching_process(context)}:\n"
            "    # Not a function: hydra looks for the configuration beside the module __main__.\n"
            + "".join(f"    {line}\n" for line in launch_of_file(context).splitlines())
        ),
        cst.If,
    )

    def replace(updated: cst.If) -> cst.If:
        body = updated.body
        statements = (
            body.body
            if isinstance(body, cst.IndentedBlock)
            else [cst.SimpleStatementLine(cst.ensure_type(body, cst.SimpleStatementSuite).body)]
        )
        block = body if isinstance(body, cst.IndentedBlock) else cst.IndentedBlock(body=[])
        return updated.with_changes(body=block.with_changes(body=[launch, *statements]))

    return replace
