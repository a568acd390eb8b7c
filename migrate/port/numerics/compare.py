"""Compare a port with its original in bfloat16, in two settings.

- bfloat16: weights and inputs in bfloat16, `param_dtype=jnp.bfloat16`, `dtype` left to them.
- float32 weights, bfloat16: weights stay float32, `dtype=jnp.bfloat16`. The counterpart is the original with
  its weights cast where they are used, as FSDP's mixed precision (`param_dtype=torch.bfloat16`) does: the
  same numbers as those of the first setting.

Both sides are measured against the original in float64 on the same rounded weights and inputs.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from migrate.port.child import answer_of
from migrate.port.dtypes import narrow_name
from migrate.port.numerics.results import (
    LIMIT,
    ROUNDING,
    SETTINGS,
    Folder,
    Numerics,
    NumericsRun,
    Products,
    allowed,
)

if TYPE_CHECKING:
    import torch


def compared(
    model: torch.nn.Module,
    inputs: Sequence[Mapping[str, torch.Tensor]],
    port: Any,
    folder: Folder,
    work: Path,
    timeout: float,
    described: str = "",
    few: int = 2,
) -> tuple[Numerics, ...]:
    """Compare in each setting.

    Args:
        model: the original in float32, in evaluation mode.
        inputs: inputs of one shape.
        port: result of the compiler.
        folder: folder of the port.
        work: folder for intermediate files.
        timeout: seconds for the port's process.
        described: the shapes, for reports.
        few: number of inputs to run. All are run if the outputs have few numbers, or if the port's error
            is too large.
    """
    if port.same_dtype:
        return tuple(Numerics(setting, described, skipped=port.same_dtype) for setting in SETTINGS)
    numerics_results: tuple[Numerics, ...] = ()
    # A choice among nearly equal scores differs by chance: more inputs tell it from a fault.
    for count in sorted({min(few, len(inputs)), len(inputs)}):
        place = work / f"{count}"
        place.mkdir(exist_ok=True)
        numerics_results, ran = _compared(
            model, inputs, port, folder, place, timeout, described, count
        )
        if ran == len(inputs) or all(
            numerics_result.is_as_near or numerics_result.skipped or numerics_result.error
            for numerics_result in numerics_results
        ):
            break
    return numerics_results


def located(
    numerics_results: tuple[Numerics, ...],
    model: torch.nn.Module,
    example: Mapping[str, torch.Tensor],
    port: Any,
    folder: Folder,
    work: Path,
    timeout: float,
) -> tuple[Numerics, ...]:
    """The results, each too large error with the first module that has one.

    Each module's output in bfloat16 is compared with its output in float64, as those of the model are.
    """
    from safetensors.numpy import load_file

    from migrate.port.numerics.original import outputs_of_modules

    far = [not (entry.is_as_near or entry.error or entry.skipped) for entry in numerics_results]
    if not any(far):
        return numerics_results
    work.mkdir(exist_ok=True)
    if "error" in _answer([example], port, folder, work, timeout, modules=True):
        return numerics_results
    exact = outputs_of_modules(model, example, exact=True)
    narrow = outputs_of_modules(model, example, exact=False)
    return tuple(
        replace(entry, first=_first(exact, narrow, load_file(work / f"modules{at}.safetensors")))
        if far[at]
        else entry
        for at, entry in enumerate(numerics_results)
    )


def _first(exact: Mapping[str, Any], narrow: Mapping[str, Any], port: Mapping[str, Any]) -> str:
    """The first module to end whose error is too large, in words."""
    port = {path.replace(".layers.", "."): array for path, array in port.items()} | dict(port)
    last = ""
    for path, truth in exact.items():
        mine, theirs = _in_order(port.get(path), truth.shape), narrow.get(path)
        if not path:
            break
        if mine is None or theirs is None or theirs.shape != truth.shape:
            continue
        pair = (_distance([truth], [mine]), _distance([truth], [theirs]))
        if pair[0] > max(allowed(truth.size) * pair[1], ROUNDING):
            return f"{path} ({pair[0]:.1e}, the original {pair[1]:.1e})"
        last = path
    return f"what follows {last}" if last else ""


def _in_order(array: Any, shape: tuple[int, ...]) -> Any:
    """A module's output in torch's order: the port's may have its channels last; None if it fits neither."""
    if array is None or array.shape == shape:
        return array
    moved = np.moveaxis(array, -1, 1) if array.ndim > 2 else array
    return moved if moved.shape == shape else None


def _compared(
    model: torch.nn.Module,
    inputs: Sequence[Mapping[str, torch.Tensor]],
    port: Any,
    folder: Folder,
    work: Path,
    timeout: float,
    described: str,
    few: int,
) -> tuple[tuple[Numerics, ...], int]:
    """The comparison in each setting, and how many of the inputs were run for it."""
    from migrate.port.numerics.original import in_bfloat16, reference

    try:
        runs = [in_bfloat16(model, input_) for input_ in inputs[:few]]
        numbers = [output.size for output in runs[0].outputs.values() if output.dtype.kind in "fc"]
        if allowed(len(runs) * min(numbers, default=0)) > LIMIT:
            runs += [in_bfloat16(model, input_) for input_ in inputs[few:]]
    except (RuntimeError, TypeError, ValueError, NotImplementedError) as error:
        line = " ".join(str(error).split())[:200]
        why = f"the original does not run in bfloat16 ({type(error).__name__}: {line})"
        return tuple(Numerics(setting, described, skipped=why) for setting in SETTINGS), 0
    inputs = inputs[: len(runs)]
    exact = [reference(model, example) for example in inputs]
    answer = _answer(inputs, port, folder, work, timeout)
    if "error" in answer:
        return tuple(Numerics(setting, described, error=answer["error"]) for setting in SETTINGS), 0
    port_outputs = [_outputs(work, at, len(inputs)) for at in range(len(SETTINGS))]
    return tuple(
        _verdict(setting, described, runs, exact, answer[setting], port_outputs[at])
        for at, setting in enumerate(SETTINGS)
    ), len(inputs)


def _answer(
    inputs: Sequence[Mapping[str, torch.Tensor]],
    port: Any,
    folder: Folder,
    work: Path,
    timeout: float,
    *,
    modules: bool = False,
) -> dict[str, Any]:
    from safetensors.torch import save_file

    files = []
    for number, example in enumerate(inputs):
        files.append(str(work / f"input{number}.safetensors"))
        save_file({name: tensor.contiguous() for name, tensor in example.items()}, files[-1])
    request = {
        "folder": str(folder.path),
        "model": port.model_class,
        "config": port.config_class,
        "params": str(folder.params) if folder.params else "",
        "unsaved": list(folder.unsaved),
        "streams": list(port.streams),
        "inputs": files,
        "outputs": str(work),
        "modules": modules,
    }
    answer: dict[str, Any] = answer_of("migrate.port.numerics.port_side", request, work, timeout)
    return answer


def _outputs(work: Path, at: int, count: int) -> list[dict[str, Any]]:
    from safetensors.numpy import load_file

    return [load_file(work / f"{at}_{number}.safetensors") for number in range(count)]


def _verdict(
    setting: str,
    described: str,
    runs: Sequence[NumericsRun],
    exact: Sequence[Mapping[str, Any]],
    answer: Mapping[str, Any],
    port_outputs: Sequence[Mapping[str, Any]],
) -> Numerics:
    paths = list(exact[0])
    names = {path: path or "output" for path in paths}
    if set(names.values()) != set(port_outputs[0]):
        if len(paths) != len(port_outputs[0]):
            return Numerics(setting, described, error="its outputs are not those of the original")
        # The original returns an object: the port returns the same tensors in the same order.
        names = dict(zip(paths, answer["dtypes"], strict=True))
    differences: list[str] = []
    worst, limit, output = (0.0, 0.0), LIMIT, ""
    for path in paths:
        kind = answer["dtypes"].get("" if names[path] == "output" else names[path], "")
        kind = kind or answer["dtypes"].get(names[path], "")
        wanted = runs[0].dtypes[path]
        if narrow_name(kind) != narrow_name(wanted):
            differences.append(f"output {path or 0} is {kind}, the original's {wanted}")
        mine = [outputs[names[path]] for outputs in port_outputs]
        theirs = [run.outputs[path] for run in runs]
        truth = [outputs[path] for outputs in exact]
        if truth[0].dtype.kind not in "fc":
            continue
        if not _same_infinities(theirs, mine):
            differences.append(f"output {path or 0} is not finite where the original's is, or is")
            continue
        pair = (_distance(truth, mine), _distance(truth, theirs))
        times = allowed(sum(reference.size for reference in truth))
        if _ratio(pair) / times >= _ratio(worst) / limit:
            worst, limit, output = pair, times, path if len(paths) > 1 else ""
    differences += _products(runs[0].products, answer["products"])
    return Numerics(
        setting, described, worst[1], worst[0], tuple(differences), limit=limit, output=output
    )


def _ratio(pair: tuple[float, float]) -> float:
    port, original = pair
    return port / original if original else (np.inf if port else 0.0)


def _same_infinities(theirs: Sequence[Any], mine: Sequence[Any]) -> bool:
    return all(
        a.shape == b.shape and np.array_equal(np.isfinite(a), np.isfinite(b))
        for a, b in zip(theirs, mine, strict=True)
    )


def _distance(truth: Sequence[Any], mine: Sequence[Any]) -> float:
    """‖mine - truth‖₂ / ‖truth‖₂ over all inputs, where both are finite."""
    error = size = 0.0
    for a, b in zip(truth, mine, strict=True):
        finite = np.isfinite(a) & np.isfinite(b)
        error += float(np.sum(np.abs(b[finite] - a[finite]) ** 2))
        size += float(np.sum(np.abs(a[finite]) ** 2))
    return float(np.sqrt(error / size)) if size else float(np.sqrt(error))


def _products(original: Products, port: Mapping[str, Iterable[str]]) -> list[str]:
    """Return where the port multiplies in another dtype than the original, module by module.

    Products of a module without a class of its own count for the module around it.
    """
    common = {path for path in port if path in original}
    theirs, mine = _gathered(original, common), _gathered(port, common)
    return [
        f"{path or 'the model'} multiplies {_joined(mine[path])}, the original {_joined(theirs[path])}"
        for path in sorted(theirs.keys() & mine.keys())
        if theirs[path] != mine[path]
    ]


def _gathered(products: Mapping[str, Iterable[str]], common: set[str]) -> dict[str, set[str]]:
    names_by_kind: dict[str, set[str]] = {}
    for path, kinds in products.items():
        at = path
        while at and at not in common:
            at = at.rpartition(".")[0]
        names_by_kind.setdefault(at, set()).update(kinds)
    return names_by_kind


def _joined(kinds: Iterable[str]) -> str:
    return " and ".join(sorted(kinds))
