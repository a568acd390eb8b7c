"""Proof of a port's `init`: its draws, compared with new models of the original."""

from __future__ import annotations

import math
import re
from collections.abc import Collection, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from converters.errors import ConversionError
from converters.graph.starts.law import Draw
from migrate.parity.ground.errors import ParityError
from migrate.parity.sides.jax.weights import LAYER_NUMBER
from migrate.port.dtypes import narrow
from migrate.port.nnx_model import NnxPort
from migrate.port.original import SEED, OriginalModel
from migrate.port.package import package_of, unstacked
from migrate.port.results import Initialization
from migrate.port.sizes.results import SecondSize
from migrate.port.weights import PARAMS, write_weights

Array = np.ndarray[Any, Any]
# New models of each side: more of small ones, as each has few elements.
_BUILDS, _BUILDS_OF_SMALL, _SMALL = 2, 8, 200_000
# Of each side at the second size.
_BUILDS_THERE = 4
# Elements of an array that are compared.
_ELEMENTS = 20_000
# How rarely two samples of one law may be told apart: there are many arrays.
_RARELY = 1e-7
_ERRORS = 6.0
# How far a constant may be off, relative to the largest of the array.
_ROUNDING = 1e-6
# How rarely two draws of one element are the same number: torch draws one of 2 ** 24.
_SAME = 2.0**-24


def compared(
    original: OriginalModel,
    folder: Path,
    name: str,
    port: Any,
    inputs: Mapping[str, Array],
    example: Sequence[tuple[int, ...]] | None,
    work: Path,
    second: SecondSize | None = None,
) -> Initialization | None:
    """Compare what `init` draws with new models of the original, also at a second size.

    Args:
        original: the original. Its factory is called again, with other seeds.
        folder: folder of the port.
        name: name of the port.
        port: what the compiler gave.
        inputs: the inputs of the recording.
        example: their shapes, if these are images.
        work: folder for intermediate files.
        second: the second size; None: there is none.

    Returns:
        None for a model without parameters.
    """
    if not any(True for _ in original.module.parameters()):
        return None
    total = sum(parameter.numel() for parameter in original.module.parameters())
    builds = _BUILDS if total > _SMALL else _BUILDS_OF_SMALL
    try:
        fresh = (original.fresh(SEED + 1 + build) for build in range(builds))
        theirs, placed = _originals(fresh, name, example, work, port.api)
        if not theirs:
            why = "the user named a module that was made, no factory"
            return Initialization(0, 0, port.otherwise, {}, why)
        ours, apart = _ports(folder, port, len(theirs), inputs)
        uniform = _uniform(original, placed)
        there: Mapping[str, str] | None = None
        if second is not None:
            few = min(builds, _BUILDS_THERE)
            there = drawn_there(folder, port, few, second, name, example, work, uniform)
    except (ParityError, ConversionError) as error:
        return Initialization(0, 0, port.otherwise, {}, str(error))
    except Exception as error:  # whatever a source that does not run raises
        what = " ".join(f"{type(error).__name__}: {error}".split())[:300]
        return Initialization(0, 0, port.otherwise, {}, f"init: {what}")
    both = [path for path in ours if path in theirs[0]]
    differs = {
        path: said
        for path in both
        if (
            said := difference(
                [draw[path] for draw in theirs], ours[path], uniform=_of_any_layer(path) in uniform
            )
        )
    }
    # Arrays that no checkpoint has are not among the original's: their start is the port's own constant.
    lone = [path for path in ours if path not in theirs[0] and path not in apart]
    differs |= dict.fromkeys(lone, "the original has no such array")
    otherwise: dict[str, str] = {}
    for key, why in port.otherwise.items():
        measured = [differs[path] for path in placed.get(key, ()) if path in differs]
        if measured or key not in placed:
            otherwise[key] = "; ".join([why, *dict.fromkeys(measured)])
    named = {path for key in otherwise for path in placed.get(key, ())}
    unknown = {path: said for path, said in differs.items() if path not in named}
    if there:
        known = {_of_any_layer(path) for path in (*differs, *named)}
        there = {path: said for path, said in there.items() if _of_any_layer(path) not in known}
    return Initialization(len(both), len(theirs), otherwise, unknown, there=there)


def drawn_there(
    folder: Path,
    port: Any,
    builds: int,
    second: SecondSize,
    name: str,
    example: Sequence[tuple[int, ...]] | None,
    work: Path,
    uniform: Collection[str],
) -> dict[str, str]:
    """Arrays that start otherwise than the original's at the second size: path → how they differ.

    Args:
        folder: folder of the port.
        port: what the compiler gave.
        builds: number of new models of each side.
        second: the second size.
        name: name of the port.
        example: the shapes of the inputs, if these are images.
        work: folder for intermediate files.
        uniform: paths of arrays that are drawn uniformly, without numbers of layers.
    """
    place = work / "second"
    place.mkdir()
    shapes = None if example is None else [array.shape for array in second.inputs.values()]
    fresh = (second.build(SEED + 1 + build) for build in range(builds))
    theirs, _ = _originals(fresh, name, shapes, place, port.api)
    ours, _ = _ports(folder, port, builds, second.inputs, second)
    return {
        path: said
        for path in ours
        if path in theirs[0]
        and (
            said := difference(
                [draw[path] for draw in theirs], ours[path], uniform=_of_any_layer(path) in uniform
            )
        )
    }


def _originals(
    fresh: Iterable[Any],
    name: str,
    example: Sequence[tuple[int, ...]] | None,
    work: Path,
    api: Any,
) -> tuple[list[dict[str, Array]], Mapping[str, tuple[str, ...]]]:
    """The arrays of new models, as `migrate weights` places them, and the paths of each key."""
    from safetensors.numpy import load_file

    draws: list[dict[str, Array]] = []
    placed: Mapping[str, tuple[str, ...]] = {}
    for build, module in enumerate(fresh):
        if module is None:
            break
        place = work / f"new{build}"
        place.mkdir()
        placed = write_weights(module.float(), name, {}, example, place, place, api).paths
        draws.append(load_file(place / PARAMS))
        (place / PARAMS).unlink()
    return draws, placed


def _ports(
    folder: Path,
    port: Any,
    builds: int,
    inputs: Mapping[str, Array],
    second: SecondSize | None = None,
) -> tuple[dict[str, list[Array]], set[str]]:
    """Return the arrays of `init`, once for each seed, and the paths of buffers.

    `inputs` are those of the recording, as a port may take no other values of them.
    """
    import jax

    arrays_by_path: dict[str, list[Array]] = {}
    with package_of(folder) as package:
        config = getattr(package, port.config_class)(**(second.settings if second else {}))
        if port.api == "nnx":
            nnx_port = NnxPort(getattr(package, port.model_class), config)
            draw_nnx = jax.jit(nnx_port.drawn)
            for build in range(builds):
                for path, leaf in draw_nnx(jax.random.key(SEED + build)).items():
                    arrays_by_path.setdefault(path, []).append(np.asarray(leaf))
            return arrays_by_path, arrays_by_path.keys() - nnx_port.parameters()
        model = getattr(package, port.model_class)(config)
        arrays = {key: narrow(np.asarray(inputs[key])) for key in package.INPUTS if key in inputs}
        draw = jax.jit(lambda key: unstacked(package, model.init(key, **arrays)))
        for build in range(builds):
            leaves = jax.tree_util.tree_leaves_with_path(draw(jax.random.key(SEED + build)))
            for path, leaf in leaves:
                arrays_by_path.setdefault("/".join(str(step.key) for step in path), []).append(
                    np.asarray(leaf)
                )
    return arrays_by_path, {path for path in arrays_by_path if path.startswith("buffers/")}


def _uniform(original: OriginalModel, placed: Mapping[str, Sequence[str]]) -> set[str]:
    """Paths of the arrays that the original draws uniformly; numbers of layers are left out."""
    starts = original.starts or {}
    return {
        _of_any_layer(path)
        for key, paths in placed.items()
        if key in starts and isinstance(law := starts[key].law, Draw) and law.kind == "uniform"
        for path in paths
    }


def _of_any_layer(path: str) -> str:
    return re.sub(LAYER_NUMBER, r"\1#", path)


def difference(theirs: Sequence[Array], ours: Sequence[Array], *, uniform: bool = False) -> str:
    """Return how two samples of arrays differ, or "" if they do not.

    Args:
        theirs: one array of each new model of the original.
        ours: one array of each `init`.
        uniform: whether the original's are drawn from a uniform law, whose bounds few numbers show.
    """
    if theirs[0].shape != ours[0].shape:
        return f"shape {ours[0].shape}, the original has {theirs[0].shape}"
    left, right = (
        np.stack([np.asarray(array, np.float64).reshape(-1) for array in many])
        for many in (theirs, ours)
    )
    fixed = (left == left[0]).all(axis=0) if len(left) > 1 else np.zeros(left.shape[1], bool)
    if len(left) == 1 and bool((left == left.flat[0]).all()):
        fixed[:] = True
    alike = fixed & (right != right[0]).any(axis=0)
    if alike.sum() <= _coincidences(left.shape):
        fixed &= ~alike  # the same number was drawn twice
    scale = np.abs(left[:, fixed]).max(initial=0.0)
    off = np.abs(right[:, fixed] - left[0, fixed]).max(initial=0.0)
    if off > _ROUNDING * scale:
        return f"a constant is off by {off:.3g}"
    x, y = (_some(array[:, ~fixed].reshape(-1)) for array in (left, right))
    if not x.size:
        return ""
    return (_bounds(x, y) if uniform else "") or _samples(x, y)


def _bounds(x: Array, y: Array) -> str:
    """Return how the bounds of two uniform samples differ.

    Of n numbers, the probability that all are below a share r of the bound is r ** n.
    """
    ends = [float(np.abs(array - (array.max() + array.min()) / 2).max()) for array in (x, y)]
    ratio = min(ends) / max(*ends, 1e-30)
    if ends[0] == ends[1] or 2 * ratio ** (min(x.size, y.size) - 2) >= _RARELY:
        return ""
    return f"within {ends[1]:.3g}, the original's within {ends[0]:.3g}"


def _coincidences(shape: tuple[int, ...]) -> int:
    """Number of elements that may be equal by chance in all of some arrays.

    More has a probability below `_RARELY`.
    """
    arrays, elements = shape
    if arrays < 2:
        return 0
    expected = elements * _SAME ** (arrays - 1)
    if expected > 30:
        return int(expected + _ERRORS * expected**0.5)
    count, exactly, more = 0, math.exp(-expected), -math.expm1(-expected)
    while more > _RARELY:
        count += 1
        exactly *= expected / count
        more -= exactly
    return count


def _some(values: Array) -> Array:
    if values.size <= _ELEMENTS:
        return values
    return np.random.default_rng(SEED).choice(values, _ELEMENTS, replace=False)


def _samples(x: Array, y: Array) -> str:
    """Return how two samples of independent draws differ."""
    means, deviations = (x.mean(), y.mean()), (x.std(), y.std())
    error = np.hypot(deviations[0], deviations[1]) / np.sqrt(x.size)
    if abs(means[0] - means[1]) > _ERRORS * error:
        return f"mean {means[1]:.3g}, the original's {means[0]:.3g}"
    tails = [np.mean(((array - array.mean()) / max(array.std(), 1e-30)) ** 4) for array in (x, y)]
    wide = _ERRORS * np.sqrt(max(*tails, 1.0) / x.size)
    if abs(deviations[0] - deviations[1]) > wide * max(deviations):
        return f"standard deviation {deviations[1]:.3g}, the original's {deviations[0]:.3g}"
    wide = _ERRORS * np.sqrt(24 / x.size) * max(*tails, 3.0) / 3
    if abs(tails[0] - tails[1]) > wide:
        return f"tails (kurtosis) {tails[1]:.3g}, the original's {tails[0]:.3g}"
    if x.size >= 200:
        for side, ends in (("smallest", (x.min(), y.min())), ("largest", (x.max(), y.max()))):
            if abs(ends[0] - ends[1]) > 2.5 * max(deviations):
                return f"{side} {ends[1]:.3g}, the original's {ends[0]:.3g}"
    distance = _largest_gap(x, y)
    # The probability that samples of one law are so far apart is about 2 exp(-2 d² nm / (n + m)).
    if 2 * np.exp(-2 * distance**2 * x.size * y.size / (x.size + y.size)) < _RARELY:
        return f"Kolmogorov–Smirnov distance {distance:.2g} of the distributions"
    return ""


def _largest_gap(x: Array, y: Array) -> float:
    """The largest distance of the two samples' distribution functions."""
    both = np.concatenate([x, y])
    shares = [np.searchsorted(np.sort(array), both, side="right") / array.size for array in (x, y)]
    return float(np.abs(shares[0] - shares[1]).max())
