"""Handlers of the log, of which torch_xla has one of its own."""

from __future__ import annotations

from collections.abc import Iterable

import libcst as cst

from migrate.check.hazard import Severity
from migrate.rewrite.edits.nodes import with_args
from migrate.rewrite.rule import Edit, Rule, RuleFinding, checked, left_alone, reported, rewritten
from migrate.rewrite.rules.random.following import statement_after
from migrate.rewrite.workspace import Workspace
from migrate.syntax.tree import code, keyword

CONFIGURE, LOGGER = "logging.basicConfig", "logging.getLogger"
IS_IGNORED = (
    "`import torch_xla` sets up the root logger, so that this call does nothing: the level and the format "
    "stay torch_xla's; force=True"
)
TWICE = "`import torch_xla` gives the root logger a handler, which prints each line again"


class LoggingSetup(Rule):
    """Set up the log although torch_xla has set it up.

    **What it does.** `import torch_xla` calls `logging.basicConfig()`. After that, the script's own
    `logging.basicConfig(level=…)` does nothing, and the lines of `logger.info` disappear: the call gets
    `force=True`. A logger with a handler of its own passes its lines on to the root logger, whose handler
    prints them a second time: `logger.propagate = False` is put after its first `addHandler`.

    **Left alone.** A call that says `force`; a logger whose `propagate` the script sets; handlers of a
    logger in a script that sets up the root logger itself, which prints lines twice on a GPU too.

    **Reported.** Several calls of `basicConfig`, of which the first one counts without `force`; one that runs
    as a file is imported, where another file sets up the log, too.

    Source: torch_xla 2.9, `torch_xla/__init__.py` (measured).
    """

    name = "logging-setup"
    code = "XLA887"
    edited = Severity.WARNING
    nodes = (cst.Call,)
    words = "basicConfig|addHandler"
    examples = (
        rewritten(
            """
            import logging

            import torch

            logging.basicConfig(level=logging.INFO)
            model = torch.nn.Linear(2, 2).to("cuda")
            """,
            """
            import logging

            import torch
            import torch_xla

            logging.basicConfig(level=logging.INFO, force=True)
            model = torch.nn.Linear(2, 2).to("xla")
            """,
        ),
        rewritten(
            """
            import logging
            import sys

            import torch

            logger = logging.getLogger("train")
            logger.addHandler(logging.StreamHandler(sys.stdout))
            logger.addHandler(logging.FileHandler("train.log"))
            model = torch.nn.Linear(2, 2).to("cuda")
            """,
            """
            import logging
            import sys

            import torch
            import torch_xla

            logger = logging.getLogger("train")
            logger.addHandler(logging.StreamHandler(sys.stdout))
            logger.propagate = False
            logger.addHandler(logging.FileHandler("train.log"))
            model = torch.nn.Linear(2, 2).to("xla")
            """,
        ),
        left_alone(
            """
            import logging

            import torch

            logging.basicConfig(level=logging.INFO, force=True)
            logger = logging.getLogger("train")
            logger.propagate = False
            logger.addHandler(logging.StreamHandler())
            model = torch.nn.Linear(2, 2).to("xla")
            """
        ),
        left_alone(
            """
            import logging

            logging.basicConfig(level=logging.INFO)
            logging.info("no accelerator here")
            """
        ),
        reported(
            """
            import logging

            import torch


            def train(verbose):
                if verbose:
                    logging.basicConfig(level=logging.DEBUG)
                logging.basicConfig(level=logging.INFO)
                return torch.nn.Linear(2, 2).to("xla")
            """,
            "force=True",
        ),
        checked(
            """
            import logging

            import torch

            logging.basicConfig(level=logging.INFO)  # XLA887
            logger = logging.getLogger(__name__)
            model = torch.nn.Linear(2, 2).to("cuda")  # XLA724
            """
        ),
    )

    def find(self, node: cst.CSTNode, context: Workspace) -> Iterable[Edit | RuleFinding]:
        """Yield the edit of a call that sets up the log, or the finding."""
        assert isinstance(node, cst.Call)
        if not context.devices.are_used and not context.launch.in_replica(node):
            return
        if context.qualified_name(node.func) == CONFIGURE:
            yield from self._configuration(node, context)
        elif isinstance(node.func, cst.Attribute) and node.func.attr.value == "addHandler":
            yield from self._handler(node, node.func.value, context)

    def _configuration(self, call: cst.Call, context: Workspace) -> Iterable[Edit | RuleFinding]:
        if keyword(call, "force") is not None or any(arg.star for arg in call.args):
            return
        if len(_configurations(context)) > 1:
            yield from self.report(call, f"{code(call.func)}: {IS_IGNORED} in the first such call")
            return
        at_import = context.function_around(call) is None and context.launch.guard is None
        if context.calls.logs_elsewhere and context.calls.imported and at_import:
            message = (
                f"{code(call.func)}: another file sets up the log, too. This call needs force=True if it is "
                "the first that runs, as `import torch_xla` sets up the root logger; otherwise it did nothing"
            )
            yield from self.report(call, message, Severity.INFO)
            return
        force = cst.Arg(
            keyword=cst.Name("force"),
            value=cst.Name("True"),
            equal=cst.AssignEqual(cst.SimpleWhitespace(""), cst.SimpleWhitespace("")),
        )
        yield self.edit(
            call,
            lambda updated: with_args(updated, [*updated.args, force]),
            "logging.basicConfig with force=True: torch_xla has set up the root logger",
            wrong=IS_IGNORED,
        )

    def _handler(
        self, call: cst.Call, logger: cst.BaseExpression, context: Workspace
    ) -> Iterable[Edit | RuleFinding]:
        statement = context.parent(call)
        if not isinstance(statement, cst.Expr) or not isinstance(logger, cst.Name):
            return
        name = logger.value
        assigns = [
            assign
            for assign in context.all_of(cst.Assign)
            if any(code(target.target) == name for target in assign.targets)
        ]
        named = assigns and all(
            isinstance(assign.value, cst.Call)
            and context.qualified_name(assign.value.func) == LOGGER
            and assign.value.args
            for assign in assigns
        )
        sets = any(code(node) == f"{name}.propagate" for node in context.all_of(cst.Attribute))
        calls = [other for other in context.all_of(cst.Call) if code(other.func) == code(call.func)]
        if not named or sets or calls[0] is not call or _configurations(context):
            return
        yield statement_after(
            self,
            statement,
            f"{name}.propagate = False",
            f"{name} does not pass its lines on: torch_xla's handler would print them again",
            context,
            wrong=TWICE,
        )


def _configurations(context: Workspace) -> list[cst.Call]:
    return [
        call for call in context.all_of(cst.Call) if context.qualified_name(call.func) == CONFIGURE
    ]
