"""A script that torchrun starts gets its replicas from `torch_xla.launch`."""

from __future__ import annotations

from collections.abc import Iterable

import libcst as cst

from migrate.rewrite.context import Context
from migrate.rewrite.launch import Style
from migrate.rewrite.replica_function import free_name, index_name, rank_environment
from migrate.rewrite.rule import Edit, Finding, Rule, left_alone, reported, rewritten
from migrate.rewrite.tree import nodes, targets


class LaunchMain(Rule):
    """Launch the replicas of a script that torchrun, SLURM or MPI started once a device.

    **What it does.** The body of `if __name__ == '__main__':` moves into a function `_mp_fn`, which
    `torch_xla.launch` runs in each replica: `python script.py` starts all replicas of this host. Before
    anything else `_mp_fn` sets RANK, LOCAL_RANK, WORLD_SIZE and LOCAL_WORLD_SIZE from the runtime, so that
    the script, and the modules that it imports, take the branch that they took under torchrun.
    Started by torchrun, the script works as before. The replicas of a script with `@hydra.main` are forked,
    as hydra finds no configuration in a spawned one. What functions of the script read of the
    names that the body assigns is declared `global`.

    **When.** The script itself starts no processes, and what runs under its guard joins a process group
    (`init_process_group`, or a function of its own modules such as `init_distributed_mode`) or uses
    DistributedDataParallel or DistributedSampler. A script that asks for its rank when it is read, before
    the guard, is the rule module-script's.

    **Reported.** `signal.signal` in such a script: it works in the main thread only, and the runtime runs
    a replica in another. torch_xla holds two replicas in one process on TPU v2 and v3; there they would
    share the environment.

    Source: torch_xla 2.9, `torch_xla.launch` and `torch_xla/_internal/pjrt.py` (run on simulated replicas).
    """

    name = "launch-main"
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

    def find(self, node: cst.CSTNode, context: Context) -> Iterable[Edit | Finding]:
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
                yield from self.report(node, message)
            return
        if context.launch.style is not Style.MAIN or node is not context.launch.guard:
            return
        assert isinstance(node, cst.If)
        function = free_name("_mp_fn", context)
        index = index_name(context)
        torch_xla = context.imports.require("torch_xla")
        os = context.imports.require("os")
        runtime = context.imports.require("torch_xla.runtime", "xr")
        shared = _shared_names(node, context)

        def replace(updated: cst.If) -> cst.FlattenSentinel[cst.BaseStatement]:
            quote = context.quote
            head = [
                f"if {quote}TORCHELASTIC_RUN_ID{quote} not in {os}.environ:"
                "  # else torchrun has set them",
                *(f"    {line}" for line in rank_environment(index, context, os, runtime)),
            ]
            if shared:
                head.insert(0, f"global {', '.join(sorted(shared))}")
            lines = "\n".join(f"    {line}" for line in head)
            # As the module is indented, so that the body keeps its own indentation.
            made = cst.ensure_type(
                cst.parse_statement(f"def {function}({index}):\n{lines}\n"), cst.FunctionDef
            )
            body = updated.body.visit(_WithoutAnnotations(shared))
            assert isinstance(body, cst.BaseSuite)
            statements = (
                body.body
                if isinstance(body, cst.IndentedBlock)
                else [cst.SimpleStatementLine(cst.ensure_type(body, cst.SimpleStatementSuite).body)]
            )
            block = cst.ensure_type(made.body, cst.IndentedBlock)
            indent = body.indent if isinstance(body, cst.IndentedBlock) else None
            footer = body.footer if isinstance(body, cst.IndentedBlock) else ()
            made = made.with_changes(
                body=block.with_changes(
                    body=[*block.body, *statements], indent=indent, footer=footer
                ),
                leading_lines=updated.leading_lines,
            )
            launched = cst.parse_statement(_launch(torch_xla, function, context))
            blank = cst.EmptyLine(indent=False)
            guard = updated.with_changes(
                body=cst.IndentedBlock(body=[launched], indent=indent), leading_lines=[blank, blank]
            )
            return cst.FlattenSentinel([made, guard])

        message = f"the body of the guard runs in each replica, as {function}; torch_xla.launch starts them"
        yield self.edit(node, replace, message)


def _launch(torch_xla: str, function: str, context: Context) -> str:
    """Return the line that starts the replicas, with the reason above it where they are forked."""
    if not any(
        context.qualified_name(node) == "hydra.main"
        for node in context.nodes
        if isinstance(node, cst.Attribute | cst.Name)
    ):
        return f"{torch_xla}.launch({function})"
    fork = context.string("fork").value
    return (
        "# Forked: hydra looks for the configuration beside the module __main__.\n"
        f"{torch_xla}.launch({function}, start_method={fork})"
    )


def _shared_names(guard: cst.If, context: Context) -> frozenset[str]:
    """Return the names that the guard's body binds and that other code of the script uses."""
    bound = set(_bound(guard.body))
    if _looks_at_its_globals(context):
        return frozenset(bound)
    inside = {id(node) for node in nodes(guard)}
    used = set()
    for node in context.nodes:
        if isinstance(node, cst.Name) and node.value in bound and id(node) not in inside:
            above = context.parent(node)
            if isinstance(above, cst.Attribute) and above.attr is node:
                continue
            if isinstance(above, cst.Arg) and above.keyword is node:
                continue
            owner, _ = context.bound_to(node)
            if not isinstance(owner, cst.FunctionDef):
                used.add(node.value)
    return frozenset(used)


def _bound(body: cst.CSTNode) -> Iterable[str]:
    """Yield the names that statements bind in their own scope."""
    for target in targets(_WithoutScopes.of(body)):
        if isinstance(target, cst.Name):
            yield target.value
    for node in nodes(_WithoutScopes.of(body)):
        if isinstance(node, cst.FunctionDef | cst.ClassDef):
            yield node.name.value
        elif isinstance(node, cst.Import | cst.ImportFrom):
            for alias in () if isinstance(node.names, cst.ImportStar) else node.names:
                name = alias.evaluated_alias or alias.evaluated_name
                yield name.split(".")[0]


def _looks_at_its_globals(context: Context) -> bool:
    calls = (node for node in context.nodes if isinstance(node, cst.Call))
    names = {"globals", "exec", "eval"}
    return any(isinstance(call.func, cst.Name) and call.func.value in names for call in calls)


class _WithoutScopes(cst.CSTTransformer):
    """Empties definitions and comprehensions, whose names are their own."""

    @staticmethod
    def of(body: cst.CSTNode) -> cst.CSTNode:
        result = body.visit(_WithoutScopes())
        assert isinstance(result, cst.CSTNode)
        return result

    def leave_FunctionDef(
        self, original_node: cst.FunctionDef, updated_node: cst.FunctionDef
    ) -> cst.FunctionDef:
        return updated_node.with_changes(
            body=cst.SimpleStatementSuite(body=[cst.Pass()]), params=cst.Parameters()
        )

    def leave_ClassDef(
        self, original_node: cst.ClassDef, updated_node: cst.ClassDef
    ) -> cst.ClassDef:
        return updated_node.with_changes(body=cst.SimpleStatementSuite(body=[cst.Pass()]))

    def leave_Lambda(
        self, original_node: cst.Lambda, updated_node: cst.Lambda
    ) -> cst.BaseExpression:
        return cst.Name("None")

    def leave_ListComp(
        self, original_node: cst.ListComp, updated_node: cst.ListComp
    ) -> cst.BaseExpression:
        return cst.Name("None")

    def leave_GeneratorExp(
        self, original_node: cst.GeneratorExp, updated_node: cst.GeneratorExp
    ) -> cst.BaseExpression:
        return cst.Name("None")


class _WithoutAnnotations(cst.CSTTransformer):
    """Makes `x: int = 1` plain: an annotated name may not be global in a function."""

    def __init__(self, names: frozenset[str]) -> None:
        super().__init__()
        self._names = names

    def visit_FunctionDef(self, node: cst.FunctionDef) -> bool:
        return False

    def visit_ClassDef(self, node: cst.ClassDef) -> bool:
        return False

    def leave_AnnAssign(
        self, original_node: cst.AnnAssign, updated_node: cst.AnnAssign
    ) -> cst.BaseSmallStatement | cst.RemovalSentinel:
        target = updated_node.target
        if not isinstance(target, cst.Name) or target.value not in self._names:
            return updated_node
        if updated_node.value is None:
            return cst.RemoveFromParent()
        return cst.Assign(targets=[cst.AssignTarget(target)], value=updated_node.value)
