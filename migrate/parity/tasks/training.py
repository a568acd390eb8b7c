"""Compare some steps of training on both sides: torch's optimizer against optax's.

**Early steps** are judged one by one against the truth, trained in float64. The first loss may be off by the
profile's limit times √L. After that, errors grow with the optimizer's steps, Adam's fastest, because a
gradient near zero decides the sign of a step. So a later loss may also be off by 4 times the largest error
of the emulated run so far (the gates of `migrate prove`), and by the error of float32 in optax's Adam
(`ADAM`). Without an emulated run, the first limit grows with every step. Where the noise exceeds 1e-2, later
steps are not judged.

Padding by an `attention_mask` is no part of mse and cross entropy: correct models differ in their outputs
there.

**All steps** are judged against the spread of seeds: A is trained 5 more times on the same data in other
orders. Single losses are then of other inputs, so means over the last n steps are compared, n being the
number of inputs; so are the curves. B has A's order, and must be nearer to A at every step than the 6 runs
are to one another.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from migrate.parity.ground.alignment import TensorPair
from migrate.parity.ground.errors import ParityError
from migrate.parity.ground.requests import Training
from migrate.parity.ground.results import ParityCheck, Section
from migrate.parity.sides import protocol
from migrate.parity.tasks.outputs import compared_outputs, logits_path, output, positions
from migrate.parity.tasks.party import Parties, Party

ORDERS = 5  # orders of A besides its own
# As in `prove.compare.gates`: factor of a correct run's noise, and the noise above which steps are not
# judged.
MARGIN = 4.0
CEILING = 1e-2
_PROVE = "migrate prove"
# optax computes Adam's 1 - β₂^t in float32, with a relative error of up to u / (1 - β₂) = 6e-5 (measured:
# 2e-5), and half of that in its root. Torch computes it in float64. Every update may differ by this
# fraction.
ADAM = 3e-5
_ADAM = f"{ADAM:g} for Adam's bias correction in float32"


@dataclass(frozen=True)
class TrainingOptions:
    """Options of the training.

    Attributes:
        steps: number of steps.
        optimizer, learning_rate: as in `Training`; 1e-3 is Adam's default in torch.
        loss: "mse", "cross_entropy", or a function; "auto": cross entropy for an output with logits, else
            mse.
        output: path of the output in the truth; None: the output with logits, else the first floating output.
    """

    steps: int = 20
    optimizer: str = "adamw"
    learning_rate: float = 1e-3
    loss: str = "auto"
    output: str | None = None


def compare_training(parties: Parties, options: TrainingOptions) -> Section:
    """Train all parties and compare their losses.

    Raises:
        ParityError: there is no output for a loss, or a side's classes are not along the last axis.
    """
    path, loss = _loss(parties, options)
    trainings = {
        party.name: _training(parties, party, options, path, loss) for party in parties.all()
    }
    losses = {
        party.name: party.side.ask(
            protocol.Train(party.settings, parties.inputs, trainings[party.name])
        )
        for party in parties.all()
    }
    seeds = _other_orders(parties, trainings["A"]) if parties.inputs.count > 1 else []
    notes = [
        f"{options.steps} steps of {options.optimizer}, learning rate {options.learning_rate:g}, {loss} of "
        f"output {path or 'of the model'}; targets drawn, seed {parties.seed}"
    ]
    allowed = step_limits(parties, losses, options.optimizer)
    checks = list(_early(parties, losses, allowed, notes, options.optimizer))
    curves: list[tuple[str, Sequence[float]]] = []
    if seeds:
        window = min(parties.inputs.count, max(options.steps // 2, 1))
        check, drawn = _band(parties, losses, seeds, allowed, window)
        checks.append(check)
        curves += [*drawn, ("A, each step", losses["A"]), ("B, each step", losses["B"])]
        notes.append(
            f"the band: A in {ORDERS} other orders of the same data; means of {window} steps"
        )
    else:
        curves += [("A", losses["A"]), ("B", losses["B"])]
        notes.append("one input has one order: there is no spread of seeds to compare with")
    drawn_curves = tuple((name, tuple(values)) for name, values in curves)
    return Section("training", tuple(checks), drawn_curves, tuple(notes))


def step_limits(parties: Parties, losses: dict[str, list[float]], optimizer: str) -> list[float]:
    """Limit of each step's loss; infinite where steps are not judged."""
    first = parties.profile.loss.value * math.sqrt(max(parties.operations, 1))
    count = len(losses["T"])
    later = max(first, ADAM) if optimizer.startswith("adam") else first
    if parties.emulated is None:
        return [first, *(later * (step + 1) for step in range(1, count))]
    noise = _relative(losses[parties.emulated.name], losses["T"])
    limits, worst = [], 0.0
    for step, relative in enumerate(noise):
        worst = max(worst, relative)
        least = later if step else first
        limits.append(max(least, MARGIN * worst) if worst <= CEILING else math.inf)
    return limits


def _loss(parties: Parties, options: TrainingOptions) -> tuple[str, str]:
    dump = parties.truth.dump
    logits = None if options.output is not None else logits_path(dump)
    paths = compared_outputs(parties)
    path = options.output if options.output is not None else logits
    if paths and (path is None or (options.output is None and path not in paths)):
        path = paths[0]
    if path is None or path not in paths:
        raise ParityError(
            f"training: there is no floating output {path or ''}".rstrip(),
            f"the model returns: {', '.join(name or 'a tensor' for name in paths) or 'none'}",
        )
    loss = options.loss
    if loss == "auto":
        loss = "cross_entropy" if logits is not None and path == logits else "mse"
    return path, loss


def _training(
    parties: Parties, party: Party, options: TrainingOptions, path: str, loss: str
) -> Training:
    pair = party.pair(path)
    if pair is None:
        raise ParityError(f"training: {party.name} has no output {path}", "name another output")
    folder = parties.work / "training" / party.name
    _write_targets(parties, pair, path, loss, folder)
    return Training(
        options.steps,
        data_order(parties.inputs.count, options.steps, parties.seed),
        options.optimizer,
        options.learning_rate,
        loss,
        pair.mine,
        folder,
    )


def data_order(count: int, steps: int, seed: int) -> tuple[int, ...]:
    """Epochs of all inputs, each in its own order."""
    rng = np.random.default_rng([seed, 11])
    epochs = [rng.permutation(count) for _ in range(math.ceil(steps / count))]
    return tuple(int(number) for number in np.concatenate(epochs)[:steps])


def _write_targets(parties: Parties, pair: TensorPair, path: str, loss: str, folder: Path) -> None:
    from safetensors.numpy import save_file

    folder.mkdir(parents=True, exist_ok=True)
    for number in range(parties.inputs.count):
        truth = output(parties.truth.dump, number, path)
        counted = positions(parties, number, truth.shape).reshape(truth.shape)
        rng = np.random.default_rng([parties.seed, number, 13])
        if loss == "cross_entropy":
            target = _classes(pair, truth, rng)
        else:
            # As large as the outputs: this makes the loss most sensitive to them.
            seen = truth[counted].astype(np.float64)
            size = float(np.sqrt(np.mean(seen**2))) if seen.size else 0.0
            drawn = np.asarray((size or 1.0) * rng.standard_normal(truth.shape), np.float32)
            target = pair.as_mine(drawn)
        arrays = {"target": target}
        if not counted.all():
            laid = pair.as_mine(counted)
            arrays["counted"] = laid[..., 0] if loss == "cross_entropy" else laid
        save_file(
            {
                name: np.ascontiguousarray(array).reshape(array.shape)
                for name, array in arrays.items()
            },
            folder / f"{number:03d}.safetensors",
        )


def _classes(pair: TensorPair, truth: np.ndarray[Any, Any], rng: np.random.Generator) -> Any:
    """Class for each position, in this party's layout."""
    drawn = rng.integers(truth.shape[-1], size=truth.shape[:-1])
    if pair.axes is not None and pair.axes[-1] != truth.ndim - 1:
        raise ParityError(
            f"training: the last axis of the output {pair.mine or 'of the model'} differs from the "
            "float64 reference",
            "use --loss mse, or a function",
        )
    if pair.axes is not None:
        drawn = drawn.transpose(pair.axes[:-1])
    return drawn if pair.shape is None else drawn.reshape(pair.shape[:-1])


def _other_orders(parties: Parties, own: Training) -> list[list[float]]:
    a = parties.a
    losses = []
    for seed in range(1, ORDERS + 1):
        order = data_order(parties.inputs.count, own.steps, parties.seed + 1000 * seed)
        training = dataclasses.replace(own, order=order)
        losses.append(a.side.ask(protocol.Train(a.settings, parties.inputs, training)))
    return losses


def _early(
    parties: Parties,
    losses: dict[str, list[float]],
    allowed: list[float],
    notes: list[str],
    optimizer: str,
) -> list[ParityCheck]:
    a, b = (_relative(losses[party.name], losses["T"]) for party in parties.sides)
    judged = [step for step, limit in enumerate(allowed) if math.isfinite(limit)]
    if len(judged) < len(allowed):
        notes.append(
            f"from step {len(judged)} on the emulated run is more than {CEILING:g} off the truth: only "
            "the band judges there"
        )
    if not judged:
        return []
    first = parties.profile.loss.source
    later = f"{first}; {MARGIN:g} × the noise of the emulated run: {_PROVE}"
    if optimizer.startswith("adam"):
        later += f"; {_ADAM}"
    worst = max(judged, key=lambda step: _badness(max(a[step], b[step]), allowed[step]))
    return [
        ParityCheck(
            name, a[step], b[step], allowed[step], max(a[step], b[step]) <= allowed[step], source
        )
        for name, step, source in (
            ("loss of step 0, relative to the truth", 0, first),
            (f"loss of step {worst}, the worst of {len(judged)} steps", worst, later),
        )
    ]


def _badness(value: float, limit: float) -> float:
    return value / limit


def _band(
    parties: Parties,
    losses: dict[str, list[float]],
    seeds: list[list[float]],
    allowed: list[float],
    window: int,
) -> tuple[ParityCheck, list[tuple[str, Sequence[float]]]]:
    runs = np.array([trailing(curve, window) for curve in (losses["A"], *seeds)])
    b = np.array(trailing(losses["B"], window))
    low, high = runs.min(axis=0), runs.max(axis=0)
    # Where the order makes no difference (frozen weights), rounding does.
    noise = [limit if math.isfinite(limit) else CEILING for limit in allowed]
    width = np.maximum(high - low, np.array(noise) * np.abs(runs[0]))
    distance = np.abs(b - runs[0])
    with np.errstate(all="ignore"):
        apart = np.where(distance == 0, 0.0, np.nan_to_num(distance / width, nan=math.inf))
    judged = apart[window - 1 :]
    worst = int(judged.argmax()) + window - 1
    value = float(apart[worst])
    limit = parties.profile.band.value
    check = ParityCheck(
        "distance of the loss curves over the spread of seeds",
        None,
        value,
        limit,
        value <= limit,
        parties.profile.band.source,
        note=f"at step {worst}: {b[worst]:.6g} and {runs[0][worst]:.6g}, seeds {low[worst]:.6g} to "
        f"{high[worst]:.6g}",
    )
    return check, [
        ("A", runs[0].tolist()),
        ("B", b.tolist()),
        ("band low", low.tolist()),
        ("band high", high.tolist()),
    ]


def trailing(losses: Sequence[float], window: int) -> list[float]:
    """Mean of the last losses at each step: of `window`, or of as many as there are."""
    return [
        math.fsum(losses[max(0, step + 1 - window) : step + 1]) / min(window, step + 1)
        for step in range(len(losses))
    ]


def _relative(losses: Sequence[float], truth: Sequence[float]) -> list[float]:
    """Relative error |l - t| / |t|; infinite where a loss is not finite and the truth's is."""
    errors = []
    for loss, exact in zip(losses, truth, strict=True):
        if loss == exact:
            errors.append(0.0)
        elif math.isfinite(loss) and math.isfinite(exact):
            errors.append(abs(loss - exact) / abs(exact) if exact else math.inf)
        else:
            errors.append(math.inf)
    return errors
