"""`README.md` of a written program: what became of the script, the verdict, what it does not have."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from migrate.counts import many
from migrate.train.results import TrainComparison, TrainedProgram, by_stage, limited, meanings
from migrate.train.slice.data import DataSlice
from migrate.train.slice.loss import LossSlice
from migrate.train.slice.text import ScriptText
from migrate.train.write.interface import Interface
from migrate.train.write.texts import ProgramFacts
from migrate.train.write.usage import CHECKPOINTS, DEVICES


def readme_text(
    result: TrainedProgram,
    script: ScriptText,
    facts: ProgramFacts,
    data: DataSlice,
    loss: LossSlice,
    recorded: Mapping[str, Any],
    command: str,
    interface: Interface | None,
) -> str:
    """The page.

    Args:
        result: what was compared, and what is left.
        script: the script.
        facts: facts about the step.
        data: the sliced loop.
        loss: the statements of the loss.
        recorded: the recorded run.
        command: command that writes the program again.
        interface: what `interface.py` has; None if there is none.
    """
    spans = [script.span(first, last) for first, last in loss.lines]
    backward = script.at(loss.frame.line)
    optimizer = recorded["optimizer"]
    cls = optimizer.name.rpartition(".")[2]
    rows = [
        (", ".join(spans) or backward, "`loss.py`", "the statements from the batch to the loss"),
        (backward, "`train.py`", "`jax.value_and_grad` of the loss"),
        (
            ", ".join(recorded["children"].values()),
            "`model.py`, `params.safetensors`",
            "the model, and the weights that the script starts from",
        ),
        (
            f"{cls}, {many(len(optimizer.groups), 'group')}",
            "`optimizer.py`",
            "the update, in optax",
        ),
        (
            f"the loop around {script.at(data.loop.line)}",
            "`data.py`",
            "the script's own loop without what trains",
        ),
    ]
    rows += [
        (script.at(clip.line), "`optimizer.py`", f"clipping by {clip.kind}, {clip.limit!r}")
        for clip in optimizer.clips
    ]
    if facts.log is not None:
        rows.append((script.at(facts.log.line), "`train.py`", "what is printed of an update"))
    if facts.logged:
        where = ", ".join(map(script.at, facts.logged_lines))
        rows.append((where, "`data.py`", "what is printed, with values of the last update"))
    rows += [evaluation_row(script, site) for site in facts.evaluations]
    lines = [
        f"# {facts.script} in JAX",
        "",
        f"The training script {facts.script} in Flax and optax, written by `{command}`.",
        "",
        "    python train.py                   # trains as the script does; --help lists its options",
        "    python -m pytest test_same.py     # compares the first losses with the script's",
        "",
        "## Verdict",
        "",
    ]
    if result.error:
        lines += [f"**{result.error}**", ""]
    elif not result.comparisons:
        lines += ["The program was not compared with the script (`--no-proof`).", ""]
    else:
        word = limited(result.comparisons)
        said = "computes what the script computes" if result.same or word else "**differs**"
        if word:
            said += f", but the script **{_LIMITED[word]}**"
        if any(comparison.intended for comparison in result.comparisons):
            said += ", but for the mean over all elements of an update (`--global-mean`)"
        lines += [
            f"The program {said}: "
            f"the first {len(recorded['updates'])} updates, on the script's own batches and weights.",
            "",
            *table_of(result.comparisons),
            "",
            *(f"- {line}" for line in meanings(result.comparisons)),
            "",
        ]
    lines += ["## What became of the script", "", "| script | program | |", "|---|---|---|"]
    lines += [f"| {source} | {file} | {what} |" for source, file, what in rows]
    lines += ["", "## Not in the program", ""]
    if result.left:
        lines += ["The program does not have these statements of the training loop:", ""]
        lines += [f"- `{statement}`" for statement in result.left]
    else:
        lines += ["Nothing of the training loop."]
    if interface is not None:
        lines += [] if data.rollouts else CHECKPOINTS.rstrip().splitlines()
        lines += DEVICES.rstrip().splitlines()
        lines += _interface_lines(interface)
    if result.notes:
        lines += ["", "## Notes", "", *(f"- {note}" for note in result.notes)]
    return "\n".join(lines) + "\n"


# What the script itself does that no program can be held to.
_LIMITED = {
    "amplifies": "amplifies differences",
    "cancels": "has losses that are no larger than the rounding of their terms",
}


def evaluation_row(script: ScriptText, site: Mapping[str, Any]) -> tuple[str, str, str]:
    """Return the lines of an evaluation in the script, its files in the program, and what they have of it."""
    return (
        ", ".join(dict.fromkeys(script.at(chain[0].line) for chain in site["chains"])),
        "`evaluate.py`, `data.py`",
        f"the evaluation `{site['label']}`: what it computes of a batch, and the loop around it",
    )


def table_of(comparisons: Sequence[TrainComparison]) -> list[str]:
    """Lines of the table of comparisons; what explains a difference stands behind what differs."""
    lines = [
        "| stage | compared | verdict | largest relative difference | limit | |",
        "|---|---|---|---|---|---|",
    ]
    for comparison in by_stage(comparisons):
        worst = "" if comparison.worst is None else f"{comparison.worst:.1e}"
        limit = "" if comparison.limit is None else f"{comparison.limit:.1e}"
        verdict = comparison.verdict if comparison.same else f"**{comparison.verdict}**"
        what = "; cause: ".join(filter(None, (comparison.what, comparison.cause)))
        cells = (comparison.stage, comparison.name, verdict, worst, limit, what)
        lines.append(f"| {' | '.join(cells)} |")
    return lines


def _interface_lines(interface: Interface) -> list[str]:
    """The section on `interface.py`."""
    lines = [
        "",
        "## Interface",
        "",
        "Training does not need `interface.py`. It has the program by torch's names, to compare it with the",
        "script: `load`, `weights`, `outputs`, `loss_and_gradients`, `step` and `batches`.",
        "Where a function of the script takes the model, it takes a state here. Classes of the model",
        "have the constructors of `model.py`, not the script's.",
    ]
    if interface.names:
        named = ", ".join(f"`{name}`" for name in interface.names)
        lines += ["", f"Of the script it has {named}."]
    if interface.missing:
        lines += ["", "It does not have:", ""]
        lines += [f"- {name}" for name in interface.missing]
    return lines
