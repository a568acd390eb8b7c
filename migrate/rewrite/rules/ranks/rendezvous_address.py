"""Remove the rendezvous address of NCCL and Gloo."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator, Sequence

import libcst as cst

from migrate.catalogue.prescan import spelled
from migrate.check.hazard import Severity
from migrate.check.rules.structure.rank_environment import RankEnvironment
from migrate.reading.replicas.launch import Style
from migrate.reading.values.environment import OF_TORCHRUN, of_torchrun_alone
from migrate.rewrite.edits.branch import left_above
from migrate.rewrite.edits.nodes import with_args
from migrate.rewrite.rule import Edit, Rule, RuleFinding, Stage, left_alone, reported, rewritten
from migrate.rewrite.rules.ranks.started_by_torchrun import decides
from migrate.rewrite.workspace import Workspace
from migrate.syntax.tree import code, nodes, nodes_of, string_value

VARIABLES = frozenset({"MASTER_ADDR", "MASTER_PORT"})
# A comment that is about them.
ABOUT = re.compile(r"(?i)\bmaster[ _-]?(addr|host|ip|node|port)|\brendezvous\b")
# What asks Slurm for the names of the hosts.
OUTPUTS = frozenset({"subprocess.getoutput", "subprocess.check_output"})
SHOWS = re.compile(r"[bBfFrR]*[\"']+scontrol show hostname")


class RendezvousAddress(Rule):
    """Remove the lines that set MASTER_ADDR and MASTER_PORT.

    **What it does.** With `init_method="xla://"` the TPU runtime finds the hosts by itself. A leftover
    `MASTER_ADDR = 'localhost'` would be taken for the address of the first host and keep the hosts of a
    pod apart. So the rule removes the lines that set these variables and the entries of
    `os.environ.update({…})` and `os.environ |= {…}`. It also removes an `if` around nothing else, with its
    `elif` and `else`, and a comment above about these lines. A variable that only these lines used and that
    asks Slurm for the first host (`subprocess.getoutput("scontrol show hostname …")`) is removed too.

    **Reported.** A script that also reads the variable elsewhere: the lines stay. A script that reads
    MASTER_ADDR, MASTER_PORT or another variable of torchrun that nothing sets before, or that is set only in
    a branch that may not run: without torchrun the read raises a KeyError. `if "LOCAL_RANK" in os.environ:`
    does not prevent this, since a launched replica gets its rank and no address.

    Source: torch_xla 2.9, `torch_xla/_internal/rendezvous.py`, which reads MASTER_ADDR first.
    """

    name = "rendezvous-address"
    code = "XLA721"
    stage = Stage.LAUNCH
    edited = Severity.INFO
    nodes = (cst.SimpleStatementLine, cst.If, cst.SimpleString)
    words = spelled(VARIABLES | OF_TORCHRUN)
    examples = (
        rewritten(
            """
            import os

            import torch.distributed as dist


            def setup(rank, world_size):
                os.environ['MASTER_ADDR'] = 'localhost'
                os.environ['MASTER_PORT'] = '12355'

                # initialize the process group
                dist.init_process_group('gloo', rank=rank, world_size=world_size)
            """,
            """
            import torch.distributed as dist
            import torch_xla.distributed.xla_backend


            def setup(rank, world_size):
                # initialize the process group
                dist.init_process_group('xla', init_method='xla://')
            """,
        ),
        rewritten(
            """
            import os


            def setup(port):
                os.environ.update({"MASTER_ADDR": "localhost", "MASTER_PORT": str(port)})
                os.environ.update(MASTER_PORT="1234", OMP_NUM_THREADS="1")
                os.environ |= {
                    "MASTER_ADDR": "localhost",
                    "OMP_NUM_THREADS": "1",
                }
            """,
            """
            import os


            def setup(port):
                os.environ.update(OMP_NUM_THREADS="1")
                os.environ |= {
                    "OMP_NUM_THREADS": "1",
                }
            """,
        ),
        rewritten(
            """
            import os


            def setup(port):
                os.environ["MASTER_ADDR"], os.environ["MASTER_PORT"] = "localhost", str(port)
                os.environ["MASTER_ADDR"], os.environ["OMP_NUM_THREADS"] = "localhost", "1"  # one
                (os.environ["MASTER_PORT"], start, stop) = ("1", 1, 2)
                return start, stop
            """,
            """
            import os


            def setup(port):
                os.environ["OMP_NUM_THREADS"] = "1"  # one
                (start, stop) = (1, 2)
                return start, stop
            """,
        ),
        left_alone(
            """
            import os

            os.environ['OMP_NUM_THREADS'] = '1'
            """
        ),
        reported(
            """
            import os

            os.environ['MASTER_ADDR'] = 'localhost'
            print('first host:', os.environ['MASTER_ADDR'])
            """,
            "is also read",
        ),
        reported(
            """
            import os

            import torch.distributed as dist


            def setup(rank, size):
                port = int(os.environ['MASTER_PORT'])
                print('listening at', port)
                dist.init_process_group(
                    'nccl', init_method=f'tcp://localhost:{port}', rank=rank, world_size=size
                )
                print('port', port)
            """,
            "remove it with what it served",
        ),
        reported(
            """
            import os

            import torch.distributed as dist


            def setup():
                if 'RANK' in os.environ:
                    rank, size = int(os.environ['RANK']), int(os.environ['WORLD_SIZE'])
                else:
                    rank, size = 0, 1
                    os.environ['MASTER_ADDR'] = '127.0.0.1'
                print(rank, 'of', size, 'at', os.environ['MASTER_ADDR'])
                dist.init_process_group('nccl', rank=rank, world_size=size)
            """,
            "without it this raises",
        ),
        reported(
            """
            import os

            import torch.distributed as dist


            def by_torchrun():
                return os.environ.get('LOCAL_RANK') is not None


            def master_port():
                return int(os.environ['MASTER_PORT']) if by_torchrun() else 29500


            def setup():
                os.environ['MASTER_PORT'] = str(master_port())
                dist.init_process_group('nccl')
            """,
            "without it this raises",
        ),
        left_alone(
            """
            import os

            host = os.environ.get('MASTER_ADDR', 'localhost')
            if 'MASTER_PORT' in os.environ:
                print(host, os.environ['MASTER_PORT'])
            """
        ),
    )

    def find(self, node: cst.CSTNode, context: Workspace) -> Iterable[Edit | RuleFinding]:
        """Yield the removal of a statement, of an `if` that holds nothing else, or of entries of a dict."""
        if isinstance(node, cst.SimpleString):
            name = of_torchrun_alone(node, context, spawns=context.launch.spawns)
            if name is not None:
                message = f"{name} is set by torchrun alone: without it this raises"
                served = "; xla:// needs no address, remove it with what it served"
                message += served * (name in VARIABLES)
                yield from self.report(node, message, code=RankEnvironment.code)
            return
        if isinstance(node, cst.If):
            if not self._goes_whole(node, context):
                return
            lines = [line for body in _branches(node) or () for line in body.body]
            names = {name for line in lines for name in self._only_sets(line, context)}
            message = f"sets {', '.join(sorted(names))}: the TPU runtime finds the hosts itself"
            left = left_above(node, ABOUT)
            yield self.edit(node, lambda _: left, message, consumes=[node])
            yield from self._only_for(node, context)
            return
        entries = settings(node, context)
        if not entries or self._is_in_whole(node, context):
            return
        read = sorted({name for _, name in entries if self._is_read(name, context)})
        if read:
            listed = ", ".join(read)
            yield from self.report(
                node,
                f"{listed} is also read: remove both; an address that is set is where xla:// meets",
            )
            return
        names = {name for _, name in entries}
        message = f"sets {', '.join(sorted(names))}: the TPU runtime finds the hosts itself"
        if self._only_sets(node, context):
            assert isinstance(node, cst.BaseStatement)
            left = left_above(node, ABOUT)
            yield self.edit(node, lambda _: left, message, consumes=[node])
            yield from self._only_for(node, context)
            return
        for holder in {id(h): h for h in (context.parent(e) for e, _ in entries)}.values():
            gone = [entry for entry, _ in entries if context.parent(entry) is holder]
            if isinstance(holder, cst.Tuple | cst.List):
                places = [i for i, e in enumerate(holder.elements) if any(e is g for g in gone)]
                above = context.parent(holder)
                assign = context.parent(above) if above is not None else None
                assert isinstance(assign, cst.Assign)
                yield self.edit(assign, _without_targets(places), message, consumes=gone)
                continue
            assert isinstance(holder, cst.Dict | cst.Call)
            yield self.edit(holder, _without(holder, gone), message, consumes=gone)

    def _only_sets(self, line: cst.CSTNode, context: Workspace) -> frozenset[str]:
        """Return the variables that the statement sets, if setting them is all that it does."""
        entries = settings(line, context)
        holders = {id(holder): holder for holder in (context.parent(e) for e, _ in entries)}
        whole = all(
            len(holder.args if isinstance(holder, cst.Call) else holder.elements)
            == sum(context.parent(entry) is holder for entry, _ in entries)
            for holder in holders.values()
            if isinstance(holder, cst.Tuple | cst.List)
            or (isinstance(holder, cst.Dict | cst.Call) and _updates(holder))
        )
        return frozenset(name for _, name in entries) if whole else frozenset()

    def _goes_whole(self, node: cst.If, context: Workspace) -> bool:
        """Whether the `if`, with what else it has, does nothing but set the variables, and they may go."""
        if isinstance(context.parent(node), cst.If):  # an elif
            return False
        bodies = _branches(node)
        if bodies is None:
            return False
        sets = [self._only_sets(line, context) for body in bodies for line in body.body]
        return all(sets) and not any(
            self._is_read(name, context) for names in sets for name in names
        )

    def _is_in_whole(self, node: cst.CSTNode, context: Workspace) -> bool:
        """Whether `node` is in a branch of an `if` that is removed as a whole."""
        above = context.parent(context.parent(node))
        if isinstance(above, cst.Else):
            above = context.parent(above)
        while isinstance(above, cst.If) and isinstance(context.parent(above), cst.If):
            above = context.parent(above)
        return isinstance(above, cst.If) and self._goes_whole(above, context)

    def _only_for(self, gone: cst.CSTNode, context: Workspace) -> Iterator[Edit]:
        """Yield the removal of a variable that only `gone` used: the first host of a Slurm job."""
        used = {name.value: name for name in context.below(gone, cst.Name)}
        for name in used.values():
            bindings = context.bindings(name)
            value = context.bound_to(name)[1]
            if not isinstance(value, cst.Call | cst.Subscript):
                continue
            if context.function_around(name) is None:
                continue
            line = context.statement_around(value)
            uses = [use for use in context.mentions(name) if use is not bindings[0].node]
            within = {id(node) for node in nodes(gone)}
            if not uses or any(id(use) not in within for use in uses):
                continue
            if not isinstance(line, cst.SimpleStatementLine) or len(line.body) != 1:
                continue
            if isinstance(line.body[0], cst.Assign) and _asks_slurm(value, context):
                message = f"remove `{code(line.body[0])}`: nothing uses it any more"
                yield self.edit(line, lambda _: cst.RemoveFromParent(), message, consumes=[line])
                yield from self._only_for(line, context)

    def _is_read(self, name: str, context: Workspace) -> bool:
        """Whether the script mentions the variable other than to set it or to ask whether it is set.

        RPC reads it too, inside torch.
        """
        if context.uses_rpc:
            return True
        for string in context.all_of(cst.SimpleString, cst.ConcatenatedString):
            if string_value(string) != name or isinstance(
                context.parent(string), cst.ConcatenatedString
            ):
                continue
            statement = context.statement_around(string)
            asked = isinstance(statement, cst.If) and "environ" in code(statement.test)
            if asked and context.launch.style is Style.SPAWN and decides(string, context):
                return True  # without the variable its replicas take the other branch
            keys = {key for _, key in settings(statement, context)}
            if name not in keys and not asked:
                return True
        return False


def _branches(node: cst.If) -> list[cst.IndentedBlock] | None:
    """Return the blocks of an `if`, its `elif` and its `else`, or None if one is on the line of its head."""
    blocks: list[cst.IndentedBlock] = []
    part: cst.If | cst.Else | None = node
    while part is not None:
        if not isinstance(part.body, cst.IndentedBlock):
            return None
        if part is not node and not isinstance(part, cst.Else) and _may_do(part.test):
            return None
        blocks.append(part.body)
        part = part.orelse if isinstance(part, cst.If) else None
    return None if len(blocks) > 1 and _may_do(node.test) else blocks


def _may_do(test: cst.BaseExpression) -> bool:
    """Whether a test may do more than ask."""
    return next(nodes_of(test, cst.Call), None) is not None


def _asks_slurm(value: cst.Call | cst.Subscript, context: Workspace) -> bool:
    """Whether `value` is of Slurm's environment, or asks it for its hosts: `scontrol show hostname …`."""
    if isinstance(value, cst.Subscript):
        text = code(value)
        return context.qualified_name(value.value) == "os.environ" and "SLURM_" in text
    call = value
    return (
        context.qualified_name(call.func) in OUTPUTS
        and bool(call.args)
        and SHOWS.match(code(call.args[0].value)) is not None
    )


def settings(line: cst.CSTNode, context: Workspace) -> list[tuple[cst.CSTNode, str]]:
    """Return what of a statement sets one of the variables, and which: a target, a call, a dict's entry."""
    if not isinstance(line, cst.SimpleStatementLine) or len(line.body) != 1:
        return []
    statement = line.body[0]
    entries: list[tuple[cst.CSTNode, str | None]] = []
    if isinstance(statement, cst.Assign) and len(statement.targets) == 1:
        target = statement.targets[0].target
        entries.append((target, _subscripted(target, context)))
        entries.extend(_in_tuple(statement, context))
    elif isinstance(statement, cst.AugAssign):  # os.environ |= {…}
        if context.qualified_name(statement.target) == "os.environ":
            entries.extend(_entries(statement.value))
    elif isinstance(statement, cst.Expr) and isinstance(statement.value, cst.Call):
        call = statement.value
        name = context.qualified_name(call.func)
        if name in ("os.environ.setdefault", "os.putenv") and call.args:
            entries.append((call, string_value(call.args[0].value)))
        elif name == "os.environ.update":
            for arg in call.args:
                if arg.keyword is not None:
                    entries.append((arg, arg.keyword.value))
                elif not arg.star:
                    entries.extend(_entries(arg.value))
    return [(node, name) for node, name in entries if name in VARIABLES]


def _in_tuple(
    statement: cst.Assign, context: Workspace
) -> Iterator[tuple[cst.CSTNode, str | None]]:
    """Yield the variables that `os.environ["A"], os.environ["B"] = "a", "b"` sets, each by its target."""
    target, value = statement.targets[0].target, statement.value
    if not isinstance(target, cst.Tuple | cst.List) or not isinstance(value, cst.Tuple | cst.List):
        return
    if len(target.elements) != len(value.elements):
        return
    if any(isinstance(e, cst.StarredElement) for e in (*target.elements, *value.elements)):
        return
    for element in target.elements:
        yield element, _subscripted(element.value, context)


def _without_targets(gone: Sequence[int]) -> Callable[..., cst.CSTNode]:
    """Return the edit that removes targets and their values from `a, b, c = x, y, z`."""

    def kept(side: cst.BaseExpression) -> cst.BaseExpression:
        assert isinstance(side, cst.Tuple | cst.List)
        elements = [e for index, e in enumerate(side.elements) if index not in gone]
        if len(elements) == 1:
            return elements[0].value
        elements[-1] = elements[-1].with_changes(comma=side.elements[-1].comma)
        return side.with_changes(elements=elements)

    def replace(updated: cst.Assign) -> cst.CSTNode:
        target = updated.targets[0]
        left = kept(target.target)
        assert isinstance(left, cst.BaseAssignTargetExpression)
        targets = [target.with_changes(target=left)]
        return updated.with_changes(targets=targets, value=kept(updated.value))

    return replace


def _entries(value: cst.BaseExpression) -> list[tuple[cst.CSTNode, str | None]]:
    if isinstance(value, cst.Dict):
        elements = (e for e in value.elements if isinstance(e, cst.DictElement))
        return [(element, string_value(element.key)) for element in elements]
    if isinstance(value, cst.Call) and code(value.func) == "dict":
        return [(a, a.keyword.value) for a in value.args if a.keyword is not None]
    return []


def _updates(holder: cst.CSTNode) -> bool:
    """Whether `holder` lists variables: a dict, or a call of `update` or `dict` with keywords."""
    if isinstance(holder, cst.Call):
        return code(holder.func) == "dict" or code(holder.func).endswith("update")
    return isinstance(holder, cst.Dict)


def _without(
    holder: cst.Dict | cst.Call, gone: Sequence[cst.CSTNode]
) -> Callable[..., cst.CSTNode]:
    """Return the edit that takes the entries `gone` out of a dict or a call."""
    listed = list(holder.elements) if isinstance(holder, cst.Dict) else list(holder.args)
    kept = [index for index, entry in enumerate(listed) if all(entry is not g for g in gone)]

    def replace(updated: cst.Dict | cst.Call) -> cst.CSTNode:
        if isinstance(updated, cst.Call):
            return with_args(updated, [updated.args[index] for index in kept])
        elements = [updated.elements[index] for index in kept]
        if elements:
            elements[-1] = elements[-1].with_changes(comma=updated.elements[-1].comma)
        return updated.with_changes(elements=elements)

    return replace


def _subscripted(target: cst.BaseExpression, context: Workspace) -> str | None:
    """Return NAME of `os.environ['NAME']`."""
    if not isinstance(target, cst.Subscript) or len(target.slice) != 1:
        return None
    if context.qualified_name(target.value) != "os.environ":
        return None
    index = target.slice[0].slice
    return string_value(index.value) if isinstance(index, cst.Index) else None
