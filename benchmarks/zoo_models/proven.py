"""One model of a zoo, ported and proven in values, gradients and at a second size: a row of port_zoo.csv."""

from __future__ import annotations

import contextlib
import re
import tempfile
import time
import warnings
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.zoo_models.measured import (
    _place,
    _ported,
    _run,
    _said,
    _StoppedError,
    builder,
    code_lines,
)

# Relative L2 to float64 that counts as equal, and by how much a port may be worse than torch's own float32.
LIMIT, ROUNDING = 1e-5, 2.0
# In float64, port and original agree to this relative L2 if they compute the same: 2^-53 times the 1e7
# terms of the zoo's longest sums. Attention of JAX computes its softmax in float32 in any case.
SAME_WIDE, SAME_WIDE_ATTENTION = 1e-9, 1e-6
# A gradient below this part of the norm of all gradients is rounding: it is measured against that norm.
VANISHING = 1e-6


@dataclass(frozen=True)
class Row:
    """What became of a model.

    Attributes:
        type, kind: the model and its class.
        status: "proven"; else what is missing: see `benchmarks/port_zoo.py`.
        values, gradients: relative L2 of the worst output, of the worst gradient, to float64.
        followed: settings that the port follows, all of them changed at once.
        refused: settings that it refuses to change.
        lines: of modeling.py.
        seconds: CPU, of all; sizes: of the proof at the second size.
        reason: why it is not proven.
    """

    type: str
    kind: str = ""
    status: str = ""
    values: str = ""
    gradients: str = ""
    followed: str = ""
    refused: str = ""
    lines: str = ""
    seconds: str = ""
    sizes: str = ""
    reason: str = ""

    def as_dict(self) -> dict[str, str]:
        """Column → text."""
        return asdict(self)


@dataclass
class _Found:
    columns: dict[str, str] = field(default_factory=dict)


def prove(zoo: str, name: str, api: str = "linen") -> Row:
    """The row of a model; what it raises, too, is a row."""
    import torch

    torch.set_num_threads(1)  # others wait for each other, and are counted
    began, found = time.process_time(), _Found()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        try:
            _prove(zoo, name, api, found)
            status, reason = "proven", ""
        except _StoppedError as stop:
            status, reason = stop.args[0], stop.args[1]
        except Exception as error:
            status, reason = "crash", f"{_said(error)} ({_place(error)})"
    found.columns |= {"status": status, "reason": reason}
    return replace(Row(name), **found.columns, seconds=f"{time.process_time() - began:.1f}")


def _prove(zoo: str, name: str, api: str, found: _Found) -> None:
    import torch

    from migrate.port.sizes.construction import constructions
    from migrate.port.sizes.prove import sizes_of
    from migrate.progress import no_progress

    with constructions() as seen:
        model, inputs = builder(zoo)(name)
    _require_deterministic(model, inputs)
    made = _ported(model, inputs, {}, api)
    found.columns["lines"] = str(code_lines(made.modeling))
    with tempfile.TemporaryDirectory() as scratch:
        place = Path(scratch) / "net"
        write_port(made, model, inputs, place, Path(scratch))
        arrays = {key: one.numpy() for key, one in inputs.items()}
        began = time.process_time()
        with torch.random.fork_rng(devices=[]):
            sizes = sizes_of(made, place, model, seen.of(model), arrays, name, no_progress)
        found.columns["sizes"] = f"{time.process_time() - began:.1f}"
        found.columns["followed"] = " ".join(one for one, _, _ in sizes.changed)
        found.columns["refused"] = " ".join(one.name for one in sizes.held)
        limited = made.limited(sizes.limits)
        write_sources(limited, inputs, place)
        _compare(limited, model, arrays, place, found)
        _require_refusals(limited, sizes, place)
        if sizes.error:
            raise _StoppedError("no second size", sizes.error)


def _require_deterministic(model: Any, inputs: Mapping[str, Any]) -> None:
    import torch

    from migrate.port.sizes.instance import flat

    with torch.no_grad():
        both = [[one.clone() for one in flat(_plain(_run(model, inputs)))] for _ in range(2)]
    for one, other in zip(*both, strict=True):
        if not torch.equal(torch.nan_to_num(one), torch.nan_to_num(other)):
            raise _StoppedError("random", "two passes in torch differ")


def _plain(value: Any) -> Any:
    from converters.graph.recording.trace import plain

    return plain(value)


def write_sources(made: Any, inputs: Mapping[str, Any], place: Path) -> None:
    """Write the port's package into its folder."""
    from migrate.port.texts import package_text
    from migrate.port.unused import unused_paths

    shapes = {
        key: (tuple(one.shape), one.numpy().dtype.name.replace("64", "32"))
        for key, one in inputs.items()
    }
    names = made.model_class, made.config_class, "a model", shapes
    (place / "modeling.py").write_text(made.modeling)
    (place / "config.py").write_text(made.config)
    (place / "__init__.py").write_text(package_text(*names, api=made.api))
    if (place / "params.safetensors").exists() and (unused := unused_paths(place)):
        (place / "__init__.py").write_text(package_text(*names, unused, api=made.api))


def write_port(
    made: Any, model: Any, inputs: Mapping[str, Any], place: Path, scratch: Path
) -> None:
    """Write the port's package and its weights into a new folder."""
    from safetensors.numpy import save_file

    from converters.errors import ConversionError
    from converters.graph.writing.model import Limits
    from migrate.port.weights import INITIAL, write_weights

    place.mkdir()
    images = all(one.is_floating_point() for one in inputs.values())
    example = tuple(tuple(one.shape) for one in inputs.values()) if images else None
    try:
        write_weights(model, "zoo", made.constants, example, place, scratch, made.api)
    except ConversionError as error:
        raise _StoppedError("weights refused", _said(error)) from error
    if made.initial:
        save_file(dict(made.initial), place / INITIAL)
    texts = frozenset(one.text for one in made.bounds)
    limits = Limits(lifted=texts, lengths=frozenset(made.settings))
    write_sources(made.limited(limits), inputs, place)


def _compare(made: Any, model: Any, arrays: Mapping[str, Any], place: Path, found: _Found) -> None:
    """Compare outputs, then gradients of parameters and floating inputs, with the weights of the model.

    Raises:
        _StoppedError: they differ.
    """
    from migrate.port.package import package_of
    from migrate.port.sizes.flax import PortRefusesError, port_at

    cotangents: list[Any] = []
    theirs = _torch_gradients(model, arrays, cotangents, wide=False)
    try:
        truth = _torch_gradients(model, arrays, cotangents, wide=True)
    except Exception:  # a module that takes no float64
        truth = theirs
    try:
        with package_of(place) as package:
            classes = made.model_class, made.config_class
            there = port_at(package, place, classes, {}, model, arrays)
            wanted, own = (_as_flax(one, model, package, place, there) for one in (truth, theirs))
            outputs, gradients = _flax_gradients(there, cotangents, quick=True)
            if _worst_gradient(wanted, own, gradients)[1]:
                # XLA computes some values twice there, with other rounding: a maximum that equals none.
                outputs, gradients = _flax_gradients(there, cotangents, quick=False)
    except PortRefusesError as error:
        raise _StoppedError("crash", f"in Flax: {error}") from error
    worst, where = _worst(truth.outputs, theirs.outputs, outputs)
    found.columns["values"] = f"{worst:.1e}"
    if where:
        _stop(made, "values", where)
    worst, where = _worst_gradient(wanted, own, gradients)
    found.columns["gradients"] = f"{worst:.1e}"
    if where and truth is not theirs:
        wide = _in_float64(made, model, arrays, cotangents, truth, place)
        found.columns["gradients"] += f" ({wide:.1e} in float64)"
        attends = "dot_product_attention" in made.modeling
        where = "" if wide <= (SAME_WIDE_ATTENTION if attends else SAME_WIDE) else where
    if where:
        _stop(made, "gradients", where)


def _in_float64(
    made: Any,
    model: Any,
    arrays: Mapping[str, Any],
    cotangents: list[Any],
    truth: _Pass,
    place: Path,
) -> float:
    """The worst relative L2 of the port's gradients from the original's, both in float64: whether float32's
    difference is the rounding of XLA's kernels, or the port.
    """
    from migrate.port.package import package_of
    from migrate.port.sizes.flax import port_at

    with package_of(place) as package:
        classes = made.model_class, made.config_class
        there = port_at(package, place, classes, {}, model, arrays)
        wanted = _as_flax(truth, model, package, place, there)
        _, gradients = _flax_gradients(there, cotangents, quick=False, wide=True)
    return _worst_gradient(wanted, {}, gradients)[0]


def _stop(made: Any, status: str, where: str) -> None:
    from converters.graph.recording.ties import CHOICE

    tied = next((note for note in made.notes if note.startswith(CHOICE)), None)
    own = "".join(f"; {one}" for one in made.own_gradients) if status == "gradients" else ""
    if tied is not None:
        raise _StoppedError("ties", f"{where}; {tied}")
    raise _StoppedError(status, f"{where}{own}"[:300])


@dataclass(frozen=True)
class _Pass:
    """Outputs, and gradients by the name of the parameter and of the input."""

    outputs: list[Any]
    weights: dict[str, Any]
    inputs: dict[str, Any]


def _torch_gradients(
    model: Any, arrays: Mapping[str, Any], cotangents: list[Any], *, wide: bool
) -> _Pass:
    """One pass of the original and its gradients; draws the cotangents where there are none yet."""
    import torch

    from converters.copied import copied
    from migrate.parity.ground.draws import Draws
    from migrate.parity.sides.torch.draws import ComparisonDraws
    from migrate.parity.sides.torch.float64 import in_float64
    from migrate.parity.sides.torch.training import leaves_of, with_changes_in_place
    from migrate.port.sizes.instance import SEED, flat

    dtype = torch.float64 if wide else torch.float32
    given = {name: torch.tensor(array) for name, array in arrays.items()}
    given = {name: x.to(dtype) if x.is_floating_point() else x for name, x in given.items()}

    def attempt(with_copies: bool) -> _Pass:
        module = copied(model).to(dtype) if wide else copied(model)
        module.requires_grad_(True)
        new = {name: x.clone() for name, x in given.items()}
        leaves, arguments = leaves_of(new, with_copies)
        torch.manual_seed(0)
        with ComparisonDraws(Draws(SEED)):  # what it draws is what the port draws
            outputs = list(flat(_plain(module(**arguments))))
        if not cotangents:
            for number, one in enumerate(outputs):
                random = np.random.default_rng([7, number])
                cotangents.append(random.standard_normal(tuple(one.shape)).astype(np.float32))
        pairs = [
            (one, torch.tensor(seed).to(one.dtype))
            for one, seed in zip(outputs, cotangents, strict=True)
            if one.requires_grad and one.is_floating_point()
        ]
        if pairs:
            torch.autograd.backward([one for one, _ in pairs], [seed for _, seed in pairs])
        return _Pass(
            [one.detach().resolve_conj().numpy() for one in outputs],
            {
                name: one.grad.numpy()
                for name, one in module.named_parameters(remove_duplicate=False)
                if one.grad is not None
            },
            {name: one.grad.numpy() for name, one in leaves.items() if one.grad is not None},
        )

    # What the model says in float32 by name is float64, too, in the reference.
    with in_float64() if wide else contextlib.nullcontext():
        return with_changes_in_place(attempt)


def _flax_gradients(
    there: Any, cotangents: list[Any], *, quick: bool, wide: bool = False
) -> tuple[list[Any], dict[str, Any]]:
    """The outputs of the port, and its gradients by path and by "inputs/NAME".

    Args:
        there: the port.
        cotangents: of its outputs.
        quick: whether XLA compiles without optimizing.
        wide: whether weights and inputs are float64.
    """
    import jax
    import jax.numpy as jnp

    from migrate.parity.ground.draws import Draws
    from migrate.parity.sides.jax.draws import drawn
    from migrate.port.sizes.flax import refused
    from migrate.port.sizes.instance import SEED, flat, quiet

    def floating(items: Mapping[str, Any]) -> dict[str, Any]:
        return {name: one for name, one in items.items() if jnp.issubdtype(one.dtype, np.floating)}

    def widened(items: Mapping[str, Any]) -> dict[str, Any]:
        return {
            name: one.astype(np.float64) if wide and one.dtype == np.float32 else one
            for name, one in items.items()
        }

    weights, inputs = widened(there.weights()), widened(there.inputs)
    parameters = there.parameters()
    trained = {path: one for path, one in floating(weights).items() if path in parameters}
    wanted = trained | {f"inputs/{name}": one for name, one in floating(inputs).items()}

    def total(changed: dict[str, Any], weights: Any, inputs: Any, seeds: Any) -> Any:
        arrays = {path: changed.get(path, one) for path, one in weights.items()}
        given = {name: changed.get(f"inputs/{name}", one) for name, one in inputs.items()}
        outputs = list(flat(there.apply(there.variables(arrays), **given)))
        parts = [
            jnp.sum(one * seed.astype(one.dtype))
            for one, seed in zip(outputs, seeds, strict=True)
            if jnp.issubdtype(one.dtype, np.floating) and one.shape == seed.shape
        ]
        return sum(parts, jnp.float32(0)), outputs

    highest = jax.default_matmul_precision("highest")
    with refused(there.folder), quiet(), highest, jax.enable_x64(wide):
        there.require_paths()
        function = jax.jit(jax.grad(total, has_aux=True))
        given = wanted, weights, inputs, cotangents
        # Code of no optimization is compiled soonest, but a convolution's gradient is a loop in it.
        loops = re.search(r"nnx?\.Conv", (there.folder / "modeling.py").read_text())
        options = {"xla_backend_optimization_level": 0} if quick and not loops else {}
        with drawn(Draws(SEED)):  # as the original is
            program = function.lower(*given)
        gradients, outputs = program.compile(options)(*given)
        return [np.asarray(one) for one in outputs], {
            path: np.asarray(one) for path, one in gradients.items()
        }


def _as_flax(one: _Pass, model: Any, package: Any, place: Path, there: Any) -> dict[str, Any]:
    """Gradients of torch by the paths of Flax: they lie as the weights do."""
    import torch

    from converters.checkpoint import flatten
    from converters.conversion import convert_to_pytree
    from migrate.port.sizes.flax import computes_weights
    from migrate.port.weights import MAPPING

    wanted = {f"inputs/{name}": array for name, array in one.inputs.items()}
    if not there.arrays or computes_weights(place):
        return wanted
    state = {
        name: torch.zeros_like(tensor, dtype=torch.float64 if tensor.is_floating_point() else None)
        for name, tensor in model.state_dict().items()
        if isinstance(tensor, torch.Tensor)
    }
    shared: dict[int, torch.Tensor] = {}
    for name, parameter in model.named_parameters(remove_duplicate=False):
        if name in one.weights and name in state:
            made = torch.from_numpy(one.weights[name].astype(np.float64))
            state[name] = shared.setdefault(id(parameter), made)
    made = flatten(convert_to_pytree(state, mapping=place / MAPPING))
    trained = there.parameters()
    return wanted | {path: array for path, array in made.items() if path in trained}


def _worst(truth: list[Any], theirs: list[Any], mine: list[Any]) -> tuple[float, str]:
    """The worst relative L2, and what is wrong: "" where nothing is."""
    from benchmarks.zoo_models.measured import _distance

    if len(truth) != len(mine):
        return float("inf"), f"{len(mine)} outputs, torch has {len(truth)}"
    worst, where = 0.0, ""
    for number, (one, own, other) in enumerate(zip(truth, theirs, mine, strict=True)):
        if one.shape != other.shape:
            return float("inf"), f"output {number} is {other.shape}, torch's {one.shape}"
        apart, rounding = _distance(one, other), _distance(one, own)
        worst = max(worst, apart)
        if not apart <= max(LIMIT, ROUNDING * rounding):
            where = where or f"output {number}: {apart:.1e}, torch's own float32 {rounding:.1e}"
    return worst, where


def _worst_gradient(
    truth: Mapping[str, Any], theirs: Mapping[str, Any], mine: Mapping[str, Any]
) -> tuple[float, str]:
    def norm(array: Any) -> float:
        return float(np.linalg.norm(np.asarray(array, np.float64).ravel()))

    scale = float(np.sqrt(sum(norm(one) ** 2 for one in truth.values())))
    worst, where = 0.0, ""
    for path, one in truth.items():
        if path not in mine:
            if norm(one) > VANISHING * scale:
                where = where or f"{path}: no gradient in the port"
            continue
        if one.shape != mine[path].shape:
            return float("inf"), f"{path} is {mine[path].shape}, torch's {one.shape}"
        size = norm(one)
        size = scale if size < VANISHING * scale else size
        if not size:
            apart, rounding = norm(mine[path]), 0.0
        else:
            apart = norm(mine[path] - one) / size
            rounding = norm(theirs[path] - one) / size if path in theirs else 0.0
        worst = max(worst, apart)
        if not apart <= max(LIMIT, ROUNDING * rounding):
            where = where or f"{path}: {apart:.1e}, torch's own float32 {rounding:.1e}"
    return worst, where


def _require_refusals(made: Any, sizes: Any, place: Path) -> None:
    """Another value of a held setting raises ValueError."""
    from migrate.port.package import package_of

    with package_of(place) as package:
        config = getattr(package, made.config_class)
        for held in sizes.held:
            other = 2 * held.value + 1 if isinstance(held.value, int | float) else ()
            try:
                config(**{held.name: other})
            except ValueError:
                continue
            except TypeError:
                raise _StoppedError("sizes", f"{held.name} is no field") from None
            raise _StoppedError("sizes", f"{held.name}={other} is not refused")
