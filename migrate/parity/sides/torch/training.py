"""Gradients of a torch model, and steps of an optimizer."""

from __future__ import annotations

import contextlib
import inspect
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, TypeVar

import numpy as np
import torch
from torch import nn
from torch.overrides import TorchFunctionMode

from converters.original_lines import frame_of_original
from migrate.parity.ground.errors import ParityError
from migrate.parity.ground.requests import Training
from migrate.parity.ground.settings import SideSettings
from migrate.parity.inputs.set import InputSet
from migrate.parity.sides.torch import call as torch_call
from migrate.parity.sides.torch import variant as torch_variant
from migrate.parity.sides.torch.capture.tree import to_numpy, to_tensor
from migrate.parity.sides.torch.capture.xla import fetched
from migrate.parity.sides.torch.model import TorchModel

Result = TypeVar("Result")
_DROPOUTS = {
    getattr(nn.functional, name)
    for name in (
        "dropout",
        "dropout1d",
        "dropout2d",
        "dropout3d",
        "alpha_dropout",
        "feature_alpha_dropout",
    )
} | {torch.dropout}

# What torch says of tensors that are changed in place although a gradient needs them.
_IN_PLACE = ("modified by an inplace operation", "being used in an in-place operation")
_ATTENTION = ("query", "key", "value", "attn_mask", "dropout_p", "is_causal")


def gradients(
    runner: TorchModel, settings: SideSettings, inputs: InputSet, cotangents: Path, into: Path
) -> None:
    """See `Runner.gradients`. A parameter that no output depends on has no gradient and no entry."""
    draws = inputs.count > 0 and runner.draws(settings, inputs[0])
    model, where = runner.variant(settings)
    settings = runner.effective(settings)
    into.mkdir(parents=True, exist_ok=True)
    for number in range(inputs.count):
        model.requires_grad_(True)

        def attempt(copied: bool, number: int = number) -> dict[str, torch.Tensor]:
            model.zero_grad(set_to_none=True)
            running = torch_variant.running(where, settings, draws=draws)
            with running, _backward_of_rnns(where), _written_out(where):
                tensors = torch_call.tensors(inputs[number], where, settings)
                floating, arguments = leaves_of(tensors, copied)
                outputs = dict(torch_call.call(model, model, arguments, runner.shown))
                backward(outputs, read(cotangents, number), runner.shown)
            return floating

        floating = with_changes_in_place(attempt)
        gradients_by_name = {
            f"weights/{name}": parameter.grad
            for name, parameter in model.named_parameters(remove_duplicate=False)
            if parameter.grad is not None
        }
        gradients_by_name |= {
            f"inputs/{n}": t.grad for n, t in floating.items() if t.grad is not None
        }
        write(gradients_by_name, into / f"{number:03d}.safetensors")
    model.zero_grad(set_to_none=True)


def leaves_of(
    tensors: Mapping[str, torch.Tensor], copied: bool
) -> tuple[dict[str, torch.Tensor], dict[str, torch.Tensor]]:
    """Return the floating inputs whose gradients are taken, and the inputs for the model.

    Args:
        tensors: the inputs, of any shapes.
        copied: whether the model is given copies, which it may change in place as no leaf may be.
    """
    leaves = {n: t.requires_grad_() for n, t in tensors.items() if t.is_floating_point()}
    return leaves, {n: t.clone() if copied and n in leaves else t for n, t in tensors.items()}


def with_changes_in_place(attempt: Callable[[bool], Result]) -> Result:
    """Return what `attempt(False)` returns, a forward pass and its gradients.

    A model may change a tensor in place that the gradient of its input needs, but not those of its weights:
    it trains, as nobody asks for the former. Then torch keeps what was there before, in `attempt(True)`.

    Args:
        attempt: the pass, from new tensors; its argument is `copied` of `leaves_of`.
    """
    try:
        return attempt(False)
    except (ParityError, RuntimeError) as error:
        if not any(text in str(error.__cause__ or error) for text in _IN_PLACE):
            raise
    with torch.autograd.graph.allow_mutation_on_saved_tensors():
        return attempt(True)


def _written_out(where: torch.device) -> contextlib.AbstractContextManager[Any]:
    """Write out batch normalizations in evaluation mode on XLA, so that torch_xla can differentiate them.

    Its own backward of them rejects the running statistics (pytorch/xla #3361).
    """
    return _BatchNorms() if where.type == "xla" else contextlib.nullcontext()


class _BatchNorms(TorchFunctionMode):
    """Mode that writes out normalizations by running statistics: (x - mean) / sqrt(var + eps) · weight +
    bias.
    """

    def __torch_function__(
        self, func: Any, types: Any, args: Any = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        kwargs = kwargs or {}
        if func is not nn.functional.batch_norm:
            return func(*args, **kwargs)
        bound = inspect.signature(_batch_norm).bind(*args, **kwargs)
        bound.apply_defaults()
        if bound.arguments["training"]:
            return func(*args, **kwargs)
        return _batch_norm(*bound.args, **bound.kwargs)


def _batch_norm(
    input: Any,  # noqa: A002 (torch's names)
    running_mean: Any,
    running_var: Any,
    weight: Any = None,
    bias: Any = None,
    training: bool = False,
    momentum: float = 0.1,
    eps: float = 1e-5,
) -> Any:
    def lying(values: Any) -> Any:
        return values.reshape(1, -1, *[1] * (input.ndim - 2))

    normalized = (input - lying(running_mean)) * torch.rsqrt(lying(running_var) + eps)
    scaled = normalized if weight is None else normalized * lying(weight)
    return scaled if bias is None else scaled + lying(bias)


def backward(
    outputs: Mapping[str, Any], cotangents: Mapping[str, np.ndarray[Any, Any]], shown: str
) -> None:
    """Take the gradients of Σ <output, cotangent>."""
    heads, seeds = [], []
    for key, array in cotangents.items():
        path = "" if key == "output" and "output" not in outputs else key
        if path not in outputs:
            raise ParityError(
                f"{shown}: has no output {key}", f"its outputs are: {', '.join(outputs)}"
            )
        if outputs[path].requires_grad:
            heads.append(outputs[path])
            try:
                seeds.append(to_tensor(array, outputs[path].detach()))
            except ValueError as error:
                raise ParityError(
                    f"{shown}: the cotangent of output {key} does not fit ({error})",
                    "give one of the output's shape",
                ) from None
    if not heads:
        return  # no output depends on a parameter or a floating input by a gradient
    try:
        torch.autograd.backward(heads, seeds)
    except RuntimeError as error:
        raise torch_call.forward_failed(error, shown) from error


def train(
    runner: TorchModel, settings: SideSettings, inputs: InputSet, training: Training
) -> list[float]:
    """See `Runner.train`.

    The model is in train(), as in real training: BatchNorm normalizes with the batch. But all randomness
    (dropout, stochastic depth) is off. A copy is trained, the model keeps its weights.

    The hyperparameters are those that optax's optimizers have too: SGD without dampening, momentum 0.9
    without Nesterov, Adam with β 0.9 and 0.999 and ε 1e-8 outside the root, AdamW with the decay 0.01 times
    the learning rate.

    Raises:
        ParityError: there is no such optimizer, loss or output.
    """
    where = torch_variant.device(runner.kind, settings)
    model = torch_variant.variant(runner.module, where, settings)
    model.requires_grad_(True)
    model.train()
    without_chance(model)
    # On XLA a step is one graph; its loss is read with the others, at the end.
    losses = []
    rate = training.learning_rate
    optimizer = optimizer_of(training.optimizer, rate, list(model.parameters()), runner.shown)
    loss_from = loss_of(training.loss)
    run = torch_variant.compiled(model, where) if settings.compiled else model
    for number in training.order[: training.steps]:
        with torch_variant.running(where, settings), NoDropout():
            tensors = torch_call.tensors(inputs[number], where, settings)
            outputs = dict(torch_call.call(run, model, tensors, runner.shown))
            if training.output not in outputs:
                raise ParityError(
                    f"{runner.shown}: has no output {training.output or '(a single tensor)'}",
                    f"its outputs are: {', '.join(outputs)}",
                )
            wanted = torch_call.tensors(read(training.targets, number), where, settings)
            optimizer.zero_grad(set_to_none=True)
            loss = loss_from(outputs[training.output], wanted["target"], wanted.get("counted"))
            loss.backward()
            optimizer.step()
        losses.append(loss.detach())
        if where.type == "xla":
            import torch_xla

            torch_xla.sync()
    return [float(loss) for loss in fetched(losses)]


def optimizer_of(
    name: str, rate: float, parameters: Sequence[Any], shown: str
) -> torch.optim.Optimizer:
    """Return the optimizer for a name that optax has too.

    Raises:
        ParityError: there is no such optimizer.
    """
    if name == "sgd":
        return torch.optim.SGD(parameters, lr=rate)
    if name == "momentum":
        return torch.optim.SGD(parameters, lr=rate, momentum=0.9)
    if name == "adam":
        return torch.optim.Adam(parameters, lr=rate, betas=(0.9, 0.999), eps=1e-8)
    if name == "adamw":
        return torch.optim.AdamW(
            parameters, lr=rate, betas=(0.9, 0.999), eps=1e-8, weight_decay=0.01
        )
    raise ParityError(f"{shown}: no optimizer {name}", "name sgd, momentum, adam or adamw")


def loss_of(name: str) -> Callable[[Any, Any, Any], Any]:
    """Return the loss for a name, or for `file.py:function`: a function of (output, target, counted).

    Raises:
        ParityError: there is no such loss.
    """
    if name == "mse":
        return _squares
    if name == "cross_entropy":
        return _cross_entropy
    own = _own_loss(name)
    return lambda output, target, counted: own(output, target)


def _squares(output: Any, target: Any, counted: Any) -> Any:
    if counted is not None:  # before anything else: values outside may be infinite
        output = torch.where(counted, output, target)
    return _mean((output - target) ** 2, counted)


def _cross_entropy(output: Any, target: Any, counted: Any) -> Any:
    if counted is not None:
        output = torch.where(counted.unsqueeze(-1), output, 0.0)
    logs = torch.log_softmax(output, -1)
    return -_mean(torch.gather(logs, -1, target.long().unsqueeze(-1)).squeeze(-1), counted)


def _mean(values: Any, counted: Any) -> Any:
    if counted is None:
        return torch.mean(values)
    wide = torch.promote_types(values.dtype, torch.float32)  # wide enough for the number of values
    total = torch.sum(torch.where(counted, values, 0.0), dtype=wide)
    return (total / counted.sum().clamp(min=1)).to(values.dtype)


def _own_loss(spec: str) -> Callable[[Any, Any], Any]:
    from converters.errors import ConversionError
    from converters.model import imported, named_object

    location, _, name = spec.rpartition(":")
    try:
        with imported(spec, location) as module:
            function: Callable[[Any, Any], Any] = named_object(module, location, name)
    except ConversionError as error:
        raise ParityError(error.what, error.remedy) from error
    return function


def _line() -> str:
    """Running line of the model, "file.py:12", or ""."""
    frame = frame_of_original(f"{Path(__file__).parent}/")
    return f"{frame.filename}:{frame.lineno}" if frame is not None else ""


class DropoutLines(TorchFunctionMode):
    """Mode that records which lines run dropout functions that drop.

    Attributes:
        lines: the lines.
    """

    def __init__(self) -> None:
        super().__init__()
        self.lines: set[str] = set()

    def __torch_function__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: Any = None
    ) -> Any:
        named = dict(zip(("input", "p", "training"), args, strict=False)) | (kwargs or {})
        if (func in _DROPOUTS and named.get("training", named.get("train", True))) or (
            func is torch.Tensor.bernoulli_
        ):
            self.lines.add(_line())
        return func(*args, **(kwargs or {}))


class NoDropout(TorchFunctionMode):
    """Mode in which dropout functions return their input, in any module.

    So do the dropout of attention, and a mask that is drawn and divided by its mean.

    Args:
        always: lines whose dropouts drop in evaluation too: these draw.
    """

    def __init__(self, always: Collection[str] = ()) -> None:
        super().__init__()
        self._always = always

    def __torch_function__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: Any = None
    ) -> Any:
        if self._always and _line() in self._always:
            return func(*args, **(kwargs or {}))
        if func in _DROPOUTS:
            return args[0] if args else (kwargs or {})["input"]
        if func is nn.functional.scaled_dot_product_attention:
            bound = dict(zip(_ATTENTION, args, strict=False)) | (kwargs or {})
            return func(**{**bound, "dropout_p": 0.0})
        if func is torch.Tensor.bernoulli_ and len(args) > 1 and isinstance(args[1], float):
            return args[0].fill_(args[1])  # its mean: retained values are divided by it
        return func(*args, **(kwargs or {}))


def without_chance(model: nn.Module) -> None:
    """Turn off the randomness that a function mode does not reach: rates that modules keep as attributes.

    These are torch's RNNs and attention (`dropout`), transformers' attention (`attention_dropout`,
    `dropout_prob`), layers left out (`layerdrop`), and stochastic depth (`drop_prob`).
    """
    for module in model.modules():
        if isinstance(module, nn.modules.dropout._DropoutNd):
            module.p = 0.0
        for name, value in vars(module).items():
            if "drop" in name and isinstance(value, float):
                setattr(module, name, 0.0)


@contextlib.contextmanager
def _backward_of_rnns(where: torch.device) -> Iterator[None]:
    """Allow the backward pass of cuDNN's RNNs, which exists in train() only."""
    with torch.backends.cudnn.flags(enabled=False) if where.type == "cuda" else _nothing():
        yield


def _nothing() -> contextlib.AbstractContextManager[None]:
    return contextlib.nullcontext()


def read(folder: Path, number: int) -> dict[str, np.ndarray[Any, Any]]:
    """Read the arrays that were written for an input."""
    from safetensors.numpy import load_file

    arrays: dict[str, np.ndarray[Any, Any]] = load_file(folder / f"{number:03d}.safetensors")
    return arrays


def write(tensors: Mapping[str, Any], file: Path) -> None:
    """Write tensors by name."""
    from safetensors.numpy import save_file

    arrays = {}
    for name, tensor in zip(tensors, fetched(list(tensors.values())), strict=True):
        array = to_numpy(tensor)
        if array.dtype.name in ("bfloat16", "float16"):
            array = array.astype(np.float32)
        arrays[name] = np.ascontiguousarray(array).reshape(array.shape)
    save_file(arrays, file)
