"""Tests whether torchrun started the program."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator

import libcst as cst

from migrate.catalogue.prescan import spelled
from migrate.catalogue.words import RANKS
from migrate.check.hazard import Severity
from migrate.reading.replicas.launch import INIT, Style
from migrate.reading.values.environment import OF_TORCHRUN, access, environment_name, is_read
from migrate.rewrite.rule import Edit, Rule, RuleFinding, left_alone, reported, rewritten
from migrate.rewrite.rules.ranks.asked_in_turn import asked, listed, names_in
from migrate.rewrite.workspace import Workspace
from migrate.syntax.tree import code, nodes_of, string_value

# What the launcher sets of torchrun's variables, in the order in which a test asks for them instead.
SET_BY_LAUNCHER = ("RANK", "WORLD_SIZE", "LOCAL_RANK", "LOCAL_WORLD_SIZE")
ASKS = "torch.distributed.is_torchelastic_launched"
# What a branch decides that has to do with replicas, where it only assigns.
DECIDES = re.compile(r"\.?(\w*_)?(rank|world_?size|(is_)?distributed|ddp)$", re.IGNORECASE)


class StartedByTorchrun(Rule):
    """Ask whether RANK is set, where a script asks whether torchrun started it.

    **What it does.** `torch_xla.launch` sets neither MASTER_ADDR nor another variable of torchrun, and the
    launcher that the rewrite adds sets RANK, LOCAL_RANK, WORLD_SIZE and LOCAL_WORLD_SIZE. A script that takes
    itself for a single process where MASTER_ADDR is missing would do so in every replica: each would train
    alone, as rank 0 of 1. The test asks for RANK instead, which torchrun sets as well. So does
    `torch.distributed.is_torchelastic_launched()`.

    **When.** A branch of the test sets or reads RANK, LOCAL_RANK or WORLD_SIZE, joins the process group, or
    assigns a rank, a world size or whether the program is distributed. In a file that starts nothing, where a
    branch sets or reads one of these variables.

    **Left alone.** Scripts that start their replicas themselves: torchrun's variables are missing there
    today, too. Branches that have nothing to do with replicas, such as a default for the address.

    **Reported.** Tests in other forms, such as `all(name in os.environ for name in (…))`, and a count of the
    variables that are set: `len({n: os.environ[n] for n in NAMES if n in os.environ}) == len(NAMES)`.

    Source: torch_xla 2.9 (run: none of these variables is set in a launched replica).
    """

    name = "started-by-torchrun"
    code = "XLA727"
    edited = Severity.INFO
    nodes = (cst.SimpleString, cst.Call)
    words = spelled(OF_TORCHRUN | {"is_torchelastic_launched"})
    examples = (
        rewritten(
            """
            import os

            import torch.distributed as dist


            def setup():
                if "MASTER_ADDR" not in os.environ:  # a single process
                    os.environ["RANK"] = "0"
                    os.environ["WORLD_SIZE"] = "1"
                dist.init_process_group("nccl")
            """,
            """
            import os

            import torch.distributed as dist
            import torch_xla.distributed.xla_backend


            def setup():
                if "RANK" not in os.environ:  # a single process
                    os.environ["RANK"] = "0"
                    os.environ["WORLD_SIZE"] = "1"
                dist.init_process_group("xla", init_method="xla://")
            """,
        ),
        rewritten(
            """
            import os

            import torch.distributed as dist


            def setup():
                if not dist.is_torchelastic_launched():
                    return 0
                dist.init_process_group("nccl")
                return int(os.environ["RANK"])
            """,
            """
            import os

            import torch.distributed as dist
            import torch_xla.distributed.xla_backend


            def setup():
                if "RANK" not in os.environ:
                    return 0
                dist.init_process_group("xla", init_method="xla://")
                return int(os.environ["RANK"])
            """,
        ),
        left_alone(
            """
            import os

            if "TORCHELASTIC_RESTART_COUNT" in os.environ:
                print("restarted")
            """
        ),
        reported(
            """
            import os

            import torch.distributed as dist


            def setup():
                if all(name in os.environ for name in ("RANK", "MASTER_ADDR")):
                    dist.init_process_group("nccl", rank=int(os.environ["RANK"]))
            """,
            "is not set by torch_xla.launch",
        ),
    )

    def find(self, node: cst.CSTNode, context: Workspace) -> Iterable[Edit | RuleFinding]:
        """Yield the edit of one test, or why it is left."""
        if context.launch.style is Style.SPAWN:
            return
        if isinstance(node, cst.Call):
            if context.qualified_name(node.func) == ASKS and decides(node, context):
                yield self._asks_for_rank(node, context)
            return
        assert isinstance(node, cst.SimpleString)
        name = string_value(node)
        if name not in OF_TORCHRUN:
            return
        if environment_name(node, context) is None:
            yield from self._in_turn(node, context)
            if _is_asked_in_turn(node, context) and decides(node, context):
                message = (
                    f"{name} is not set by torch_xla.launch: a replica would take itself for a single "
                    "process; ask for RANK alone, which torchrun and the launcher set"
                )
                yield from self.report(node, message)
            return
        environ = access(node, context)
        if environ is None or not is_read(node, context) or not _is_test(environ, context):
            return
        if not decides(node, context):
            return
        # Another name where the same test asks for RANK already, and one of its own for each.
        asked = [
            environment_name(s, context)
            for s in context.below(_test_around(node, context), cst.SimpleString)
        ]
        free = [rank for rank in SET_BY_LAUNCHER if rank not in asked] or ["RANK"]
        missing = [variable for variable in dict.fromkeys(asked) if variable in OF_TORCHRUN]
        new = free[min(missing.index(name), len(free) - 1)]
        message = (
            f"{name} is set by torchrun alone: the test asks for {new}, which the launcher sets"
        )
        quoted = node.value.replace(name, new)
        yield self.edit(node, lambda _: cst.SimpleString(quoted), message)

    def _in_turn(self, node: cst.SimpleString, context: Workspace) -> Iterable[RuleFinding]:
        """Yield what asks which variables of a list are set, once for the list that `node` is in."""
        names = listed(node, context)
        if names is None:
            return
        missing = [name for name in names_in(names) if name in OF_TORCHRUN]
        if missing[:1] != [string_value(node)] or not RANKS.intersection(names_in(names)):
            return
        for question in asked(names, context):
            if _is_asked_in_turn(node, context) and decides(node, context):
                continue  # which is reported for each name
            message = (
                f"{', '.join(missing)}: torch_xla.launch sets none of these, so that a replica has only a "
                "part of the variables; ask for RANK alone, which torchrun and the launcher set"
            )
            yield from self.report(question, message)

    def _asks_for_rank(self, call: cst.Call, context: Workspace) -> Edit:
        quote, module = context.quote, context.imports.require("os")
        above = context.parent(call)
        place: cst.CSTNode = call
        if isinstance(above, cst.UnaryOperation) and isinstance(above.operator, cst.Not):
            place = above
        is_not = place is not call
        text = f"{quote}RANK{quote} {'not ' * is_not}in {module}.environ"
        if isinstance(context.parent(place), cst.UnaryOperation | cst.Comparison):
            text = f"({text})"
        message = f"`{code(call)}` is False in a launched replica: asks for RANK"
        return self.edit(
            place, lambda _: cst.parse_expression(text), message, consumes=[call, place]
        )


def _is_test(environ: cst.CSTNode, context: Workspace) -> bool:
    """Whether `environ` asks whether a variable is set, and not for its value."""
    if isinstance(environ, cst.Comparison):
        return True
    if not isinstance(environ, cst.Call) or len(environ.args) > 1:
        return False
    below: cst.CSTNode = environ
    for above in context.ancestors(environ):
        if isinstance(above, cst.Comparison):
            others = [code(target.comparator) for target in above.comparisons]
            return above.left is below and others in (["None"], ['""'], ["''"])
        if isinstance(above, cst.UnaryOperation | cst.BooleanOperation):
            below = above
            continue
        if isinstance(above, cst.If | cst.IfExp):
            return above.test is below
        return False
    return False


def _is_asked_in_turn(node: cst.SimpleString, context: Workspace) -> bool:
    """Whether a list of names that holds `node` is asked for: `all(n in os.environ for n in (…))`."""
    for above in context.within_statement(node):
        if isinstance(above, cst.GeneratorExp | cst.ListComp):
            return any(
                isinstance(target.operator, cst.In | cst.NotIn)
                and context.qualified_name(target.comparator) == "os.environ"
                for target in nodes_of(above.elt, cst.ComparisonTarget)
            ) or any(
                context.qualified_name(call.func) in ("os.getenv", "os.environ.get")
                for call in context.below(above.elt, cst.Call)
            )
    return False


def _test_around(node: cst.CSTNode, context: Workspace) -> cst.CSTNode:
    """Return the largest expression around `node` that is a part of one test."""
    below = node
    for above in context.ancestors(node):
        if isinstance(above, cst.BaseSmallStatement | cst.BaseStatement | cst.IfExp):
            return below
        below = above
    return below


def decides(node: cst.CSTNode, context: Workspace) -> bool:
    """Whether the test around `node` decides something about the replicas."""
    below: cst.CSTNode = node
    for above in context.ancestors(node):
        if isinstance(above, cst.If):
            return below is above.test and _has_replicas_in(above, context)
        if isinstance(above, cst.IfExp) and below is above.test:
            if any(_is_of_replicas(part, context) for part in (above.body, above.orelse)):
                return True
            return _is_assigned(above, context)
        if isinstance(above, cst.Return):
            function = context.function_around(above)
            return function is not None and _is_asked_later(function.name.value, context)
        if isinstance(above, cst.Assign):
            names = (code(target.target).rpartition(".")[2] for target in above.targets)
            return any(_is_asked_later(name, context) for name in names)
        if isinstance(above, cst.BaseStatement | cst.BaseSmallStatement):
            return False
        below = above
    return False


def _is_asked_later(name: str, context: Workspace) -> bool:
    """Whether a branch that has to do with the replicas depends on `name`, a function or a variable."""
    tests = [
        node
        for node in context.all_of(cst.If)
        if any(part.value == name for part in context.below(node.test, cst.Name))
    ]
    if not tests:  # another file may ask
        return _is_of_replicas(context.module, context)
    return any(_has_replicas_in(node, context) for node in tests)


def _has_replicas_in(node: cst.If, context: Workspace) -> bool:
    around = context.function_around(node)
    if around is not None and any(nodes_of(node.body, cst.Return)):
        return _is_of_replicas(around, context)  # what follows is the other branch
    return any(_is_of_replicas(part, context) for part in _branches(node))


def _is_assigned(choice: cst.IfExp, context: Workspace) -> bool:
    above = context.parent(choice)
    return isinstance(above, cst.Assign) and any(
        DECIDES.search(code(target.target)) for target in above.targets
    )


def _branches(first: cst.If) -> Iterator[cst.CSTNode]:
    """Yield the bodies of an `if`, of what follows it, and the tests of these."""
    branch: cst.If | cst.Else | None = first
    while branch is not None:
        yield branch.body
        branch = branch.orelse if isinstance(branch, cst.If) else None


def _is_of_replicas(root: cst.CSTNode, context: Workspace) -> bool:
    """Whether code reads or sets the rank, joins the process group, or assigns what a rank is."""
    if any(environment_name(s, context) in RANKS for s in context.below(root, cst.SimpleString)):
        return True
    if context.launch.style is Style.NONE:
        return False  # whether the file that starts the replicas sets RANK is not known
    if isinstance(root, cst.Module):
        return False
    if any(context.qualified_name(call.func) in INIT for call in context.below(root, cst.Call)):
        return True
    return any(
        DECIDES.search(code(part))
        for target in nodes_of(root, cst.AssignTarget)
        for part in (
            [element.value for element in target.target.elements]
            if isinstance(target.target, cst.Tuple)
            else [target.target]
        )
    )
