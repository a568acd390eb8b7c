"""`migrate train --global-mean`: an update over unequal micro-batches is that of the joined batch."""

from __future__ import annotations

import importlib
import json
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from click.testing import CliRunner
from safetensors.numpy import save_file
from torch import nn
from torch.nn import functional as F  # noqa: N812 (its usual name)

from migrate.cli import commands
from migrate.port.compiler import compiled
from migrate.train.errors import TrainError
from migrate.train.means import _comparison, with_counts
from migrate.train.watch import listening
from migrate.train.write.counts import NoCount, counted_source
from migrate.train.write.split import split
from migrate.train.write.texts import CARRIED, ProgramFacts, carried_text, loss_text, train_text
from migrate.train.write.updates import model_text
from tests.train.scripts import UNEVEN

FACTS = ProgramFacts(
    "toy.py",
    "toy.py:1",
    {"x": ("x", ()), "y": ("y", ())},
    takes_mode=False,
    training=True,
    streams=(),
    statistics=False,
    frozen=(),
)
OPTIMIZER = """
import optax

optimizer = optax.sgd(0.1)


def learning_rate_of(count):
    return 0.1
"""


class Net(nn.Module):
    """Next tokens, with the loss inside as nanoGPT has it."""

    def __init__(self) -> None:
        super().__init__()
        self.embedding, self.head = nn.Embedding(11, 8), nn.Linear(8, 11)

    def forward(self, x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        logits = self.head(self.embedding(x))[:, :-1].flatten(0, 1)
        return F.cross_entropy(logits, y[:, 1:].flatten())


class Step(nn.Module):
    """Half of the loss, as scripts with two micro-batches have it."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.model = Net()

    def forward(self, x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        return self.model(x, y) / 2


def batch(rows: int, length: int, prompt: int) -> dict[str, torch.Tensor]:
    """Tokens, and labels that ignore the prompt."""
    draws = torch.Generator().manual_seed(rows * length)
    x = torch.randint(0, 11, (rows, length), generator=draws)
    return {"x": x, "y": torch.where(torch.arange(length) < prompt, -100, x)}


def joined(batches: list[dict[str, torch.Tensor]]) -> dict[str, torch.Tensor]:
    """One batch of all rows, padded to one length."""
    length = max(one["x"].shape[1] for one in batches)
    return {
        name: torch.cat(
            [F.pad(one[name], (0, length - one[name].shape[1]), value=fill) for one in batches]
        )
        for name, fill in (("x", 0), ("y", -100))
    }


@pytest.fixture(scope="module")
def programs(tmp_path_factory: pytest.TempPathFactory) -> tuple[Any, Any]:
    """The program of the step with the mean over all elements, and the one with the mean of means."""
    step = Step()
    port: Any = compiled(step, batch(3, 6, 2), "toy.py:1")
    weights = {name: value.detach().numpy() for name, value in step.model.named_parameters()}
    modules = []
    for facts in (with_counts(FACTS, port.modeling), FACTS):
        folder = tmp_path_factory.mktemp("program")
        sources = split(facts.counted.source if facts.counted else port.modeling, "toy.py")
        files = {
            "model.py": model_text([port.config], [sources.model]),
            "loss.py": loss_text(sources.loss, facts),
            "optimizer.py": OPTIMIZER,
            "train.py": train_text(facts),
            **{name: carried_text(name) for name in CARRIED},
        }
        for name, text in files.items():
            (folder / name).write_text(text)
        arrays = {
            "params/model/embedding/embedding": weights["embedding.weight"],
            "params/model/head/kernel": np.ascontiguousarray(weights["head.weight"].T),
            "params/model/head/bias": weights["head.bias"],
        }
        save_file(arrays, folder / "params.safetensors")
        own = {file.removesuffix(".py") for file in files}
        sys.path.insert(0, str(folder))
        try:
            modules.append(importlib.import_module("train"))
        finally:
            sys.path.remove(str(folder))
            for name in own:
                sys.modules.pop(name, None)
    return modules[0], modules[1]


def updated(
    train: Any, batches: list[dict[str, torch.Tensor]]
) -> tuple[list[float], dict[str, Any]]:
    """Losses of an update, and the weights after it."""
    micro = [{name: value.numpy() for name, value in one.items()} for one in batches]
    state, losses, _ = train.train_step(train.load(), micro)
    model = state.params["model"]
    return [float(x) for x in losses], {
        "embedding.weight": np.array(model["embedding"]["embedding"]),
        "head.weight": np.array(model["head"]["kernel"]).T,
        "head.bias": np.array(model["head"]["bias"]),
    }


def trained(batches: list[dict[str, torch.Tensor]], factor: float = 1.0) -> dict[str, Any]:
    """Weights after an update of the script."""
    step = Step()
    for one in batches:
        (step(**one) * factor).backward()
    with torch.no_grad():
        return {n: (p - 0.1 * p.grad).numpy() for n, p in step.model.named_parameters()}


UNEQUAL = [batch(2, 9, 2), batch(4, 5, 4)]


def test_an_update_is_that_of_one_process_on_the_joined_batch(programs: Any) -> None:
    losses, weights = updated(programs[0], UNEQUAL)
    expected = trained([joined(UNEQUAL)], 2.0)  # the script's loss is half of the mean
    assert sum(losses) == pytest.approx(2 * float(Step()(**joined(UNEQUAL)).detach()), rel=1e-6)
    for name, value in expected.items():
        np.testing.assert_allclose(weights[name], value, rtol=1e-5, atol=1e-7)
    of_means = trained(UNEQUAL)
    assert np.abs(of_means["head.bias"] - expected["head.bias"]).max() > 1e-3


def test_without_the_option_means_are_averaged_as_the_script_does(programs: Any) -> None:
    _, weights = updated(programs[1], UNEQUAL)
    for name, value in trained(UNEQUAL).items():
        np.testing.assert_allclose(weights[name], value, rtol=1e-5, atol=1e-7)


def test_one_micro_batch_is_the_same_in_both_forms(programs: Any) -> None:
    of_all, of_means = (updated(train, UNEQUAL[:1]) for train in programs)
    assert of_all[0] == of_means[0]
    for name, value in of_means[1].items():
        np.testing.assert_array_equal(of_all[1][name], value)


def test_a_micro_batch_without_a_label_adds_nothing(programs: Any) -> None:
    empty = batch(2, 9, 9)
    assert np.isnan(updated(programs[1], [UNEQUAL[0], empty])[0][1])
    losses, weights = updated(programs[0], [UNEQUAL[0], empty])
    assert losses[1] == 0
    for name, value in trained([joined([UNEQUAL[0], empty])], 2.0).items():
        np.testing.assert_allclose(weights[name], value, rtol=1e-5, atol=1e-7)


HEAD = """
class Step(Module):
    config: StepConfig

    def setup(self) -> None:
        self.model = Net()

    def __call__(self, x: Array, y: Array) -> Array:
        logits = self.model(x)
        mask = (y != -100).astype(jnp.float32)
"""


def counted(*lines: str) -> str:
    """The last statement of the count."""
    source = counted_source(HEAD + "".join(f"        {line}\n" for line in lines)).source
    return source.rstrip().splitlines()[-1].strip()


@pytest.mark.parametrize(
    ("lines", "count"),
    [
        (("return (x * mask).sum() / jnp.maximum(mask.sum(), 1) / 2",), "mask.sum()"),
        (("count = mask.sum() + 1e-08", "return -((x * mask).sum() / count)"), "mask.sum()"),
        (("loss = 0.5 * cross_entropy(logits, y, ignore=0)", "return loss"), "(y != 0).sum()"),
        (("return jnp.square(logits - y).mean() + 0.1",), "jnp.square(logits - y).size"),
        (("return cross_entropy(logits, y, reduction='sum') / len(y)",), "len(y)"),
    ],
)
def test_the_denominator_is_the_count(lines: tuple[str, ...], count: str) -> None:
    assert counted(*lines) == f"return {count}"


@pytest.mark.parametrize(
    ("lines", "words"),
    [
        (("return (x * mask).sum()",), "no mean"),
        (("return (x * mask).sum() / (logits > 0).sum()",), "depends on the model"),
        (("m = logits > 0", "return (x * m).sum() / m.sum()"), "depends on the model"),
        (("return x.mean() + (x * mask).sum() / mask.sum()",), "other numbers of elements"),
        (("return x.mean(axis=0)",), "no mean"),
        (("return jnp.sqrt(x.mean())",), "no mean"),
        (("return (x * mask).sum() / jnp.maximum(mask.sum(), 100)",), "no number of elements"),
        (("return (x * mask).sum() / y",), "no number of elements"),
        (("n = y", "return (x * mask).sum() / n"), "no number of elements"),
        (("n = jnp.maximum(mask.sum(), 9)", "return x.sum() / n"), "no number of elements"),
        (("return (x * mask).sum() / y.shape[1]",), "no number of elements"),
        (("return cross_entropy(logits, y, reduction=None)",), "no mean"),
    ],
)
def test_other_losses_are_refused(lines: tuple[str, ...], words: str) -> None:
    with pytest.raises(NoCount, match=words):
        counted(*lines)


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"statistics": True}, "BatchNorm"),
        ({"rollouts": True}, "the loop runs what it trains"),
        ({}, "toy.py:1: --global-mean: x.sum() is no mean"),
    ],
)
def test_a_refusal_names_the_line(changes: dict[str, Any], words: str) -> None:
    with pytest.raises(TrainError) as refused:
        with_counts(replace(FACTS, **changes), f"{HEAD}        return x.sum()\n")
    assert words in str(refused.value)


def test_the_difference_is_intended_and_wrong_counts_differ() -> None:
    ones, halves = {"w": torch.ones(2)}, [[(2.0, 10.0), (1.0, 5.0), (3.0, 5.0)]]
    plain, weighted = {"summed": ones}, {"summed": {"w": torch.tensor([1.0, 2.0])}}
    equal = _comparison(halves, [[4.0, 4.0]], [1.0, 1.0], plain, plain)
    assert equal.verdict == "match"
    other = _comparison(halves, [[2.0, 6.0]], [0.5, 1.5], plain, weighted)
    assert other.verdict == "intended"
    assert "7.1e-01 from the script's own" in other.what
    for wrong in ([(2.0, 10.0), (1.0, 5.0), (4.0, 5.0)], [(2.0, 10.0), (1.0, 5.0), (3.0, 6.0)]):
        assert _comparison([wrong], [[2.0, 6.0]], [0.5, 1.5], plain, weighted).verdict == "differs"


def test_a_backward_is_run_with_a_factor(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.autograd, "backward", torch.autograd.backward)
    shares = [0.25, 0.0, 1.0]
    listening.to_backward(lambda loss, run: run(shares.pop(0)))
    weight = torch.ones(1, requires_grad=True)
    for factor in (2.0, float("nan"), 3.0):
        (weight * factor).sum().backward()
    assert weight.grad is not None
    assert weight.grad.item() == 3.5


@pytest.mark.long
def test_the_command_compares_with_the_weighted_script(tmp_path: Path) -> None:
    script, folder = tmp_path / "train.py", tmp_path / "jax_program"
    script.write_text(UNEVEN)
    words = ["train", str(script), "-o", str(folder), "--global-mean", "--json"]
    result = CliRunner().invoke(commands, words)
    assert result.exit_code == 0, result.output
    row = next(c for c in json.loads(result.stdout)["comparisons"] if c["name"] == "global mean")
    assert row["same"]
    assert "mean of means" in row["what"]
    assert "| intended |" in (folder / "README.md").read_text()
    own = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "test_same.py"]
    assert subprocess.run(own, cwd=folder, check=False).returncode == 0
    # A count of all labels is no denominator of the script.
    loss = folder / "loss.py"
    text = loss.read_text()
    loss.write_text(text.replace("return (y[:, 1:].reshape(-1) != -100).sum()", "return y.size"))
    assert loss.read_text() != text
    proof = CliRunner().invoke(commands, ["prove", str(script), "--against", str(folder), "--json"])
    assert proof.exit_code == 1, proof.output
    assert json.loads(proof.stdout)["stages"]["numeric"].startswith("differs in global mean")
