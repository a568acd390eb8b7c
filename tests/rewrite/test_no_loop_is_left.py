"""No loop that trains on the accelerator is left without a step and without a word."""

from __future__ import annotations

import shutil
import textwrap
from pathlib import Path

import libcst as cst
import pytest

from migrate.reading.script import Script
from migrate.reading.steps.loops import has_sync
from migrate.rewrite.left.launch_and_steps import WHY, without_step
from migrate.rewrite.pipeline import rewrite_source
from migrate.rewrite.plan import plan
from migrate.rewrite.rules import all_rules
from migrate.rewrite.rules.step.steps import trains_on_accelerator
from migrate.rewrite.workspace import Workspace
from migrate.syntax.source import parse

EXAMPLES = Path(__file__).parents[2] / "examples"
SCRIPTS = {
    str(path.relative_to(EXAMPLES)): path.read_bytes() for path in sorted(EXAMPLES.rglob("*.py"))
} | {
    f"{rule.name} {number}": textwrap.dedent(example.before).encode()
    for rule in all_rules()
    for number, example in enumerate(rule.examples)
    if "backward" in example.before
}


def left(data: bytes, path: Path) -> list[int]:
    """Return the lines of the loops of a rewritten script that train on the accelerator in no step."""
    script = Script(parse(data, path))
    return [
        script.position(loop).line
        for loop in script.all_of(cst.For, cst.While)
        if script.effects.is_step_loop(loop)
        and (trains_on_accelerator(script) or script.effects.on_accelerator(loop) is not False)
        and id(loop) not in script.for_cuda
        and not has_sync(loop, script)
    ]


@pytest.fixture(scope="module")
def examples(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """As they are with a user: what they import of this toolkit is no part of their project."""
    return shutil.copytree(EXAMPLES, tmp_path_factory.mktemp("copy") / "examples")


@pytest.mark.parametrize("name", SCRIPTS)
def test_every_loop_that_trains_has_its_step_or_a_finding(name: str, examples: Path) -> None:
    path = examples / name if name.endswith(".py") else Path("script.py")
    done = rewrite_source(parse(SCRIPTS[name], path))
    said = [note for note in done.findings if note.rule == "step"]
    assert not left(done.data, path) or said


def test_the_last_look_sees_a_loop_that_no_rule_spoke_of() -> None:
    script = b"""
def train(model, loader, optimizer):
    model.cuda()
    for x in loader:
        model(x.cuda()).mean().backward()
        optimizer.step()
"""
    rules = [rule for rule in all_rules() if rule.name == "device"]
    (finding,) = without_step(plan(Workspace(parse(script, Path("script.py"))), rules))
    assert finding.message == WHY
    whole = plan(Workspace(parse(script, Path("script.py"))), all_rules())
    assert not list(without_step(whole))
