"""Programs that start one process a GPU are launchers of their own."""

from __future__ import annotations

import re
from collections.abc import Iterable

import libcst as cst

from migrate.reading.tree.prescan import spelled
from migrate.reading.tree.tree import code, nodes_of, string_value
from migrate.rewrite.rule import Finding, Rule, Safety, left_alone, reported
from migrate.rewrite.workspace import Workspace

POPEN = frozenset(
    {"subprocess.Popen", "subprocess.run", "subprocess.call", "subprocess.check_call"}
)
SUBMITIT = frozenset({"submitit.AutoExecutor", "submitit.SlurmExecutor", "submitit.LocalExecutor"})
SHELL = frozenset({"os.popen", "os.system", "subprocess.check_output", "subprocess.getoutput"})
LAUNCHER = re.compile(r"torch\.distributed\.(launch|run)|torchrun|mpirun|mpiexec|srun")
PASSED = re.compile(r"--(local_)?rank\b")
GIVEN = frozenset({"RANK", "LOCAL_RANK", "CUDA_VISIBLE_DEVICES"})


class ProcessLaunchers(Rule):
    """Report programs that start the processes of a training one by one.

    **Why.** A script that the rewrite has given a launcher starts all replicas of its host. Started once
    a GPU by another program, it would start them that many times.

    **Reported.** Commands run in a script that sets RANK, LOCAL_RANK or CUDA_VISIBLE_DEVICES for them, or
    puts `--rank` together for them; commands that run torchrun, `torch.distributed.launch`, mpirun or srun;
    submitit's executors: start the rewritten training script once on each host instead.

    Source: torch_xla 2.9, `torch_xla.launch`.
    """

    name = "process-launchers"
    safety = Safety.REPORT_ONLY
    nodes = (cst.Call,)
    words = spelled(POPEN | SHELL | SUBMITIT)
    examples = (
        left_alone(
            """
            import subprocess

            subprocess.run(["git", "rev-parse", "HEAD"])
            """
        ),
        reported(
            """
            import os
            import subprocess
            import sys

            environment = dict(os.environ)
            for rank in range(8):
                environment["RANK"] = str(rank)
                subprocess.Popen([sys.executable, "train.py"], env=environment)
            """,
            "once on each host",
        ),
        reported(
            """
            import subprocess
            import sys

            for index in range(8):
                subprocess.Popen([sys.executable, *sys.argv[1:], "--rank={}".format(index)])
            """,
            "once on each host",
        ),
        reported(
            """
            import os
            import subprocess
            import sys

            import torch

            torchrun = [sys.executable, "-m", "torch.distributed.launch", "train.py"]
            subprocess.run([sys.executable, "-m", "torch.distributed.run", "train.py"])
            os.system(f"torchrun --nproc_per_node={8} train.py")
            """,
            "once on each host",
        ),
    )

    def find(self, node: cst.CSTNode, context: Workspace) -> Iterable[Finding]:
        """Yield a finding for one call that starts processes."""
        assert isinstance(node, cst.Call)
        name = context.qualified_name(node.func)
        starts = name in POPEN and (_sets_a_rank(context) or _passes_a_rank(context))
        launches = name in POPEN | SHELL and _names_a_launcher(node)
        if name in SUBMITIT or starts or launches:
            yield from self.report(
                node,
                "starts the processes of a training: start the rewritten script once on each host "
                "instead, it starts the replicas itself",
            )


def _names_a_launcher(call: cst.Call) -> bool:
    """Whether the command that `call` runs is one of the programs that start a process for each GPU."""
    strings = [*nodes_of(call, cst.SimpleString), *nodes_of(call, cst.FormattedStringText)]
    return any(LAUNCHER.search(code(string)) for string in strings)


def _sets_a_rank(context: Workspace) -> bool:
    """Whether the script sets a rank, or which GPUs are seen, in an environment."""
    for target in context.targets:
        if isinstance(target, cst.Subscript) and len(target.slice) == 1:
            index = target.slice[0].slice
            if isinstance(index, cst.Index) and string_value(index.value) in GIVEN:
                return True
    return False


def _passes_a_rank(context: Workspace) -> bool:
    """Whether the script puts an option with a rank together, and declares none: `f"--rank={index}"`."""
    declares = {
        id(arg.value)
        for call in context.all_of(cst.Call)
        if isinstance(call.func, cst.Attribute) and call.func.attr.value == "add_argument"
        for arg in call.args
    }
    strings = context.all_of(cst.SimpleString, cst.FormattedStringText)
    return any(PASSED.search(code(one)) and id(one) not in declares for one in strings)
