"""Limits of the judge, and the comparisons that raise MismatchError outside of them.

In float32 the limits are constants: 1e-4 for outputs and gradients, 1e-5 for a loss. A script with autocast
is recorded twice, with and without; three times the distance of the two recordings is added.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

Named = Mapping[str, Mapping[str, Any]]

OUTPUT = 1e-4
LOSS = 1e-5
GRADIENT = 1e-4
GRADIENT_FLOOR = 1e-6  # of the norm of all gradients: below is rounding, such as a bias of keys has
EXPERIENCE = 1e-3
TRAINED_LOSS = 1e-3
TRAINED_WEIGHT = 3e-3  # of what training changed in the parameter
RATE = 1e-5
NOISE = 1e-6  # elements with smaller gradients, relative to the largest: Adam divides rounding by rounding
TIMES = 3.0


class MismatchError(Exception):
    """Something of the program is outside of its limit."""


@dataclass(frozen=True)
class Band:
    """Limits of one comparison; `gradients` and `weights` are added for a parameter of that name."""

    output: float = OUTPUT
    loss: float = LOSS
    gradients: dict[tuple[str, str], float] = field(default_factory=dict)
    weights: dict[tuple[str, str], float] = field(default_factory=dict)
    scale: float = 0.0


def distance(ours: Any, theirs: Any) -> float:
    """Relative L2 distance of two arrays or lists of arrays."""
    a = np.concatenate([np.ravel(np.asarray(x, np.float64)) for x in ours])
    b = np.concatenate([np.ravel(np.asarray(x, np.float64)) for x in theirs])
    return float(np.linalg.norm(a - b) / max(float(np.linalg.norm(b)), 1e-30))


def flat(named: Named) -> dict[tuple[str, str], np.ndarray]:
    """Arrays by module and parameter."""
    return {(m, n): np.asarray(x, np.float64) for m, part in named.items() for n, x in part.items()}


def numeric(precise: dict[str, Any] | None, recorded: dict[str, Any]) -> Band:
    """Limits of the numeric stage; `precise` is the same backward without autocast."""
    if precise is None:
        return Band()
    exact, noisy = flat(precise["gradients"]), flat(recorded["gradients"])
    return Band(
        output=OUTPUT + TIMES * distance(recorded["outputs"], precise["outputs"]),
        loss=5e-3 + TIMES * abs(recorded["loss"] / precise["loss"] - 1),
        gradients={key: 1e-2 + TIMES * distance([noisy[key]], [exact[key]]) for key in exact},
    )


def behavioural(recording: dict[str, Any], precise: dict[str, Any] | None) -> Band:
    """Limits of the behavioural stage."""
    losses = np.array([m["loss"] for r in recording["rounds"] for m in r["micro"]])
    scale = float(np.abs(losses).max())
    if precise is None:
        return Band(loss=TRAINED_LOSS, scale=0.1 * scale)
    exact = np.array([m["loss"] for r in precise["rounds"] for m in r["micro"]])
    first = flat(recording["rounds"][0]["before"])
    last, other = flat(recording["final"]), flat(precise["final"])
    weights = {}
    for key, array in last.items():
        moved = max(float(np.linalg.norm(array - first[key])), 1e-30)
        weights[key] = 1e-2 + TIMES * float(np.linalg.norm(array - other[key])) / moved
    noise = float(np.abs(losses - exact).max()) / scale
    return Band(loss=5e-3 + TIMES * noise, weights=weights, scale=scale)


def compare_names(where: str, ours: Named, theirs: Mapping[str, Any]) -> None:
    """Check that modules and parameters of `theirs` are in `ours` with the same shapes."""
    for module, parameters in theirs.items():
        if module not in ours:
            raise MismatchError(f"{where}: no module {module}")
        for name, array in parameters.items():
            if name not in ours[module]:
                raise MismatchError(f"{where}: no parameter {module}: {name}")
            if np.shape(ours[module][name]) != np.shape(array):
                shapes = f"{np.shape(ours[module][name])}, not {np.shape(array)}"
                raise MismatchError(f"{where}: {module}: {name} has shape {shapes}")


def compare_weights(
    where: str, ours: Named, theirs: Named, trained: Mapping[str, Sequence[str]]
) -> None:
    """Check that weights came through the program's layout unchanged."""
    wanted = {m: {n: theirs[m][n] for n in names} for m, names in trained.items()}
    compare_names(where, ours, wanted)
    mine = flat(ours)
    for key, array in flat(wanted).items():
        if not np.allclose(mine[key], array, rtol=1e-6, atol=1e-7):
            raise MismatchError(f"{where}: {key[0]}: {key[1]} differs")


def compare_outputs(
    where: str, ours: list[np.ndarray], theirs: list[np.ndarray], band: Band
) -> None:
    """Check the outputs of the trained modules, call by call."""
    if len(ours) != len(theirs):
        raise MismatchError(f"{where}: {len(ours)} outputs, the script has {len(theirs)}")
    for number, (mine, array) in enumerate(zip(ours, theirs, strict=True)):
        if mine.shape != array.shape:
            raise MismatchError(
                f"{where}: output {number} has shape {mine.shape}, not {array.shape}"
            )
        if not (apart := distance([mine], [array])) <= band.output:
            raise MismatchError(f"{where}: output {number} is {apart:.1e} off")


def compare_loss(
    where: str,
    ours: float,
    theirs: float,
    limit: float,
    gradients: Named | None,
    scale: float = 0.0,
) -> None:
    """Check a loss; one near zero by cancellation is measured by the scale of its gradients or of the run."""
    if gradients:
        scale = 0.1 * max(float(np.abs(x).max()) for x in flat(gradients).values())
    if not abs(ours - theirs) <= limit * max(abs(theirs), scale):
        raise MismatchError(f"{where}: loss {ours:.7g}, the script has {theirs:.7g}")


def compare_gradients(where: str, ours: Named, theirs: Named, band: Band) -> None:
    """Check the gradient of every parameter."""
    compare_names(f"{where}: gradients", ours, theirs)
    mine, wanted = flat(ours), flat(theirs)
    total = float(np.sqrt(sum(float(np.sum(x * x)) for x in wanted.values())))
    for key, array in wanted.items():
        limit = band.gradients.get(key, GRADIENT)
        apart = float(np.linalg.norm(mine[key] - array))
        if (
            not apart
            <= limit * float(np.linalg.norm(array))
            + GRADIENT_FLOOR * total * (limit / GRADIENT) ** 0.5
        ):
            raise MismatchError(
                f"{where}: the gradient of {key[0]}: {key[1]} is {distance([mine[key]], [array]):.1e} off"
            )
    for key in set(mine) - set(wanted):
        if np.any(mine[key]):
            raise MismatchError(
                f"{where}: {key[0]}: {key[1]} has a gradient, in the script it has none"
            )


def compare_experience(where: str, ours: Mapping[str, Any], theirs: Mapping[str, Any]) -> None:
    """Check what a rollout gives the update: log-probabilities, values, advantages."""
    for name, value in theirs.items():
        if name not in ours:
            raise MismatchError(f"{where}: no {name}")
        _compare_values(f"{where}: {name}", ours[name], value, EXPERIENCE)


def compare_batches(where: str, ours: Sequence[Any], theirs: Sequence[Any]) -> None:
    """Check the program's own micro-batches of one step."""
    if len(ours) != len(theirs):
        raise MismatchError(f"{where}: {len(ours)} micro-batches, the script has {len(theirs)}")
    for number, (mine, batch) in enumerate(zip(ours, theirs, strict=True)):
        if set(mine) != set(batch):
            raise MismatchError(f"{where}: a batch has {sorted(mine)}, not {sorted(batch)}")
        _compare_values(f"{where}: batch {number}", mine, batch, 1e-6)


def _compare_values(where: str, ours: Any, theirs: Any, limit: float) -> None:
    if isinstance(theirs, Mapping):
        for key, value in theirs.items():
            if key not in ours:
                raise MismatchError(f"{where}: no {key}")
            _compare_values(f"{where}: {key}", ours[key], value, limit)
    elif isinstance(theirs, list):
        if len(ours) != len(theirs):
            raise MismatchError(f"{where}: {len(ours)} items, the script has {len(theirs)}")
        for number, (mine, value) in enumerate(zip(ours, theirs, strict=True)):
            _compare_values(f"{where}[{number}]", mine, value, limit)
    elif theirs is not None:
        mine, array = np.asarray(ours), np.asarray(theirs)
        if mine.shape != array.shape:
            raise MismatchError(f"{where} has shape {mine.shape}, not {array.shape}")
        if array.dtype.kind in "iub":
            equal = np.array_equal(mine.astype(np.int64), array.astype(np.int64))
        else:
            apart = float(np.linalg.norm(mine.astype(np.float64) - array))
            equal = apart <= limit * float(np.linalg.norm(array)) + 1e-6
        if not equal:
            raise MismatchError(f"{where} differs")


def compare_rate(where: str, ours: Any, theirs: float) -> None:
    """Check the learning rate of one update."""
    if not abs(float(ours) - theirs) <= RATE * abs(theirs) + 1e-12:
        raise MismatchError(
            f"{where}: learning rate {float(ours):.7g}, the script has {theirs:.7g}"
        )


def compare_final(ours: Named, recording: dict[str, Any], band: Band) -> None:
    """Check every trained parameter after the last step, and frozen ones that the script itself changes."""
    first, last = flat(recording["rounds"][0]["before"]), flat(recording["final"])
    mine, noise = flat(ours), _noisy_elements(recording)
    trained = {(m, n) for m, names in recording["trained"].items() for n in names}
    changed = {
        key for key in last if last[key].dtype.kind == "f" and np.any(last[key] != first[key])
    }
    # a buffer, or an entry that is tied to a parameter, is not listed
    parts = {m for m, _ in changed} - set(recording["trained"])
    for key in sorted(trained | {key for key in changed if key[0] in parts}):
        if key not in mine:
            raise MismatchError(f"after training: no parameter {key[0]}: {key[1]}")
        if not np.all(np.isfinite(mine[key])):
            raise MismatchError(f"after training: {key[0]}: {key[1]} is not finite")
        keep = ~noise.get(key, np.zeros(last[key].shape, bool))
        moved = float(np.linalg.norm((last[key] - first[key])[keep]))
        apart = float(np.linalg.norm((mine[key] - last[key])[keep]))
        limit = (
            band.weights.get(key, TRAINED_WEIGHT) * moved
            + 1e-6 * float(np.linalg.norm(last[key]))
            + 1e-8
        )
        if not apart <= limit:
            said = apart / moved if moved else float("inf")
            raise MismatchError(
                f"after training: {key[0]}: {key[1]} is {said:.1e} of its change off"
            )


def _noisy_elements(recording: dict[str, Any]) -> dict[tuple[str, str], np.ndarray]:
    """Elements whose gradient is rounding in every step, though not zero: their updates have no meaning."""
    largest: dict[tuple[str, str], np.ndarray] = {}
    for step in recording["rounds"]:
        for micro in step["micro"]:
            for key, array in flat(micro["gradients"]).items():
                largest[key] = np.maximum(largest.get(key, 0.0), np.abs(array))
    peak = max(float(x.max()) for x in largest.values())
    return {key: (x > 0) & (x < NOISE * peak) for key, x in largest.items()}


def compare_scores(where: str, ours: np.ndarray, theirs: np.ndarray) -> None:
    """Check that two samples of scores have one mean: within four standard errors."""
    ours, theirs = _one_each(ours), _one_each(theirs)
    if not np.all(np.isfinite(ours)):
        raise MismatchError(f"{where}: a score is not finite")
    error = float(np.sqrt(ours.var() / ours.size + theirs.var() / theirs.size))
    if not abs(float(ours.mean() - theirs.mean())) <= 4 * error + 1e-6:
        raise MismatchError(
            f"{where}: scores {ours.mean():.4f}, the script has {theirs.mean():.4f} ± {error:.4f}"
        )


def _one_each(scores: np.ndarray) -> np.ndarray:
    """One number a sequence: tokens of one sequence are not independent of each other."""
    scores = np.asarray(scores, np.float64)
    return scores.reshape(len(scores), -1).mean(1)
