"""mpi4py's world of processes is that of the replicas."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

import libcst as cst

from migrate.check.hazard import Severity
from migrate.reading.replicas.launch import Style
from migrate.rewrite.edits.nodes import keyword_arg, with_args
from migrate.rewrite.rule import Edit, Rule, RuleFinding, left_alone, reported, rewritten
from migrate.rewrite.styles.vocabulary import Word
from migrate.rewrite.workspace import Workspace
from migrate.syntax.tree import bind, code, last_part, string_value

WORLD = frozenset({"mpi4py.MPI.COMM_WORLD"})
ALONE = frozenset({"mpi4py.MPI.COMM_SELF"})
ASKED: dict[str, Word] = {
    "Get_rank": "rank",
    "rank": "rank",
    "Get_size": "world size",
    "size": "world size",
}
CALLED = frozenset({"Get_rank", "Get_size", "Barrier", "barrier", "bcast"})
ADDRESS = frozenset({"MASTER_ADDR", "MASTER_PORT"})


class Mpi(Rule):
    """Ask torch_xla, not mpi4py, which replica this is, and let the replicas share what MPI shared.

    **What it does.** The replicas of one start are no MPI processes: mpi4py tells each of them that it is
    rank 0 of 1, so that all train on the same data. Of `MPI.COMM_WORLD`, also by a name of its own
    (`comm = MPI.COMM_WORLD`), `Get_rank()` and `.rank` become `torch_xla.runtime.global_ordinal()`,
    `Get_size()` and `.size` become `world_size()`, `Barrier()` becomes `xm.rendezvous`, and `bcast(value)`
    becomes `xm.mesh_reduce`, which takes the root's value of the values of all: numbers, text, bytes,
    tensors, and containers of them; it raises for other objects. A name that is broadcast for nothing but
    MASTER_ADDR or MASTER_PORT goes. Start the script once on each host, without mpirun.

    **When.** In code that runs in a replica.

    **Reported.** What is asked while a module is read or before the launch; other methods, and a
    communicator that is passed on. The bytes of a file, which `xm.mesh_reduce` would send as Python integers:
    read the file on every replica.

    Source: torch_xla 2.9, `torch_xla/core/xla_model.py` (run on two simulated replicas).
    """

    name = "mpi"
    code = "XLA719"
    nodes = (cst.Call, cst.Attribute, cst.Assign)
    words = "mpi4py"
    examples = (
        rewritten(
            """
            import os

            import torch.distributed as dist
            from mpi4py import MPI


            def join():
                comm = MPI.COMM_WORLD
                os.environ["RANK"] = str(comm.rank)
                port = comm.bcast(free_port(), root=0)
                os.environ["MASTER_PORT"] = str(port)
                dist.init_process_group("nccl")


            def shard(paths):
                return paths[MPI.COMM_WORLD.Get_rank() :: MPI.COMM_WORLD.Get_size()]


            def load(path):
                data = open(path).read() if MPI.COMM_WORLD.Get_rank() == 0 else None
                MPI.COMM_WORLD.Barrier()
                return MPI.COMM_WORLD.bcast(data)
            """,
            """
            import os

            import torch.distributed as dist
            import torch_xla.core.xla_model as xm
            import torch_xla.distributed.xla_backend
            import torch_xla.runtime as xr


            def join():
                os.environ["RANK"] = str(xr.global_ordinal())
                dist.init_process_group("xla", init_method="xla://")


            def shard(paths):
                return paths[xr.global_ordinal() :: xr.world_size()]


            def load(path):
                data = open(path).read() if xr.global_ordinal() == 0 else None
                xm.rendezvous("load")
                return xm.mesh_reduce("load", data, lambda values: values[0])
            """,
        ),
        left_alone(
            """
            from pool import MPI


            def shard(paths):
                return paths[MPI.COMM_WORLD.Get_rank()]
            """
        ),
        reported(
            """
            from mpi4py import MPI

            RANK = MPI.COMM_WORLD.Get_rank()
            """,
            "while the module is read",
        ),
        reported(
            """
            from mpi4py import MPI


            def share(path, size=2**30):
                with open(path, "rb") as file:
                    data = file.read()
                for start in range(0, len(data), size):
                    MPI.COMM_WORLD.bcast(data[start : start + size])
            """,
            "read the file on every replica",
        ),
        reported(
            """
            from mpi4py import MPI


            def gather(values):
                return MPI.COMM_WORLD.gather(values)
            """,
            "rank 0 of 1",
        ),
    )

    def find(self, node: cst.CSTNode, context: Workspace) -> Iterable[Edit | RuleFinding]:
        """Yield the edits and findings for one use of a communicator."""
        if isinstance(node, cst.Assign):
            yield from self._assign(node, context)
        elif isinstance(node, cst.Call):
            if _use(node, context) is not None and _in_replica(node, context):
                yield self._edit(node, context)
                yield from self._file(node, context)
        elif isinstance(node, cst.Attribute):
            if _use(node, context) is not None and _in_replica(node, context):
                yield self._edit(node, context)
            elif context.qualified_name(node) in WORLD | ALONE:
                yield from self._communicator(node, context)

    def _assign(self, node: cst.Assign, context: Workspace) -> Iterable[Edit]:
        if _only_for_the_address(node, context) or _is_replaced(node, context):
            message = f"remove `{code(node)}`: the TPU runtime finds the other replicas"
            yield self.edit(node, lambda _: cst.RemoveFromParent(), message, consumes=[node])

    def _edit(self, node: cst.Call | cst.Attribute, context: Workspace) -> Edit:
        use = _use(node, context)
        assert use is not None
        if use in ASKED:
            new = context.vocabulary.write(ASKED[use])
            return self.edit(
                node, lambda _: cst.parse_expression(new), f"{code(node)} → {new}", consumes=[node]
            )
        assert isinstance(node, cst.Call)
        if context.portable:
            return self._by_shims(node, use, context)
        module = context.imports.require("torch_xla.core.xla_model", "xm")
        function = context.function_around(node)
        assert function is not None
        tag = cst.Arg(context.string(function.name.value))
        if use in ("Barrier", "barrier"):
            rendezvous = cst.parse_expression(f"{module}.rendezvous")
            return self.edit(
                node,
                lambda updated: updated.with_changes(func=rendezvous, args=[tag]),
                f"{code(node)} → rendezvous",
                consumes=[node.func],
            )
        reduce = cst.parse_expression(f"{module}.mesh_reduce")
        root = _root(node)
        choice = cst.Arg(cst.parse_expression(f"lambda values: values[{root}]"))
        at = _value_at(node)
        gone = [arg for index, arg in enumerate(node.args) if index != at]

        def replace(updated: cst.Call) -> cst.Call:
            value = cst.Arg(cst.Name("None") if at is None else updated.args[at].value)
            return updated.with_changes(func=reduce, args=[tag, value, choice])

        message = f"{code(node)} → mesh_reduce, with the value of replica {root}"
        return self.edit(node, replace, message, consumes=[node.func, *gone])

    def _file(self, node: cst.Call, context: Workspace) -> Iterable[RuleFinding]:
        """Yield the broadcast of what was read from a file of bytes, or of a slice of it."""
        at = _value_at(node) if _use(node, context) == "bcast" else None
        if at is None or context.portable or not _is_file(node.args[at].value, context):
            return
        message = (
            f"{code(node)}: mesh_reduce makes a Python integer of each byte, on each replica those of all: a "
            "gigabyte takes eight on the host for each replica, and minutes; read the file on every replica"
        )
        yield from self.report(node, message, Severity.WARNING)

    def _by_shims(self, node: cst.Call, use: str, context: Workspace) -> Edit:
        """Return the edit of a call in the portable style."""
        shims = context.imports.require("shims")
        if use in ("Barrier", "barrier"):
            barrier = cst.parse_expression(f"{shims}.barrier()")
            return self.edit(node, lambda _: barrier, f"{code(node)} → barrier", consumes=[node])
        function = cst.parse_expression(f"{shims}.broadcast_object")
        root, at = _root(node), _value_at(node)
        gone = [arg for index, arg in enumerate(node.args) if index != at]

        def replace(updated: cst.Call) -> cst.Call:
            value = cst.Name("None") if at is None else updated.args[at].value
            source = [keyword_arg("src", cst.Integer(str(root)))] if root else []
            return with_args(updated, [cst.Arg(value), *source]).with_changes(func=function)

        return self.edit(
            node, replace, f"{code(node)} → broadcast_object", consumes=[node.func, *gone]
        )

    def _communicator(self, node: cst.Attribute, context: Workspace) -> Iterable[RuleFinding]:
        above = context.parent(node)
        if isinstance(above, cst.Assign) and _is_replaced(above, context):
            return
        used = above if isinstance(above, cst.Attribute) else node
        call = context.parent(used)
        if _use(call, context) is not None or _use(used, context) is not None:
            if _in_replica(node, context):
                return
            message = (
                f"{code(used)}: asked before the launch, or while the module is read: replicas are no MPI "
                f"processes; ask {context.vocabulary.say('rank')} in a function that runs in the replica"
            )
        else:
            message = (
                f"{code(used)}: replicas are no MPI processes, each is rank 0 of 1: "
                "torch_xla.core.xla_model.mesh_reduce(tag, value, function of the values of all replicas)"
            )
        yield from self.report(node, message)


def _use(node: cst.CSTNode | None, context: Workspace) -> str | None:
    """Return what the expression `node` asks of the world of MPI, if it has an equivalent."""
    if isinstance(node, cst.Call):
        function = node.func
        if not isinstance(function, cst.Attribute) or not _is_world(function.value, context):
            return None
        name = function.attr.value
        if name == "bcast":
            return name if _root(node) is not None else None
        return name if name in CALLED and not node.args else None
    if isinstance(node, cst.Attribute) and _is_world(node.value, context):
        return node.attr.value if node.attr.value in ("rank", "size") else None
    return None


def _is_world(node: cst.BaseExpression, context: Workspace) -> bool:
    if isinstance(node, cst.Name):
        owner, value = context.bound_to(node)
        if isinstance(owner, cst.FunctionDef) and isinstance(value, cst.Attribute):
            return context.qualified_name(value) in WORLD
    return context.qualified_name(node) in WORLD


def _in_replica(node: cst.CSTNode, context: Workspace) -> bool:
    """Whether `node` is in a function. No function runs before the launch."""
    if context.function_around(node) is None:
        return False
    return context.launch.style is not Style.SPAWN or context.launch.in_replica(node)


def _root(call: cst.Call) -> int | None:
    """Return the root of `bcast`, or None if it is not to be seen."""
    bound = bind(call, ("obj", "root"))
    if bound is None:
        return None
    if "root" not in bound:
        return 0
    root = bound["root"].value
    return int(root.value) if isinstance(root, cst.Integer) else None


def _value_at(call: cst.Call) -> int | None:
    bound = bind(call, ("obj", "root")) or {}
    return call.args.index(bound["obj"]) if "obj" in bound else None


def _is_file(value: cst.BaseExpression, context: Workspace) -> bool:
    """Whether `value` is what was read from a file of bytes, or a slice of it."""
    if isinstance(value, cst.Subscript):
        return _is_file(value.value, context)
    if isinstance(value, cst.Name):
        bound = context.bound_values(value)
        return any(isinstance(value, cst.Call) and _is_file(value, context) for value in bound)
    if not isinstance(value, cst.Call) or not isinstance(value.func, cst.Attribute):
        return False
    if value.func.attr.value == "read_bytes":
        return True
    opened = value.func.value
    if value.func.attr.value != "read" or value.args:
        return False
    values = [*_entered(opened, context)] if isinstance(opened, cst.Name) else [opened]
    return any(isinstance(value, cst.Call) and _opens_bytes(value) for value in values)


def _entered(name: cst.Name, context: Workspace) -> Iterator[cst.CSTNode | None]:
    """Yield what `name` is bound to, also by the `with` around it."""
    yield from context.bound_values(name)
    for above in context.ancestors(name):
        for item in above.items if isinstance(above, cst.With) else ():
            if item.asname is not None and code(item.asname.name) == name.value:
                yield item.item


def _opens_bytes(call: cst.Call) -> bool:
    """Whether `call` is `open(path, "rb")`, of Python or another library."""
    if last_part(call.func) not in ("BlobFile", "open"):
        return False
    return any("b" in (string_value(arg.value) or "") for arg in call.args[1:])


def _mentions(assign: cst.Assign, context: Workspace) -> list[cst.Name] | None:
    """Return where the function reads the one name that `assign` assigns."""
    function = context.function_around(assign)
    target = assign.targets[0].target
    if function is None or len(assign.targets) != 1 or not isinstance(target, cst.Name):
        return None
    owner, value = context.bound_to(target)
    if owner is not function or value is not assign.value:
        return None
    return [
        name
        for name in context.references(target.value)
        if name is not target and context.bound_to(name)[0] is function
    ]


def _is_replaced(assign: cst.Assign, context: Workspace) -> bool:
    """Whether `assign` is `comm = MPI.COMM_WORLD`, and no use of `comm` is left."""
    if context.qualified_name(assign.value) not in WORLD:
        return False
    mentions = _mentions(assign, context)
    if not mentions or not _in_replica(assign, context):
        return False
    return all(_is_part_of_use(mention, context) for mention in mentions)


def _is_part_of_use(mention: cst.Name, context: Workspace) -> bool:
    above = context.parent(mention)
    if not isinstance(above, cst.Attribute) or above.value is not mention:
        return False
    return _use(above, context) is not None or _use(context.parent(above), context) is not None


def _only_for_the_address(assign: cst.Assign, context: Workspace) -> bool:
    """Whether `assign` broadcasts what is needed for nothing but the address of the first process."""
    if not isinstance(assign.value, cst.Call) or _use(assign.value, context) != "bcast":
        return False
    mentions = _mentions(assign, context)
    return bool(mentions) and all(_sets_address(mention, context) for mention in mentions or ())


def _sets_address(mention: cst.Name, context: Workspace) -> bool:
    line = context.statement_around(mention)
    statement = line.body[0] if isinstance(line, cst.SimpleStatementLine) else None
    if not isinstance(statement, cst.Assign) or len(statement.targets) != 1:
        return False
    target = statement.targets[0].target
    if not isinstance(target, cst.Subscript) or len(target.slice) != 1:
        return False
    index = target.slice[0].slice
    named = string_value(index.value) if isinstance(index, cst.Index) else None
    return named in ADDRESS and context.qualified_name(target.value) == "os.environ"
