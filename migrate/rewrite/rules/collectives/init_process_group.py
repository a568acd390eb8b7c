"""`init_process_group` for the XLA backend."""

from __future__ import annotations

from collections.abc import Iterable

import libcst as cst

from migrate.reading.replicas.launch import INIT
from migrate.reading.values.collectives import TENSORS, called
from migrate.reading.values.values import is_option, option_names
from migrate.rewrite.edits.nodes import keyword_arg, with_args
from migrate.rewrite.rule import (
    Edit,
    Rule,
    RuleFinding,
    Stage,
    checked,
    left_alone,
    reported,
    rewritten,
)
from migrate.rewrite.workspace import Workspace
from migrate.syntax.tree import bind, code, string_value

NO_NCCL = 'there is no NCCL on a TPU, it raises: "xla", init_method="xla://"'
PARAMETERS = (
    "backend",
    "init_method",
    "timeout",
    "world_size",
    "rank",
    "store",
    "group_name",
    "pg_options",
    "device_id",
)
# What the xla:// rendezvous knows by itself, from the TPU runtime.
DROPPED = frozenset({"init_method", "world_size", "rank", "store", "pg_options", "device_id"})


class InitProcessGroup(Rule):
    """Join the process group over the TPU runtime instead of NCCL or Gloo.

    **What it does.** `init_process_group("nccl", rank=r, world_size=n)` becomes
    `init_process_group("xla", init_method="xla://")`, whatever the backend and the address were: literals,
    options, conditions. Rank, world size, address and store are the runtime's; `timeout` stays.
    `import torch_xla.distributed.xla_backend` is added: it registers the backend.

    **Reported.** A number of processes that is an option and read elsewhere too: a learning rate computed
    from it keeps the option's default. A group over MPI, in a script built on `torch.distributed.rpc`, or
    with `*` or `**` arguments. A call whose name says that it joins the group, such as
    `misc.init_distributed_mode(args)`, from a package outside the project: what it does for CUDA stays.

    A `store`, `pg_options` and a backend for CPU tensors are reported too, and the call is rewritten. Such
    backends are `"cpu:gloo,cuda:nccl"`, `"gloo"` if the script makes collectives, and no backend if it is not
    known where the tensor of a collective is.

    Source: torch_xla 2.9, `torch_xla/_internal/rendezvous.py`.
    """

    name = "init-process-group"
    code = "XLA823"
    beside_frameworks = True
    stage = Stage.LAUNCH
    nodes = (cst.Call,)
    examples = (
        rewritten(
            """
            import torch.distributed as dist


            def setup(rank, world_size):
                # initialize the process group
                dist.init_process_group("nccl", rank=rank, world_size=world_size)
            """,
            """
            import torch.distributed as dist
            import torch_xla.distributed.xla_backend


            def setup(rank, world_size):
                # initialize the process group
                dist.init_process_group("xla", init_method="xla://")
            """,
        ),
        rewritten(
            """
            from datetime import timedelta

            from torch.distributed import init_process_group

            init_process_group(
                backend='nccl',
                init_method='env://',
                timeout=timedelta(minutes=30),
            )
            """,
            """
            from datetime import timedelta

            import torch_xla.distributed.xla_backend
            from torch.distributed import init_process_group

            init_process_group(
                backend='xla',
                init_method='xla://',
                timeout=timedelta(minutes=30),
            )
            """,
        ),
        rewritten(
            """
            import torch
            import torch.distributed as dist


            def setup(args, device):
                backend = "nccl" if torch.cuda.is_available() else "gloo"
                dist.init_process_group(backend, args.dist_url, None, args.size, args.rank, device_id=device)
                return backend
            """,
            """
            import torch
            import torch.distributed as dist
            import torch_xla.distributed.xla_backend


            def setup(args, device):
                backend = "nccl" if torch.cuda.is_available() else "gloo"
                dist.init_process_group("xla", init_method="xla://", timeout=None)
                return backend
            """,
        ),
        left_alone(
            """
            import torch.distributed as dist
            import torch_xla.distributed.xla_backend

            dist.init_process_group("xla", init_method="xla://")
            """
        ),
        reported(
            """
            import torch.distributed as dist

            dist.init_process_group("nccl", store=dist.HashStore(), rank=0, world_size=1)
            """,
            "store",
        ),
        reported(
            """
            import torch.distributed as dist

            dist.init_process_group("gloo")
            dist.all_reduce(total)
            """,
            "tensors on the CPU",
        ),
        checked(
            """
            import torch.distributed as dist

            dist.init_process_group("nccl")  # XLA823
            dist.init_process_group(backend="cuda:nccl,cpu:gloo")  # XLA823
            dist.init_process_group("xla", init_method="xla://")
            dist.new_group(backend="gloo")
            """
        ),
    )

    def find(self, node: cst.CSTNode, context: Workspace) -> Iterable[Edit | RuleFinding]:
        """Yield the edit of one call, or why it is left as it is."""
        assert isinstance(node, cst.Call)
        if context.qualified_name(node.func) not in INIT:
            module = context.launch.absent_module(node)
            if module and context.calls.led is None:
                message = (
                    f"`{code(node.func)}` is named for joining the process group, and `{module}` is no file "
                    "of this project (a submodule that is not checked out?): rewrite that package as well"
                )
                yield from self.report(node, message)
            return
        bound = bind(node, PARAMETERS)
        if bound is None:
            yield from self.report(node, "init_process_group with * or ** arguments: edit by hand")
            return
        if (size := bound.get("world_size")) and _is_option_read_elsewhere(size.value, context):
            message = (
                f"`{code(size.value)}` had to be the number of processes here, and nothing checks it any "
                f"more, but it is read elsewhere: set it to {context.vocabulary.say('world size')}"
            )
            yield from self.report(node, message)
        if tensor := context.calls.mixed_groups.get(context.place(node)):
            message = (
                "without a backend the group takes tensors of the CPU too, over gloo; XLA's takes those of "
                f"the device only: if {tensor} may be on the CPU, use a group made by "
                "torch.distributed.new_group(backend='gloo')"
            )
            yield from self.report(node, message)
        if context.portable and not context.uses_rpc:
            yield self._by_shims(node, context, bound)
            return
        backend = bound["backend"].value if "backend" in bound else None
        method = bound["init_method"].value if "init_method" in bound else None
        if string_value(backend) == "xla" and string_value(method) == "xla://":
            return
        if unused := [name for name in ("store", "pg_options") if name in bound]:
            message = (
                f"init_process_group({unused[0]}=…): the TPU runtime meets over a store of its own and has "
                f"no such options; what makes `{code(bound[unused[0]].value)}` may be removed"
            )
            yield from self.report(node, message)
        if self._carries_cpu_tensors(string_value(backend) or "", context):
            message = (
                "the group had a backend for tensors on the CPU: collectives of these, and of objects, "
                "need a group of their own, `torch.distributed.new_group(backend='gloo')`"
            )
            yield from self.report(node, message)
        if context.uses_rpc:
            message = "RPC has no equivalent on XLA: its process group stays as it is"
            yield from self.report(node, message)
            return
        if string_value(backend) == "mpi":
            yield from self.report(node, "a group over MPI: start the script without mpirun first")
            return
        context.imports.require("torch_xla.distributed.xla_backend")
        gone = [arg for name, arg in bound.items() if name in DROPPED]
        message = f"init_process_group({code(backend) if backend else ''}…) → over the TPU runtime"
        yield self.edit(
            node,
            self._replacement(node, context, bound),
            message,
            consumes=[*gone, *_list(backend)],
            wrong=NO_NCCL if "nccl" in (string_value(backend) or "") else "",
        )

    def _by_shims(self, node: cst.Call, context: Workspace, bound: dict[str, cst.Arg]) -> Edit:
        """Return the edit in the portable style: shims knows the backend and the ranks."""
        function = cst.parse_expression(f"{context.imports.require('shims')}.init_distributed")
        timeout = node.args.index(bound["timeout"]) if "timeout" in bound else None

        def replace(updated: cst.Call) -> cst.Call:
            if timeout is None:
                return cst.Call(function, lpar=updated.lpar, rpar=updated.rpar)
            kept = keyword_arg("timeout", updated.args[timeout].value)
            return with_args(updated, [kept]).with_changes(func=function)

        gone = [arg for name, arg in bound.items() if name != "timeout"]
        message = "init_process_group → shims.init_distributed: NCCL, gloo or the TPU runtime"
        return self.edit(node, replace, message, consumes=[node.func, *gone])

    def _carries_cpu_tensors(self, backend: str, context: Workspace) -> bool:
        """Whether collectives of the script may be made on tensors of the CPU, which XLA's group refuses."""
        return "cpu:" in backend or (
            backend == "gloo"
            and any(
                isinstance(node, cst.Call) and called(node, context) in TENSORS
                for node in context.nodes
            )
        )

    def _replacement(self, node: cst.Call, context: Workspace, bound: dict[str, cst.Arg]):  # type: ignore[no-untyped-def]
        backend = bound.get("backend")
        xla = context.string("xla", like=backend.value if backend else None)
        address = context.string("xla://", like=backend.value if backend else None)
        by_name = bool(backend and backend.keyword)
        kept_indexes = {
            name: node.args.index(arg)
            for name, arg in bound.items()
            if name not in DROPPED and name != "backend"
        }

        def replace(updated: cst.Call) -> cst.Call:
            first = cst.Arg(xla) if not by_name else keyword_arg("backend", xla)
            if backend is not None:
                first = updated.args[node.args.index(backend)].with_changes(value=xla)
            second = keyword_arg("init_method", address)
            if "init_method" in bound and bound["init_method"].keyword:
                old = updated.args[node.args.index(bound["init_method"])]
                second = old.with_changes(value=address)
            kept = []
            for name, index in kept_indexes.items():
                arg = updated.args[index]
                kept.append(arg if arg.keyword else keyword_arg(name, arg.value))
            return with_args(updated, [first, second, *kept])

        return replace


def _is_option_read_elsewhere(size: cst.BaseExpression, context: Workspace) -> bool:
    """Whether `size` is an option of the command line that the script does not set, and reads again."""
    if not isinstance(size, cst.Attribute) or context.attributes.get(size.attr.value):
        return False
    options = (node for node in context.all_of(cst.Call) if is_option(node))
    is_one = any(size.attr.value in option_names(node) for node in options)
    return is_one and len(context.mentions(size)) > 1


def _list(node: cst.CSTNode | None) -> list[cst.CSTNode]:
    return [] if node is None else [node]


def in_rendezvous_argument(node: cst.CSTNode, context: Workspace) -> bool:
    """Whether `node` is in an argument of `init_process_group` that the rewrite drops."""
    below: cst.CSTNode = node
    for above in context.ancestors(node):
        if isinstance(above, cst.Call) and context.qualified_name(above.func) in INIT:
            bound = bind(above, PARAMETERS) or {}
            return any(arg is below for name, arg in bound.items() if name in DROPPED)
        below = above
    return False
