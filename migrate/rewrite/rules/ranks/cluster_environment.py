"""Ranks of SLURM and MPI come after those of the launcher."""

from __future__ import annotations

from collections.abc import Container, Iterable, Iterator

import libcst as cst

from migrate.catalogue.prescan import spelled
from migrate.catalogue.words import CLUSTER, RANKS
from migrate.reading.replicas.launch import Style
from migrate.reading.values.environment import access, environment_name, is_read
from migrate.rewrite.rule import Edit, Rule, RuleFinding, left_alone, reported, rewritten
from migrate.rewrite.rules.ranks.rank_environment import WORDS
from migrate.rewrite.workspace import Workspace
from migrate.syntax.tree import code


class ClusterEnvironment(Rule):
    """Take the rank from the launcher before SLURM's or MPI's.

    **What it does.** SLURM and MPI give their variables to the process that starts the replicas, and each
    replica inherits the same rank. In an `if` that takes the rank from them in one branch and from RANK
    in a later one, the earlier branch is taken only where RANK is not set:
    `if "RANK" not in os.environ and args.is_slurm_job:`. The launcher of the rewritten script sets RANK.
    A script that gets such a launcher, and takes its rank from SLURM or MPI alone, takes it from the
    launcher's variables: SLURM_PROCID becomes RANK, SLURM_LOCALID LOCAL_RANK, SLURM_NTASKS WORLD_SIZE.

    **Left alone.** A branch for SLURM or MPI after that for RANK: it is not reached.

    **Reported.** SLURM's and MPI's variables in a module that starts nothing and in a script that starts
    its own processes, where there is no branch for RANK; other variables of SLURM that a script cannot do
    without. Start the script once on each host, with one task a node.

    Source: torch_xla 2.9 (replicas inherit the environment of the process that launches them).
    """

    name = "cluster-environment"
    code = "XLA718"
    nodes = (cst.If, cst.SimpleString)
    words = spelled(CLUSTER) + "|SLURM_"
    examples = (
        rewritten(
            """
            import os


            def init_distributed_mode(args):
                if args.on_mpi:
                    args.rank = int(os.environ["OMPI_COMM_WORLD_RANK"])
                elif "RANK" in os.environ:
                    args.rank = int(os.environ["RANK"])
                elif "SLURM_PROCID" in os.environ:
                    args.rank = int(os.environ["SLURM_PROCID"])
            """,
            """
            import os


            def init_distributed_mode(args):
                if "RANK" not in os.environ and args.on_mpi:
                    args.rank = int(os.environ["OMPI_COMM_WORLD_RANK"])
                elif "RANK" in os.environ:
                    args.rank = int(os.environ["RANK"])
                elif "SLURM_PROCID" in os.environ:
                    args.rank = int(os.environ["SLURM_PROCID"])
            """,
        ),
        rewritten(
            """
            import os

            import torch.distributed as dist


            def main():
                rank = int(os.environ["SLURM_PROCID"])
                local_rank = int(os.environ.get("SLURM_LOCALID", 0))
                dist.init_process_group("nccl", rank=rank, world_size=int(os.environ["SLURM_NTASKS"]))
                print(rank, local_rank)


            if __name__ == "__main__":
                main()
            """,
            """
            import os

            import torch.distributed as dist
            import torch_xla
            import torch_xla.distributed.xla_backend
            import torch_xla.runtime as xr


            def main():
                rank = int(os.environ["RANK"])
                local_rank = int(os.environ.get("LOCAL_RANK", 0))
                dist.init_process_group("xla", init_method="xla://")
                print(rank, local_rank)


            def _mp_fn(index):
                if "TORCHELASTIC_RUN_ID" not in os.environ:  # else torchrun has set them
                    os.environ["RANK"] = str(index)
                    os.environ["LOCAL_RANK"] = str(xr.local_ordinal())
                    os.environ["WORLD_SIZE"] = str(xr.world_size())
                    os.environ["LOCAL_WORLD_SIZE"] = str(xr.local_device_count())
                main()


            if __name__ == "__main__":
                torch_xla.launch(_mp_fn)
            """,
        ),
        left_alone(
            """
            import os

            job = os.environ.get("SLURM_JOB_ID", "local")
            """
        ),
        reported(
            """
            import os


            def rank():
                return int(os.environ["SLURM_PROCID"])
            """,
            "the same in all replicas",
        ),
        reported(
            """
            import os

            import torch.distributed as dist


            def main():
                dist.init_process_group("nccl")
                print(os.environ["SLURM_STEP_GPUS"])


            if __name__ == "__main__":
                main()
            """,
            "only under SLURM",
        ),
    )

    def find(self, node: cst.CSTNode, context: Workspace) -> Iterable[Edit | RuleFinding]:
        """Yield the edit of one branch, or a finding for a rank without a branch for RANK."""
        if isinstance(node, cst.If):
            if _comes_before_rank(node, context):
                yield self._edit(node, context)
        elif isinstance(node, cst.SimpleString):
            yield from self._variable(node, context)

    def _edit(self, node: cst.If, context: Workspace) -> Edit:
        os = context.imports.require("os")
        condition = f"{code(context.string('RANK'))} not in {os}.environ"

        def replace(updated: cst.If) -> cst.If:
            test = updated.test
            both = cst.BooleanOperation(
                left=cst.parse_expression(condition), operator=cst.And(), right=test
            )
            return updated.with_changes(test=both, whitespace_before_test=cst.SimpleWhitespace(" "))

        message = f"`{code(node.test)}`: only where the launcher has not set RANK"
        return self.edit(node, replace, message)

    def _variable(self, node: cst.SimpleString, context: Workspace) -> Iterator[Edit | RuleFinding]:
        name = environment_name(node, context)
        if name is None or not is_read(node, context):
            return
        for above in context.ancestors(node):
            if isinstance(above, cst.If) and _has_branch_for_rank(above, context):
                return
        launched = context.launch.style in (Style.MAIN, Style.MODULE)
        if name not in CLUSTER:
            needed = isinstance(access(node, context), cst.Subscript)
            starts = context.launch.style is not Style.NONE
            if starts and needed and name.startswith("SLURM_"):
                message = f"{name} is set only under SLURM: without it this raises a KeyError"
                yield from self.report(node, message)
            return
        if launched:
            asked = _as_int(node, context) if context.portable else None
            if asked is not None:
                word = context.vocabulary.expression(WORDS[CLUSTER[name]])
                message = f"{code(asked)} → {code(word)}"
                yield self.edit(asked, lambda _: word, message, consumes=[asked])
                return
            value = context.string(CLUSTER[name], like=node)
            message = f"{name} → {CLUSTER[name]}, which the launcher sets"
            yield self.edit(node, lambda _: value, message, consumes=[node])
            return
        message = (
            f"{name} belongs to the process that starts the replicas and is the same in all replicas "
            f"of it: take {CLUSTER[name]}, which the launcher sets, or ask "
            f"{context.vocabulary.say('rank')} in the replica; start the script once on each host"
        )
        yield from self.report(node, message)


def _as_int(node: cst.CSTNode, context: Workspace) -> cst.Call | None:
    """Return `int(os.environ[…])` around a key, if that is how it is read."""
    environ = access(node, context)
    above = context.parent(context.parent(environ))
    is_int = isinstance(above, cst.Call) and code(above.func) == "int" and len(above.args) == 1
    return (
        above
        if isinstance(environ, cst.Subscript) and isinstance(above, cst.Call) and is_int
        else None
    )


def _chain(node: cst.If) -> Iterator[cst.If | cst.Else]:
    """Yield the branches of an `if`, beginning at `node`."""
    branch: cst.If | cst.Else | None = node
    while branch is not None:
        yield branch
        branch = branch.orelse if isinstance(branch, cst.If) else None


def _comes_before_rank(node: cst.If, context: Workspace) -> bool:
    """Whether the branch takes its rank from a cluster, and a later one of the same `if` from RANK."""
    if context.launch.style is Style.SPAWN or _asks(node.test, RANKS, context):
        return False
    if not (_asks(node.body, CLUSTER, context) or _asks(node.test, CLUSTER, context)):
        return False
    return any(_takes_rank(branch, context) for branch in list(_chain(node))[1:])


def _has_branch_for_rank(node: cst.If, context: Workspace) -> bool:
    top: cst.CSTNode = node
    while isinstance(above := context.parent(top), cst.If) and above.orelse is top:
        top = above
    assert isinstance(top, cst.If)
    return any(_takes_rank(branch, context) for branch in _chain(top))


def _takes_rank(branch: cst.If | cst.Else, context: Workspace) -> bool:
    roots = [branch.body, branch.test] if isinstance(branch, cst.If) else [branch.body]
    return any(_asks(root, RANKS, context) for root in roots)


def _asks(root: cst.CSTNode, names: Container[str], context: Workspace) -> bool:
    return any(
        (environment_name(string, context) or "") in names and is_read(string, context)
        for string in context.below(root, cst.SimpleString)
    )
