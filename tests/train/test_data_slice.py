"""The script's own loop without what trains."""

from __future__ import annotations

import ast
import contextlib
import inspect
import sys
import textwrap
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np
import pytest
import torch.distributed

from migrate.train.data_file import _gaps
from migrate.train.errors import TrainError
from migrate.train.frames import Frame, script_frames
from migrate.train.proof.data_child import difference_of
from migrate.train.slice.data import DataSlice, data_slice
from migrate.train.slice.loops import TrainingCalls, call_of, parameters_of
from migrate.train.slice.loss import loss_slice
from migrate.train.slice.text import (
    FunctionNode,
    ScriptText,
    comprehension,
    path_to,
    shared_line,
)
from migrate.train.watch.values import plain
from migrate.train.write.left import left_statements, weight_notes
from migrate.train.write.texts import data_text

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


def sliced(source: str, names: Sequence[str], trained: Sequence[str] = ()) -> str:
    """Slice the loop above, or a variant of it, in whose `main` these names are trained."""
    script = ScriptText("train.py", textwrap.dedent(source))
    outer = [(" train_step(model", "main"), ("    main()", "<module>")]
    backward = frames(script, ("loss.backward", "train_step"), *outer)
    step = frames(script, ("optimizer.step()", "main"), ("    main()", "<module>"))
    calls = TrainingCalls(backward, (step,), ())
    where = {(backward[1].function, backward[1].first): trained}
    return data_slice(script, calls, loss_slice(script, backward[0]), names, trained=where).text


class Ended(BaseException):
    """As `data.py` has it."""


def run(text: str) -> list[Any]:
    """Run the generator, until the script ends."""
    namespace: dict[str, Any] = {"Ended": Ended}
    items = []
    with pytest.MonkeyPatch.context() as patch, contextlib.suppress(Ended):
        patch.setattr(sys, "argv", ["train.py", "--epochs", "2"])
        exec(text, namespace)  # the sliced source
        for item in namespace["micro_batches"]():
            items.append(item)
    return items


def test_what_is_bound_beside_a_loader_stays_with_it() -> None:
    source = LOOP.replace("loader = Loader(args.epochs)", "loader, other = build(args.epochs)")
    calls = "other.set_epoch(epoch)\n            other.forget(model)\n            "
    source = source.replace("for batch in loader:", f"{calls}for batch in loader:")
    text = sliced(source, ["batch"], ["model"])
    assert "other.set_epoch(epoch)" in text
    assert "other.forget" not in text  # it needs what is trained


def test_the_generator_yields_batches_and_updates_in_the_scripts_order() -> None:
    text = sliced(LOOP, ["batch"])
    batches = [None if item is None else item["batch"]["x"] for item in run(text)]
    assert batches == [0, 1, None, 2, 10, None]


def test_what_trains_is_left_out_and_the_rest_keeps_its_text() -> None:
    text = sliced(LOOP, ["batch"])
    assert "Model" not in text
    assert "evaluate" not in text
    assert "for batch in loader:  # every batch" in text
    assert "args = parser.parse_args()\n" in text


def test_a_loop_that_ends_by_the_loss_is_refused() -> None:
    source = LOOP.replace(
        "                train_step(", "                bad = train_step("
    ).replace("if step >= 4:", "if bad > 4:")
    with pytest.raises(TrainError, match=r"depend on bad, which the training step computes"):
        sliced(source, ["batch"])


def test_what_only_asks_whether_an_object_is_there_needs_none_of_its_calls() -> None:
    update = "        optimizer.step()\n"
    scaled = (
        "if scaler is not None:\n"
        "                    scaler.scale(loss).backward()\n"
        "                    scaler.step(optimizer)\n"
        "                else:\n"
        f"            {update}"
    )
    source = LOOP.replace("optimizer.step()\n", scaled).replace(
        "loader = Loader(args.epochs)", "loader = Loader(args.epochs)\n        scaler = None"
    )
    text = sliced(source, ["batch"], ["model"])
    assert "scaler is not None" in text
    assert "backward" not in text
    assert [item is None for item in run(text)] == [False, False, True, False, False, True]


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


def test_a_block_without_gradients_is_a_statement_of_the_loss() -> None:
    source = """
        for batch in loader:
            with torch.no_grad():
                wanted = teacher(batch)
            loss = (model(batch) - wanted).sum()
            loss.backward()
            optimizer.step()
        """
    script = ScriptText("train.py", textwrap.dedent(source))
    backward = frames(script, ("loss.backward", "<module>"))
    calls = TrainingCalls(backward, (frames(script, ("optimizer.step", "<module>")),), ())
    text = data_slice(script, calls, loss_slice(script, backward[0]), ["batch"]).text
    assert "teacher" not in text
    assert "yield {'batch': batch}" in text


ACCUMULATING = """
    def main():
        model, data = object(), iter([1, 2, 3, 4, 5])
        ctx = torch.amp.autocast("cpu")
        batch = next(data)
        for update in range(2):
            for micro in range(2):
                no_sync = model.no_sync if micro < 1 else contextlib.nullcontext
                with no_sync():
                    with ctx:
                        loss = model(batch)
                    batch = next(data)
                    loss.backward()
            optimizer.step()


    main()
    """


def accumulating(source: str) -> DataSlice:
    """Slice this loop, in which `model` is trained."""
    script = ScriptText("train.py", textwrap.dedent(source))
    backward = frames(script, ("loss.backward", "main"), ("main()", "<module>"))
    step = frames(script, ("optimizer.step()", "main"), ("main()", "<module>"))
    calls = TrainingCalls(backward, (step,), ())
    trained = {(backward[0].function, backward[0].first): ["model"]}
    return data_slice(script, calls, loss_slice(script, backward[0]), ["batch"], trained=trained)


def test_a_context_without_effect_on_the_batches_is_left_out() -> None:
    text = accumulating(ACCUMULATING).text
    assert "no_sync" not in text
    assert "with " not in text
    assert [item and item["batch"] for item in run(text)] == [1, 2, None, 3, 4, None]


def test_a_context_that_may_have_an_effect_on_the_batches_is_kept() -> None:
    source = ACCUMULATING.replace("contextlib.nullcontext", "contextlib.ExitStack")
    with pytest.raises(TrainError, match="the loop depends on model"):
        accumulating(source)
    source = ACCUMULATING.replace("with no_sync()", "with seeded()")
    assert "with seeded():" in accumulating(source).text


def test_methods_that_a_kept_method_calls_in_a_block_are_kept() -> None:
    source = """
        class Trainer:
            def __init__(self, data):
                self.data, self.scores = data, []

            def score(self, batch):
                return batch + 1

            def evaluate(self, batches):
                for batch in batches:
                    if batch:
                        self.scores.append(self.score(batch))

            def fit(self, model):
                seen = last = 0
                for batch in self.data:
                    if seen - last >= 2:
                        self.evaluate([0, 1])
                        last = seen
                    loss = model(batch)
                    loss.backward()
                    optimizer.step()
                    seen += 1


        Trainer([5, 6, 7, 8]).fit(None)
        """
    script = ScriptText("train.py", textwrap.dedent(source))
    outer = [(".fit(None)", "<module>")]
    backward = frames(script, ("loss.backward", "fit"), *outer)
    step = frames(script, ("optimizer.step", "fit"), *outer)
    calls = TrainingCalls(backward, (step,), ())
    text = data_slice(script, calls, loss_slice(script, backward[0]), ["batch"]).text
    assert [item["batch"] for item in run(text) if item is not None] == [5, 6, 7, 8]


@pytest.mark.parametrize("inside", [False, True])
def test_methods_that_a_caller_calls_before_the_loop_are_kept(inside: bool) -> None:
    source = """
        class Recipe:
            def __init__(self, size):
                self.size = size

            def setup(self):
                self.data = self.numbers()

            def numbers(self):
                return list(range(self.size))

            def save(self):
                raise AssertionError("not in the data")

            def fit(self, model):
                for batch in self.data:
                    loss = model(batch)
                    loss.backward()
                    optimizer.step()


        def main():
            recipe = Recipe(3)
            recipe.setup()
            recipe.fit(None)
        """
    outer = [("recipe.fit(None)", "<module>")]
    if inside:
        source += "\n        main()"
        outer = [("recipe.fit(None)", "main"), ("main()", "<module>")]
    else:
        source = source.replace("def main():", "if True:")
    script = ScriptText("train.py", textwrap.dedent(source))
    backward = frames(script, ("loss.backward", "fit"), *outer)
    step = frames(script, ("optimizer.step", "fit"), *outer)
    calls = TrainingCalls(backward, (step,), ())
    text = data_slice(script, calls, loss_slice(script, backward[0]), ["batch"]).text
    assert [item["batch"] for item in run(text) if item is not None] == [0, 1, 2]
    assert "def save" not in text


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


def test_values_that_nothing_else_reads_are_not_left() -> None:
    source = textwrap.dedent(
        """
        import torch
        for number, x in enumerate(loader):
            last = number == 3
            wait = last or number > 1
            shown = norm(model)
            loss = model(x)
            loss.backward()
            total += loss.item()
            began, ended = ended, time.time()
            optimizer.step()
            if device.startswith("cuda"):
                torch.cuda.synchronize()
            if check(device):
                torch.cuda.synchronize()
            log(total)
        """
    )
    script = ScriptText("train.py", source)
    backward = frames(script, ("loss.backward", "<module>"))
    calls = TrainingCalls(backward, (frames(script, ("optimizer.step", "<module>")),), ())
    loss = loss_slice(script, backward[0])
    left = left_statements(script, data_slice(script, calls, loss, ["x"]), loss, calls)
    assert [line.partition(": ")[2] for line in left] == [
        "shown = norm(model)",  # the call may do more
        "total += loss.item()",
        "if check(device):",
        "log(total)",
    ]


def test_statements_that_scale_gradients_are_not_left_if_the_program_scales_them() -> None:
    source = textwrap.dedent(
        """
        tokens = losses = 0
        for number, x in enumerate(loader):
            loss = model(x)
            count = (x != 0).sum()
            tokens += count
            losses += loss.detach()
            loss.backward()
            if number % 2:
                for p in model.parameters():
                    p.grad.div_(tokens)
                optimizer.step()
                tokens = 0
                log(losses)
        """
    )
    script = ScriptText("train.py", source)
    backward = frames(script, ("loss.backward", "<module>"))
    calls = TrainingCalls(backward, (frames(script, ("optimizer.step", "<module>")),), ())
    loss = loss_slice(script, backward[0])
    data = data_slice(script, calls, loss, ["x"])
    left = left_statements(script, data, loss, calls, scaled=True)
    assert left == ["train.py:7: losses += loss.detach()", "train.py:14: log(losses)"]
    assert "train.py:10: for p in model.parameters():" in left_statements(script, data, loss, calls)


def test_what_the_program_does_itself_is_not_left() -> None:
    source = textwrap.dedent(
        """
        step = 0
        for epoch in range(2):
            model.train()
            for x in loader:
                loss = model(x)
                loss.backward()
                optimizer.step()
                step += 1
                if step % 8 == 0:
                    print(f"{epoch} {step} {loss.item():.4f} {schedule.get_last_lr()[0]}")
                if step % 9 == 0:
                    print(best)
                for group in optimizer.param_groups:
                    group["lr"] = rate(step)
                torch.cuda.synchronize()
                dist.barrier()
                for group in optimizer.param_groups:
                    group["momentum"] = rate(step)
                writer.train(x)
                if step % 9 == 0:
                    save(model)
            model.eval()
            print(accuracy(model), epoch)
        """
    )
    script = ScriptText("train.py", source)
    backward = frames(script, ("loss.backward", "<module>"))
    calls = TrainingCalls(backward, (frames(script, ("optimizer.step", "<module>")),), ())
    loss = loss_slice(script, backward[0])
    data = data_slice(script, calls, loss, ["x"])
    modes = [n for n, line in enumerate(script.lines, 1) if line.strip().startswith("model.")]
    left = left_statements(script, data, loss, calls, own=modes)
    assert left == [
        "train.py:12: if step % 9 == 0:",
        "train.py:18: for group in optimizer.param_groups:",
        "train.py:20: writer.train(x)",
        "train.py:21: if step % 9 == 0:",
        "train.py:24: print(accuracy(model), epoch)",
    ]


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


def early_stop(
    source: str,
    trained: dict[tuple[str, int], list[str]],
    places: dict[tuple[str, int], dict[str, str]] | None = None,
) -> str:
    """Slice the loop above, or a variant of it."""
    script = ScriptText("train.py", textwrap.dedent(source))
    outer = ("train(model, loader)", "<module>")
    backward = frames(script, ("loss.backward", "train"), outer)
    calls = TrainingCalls(backward, (frames(script, ("optimizer.step", "train"), outer),), ())
    loss = loss_slice(script, backward[0])
    return data_slice(script, calls, loss, ["x"], (), trained, places).text


def test_floats_of_rollouts_are_equal_within_a_limit_and_tokens_exactly() -> None:
    theirs = {"x": {"ids": np.array([1, 2]), "logps": np.array([-1.0, -2.0])}}
    recorded = {"updates": [{"micro": [{"batch": theirs}]}]}

    def difference(ids: int, logps: float, limit: float) -> str:
        ours = {"x": {"ids": np.array([1, ids]), "logps": np.array([-1.0, logps])}}
        return difference_of(iter([[ours]]), recorded, limit)

    assert not difference(2, -2.0001, 1e-4)
    assert difference(2, -2.0001, 0.0).endswith("x.logps differs")
    assert difference(2, -2.001, 1e-4).endswith("x.logps differs")
    assert difference(3, -2.0, 1e-4).endswith("x.ids differs")


def test_a_loop_that_ends_by_an_evaluation_is_refused() -> None:
    with pytest.raises(
        TrainError, match=r"train.py:9: the loop depends on model, which is trained"
    ):
        early_stop(EARLY_STOP, {("train", 2): ["model"]})


def test_what_a_loop_trains_and_runs_gets_the_weights_of_the_program() -> None:
    trained = {("train", 2): ["model"]}
    text = early_stop(EARLY_STOP, trained, {("train", 2): {"model": "model"}})
    assert (
        "yield None\n            hand_over({'model': model})\n        value = evaluate(model)"
        in text
    )
    assert "best = 9\n    hand_over({'model': model})\n    for epoch" in text
    compile(text, "data.py", "exec")


KL_STOP = """
    def train(model, loader):
        for epoch in range(6):
            x = sample(model)
            for _ in range(3):
                logits = model(x)
                loss, kl = ppo_loss(logits, x)
                loss.backward()
                optimizer.step()
                if kl > 2:
                    break

    train(model, loader)
"""


def test_a_rollouts_loop_that_ends_by_the_loss_computes_it_before_the_update() -> None:
    trained = {("train", 2): ["model"]}
    places = {("train", 2): {"model": "model"}}
    text = early_stop(KL_STOP, trained, places)
    lines = [line.strip() for line in text.partition("in range(3):")[2].split("\n")]
    assert lines[1:9] == [
        "yield {'x': x}",
        "logits = model(x)",
        "loss, kl = ppo_loss(logits, x)",
        "yield None",
        "hand_over({'model': model})",
        "if kl > 2:",
        "break",
        "",
    ]
    without_rollouts = KL_STOP.replace("sample(model)", "next(loader)")
    with pytest.raises(TrainError, match=r"train.py:7: the batches depend on kl"):
        early_stop(without_rollouts, trained, places)


@pytest.mark.parametrize("call", ["random.shuffle(rows)", "np.random.default_rng(0).shuffle(rows)"])
def test_what_a_draw_changes_in_place_is_kept(call: str) -> None:
    source = f"""
    import random

    def train(model, loader):
        rows, seen = [0, 1, 2], []
        for epoch in range(2):
            {call}
            random.shuffle(seen)
            for x in loader[rows]:
                loss = model(x)
                loss.backward()
                optimizer.step()

    train(model, loader)
    """
    text = early_stop(source, {})
    assert f"\n        {call}\n" in text
    assert "seen" not in text.partition("for epoch")[2]


SAMPLING = """
class Trainer:
    def __init__(self, model):
        self.model, self.rows = model, [1, 2]

    def sample(self, count):
        return [self.model(row) for row in self.rows[:count]]

    def fetch(self, count):
        return self.rows[:count]

    def train(self):
        for _ in range(3):
            rows = self.METHOD(2)
            for x in rows:
                loss = self.model(x).mean()
                loss.backward()
                self.optimizer.step()


Trainer(model).train()
"""


def test_what_a_method_of_the_trainer_samples_has_the_weights_of_the_program() -> None:
    places = {("train", 12): {"model": "self.model"}}
    trained = {("train", 12): ["self.model", "self.optimizer"]}

    def cut_of(method: str, places: Any = None) -> DataSlice:
        script = ScriptText("train.py", SAMPLING.replace("METHOD", method))
        places_of = [("loss.backward()", "train"), ("Trainer(model)", "<module>")]
        backward = frames(script, *places_of)
        step = frames(script, ("self.optimizer.step()", "train"), places_of[1])
        calls = TrainingCalls(backward, (step,), ())
        return data_slice(
            script, calls, loss_slice(script, backward[0]), ["x"], (), trained, places
        )

    assert cut_of("sample", places).starts
    assert not cut_of("fetch", places).rollouts
    with pytest.raises(TrainError, match=r"the loop depends on self\.model"):
        cut_of("sample")


def test_modules_that_each_loop_makes_anew_get_no_weights_before_it() -> None:
    source = EARLY_STOP.replace("    for x in", "    model = new()\n            for x in", 1)
    places = {("train", 2): {"model": "model"}}
    text = early_stop(source, {("train", 2): ["model"]}, places)
    assert "    hand_over({'model': model})\n        for x in loader" in text


def test_a_function_that_trains_a_reward_before_the_loop_is_kept() -> None:
    source = """
    def fit(reward):
        optimizer.zero_grad()
        return reward

    reward = fit(Reward())
    for x in reward:
        optimizer.zero_grad()
        loss = model(x)
        loss.backward()
        optimizer.step()
    """
    script = ScriptText("train.py", textwrap.dedent(source))
    backward = frames(script, ("loss.backward", "<module>"))
    step = frames(script, ("optimizer.step", "<module>"))
    inner = frames(script, ("    optimizer.zero_grad", "fit"), ("reward = fit", "<module>"))
    calls = TrainingCalls(backward, (step,), (inner,))
    text = data_slice(script, calls, loss_slice(script, backward[0]), ["x"]).text
    assert "reward = fit(Reward())" in text
    assert "return reward" in text


def test_a_module_that_the_loop_runs_must_have_a_name_there() -> None:
    places = {("train", 2): {}, ("<module>", 1): {"model": "model"}}
    with pytest.raises(
        TrainError, match=r"the loop runs model, which is trained, but train does not"
    ):
        early_stop(EARLY_STOP, {("train", 2): ["model"]}, places)


def test_a_literal_that_is_stored_in_a_tensor_stays_behind_it() -> None:
    source = EARLY_STOP.replace(
        "train(model, loader)\n",
        "loader = torch.zeros(4)\n    loader[2:] = 1.0\n    train(model, loader)\n",
    )
    text = early_stop(source, {})
    assert text.index("loader = torch.zeros(4)") < text.index("loader[2:] = 1.0")


RESUMING = """
batches = iter(range(9))
model = make()
step = 0
if mode == "new":
    model = make()
elif mode == "resume":
    model = restored()
    checkpoint = load("last.pt")
    step = checkpoint["step"]
while True:
    checkpoint = {"model": model.state_dict(), "step": step}
    x = next(batches)
    loss = model(x)
    loss.backward()
    optimizer.step()
    step += 1
    if step > 3:
        break
"""


def test_a_name_of_the_loop_that_only_earlier_statements_read_is_left_out() -> None:
    script = ScriptText("train.py", RESUMING)
    module = "<module>"
    backward = frames(script, ("loss.backward", module))
    calls = TrainingCalls(backward, (frames(script, ("optimizer.step", module)),), ())
    trained = {(module, 1): ["model"]}
    text = data_slice(script, calls, loss_slice(script, backward[0]), ["x"], (), trained).text
    assert "state_dict" not in text
    assert "restored" not in text
    assert 'step = checkpoint["step"]' in text
    compile(text, "data.py", "exec")


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


@pytest.mark.parametrize(
    "leave", ["sys.exit(0)", "exit()", "quit()", "raise SystemExit", "return 1"]
)
@pytest.mark.parametrize("inner", [True, False], ids=["called", "own"])
def test_a_way_out_of_the_script_ends_the_data(leave: str, inner: bool) -> None:
    outer = ("    fit(4)", "<module>") if not inner else (" epoch_of(4)", "<module>")
    source = """
    import sys

    def NAME(limit):
        step = 0
        for x in range(9):
            loss = model(x)
            loss.backward()
            optimizer.step()
            step += 1
            if step >= limit:
                print(loss)
                LEAVE

    if __name__ == "__main__":
        MAIN
    """
    name = "epoch_of" if inner else "fit"
    main = f"for epoch in range(2):\n            {name}(4)" if inner else f"{name}(4)"
    source = source.replace("NAME", name).replace("LEAVE", leave).replace("MAIN", main)
    script = ScriptText("train.py", textwrap.dedent(source))
    before = ast.dump(script.tree)
    backward = frames(script, ("loss.backward", name), outer)
    calls = TrainingCalls(backward, (frames(script, ("optimizer.step", name), outer),), ())
    text = data_slice(script, calls, loss_slice(script, backward[0]), ["x"]).text
    batches = [item["x"] for item in run(f"__name__ = '__main__'\n{text}") if item is not None]
    assert batches == [0, 1, 2, 3] * (2 if inner and leave.startswith("return") else 1)
    assert ast.dump(script.tree) == before


@pytest.mark.parametrize(
    ("leave", "what"),
    [
        ("sys.exit(1)", "the loop depends on model, which is trained"),
        ("raise ValueError", "the loop depends on model, which is trained"),
        ("raise ValueError(loss)", "the batches depend on loss, which the training step computes"),
    ],
)
def test_a_way_out_by_the_loss_is_refused(leave: str, what: str) -> None:
    change = f"            if value > 9:\n                {leave}\n"
    source = EARLY_STOP.replace("            if value < best: best = value\n", change)
    source = source.replace("            elif value > 2 * best", "            if epoch > 2")
    with pytest.raises(TrainError, match=what):
        early_stop(source, {("train", 2): ["model"]})


def test_an_error_of_the_data_is_kept() -> None:
    source = LOOP.replace(
        "                step += 1",
        """                step += 1
                if step == 3:
                    raise ValueError("no more")""",
    )
    with pytest.raises(ValueError, match="no more"):
        run(sliced(source, ["batch"]))


def test_a_break_of_an_inner_loop_is_kept_only_if_the_loop_is() -> None:
    evaluation = """            for y in loader:
                worst = max(model(y))
                if worst > 3:
                    break
"""
    source = EARLY_STOP.replace("            value = evaluate(model)\n", evaluation)
    source = source[: source.index("            if value < best")] + "\n    train(model, loader)\n"
    text = early_stop(source, {("train", 2): ["model"]})
    assert "worst" not in text
    gathering = """            for y in range(epoch, 9):
                limit = y
                if y > 3:
                    break
"""
    source = source.replace(evaluation, gathering).replace("in loader", "in range(limit)")
    source = source.replace("for epoch in range(6):", "limit = 2\n        for epoch in range(2):")
    text = early_stop(source, {})
    assert "break" in text


@pytest.mark.parametrize(
    ("items", "later", "what"),
    [
        (1, 0, ""),
        (2, 0, "update 1: the script ended before it, but the data do not"),
        (3, 2, ""),
        (2, 2, "update 2: the data end here"),
    ],
)
def test_the_data_end_where_the_script_ended(items: int, later: int, what: str) -> None:
    batch = {"x": np.ones(2)}
    recorded = {"updates": [{"micro": [{"batch": batch}]}], "later": later, "ended": True}
    assert difference_of(iter([[batch]] * items), recorded) == what
    assert not difference_of(iter([[batch]] * items), {**recorded, "ended": False})


@pytest.mark.parametrize(
    "read",
    [
        "parser.parse_known_args()[0].n",
        "parser.parse_args(sys.argv[1:]).n",
        "parser.parse_args().n",
        "int(sys.argv[2])",
    ],
)
def test_the_data_read_the_scripts_command_line(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, read: str
) -> None:
    source = f"""
import argparse
import sys
parser = argparse.ArgumentParser()
parser.add_argument("--n", type=int)


def micro_batches():
    for number in range({read}):
        yield {{"x": number}}
        yield None
"""
    monkeypatch.setattr(sys, "argv", ["train.py", "--updates", "1"])
    monkeypatch.setattr(sys, "path", list(sys.path))
    namespace: dict[str, Any] = {}
    args, folder = ["--n", "3"], f"Path({str(tmp_path)!r})"
    exec(data_text(source, "script.py", folder, restores=False, args=args), namespace)
    assert [update[0]["x"] for update in namespace["batches"]()] == [0, 1, 2]
    assert sys.argv == ["train.py", "--updates", "1"]


def test_batches_of_bfloat16_are_arrays_of_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Torch does not hand them to NumPy: the record failed, and no program was written."""
    monkeypatch.setattr(sys, "path", list(sys.path))
    tensor = torch.tensor([1.5, -2.0], dtype=torch.bfloat16)
    text = data_text("", "train.py", f"Path({str(tmp_path)!r})", restores=False, bfloat16=True)
    namespace: dict[str, Any] = {}
    exec(text, namespace)
    for batch in (namespace["arrays"]({"x": [tensor]}), plain({"x": [tensor]})):
        (array,) = batch["x"]
        assert array.dtype == "bfloat16"
        assert array.tolist() == [1.5, -2.0]


@pytest.mark.parametrize(
    ("body", "stays"),
    [
        ("torch.save(self.model.state_dict(), self.path)", False),
        ("self.note('saved')", False),
        ("self.position = 3", True),
        ("self.queue.append(3)", True),
        ("batch = next(self.others)", True),
        ("self.sampler()", True),  # unknown
    ],
)
def test_a_method_that_only_saves_is_not_in_the_data(body: str, stays: bool) -> None:
    source = f"""
    class Trainer:
        def note(self, what):
            print(what)

        def save(self):
            {body}

        def train(self):
            for batch in self.loader:
                train_step(self.model, self.optimizer, batch, 1)
                self.save()


    def train_step(model, optimizer, batch, step):
        loss = model(batch)
        loss.backward()
        optimizer.step()


    trainer = Trainer()
    trainer.train()
    """
    script = ScriptText("train.py", textwrap.dedent(source))
    outer = [(" train_step(self", "train"), ("trainer.train()", "<module>")]
    backward = frames(script, ("loss.backward", "train_step"), *outer)
    step = frames(script, ("optimizer.step", "train_step"), *outer)
    calls = TrainingCalls(backward, (step,), ())
    text = data_slice(script, calls, loss_slice(script, backward[0]), ["batch"]).text
    assert ("self.save()" in text) == stays


DECORATED = """
    import runner
    from runner import Settings


    def setup(rank: int) -> None:
        import torch.distributed as dist

        dist.init_process_group("nccl", rank=rank)


    def train_step(model, optimizer, batch):
        loss = model(batch)
        loss.backward()
        optimizer.step()


    @runner.run(
        "settings"
    )
    def main(settings: Settings):
        setup(0)
        model, optimizer = Model(), Optimizer()
        for batch in range(settings.batches):
            train_step(model, optimizer, batch)


    main()
"""


def test_a_decorator_may_keep_what_the_training_function_gives(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    script = ScriptText("train.py", textwrap.dedent(DECORATED))
    outer = [(" train_step(", "main"), ("main()", "<module>")]
    decorated = next(n for n, line in enumerate(script.lines, 1) if line.startswith("@"))
    backward, step = (
        tuple(
            replace(frame, first=decorated) if frame.function == "main" else frame
            for frame in frames(script, (call, "train_step"), *outer)
        )
        for call in ("loss.backward", "optimizer.step")
    )
    calls = TrainingCalls(backward, (step,), ())
    cut = data_slice(script, calls, loss_slice(script, backward[0]), ["batch"])
    runner = ModuleType("runner")

    class Settings:
        batches = 3

    def run(name: str) -> Any:
        def decorated(function: Any) -> Any:
            assert name == "settings"
            inner = inspect.unwrap(function)
            assert Path(inspect.getfile(inner)) == tmp_path / "train.py"
            assert inner.__module__ == "__main__"
            return lambda: function(Settings()) and None

        return decorated

    runner.__dict__.update(run=run, Settings=Settings)
    monkeypatch.setitem(sys.modules, runner.__name__, runner)
    monkeypatch.setattr(sys, "path", list(sys.path))
    groups: list[str] = []
    monkeypatch.setattr(
        torch.distributed, "init_process_group", lambda kind, **options: groups.append(kind)
    )
    namespace: dict[str, Any] = {}
    exec(data_text(cut.text, "train.py", f"Path({str(tmp_path)!r})", restores=False), namespace)
    assert [update[0]["batch"] for update in namespace["batches"]()] == [0, 1, 2]
    assert groups == ["gloo"]


COMPREHENSION = """
    def train_step(model, optimizer, batch):
        loss = model(batch)
        loss.backward()
        optimizer.step()
        return loss, batch


    def main():
        model, optimizer = Model(), Optimizer()
        for epoch in range(2):
            losses, others = zip(*[train_step(
                model, optimizer, batch) for batch in range(3) if batch != 1])
            print(losses)


    main()
"""


def test_a_step_in_a_comprehension_is_in_a_loop() -> None:
    script = ScriptText("train.py", textwrap.dedent(COMPREHENSION))
    outer = frames(script, ("zip(*[", "main"), ("main()", "<module>"))
    line = outer[0].line
    statement = path_to(script.code(outer[0].first, "main") or script.tree, line)[-1]
    assert comprehension(statement[0][statement[1]], "train_step") is not None
    assert comprehension(statement[0][statement[1]], "print") is None
    script = ScriptText("train.py", script.source, (line,))
    backward = (*frames(script, ("loss.backward", "train_step")), *outer)
    step = (*frames(script, ("optimizer.step()", "train_step")), *outer)
    calls = TrainingCalls(backward, (step,), ())
    text = data_slice(script, calls, loss_slice(script, backward[0]), ["batch"]).text
    assert [item and item["batch"] for item in run(text)] == [0, None, 2, None] * 2


def test_a_comprehension_is_no_frame_of_its_own() -> None:
    namespace: dict[str, Any] = {"script_frames": script_frames}
    source = "def f():\n    return script_frames('x.py')[0]\n\ng = [f() for _ in range(1)]\n"
    exec(compile(source, "x.py", "exec"), namespace)
    assert [(frame.line, frame.function) for frame in namespace["g"][0]] == [
        (2, "f"),
        (4, "<module>"),
    ]


@pytest.mark.parametrize(
    ("call", "expected"),
    [
        ("Run(size())(4)", "Run(size())(4)"),
        ("run(run.of(4))", "run(run.of(4))"),
        ("train(train(4))", "train(train(4))"),
        ("step(4)", "step(4)"),  # another name of the function
        ("list(map(run, [4]))", None),
        ("reduce(run, [4, 4])", None),
        ("method(4)", None),  # whose method is it?
    ],
)
def test_the_call_that_runs_a_frame_is_known_by_its_position(
    call: str, expected: str | None
) -> None:
    source = f"""
from functools import reduce
def size():
    return 2
class Run:
    def __init__(self, size=1):
        self.size = size
    def of(self, count):
        return count
    def __call__(self, count, other=0):
        seen.append(script_frames("x.py")[0])
    def train(self, count):
        seen.append(script_frames("x.py")[0])
def train(count):
    if count:
        seen.append(script_frames("x.py")[0])
run, step, method = Run(), train, Run().train
{call}
"""
    namespace: dict[str, Any] = {"script_frames": script_frames, "seen": []}
    exec(compile(source, "x.py", "exec"), namespace)
    called, caller = namespace["seen"][0]
    script = ScriptText("x.py", source)
    if expected is None:
        with pytest.raises(TrainError, match="is not called by its name here"):
            call_of(script, caller, called)
        return
    node = call_of(script, caller, called)
    assert ast.unparse(node) == (expected if call != "train(train(4))" else "train(4)")
    code = script.code(called.first, called.function)
    assert isinstance(code, FunctionNode)
    assert parameters_of(code, node)[0] == "count"


def test_a_process_group_of_one_rank_loads_the_data() -> None:
    source = LOOP.replace(
        "    size = 3\n", "    import torch.distributed as dist\n\n    size = 3\n"
    )
    source = source.replace(
        "    def evaluate", "    dist.init_process_group('nccl')\n\n\n    def evaluate"
    )
    text = sliced(source, ["batch"])
    assert 'dist.init_process_group("gloo", store=' in text
    assert "import torch.distributed as dist" in text
    assert "nccl" not in text


def test_settings_that_an_exec_reads_and_sets_stay_in_the_module() -> None:
    settings = "size = 1\n    rate = max(1, 2)\n    exec('size += rate; assert unused == 7')"
    source = LOOP.replace("    size = 3\n", f"    unused = 7\n    {settings}\n")
    text = sliced(source, ["batch"])
    assert text.index("unused = 7") < text.index("with command_line():") < text.index("def ")
    head = text[: text.index("class Loader")]
    namespace: dict[str, Any] = {"command_line": contextlib.nullcontext}
    exec(head, namespace)
    assert namespace["size"] == 3


def test_generators_are_restored_after_each_statement_that_data_py_does_not_have() -> None:
    def state(number: int) -> dict[str, Any]:
        return {"torch": np.array([number]), "python": number, "numpy": None}

    # model = …, rows = randn, fixed = randn, printed, loop
    states = [(1, state(0)), (2, state(1)), (3, state(2)), (4, state(3)), (5, state(3))]
    data = DataSlice("", Frame(5, "<module>", 1), frozenset({2, 5}))
    assert [(line, s["python"]) for line, s in _gaps(data, {}, states)] == [(2, 1), (5, 3)]
    assert _gaps(data, {}, [*states, states[0]]) == []


@pytest.mark.parametrize(
    ("statement", "changes"),
    [
        ("model.scale.data.clamp_(0, 4)", True),
        ("self.model.scale.copy_(x)", True),
        ("for p in model.parameters(): p.data.clamp_(-1, 1)", True),
        ("with torch.no_grad(): model.head.weight.mul_(0.5)", True),
        ("model.scale.grad.mul_(2)", False),
        ("model.requires_grad_(False)", False),
        ("x.clamp_(0, 1)", False),
        ("total += model.scale.item()", False),
    ],
)
def test_a_left_statement_that_changes_weights_is_noted(statement: str, changes: bool) -> None:
    script = ScriptText("train.py", statement)
    notes = weight_notes(script, [f"train.py:1: {statement}"], ["model"], 5)
    assert len(notes) == changes
    assert weight_notes(script, [], ["model"], 5) == []


@pytest.mark.parametrize(
    ("before", "statement", "changes"),
    [
        ("ddp = DDP(model, device_ids=[0])", "model.scale.data.clamp_(0, 4)", True),
        ("ddp = torch.compile(DDP(model))", "model.scale.data.clamp_(0, 4)", True),
        ("inner = ddp.module", "with torch.no_grad(): inner.scale.clamp_(0, 4)", True),
        ("self.ddp = DDP(self.model)", "self.model.scale.data.clamp_(0, 4)", True),
        ("out = ddp(x)", "out.clamp_(0, 4)", False),
        ("ddp = DDP(model); other = Net()", "other.scale.data.clamp_(0, 4)", False),
    ],
)
def test_weights_that_are_changed_by_another_name_of_the_model(
    before: str, statement: str, changes: bool
) -> None:
    script = ScriptText("train.py", f"{before}\n{statement}")
    notes = weight_notes(script, [f"train.py:2: {statement}"], ["ddp"], 5)
    assert len(notes) == changes
