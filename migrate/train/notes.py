"""Notes on a program: what else to know."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from migrate.counts import many
from migrate.train.factor import factor_note
from migrate.train.watch.seeds import UNSEEDED
from migrate.train.write.texts import (
    ROLLOUTS,
    ProgramFacts,
)


def program_notes(
    recorded: Mapping[str, Any], port: Any, facts: ProgramFacts, left: Sequence[str] = ()
) -> list[str]:
    """Return what a user of the program has to know, a line each.

    Args:
        recorded: the recorded run.
        port: the ported loss.
        facts: facts of the program.
        left: statements of the training loop that the program does not have.
    """
    notes = [*port.notes]
    if recorded["difference"]:
        notes.append(
            f"the slice of the loss differs from the script's own by {recorded['difference']:.1e}: "
            "another order of sums"
        )
    if recorded["unseeded"]:
        notes.append(UNSEEDED)
    if recorded["dropout"]:
        notes.append("dropout was switched off for the comparison; the program draws its own masks")
    if recorded["noise"]:
        notes.append(
            "the loss draws random numbers: in the comparison both sides draw the same ones; the program "
            "draws its own"
        )
    if not recorded.get("ended") or (recorded["later"] and (left or recorded["noise"])):
        parts = "parts of the script that the program leaves out"
        parts += "" if facts.evaluations else " (evaluation)"
        drawing = [*(["the loss"] if recorded["noise"] else []), *([parts] if left else [])]
        notes.append(
            f"the first {len(recorded['updates'])} updates were compared (--updates N compares more). Later "
            f"batches may come in another order if {' or '.join(drawing) or parts} draw random numbers"
        )
    notes += idle_notes(recorded)
    if facts.rollouts:
        notes.append(ROLLOUTS)
    if facts.counted:
        notes.append(
            "--global-mean: gradients and loss of an update are means over all elements that count, of all "
            "micro-batches and devices; the script adds the means of its micro-batches, and DDP averages "
            "those of its ranks"
        )
    if factor := factor_note(facts, recorded):
        notes.append(factor)
    if facts.copies_every:
        become = f"keep {facts.copies_keep!r} of themselves and become trained ones for the rest"
        become = become if facts.copies_keep else "become copies of trained ones"
        notes.append(
            f"{many(len(facts.copied), 'frozen parameter')} {become} every "
            f"{many(facts.copies_every, 'update')}: refreshed in train.py. So the script did in "
            f"{many(len(recorded['updates']) + recorded['later'], 'update')}"
        )
    if recorded.get("failed"):
        notes.append(
            f"the script fails after {len(recorded['updates']) + recorded['later']} updates "
            f"({recorded['failed'][:200]}): what follows is unknown"
        )
    if recorded["later"]:
        notes.append(
            f"the script was watched for {many(recorded['later'], 'more update')}. Their learning rates are "
            "compared. Modes, frozen parameters, clipping and numbers that the loss reads stay the same in "
            "them"
        )
    if per_epoch := {s.per_epoch for s in recorded["optimizer"].schedules} - {0}:
        stepped = f"schedule is stepped after each epoch of {many(max(per_epoch), 'update')}"
        notes.append(
            f"the whole training was watched: its {stepped}"
            if recorded.get("ended")
            else "an epoch is longer than the watched updates: the script was hurried through it, without "
            f"training. Its {stepped}"
        )
    if recorded["fixed"]:
        notes.append(
            "each module of the model is written in the mode that it has in the script's training"
        )
    elif port.refused:
        notes.append(
            f"the model runs in evaluation mode: {port.refused}; the gradients are compared"
        )
    if average := recorded.get("average"):
        notes.append(
            f"{average.name} is a moving average of the weights with the decay {average.decay}: "
            "state.average in train.py, --save-average writes it. Buffers are not averaged"
        )
    for name in recorded.get("unknown_averages", ()):
        notes.append(
            f"{name} starts as a copy of the weights and changes by an unknown rule: the program does not "
            "have it"
        )
    for moved in recorded["moved"]:
        notes.append(
            f"{moved.text}: runs {', '.join(moved.modules)} in training mode outside of the updates, and so "
            "moves its running statistics; the program does not have the statement. Call eval() around it, "
            "or add it to train.py"
        )
    if recorded.get("autocast"):
        notes.append(
            f"the script has autocast to {recorded['autocast']}: the program computes in float32, and is "
            "compared with the script without autocast"
        )
    return notes


def idle_notes(recorded: Mapping[str, Any]) -> list[str]:
    """Return a line for each optimizer that the script built and did not step while it was watched."""
    return [
        f"{line}: this optimizer was not stepped while the script was watched, and the program does not "
        "have it. If the script steps it later, the program trains otherwise from there on"
        for line in recorded["idle"]
    ]
