"""The address at which the ranks of torch_tpu meet."""

from __future__ import annotations

from collections.abc import Iterable

import libcst as cst

from migrate.catalogue.target import TPU, TPU_ONLY
from migrate.check.hazard import Severity
from migrate.reading.replicas.launch import INIT
from migrate.reading.values.environment import environment_name
from migrate.rewrite.rule import Edit, Rule, RuleFinding, Stage, left_alone, reported, rewritten
from migrate.rewrite.rules.collectives.init_process_group import PARAMETERS
from migrate.rewrite.workspace import Workspace
from migrate.syntax.tree import bind, string_value

HERE = frozenset({"localhost", "127.0.0.1", "::1", "0.0.0.0"})
ADDRESS = "MASTER_ADDR"


class TpuAddress(Rule):
    """Let the ranks meet on this host instead of a host of another cluster.

    **Why.** torch_tpu joins the process group at `MASTER_ADDR`, as on GPUs. A host that the script names is
    one of the cluster that it was written for: on a TPU all ranks wait for it forever.

    **What it does.** The name or number of a host becomes `localhost`, in `os.environ["MASTER_ADDR"]` and
    in `init_method="tcp://HOST:PORT"`.

    **Reported.** The new address: on several hosts it has to be that of the first one.

    Source: torch_tpu 0.2.0 (measured with 2 ranks on XLA:CPU).
    """

    name = "tpu-address"
    code = "XLA886"
    targets = TPU_ONLY
    stage = Stage.LAUNCH
    severity = Severity.INFO
    nodes = (cst.SimpleString,)
    words = f"{ADDRESS}|tcp://"
    examples = (
        rewritten(
            """
            import os

            import torch.distributed as dist


            def join(rank, size):
                os.environ["MASTER_ADDR"] = "10.57.23.164"
                os.environ["MASTER_PORT"] = "8888"
                dist.init_process_group("nccl", rank=rank, world_size=size)


            def join_at(rank, size):
                dist.init_process_group(
                    "nccl", init_method="tcp://10.1.1.20:23456", rank=rank, world_size=size
                )
            """,
            """
            import os

            import torch.distributed as dist


            def join(rank, size):
                os.environ["MASTER_ADDR"] = "localhost"
                os.environ["MASTER_PORT"] = "8888"
                os.environ["RANK"] = str(rank)
                os.environ["WORLD_SIZE"] = str(size)
                dist.init_process_group("tpu_dist", rank=rank, world_size=size)


            def join_at(rank, size):
                os.environ["RANK"] = str(rank)
                os.environ["WORLD_SIZE"] = str(size)
                dist.init_process_group(
                    "tpu_dist", init_method="tcp://localhost:23456", rank=rank, world_size=size
                )
            """,
            target=TPU,
        ),
        left_alone(
            """
            import os

            os.environ["MASTER_ADDR"] = "localhost"
            print("tcp://10.1.1.20:23456")
            """,
            target=TPU,
        ),
        reported(
            """
            import os

            os.environ.update({"MASTER_ADDR": "node-0"})
            """,
            "of the first host",
            target=TPU,
        ),
    )

    def find(self, node: cst.CSTNode, context: Workspace) -> Iterable[Edit | RuleFinding]:
        """Yield the edit of one address, and the finding."""
        assert isinstance(node, cst.SimpleString)
        text = string_value(node) or ""
        host = text if _is_address(node, context) else ""
        if text.startswith("tcp://") and _is_method(node, context):
            host = text.removeprefix("tcp://").rpartition(":")[0]
        if not host or host in HERE:
            return
        here = context.string(text.replace(host, "localhost", 1), like=node)
        message = f"{host} is a host of another cluster: localhost"
        wrong = f"{host} is a host of another cluster, for which all ranks wait: localhost"
        yield self.edit(node, lambda _: here, message, consumes=[node], wrong=wrong)
        several = f"localhost in the place of {host}: on several hosts the address is that of the first host"
        yield from self.report(node, several)


def _is_address(node: cst.SimpleString, context: Workspace) -> bool:
    """Whether `node` is what MASTER_ADDR is set to."""
    above = context.parent(node)
    if isinstance(above, cst.Assign):
        return any(_names_address(part.target, context) for part in above.targets)
    if isinstance(above, cst.DictElement):
        return above.value is node and string_value(above.key) == ADDRESS
    call = context.parent(above)
    if not isinstance(above, cst.Arg) or not isinstance(call, cst.Call):
        return False
    if above.keyword is not None:
        return above.keyword.value == ADDRESS
    sets = context.qualified_name(call.func) in ("os.environ.setdefault", "os.putenv")
    sets = sets and len(call.args) == 2
    return sets and above is call.args[-1] and string_value(call.args[0].value) == ADDRESS


def _names_address(target: cst.BaseExpression, context: Workspace) -> bool:
    index = target.slice[0].slice if isinstance(target, cst.Subscript) else None
    return isinstance(index, cst.Index) and environment_name(index.value, context) == ADDRESS


def _is_method(node: cst.SimpleString, context: Workspace) -> bool:
    """Whether `node` is the `init_method` of a process group."""
    call = context.parent(context.parent(node))
    if not isinstance(call, cst.Call) or context.qualified_name(call.func) not in INIT:
        return False
    method = (bind(call, PARAMETERS) or {}).get("init_method")
    return method is not None and method.value is node
