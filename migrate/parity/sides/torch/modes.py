"""Torch model in training mode: outputs at dropout rates of 0, statistics, and draws."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch
from torch.overrides import TorchFunctionMode
from torch.utils._python_dispatch import TorchDispatchMode

from converters.host_draws import DrawLocation, replayed
from converters.single_draws import draws_compared
from migrate.parity.ground.requests import Draw, HostDrawn, TrainingDraws
from migrate.parity.ground.settings import SideSettings
from migrate.parity.inputs.set import InputSet
from migrate.parity.sides.torch import call as torch_call
from migrate.parity.sides.torch import training
from migrate.parity.sides.torch import variant as torch_variant
from migrate.parity.sides.torch.model import TorchModel

_STATISTICS = ("running_mean", "running_var")


def in_training(
    runner: TorchModel,
    settings: SideSettings,
    inputs: InputSet,
    cotangents: Path,
    into: Path,
    batches: int,
    drawn: Sequence[HostDrawn] = (),
) -> TrainingDraws:
    """See `Runner.in_training`."""
    draws = inputs.count > 0 and runner.draws(settings, inputs[0])
    where = torch_variant.device(runner.kind, settings)
    model = runner.copy(settings, where)
    settings = runner.effective(settings)
    model.requires_grad_(True)
    always, drawn_always = _always(model, runner, settings, inputs, where) if draws else ((), ())
    model.train()
    into.mkdir(parents=True, exist_ok=True)
    before = {name: buffer.detach().clone() for name, buffer in model.named_buffers()}
    listed = _Listed()
    with torch.no_grad(), torch_variant.running(where, settings):
        tensors = torch_call.tensors(inputs[0], where, settings)
        of_host, _ = _of_host(drawn, where, settings)
        with listed, draws_compared() as decisions, replayed(model, of_host):
            torch_call.call(model, model, tensors, runner.shown)
    training.without_chance(model)
    _restore(model, before)
    for number in range(inputs.count):
        held = {name: buffer.detach().clone() for name, buffer in model.named_buffers()}

        def attempt(
            copied: bool, number: int = number, held: dict[str, torch.Tensor] = held
        ) -> tuple[dict[str, torch.Tensor], dict[str, torch.Tensor]]:
            model.zero_grad(set_to_none=True)
            _restore(model, held)
            running = torch_variant.running(where, settings, draws=draws)
            with running, training.NoDropout(always), draws_compared():
                tensors = torch_call.tensors(inputs[number], where, settings)
                of_host, named = _of_host(drawn, where, settings)
                floating, arguments = training.leaves_of(tensors, copied)
                floating |= training.leaves_of(named, copied)[0]
                with _AlreadyRequired(), replayed(model, of_host):
                    outputs = dict(torch_call.call(model, model, arguments, runner.shown))
                # Other outputs are those of evaluation mode only.
                of_both = {
                    path: cotangent
                    for path, cotangent in training.read(cotangents, number).items()
                    if path in outputs or not outputs.keys().isdisjoint(("", "output"))
                }
                training.backward(outputs, of_both, runner.shown)
            return outputs, floating

        outputs, floating = training.with_changes_in_place(attempt)
        tensors_by_name = {
            f"weights/{name}": parameter.grad
            for name, parameter in model.named_parameters(remove_duplicate=False)
            if parameter.grad is not None
        }
        tensors_by_name |= {
            f"inputs/{n}": t.grad for n, t in floating.items() if t.grad is not None
        }
        tensors_by_name |= {f"outputs/{path}": output.detach() for path, output in outputs.items()}
        training.write(tensors_by_name, into / f"{number:03d}.safetensors")
    _restore(model, before)
    with torch.no_grad(), draws_compared():
        for number in range(batches if before else 0):
            running = torch_variant.running(where, settings, draws=draws)
            with running, training.NoDropout(always):
                tensors = torch_call.tensors(inputs[number % inputs.count], where, settings)
                with replayed(model, _of_host(drawn, where, settings)[0]):
                    torch_call.call(model, model, tensors, runner.shown)
    changed = {
        f"weights/{name}": buffer.double()
        for name, buffer in model.named_buffers()
        if _is_statistic(model, name, not torch.equal(buffer, before[name]))
    }
    training.write(changed, into / "statistics.safetensors")
    drops = _without(listed.draws, drawn_always)
    # A layer that is left out at random draws one number.
    return TrainingDraws((*drops, *(Draw(rate, 1) for rate in decisions.rates)))


def _always(
    model: torch.nn.Module,
    runner: TorchModel,
    settings: SideSettings,
    inputs: InputSet,
    where: torch.device,
) -> tuple[frozenset[str], tuple[Draw, ...]]:
    """Lines whose dropouts drop in evaluation too, and the draws of unknown rates there."""
    model.eval()
    listed, dropping = _Listed(), training.DropoutLines()
    with torch.no_grad(), torch_variant.running(where, settings), listed, dropping:
        tensors = torch_call.tensors(inputs[0], where, settings)
        torch_call.call(model, model, tensors, runner.shown)
    return frozenset(dropping.lines), tuple(draw for draw in listed.draws if draw.rate < 0)


def _without(draws: Sequence[Draw], others: Sequence[Draw]) -> list[Draw]:
    """Draws without those of evaluation, which are no dropouts."""
    rest = list(draws)
    for draw in others:
        if draw in rest:
            rest.remove(draw)
    return rest


def _of_host(
    drawn: Sequence[HostDrawn], where: torch.device, settings: SideSettings
) -> tuple[dict[DrawLocation, torch.Tensor], dict[str, torch.Tensor]]:
    """Replacements for draws of Python and numpy, by location and by name."""
    named = torch_call.tensors(
        {host_drawn.name: host_drawn.value for host_drawn in drawn}, where, settings
    )
    return {host_drawn.place: named[host_drawn.name] for host_drawn in drawn}, named


def _is_statistic(model: torch.nn.Module, name: str, changed: bool) -> bool:
    """Whether a buffer is a running statistic, or a number of batches that these depend on.

    For torch's layers the class decides. For others, a buffer is a statistic if training changes it: a
    frozen normalization uses the same names.
    """
    owner, _, last = name.rpartition(".")
    layer = model.get_submodule(owner)
    if not isinstance(layer, torch.nn.modules.batchnorm._NormBase):
        return changed
    counted = layer.momentum is None
    return last in _STATISTICS or (last == "num_batches_tracked" and counted)


def _restore(model: torch.nn.Module, buffers: dict[str, torch.Tensor]) -> None:
    with torch.no_grad():
        for name, buffer in model.named_buffers():
            buffer.copy_(buffers[name])


class _AlreadyRequired(TorchFunctionMode):
    """Mode that lets a model request a gradient for tensors that have one, as torch's checkpoints require.

    In training the model's inputs are no leaves here: their gradients are compared.
    """

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if func == _REQUIRE and args[1] and args[0].requires_grad:
            return None
        return func(*args, **(kwargs or {}))


_REQUIRE = torch.Tensor.requires_grad.__set__


class _Listed(TorchDispatchMode):
    """Record of the draws of dropouts: the rate of each, and the number of values."""

    def __init__(self) -> None:
        super().__init__()
        self.draws: list[Draw] = []

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        name = str(func)
        if name in ("aten.bernoulli_.float", "aten.bernoulli.p"):
            keep = float(args[1] if len(args) > 1 else (kwargs or {}).get("p", 0.5))
            self.draws.append(Draw(1 - keep, args[0].numel()))
        elif name == "aten.native_dropout.default" and args[2]:
            self.draws.append(Draw(float(args[1]), args[0].numel()))
        result = func(*args, **(kwargs or {}))
        if name in ("aten.rand.default", "aten.rand_like.default") and result.dim():
            self.draws.append(Draw(-1.0, result.numel()))
        return result
