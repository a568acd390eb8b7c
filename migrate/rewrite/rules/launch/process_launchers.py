"""Programs that start one process a GPU are launchers of their own."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Sequence

import libcst as cst

from migrate.catalogue.prescan import spelled
from migrate.rewrite.rule import Rule, RuleFinding, Safety, left_alone, reported
from migrate.rewrite.workspace import Workspace
from migrate.syntax.tree import code, nodes_of, string_value

POPEN = frozenset(
    {"subprocess.Popen", "subprocess.run", "subprocess.call", "subprocess.check_call"}
)
SUBMITIT = frozenset({"submitit.AutoExecutor", "submitit.SlurmExecutor", "submitit.LocalExecutor"})
SHELL = frozenset({"os.popen", "os.system", "subprocess.check_output", "subprocess.getoutput"})
LAUNCHER = re.compile(r"torch\.distributed\.(launch|run)|torchrun|mpirun|mpiexec|srun|sbatch")
PASSED = re.compile(r"--(local_)?rank\b")
PYTHON = re.compile(r"python|sys\.executable|\.py\b")
PROGRAM = re.compile(r"[\w./-]+")
SCRIPT_NAME = re.compile(r"[\w./-]+\.py\b")
# What a script holds that works on GPUs, or together with other processes.
ON_GPUS = re.compile(rb"cuda|torch\.distributed|lightning|accelerate|deepspeed")
GPUS = re.compile(r"gpu|cuda|torch|gres", re.IGNORECASE)
# `CUDA_VISIBLE_DEVICES` of a process that works on the CPU.
NONE_SEEN = ("", "-1")
MOST_STATEMENTS = 50
GIVEN = frozenset({"RANK", "LOCAL_RANK", "CUDA_VISIBLE_DEVICES"})


class ProcessLaunchers(Rule):
    """Report programs that start the processes of a training one by one.

    **Why.** A script that the rewrite has given a launcher starts all replicas of its host. Started once
    a GPU by another program, it would start them that many times.

    **Reported.** Commands run in a script that sets RANK, LOCAL_RANK or CUDA_VISIBLE_DEVICES for them, or
    puts `--rank` together for them, unless these run another program than Python, or a script of the project
    that does jobs of the CPU; commands that run torchrun, `torch.distributed.launch`, mpirun, srun or sbatch;
    submitit's executors, in a script that asks for GPUs or trains: start the rewritten training script once
    on each host instead.

    Source: torch_xla 2.9, `torch_xla.launch`.
    """

    name = "process-launchers"
    code = "XLA715"
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
        left_alone(
            """
            import submitit

            from tokens import tokenize

            executor = submitit.AutoExecutor("logs")
            executor.update_parameters(cpus_per_task=8)
            executor.map_array(tokenize, ["a.txt", "b.txt"])
            """
        ),
        reported(
            """
            import submitit

            from training import main

            executor = submitit.AutoExecutor("logs")
            executor.update_parameters(gpus_per_node=8, tasks_per_node=8)
            executor.submit(main)
            """,
            "once on each host",
        ),
        left_alone(
            """
            import os
            import subprocess

            os.environ["CUDA_VISIBLE_DEVICES"] = "0"
            subprocess.run(["ffmpeg", "-i", "clip.mp4", "frames"])
            """
        ),
        left_alone(
            """
            import os
            import subprocess
            import sys

            environment = dict(os.environ)
            environment["CUDA_VISIBLE_DEVICES"] = ""
            subprocess.run([sys.executable, "prepare.py"], env=environment)
            """
        ),
        reported(
            """
            import subprocess

            command = ["torchrun", "--nproc_per_node=8"]
            command += ["train.py"]
            subprocess.check_call(" ".join(command), shell=True)
            """,
            "once on each host",
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

    def find(self, node: cst.CSTNode, context: Workspace) -> Iterable[RuleFinding]:
        """Yield a finding for one call that starts processes."""
        assert isinstance(node, cst.Call)
        name = context.qualified_name(node.func)
        command = list(_command(node, context)) if name in POPEN | SHELL else []
        launches = any(_names_a_launcher(part) for part in command)
        starts = (
            name in POPEN
            and (_sets_a_rank(context) or _passes_a_rank(context))
            and _may_train(command, context)
        )
        submits = name in SUBMITIT and _is_for_gpus(context)
        if submits or starts or launches:
            yield from self.report(
                node,
                "starts the processes of a training: start the rewritten script once on each host "
                "instead, it starts the replicas itself",
            )


def _command(call: cst.Call, context: Workspace) -> Iterator[cst.CSTNode]:
    """Yield the call, and the expressions of the command that it runs where a variable holds that."""
    yield call
    waiting = [name for arg in call.args for name in context.below(arg.value, cst.Name)]
    seen: set[int] = set()
    for name in waiting:  # grows
        for binding in context.bindings(name):
            statement = context.statement_around(binding.node)
            plain = isinstance(statement, cst.SimpleStatementLine)
            if not plain or id(statement) in seen or len(seen) > MOST_STATEMENTS:
                continue
            seen.add(id(statement))
            yield statement
            waiting += list(nodes_of(statement, cst.Name))
        for use in context.references(name.value):
            adds = context.statement_around(use)
            if _adds(adds, name.value) and id(adds) not in seen:
                seen.add(id(adds))
                yield adds


def _adds(statement: cst.CSTNode, name: str) -> bool:
    """Whether a statement adds to the list `name`: `command.append("train.py")`."""
    return isinstance(statement, cst.SimpleStatementLine) and any(
        code(call.func) in (f"{name}.append", f"{name}.extend", f"{name}.insert")
        for call in nodes_of(statement, cst.Call)
    )


def _names_a_launcher(part: cst.CSTNode) -> bool:
    """Whether a part of a command is one of the programs that start a process for each GPU."""
    strings = [*nodes_of(part, cst.SimpleString), *nodes_of(part, cst.FormattedStringText)]
    return any(LAUNCHER.search(code(string)) for string in strings)


def _may_train(command: Sequence[cst.CSTNode], context: Workspace) -> bool:
    """Whether a command may start a training: it runs Python, and no script that does CPU jobs only."""
    texts = [
        code(string)
        for part in command
        for string in (*nodes_of(part, cst.SimpleString), *nodes_of(part, cst.FormattedStringText))
    ]
    first = next(iter(texts), "").strip("\"'fb").split(" ")[0]
    whole = " ".join(code(part) for part in command)
    if PYTHON.search(whole) is None and PROGRAM.fullmatch(first):
        return False
    scripts = {match for text in texts for match in SCRIPT_NAME.findall(text)}
    folders = (context.file.parent, *context.file.parent.parents[:2])
    files = [next((f / s for f in folders if (f / s).is_file()), None) for s in sorted(scripts)]
    if not files or any(file is None for file in files):
        return True
    return any(ON_GPUS.search(file.read_bytes()) for file in files if file is not None)


def _is_for_gpus(context: Workspace) -> bool:
    """Whether the jobs that a script submits may train: it asks for GPUs, or names what trains."""
    calls = context.calls
    return bool(calls.joins or calls.training or GPUS.search(context.source.text))


def _sets_a_rank(context: Workspace) -> bool:
    """Whether the script sets a rank, or which GPUs are seen, in an environment; not that none are."""
    for target in context.targets:
        if isinstance(target, cst.Subscript) and len(target.slice) == 1:
            index = target.slice[0].slice
            if isinstance(index, cst.Index) and string_value(index.value) in GIVEN:
                assign = context.parent(context.parent(target))
                value = string_value(assign.value) if isinstance(assign, cst.Assign) else None
                if value not in NONE_SEEN:
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
    return any(PASSED.search(code(string)) and id(string) not in declares for string in strings)
