"""The script's own loop without what trains."""

from __future__ import annotations

import ast
import textwrap
from collections.abc import Sequence
from typing import Any

import pytest

from migrate.train.errors import TrainError
from migrate.train.frames import Frame
from migrate.train.slice.data import TrainingCalls, data_slice
from migrate.train.slice.loss import loss_slice
from migrate.train.slice.text import ScriptText, shared_line
from migrate.train.write.left import left_statements

LOOP = """
    import argparse

    size = 3


    def evaluate(model):
        raise AssertionError("not in the data")


    class Loader:
        def __init__(self, epochs):
            self.epochs = epochs

        def __iter__(self):
            yield from range(size)


    def train_step(model, optimizer, batch, step):
        loss = model(batch)
        loss.backward()
        if step % 2 == 1:
            print(loss)


    def main():
        parser = argparse.ArgumentParser()
        parser.add_argument("--epochs", type=int, default=2)
        args = parser.parse_args()
        model = Model()
        optimizer = Optimizer(model)
        loader = Loader(args.epochs)
        step = 0
        for epoch in range(args.epochs):
            for batch in loader:  # every batch
                batch = {"x": batch + 10 * epoch}
                train_step(model, optimizer, batch, step)
                step += 1
                if step % 2 != 0:
                    continue
                optimizer.step()
                if step >= 4:
                    break
            evaluate(model)


    if __name__ == "__main__":
        main()
"""


def frames(script: ScriptText, *places: tuple[str, str]) -> tuple[Frame, ...]:
    """Frames at the lines that hold a text, in these functions."""
    result = []
    for text, function in places:
        calls = (n for n, line in enumerate(script.lines, 1) if text in line and "def " not in line)
        line = next(calls)
        first = 1
        if function != "<module>":
            first = next(n for n, line in enumerate(script.lines, 1) if f"def {function}(" in line)
        result.append(Frame(line, function, first))
    return tuple(result)


def sliced(source: str, names: Sequence[str]) -> str:
    """Slice the loop above, or a variant of it."""
    script = ScriptText("train.py", textwrap.dedent(source))
    outer = [(" train_step(model", "main"), ("    main()", "<module>")]
    backward = frames(script, ("loss.backward", "train_step"), *outer)
    step = frames(script, ("optimizer.step()", "main"), ("    main()", "<module>"))
    calls = TrainingCalls(backward, (step,), ())
    return data_slice(script, calls, loss_slice(script, backward[0]), names).text


def run(text: str) -> list[Any]:
    """Run the generator."""
    namespace: dict[str, Any] = {"ARGV": ["--epochs", "2"]}
    exec(text, namespace)  # the sliced source
    return list(namespace["micro_batches"]())


def test_the_generator_yields_batches_and_updates_in_the_scripts_order() -> None:
    text = sliced(LOOP, ["batch"])
    batches = [None if item is None else item["batch"]["x"] for item in run(text)]
    assert batches == [0, 1, None, 2, 10, None]


def test_what_trains_is_left_out_and_the_rest_keeps_its_text() -> None:
    text = sliced(LOOP, ["batch"])
    assert "Model" not in text
    assert "evaluate" not in text
    assert "for batch in loader:  # every batch" in text
    assert "parse_args(ARGV)" in text


def test_a_loop_that_ends_by_the_loss_is_refused() -> None:
    source = LOOP.replace(
        "                train_step(", "                bad = train_step("
    ).replace("if step >= 4:", "if bad > 4:")
    with pytest.raises(TrainError, match=r"depend on bad, which the training step computes"):
        sliced(source, ["batch"])


def test_a_batch_that_is_no_argument_of_the_step_is_refused() -> None:
    with pytest.raises(TrainError, match="no plain argument"):
        sliced(LOOP, ["elsewhere"])


def test_what_functions_read_is_computed_in_the_scripts_order() -> None:
    source = LOOP.replace("    size = 3\n", "    size = 3\n    counts = list([size])\n").replace(
        "yield from range(size)", "yield from range(LIMITS[0])"
    )
    source = source.replace("    def evaluate(", "    LIMITS = list(counts)\n\n\n    def evaluate(")
    batches = [
        None if item is None else item["batch"]["x"] for item in run(sliced(source, ["batch"]))
    ]
    assert batches == [0, 1, None, 2, 10, None]


@pytest.mark.parametrize(
    ("source", "line"),
    [
        ("for x in data:\n    a = x\n    a.backward()\n", 0),
        ("for x in data:\n    a = x; b = a\n    a.backward()\n", 2),
        ("for x in data:\n    if x: a = x; b = 2\n    x.backward()\n", 2),
        ("a = 1; b = 2\nfor x in data:\n    x.backward()\n", 0),
        ("zero(); x.backward()\n", 1),
    ],
)
def test_statements_that_share_a_line_are_seen(source: str, line: int) -> None:
    tree = ast.parse(source)
    at = next(n for n, text in enumerate(source.splitlines(), 1) if "backward" in text)
    assert shared_line(tree, at) == line


def test_statements_of_a_callers_loop_are_listed_as_left() -> None:
    source = textwrap.dedent(
        """
        def train_epoch(model, loader):
            for x in loader:
                loss = model(x)
                loss.backward()
                optimizer.step()

        for epoch in range(3):
            if epoch == 1:
                unfreeze(model)
            train_epoch(model, loader)
        """
    )
    script = ScriptText("train.py", source)
    outer = ("    train_epoch(model", "<module>")
    backward = frames(script, ("loss.backward", "train_epoch"), outer)
    calls = TrainingCalls(backward, (frames(script, ("optimizer.step", "train_epoch"), outer),), ())
    loss = loss_slice(script, backward[0])
    left = left_statements(script, data_slice(script, calls, loss, ["x"]), loss, calls)
    assert left == ["train.py:9: if epoch == 1:"]


EARLY_STOP = """
    def train(model, loader):
        best = 9
        for epoch in range(6):
            for x in loader:
                loss = model(x)
                loss.backward()
                optimizer.step()
            value = evaluate(model)
            if value < best: best = value
            elif value > 2 * best:
                print("stop")
                break
            else:
                continue

    train(model, loader)
"""


def early_stop(source: str, trained: dict[tuple[str, int], list[str]]) -> str:
    """Slice the loop above, or a variant of it."""
    script = ScriptText("train.py", textwrap.dedent(source))
    outer = ("train(model, loader)", "<module>")
    backward = frames(script, ("loss.backward", "train"), outer)
    calls = TrainingCalls(backward, (frames(script, ("optimizer.step", "train"), outer),), ())
    return data_slice(script, calls, loss_slice(script, backward[0]), ["x"], (), trained).text


def test_a_loop_that_ends_by_an_evaluation_is_refused() -> None:
    with pytest.raises(
        TrainError, match=r"train.py:9: the loop depends on model, which is trained"
    ):
        early_stop(EARLY_STOP, {("train", 2): ["model"]})


def test_blocks_on_one_line_and_elif_keep_their_form() -> None:
    text = early_stop(EARLY_STOP, {})
    compile(text, "data.py", "exec")
    assert "elif" not in text


def test_a_loop_that_ends_by_what_a_method_evaluates_is_refused() -> None:
    source = """
    class Trainer:
        def evaluate(self):
            self.bad = self.model(1) > 2
            self.shown = self.model(2)

        def fit(self, loader):
            for epoch in range(6):
                for x in loader:
                    loss = self.model(x)
                    loss.backward()
                    self.optimizer.step()
                self.evaluate()
                if self.bad:
                    break

    trainer = Trainer()
    trainer.fit(loader)
    """

    def cut(source: str) -> str:
        script = ScriptText("train.py", textwrap.dedent(source))
        outer = ("trainer.fit(loader)", "<module>")
        backward = frames(script, ("loss.backward", "fit"), outer)
        step = frames(script, ("self.optimizer.step", "fit"), outer)
        calls = TrainingCalls(backward, (step,), ())
        trained = {("fit", 7): ["self.model", "self.optimizer"]}
        return data_slice(script, calls, loss_slice(script, backward[0]), ["x"], (), trained).text

    with pytest.raises(TrainError, match=r"train.py:13: the loop depends on self.model"):
        cut(source)
    assert "self.epochs" in cut(source.replace("if self.bad", "if self.epochs"))
