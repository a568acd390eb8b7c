"""Weights that a torch layer computes from other tensors: weight norm, spectral norm, and the rest.

- **weight_norm**, of `torch.nn.utils.parametrizations` (original0, original1) and of `torch.nn.utils`
  (weight_g, weight_v): both tensors are kept, as `kernel_g` and `kernel_v`, for
  `converters.modules`' `WeightNorm(Dense(3))`. `flax.linen.WeightNorm` puts a slash into a name, which no
  path can hold; its scale is `kernel_g.ravel()`, its kernel is `kernel_v`.
- **spectral_norm**, in both forms: the original is `kernel_orig`, its vectors are `kernel_u` and `kernel_v`
  in `batch_stats`, for `converters.modules`' `SpectralNorm(Dense(3))`. Flax's own iterates in inference too.
- **Pruning** (weight_orig, weight_mask), **orthogonal**, parametrizations of one's own, several on one
  tensor, and the first two where an axis is taken apart in Flax (a transposed convolution's groups,
  attention's heads): torch computes the weight as the model would have it. The way back does not follow from
  the result; what torch had is kept beside it. Where torch cannot compute it alone, it is refused.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from importlib import import_module
from typing import Any

import numpy as np

from converters.layers.entry import BATCH_STATS, LayerEntry, Weight, Weights
from converters.layers.flax_call import Api, FlaxCall, Value, changed, ours
from converters.layers.join import ALONE, ComputedBefore, Join
from converters.layers.layout import (
    UNCHANGED,
    Chain,
    Flip,
    Layout,
    Merge,
    Part,
    Permute,
    Split,
    Unchanged,
    chain,
)

Array = np.ndarray[Any, Any]
# Module of torch that creates the classes of layers with a parametrization.
_PARAMETRIZED = "torch.nn.utils.parametrize"
Compute = Callable[[Mapping[str, Any]], Any]  # tensors by their names in the layer → the weight


class CannotComputeError(ValueError):
    """torch could not compute the weight from its tensors alone; the message gives the reason."""


@dataclass(frozen=True, eq=False)
class ComputedWeight(Join):
    """Weight that torch computes from several tensors.

    Attributes:
        what: the parametrization's name, for messages.
        names: the names of the tensors in the layer, in the order of the pieces.
        compute: returns the weight for the tensors by name.
        part: the part of the weight; None for all of it.
        layout: its arrangement in Flax.
        sides: its shape in torch.
    """

    what: str
    names: tuple[str, ...]
    compute: Compute
    part: Part | None
    layout: Layout
    sides: tuple[int, ...]

    def apply(self, pieces: Sequence[Array]) -> Array:
        """Return the weight in Flax's arrangement, computed by torch in the dtype of its tensors."""
        import torch

        from converters.checkpoint.dtypes import torch_to_numpy

        tensors = {name: _to_torch(piece) for name, piece in zip(self.names, pieces, strict=True)}
        with torch.no_grad():
            weight = torch_to_numpy(self.compute(tensors), self.what)
        return self.layout.apply(weight if self.part is None else self.part.apply(weight))

    def shape(self, shapes: Sequence[tuple[int, ...]]) -> tuple[int, ...]:
        """Return its shape in Flax."""
        if len(shapes) != len(self.names):
            raise ValueError(f"{len(self.names)} tensors expected, there are {len(shapes)}")
        return self.layout.shape(self.sides if self.part is None else self.part.shape(self.sides))

    def split(self, array: Array, shapes: Sequence[tuple[int, ...]]) -> list[Array] | None:
        """Return None: the result does not determine its inputs."""
        return None

    def __str__(self) -> str:
        return str(ComputedBefore(self.shape(((),) * len(self.names))))


def reparametrized(module: Any, weights: Weights) -> Weights:
    """Return the weights of a layer, replacing those that it computes from other tensors.

    Args:
        module: the torch layer.
        weights: the weights of its kind; empty for a user's own module, whose computed weights are
            kept under their own names.

    Raises:
        CannotComputeError: a computed weight has no form in Flax.
    """
    computed = _computed(module)
    known = {weight.torch for weight in weights}
    plain = tuple(Weight(name, name, name) for name in computed if name not in known)
    replaced: list[Weight] = []
    for weight in (*weights, *plain):
        source = computed.get(weight.torch)
        replaced += [weight] if source is None else source.weights(weight)
    return tuple(replaced)


def is_reparametrized(module: Any) -> bool:
    """Whether the layer computes a weight from other tensors."""
    return bool(_computed(module))


def class_before(module: Any) -> type:
    """Return the original class of a module: torch creates a new class for a module with a
    parametrization."""
    return next(cls for cls in type(module).__mro__ if cls.__module__ != _PARAMETRIZED)


def is_computed_before(module: Any, weights: Weights) -> bool:
    """Whether the layer computes a weight in a way that no layer of `converters.modules` supports.

    A conversion then stores the result. A model that trains must compute it at each call.

    Args:
        module: the torch layer.
        weights: the weights of its kind.
    """
    from torch.nn.utils.parametrize import ParametrizationList

    maps = type(module).__module__ == "torch.nn.utils.parametrizations"  # the map of `orthogonal`
    if maps or isinstance(module, ParametrizationList):
        return True
    known = {weight.torch: weight for weight in weights}
    return any(
        name not in known or not source.is_kept(known[name])
        for name, source in _computed(module).items()
    )


def layer_around(module: Any, name: str) -> str:
    """Return the layer of `converters.modules` that computes with this tensor, in a few words, or ""."""
    for source in _computed(module).values():
        if name in source.tensors and source.form:
            return f"converters.modules: {_AROUND[source.form]} around the layer"
    return ""


def around(module: Any, entry: LayerEntry, call: FlaxCall, api: Api) -> FlaxCall | None:
    """Return the Flax module of a layer, wrapped in the module that computes its weights.

    The result is None if the weights are computed in more than one way. A weight that torch has
    computed before is a plain weight.
    """
    names: list[str] = []
    ways: list[tuple[str, dict[str, Value]]] = []
    computed = _computed(module)
    for weight in entry.weights_of(module):
        source = computed.get(weight.torch)
        if source is not None and source.is_kept(weight):
            names.append(weight.linen if api == "linen" else weight.nnx)
            ways.append((_AROUND[source.form], source.settings(weight)))
    if not ways:
        return call
    if any(way != ways[0] for way in ways):
        return None
    name, settings = ways[0]
    sizes = {"layer": call.construction, **changed(names=(tuple(names), ("kernel",)))}
    return replace(call, of=ours(api, name, {}).of, sizes=sizes, settings=settings)


_AROUND = {"weight_norm": "WeightNorm", "spectral_norm": "SpectralNorm"}


@dataclass(frozen=True)
class _WeightSource:
    """Computation of one weight of a layer."""

    what: str
    tensors: Mapping[str, Any]  # by their names in the layer
    compute: Compute
    form: str = ""  # "weight_norm", "spectral_norm" or ""
    dim: int = 0
    # Arguments of the layer around it that differ from their defaults.
    arguments: Mapping[str, Value] = field(default_factory=dict)

    def is_kept(self, weight: Weight) -> bool:
        """Whether the tensors are kept separately, for a layer that computes with them."""
        base, _ = _apart(weight.layout)
        return bool(self.form) and weight.join == ALONE and weight.part is None and _keeps(base)

    def settings(self, weight: Weight) -> dict[str, Value]:
        """Return the arguments of that layer: the axis of the Flax weight for torch's dim."""
        base, _ = _apart(weight.layout)
        if self.form == "weight_norm" and self.dim == -1:  # torch's value for None
            return {"axis": None}
        axes = len(self._shape(weight.torch))
        axis = _axis(base, self.dim % axes, axes)
        return {**changed(axis=(axis, -1)), **self.arguments}

    def weights(self, weight: Weight) -> list[Weight]:
        names = tuple(self.tensors)
        if self.is_kept(weight):
            return self._kept_apart(weight, *_apart(weight.layout))
        if weight.join != ALONE:
            raise CannotComputeError(f"{self.what} of {weight.torch}, which Flax joins with others")
        sides = self._shape(weight.torch)
        join = ComputedWeight(self.what, names, self.compute, weight.part, weight.layout, sides)
        return [
            Weight(name, weight.linen, weight.nnx, UNCHANGED, weight.collection, join=join)
            for name in names
        ]

    def _kept_apart(self, weight: Weight, base: Layout, tail: Layout) -> list[Weight]:
        """Return all tensors, with sides of 1 where a norm runs."""

        def arranged(sides: tuple[int, ...]) -> Layout:
            try:
                tail.shape(base.shape(sides))
            except ValueError:  # its size is 1 except along the reordered axis
                return base
            return chain([base, tail])

        names = tuple(self.tensors)
        sides = [tuple(tensor.shape) for tensor in self.tensors.values()]
        if self.form == "weight_norm":
            (g, v), (factor, full) = names, sides
            layout = UNCHANGED if not factor else arranged(factor)
            return [_named(weight, g, "_g", layout), _named(weight, v, "_v", arranged(full))]
        (original, u, v), full = names, sides[0]
        dim = self.dim % len(full)
        rows = tuple(side if axis == dim else 1 for axis, side in enumerate(full))
        columns = tuple(1 if axis == dim else side for axis, side in enumerate(full))
        spread = {
            name: chain([Split(0, side), arranged(side)])
            for name, side in ((u, rows), (v, columns))
        }
        return [
            _named(weight, original, "_orig", arranged(full)),
            replace(_named(weight, u, "_u", spread[u]), collection=BATCH_STATS),
            replace(_named(weight, v, "_v", spread[v]), collection=BATCH_STATS),
        ]

    def _shape(self, name: str) -> tuple[int, ...]:
        """Return the weight's shape, by computing it without values.

        Raises:
            CannotComputeError: torch needs more than the layer's tensors.
        """
        import torch

        empty = {
            key: torch.empty_like(tensor, device="meta") for key, tensor in self.tensors.items()
        }
        try:
            with torch.no_grad():
                return tuple(self.compute(empty).shape)
        except Exception as error:  # a user's parametrization may raise anything
            reason = " ".join(str(error).split())[:120]
            raise CannotComputeError(
                f"torch cannot compute {name} ({self.what}) from its tensors alone: {reason}"
            ) from None


def _named(weight: Weight, torch_name: str, suffix: str, layout: Layout) -> Weight:
    return replace(
        weight,
        torch=torch_name,
        linen=f"{weight.linen}{suffix}",
        nnx=f"{weight.nnx}{suffix}",
        layout=layout,
    )


def _apart(layout: Layout) -> tuple[Layout, Layout]:
    """Split a layout into one without the reordering of an axis at its end (a flattened input), and
    the reordering."""
    if isinstance(layout, Chain) and len(layout.layouts) >= 3:
        split, _, merge = layout.layouts[-3:]
        if isinstance(split, Split) and isinstance(merge, Merge) and split.axis == merge.axis:
            return chain(layout.layouts[:-3]), chain(layout.layouts[-3:])
    return layout, UNCHANGED


def _keeps(layout: Layout) -> bool:
    """Whether every axis stays a single axis, so that a norm over axes means the same in Flax."""
    if isinstance(layout, Chain):
        return all(_keeps(part) for part in layout.layouts)
    return isinstance(layout, Unchanged | Permute | Flip)


def _computed(module: Any) -> dict[str, _WeightSource]:
    """Return the weights that a layer computes, by name."""
    sources = {name: _hooked(hook, module) for name, hook in _hooks(module)}
    lists = module._modules.get("parametrizations")
    if type(module).__module__ == _PARAMETRIZED and lists is not None:
        sources |= {
            name: _parametrized(name, parametrizations) for name, parametrizations in lists.items()
        }
    return sources


def _hooks(module: Any) -> list[tuple[str, Any]]:
    """Return the hooks of the old forms, which compute the weight before each pass."""
    from torch.nn.utils.prune import BasePruningMethod

    old = tuple(
        getattr(import_module(f"torch.nn.utils.{file}"), name)
        for file, name in (("weight_norm", "WeightNorm"), ("spectral_norm", "SpectralNorm"))
    )
    hooks = module._forward_pre_hooks.values()
    named = [(hook.name, hook) for hook in hooks if isinstance(hook, old)]
    pruned = [hook for hook in hooks if isinstance(hook, BasePruningMethod)]
    return named + [(hook._tensor_name, hook) for hook in pruned]


def _hooked(hook: Any, module: Any) -> _WeightSource:
    what = type(hook).__name__
    name = getattr(hook, "name", None) or hook._tensor_name

    def tensors(*suffixes: str) -> dict[str, Any]:
        return {f"{name}{suffix}": getattr(module, f"{name}{suffix}") for suffix in suffixes}

    if what == "WeightNorm":
        g, v = f"{name}_g", f"{name}_v"
        return _WeightSource(
            "weight_norm",
            tensors("_g", "_v"),
            _weight_norm(g, v, hook.dim),
            "weight_norm",
            hook.dim,
        )
    if what == "SpectralNorm":
        tensors_by_name = tensors("_orig", "_u", "_v")
        norm = _spectral_norm(f"{name}_orig", f"{name}_u", f"{name}_v", hook.dim)
        more = {**_iterations(hook), "first": "v"}
        return _WeightSource(
            "spectral_norm", tensors_by_name, norm, "spectral_norm", hook.dim, more
        )
    mask, original = f"{name}_mask", f"{name}_orig"
    return _WeightSource(
        "pruning", tensors("_orig", "_mask"), lambda values: values[original] * values[mask]
    )


def _parametrized(name: str, parametrizations: Any) -> _WeightSource:
    prefix = f"parametrizations.{name}."
    stored = dict(parametrizations.named_parameters()) | dict(parametrizations.named_buffers())
    tensors = {prefix + key: tensor for key, tensor in stored.items()}
    what = ", ".join(type(item).__name__.lstrip("_") for item in parametrizations)
    if len(parametrizations) == 1:
        (parametrization,) = parametrizations
        if what == "WeightNorm" and type(parametrization).__module__.startswith("torch."):
            g, v = f"{prefix}original0", f"{prefix}original1"
            pair = {g: tensors[g], v: tensors[v]}
            return _WeightSource(
                "weight_norm",
                pair,
                _weight_norm(g, v, parametrization.dim),
                "weight_norm",
                parametrization.dim,
            )
        if (
            what == "SpectralNorm"
            and type(parametrization).__module__.startswith("torch.")
            and len(stored) == 3
        ):
            names = (f"{prefix}original", f"{prefix}0._u", f"{prefix}0._v")
            inputs = {key: tensors[key] for key in names}
            norm = _spectral_norm(*names, parametrization.dim)
            return _WeightSource(
                "spectral_norm",
                inputs,
                norm,
                "spectral_norm",
                parametrization.dim,
                _iterations(parametrization),
            )

    def compute(values: Mapping[str, Any]) -> Any:
        import torch

        plain = {key.removeprefix(prefix): tensor for key, tensor in values.items()}
        training = parametrizations.training
        parametrizations.eval()  # some of them iterate in training
        try:
            return torch.func.functional_call(parametrizations, plain, ())
        finally:
            parametrizations.train(training)

    return _WeightSource(what, tensors, compute)


def _iterations(norm: Any) -> dict[str, Value]:
    return changed(n_power_iterations=(norm.n_power_iterations, 1), eps=(float(norm.eps), 1e-12))


def _axis(layout: Layout, axis: int, axes: int) -> int:
    """Return the axis after a layout that keeps all axes, counted from the end."""
    marked = tuple(2 if at == axis else 1 for at in range(axes))
    return layout.shape(marked).index(2) - axes


def _weight_norm(g: str, v: str, dim: int) -> Compute:
    def compute(values: Mapping[str, Any]) -> Any:
        import torch

        return torch._weight_norm(values[v], values[g], dim)

    return compute


def _spectral_norm(original: str, u: str, v: str, dim: int) -> Compute:
    def compute(values: Mapping[str, Any]) -> Any:
        import torch

        weight = values[original]
        rows = weight.movedim(dim, 0).flatten(1)
        return weight / torch.dot(values[u], torch.mv(rows, values[v]))

    return compute


def _to_torch(array: Array) -> Any:
    """Return a tensor with the same bits; numpy's bfloat16 and float8 go through a view."""
    import torch

    bits = np.array(array)  # a copy: files are mapped read-only
    if bits.dtype.type.__module__ == "numpy":
        return torch.from_numpy(bits)
    view = np.uint8 if bits.dtype.itemsize == 1 else np.uint16
    return torch.from_numpy(bits.view(view)).view(getattr(torch, bits.dtype.name))
