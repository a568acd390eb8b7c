"""What is read, logged or saved in the middle of a step: where it goes, and what stays and is reported."""

from __future__ import annotations

import textwrap
from pathlib import Path

import pytest

from migrate.reading.steps.outside import Outside
from migrate.rewrite.pipeline import rewrite_source
from migrate.rewrite.results import Rewrite
from migrate.rewrite.rules.step.wrapping import ONLY_TIMES, READ_AFTER, READS_INSIDE, WAITS
from migrate.syntax.source import parse


def run(script: str) -> Rewrite:
    data = (textwrap.dedent(script).strip() + "\n").encode()
    return rewrite_source(parse(data, Path("script.py")))


def loop(body: str, after: str = "") -> Rewrite:
    """Return the rewritten form of a training loop with the statements `body`, and `after` behind it."""
    head = """
        import math
        import sys

        import torch


        def train(model, loader, optimizer, scheduler, meter, rank, accum):
            model.to("xla")
            running = 0.0
            for i, (x, y) in enumerate(loader):
                x, y = x.to("xla"), y.to("xla")
    """
    indented = textwrap.indent(textwrap.dedent(body).strip(), " " * 8)
    behind = "\n\n\n" + textwrap.dedent(after).strip()
    return run(textwrap.dedent(head).rstrip() + "\n" + indented + behind)


def statements(done: Rewrite) -> tuple[list[str], list[str]]:
    """Return the lines in the step and those below it, without their indentation and blank lines."""
    lines = done.data.decode().splitlines()
    (start,) = [i for i, line in enumerate(lines) if line.strip() == "with torch_xla.step():"]
    indent = len(lines[start]) - len(lines[start].lstrip())
    after = [line for line in lines[start + 1 :] if line.strip()]
    depth = [len(line) - len(line.lstrip()) for line in after]
    end = next((i for i, d in enumerate(depth) if d <= indent), len(after))
    return [line.strip() for line in after[:end]], [line.strip() for line in after[end:]]


def reports(done: Rewrite) -> list[str]:
    return [note.message for note in done.findings if note.rule == "step"]


UPDATE = """
    loss.backward()
    optimizer.step()
"""


def test_reads_come_below_the_block_in_their_order() -> None:
    done = loop(
        """
        loss = (model(x) - y).mean()
        running += loss.item()
        print(running)
        if i % 10 == 0:
            meter.update(float(loss), x.size(0))
        loss.backward()
        optimizer.step()
        print(f"{loss:.3f}")
        """
    )
    inside, below = statements(done)
    assert inside[1:] == ["loss = (model(x) - y).mean()", "loss.backward()", "optimizer.step()"]
    assert below == [
        "running += loss.item()",
        "print(running)",
        "if i % 10 == 0:",
        "meter.update(float(loss), x.size(0))",
        'print(f"{loss:.3f}")',
    ]
    assert reports(done) == []


def test_a_tensor_that_is_changed_after_the_read_is_copied_before() -> None:
    done = loop(
        """
        loss = (model(x) - y).mean()
        value = loss.item()
        running += loss.item()
        loss /= accum
        loss.backward()
        optimizer.step()
        meter.update(value)
        """
    )
    inside, below = statements(done)
    assert inside[2:5] == [
        "value = loss.detach().clone()",
        "loss_value = loss.detach().clone()",
        "loss /= accum",
    ]
    assert below == ["value = value.item()", "running += loss_value.item()", "meter.update(value)"]


def test_a_name_that_is_bound_anew_needs_no_clone() -> None:
    done = loop(
        """
        loss = (model(x) - y).mean()
        running += loss.item()
        print(loss.item())
        loss = loss / accum
        loss.backward()
        optimizer.step()
        """
    )
    inside, below = statements(done)
    assert inside[2:4] == ["loss_value = loss.detach()", "loss = loss / accum"]
    assert below == ["running += loss_value.item()", "print(loss_value.item())"]


def test_an_edit_by_another_name_of_the_same_memory_counts() -> None:
    done = loop(
        """
        loss = (model(x) - y).mean()
        kept = loss
        running += kept.item()
        loss /= accum
        loss.backward()
        optimizer.step()
        """
    )
    inside, below = statements(done)
    assert "kept_value = kept.detach().clone()" in inside
    assert below == ["running += kept_value.item()"]


def test_what_is_computed_for_a_read_stays_in_the_graph() -> None:
    done = loop(
        """
        output = model(x)
        correct = (output.argmax(1) == y).sum().item()
        loss = (output - y).mean()
        loss.backward()
        optimizer.step()
        """
    )
    inside, below = statements(done)
    assert "correct = (output.argmax(1) == y).sum()" in inside
    assert below == ["correct = correct.item()"]


def test_a_read_in_a_context_is_made_after_the_block() -> None:
    done = loop(
        """
        with torch.autocast("xla"):
            loss = (model(x) - y).mean()
            value = loss.item()
            loss = loss / accum
        loss.backward()
        optimizer.step()
        print(value)
        """
    )
    inside, below = statements(done)
    assert "value = loss.detach().clone()" in inside
    assert below == ["value = value.item()", "print(value)"]
    assert reports(done) == []


def order(done: Rewrite, *marks: str) -> list[str]:
    """Return the lines of the loop that hold one of `marks`, in their order."""
    lines = [line.strip() for line in done.data.decode().splitlines()]
    return [line for line in lines if any(mark in line for mark in marks)]


LEAVE = ["continue", "break", "return", "sys.exit(1)", "raise ValueError(i)"]


@pytest.mark.parametrize("leave", LEAVE)
@pytest.mark.parametrize("more", [0, 1], ids=["even", "odd"])
@pytest.mark.parametrize(
    ("read", "test"),
    [
        ("", "if torch.isnan(loss):"),
        ("", "if not math.isfinite(loss.item()):"),
        ("value = loss.item()", "if not math.isfinite(value):"),
        ("value = loss.item()\nbad = value != value", "if bad:"),
    ],
)
def test_a_check_stays_between_what_it_asks_and_what_it_decides(
    leave: str, more: int, read: str, test: str
) -> None:
    body = ["loss = (model(x) - y).mean()", *["total = loss * 2"] * more, "loss.backward()"]
    body += [*read.splitlines(), test, f"    {leave}", "optimizer.step()"]
    done = loop("\n".join(body))
    found = order(done, "torch_xla.step", "backward", *read.splitlines(), test, "optimizer.step")
    assert found == [
        "with torch_xla.step():",
        "loss.backward()",
        *read.splitlines(),
        test,
        "with torch_xla.step():",
        "optimizer.step()",
    ]
    assert reports(done) == []


@pytest.mark.parametrize(
    "check",
    [
        "assert torch.isfinite(loss)",
        "assert math.isfinite(loss.item()), i",
        "check_numerics(loss)",
        "stop_if_bad(loss.item())",
        "stop_if_bad(loss)",
    ],
)
def test_a_statement_that_may_raise_stays_before_the_update(check: str) -> None:
    done = loop(
        f"""
        loss = (model(x) - y).mean()
        loss.backward()
        {check}
        optimizer.step()
        """,
        """
        def stop_if_bad(value):
            inner(value)


        def inner(value):
            if not value < 1e6:
                raise FloatingPointError(value)
        """,
    )
    found = order(done, "loss.backward()", check, "optimizer.step()")
    assert found == ["loss.backward()", check, "optimizer.step()"]
    assert reports(done) == []


def test_a_check_of_the_average_of_the_weights_and_of_a_micro_batch() -> None:
    done = loop(
        """
        loss = (model(x) - y).mean()
        loss.backward()
        optimizer.step()
        if torch.isnan(loss):
            continue
        ema.update(model)
        """
    )
    found = order(done, "optimizer.step", "isnan", "ema.update")
    assert found == ["optimizer.step()", "if torch.isnan(loss):", "ema.update(model)"]
    done = loop(
        """
        for part in x:
            loss = model(part).mean()
            if torch.isnan(loss):
                raise ValueError(i)
            loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        """
    )
    found = order(done, "torch_xla.step", "isnan", "backward", "optimizer.step")
    step = "with torch_xla.step():"
    assert found == [
        *[step, "if torch.isnan(loss):", step, "loss.backward()"],
        *[step, "optimizer.step()"],
    ]


def test_a_check_in_a_context_stays_and_is_reported() -> None:
    done = loop(
        """
        with torch.autocast("xla"):
            loss = (model(x) - y).mean()
            if torch.isnan(loss):
                raise ValueError(i)
        loss.backward()
        optimizer.step()
        """
    )
    assert order(done, "isnan", "backward") == ["if torch.isnan(loss):", "loss.backward()"]
    assert [READS_INSIDE in message for message in reports(done)] == [True]


def test_what_asks_no_value_of_the_device_stays_in_the_one_block() -> None:
    done = loop(
        """
        if i > 100:
            break
        loss = (model(x) - y).mean()
        assert x.shape[0] == 4
        loss.backward()
        running += loss.item()
        optimizer.step()
        """
    )
    inside, below = statements(done)
    assert "assert x.shape[0] == 4" in inside
    assert below == ["running += loss.item()"]


def test_a_check_for_the_log_alone_goes_below() -> None:
    """A kind of argument that is wrong is no value of the training."""
    done = loop(
        """
        loss = (model(x) - y).mean()
        count(loss.item())
        loss.backward()
        optimizer.step()
        """,
        """
        def count(value):
            assert isinstance(value, float)
            if value is None:
                raise TypeError(value)
        """,
    )
    assert statements(done)[1][0] == "count(loss.item())"


def test_a_read_that_the_step_needs_stays_and_is_reported() -> None:
    done = loop(
        """
        loss = (model(x) - y).mean()
        scale = 1.0 / max(loss.item(), 1.0)
        (loss * scale).backward()
        optimizer.step()
        """
    )
    inside, _ = statements(done)
    assert "scale = 1.0 / max(loss.item(), 1.0)" in inside
    assert [WAITS in message for message in reports(done)] == [True]


def test_a_read_that_the_next_step_needs_is_made_after_this_one_and_flagged() -> None:
    done = loop(
        """
        loss = (model(x) - y).mean() * scale
        scale = 1.0 / max(loss.item(), 1.0)
        loss.backward()
        optimizer.step()
        """
    )
    assert statements(done)[1] == ["scale = 1.0 / max(loss.item(), 1.0)"]
    assert [f"scale: {READ_AFTER}" in message for message in reports(done)] == [True]


KEYS = {
    "a table that is written here": "losses = {k: v.mean() for k, v in model(x).items()}",
    "a table that is looked up": "losses = model(x)",
}


@pytest.mark.parametrize("made", KEYS.values(), ids=KEYS)
def test_the_key_of_a_loss_is_no_read(made: str) -> None:
    done = loop(
        f"""
        {made}
        loss = losses["a"]
        shown = {{}}
        for k in losses:
            shown[f"train/{{k}}"] = losses[k].detach()
        named = {{"last_" + k: v.detach() for k, v in losses.items()}}
        loss.backward()
        optimizer.step()
        meter.keep(shown, named)
        """
    )
    assert reports(done) == []


# The losses of ten steps are read below the step, between an update and another one.
LOGGED = """
    loss = model(x, count).sum()
    loss.backward()
    optimizer.step()
    losses.append(loss.detach())
    if i % 10 == 0:
        mean = torch.stack(losses).mean()
        print(mean.item())
        WRITTEN
    if i % 20 == 0:
        loss = model(x).sum()
        loss.backward()
        optimizer.step()
"""
ANEW = {
    "a list begun anew": "losses = []",
    "a count": "count = count + 1",
    "a count by another": "seen = count\n        count = seen + len(losses)",
}


@pytest.mark.parametrize("line", ANEW.values(), ids=ANEW)
def test_what_no_tensor_decides_waits_for_no_read(line: str) -> None:
    done = loop(LOGGED.replace("WRITTEN", line))
    assert reports(done) == []


FED = {
    "the value": "losses = [mean.item()]",
    "by another name": "seen = mean.item()\n        count = seen + 1",
    "where a tensor decides": "if mean > 1:\n            losses = []",
}


@pytest.mark.parametrize("line", FED.values(), ids=FED)
def test_what_a_tensor_decides_waits_for_its_read(line: str) -> None:
    done = loop(LOGGED.replace("WRITTEN", line))
    assert [READ_AFTER in message for message in reports(done)] == [True]


def test_a_timer_in_the_middle_is_reported() -> None:
    done = run(
        """
        import time


        def train(model, loader, optimizer):
            model.to("xla")
            for x in loader:
                x = x.to("xla")
                loss = model(x).mean()
                forward = time.time()
                loss.backward()
                optimizer.step()
        """
    )
    assert [ONLY_TIMES in message for message in reports(done)] == [True]


class TestOnSomeReplicas:
    def test_logging_goes_below(self) -> None:
        done = loop(
            """
            loss = (model(x) - y).mean()
            if rank == 0:
                print(loss.item())
            loss.backward()
            optimizer.step()
            """
        )
        inside, below = statements(done)
        assert not any("rank" in line for line in inside)
        assert below == ["if rank == 0:", "print(loss.item())"]
        assert reports(done) == []

    def test_what_looks_at_the_model_in_the_middle_is_an_error(self) -> None:
        done = loop(
            """
            loss = (model(x) - y).mean()
            loss.backward()
            if rank == 0:
                print(norm(model).item())
            optimizer.step()
            """
        )
        assert "torch_xla.step" not in done.data.decode()
        assert [Outside.GUARD.value in message for message in reports(done)] == [True]

    def test_a_read_between_computations_of_a_context_is_an_error(self) -> None:
        done = loop(
            """
            with torch.autocast("xla"):
                loss = (model(x) - y).mean()
                if rank == 0:
                    print(loss.item())
                loss = loss * 2
            loss.backward()
            optimizer.step()
            """
        )
        assert "torch_xla.step" not in done.data.decode()
        assert ["hang" in message for message in reports(done)] == [True]


class TestTails:
    def test_logging_after_the_update_of_accumulated_gradients(self) -> None:
        done = loop(
            """
            loss = (model(x) - y).mean()
            loss.backward()
            running += loss.item()
            if (i + 1) % accum == 0:
                optimizer.step()
                optimizer.zero_grad()
                seen += 1

                if seen % 100 == 0:
                    print(running / seen)
                    torch.save(model.state_dict(), "model.pt")
            """
        )
        inside, below = statements(done)
        assert inside[-4:] == [
            "if (i + 1) % accum == 0:",
            "optimizer.step()",
            "optimizer.zero_grad()",
            "seen += 1",
        ]
        assert below[:4] == [
            "running += loss.item()",
            "if (i + 1) % accum == 0:",
            "if seen % 100 == 0:",
            "print(running / seen)",
        ]
        assert reports(done) == []

    def test_stays_where_the_test_would_come_out_otherwise(self) -> None:
        done = loop(
            """
            loss = (model(x) - y).mean()
            loss.backward()
            if pending == accum:
                optimizer.step()
                pending = 0
                print(loss.item())
            """
        )
        inside, below = statements(done)
        assert "print(loss.item())" in inside
        assert below == []
        assert [READS_INSIDE in m for m in reports(done)] == [True]


class TestOtherThings:
    def test_the_learning_rate_is_set_above_the_block(self) -> None:
        done = loop(
            """
            adjust_learning_rate(optimizer, i)
            loss = (model(x) - y).mean()
            loss.backward()
            optimizer.step()
            scheduler.step()
            optimizer.zero_grad()
            """
        )
        inside, below = statements(done)
        text = done.data.decode()
        assert text.index("adjust_learning_rate") < text.index("with torch_xla.step")
        assert inside[-1] == "optimizer.step()"
        assert below == ["scheduler.step()", "optimizer.zero_grad()"]

    def test_the_current_learning_rate_may_be_logged_later(self) -> None:
        done = loop(
            """
            loss = (model(x) - y).mean()
            print(optimizer.param_groups[0]["lr"])
            loss.backward()
            optimizer.step()
            """
        )
        assert statements(done)[1] == ['print(optimizer.param_groups[0]["lr"])']

    def test_a_wait_for_the_device_goes_below(self) -> None:
        done = loop(
            """
            loss = (model(x) - y).mean()
            loss.backward()
            optimizer.step()
            torch.cuda.synchronize()
            ema.update(model)
            """
        )
        inside, _ = statements(done)
        assert inside[-2:] == ["optimizer.step()", "ema.update(model)"]

    def test_an_evaluation_between_two_updates_cuts_the_step_in_two(self) -> None:
        done = loop(
            """
            model(x).mean().backward()
            optimizer.step()
            evaluate(model)
            model(y).mean().backward()
            optimizer.step()
            """
        )
        lines = [line.strip() for line in done.data.decode().splitlines()]
        assert lines.count("with torch_xla.step():") == 2
        assert lines[lines.index("evaluate(model)") + 1] == "with torch_xla.step():"

    def test_a_save_in_the_middle_of_one_update_is_reported(self) -> None:
        done = loop(
            """
            model(x).mean().backward()
            torch.save(model.state_dict(), "model.pt")
            optimizer.step()
            """
        )
        assert "torch_xla.step" not in done.data.decode()
        assert [Outside.SAVE.value in message for message in reports(done)] == [True]


def test_a_function_that_trains_and_reads_has_the_block_inside() -> None:
    done = run(
        """
        class Trainer:
            def __init__(self, model):
                self.model = model.to("xla")

            def run_batch(self, x, y):
                loss = (self.model(x) - y).mean()
                loss.backward()
                self.optimizer.step()
                return loss.item()

            def run_epoch(self):
                for x, y in self.loader:
                    self.total += self.run_batch(x.to("xla"), y.to("xla"))
        """
    )
    inside, below = statements(done)
    assert inside[-1] == "self.optimizer.step()"
    assert below[0] == "return loss.item()"
    assert reports(done) == []


def test_weights_and_gradients_are_on_the_device_as_everywhere() -> None:
    """`Values` knew that they are, the step did not: the loop was left without one, for its `print`."""
    done = loop(
        """
        loss = (model(x) - y).mean()
        loss.backward()
        for name, p in model.named_parameters():
            if p.grad.abs().max() > 100:
                print("large", name)
        optimizer.step()
        """
    )
    inside, below = statements(done)
    assert inside[-1] == "optimizer.step()"
    assert below == []
    assert reports(done) == [
        "`p.grad.abs().max() > 100` reads a value inside the step (`optimizer.step()` changes what it "
        "looks at): each step waits for it"
    ]


def test_what_names_the_values_of_a_dictionary_is_no_value() -> None:
    """As in DETR: the keys of the losses came from a dictionary of tensors, and were taken for such."""
    done = loop(
        """
        losses = model(x)
        named = {f"{k}_unscaled": v for k, v in losses.items()}
        loss = sum(losses.values())
        loss.backward()
        optimizer.step()
        print(named)
        """
    )
    inside, below = statements(done)
    assert 'named = {f"{k}_unscaled": v for k, v in losses.items()}' in inside
    assert below == ["print(named)"]
    assert reports(done) == []


def test_what_a_with_only_reads_after_the_update_leaves_the_step() -> None:
    body = """
    with torch.autocast("cuda", dtype=torch.bfloat16):
        loss = model(x).sum()
        loss.backward()
        optimizer.step()
        print(loss.item())
    """
    inside, below = statements(loop(body))
    assert "loss.backward()" in inside
    assert "print(loss.item())" in below


VALIDATE = """
import torch


class Trainer:
    def __init__(self, model):
        self.model = model.cuda()
        self.test_criterion = CRITERION

    def validate(self, loader):
        total = 0
        with torch.no_grad():
            for x, y in loader:
                x, y = x.cuda(), y.cuda()
                output = self.model(x)
                loss = self.test_criterion(output, y)
                total += loss
        return total
"""


@pytest.mark.parametrize("criterion", ["torch.nn.CrossEntropyLoss()", "torch.nn.MSELoss()"])
def test_a_loss_named_like_an_evaluation_is_a_part_of_the_step(criterion: str) -> None:
    done = run(VALIDATE.replace("CRITERION", criterion))
    inside, _ = statements(done)
    assert "output = self.model(x)" in inside
    assert "loss = self.test_criterion(output, y)" in inside


def test_whether_an_object_is_a_tensor_is_no_value_of_it() -> None:
    script = """\
import torch

model = torch.nn.Linear(2, 1).cuda()
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)


def train(loader, device):
    for batch in loader:
        batch = {k: v.to(device) if torch.is_tensor(v) else v for k, v in batch.items()}
        model(batch["x"]).sum().backward()
        optimizer.step()


train([], "cuda")
"""
    done = rewrite_source(parse(script.encode(), Path("script.py")))
    assert [note.code for note in done.findings] == []


def test_an_average_of_weights_below_a_schedule_is_in_the_step() -> None:
    """Outside, it is a second graph over all weights in each step."""
    text = loop(
        """
        optimizer.zero_grad()
        model(x).sum().backward()
        optimizer.step()
        scheduler.step()
        with torch.no_grad():
            model.scale.clamp_(0, 4)
        ema.update(model)
        meter.update(i)
        """
    ).data.decode()
    assert "\n            ema.update(model)\n        meter.update(i)" in text
    names = ["optimizer.step()", "scheduler.step()", "clamp_", "ema.update(model)"]
    assert sorted(names, key=text.index) == names
