"""The command line of `migrate weights` as a request, before anything is read."""

from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import Any

import click
import pytest

from converters.request import OptimizerRequest, PlanOptions
from migrate.cli.weights import weights
from migrate.cli.weights_request import BothModels, SameValues, ToFlax, ToTorch, weights_request
from migrate.parity.sides.target import PORT_FILES, PORT_MAPPING


def request(*words: str) -> ToFlax | ToTorch:
    given: dict[str, Any] = weights.make_context("weights", list(words)).params
    return weights_request(given)


def test_words_become_fields() -> None:
    made = request("net.pt", "--dtype", "bfloat16", "--max-shard-size", "2", "--example", "1,3,8,8")
    assert isinstance(made, ToFlax)
    assert made.conversion.plan == PlanOptions(dtype="bfloat16", example=[(1, 3, 8, 8)])
    assert (made.conversion.checkpoint, made.conversion.shard_bytes) == ("net.pt", 2_000_000_000)
    assert made.conversion.ahead_bytes == 256_000_000
    assert (made.both_models, made.same_values, made.conversion.optimizer) == (None, None, None)
    with pytest.raises(dataclasses.FrozenInstanceError):
        made.dry_run = True  # type: ignore[misc]


def test_what_the_target_is_for() -> None:
    target = ("net.pt", "--model", "net.py:Net", "--target", "flax_net.py:Net")
    both = request(*target, "--inputs", "x=float32[1]", "--target-channels-last", "x,y")
    assert isinstance(both, ToFlax)
    assert both.both_models is not None
    assert both.both_models.channels_last == ("x", "y")
    shapes = request(*target)
    assert isinstance(shapes, ToFlax)
    assert shapes.both_models is None
    assert shapes.conversion.plan.target == "flax_net.py:Net"
    same = request("net.pt", "--target", "net.msgpack", "--values", "--drop", "a.*")
    assert isinstance(same, ToFlax)
    assert same.same_values == SameValues(Path("net.msgpack"), None, False, ("a.*",), False)


def test_models_are_named_with_their_kinds_as_elsewhere(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "ported").mkdir()
    for name in (*PORT_FILES, PORT_MAPPING):
        (tmp_path / "ported" / name).touch()
    kinds = request("net.pt", "--model", "torch:net.py:Net", "--target", "linen:flax_net.py:Net")
    assert isinstance(kinds, ToFlax)
    assert kinds.conversion.plan.model == "net.py:Net"
    assert kinds.conversion.plan.target == "flax_net.py:Net"
    for target in ("port:ported", "ported"):
        port = request("net.pt", "--target", target)
        assert isinstance(port, ToFlax)
        assert port.port == Path("ported")
        with pytest.raises(click.UsageError, match="--scan and a port as --target"):
            request("net.pt", "--target", target, "--scan", "0")
    run = request("net.pt", "--model", "n:N", "--target", "port:ported", "--inputs", "x=float32[1]")
    assert isinstance(run, ToFlax)
    assert (run.port, run.conversion.plan.target) == (None, "port:ported")
    back = request("p", "--to", "torch", "--model", "torch:net.py:Net")
    assert isinstance(back, ToTorch)
    assert back.model == "net.py:Net"


def test_the_way_back() -> None:
    made = request("p", "--to", "torch", "--model", "f.py:F", "--target", "t.py:T", "--inputs", "x")
    assert isinstance(made, ToTorch)
    assert isinstance(made.both_models, BothModels)
    assert (made.model, made.target) == ("f.py:F", "t.py:T")


def test_the_optimizer() -> None:
    made = request("net.pt", "--optimizer", "o.pt", "--optimizer-order", "sorted")
    assert isinstance(made, ToFlax)
    assert made.conversion.optimizer == OptimizerRequest(Path("o.pt"), order="sorted")


@pytest.mark.parametrize(
    ("words", "line"),
    [
        (["--optimizer-order", "sorted"], "--optimizer-order needs --optimizer"),
        (["--inputs", "x"], "--inputs needs --target and --inputs"),
        (["--target", "t", "--unproven"], "--unproven needs --target and --inputs"),
        (["--target", "t", "--inputs", "x", "--scan"], "--inputs and --scan cannot be combined"),
        (["--target", "t", "--inputs", "x", "--process", "0/2"], "on one host"),
        (["--values"], "--values needs the Flax checkpoint"),
        (["--example", "1,a"], "--example takes numbers"),
        (["--to", "torch", "--drop", "a"], "--drop needs --target and --inputs"),
        (["--to", "torch", "--target", "t"], "--to torch --target runs both models"),
        (["--to", "torch", "--target", "t", "--inputs", "x"], "needs the Flax model"),
        (["--to", "torch", "--resume"], "--resume applies to torch checkpoints"),
    ],
)
def test_words_that_do_not_go_together(words: list[str], line: str) -> None:
    with pytest.raises(click.UsageError) as raised:
        request("net.pt", *words)
    assert line in raised.value.message
