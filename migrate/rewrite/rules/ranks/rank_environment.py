"""RANK, LOCAL_RANK and WORLD_SIZE of the environment, in scripts whose launcher does not set them."""

from __future__ import annotations

from collections.abc import Iterable

import libcst as cst

from migrate.catalogue.launchers import SCRIPT
from migrate.check.hazard import Severity
from migrate.reading.replicas.launch import Style
from migrate.reading.replicas.single import is_of_one_process
from migrate.reading.values.environment import access, environment_name, is_read, sets
from migrate.rewrite.rule import Edit, Rule, RuleFinding, Stage, left_alone, reported, rewritten
from migrate.rewrite.styles.vocabulary import Word
from migrate.rewrite.workspace import Workspace
from migrate.syntax.tree import code

WORDS: dict[str, Word] = {
    "RANK": "rank",
    "LOCAL_RANK": "local rank",
    "WORLD_SIZE": "world size",
    "LOCAL_WORLD_SIZE": "local world size",
}


class RankEnvironmentRule(Rule):
    """Ask the runtime where nothing sets the rank in the environment.

    **What it does.** `torch_xla.launch` sets no RANK, LOCAL_RANK, WORLD_SIZE or LOCAL_WORLD_SIZE. In a
    script that starts its replicas itself, code that runs in them asks the runtime:
    `int(os.environ["RANK"])` becomes `xr.global_ordinal()`.

    **Left alone.** Scripts that torchrun starts: the launcher that `launch-main` or `module-script` adds
    sets the variables in each replica. Variables that the script sets itself. In a script of one process,
    which no other file imports and which joins no process group, reads whose default says so:
    `os.environ.get("WORLD_SIZE", "1")`.

    **Reported.** What is read before the launch; reads with a default and tests whether it is set, which
    choose how the script runs; and reads in a module that starts nothing: the script that imports it has
    to set them.

    Source: torch_xla 2.9 (run: all four are unset in a launched replica).
    """

    name = "rank-environment"
    code = "XLA710"
    stage = Stage.DEVICE
    edited = Severity.WARNING
    nodes = (cst.SimpleString,)
    examples = (
        rewritten(
            """
            import os

            import torch_xla


            def worker(index):
                rank = int(os.environ["RANK"])
                print(rank, os.environ["WORLD_SIZE"])


            if __name__ == "__main__":
                torch_xla.launch(worker)
            """,
            """
            import torch_xla
            import torch_xla.runtime as xr


            def worker(index):
                rank = xr.global_ordinal()
                print(rank, str(xr.world_size()))


            if __name__ == "__main__":
                torch_xla.launch(worker)
            """,
        ),
        left_alone(
            """
            import os

            import torch_xla


            def worker(index):
                os.environ["RANK"] = str(index)
                print(os.environ["RANK"])


            if __name__ == "__main__":
                torch_xla.launch(worker)
            """
        ),
        left_alone(
            """
            import os


            def count(path):
                if int(os.environ.get("WORLD_SIZE", 1)) > 1 or os.getenv("RANK", "0") != "0":
                    raise SystemExit("one process only")
                return len(open(path).readlines())


            if __name__ == "__main__":
                print(count("rows.txt"))
            """
        ),
        reported(
            """
            import os

            import torch_xla


            def worker(index, distributed):
                print(index, distributed)


            if __name__ == "__main__":
                torch_xla.launch(worker, args=("WORLD_SIZE" in os.environ,))
            """,
            "before the launch",
        ),
        reported(
            """
            import os


            def is_master():
                return int(os.environ["RANK"]) == 0
            """,
            "the script that imports this",
        ),
    )

    def find(self, node: cst.CSTNode, context: Workspace) -> Iterable[Edit | RuleFinding]:
        """Yield the edit of one read, or why it is left."""
        name = environment_name(node, context)
        if name not in WORDS or not is_read(node, context) or sets(name, context):
            return
        style = context.launch.style
        if context.portable:
            yield from self._portable(node, name, context)
            return
        if style in (Style.MAIN, Style.MODULE) or _by_shims(context):
            return
        asked = context.vocabulary.say(WORDS[name])
        environ = access(node, context)
        assert environ is not None
        if style is Style.NONE and is_of_one_process(environ, name, context):
            return
        if style is Style.NONE:
            message = (
                f"{name} is not set by torch_xla.launch: the script that imports this has to set it in each "
                f"replica, as one that `migrate rewrite` has given a launcher does; else {asked}"
            )
        elif not context.launch.in_replica(node):
            message = f"{name} is not set before the launch: ask {asked} in the worker"
        elif not isinstance(environ, cst.Subscript):
            message = f"{name} is not set in a replica that torch_xla.launch starts: {asked}"
        else:
            yield self._edit(environ, name, context)
            return
        yield from self.report(node, message)

    def _portable(
        self, node: cst.CSTNode, name: str, context: Workspace
    ) -> Iterable[Edit | RuleFinding]:
        """Yield the edit of `int(os.environ[…])` in a replica, in whose environment shims puts it.

        Other reads stay. One before the launch is reported: it is not set there.
        """
        environ = access(node, context)
        assert environ is not None
        launch = context.launch
        if launch.style is Style.SPAWN and not launch.in_replica(node):
            message = (
                f"{name} is not set before the launch: ask {context.vocabulary.say(WORDS[name])} in"
            )
            yield from self.report(node, f"{message} the worker")
            return
        in_replica = launch.in_replica(node) or (
            launch.style is Style.NONE and context.function_around(node) is not None
        )
        above = context.parent(context.parent(environ))
        is_int = isinstance(above, cst.Call) and code(above.func) == "int"
        chosen = any(
            isinstance(a, cst.If) and _asks_environment(a) for a in context.ancestors(node)
        )
        if isinstance(environ, cst.Subscript) and in_replica and is_int and not chosen:
            yield self._edit(environ, name, context)

    def _edit(self, subscript: cst.Subscript, name: str, context: Workspace) -> Edit:
        call = context.vocabulary.write(WORDS[name])
        place: cst.CSTNode = subscript
        new = f"str({call})"
        above = context.parent(context.parent(subscript))
        if isinstance(above, cst.Call) and code(above.func) == "int" and len(above.args) == 1:
            place, new = above, call
        message = f"{name} is asked of the runtime: {context.vocabulary.say(WORDS[name])}"
        return self.edit(place, lambda _: cst.parse_expression(new), message, consumes=[place])


def _asks_environment(node: cst.If) -> bool:
    """Whether `node`, or another branch of it, chooses by what is in the environment."""
    return "environ" in code(node.test) or "getenv" in code(node.test)


def _by_shims(context: Workspace) -> bool:
    """Whether shims starts the replicas, and sets their environment."""
    launches = {"shims.launch", SCRIPT}
    return any(context.qualified_name(call.func) in launches for call in context.all_of(cst.Call))
