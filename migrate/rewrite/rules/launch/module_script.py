"""Run a script that works at module level as a whole in each replica."""

from __future__ import annotations

import sys
from collections.abc import Iterable

import libcst as cst

from migrate.reading.replicas.launch import Style
from migrate.rewrite.rule import Edit, Rule, RuleFinding, Stage, left_alone, reported, rewritten
from migrate.rewrite.rules.launch.replica_function import (
    free_name,
    index_name,
    instead_of_torchrun,
    is_launching_process,
    launch_of_file,
    rank_environment,
)
from migrate.rewrite.workspace import Workspace
from migrate.syntax.tree import code, is_docstring, nodes_of


class ModuleScript(Rule):
    """Run a script whose work stands at module level as a whole in each replica.

    **What it does.** A few lines come before the imports that are not of the standard library:
    `python script.py` stops there, starts the replicas with `torch_xla.launch`, and each of them runs the
    file as `__main__` with `runpy`, with the environment that torchrun would give it. Nothing else
    moves: module-level names stay global, `exec(open('configurator.py').read())` still sets them,
    annotated names stay as they are. Under torchrun RANK is set, and the script runs as it stands.
    The replicas are forked: a spawned process would first read the file, and so run it, as `__mp_main__`.

    **When.** The script joins the process group and trains at module level. Or it has a guard, but asks for
    its rank (`os.environ`, parsed options with `--local_rank`) or moves something to the device at module
    level, or imports a file of the project that asks for the rank at module level. A spawned replica
    would run that code before rank and device are known.

    **Reported.** A notebook whose cells join the process group and train at module level: only one
    process runs them. Relative imports: `runpy` runs a file, not a module of a package. torch_xla holds two
    replicas in one process on TPU v2 and v3; there they would share the environment.

    Source: torch_xla 2.9 on the CPU and on two simulated replicas, Python 3.11: with `spawn` the
    replicas run the script while they import it and fail; with `fork` names, `exec` and the workers of
    a DataLoader work.
    """

    name = "module-script"
    code = "XLA712"
    stage = Stage.LAUNCH
    nodes = (cst.Module, cst.SimpleStatementLine)
    examples = (
        rewritten(
            '''
            """Train."""

            import os

            import numpy as np
            import torch
            from torch.distributed import init_process_group

            epochs = 3
            exec(open('configurator.py').read())
            init_process_group('nccl')
            model = torch.nn.Linear(2, 2)
            print(os.environ['LOCAL_RANK'], np.zeros(epochs))
            model(torch.ones(2)).sum().backward()
            ''',
            '''
            """Train."""

            import os
            import runpy
            import sys

            import torch_xla
            import torch_xla.runtime as xr


            def _mp_fn(index):
                """Run this file in a replica, as torchrun runs it in a process."""
                os.environ['RANK'] = str(index)
                os.environ['LOCAL_RANK'] = str(xr.local_ordinal())
                os.environ['WORLD_SIZE'] = str(xr.world_size())
                os.environ['LOCAL_WORLD_SIZE'] = str(xr.local_device_count())
                runpy.run_path(__file__, run_name='__main__')


            if __name__ == '__main__' and 'RANK' not in os.environ:
                # Forked: a spawned process would run this file while it imports it.
                torch_xla.launch(_mp_fn, start_method='fork')
                sys.exit()

            import numpy as np
            import torch
            import torch_xla.distributed.xla_backend
            from torch.distributed import init_process_group

            epochs = 3
            exec(open('configurator.py').read())
            init_process_group('xla', init_method='xla://')
            model = torch.nn.Linear(2, 2)
            print(os.environ['LOCAL_RANK'], np.zeros(epochs))
            model(torch.ones(2)).sum().backward()
            ''',
        ),
        left_alone(
            """
            import os

            LOCAL_RANK = int(os.getenv("LOCAL_RANK", -1))  # a module that others import
            """
        ),
        reported(
            """
            import torch.distributed as dist

            from . import data

            dist.init_process_group("nccl")
            data.loss().backward()
            """,
            "relative",
        ),
    )

    def find(self, node: cst.CSTNode, context: Workspace) -> Iterable[Edit | RuleFinding]:
        """Yield the edit of the statement after which, or before which, the lines come."""
        if context.source.is_notebook:
            if isinstance(node, cst.Module) and context.launch.style is Style.MODULE:
                message = (
                    "the cells of a notebook run in one process, as one replica: put what trains into a "
                    "function and start it in a cell with "
                    f"{context.vocabulary.say('launch')}(fn, start_method='fork')"
                )
                yield from self.report(context.launch.joining() or node, message)
            return
        if isinstance(node, cst.Module):
            if context.launch.style is Style.MODULE and (line := _relative_import(node)):
                message = (
                    "relative imports in a script that joins the process group while it is read: move "
                    "its body into a function and start that with "
                    + context.vocabulary.say("launch")
                )
                yield from self.report(line, message)
            return
        if context.launch.style is not Style.MODULE or _relative_import(context.module):
            return
        at, after = _place(context.module)
        if at is not node:
            return
        lines = self._lines(context)

        def replace(
            updated: cst.SimpleStatementLine,
        ) -> cst.FlattenSentinel[cst.BaseStatement]:
            if after:
                return cst.FlattenSentinel([updated, *lines])
            above = lines[0].with_changes(leading_lines=updated.leading_lines)
            blank = cst.EmptyLine(indent=False)
            return cst.FlattenSentinel(
                [above, *lines[1:], updated.with_changes(leading_lines=[blank])]
            )

        message = (
            f"each replica runs the file as a whole; {context.vocabulary.say('launch')} starts them"
        )
        message += instead_of_torchrun(context)
        wrong = (
            "nothing starts a replica for each chip: run the file in each, by "
            f"{context.vocabulary.say('launch')}"
        )
        yield self.edit(node, replace, message, wrong=wrong)
        for again in _imported_below(("os", "sys"), context.module):
            yield self.edit(
                again,
                lambda _: cst.RemoveFromParent(),
                f"remove `{code(again.body[0])}`: it stands above, where the replicas are started",
                consumes=[again],
            )

    def _lines(self, context: Workspace) -> list[cst.BaseStatement]:
        """Return the statements that start the replicas."""
        if context.portable:
            return self._portable_lines(context)
        function, index = free_name("_mp_fn", context), index_name(context)
        names = {name: context.imports.require(name) for name in ("os", "runpy", "sys")}
        torch_xla = context.imports.require("torch_xla")
        runtime = context.imports.require("torch_xla.runtime", "xr")
        quote = context.quote
        imports = [
            f"import {module}" + ("" if name == module else f" as {name}")
            for module, name in names.items()
            if not _imported_above(module, context.module)
        ]
        xla = ("" if torch_xla == "torch_xla" else f" as {torch_xla}", f" as {runtime}")
        environment = rank_environment(index, context, names["os"], runtime)
        text = [
            *imports,
            "",
            f"import torch_xla{xla[0]}",
            f"import torch_xla.runtime{xla[1]}",
            "",
            "",
            f"def {function}({index}):",
            '    """Run this file in a replica, as torchrun runs it in a process."""',
            *(f"    {line}" for line in environment),
            f"    {names['runpy']}.run_path(__file__, run_name={quote}__main__{quote})",
            "",
            "",
            f"if __name__ == {quote}__main__{quote} and {quote}RANK{quote} not in {names['os']}.environ:",
            "    # Forked: a spawned process would run this file while it imports it.",
            f"    {torch_xla}.launch({function}, start_method={quote}fork{quote})",
            f"    {names['sys']}.exit()",
        ]
        for module, name in (
            *names.items(),
            ("torch_xla", torch_xla),
            ("torch_xla.runtime", runtime),
        ):
            context.imports.given(module, name)
        return _statements(text)

    def _portable_lines(self, context: Workspace) -> list[cst.BaseStatement]:
        """Return the statements by which shims starts the replicas."""
        quote = context.quote
        asked = is_launching_process(context)
        launch = launch_of_file(context)
        names = {name: context.imports.require(name) for name in ("os", "sys")}
        shims = context.imports.require("shims")
        text = [
            *(
                f"import {module}" + ("" if name == module else f" as {name}")
                for module, name in names.items()
                if not _imported_above(module, context.module)
            ),
            "",
            "import shims" + ("" if shims == "shims" else f" as {shims}"),
            "",
            f"if __name__ == {quote}__main__{quote} and {asked}:",
            "    # Each replica runs this file, as torchrun runs it in a process.",
            *(f"    {line}" for line in launch.splitlines()),
        ]
        for module, name in (*names.items(), ("shims", shims)):
            context.imports.given(module, name)
        return _statements(text)


def _statements(lines: list[str]) -> list[cst.BaseStatement]:
    return [
        statement
        for statement in cst.parse_module("\n".join(lines) + "\n").body
        if isinstance(statement, cst.BaseStatement)
    ]


def _place(module: cst.Module) -> tuple[cst.CSTNode, bool]:
    """Return the statement beside which the lines come, and whether they come after it.

    After the imports of the standard library at the head of the file, else after its docstring, else
    before its first statement.
    """
    last: cst.CSTNode | None = None
    for number, statement in enumerate(module.body):
        if _is_standard_import(statement) or (number == 0 and is_docstring(statement)):
            last = statement
        else:
            break
    return (module.body[0], False) if last is None else (last, True)


def _imported_above(name: str, module: cst.Module) -> bool:
    """Whether a plain `import name` stands among the imports at the head of the file."""
    for statement in module.body:
        if not (_is_standard_import(statement) or is_docstring(statement)):
            return False
        for plain in nodes_of(statement, cst.Import):
            if any(code(alias.name) == name and alias.asname is None for alias in plain.names):
                return True
    return False


def _imported_below(names: Iterable[str], module: cst.Module) -> list[cst.SimpleStatementLine]:
    """Return the lines `import name` of the module that come after what starts the replicas."""
    wanted = {name for name in names if not _imported_above(name, module)}
    lines = []
    for statement in module.body:
        if not isinstance(statement, cst.SimpleStatementLine) or len(statement.body) != 1:
            continue
        plain = statement.body[0]
        if isinstance(plain, cst.Import) and len(plain.names) == 1:
            alias = plain.names[0]
            if alias.asname is None and code(alias.name) in wanted:
                lines.append(statement)
    return lines


def _is_standard_import(statement: cst.CSTNode) -> bool:
    """Whether `statement` is an import of modules of the standard library only."""
    if not isinstance(statement, cst.SimpleStatementLine):
        return False
    roots = []
    for small in statement.body:
        if isinstance(small, cst.Import):
            roots += [code(alias.name).split(".")[0] for alias in small.names]
        elif isinstance(small, cst.ImportFrom) and small.module is not None and not small.relative:
            roots.append(code(small.module).split(".")[0])
        else:
            return False
    return all(root in sys.stdlib_module_names for root in roots)


def _relative_import(module: cst.Module) -> cst.ImportFrom | None:
    for statement in module.body:
        if isinstance(statement, cst.SimpleStatementLine):
            for small in statement.body:
                if isinstance(small, cst.ImportFrom) and small.relative:
                    return small
    return None
