"""Last checks of a rewrite: training on several replicas is launched, and each training loop has a step.

What lacks one of them, and has no other finding, gets a finding.
"""

from __future__ import annotations

from collections.abc import Iterator

import libcst as cst

from migrate.reading.replicas.launch import Style
from migrate.reading.steps.loops import Loop, has_sync
from migrate.rewrite.left.framework import RULE as FRAMEWORKS
from migrate.rewrite.plan import Plan
from migrate.rewrite.rule import RuleFinding, Wrap
from migrate.rewrite.rules.launch.launch_main import LaunchMain
from migrate.rewrite.rules.step.step import StepRule
from migrate.rewrite.rules.step.steps import trains_on_accelerator
from migrate.rewrite.workspace import Workspace
from migrate.syntax.tree import nodes, nodes_of

WHY = (
    "this loop runs a backward pass and an optimizer's step, and got no `with torch_xla.step():`: write "
    "`# migrate: step` above it, or put the step in the block by hand"
)


ALONE = (
    "this script trains for several replicas, and nothing in it is seen to start them: as it stands it is "
    "one replica; start them with {}, the function that trains as its first argument"
)
SWITCHED_OFF = (
    "a constant switches off what makes this script train on several replicas: it is one replica, as it was "
    "one process; for more, switch it on before the rewrite, so that {} starts them"
)
WITHHELD = (
    "this script gets no launch, since it imports {}, whose launcher may start it: as it stands it is one "
    "replica; start them with {}, the function that trains as its first argument"
)


def without_launch(plan: Plan) -> Iterator[RuleFinding]:
    """Yield a finding for a script that trains for several replicas and does not start them."""
    context = plan.context
    said = {change.rule for change in (*plan.edits, *plan.findings)}
    if context.calls.distributed and context.launch.style is Style.NONE and FRAMEWORKS not in said:
        node = context.launch.guard or next(iter(context.module.body), context.module)
        message = SWITCHED_OFF if context.launch.is_switched_off else ALONE
        yield RuleFinding(LaunchMain.name, node, message.format(context.vocabulary.say("launch")))
    elif LaunchMain.name not in said and (framework := context.launch.withheld):
        node = context.launch.guard or next(iter(context.module.body), context.module)
        message = WITHHELD.format(framework, context.vocabulary.say("launch"))
        yield RuleFinding(LaunchMain.name, node, message)


def without_step(plan: Plan) -> Iterator[RuleFinding]:
    """Yield a finding for each loop that trains outside of a step and has no other finding."""
    context = plan.context
    loops = [
        loop
        for loop in context.all_of(cst.For, cst.While)
        if context.effects.is_step_loop(loop)
        and id(loop) not in context.for_cuda
        and context.effects.on_cpu(loop) != 0
    ]
    if not loops:
        return
    blocks = {id(edit.block) for edit in plan.edits if isinstance(edit, Wrap)}
    said = {id(finding.node) for finding in plan.findings if finding.rule == StepRule.name}
    here = trains_on_accelerator(context)
    for loop in loops:
        accelerated = here or context.effects.on_accelerator(loop) is not False
        if (
            accelerated
            and not has_sync(loop, context)
            and not _covered(loop, context, blocks | said)
        ):
            yield RuleFinding(StepRule.name, loop, WHY)


def _covered(loop: Loop, context: Workspace, places: set[int]) -> bool:
    """Whether one of `places` lies in the loop, or in a function of the script that trains in it."""
    seen: set[int] = set()
    waiting: list[cst.CSTNode] = [loop]
    while waiting:
        place = waiting.pop()
        if any(id(node) in places for node in nodes(place)):
            return True
        if any(map(context.effects.nests, nodes_of(place, cst.Call))):
            return True  # the functions that it runs get the steps
        for callee in context.effects.callees([place]):
            if id(callee) not in seen:
                seen.add(id(callee))
                waiting.append(callee)
    return False
