"""Statements that move running statistics outside of the updates."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from torch import nn

from migrate.train.watch.statistics import ForwardQuestion, StatisticsWatch

SCRIPT = """
class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.inner = nn.Sequential(nn.Linear(3, 4), nn.BatchNorm1d(4))

    def forward(self, x):
        return self.inner(x)


net = Net()
watch = watch_of(net)
x = torch.randn(8, 3)
net(x).sum().backward()
watch.updated()
{statement}
net(x).sum().backward()
watch.updated()
net(x)
"""
LINE = 1 + SCRIPT.splitlines().index("{statement}")


@pytest.mark.parametrize(
    ("statement", "moves", "calls"),
    [
        ("picture = net(x)", True, 1),
        ("picture = [net(x), net(x)]", True, 2),
        ("picture = net(x=x)", True, None),
        ("picture = net.inner[1](torch.randn(8, 4))", True, None),
        ("net.eval()(x); net.train()", False, None),
        ("picture = nn.BatchNorm1d(3)(x)", False, None),
    ],
)
def test_a_call_in_training_mode_is_seen_with_its_statement(
    statement: str, moves: bool, calls: int | None
) -> None:
    def watch_of(net: nn.Module) -> StatisticsWatch:
        step = nn.Module()
        step.add_module("net", net)
        spans = [(line, line) for line in (LINE - 2, LINE + 1)]
        asked = ForwardQuestion(("<module>", 1), lambda: 1, 2, Path(), (), ports=False)
        return StatisticsWatch(step, "script.py", [("<module>", 1, spans)], asked)

    namespace = {"nn": nn, "torch": torch, "watch_of": watch_of, "__name__": "__main__"}
    exec(compile(SCRIPT.format(statement=statement), "script.py", "exec"), namespace)
    recorded = namespace["watch"].recorded()  # type: ignore[attr-defined]
    assert [moved.line for moved in recorded if moved.before] == [LINE] * moves
    assert [moved.line for moved in recorded if not moved.before] == [LINE + 3]
    for moved in recorded:
        assert moved.forwards is not None
        of_calls = moved.forwards.calls
        if moved.before:
            assert (None if of_calls is None else [list(call.inputs) for call in of_calls]) == (
                None if calls is None else [["x"]] * calls
            )
        assert moved.modules == ("net",)
        assert "net.inner.1.running_mean" in moved.buffers
