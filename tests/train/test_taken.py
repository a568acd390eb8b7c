"""Parts of a batch that a function of the loss takes out before it calls the model."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

from migrate.train.errors import TrainError
from migrate.train.program_facts import names_of_batch
from migrate.train.watch.step import bind, build, flat
from migrate.train.watch.taken import taken_out
from migrate.train.write.interface import _batches_text, by_name_text
from tests.train.toy import FACTS

SCRIPT = """
def loss_step(model, batch):
    labels = batch.pop("labels")
    kept = batch["tokens"]
    return (model(kept) - labels).square().mean()


def double(model, batch):
    target = 2 * batch.pop("labels")
    return (model(batch["tokens"]) - target).square().mean()


def reads(model, batch):
    labels = batch["labels"]
    return (model(batch["tokens"]) - labels).square().mean()
"""


def taken(folder: Path, text: str) -> dict[str, tuple[str, str]]:
    """What these statements take out of a batch."""
    namespace: dict[str, Any] = {}
    exec(compile(SCRIPT, "toy.py", "exec"), namespace)
    batch = {"tokens": torch.randn(4, 3), "labels": torch.randn(4, 2)}
    values = {"model": nn.Linear(3, 2), "batch": batch}
    bound = bind(["model", "batch"], values)
    step = build(bound, text, "loss", namespace, {"model": values["model"]}, folder / "step.py")
    return taken_out(step, bound.inputs, flat(bound, bound.data), text)


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("loss = loss_step(model, batch)", {"labels": ("batch", "labels")}),
        (
            "y = batch.pop('labels')\nloss = (model(batch['tokens']) - y).mean()",
            {"y": ("batch", "labels")},
        ),
        (
            "batch = {k: v.clone() for k, v in batch.items()}\nloss = loss_step(model, batch)",
            {"labels": ("batch", "labels")},
        ),
        ("loss = double(model, batch)", {}),  # the variable holds another number
        ("loss = reads(model, batch)", {}),
    ],
)
def test_what_is_taken_out_is_a_variable_where_the_model_is_called(
    tmp_path: Path, text: str, expected: dict[str, tuple[str, str]]
) -> None:
    assert taken(tmp_path, text) == expected


def test_the_interface_takes_and_gives_batches_as_they_are_there() -> None:
    namespace: dict[str, Any] = {"_data": Data}
    exec(_batches_text({"labels": ("batch", "labels")}, {}), namespace)
    exec(by_name_text({"labels": ("batch", "labels")}), namespace)
    ((called,),) = namespace["batches"]()
    assert called == {"batch": {"tokens": 1}, "labels": 2}
    assert namespace["_by_name"](called) == Data.BATCH
    assert namespace["_by_name"](Data.BATCH) == Data.BATCH
    assert namespace["_by_name"]({"f:batch": {"tokens": 1}, "f:labels": 2}) == Data.BATCH
    assert not _batches_text({}, {})


@pytest.mark.parametrize("taken", [{}, {"labels": ("batch", "labels")}])
def test_the_interface_gives_batches_by_the_names_that_are_asked_for(
    taken: dict[str, tuple[str, str]],
) -> None:
    namespace: dict[str, Any] = {"_data": Data}
    exec(_batches_text(taken, {"batch": "main:batch"}), namespace)
    exec(by_name_text(taken), namespace)
    ((called,),) = namespace["batches"]()
    assert called.keys() == {"main:batch", *taken}
    assert namespace["_by_name"](called) == Data.BATCH


def test_names_of_a_batch_are_those_of_all_its_variables() -> None:
    recorded = {"taken": {"labels": ("batch", "labels")}}
    facts = replace(FACTS, inputs={"x": ("batch", ("tokens",)), "y": ("scale", ())})
    names = names_of_batch("main:batch, labels,step:scale", facts, recorded)
    assert names == {"batch": "main:batch", "scale": "step:scale"}
    assert names_of_batch("", facts, recorded) == {}
    with pytest.raises(TrainError, match="a micro-batch has the variables batch, labels, scale"):
        names_of_batch("main:batch", facts, recorded)


class Data:
    """`data.py` of a program."""

    BATCH = {"batch": {"tokens": 1, "labels": 2}}  # noqa: RUF012

    @classmethod
    def batches(cls) -> list[Any]:
        return [[cls.BATCH]]
