"""The torch side under torch_xla: few executions, the same layers, in a process of its own."""

from __future__ import annotations

import itertools
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from migrate.parity.dump.dump import Dump
from migrate.parity.dump.reference import Forced
from migrate.parity.ground.errors import ParityError
from migrate.parity.ground.settings import TRUTH, SideSettings
from migrate.parity.inputs.set import read_inputs
from tests.frameworks import in_own_process

pytestmark = pytest.mark.xla


def executions() -> int:
    import torch_xla.debug.metrics as metrics

    found = metrics.metric_data("ExecuteTime")
    return found[0] if found else 0


def all_of_a_model(folder: Path, make: Any, settings: SideSettings | None = None) -> dict[str, Any]:
    """The model on the CPU and under XLA; with one input, so that what is counted is of one."""
    import torch

    from migrate.parity.sides.torch.runner import TorchRunner
    from tests.parity.sides.torch.torch_made import captured, errors, inputs_for, runner, same_model

    torch.manual_seed(0)
    model = make()
    cpu, xla = runner(model), TorchRunner(model, "xla", "model.py:build")
    inputs = inputs_for(cpu, folder, 1)
    truth = captured(cpu, inputs, folder / "truth", TRUTH)
    counts = [executions()]
    free = captured(xla, inputs, folder / "free", settings)
    counts.append(executions())
    forced = Forced(truth.folder, same_model(truth))
    fed = captured(xla, inputs, folder / "fed", settings, forced=forced)
    counts.append(executions())
    captured(cpu, inputs, folder / "cpu", settings)
    return {
        "executions": [after - before for before, after in itertools.pairwise(counts)],
        "free": dict(errors(free, truth)),
        "fed": dict(errors(fed, truth)),
        "given": dict(errors(fed, truth, "arguments")),
        "facts": [free.facts.device, free.facts.framework],
    }


def layers(folder: Path) -> Any:
    from tests.parity.sides.torch.torch_made import Convolutions, Deep, Recurrent, Reused

    made = {
        one.__name__: all_of_a_model(folder / one.__name__, one)
        for one in (Convolutions, Recurrent, Reused)
    }
    precise = SideSettings(precision="default")
    return made | {"emulated": all_of_a_model(folder / "emulated", Deep, precise)}


@pytest.mark.long
def test_layers_are_captured_in_two_executions(tmp_path: Path) -> None:
    found = in_own_process(layers, tmp_path)
    for name, made in found.items():
        # The pass without hooks and the one with them; the one that is fed.
        assert made["executions"] == [2, 1], name
        assert made["facts"] == ["XLA:CPU", "xla"]
        limit = 1e-6 if name != "emulated" else 5e-3
        for kind in ("free", "fed", "given"):
            assert max(made[kind].values()) < limit, (name, kind)
        if name == "emulated":
            assert made["fed"]["blocks.1.up"] > 1e-3
            continue
        # The same calls with the same tensors as on the CPU.
        xla, cpu = Dump(tmp_path / name / "free"), Dump(tmp_path / name / "cpu")
        calls = [[(c.layer, c.number, c.input, c.order) for c in dump.calls] for dump in (xla, cpu)]
        assert calls[0] == calls[1]
        for mine, theirs in zip(xla.calls, cpu.calls, strict=True):
            for one, other in zip(mine.arguments, theirs.arguments, strict=True):
                np.testing.assert_allclose(
                    xla.tensor(one), cpu.tensor(other), rtol=1e-4, atol=1e-5, err_msg=str(mine)
                )


def work(folder: Path) -> Any:
    """Gradients, training, decoding, and the flag that is read once."""
    import torch
    from torch_xla import _XLAC

    from migrate.parity.sides.torch.runner import TorchRunner
    from tests.parity.sides.torch.test_training import (
        Noisy,
        cotangents,
        llama,
        prompts,
        training,
    )
    from tests.parity.sides.torch.torch_made import Deep, floats, runner

    early = bool(_XLAC._xla_runtime_is_initialized())
    torch.manual_seed(0)
    xla, found = partial(TorchRunner, kind="xla", shown="model"), {}
    model = Deep()
    inputs = floats(folder / "g", "x", (3, 16), 1)
    seeds = cotangents(folder / "g" / "seeds", "output", (3, 16), 1)
    xla(model).gradients(SideSettings(), inputs, seeds, folder / "xla")
    runner(model).gradients(SideSettings(), inputs, seeds, folder / "cpu")
    model = Noisy()
    inputs = floats(folder / "t", "x", (12, 16))
    for optimizer in ("momentum", "adamw"):
        asked = training(folder / "t" / "targets", optimizer)
        found[optimizer] = [
            one.train(SideSettings(), inputs, asked) for one in (xla(model), runner(model))
        ]
    made = llama()
    inputs = prompts(folder)
    pair = (xla(made.module), made)
    found["tokens"] = [one.generate(SideSettings(), inputs, 3, "logits").tokens for one in pair]
    try:
        xla(model).facts(SideSettings(excess_precision=False))
    except ParityError as error:
        found["refused"] = error.what
    return found | {"early": early}


@pytest.mark.long
def test_gradients_training_and_decoding_are_the_cpus(tmp_path: Path) -> None:
    from safetensors.numpy import load_file

    found = in_own_process(work, tmp_path)
    assert not found["early"]  # importing the side starts no runtime: the flag can still be set
    one, other = (load_file(tmp_path / name / "000.safetensors") for name in ("xla", "cpu"))
    assert sorted(one) == sorted(other)
    for name, gradient in one.items():
        np.testing.assert_allclose(gradient, other[name], rtol=1e-4, atol=1e-5, err_msg=name)
    for optimizer in ("momentum", "adamw"):
        assert found[optimizer][0] == pytest.approx(found[optimizer][1], rel=1e-5)
    assert found["tokens"][0] == found["tokens"][1]
    assert "--xla_allow_excess_precision=true, and reads it only once" in found["refused"]


def rounded(folder: Path, excess: bool) -> float:
    """The sum over what a chain of bfloat16 operations gives."""
    import torch
    from torch import nn

    from migrate.parity.sides.torch.runner import TorchRunner
    from tests.parity.sides.torch.torch_made import captured

    class Chain(nn.Module):
        def forward(self, x: Any) -> Any:
            for _ in range(12):
                x = torch.tanh(x * 1.01 + 0.1) / 0.9
            return x

    inputs = read_inputs(folder / "inputs")
    settings = SideSettings(dtype="bfloat16", excess_precision=excess)
    side = TorchRunner(Chain(), "xla", "chain")
    dump = captured(side, inputs, folder / f"{excess}", settings, layers=False)
    return float(dump.tensor(dump.outputs[0][0]).astype(np.float64).sum())


def with_excess(folder: Path) -> float:
    return rounded(folder, True)


def without_excess(folder: Path) -> float:
    return rounded(folder, False)


@pytest.mark.long
def test_excess_precision_reaches_the_compiler(tmp_path: Path) -> None:
    from tests.parity.sides.torch.torch_made import floats

    floats(tmp_path, "x", (64, 64), 1)
    assert in_own_process(with_excess, tmp_path) != in_own_process(without_excess, tmp_path)


def transformers_models(folder: Path) -> Any:
    from tests.parity.sides.torch.test_forced import bert, llama, vit, whisper

    return {
        one.__name__: all_of_a_model(folder / one.__name__, one)
        for one in (bert, llama, vit, whisper)
    }


@pytest.mark.long
def test_models_of_transformers(tmp_path: Path) -> None:
    for name, made in in_own_process(transformers_models, tmp_path).items():
        # Some models look at their mask before they run, with hooks or without: an execution each.
        plain_and_hooked, fed = made["executions"]
        assert plain_and_hooked == 2 * fed, name
        assert max(made["fed"].values()) < 1e-6, name
        assert made["free"][""] < 2e-6, name
