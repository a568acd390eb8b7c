"""Names of the script in `optimizer.py`, and calls in place of repeated statements."""

from __future__ import annotations

import ast

import pytest

from migrate.train.optimizer.choice import RateTexts
from migrate.train.optimizer.recorded import RecordedOptimizer, RecordedSchedule
from migrate.train.optimizer.write import WrittenOptimizer
from migrate.train.slice.text import ScriptText
from migrate.train.write.renamed import with_script_names
from migrate.train.write.repeated import without_repeats

SCRIPT = """
groups = [{"params": decay, "weight_decay": 0.1}, {"params": rest, "weight_decay": 0.0}]
optimizer = AdamW(groups)
scheduler = LambdaLR(optimizer, factor)
"""
SOURCE = '''"""A schedule, with weight decay."""
def schedule(step):
    return 0.1
def decays(params):
    return jax.tree.map(lambda p: p.ndim >= 2, params)
optimizer = optax.adamw(schedule, mask=decays)
'''


def named(script: str) -> WrittenOptimizer:
    recorded = RecordedOptimizer("AdamW", (), (), schedules=(RecordedSchedule("L", {}, line=4),))
    rates = RateTexts(None, (), ("schedule",), ("",))  # type: ignore[arg-type]
    return with_script_names(
        WrittenOptimizer(SOURCE, rates, (), ()), ScriptText("train.py", script), recorded
    )


def test_the_schedule_and_the_mask_have_the_script_s_names() -> None:
    optimizer = named(SCRIPT)
    assert optimizer.rates.rates == ("scheduler",)
    assert "optax.adamw(scheduler, mask=decay)" in optimizer.source
    assert '"""A schedule, with weight decay."""' in optimizer.source
    both = SCRIPT.replace('"weight_decay": 0.0', '"weight_decay": 0.2')
    assert "mask=decays)" in named(both).source  # which of them?


def test_a_name_of_a_function_of_the_script_stays_free() -> None:
    assert "mask=decays)" in named(f"{SCRIPT}\ndef decay(): ...\n").source


LOSS = """
class Step(Module):
    def get_loss(self, x, mask, *, deterministic):
        if x.shape != mask.shape:
            raise ValueError("x and mask")
        total = self.model(x) * mask
        return total.sum()
"""
EVALUATION = """
from loss import Step, demand_size

class Evaluation(Step):
    def test(self, batch_0, batch_1, *, deterministic):
        if batch_1.shape != batch_0.shape:
            raise ValueError("batch_1 and batch_0")
        total = self.model(batch_1) * batch_0
        return total.sum()
"""


def test_an_evaluation_by_the_loss_calls_it() -> None:
    text = without_repeats(EVALUATION, LOSS)
    [call] = [n for n in ast.walk(ast.parse(text)) if isinstance(n, ast.Return)]
    assert ast.unparse(call) == (
        "return self.get_loss(batch_1, batch_0, deterministic=deterministic)"
    )
    assert "raise" not in text
    assert "demand_size" not in text


@pytest.mark.parametrize(
    ("before", "after"),
    [
        ("total.sum()", "total.mean()"),
        ("total = self.model(batch_1)", "x = total = self.model(batch_1)"),
    ],
)
def test_an_evaluation_by_other_statements_stays(before: str, after: str) -> None:
    assert before in EVALUATION
    text = EVALUATION.replace(before, after)
    assert "raise ValueError" in without_repeats(text, LOSS)
