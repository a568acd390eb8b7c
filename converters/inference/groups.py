"""Groups of a checkpoint's keys: each holds the tensors of what was probably one layer."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property

from converters.checkpoint.reader import TensorInfo

PARAMETRIZATIONS = "parametrizations"
# Tensors that weight_norm and spectral_norm store instead of a weight; the last gives its shape.
_NORMED = {
    "weight_norm": ("weight_g", "weight_v"),
    "spectral_norm": ("weight_u", "weight_orig"),
    "parametrizations.weight_norm": (
        "parametrizations.weight.original0",
        "parametrizations.weight.original1",
    ),
    "parametrizations.spectral_norm": (
        "parametrizations.weight.0._u",
        "parametrizations.weight.original",
    ),
}
_SPARE = {
    "spectral_norm": ("weight_v",),
    "parametrizations.spectral_norm": (f"{PARAMETRIZATIONS}.weight.0._v",),
}
_ATTENTION = ("in_proj_weight", "q_proj_weight")


@dataclass(frozen=True)
class Group:
    """Tensors with one parent.

    Attributes:
        path: the parent ("encoder.layer.0.attn"); "" for the whole model.
        tensors: name below the parent → shape and dtype. They include an attention's
            `out_proj.weight`, and the tensors of `torch.nn.utils.parametrizations`.
    """

    path: str
    tensors: Mapping[str, TensorInfo]

    def key(self, name: str) -> str:
        """Return the complete key of a tensor."""
        return f"{self.path}.{name}" if self.path else name

    @property
    def keys(self) -> tuple[str, ...]:
        """Keys of all tensors."""
        return tuple(map(self.key, self.tensors))

    @cached_property
    def normed(self) -> str:
        """The form of the weight: "weight_norm", "parametrizations.spectral_norm", …, or ""."""
        for form, names in _NORMED.items():
            if all(name in self.tensors for name in names):
                return form
        return ""

    @cached_property
    def plain(self) -> dict[str, TensorInfo]:
        """Tensors without weight_norm or spectral_norm: `weight` instead of its parts."""
        form = self.normed
        if not form:
            return dict(self.tensors)
        names = (*_NORMED[form], *_SPARE.get(form, ()))
        rest = {name: info for name, info in self.tensors.items() if name not in names}
        return {"weight": self.tensors[_NORMED[form][-1]], **rest}

    def shape(self, name: str) -> tuple[int, ...] | None:
        """Return the shape of a plain tensor, or None."""
        info = self.plain.get(name)
        return None if info is None else info.shape


def make_groups(infos: Mapping[str, TensorInfo]) -> dict[str, Group]:
    """Return path → group, in the order of their first keys."""
    attention = {key.rpartition(".")[0] for key in infos if key.rpartition(".")[2] in _ATTENTION}
    groups: dict[str, dict[str, TensorInfo]] = {}
    for key, info in infos.items():
        path, _, name = key.rpartition(".")
        before, marker, after = f".{path}.".partition(f".{PARAMETRIZATIONS}.")
        if marker:
            path, name = before[1:], f"{PARAMETRIZATIONS}.{after}{name}"
        parent, _, last = path.rpartition(".")
        if last == "out_proj" and parent in attention:
            path, name = parent, f"{last}.{name}"
        elif path == "out_proj" and "" in attention:
            path, name = "", f"out_proj.{name}"
        groups.setdefault(path, {})[name] = info
    return {path: Group(path, tensors) for path, tensors in groups.items()}
