"""What is said of a file whose training a framework runs: it stays as it is."""

from __future__ import annotations

from collections.abc import Iterator

import libcst as cst
import libcst.matchers as m

from migrate.rewrite.plan import Plan
from migrate.rewrite.rule import Finding
from migrate.rewrite.workspace import Workspace

RULE = "frameworks"


def left_to_framework(found: Plan, user: str) -> Iterator[Finding]:
    """Yield the one finding of such a file, with the lines in which it speaks of CUDA itself.

    Args:
        found: what the rules would have done.
        user: the file that calls the framework and uses this one; empty where it does so itself.
    """
    context = found.context
    others = [one for one in (*found.edits, *found.findings) if one.rule != RULE]
    places = {context.position(one.node).line: one.node for one in others}
    cuda = sorted(line for line, node in places.items() if _names_cuda(node, context))
    named = ", ".join(map(str, cuda))  # all of them: nothing else names them
    yours = f"; what it says of CUDA itself is yours to change: line {named}" if cuda else ""
    own = [one for one in found.findings if one.rule == RULE and "leave the script" in one.message]
    if own:
        yield Finding(RULE, own[0].node, f"{own[0].message}{yours}")
    elif cuda or not user:
        place = places[cuda[0]] if cuda else next(iter(context.module.body), context.module)
        message = (
            f"a framework runs the training of {user or 'this script'}: this file is left as it is"
        )
        yield Finding(RULE, place, f"{message}{yours}")


def _names_cuda(node: cst.CSTNode, script: Workspace) -> bool:
    """Whether the first line of `node` names CUDA, or something imported from a module of CUDA."""
    line = script.position(node).line
    text = script.source.text.splitlines()[line - 1]
    if "cuda" in text.lower() or "nccl" in text:
        return True
    names = (
        script.qualified_name(name) or ""
        for name in m.findall(node, m.Name() | m.Attribute())
        if script.position(name).line == line
    )
    return any(name.startswith("torch.cuda.") for name in names)
