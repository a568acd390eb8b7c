"""Command-line options of the launchers: `--local_rank`, `--dist-url`, `--dist-backend`."""

from __future__ import annotations

from collections.abc import Iterable

import libcst as cst

from migrate.check.hazard import Severity
from migrate.reading.replicas.launch import Style, declares_local_rank
from migrate.rewrite.edits.nodes import keyword_arg, with_args
from migrate.rewrite.rule import Edit, Rule, RuleFinding, left_alone, reported, rewritten
from migrate.rewrite.rules.collectives.inert_options import INERT
from migrate.rewrite.workspace import Workspace
from migrate.syntax.tree import code, keyword, string_value

# How many there are, as launchers of projects' own pass it.
OF_THE_WORLD = frozenset({"--n_gpus", "--num_gpus", "--ngpus", "--world_size"})
SAID = "no effect"  # and on what, or why: the vocabulary says it


class RankArguments(Rule):
    """Keep the command-line options of CUDA launchers working.

    **What it does.** `--local_rank`, which `torch.distributed.launch` passes to every process, gets its
    default from LOCAL_RANK, which the launcher of the rewritten script sets in each replica, and is no longer
    required. Where the parser is made at module level, before the rank is known, it is set after the options
    are parsed, also in a file that holds nothing but the options. `--rank` with the default 0, which a
    launcher of the project's own passes, gets it from RANK, and `--n_gpus`, `--num_gpus` or `--world_size`
    beside it from WORLD_SIZE.
    `--dist-url`, `--dist-backend`, `--dist-file`, `--init-method`, `--master-addr` and `--master-port` are
    still accepted; their help says that they have no effect on a TPU.

    **Left alone.** A script that starts its processes itself: there the worker's index is the rank. A
    default that asks the environment already.

    **Reported.** A parser at module level whose options are parsed where this rule cannot see it, or that
    has such a `--rank`: every replica would have rank 0.

    Source: torch_xla 2.9; Python's argparse.
    """

    name = "rank-arguments"
    code = "XLA717"
    edited = Severity.INFO
    nodes = (cst.Call,)
    words = "add_argument"
    examples = (
        rewritten(
            """
            import argparse

            import torch.distributed as dist


            def main():
                parser = argparse.ArgumentParser()
                parser.add_argument("--local_rank", type=int, default=-1)
                parser.add_argument("--dist-url", default="env://", help="where to meet")
                args = parser.parse_args()
                dist.init_process_group("nccl", init_method=args.dist_url)
                print(args.local_rank)


            if __name__ == "__main__":
                main()
            """,
            """
            import argparse
            import os

            import torch.distributed as dist
            import torch_xla
            import torch_xla.distributed.xla_backend
            import torch_xla.runtime as xr


            def main():
                parser = argparse.ArgumentParser()
                parser.add_argument("--local_rank", type=int, default=int(os.environ.get("LOCAL_RANK", -1)))
                parser.add_argument("--dist-url", default="env://", help="where to meet (no effect on a TPU)")
                args = parser.parse_args()
                dist.init_process_group("xla", init_method="xla://")
                print(args.local_rank)


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
        rewritten(
            """
            import argparse
            import os

            import torch.distributed as dist

            parser = argparse.ArgumentParser()
            parser.add_argument('--local_rank', type=int)


            def main():
                args = parser.parse_args()
                dist.init_process_group('nccl')
                print(args.local_rank)


            if __name__ == '__main__':
                main()
            """,
            """
            import argparse
            import os

            import torch.distributed as dist
            import torch_xla
            import torch_xla.distributed.xla_backend
            import torch_xla.runtime as xr

            parser = argparse.ArgumentParser()
            parser.add_argument('--local_rank', type=int)


            def main():
                args = parser.parse_args()
                args.local_rank = int(os.environ['LOCAL_RANK'])
                dist.init_process_group('xla', init_method='xla://')
                print(args.local_rank)


            def _mp_fn(index):
                if 'TORCHELASTIC_RUN_ID' not in os.environ:  # else torchrun has set them
                    os.environ['RANK'] = str(index)
                    os.environ['LOCAL_RANK'] = str(xr.local_ordinal())
                    os.environ['WORLD_SIZE'] = str(xr.world_size())
                    os.environ['LOCAL_WORLD_SIZE'] = str(xr.local_device_count())
                main()


            if __name__ == '__main__':
                torch_xla.launch(_mp_fn)
            """,
        ),
        rewritten(
            """
            import argparse

            parser = argparse.ArgumentParser()
            parser.add_argument("--local_rank", default=0, type=int)


            def options(rest):
                args = parser.parse_args(rest)
                return args
            """,
            """
            import argparse
            import os

            parser = argparse.ArgumentParser()
            parser.add_argument("--local_rank", default=0, type=int)


            def options(rest):
                args = parser.parse_args(rest)
                args.local_rank = int(os.environ.get("LOCAL_RANK", args.local_rank))
                return args
            """,
        ),
        rewritten(
            """
            import argparse


            def options():
                parser = argparse.ArgumentParser()
                parser.add_argument("--local_rank", type=int, default=0)
                return parser.parse_args()
            """,
            """
            import argparse
            import os


            def options():
                parser = argparse.ArgumentParser()
                parser.add_argument("--local_rank", type=int, default=int(os.environ.get("LOCAL_RANK", 0)))
                return parser.parse_args()
            """,
        ),
        left_alone(
            """
            import argparse
            import os


            def options():
                parser = argparse.ArgumentParser()
                parser.add_argument('--local-rank', type=int, default=int(os.environ['LOCAL_RANK']))
                parser.add_argument('--url', default='')
                return parser.parse_args()


            os.environ['LOCAL_RANK'] = '0'
            """
        ),
        reported(
            """
            import argparse

            import settings
            import torch.distributed as dist

            parser = argparse.ArgumentParser()
            parser.add_argument("--local_rank", type=int, default=0)


            def main():
                dist.init_process_group("nccl")
                print(settings.parse(parser).local_rank)


            if __name__ == "__main__":
                main()
            """,
            "after the options are parsed",
        ),
        rewritten(
            """
            import argparse
            import os

            import torch.distributed as dist


            def main():
                parser = argparse.ArgumentParser()
                parser.add_argument("--rank", type=int, default=0)
                parser.add_argument("--n_gpus", type=int, default=1)
                args = parser.parse_args()
                dist.init_process_group("nccl", rank=args.rank, world_size=args.n_gpus)
                print(args.rank, args.n_gpus)


            if __name__ == "__main__":
                main()
            """,
            """
            import argparse
            import os

            import torch.distributed as dist
            import torch_xla
            import torch_xla.distributed.xla_backend
            import torch_xla.runtime as xr


            def main():
                parser = argparse.ArgumentParser()
                parser.add_argument("--rank", type=int, default=int(os.environ.get("RANK", 0)))
                parser.add_argument("--n_gpus", type=int, default=int(os.environ.get("WORLD_SIZE", 1)))
                args = parser.parse_args()
                dist.init_process_group("xla", init_method="xla://")
                print(args.rank, args.n_gpus)


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
        reported(
            """
            import argparse

            import torch.distributed as dist

            parser = argparse.ArgumentParser()
            parser.add_argument("--rank", type=int, default=0)
            args = parser.parse_args()


            def main():
                dist.init_process_group("nccl", rank=args.rank, world_size=8)
                print(args.rank)


            if __name__ == "__main__":
                main()
            """,
            "nobody passes --rank",
        ),
    )

    def find(self, node: cst.CSTNode, context: Workspace) -> Iterable[Edit | RuleFinding]:
        """Yield the edit of one declared option, or of the statement that parses the options."""
        assert isinstance(node, cst.Call)
        if declares_local_rank(node):
            yield from self._local_rank(node, context)
        elif (flag := _inert_flag(node)) is not None:
            yield from self._inert(node, flag, context)
        elif context.launch.style is Style.MAIN and (rank := _told_by_launcher(node, context)):
            option, variable = rank
            if context.launch.in_replica(node):
                default = keyword(node, "default")
                assert default is not None
                yield self._from_environment(node, option, variable, code(default.value), context)
                return
            message = (
                f"every replica has its default here, as nobody passes {option}: set it once the options are "
                f"parsed, `args.{option[2:]} = int(os.environ['{variable}'])`"
            )
            yield from self.report(node, message)

    def _local_rank(self, node: cst.Call, context: Workspace) -> Iterable[Edit | RuleFinding]:
        default = keyword(node, "default")
        if context.launch.style is Style.SPAWN or (default and "environ" in code(default.value)):
            return
        if default is not None and "getenv" in code(default.value):
            return
        at_module_level = context.function_around(node) is None
        # A file of options alone is imported by the script that starts the replicas, before they know theirs.
        if at_module_level and not context.launch.in_replica(node):
            yield from self._after_parsing(node, context)
            return
        fallback = code(default.value) if default is not None else "0"
        yield self._from_environment(node, "--local_rank", "LOCAL_RANK", fallback, context)

    def _from_environment(
        self, node: cst.Call, flag: str, variable: str, fallback: str, context: Workspace
    ) -> Edit:
        """Return the edit that sets an option from the environment if the command line does not pass it."""
        os = context.imports.require("os")
        asked = code(context.string(variable))
        value = cst.parse_expression(f"int({os}.environ.get({asked}, {fallback}))")

        def replace(updated: cst.Call) -> cst.Call:
            updated = _not_required(updated)
            old = keyword(updated, "default")
            if old is None:
                return with_args(updated, [*updated.args, keyword_arg("default", value)])
            args = [arg.with_changes(value=value) if arg is old else arg for arg in updated.args]
            return updated.with_changes(args=args)

        return self.edit(node, replace, f"{flag}: from {variable}, as under torchrun")

    def _after_parsing(self, node: cst.Call, context: Workspace) -> Iterable[Edit | RuleFinding]:
        calls = _parsing(node, context)
        assign = context.parent(calls[0]) if len(calls) == 1 else None
        line = context.parent(assign)
        if (
            not isinstance(assign, cst.Assign)
            or not isinstance(assign.targets[0].target, cst.Name)
            or not isinstance(line, cst.SimpleStatementLine)
        ):
            message = (
                "set it from LOCAL_RANK after the options are parsed: "
                "`args.local_rank = int(os.environ['LOCAL_RANK'])`"
            )
            yield from self.report(node, message)
            return
        option = f"{assign.targets[0].target.value}.local_rank"
        if any(_is_assigned(option, source, context) for source in ("environ", "local_rank()")):
            return
        if keyword(node, "required") is not None:
            yield self.edit(node, _not_required, "--local_rank is passed by nobody")
        if context.launch.style is Style.NONE:
            # Another file's script may start the replicas, or not.
            asked = _variable_or(option, context)
        elif context.portable:
            asked = context.vocabulary.write("local rank")
        else:
            asked = _variable(context)
        added = cst.parse_statement(f"{option} = {asked}")
        yield self.edit(
            line,
            lambda updated: cst.FlattenSentinel([updated, added]),
            "--local_rank: from LOCAL_RANK, as under torchrun",
        )

    def _inert(self, node: cst.Call, flag: cst.Arg, context: Workspace) -> Iterable[Edit]:
        text = keyword(node, "help")
        if text is not None and (
            not isinstance(text.value, cst.SimpleString | cst.ConcatenatedString)
            or SAID in code(text.value)
        ):
            return
        name = string_value(flag.value)
        default = keyword(node, "default")

        def replace(updated: cst.Call) -> cst.Call:
            old = keyword(updated, "help")
            if old is None:
                said = context.string(context.vocabulary.inert, like=flag.value)
                return with_args(updated, [*updated.args, keyword_arg("help", said)])
            new = old.with_changes(value=_with_note(old.value, context.vocabulary.inert))
            return updated.with_changes(args=[new if arg is old else arg for arg in updated.args])

        spoken = [] if default is None else [default.value]
        yield self.edit(
            node, replace, f"{name} is accepted: {context.vocabulary.inert}", consumes=spoken
        )


def _not_required(option: cst.Call) -> cst.Call:
    """Return the declaration of an option that need not be passed."""
    required = keyword(option, "required")
    if required is None:
        return option
    return with_args(option, [arg for arg in option.args if arg is not required])


def _variable(context: Workspace) -> str:
    """Return the question for the local rank that reads the environment."""
    os = context.imports.require("os")
    return f"int({os}.environ[{code(context.string('LOCAL_RANK'))}])"


def _variable_or(option: str, context: Workspace) -> str:
    """Return the question for the local rank that keeps what was passed where nothing sets the variable."""
    os = context.imports.require("os")
    return f"int({os}.environ.get({code(context.string('LOCAL_RANK'))}, {option}))"


def _parsing(option: cst.Call, context: Workspace) -> list[cst.Call]:
    """Return the calls that parse the options of the parser to which `option` adds one."""
    assert isinstance(option.func, cst.Attribute)
    parses = f"{code(option.func.value)}.parse_args"
    return [call for call in context.all_of(cst.Call) if code(call.func) == parses]


def _inert_flag(call: cst.Call) -> cst.Arg | None:
    if not (isinstance(call.func, cst.Attribute) and call.func.attr.value == "add_argument"):
        return None
    for arg in call.args:
        flag = string_value(arg.value) if arg.keyword is None else None
        if flag and flag.startswith("--") and flag[2:].replace("-", "_") in INERT:
            return arg
    return None


def _told_by_launcher(call: cst.Call, context: Workspace) -> tuple[str, str] | None:
    """Return the option that `call` declares with the default of a run alone, and its variable of torchrun.

    `--rank`, and beside it how many there are, which the script's own launcher passes; nothing sets it later.
    """
    flag, default = _declared(call)
    if flag == "--rank":
        fits = default == "0"
    else:
        ranks = (_declared(call) for call in context.all_of(cst.Call))
        fits = flag in OF_THE_WORLD and default == "1" and ("--rank", "0") in ranks
    if not fits or flag[2:] in context.attributes or flag[2:] in context.calls.options_set:
        return None
    return flag, "RANK" if flag == "--rank" else "WORLD_SIZE"


def _declared(call: cst.Call) -> tuple[str, str]:
    """Return the long name of the option that `call` declares, and the code of its default."""
    if not (isinstance(call.func, cst.Attribute) and call.func.attr.value == "add_argument"):
        return "", ""
    flags = (string_value(arg.value) or "" for arg in call.args if arg.keyword is None)
    default = keyword(call, "default")
    flag = next((flag for flag in flags if flag.startswith("--")), "")
    return flag, "" if default is None else code(default.value)


def _with_note(text: cst.BaseExpression, said: str) -> cst.BaseExpression:
    """Return the help text `text` with the note at its end."""
    if isinstance(text, cst.ConcatenatedString):
        return text.with_changes(right=_with_note(text.right, said))
    assert isinstance(text, cst.SimpleString)
    end = len(text.value) - len(text.quote)
    stripped = text.value[:end].rstrip()
    return text.with_changes(value=f"{stripped} ({said}){text.quote}")


def _is_assigned(option: str, from_what: str, context: Workspace) -> bool:
    return any(
        code(target.target) == option and from_what in code(assign.value)
        for assign in context.all_of(cst.Assign)
        for target in assign.targets
    )
