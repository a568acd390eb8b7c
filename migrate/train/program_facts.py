"""Facts of a program that follow from the port and the record, with what cannot be a program."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from converters.layers.layout import Chain, Layout, Plus
from converters.mapping.file import load_mapping
from migrate.counts import many
from migrate.train.errors import TrainError
from migrate.train.slice.loss import LossSlice
from migrate.train.slice.text import ScriptText
from migrate.train.watch.sizes import has_forms
from migrate.train.write.texts import (
    ProgramFacts,
)


def program_facts(
    script: ScriptText, loss: LossSlice, recorded: Mapping[str, Any], port: Any, weights: Any
) -> ProgramFacts:
    """Return the facts of the program.

    Raises:
        TrainError: the model, its modes or its batches cannot be written.
    """
    modes = set(recorded["training"].values())
    where = script.at(loss.frame.line)
    unlike = recorded["unlike"]
    if port.trains and not recorded["fixed"] and (len(modes) > 1 or unlike):
        which = f" ({unlike[0]})" if unlike else ""
        raise TrainError(
            f"{where}: one module is in training mode, another one is not{which}",
            "set the mode of all modules alike",
        )
    lost = [
        *([f"dropout of {recorded['dropout']:g}"] if recorded["dropout"] else []),
        *(f"the batch statistics of {name}" for name in recorded["batch_statistics"]),
    ]
    if port.refused and not recorded["fixed"] and lost:
        raise TrainError(
            f"{where}: the program would lose {', '.join(lost[:3])}, as the model's training mode cannot be "
            f"written: {port.refused}",
            "change the line that is named, or train in the mode of evaluation",
        )
    if port.drawn:
        raise TrainError(
            f"{where}: the model draws {port.drawn[0].name} by Python or NumPy",
            "draw it in the data",
        )
    keys = recorded["inputs"]
    for argument in port.inputs:
        if argument.name not in keys:
            raise TrainError(
                f"{where}: the loss reads {argument.name}, which is no tensor of the batch",
                "give the batch to the step by name",
            )
        for update in recorded["updates"]:
            for micro in update["micro"]:
                shape = micro["inputs"][argument.name].shape
                if len(shape) != len(argument.shape):
                    raise TrainError(
                        f"{where}: batches have {argument.name} of {many(len(shape), 'dimension')}, but the "
                        f"model is ported for {len(argument.shape)}",
                        "give each batch the same dimensions",
                    )
                sides = zip(argument.shape, shape, strict=True)
                wrong = [
                    (side, size) for side, size in sides if isinstance(side, int) and side != size
                ]
                if wrong:
                    raise TrainError(
                        f"{where}: batches have {argument.name} of different sizes, but the model is ported "
                        f"for {wrong[0][0]} only",
                        "pad the batches to one size",
                    )
    inputs = {argument.name: keys[argument.name] for argument in port.inputs}
    return ProgramFacts(
        script.name.rpartition("/")[2],
        where,
        inputs,
        takes_mode=port.trains or bool(port.refused),
        training=port.trains and modes == {True} and not port.refused,
        # Layers of dropout draw from Flax's own stream.
        streams=tuple(dict.fromkeys((*port.streams, *(["dropout"] if port.draws else ())))),
        statistics=port.statistics,
        frozen=weights.frozen,
        average=recorded["average"].decay if recorded.get("average") else "",
        forms=has_forms(port),
    )


def names_of_batch(names: str, facts: ProgramFacts, recorded: Mapping[str, Any]) -> dict[str, str]:
    """Variable of a micro-batch → its name in `interface.py`, if that is another one.

    Args:
        names: the option `--batch-names`; "" for the variables' own names.
        facts: facts of the program.
        recorded: the recorded run.

    Raises:
        TrainError: the names are those of other variables.
    """
    if not names:
        return {}
    if facts.rollouts:
        raise TrainError(
            f"--batch-names {names}: {facts.position}: batches come from rollouts by the program's weights",
            "leave the option out",
        )
    known = {*(root for root, _ in facts.inputs.values()), *recorded["taken"]}
    named = {name.strip().rpartition(":")[2]: name.strip() for name in names.split(",")}
    if named.keys() != known:
        raise TrainError(
            f"--batch-names {names}: a micro-batch has the variables {', '.join(sorted(known))}",
            "name each of them once, as NAME or FUNCTION:NAME",
        )
    return {variable: name for variable, name in named.items() if name != variable}


def require_plain_weights(
    script: ScriptText, loss: LossSlice, by_mapping: bool, mapping: Path
) -> None:
    """Require that each weight of the program is a weight of the script, in another layout at most.

    Args:
        script: the script.
        loss: its loss.
        by_mapping: whether no weight is computed from others.
        mapping: the file of the port's mapping.

    Raises:
        TrainError: one is computed from others, or shifted.
    """
    where = script.at(loss.frame.line)
    if not by_mapping:
        raise TrainError(
            f"{where}: torch computes some weights of the model from others",
            "remove weight_norm and the like from the model",
        )
    rules = load_mapping(mapping).rules
    if any(_shifts(target.layout) for rule in rules for target in rule.targets):
        raise TrainError(
            f"{where}: some weights of the model are shifted in Flax", "report this with the model"
        )


def _shifts(layout: Layout) -> bool:
    """Whether a layout adds a number to a weight: its gradient would be shifted too."""
    if isinstance(layout, Chain):
        return any(map(_shifts, layout.layouts))
    return isinstance(layout, Plus)
