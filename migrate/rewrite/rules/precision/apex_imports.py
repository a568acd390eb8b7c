"""The guard that stops a script where apex is not installed."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence

import libcst as cst

from migrate.catalogue.target import BOTH
from migrate.check.failing_imports import is_optional
from migrate.reading.facts import facts_of
from migrate.rewrite.rule import Edit, Rule, RuleFinding, left_alone, reported, rewritten
from migrate.rewrite.rules.models.sync_batch_norm import SyncBatchNorm
from migrate.rewrite.rules.precision.apex_amp import ApexAmp
from migrate.rewrite.rules.precision.apex_optimizers import ApexOptimizers
from migrate.rewrite.rules.precision.clip_gradients import ClipGradients
from migrate.rewrite.workspace import Workspace
from migrate.syntax.tree import nodes

# What speaks of the uses of apex.
HANDLE = (ApexAmp(), ApexOptimizers(), ClipGradients(), SyncBatchNorm())


class ApexImports(Rule):
    """Remove the guard that stops the script where apex is not installed.

    **What it does.** `try: from apex import … except ImportError: raise …` goes where the other rules
    take care of every use of what it imports, however its `except` ends the script; so does
    `import apex` in a function. Imports at module level go by themselves with their last use. apex needs
    CUDA: on a TPU machine it is not installed.

    **Reported.** The guard where something of apex is still in use.
    """

    name = "apex-imports"
    code = "XLA404"
    targets = BOTH
    nodes = (cst.Try, cst.SimpleStatementLine)
    words = "apex"
    examples = (
        rewritten(
            """
            try:
                from apex import amp
                from apex.parallel import DistributedDataParallel as DDP
            except ImportError:
                raise ImportError("Please install apex")

            model = DDP(model)
            """,
            """
            import torch

            model = torch.nn.parallel.DistributedDataParallel(model, gradient_as_bucket_view=True)
            """,
        ),
        rewritten(
            """
            import sys

            try:
                from apex.parallel import DistributedDataParallel as DDP
            except ImportError:
                print("Please install apex")
                sys.exit(1)

            model = DDP(model)
            """,
            """
            import torch

            model = torch.nn.parallel.DistributedDataParallel(model, gradient_as_bucket_view=True)
            """,
        ),
        left_alone(
            """
            try:
                from apex import amp
            except ImportError:
                amp = None
            """
        ),
        reported(
            """
            try:
                from apex import amp
            except ImportError:
                raise ImportError("Please install apex")

            amp.register_float_function(torch, "sum")
            """,
            "stops",
        ),
        reported(
            """
            try:
                from apex.optimizers import FusedAdam
            except ImportError:
                raise ImportError("Please install apex")

            optimizer = FusedAdam(parameters, bias_correction=False)
            """,
            "`FusedAdam` is still in use",
        ),
    )

    def find(self, node: cst.CSTNode, context: Workspace) -> Iterable[Edit | RuleFinding]:
        """Yield the removal of one guard, or the finding."""
        if isinstance(node, cst.SimpleStatementLine):
            yield from self._line(node, context)
            return
        assert isinstance(node, cst.Try)
        names = _imported_from_apex(node.body.body, context)
        if not names or node.orelse or node.finalbody or is_optional(node.body, facts_of(context)):
            return
        used = [use for name in names for use in context.references(name) if _is_use(use, context)]
        left = [use for use in used if not _is_handled(use, context)]
        if left:
            yield from self.report(
                node,
                f"stops the script without apex, of which `{left[0].value}` is still in use",
                subject="apex",
            )
            return
        message = "apex is not needed"
        yield self.edit(node, lambda _: cst.RemoveFromParent(), message, consumes=[node])

    def _line(self, line: cst.SimpleStatementLine, context: Workspace) -> Iterator[Edit]:
        """Yield the removal of one import in a function or a branch; those of a `try` are its guard's."""
        block = context.parent(line)
        if not isinstance(block, cst.IndentedBlock) or isinstance(context.parent(block), cst.Try):
            return
        names = _imported_from_apex([line], context)
        if not names:
            return
        used = [use for name in names for use in context.references(name) if _is_use(use, context)]
        if used and all(_is_handled(use, context) for use in used):
            yield self.edit(line, lambda _: cst.RemoveFromParent(), "apex is not needed")


def _imported_from_apex(lines: Sequence[cst.CSTNode], context: Workspace) -> list[str]:
    """Return the names that the statements import from apex, or nothing if one does anything else."""
    bound: list[str] = []
    for line in lines:
        for statement in line.body if isinstance(line, cst.SimpleStatementLine) else (line,):
            imported = facts_of(context).imported(statement)
            if not imported or any(name.split(".")[0] != "apex" for name in imported):
                return []
            names = statement.names if isinstance(statement, cst.Import | cst.ImportFrom) else ()
            for alias in () if isinstance(names, cst.ImportStar) else names:
                whole = "apex" if isinstance(statement, cst.Import) else alias.evaluated_name
                bound.append(alias.evaluated_alias or whole)
    return bound


def _is_use(name: cst.Name, context: Workspace) -> bool:
    """Whether `name` is a variable that is read, not an attribute, a keyword or an import."""
    above = context.parent(name)
    if isinstance(above, cst.Attribute) and above.value is not name:
        return False
    if isinstance(above, cst.Arg) and above.keyword is name:
        return False
    imports = cst.ImportAlias | cst.ImportFrom | cst.AsName
    return not any(isinstance(a, imports) for a in context.ancestors(name))


def _is_handled(name: cst.Name, context: Workspace) -> bool:
    """Whether another rule handles a use of `name`. If that rule may not rewrite it, the import stays."""
    whole: cst.CSTNode = name
    while isinstance(context.parent(whole), cst.Attribute):
        above = context.parent(whole)
        assert above is not None
        whole = above
    gone = (
        part
        for place in (whole, *context.within_statement(whole))
        for rule in HANDLE
        if isinstance(place, rule.nodes)
        for change in rule.find(place, context)
        if isinstance(change, Edit)
        for part in change.consumes
    )
    return any(node is name for part in gone for node in nodes(part))
