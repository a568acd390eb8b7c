"""Seeds of the launching process that the replicas have to set again."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass

import libcst as cst

from migrate.catalogue.entry import names
from migrate.catalogue.launchers import LAUNCHERS, PROCESS, SPAWN, SPAWN_PARAMETERS
from migrate.catalogue.torch_cuda import SEEDS
from migrate.catalogue.torch_other import CPU_SEEDS
from migrate.reading.replicas.launch import Style
from migrate.rewrite.workspace import Workspace
from migrate.syntax.tree import bind, code, elements, nodes_of

CPU_SEED = names(*CPU_SEEDS)
CUDA_SEED = names(*SEEDS)
AVAILABLE = "torch.cuda.is_available"
XLA_SEED = "torch_xla.manual_seed"
# What is said of a seed where the replicas are launched.
IN_THE_WORKER = (
    "seeds only the process that launches the replicas: torch.manual_seed(seed) and "
    "torch_xla.manual_seed(seed) in the worker"
)
TOO_EARLY = (
    "this function runs in the process that launches the replicas, where XLA must not be touched: "
    "torch_xla.manual_seed(seed) in the worker, beside the call of it there"
)

AT_IMPORT = (
    "runs when the file is imported, in the process that starts the replicas too, where XLA must not be "
    "touched: torch_xla.manual_seed(seed) in the function that each replica runs"
)
ELSEWHERE = (
    "seeds in the process that launches the replicas, where XLA must not be touched, and they do not "
    "inherit it: call it in the worker, and seed XLA there"
)


# Calls that give another value each time.
DRAWS = ("numpy.random.", "os.urandom", "random.", "secrets.", "time.", "torch.rand", "torch.seed")


def draws(seed: cst.BaseExpression, context: Workspace) -> bool:
    """Whether the expression `seed` gives another number each time it is evaluated."""
    return any(
        (context.qualified_name(call.func) or code(call.func)).startswith((*DRAWS, "next"))
        for call in context.below(seed, cst.Call)
    )


@dataclass(frozen=True)
class WorkerSeed:
    """A seed that the worker can set: it knows the same number.

    Attributes:
        worker: the launched function.
        seed: the number, in the worker's words.
        tests: the conditions under which it is set, the outermost first.
    """

    worker: cst.FunctionDef
    seed: str
    tests: tuple[str, ...]

    def statement(self, seeds: str, rank: str) -> str:
        """Return the statement with which the worker seeds.

        Spawned processes do not inherit the seed, so that each GPU draws its own numbers.

        Args:
            seeds: the function that seeds.
            rank: the expression for the rank of the replica.
        """
        simple = cst.Name | cst.Attribute | cst.Integer | cst.Call | cst.Subscript
        seed = self.seed
        if not isinstance(cst.parse_expression(seed), simple):
            seed = f"({seed})"
        call = f"{seeds}({seed} + {rank})"
        if not self.tests:
            return call
        joined = " and ".join(self.tests) if len(self.tests) > 1 else self.tests[0]
        return f"if {joined}:\n    {call}"


def launches(node: cst.Call, context: Workspace) -> bool:
    """Whether the function around `node`, or the module, starts the replicas."""
    around = context.function_around(node)
    return any(
        context.qualified_name(call.func) in LAUNCHERS | PROCESS
        and context.function_around(call) is around
        for call in context.below(around or context.module, cst.Call)
    )


def runs_at_launch(node: cst.Call, context: Workspace) -> bool:
    """Whether `node`, or the function around it, is called in the process that starts the replicas.

    XLA must not be touched there: the launch would fail.
    """
    around = context.function_around(node)
    if around is not None and context.position(around.name).line in context.calls.at_launch:
        return True
    if context.launch.style is not Style.SPAWN:
        return False
    if around is None:  # under the guard of a script that launches in a function
        return any(context.launch.workers()) and not context.launch.in_replica(node)
    calls = (context.parent(mention) for mention in context.references(around.name.value))
    return any(
        isinstance(call, cst.Call)
        and isinstance(call.func, cst.Name)
        and call.func.value == around.name.value
        and not context.launch.in_replica(call)
        and id(call) not in context.launch.for_one_device
        for call in calls
    )


def seeded_by(launch: cst.Call, context: Workspace) -> Iterator[WorkerSeed]:
    """Yield the seeds that are set where `launch` starts the replicas, each once."""
    around = context.function_around(launch)
    seen: list[WorkerSeed] = []
    for call in context.below(around or context.module, cst.Call):
        if context.qualified_name(call.func) not in CPU_SEED | CUDA_SEED:
            continue
        seed = worker_seed(call, context) if context.function_around(call) is around else None
        if seed is not None and seed not in seen and not _seeds(seed.worker, context):
            seen.append(seed)
            yield seed


def worker_seed(node: cst.Call, context: Workspace) -> WorkerSeed | None:
    """Return how the worker gets the seed that `node` sets where the replicas are launched.

    None where the worker is not in the script, does not receive what the seed is made of, or is one that
    torch_xla launches already.
    """
    launch = _launch(node, context)
    if launch is None or len(node.args) != 1 or not context.devices.are_used:
        return None
    worker, objects = launch
    tests: list[str] = []
    below: cst.CSTNode = node
    for above in context.ancestors(node):
        if isinstance(above, cst.FunctionDef | cst.Module):
            break
        asked = above.test if isinstance(above, cst.If) and below is above.body else None
        if isinstance(asked, cst.Call) and context.qualified_name(asked.func) == AVAILABLE:
            pass  # there is a device
        elif isinstance(above, cst.If) and not _is_guard(above):
            said = in_worker(above.test, objects, context)
            if said is None or below is not above.body:
                return None
            tests.insert(0, said)
        elif isinstance(above, cst.For | cst.While | cst.With | cst.Try | cst.Else):
            return None
        below = above
    seed = in_worker(node.args[0].value, objects, context)
    return None if seed is None else WorkerSeed(worker, seed, tuple(tests))


def _launch(node: cst.Call, context: Workspace) -> tuple[cst.FunctionDef, Mapping[str, str]] | None:
    """Return the worker that the function around `node` launches, and its names for what it gets."""
    around = context.function_around(node)
    calls = [
        call
        for call in context.below(around or context.module, cst.Call)
        if context.qualified_name(call.func) in LAUNCHERS | PROCESS
        and context.function_around(call) is around
    ]
    if len(calls) != 1 or context.qualified_name(calls[0].func) not in SPAWN:
        return None
    bound = bind(calls[0], SPAWN_PARAMETERS)
    if bound is None or "fn" not in bound:
        return None
    if "join" in bound and code(bound["join"].value) != "True":
        return None
    worker = context.functions.get(code(bound["fn"].value))
    if worker is None or isinstance(worker.params.star_arg, cst.Param):
        return None
    names = [parameter.name.value for parameter in worker.params.params][1:]
    passed = elements(bound["args"]) if "args" in bound else []
    return worker, {
        element.value.value: name
        for element, name in zip(passed, names, strict=False)
        if isinstance(element.value, cst.Name)
    }


def in_worker(
    value: cst.BaseExpression,
    objects: Mapping[str, str],
    context: Workspace,
    calls: frozenset[str] = frozenset(),
) -> str | None:
    """Return `value` in the worker's words, or None if it is made of what the worker does not have.

    Args:
        value: an expression of the launching process.
        objects: what the worker receives, by the names of before the launch.
        context: the script.
        calls: Python's functions that it may call.
    """
    called = {id(call.func): call.func for call in context.below(value, cst.Call)}
    if any(code(function) not in calls for function in called.values()):
        return None
    if any(nodes_of(value, cst.NamedExpr)):
        return None
    renamed: dict[cst.CSTNode, cst.CSTNode] = {}
    for name in context.below(value, cst.Name):
        above = context.parent(name)
        if id(name) in called or (isinstance(above, cst.Attribute) and above.attr is name):
            continue
        if name.value in objects:
            renamed[name] = cst.Name(objects[name.value])
        elif name.value not in ("None", "True", "False"):
            return None
    renamed_value = value.visit(_Renaming(renamed))
    return code(renamed_value) if isinstance(renamed_value, cst.BaseExpression) else None


def _seeds(function: cst.FunctionDef, context: Workspace) -> bool:
    """Whether `function` seeds PyTorch itself, XLA with it."""
    names = CPU_SEED | CUDA_SEED
    return any(
        context.qualified_name(call.func) in names for call in context.below(function, cst.Call)
    )


def seeds_xla(function: cst.FunctionDef, context: Workspace) -> bool:
    """Whether `function` seeds XLA."""
    return any(
        context.qualified_name(call.func) == XLA_SEED for call in context.below(function, cst.Call)
    )


def launched_worker_seeds(node: cst.Call, context: Workspace) -> bool:
    """Whether the function around `node` launches a worker of the script that seeds XLA itself."""
    around = context.function_around(node)
    return any(
        seeds_xla(worker, context)
        for call in context.below(around or context.module, cst.Call)
        if context.qualified_name(call.func) in LAUNCHERS and call.args
        if (worker := context.functions.get(code(call.args[0].value))) is not None
    )


def _is_guard(node: cst.If) -> bool:
    return any(name.value == "__name__" for name in nodes_of(node.test, cst.Name))


class _Renaming(cst.CSTTransformer):
    def __init__(self, renamed: Mapping[cst.CSTNode, cst.CSTNode]) -> None:
        super().__init__()
        self._renamed = renamed

    def leave_Name(self, original_node: cst.Name, updated_node: cst.Name) -> cst.Name:
        """Return the worker's name for it."""
        return cst.ensure_type(self._renamed.get(original_node, updated_node), cst.Name)
