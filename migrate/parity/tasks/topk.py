"""Approximate top-k: its uses, what a TPU makes of them, and the fraction of the k that it finds.

`jax.lax.approx_max_k` is exact on a CPU and a GPU for any requested recall; only a TPU approximates. So a
test elsewhere passes and proves nothing. There are four checks, of which the first three need no TPU:

- the source: the hazard XLA826 of `migrate check`;
- the traced program: `in_function`;
- the program that the TPU's compiler produces: `bins_of`, with `kept` to try its effect on real scores;
- on a TPU, the measured recall: `measure`.
"""

from __future__ import annotations

import json
import math
import re
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from migrate.compiler.compile import TOPOLOGY, compile_for_tpu
from migrate.compiler.program import CompilerProgram
from migrate.parity.ground.results import ParityCheck, Section

SOURCE = "the recall that the program asks for"
NOT_HERE = "cannot be seen on this device"
_ROWS = 64  # rows of the operand in a measurement: 64·k values, a standard error of at most 1 %
_SIGMAS = 3.0

_PARTIAL_REDUCE = re.compile(
    r'custom_call_target="PartialReduce".*?op_name="([^"]*)".*?backend_config=(\{.*\})'
)


@dataclass(frozen=True)
class Approximate:
    """Approximate top-k of a program.

    Attributes:
        k: number of values to find.
        size: number of candidates.
        largest: whether it is `approx_max_k`, not `approx_min_k`.
        recall_target: fraction of the k to find, on average.
        source: `file.py:line`; "" if the program does not record it.
    """

    k: int
    size: int
    largest: bool
    recall_target: float
    source: str

    def __str__(self) -> str:
        name = "approx_max_k" if self.largest else "approx_min_k"
        place = f", {self.source}" if self.source else ""
        return f"{name} {self.k} of {self.size}, recall {self.recall_target:g}{place}"


@dataclass(frozen=True)
class Recall:
    """Measured recall.

    Attributes:
        value: fraction of the k that was found.
        error: standard error of the fraction.
        device: device of the measurement.
        approximate: whether this device approximates at all.
    """

    value: float
    error: float
    device: str
    approximate: bool


@dataclass(frozen=True)
class Bins:
    """Partial reduction in a program that was compiled for a TPU.

    Attributes:
        operation: operation in JAX's words ("jit(search)/approx_top_k").
        k: number of values to find.
        reduction: number of elements in a bin, of which one survives.
        recall_target: recall from which the compiler chose the bins.
    """

    operation: str
    k: int
    reduction: int
    recall_target: float


def in_function(function: Callable[..., Any], *args: Any) -> tuple[Approximate, ...]:
    """Find the uses in a JAX function, including those of libraries; arguments may be shapes only."""
    import jax

    return tuple(_in_jaxpr(jax.make_jaxpr(function)(*args).jaxpr))


def _in_jaxpr(jaxpr: Any) -> Iterable[Approximate]:
    from jax.extend import source_info_util

    for equation in jaxpr.eqns:
        if equation.primitive.name == "approx_top_k":
            parameters = equation.params
            shape = equation.invars[0].aval.shape
            yield Approximate(
                parameters["k"],
                max(
                    shape[parameters["reduction_dimension"]],
                    parameters["reduction_input_size_override"],
                ),
                parameters["is_max_k"],
                parameters["recall_target"],
                _place(source_info_util.summarize(equation.source_info)),
            )
        for inner in _inside(equation.params):
            yield from _in_jaxpr(inner)


def _inside(parameters: Mapping[str, Any]) -> Iterable[Any]:
    """Jaxprs among the parameters of an equation; JAX's own function is missing in some versions."""
    from jax.extend import core

    for value in parameters.values():
        for jaxpr in value if isinstance(value, list | tuple) else (value,):
            if isinstance(jaxpr, core.Jaxpr):
                yield jaxpr
            elif isinstance(jaxpr, core.ClosedJaxpr):
                yield jaxpr.jaxpr


def _place(summary: str) -> str:
    """Turn JAX's `file.py:line:column (function)` into `file.py:line`."""
    match = re.match(r"(.*:\d+):\d+ \(", summary)
    return match[1] if match else ""


def measure(use: Approximate, seed: int = 0) -> Recall:
    """Run a use on this process's device, on random scores, against the exact `top_k`."""
    import jax
    import jax.numpy as jnp
    from jax import lax

    scores = np.random.default_rng(seed).standard_normal((_ROWS, use.size)).astype(np.float32)
    approximate = lax.approx_max_k if use.largest else lax.approx_min_k

    @jax.jit
    def both(scores: Any) -> Any:
        _, indices = approximate(scores, use.k, recall_target=use.recall_target)
        _, wanted = lax.top_k(scores if use.largest else -scores, use.k)
        return indices, wanted

    approximate_indices, wanted = map(np.asarray, both(jnp.asarray(scores)))
    value, error = _recall(approximate_indices, wanted)
    device = jax.devices()[0]
    return Recall(value, error, device.device_kind, device.platform == "tpu")


def _recall(
    approximate_indices: np.ndarray[Any, Any], wanted: np.ndarray[Any, Any]
) -> tuple[float, float]:
    rows = [
        np.isin(exact_row, other).mean()
        for exact_row, other in zip(wanted, approximate_indices, strict=True)
    ]
    return float(np.mean(rows)), float(np.std(rows) / math.sqrt(len(rows)))


def bins_of(
    program: CompilerProgram, topology: str = TOPOLOGY, timeout: float = 300.0
) -> tuple[Bins, ...] | str:
    """Partial reductions that the TPU's compiler makes of a program, or a line that says why there is no
    answer.
    """
    compiled = compile_for_tpu(program, [{}], topology=topology, timeout=timeout)
    if compiled.undetermined:
        return compiled.undetermined
    bins = []
    for operation, config in _PARTIAL_REDUCE.findall(compiled.texts[0]):
        value = json.loads(config)
        bins.append(
            Bins(operation, value["top_k"], 2 ** value["log2_reduction"], value["recall_target"])
        )
    return tuple(bins)


def kept(scores: np.ndarray[Any, Any], k: int, reduction: int) -> np.ndarray[Any, Any]:
    """Indices of the k largest values along the last axis that survive a reduction in bins.

    The compiler decides which elements share a bin; here elements at equal distances do. For scores in
    random order the result is equally likely. The largest value always survives.
    """
    size = scores.shape[-1]
    bins = math.ceil(size / reduction)
    padded = np.full((*scores.shape[:-1], bins * reduction), -np.inf, scores.dtype)
    padded[..., :size] = scores
    shaped = padded.reshape(*scores.shape[:-1], reduction, bins)
    places = shaped.argmax(-2) * bins + np.arange(bins)
    order = np.argsort(-np.take_along_axis(padded, places, -1), -1, kind="stable")
    return np.take_along_axis(places, order[..., :k], -1)


def topk_section(uses: Iterable[Approximate], seed: int = 0) -> Section:
    """Section for the report: each use, measured on this process's device.

    If the device does not approximate, a use cannot be judged, and its row does not pass.
    """
    checks, notes = [], []
    for use in uses:
        recall = measure(use, seed)
        if recall.approximate:
            passed = recall.value + _SIGMAS * recall.error >= use.recall_target
            note = f"on {recall.device}, ± {recall.error:.1g}"
        else:
            passed, note = False, f"{NOT_HERE}: {recall.device} sorts exactly"
        value = recall.value if recall.approximate else None
        checks.append(
            ParityCheck(
                str(use), None, value, use.recall_target, passed, SOURCE, at_least=True, note=note
            )
        )
    if not checks:
        notes.append("the program has no approximate top-k")
    elif not all(check.passed for check in checks):
        notes.append("jax.lax.top_k is exact everywhere")
    return Section("approximate top-k", tuple(checks), notes=tuple(notes))
