"""Rewrite the name of NCCL in a script that stores or tests its backend."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator

import libcst as cst

from migrate.catalogue.target import BOTH
from migrate.check.hazard import Severity
from migrate.check.only_cuda import guards_cuda_only
from migrate.reading.facts import facts_of
from migrate.reading.values.collectives import called
from migrate.rewrite.rule import Edit, Rule, RuleFinding, checked, left_alone, reported, rewritten
from migrate.rewrite.rules.collectives.inert_options import INERT
from migrate.rewrite.styles.advice import BACKEND as OF_SHIMS
from migrate.rewrite.workspace import Workspace
from migrate.syntax.tree import bind, code, dotted, string_value

WRONG = 'the backend on XLA is "xla", not "nccl": compare with "gloo"'
BACKEND = re.compile(r"(.*_)?backend", re.IGNORECASE)


class Nccl(Rule):
    """Keep and compare the name of the XLA backend instead of NCCL's.

    **Why.** On XLA the backend is "xla": where it is compared with "nccl", the branch for gloo and the CPU is
    taken, and tensors go to the CPU before each collective.

    **What it does.** `'nccl'` becomes `'xla'` where it is kept under the name of a backend
    (`args.dist_backend = 'nccl'`, `def setup(rank, backend='nccl')`, `'backend': 'nccl'`, the default of an
    option `--backend`, the argument `backend='nccl'` of one's own function), also as one of two values that a
    condition decides, and where the process group's own backend is compared with it
    (`dist.get_backend() == 'nccl'`).

    **Reported.** Other uses: comparisons with an option or a variable, whose value may come from the command
    line; a value that is chosen by what CUDA has. Where a script compares the name that it keeps, or looks
    something up by it (`BACKENDS[args.backend]`), both stay as they are.

    Source: torch_xla 2.9 (`dist.get_backend()` is `'xla'`, measured).
    """

    name = "nccl"
    code = "XLA703"
    targets = BOTH
    on_torch_tpu = "The backend is `'tpu_dist'`."
    edited = Severity.WARNING
    nodes = (cst.SimpleString,)
    words = "nccl"
    examples = (
        rewritten(
            """
            import torch.distributed as dist


            def setup(args, rank, backend="nccl"):
                args.dist_backend = "nccl"
                dist.init_process_group(backend=args.dist_backend)
                if dist.get_backend() == "nccl":
                    print({"backend": "nccl", "rank": rank})
            """,
            """
            import torch.distributed as dist
            import torch_xla.distributed.xla_backend


            def setup(args, rank, backend="xla"):
                args.dist_backend = "xla"
                dist.init_process_group(backend="xla", init_method="xla://")
                if dist.get_backend() == "xla":
                    print({"backend": "xla", "rank": rank})
            """,
        ),
        rewritten(
            """
            import argparse
            import os

            import torch.distributed as dist


            def setup(backend):
                dist.init_process_group(backend)


            def main():
                parser = argparse.ArgumentParser()
                parser.add_argument("--backend", default="nccl", type=str)
                backend = "gloo" if os.name == "nt" else "nccl"
                setup(backend=backend)
                setup(backend="nccl")
                setup("nccl")
            """,
            """
            import argparse
            import os

            import torch.distributed as dist
            import torch_xla.distributed.xla_backend


            def setup(backend):
                dist.init_process_group("xla", init_method="xla://")


            def main():
                parser = argparse.ArgumentParser()
                parser.add_argument("--backend", default="xla", type=str)
                backend = "gloo" if os.name == "nt" else "xla"
                setup(backend=backend)
                setup(backend="xla")
                setup("xla")
            """,
        ),
        left_alone(
            """
            import torch.distributed as dist

            backend = "gloo"
            libraries = ["cudnn", "mpi"]
            """
        ),
        reported(
            """
            import torch.distributed as dist

            backend = "nccl"
            if backend == "nccl":
                print("GPUs")
            """,
            "the backend on XLA is 'xla'",
        ),
        reported(
            """
            import argparse

            import torch.distributed as dist


            def together(backend):
                dist.init_process_group(backend)


            SETUPS = {"nccl": together, "none": print}
            parser = argparse.ArgumentParser()
            parser.add_argument("--backend", default="nccl")
            args = parser.parse_args()
            SETUPS[args.backend](args.backend)
            """,
            "looks up by this name",
        ),
        reported(
            """
            import argparse

            parser = argparse.ArgumentParser()
            parser.add_argument("--backend", choices=["nccl", "gloo"])
            """,
            "the backend on XLA is 'xla'",
        ),
        checked(
            """
            import torch.distributed as dist


            def reduce(x):
                if dist.get_backend() == "nccl":  # XLA703
                    x = x.cuda()
                dist.all_reduce(x)
            """
        ),
        checked(
            """
            import torch.distributed as dist


            def reduce(x):
                if dist.get_backend() == "gloo":
                    x = x.cpu()
                dist.all_reduce(x)
            """
        ),
    )

    def find(self, node: cst.CSTNode, context: Workspace) -> Iterable[Edit | RuleFinding]:
        """Yield the edit of one literal, or the finding."""
        assert isinstance(node, cst.SimpleString)
        if string_value(node) != "nccl":
            return
        compared = comparison_of(node, context)
        severity = None
        if compared is not None:
            inert = guards_cuda_only(compared, facts_of(context))
            severity = Severity.INFO if inert else Severity.WARNING
        of_option = context.for_torch_tpu and is_option(compared)
        if of_option or is_of_the_group(node, context) or _is_kept(node, context):
            xla: cst.BaseExpression = context.string(context.vocabulary.group_backend, like=node)
            if context.portable:
                shims = context.imports.require("shims")
                xla = cst.parse_expression(f"{shims}.backend().group_backend")
            message = f"'nccl' → {code(xla)}"
            wrong = _wrong(context) if compared is not None else ""
            yield self.edit(
                node, lambda _: xla, message, consumes=[node], wrong=wrong, severity=severity
            )
        elif _is_looked_up(node, context):
            stays = "'nccl' stays: the script looks up by this name what to run"
            yield from self.report(node, stays, Severity.INFO)
        elif not _is_spoken_of(node, context):
            backend = context.vocabulary.group_backend
            said = f"'nccl': the backend on XLA is '{backend}'"
            said = _wrong(context) if compared is not None else said
            said = OF_SHIMS if context.portable else said
            yield from self.report(node, said, severity)


def _wrong(context: Workspace) -> str:
    """Return what a comparison with NCCL's name means on a TPU."""
    return WRONG.replace('"xla"', f'"{context.vocabulary.group_backend}"')


def comparison_of(node: cst.CSTNode, context: Workspace) -> cst.Comparison | None:
    """Return the comparison that has the literal as a side."""
    above = context.parent(node)
    if isinstance(above, cst.ComparisonTarget):
        above = context.parent(above)
    return above if isinstance(above, cst.Comparison) else None


def is_of_the_group(node: cst.CSTNode, context: Workspace) -> bool:
    """Whether the process group's backend is compared with the literal."""
    comparison = comparison_of(node, context)
    if comparison is None or len(comparison.comparisons) != 1:
        return False
    other = comparison.comparisons[0].comparator if comparison.left is node else comparison.left
    return isinstance(other, cst.Call) and called(other, context) == "get_backend"


def _is_kept(node: cst.SimpleString, context: Workspace) -> bool:
    """Whether the literal is kept under the name of a backend that the script compares with nothing."""
    name = kept_as(node, context)
    if name is None or BACKEND.fullmatch(name) is None:
        return False
    # For torch_tpu what the name is compared with is edited too.
    return context.for_torch_tpu or not _is_compared(name, context)


def is_option(compared: cst.Comparison | None) -> bool:
    """Whether the literal is compared with what is kept under the name of a backend."""
    if compared is None or len(compared.comparisons) != 1:
        return False
    sides = (compared.left, compared.comparisons[0].comparator)
    names = (dotted(side).rpartition(".")[2] for side in sides)
    return any(BACKEND.fullmatch(name) for name in names)


def kept_as(node: cst.CSTNode, context: Workspace) -> str | None:
    """Return the name under which the script keeps `node`, or passes it on to a function of its own."""
    above = context.parent(node)
    if isinstance(above, cst.IfExp) and node is not above.test:
        chosen = any("cuda" in code(leaf) for leaf in context.below(above.test, cst.Name))
        # On torch_tpu the choice is right: it asks for the accelerator.
        return None if chosen and not context.for_torch_tpu else kept_as(above, context)
    if isinstance(above, cst.Element) and context.for_torch_tpu:
        holder = context.parent(above)
        return kept_as(holder, context) if isinstance(holder, cst.List | cst.Tuple) else None
    if isinstance(above, cst.Assign) and len(above.targets) == 1:
        return dotted(above.targets[0].target).rpartition(".")[2]
    if isinstance(above, cst.AnnAssign):
        return dotted(above.target).rpartition(".")[2]
    if isinstance(above, cst.Param):
        return above.name.value
    if isinstance(above, cst.DictElement):
        return string_value(above.key)
    call = context.parent(above)
    if isinstance(above, cst.Arg) and isinstance(call, cst.Call):
        return _passed_as(above, call, context)
    return None


def _passed_as(arg: cst.Arg, call: cst.Call, context: Workspace) -> str | None:
    """Return what `call` takes `arg` for: the option that it is the default of, or the parameter."""
    parameter = arg.keyword.value if arg.keyword is not None else None
    if isinstance(call.func, cst.Attribute) and call.func.attr.value == "add_argument":
        names = [
            string_value(argument.value) or "" for argument in call.args if argument.keyword is None
        ]
        flag = next((name for name in names if name.startswith("--")), "")
        option = flag.lstrip("-").replace("-", "_")
        if context.for_torch_tpu:  # by which the option still says how the ranks meet
            return option if parameter in ("default", "choices") else None
        return option if parameter == "default" and option not in INERT else None
    function = next(iter(context.run_by(call)), None)
    if parameter is None and function is not None:
        bound = bind(call, function.parameters[function.bound :]) or {}
        parameter = next((name for name, argument in bound.items() if argument is arg), None)
    return parameter if function is not None else None


def _is_compared(last: str, context: Workspace) -> bool:
    """Whether the script compares what it keeps under a name, or looks it up: `BACKENDS[args.backend]`."""
    looked_up = any(dotted(key).rpartition(".")[2] == last for key in _keys_of_lookups(context))
    return looked_up or any(
        dotted(side).rpartition(".")[2] == last
        for node in context.all_of(cst.Comparison)
        for side in (node.left, *(comparison.comparator for comparison in node.comparisons))
    )


def _is_looked_up(node: cst.SimpleString, context: Workspace) -> bool:
    """Whether the literal is a key that is looked up by the name of a backend, or the value of that name."""
    above = context.parent(node)
    names = {dotted(key).rpartition(".")[2] for key in _keys_of_lookups(context)}
    if isinstance(above, cst.DictElement) and above.key is node:
        return any(BACKEND.fullmatch(name) for name in names)
    name = kept_as(node, context)
    return name is not None and BACKEND.fullmatch(name) is not None and name in names


def _keys_of_lookups(context: Workspace) -> Iterator[cst.BaseExpression]:
    """Yield what the script looks up in mappings: `x` of `mapping[x]`, `mapping.get(x)`."""
    for subscript in context.all_of(cst.Subscript):
        for element in subscript.slice:
            if isinstance(element.slice, cst.Index):
                yield element.slice.value
    for call in context.all_of(cst.Call):
        if isinstance(call.func, cst.Attribute) and call.func.attr.value == "get" and call.args:
            yield call.args[0].value


def _is_spoken_of(node: cst.SimpleString, context: Workspace) -> bool:
    """Whether another rule handles the call that gets the literal."""
    for above in context.within_statement(node):
        if isinstance(above, cst.Call):
            name = called(above, context)
            if name in ("init_process_group", "new_group"):
                return True
    return False
