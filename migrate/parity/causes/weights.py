"""Different weights: of another layer, transposed, tied, missing, rounded."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from functools import partial
from itertools import combinations
from typing import Any

import numpy as np
import torch
from torch import nn

from migrate.parity.causes.frame.changes import several, weight
from migrate.parity.causes.frame.functions import FunctionCall, Handler
from migrate.parity.causes.frame.pattern import (
    Array,
    FaultExample,
    Pattern,
    Variant,
    loaded,
    normal,
)
from migrate.parity.causes.frame.rounding import rounded_to
from migrate.parity.causes.frame.scene import Scene

_AXES = {2: ("out", "in"), 3: ("out", "in", "width"), 4: ("out", "in", "height", "width")}


def _kernel_transposed_truth() -> nn.Module:
    return nn.Linear(12, 12)


def _kernel_transposed_faulty(twin: nn.Module) -> nn.Module:
    twin.weight.data = twin.weight.data.T.contiguous()
    return twin


def _conv() -> nn.Module:
    return nn.Conv2d(3, 4, 5, padding=2)


def _turned(twin: nn.Module) -> nn.Module:
    twin.weight.data = twin.weight.data.transpose(2, 3).contiguous()
    return twin


class KernelTransposed(Pattern):
    """A kernel that lies transposed.

    **What it is.** torch's `Linear` keeps (out, in), Flax's `Dense` (in, out); a convolution (out, in,
    height, width) and (height, width, in, out). Where a kernel is square its shape does not tell that it
    was not turned, or turned twice, or height and width exchanged.

    **What to do.** Let `migrate weights convert` turn it: Dense `w.T`, convolutions `w.transpose(2, 3, 1,
    0)`.
    """

    name = "kernel-transposed"
    rank = 1
    examples = (
        FaultExample(
            _kernel_transposed_truth,
            _kernel_transposed_faulty,
            normal(4, 12),
            "has the axes out and in exchanged",
        ),
        FaultExample(_conv, _turned, normal(2, 3, 9, 9), "has the axes height and width exchanged"),
    )

    def variants(self, scene: Scene) -> Iterable[Variant]:
        """Yield each exchange of two axes of the same size."""
        for part, name in scene.weights(lambda _module, _name, tensor: tensor.ndim in _AXES):
            tensor = getattr(part.module, name)
            names = _AXES[tensor.ndim]
            if isinstance(part.module, nn.Embedding):
                continue
            for a, b in combinations(range(tensor.ndim), 2):
                if tensor.shape[a] == tensor.shape[b] > 1:
                    yield Variant(
                        f"{name} of {part.name} has the axes {names[a]} and {names[b]} exchanged in {{side}}",
                        partial(weight, part.module, name, partial(_exchanged, a, b)),
                    )


def _exchanged(a: int, b: int, tensor: torch.Tensor) -> Any:
    return tensor.transpose(a, b)


def _missing_bias_truth() -> nn.Module:
    return nn.Linear(8, 16)


def _missing_bias_faulty(twin: nn.Module) -> nn.Module:
    twin.bias = None
    return twin


class MissingBias(Pattern):
    """A bias that is not added, or was not loaded.

    **What it is.** The layer has `use_bias=False`, or its bias kept its initial zeros because the name in
    the checkpoint is another one. LSTM and GRU of torch have two biases, Flax's have one: the sum, or one
    is lost.

    **What to do.** Compare the names of the parameters on both sides (`migrate weights plan`).
    """

    name = "missing-bias"
    examples = (
        FaultExample(_missing_bias_truth, _missing_bias_faulty, normal(4, 8), "adds no bias"),
    )

    def variants(self, scene: Scene) -> Iterable[Variant]:
        """Yield each bias alone, and all of a module, as zeros."""
        by_part: dict[str, list[tuple[Any, str]]] = {}
        for part, name in scene.weights(_is_bias):
            by_part.setdefault(part.name, []).append((part.module, name))
        for where, biases in by_part.items():
            for some in [biases] if len(biases) == 1 else [[bias] for bias in biases] + [biases]:
                names = ", ".join(name for _, name in some)
                yield Variant(
                    f"{{side}} adds no bias in {where} ({names})",
                    partial(_missing_bias_zeroed, some),
                )

    def differs(self, truth: Mapping[str, Any], side: Mapping[str, Any]) -> str:
        """Report that one side has a bias, and the other has none."""
        a, b = (
            next((s[n] for n in ("use_bias", "bias") if isinstance(s.get(n), bool)), None)
            for s in (truth, side)
        )
        return f"{{side}} has bias {b}, the truth {a}" if None not in (a, b) and a != b else ""


def _is_bias(_module: Any, name: str, tensor: torch.Tensor) -> bool:
    return ("bias" in name or name == "beta") and bool((tensor != 0).any())


def _missing_bias_zeroed(some: list[tuple[Any, str]]) -> Any:
    return several(weight(module, name, torch.zeros_like) for module, name in some)


_MOST = 64


class _OtherLayersWeightsTruth(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.ModuleList(nn.Linear(8, 8) for _ in range(3))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        for layer in self.layers:
            x = torch.tanh(layer(x))
        return x


def _other_layers_weights_faulty(twin: nn.Module) -> nn.Module:
    first, second, third = twin.layers
    twin.layers = nn.ModuleList([third, second, first])
    return twin


class OtherLayersWeights(Pattern):
    """A layer has the weights of another one.

    **What it is.** Blocks were stacked in another order (for `nn.scan`), sorted by name ("10" before
    "2"), or two names of a checkpoint were taken for each other (gate and up, query and key).

    **What to do.** Correct the names; sort numbers as numbers.
    """

    name = "other-layers-weights"
    rank = 1
    examples = (
        FaultExample(
            _OtherLayersWeightsTruth,
            _other_layers_weights_faulty,
            normal(4, 8),
            "layers.0 has the weights of layers.2",
            layer="layers.0",
        ),
    )

    def variants(self, scene: Scene) -> Iterable[Variant]:
        """Yield the weights of every module of the same kind and sizes."""
        for part in scene.parts:
            own = dict(part.module.named_parameters(recurse=False))
            if not own:
                continue
            for name, other in list(_alike(scene.model, part.module))[:_MOST]:
                change = partial(_with, part.module, other, tuple(own))
                yield Variant(f"{part.name} has the weights of {name} in {{side}}", change)


def _alike(model: nn.Module, module: nn.Module) -> Iterable[tuple[str, nn.Module]]:
    sizes = {name: tensor.shape for name, tensor in module.named_parameters(recurse=False)}
    for name, other in model.named_modules():
        other_sizes = {
            key: parameter.shape for key, parameter in other.named_parameters(recurse=False)
        }
        if other is not module and type(other) is type(module) and other_sizes == sizes:
            yield name, other


def _with(module: nn.Module, other: nn.Module, names: tuple[str, ...]) -> Any:
    return several(
        weight(module, name, partial(_other_layers_weights_taken, other, name)) for name in names
    )


def _other_layers_weights_taken(other: nn.Module, name: str, _tensor: torch.Tensor) -> torch.Tensor:
    return getattr(other, name).data


def _other_weights_truth() -> nn.Module:
    return nn.Linear(8, 12)


def _other_weights_faulty(twin: nn.Module) -> nn.Module:
    return nn.Linear(8, 12)  # never loaded


class OtherWeights(Pattern):
    """The weights of a dense layer are others.

    **What it is.** The output is a linear function of the truth's input, as it should be, but of no
    weights that the truth has: the layer kept its initial ones, because the checkpoint has no key for it
    (a tied head), or is of another training step.

    **What to do.** Load strictly, and compare the weights of this layer (`migrate weights verify`).
    """

    name = "other-weights"
    rank = 4
    examples = (
        FaultExample(
            _other_weights_truth,
            _other_weights_faulty,
            normal(6, 8, 8),
            "is linear in its input, with other weights",
        ),
    )

    def variants(self, scene: Scene) -> Iterable[Variant]:
        """Yield the linear function of the input that fits the side's output best."""
        if not isinstance(scene.target, nn.Linear):
            return
        argument = next(scene.given(), None)
        if argument is None:
            return
        x = argument[1].reshape(-1, argument[1].shape[-1]).numpy()
        if len(x) < 2 * (x.shape[1] + 1):
            return
        shared = [n for n, m in scene.model.named_modules() if _shares(m, scene.target)]
        words = f"; in the truth they are tied to {shared[0]}'s" if shared else ""
        text = f"{scene.name or 'the layer'} is linear in its input, with other weights in {{side}}{words}"
        yield Variant(text, adjust=partial(_fitted, x))


def _shares(module: nn.Module, target: nn.Module) -> bool:
    return module is not target and getattr(module, "weight", None) is target.weight


def _fitted(x: Array, output: Array, mine: Array) -> Array | None:
    if not np.isfinite(mine).all() or mine.shape != output.shape:
        return None
    columns = np.concatenate([x, np.ones((len(x), 1))], 1)
    y = mine.reshape(len(x), -1)
    solution, _, rank, _ = np.linalg.lstsq(columns, y, rcond=None)
    return (columns @ solution).reshape(mine.shape) if rank < len(x) / 1.5 else None


def _padding_row_truth() -> nn.Module:
    return nn.Embedding(20, 8)


class _PaddingRowFaulty(nn.Embedding):
    def forward(self, ids: torch.Tensor) -> torch.Tensor:
        return super().forward(ids) * (ids != 0)[..., None]


def _padding_row_inputs() -> tuple[torch.Tensor, ...]:
    return (torch.cat([torch.randint(1, 20, (2, 5)), torch.zeros(2, 2, dtype=torch.long)], 1),)


class PaddingRow(Pattern):
    """The embedding of the padding token is zero on one side only.

    **What it is.** `padding_idx` of torch makes the row zero at the beginning and keeps its gradient
    away; a loaded checkpoint may still have numbers there, which are used. Keras's `mask_zero`, and ports
    that multiply by the mask, give zeros.

    **What to do.** Use the row of the checkpoint on both sides, or make it zero in the checkpoint.
    """

    name = "padding-row"
    examples = (
        FaultExample(
            _padding_row_truth,
            lambda twin: loaded(_PaddingRowFaulty(20, 8), twin),
            _padding_row_inputs,
            "zeros for token 0",
        ),
    )

    def variants(self, scene: Scene) -> Iterable[Variant]:
        """Yield zeros for the usual padding tokens."""
        said = {call.get(2, "padding_idx") for call in scene.calls("embedding")}
        for token in sorted(
            {0, 1, *(index for index in said if isinstance(index, int) and index >= 0)}
        ):
            for where, change in scene.replaced(partial(_padding_row_zeroed, token)):
                yield Variant(
                    f"the embedding has zeros for token {token} in {{side}}{where}", change
                )


def _padding_row_zeroed(token: int) -> Mapping[str, Handler]:
    def handle(call: FunctionCall) -> Any:
        return call.run() * (call.args[0] != token)[..., None]

    return {"embedding": handle}


def _rounded_weights_truth() -> nn.Module:
    return nn.Linear(16, 16)


def _rounded_weights_faulty(twin: nn.Module) -> nn.Module:
    return twin.bfloat16().double()


class RoundedWeights(Pattern):
    """Weights that went through 16 bits.

    **What it is.** The checkpoint was saved in bfloat16 or float16, or loaded with `dtype=bfloat16` and
    cast up again: the weights are rounded, all else is float32. Relative L2 of 1.7e-3 in each layer.

    **What to do.** Convert the weights in their own dtype; compare both sides with the same file.
    """

    name = "rounded-weights"
    examples = (
        FaultExample(
            _rounded_weights_truth, _rounded_weights_faulty, normal(4, 16), "rounded to bfloat16"
        ),
    )

    def variants(self, scene: Scene) -> Iterable[Variant]:
        """Yield all weights of the layer rounded."""
        for dtype in (torch.bfloat16, torch.float16, torch.float8_e4m3fn):
            name = str(dtype).removeprefix("torch.")
            if next(iter(scene.weights(_any)), None) is not None:
                yield Variant(
                    f"the weights of {{side}} are rounded to {name}", partial(_all, scene, dtype)
                )


def _any(_module: nn.Module, _name: str, tensor: torch.Tensor) -> bool:
    return tensor.is_floating_point()


def _all(scene: Scene, dtype: torch.dtype) -> Any:
    return several(
        weight(part.module, name, partial(rounded_to, dtype=dtype))
        for part, name in scene.weights(_any)
    )


class _UntiedHeadTruth(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.embed, self.head = nn.Embedding(20, 8), nn.Linear(8, 20, bias=False)

    def forward(self, ids: torch.Tensor) -> torch.Tensor:
        return self.head(self.embed(ids))


def _tied_weights_faulty(twin: nn.Module) -> nn.Module:
    twin.head.weight = twin.embed.weight
    return twin


def _tied_weights_inputs() -> tuple[torch.Tensor, ...]:
    return (torch.randint(0, 20, (2, 7)),)


class UntiedHead(Pattern):
    """The head has the embedding's weights on one side only.

    **What it is.** `tie_word_embeddings` differs: the port multiplies by the embedding (`embed.attend` in
    linen), while the checkpoint has a head of its own. (The reverse, a head that kept its initial weights
    since the checkpoint has no key for it, is other-weights.)

    **What to do.** Take the setting from the configuration of the checkpoint.
    """

    name = "tied-weights"
    examples = (
        FaultExample(
            _UntiedHeadTruth,
            _tied_weights_faulty,
            _tied_weights_inputs,
            "has the weights of embed",
            layer="head",
        ),
    )

    def variants(self, scene: Scene) -> Iterable[Variant]:
        """Yield heads with the weights of each embedding of their size."""
        for part in scene.parts:
            if not isinstance(part.module, nn.Linear):
                continue
            for name, module in scene.model.named_modules():
                if (
                    isinstance(module, nn.Embedding)
                    and module.weight.shape == part.module.weight.shape
                ):
                    change = partial(
                        weight, part.module, "weight", partial(_tied_weights_taken, module)
                    )
                    yield Variant(f"{part.name} has the weights of {name} in {{side}}", change)

    def suspected(self, scene: Scene) -> str:
        """Report that the truth's weights are shared: a checkpoint has one name for both."""
        for part in scene.parts:
            shared = getattr(part.module, "weight", None)
            for name, module in scene.model.named_modules() if shared is not None else ():
                if module is not part.module and getattr(module, "weight", None) is shared:
                    return f"{part.name} has the weights of {name} in the truth, and others in {{side}}"
        return ""


def _tied_weights_taken(module: nn.Embedding, _tensor: torch.Tensor) -> torch.Tensor:
    return module.weight.data
