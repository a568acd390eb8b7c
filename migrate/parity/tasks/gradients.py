"""Compare gradients of parameters and inputs with those of the truth in float64.

All are gradients of Σ <output, cotangent> with the same cotangents for all: standard normal, rounded to
bfloat16 so that every side has the same, in each side's layout of the outputs. The limit is the profile's,
times √L.

**Cancellation above the limit.** A gradient that is the small difference of large sums loses digits on every
machine. An error above the limit but no worse than the emulation's (ρ ≤ 2) passes with a note. Without an
emulation, it must be no worse than A's, if the truth is A's model. A gradient with few elements, or one that
most roundings happen to spare, says little about the precision of a run. So a torch model in float32 runs
`MOVED_RUNS` times more if a gradient is still too far off, each time with every weight and input moved by a
rounding. The largest error of these runs counts, up to `_LUCK` times that of the run itself: where moved runs
alone are far off, the gradient has a kink or a tie there, which both sides must take alike.

**Vanishing gradients.** A parameter's gradient may be rounding noise in the truth too: below 1e-6 of all
gradients' norm, as for a bias before a normalization or a key's bias. It is measured against that norm.

**bfloat16.** A bias, a scale or an input may be off by 0.1: XLA adds bfloat16 in bfloat16.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np

from migrate.parity.ground.errors import NoGradientsError
from migrate.parity.ground.results import ParityCheck, Section
from migrate.parity.ground.settings import SideSettings
from migrate.parity.judge.bootstrap import ratio
from migrate.parity.judge.profiles import Profile
from migrate.parity.sides import protocol
from migrate.parity.tasks.outputs import compared_outputs, output, positions
from migrate.parity.tasks.party import Parties, Party

Array = np.ndarray[Any, Any]
ALL_PARAMETERS = "all parameters"  # row for all parameters together
VANISHING = 1e-6  # fraction of the norm of all gradients; the same as in `migrate prove`
# XLA adds bfloat16 in bfloat16, torch in float32. In correct models on XLA's CPU, the gradient of a bias, a
# sum over all positions, was off by 1e-2 to 9e-2. The gradient of an input was off by 4e-2, where a ReLU's
# input was a rounding away from zero.
BFLOAT16 = 0.1
MOVED_RUNS = 8
# In the worst case, an error of one direction, normally distributed, a correct run is called wrong in 4.5 %
# of draws with this factor, and in 30 % without moved runs (2 million draws of both).
_LUCK = 8.0
_JAX = "of a sum over positions or an input, in bfloat16: jax.test_util allows gradients 1e-1"


@dataclass
class Distance:
    """Distance of a side's gradient from the truth's, input by input: Σ (x - t)² and Σ t².

    `loose` marks the gradient of an input, or of a parameter with one axis: a bias, a scale.
    """

    errors: list[float] = field(default_factory=list)
    sizes: list[float] = field(default_factory=list)
    not_finite: int = 0
    loose: bool = False

    def add(self, number: int, truth: Array, mine: Array) -> None:
        """Add a part of the gradient."""
        if truth.shape != mine.shape:
            raise ValueError(f"shape {mine.shape}, the float64 reference has {truth.shape}")
        while len(self.errors) <= number:
            self.errors.append(0.0)
            self.sizes.append(0.0)
        exact = truth.astype(np.float64)
        self.loose = self.loose or truth.ndim < 2
        self.not_finite += int(
            np.isfinite(exact).sum() - (np.isfinite(mine) & np.isfinite(exact)).sum()
        )
        with np.errstate(all="ignore"):
            self.errors[number] += float(np.sum((mine.astype(np.float64) - exact) ** 2))
            self.sizes[number] += float(np.sum(exact**2))

    @property
    def error(self) -> float:
        """Error ‖x - t‖₂ over all inputs."""
        return math.inf if self.not_finite else math.sqrt(math.fsum(self.errors))

    @property
    def size(self) -> float:
        """Size ‖t‖₂ over all inputs."""
        return math.sqrt(math.fsum(self.sizes))

    @property
    def per_input(self) -> list[float]:
        """Relative error of each input."""
        pairs = zip(self.errors, self.sizes, strict=True)
        return [math.sqrt(_over(error, size)) for error, size in pairs]


@dataclass
class GradientErrors:
    """Distances of a party's gradients by the truth's name, and the names without a gradient."""

    distances: dict[str, Distance] = field(default_factory=dict)
    missing: set[str] = field(default_factory=set)
    surplus: set[str] = field(default_factory=set)
    misshapen: dict[str, str] = field(default_factory=dict)

    def total(self) -> Distance:
        """Distance of all parameters together."""
        distance = Distance()
        parameters = [
            weight_distance
            for name, weight_distance in self.distances.items()
            if name.startswith("weights/")
        ]
        distance.errors = _columns(weight_distance.errors for weight_distance in parameters)
        distance.sizes = _columns(weight_distance.sizes for weight_distance in parameters)
        distance.not_finite = sum(weight_distance.not_finite for weight_distance in parameters)
        return distance


def compare_gradients(parties: Parties) -> Section:
    """Compute the gradients of all parties and compare them with the truth's.

    Raises:
        NoGradientsError: the models have no floating output in common.
        ParityError: a side cannot be differentiated.
    """
    folders = {party.name: _gradients(parties, party) for party in parties.all()}
    truth = folders[parties.truth.name]
    errors = {
        party.name: found_gradients(parties, party, folders[party.name], truth)
        for party in parties.all()
        if party is not parties.truth
    }

    def moved(party: Party, settings: SideSettings, folder: Path) -> None:
        cotangents = folders[party.name] / "cotangents"
        party.side.ask(protocol.Gradients(settings, parties.inputs, cotangents, folder))

    return judged_gradients(parties, errors, truth, moved)


def judged_gradients(
    parties: Parties,
    errors: dict[str, GradientErrors],
    truth: Path,
    run: Callable[[Party, SideSettings, Path], None],
) -> Section:
    """Section as `gradient_rows`; a correct run is repeated with moved weights if a gradient is too far off.

    Args:
        parties: truth and sides.
        errors: of each party but the truth.
        truth: folder of the truth's gradients.
        run: writes the gradients of a party with these settings into a folder.
    """
    section = gradient_rows(parties, errors)
    correct = _correct_run(parties)
    party = next((party for party in parties.all() if party.name == correct), None)
    sized = any(not check.passed and math.isfinite(check.b or 0.0) for check in section.checks)
    if not sized or party is None or parties.profile.strict or not _can_move(party):
        return section
    noise = []
    for seed in range(1, MOVED_RUNS + 1):
        folder = parties.work / "gradients" / f"{correct} moved {seed}"
        run(party, replace(party.settings, moved=seed), folder)
        noise.append(found_gradients(parties, party, folder, truth))
    return gradient_rows(parties, errors, noise)


def _can_move(party: Party) -> bool:
    settings = party.settings
    return party.side.kind == "torch" and (settings.dtype, settings.precision) == (
        "float32",
        "highest",
    )


def write_cotangents(parties: Parties, party: Party, folder: Path) -> None:
    """Write a cotangent for each floating output of each input, in this party's layout."""
    from safetensors.numpy import save_file

    from migrate.parity.inputs.drawn import rounded

    paths = compared_outputs(parties)
    if not paths:
        raise NoGradientsError(
            "gradients: the models have no floating output in common", "leave --gradients out"
        )
    folder.mkdir(parents=True, exist_ok=True)
    for number in range(parties.inputs.count):
        cotangents: dict[str, Array] = {}
        for position, path in enumerate(paths):
            pair = party.pair(path)
            if pair is None:
                continue
            shape = output(parties.truth.dump, number, path).shape
            rng = np.random.default_rng([parties.seed, number, position, 7])
            drawn = rounded(np.asarray(rng.standard_normal(shape), np.float32), "bfloat16")
            if len(shape) > 1:
                kept = positions(parties, number, shape[:-1]).reshape(*shape[:-1], 1)
                drawn = np.where(kept, drawn, np.float32(0))
            array = pair.as_mine(drawn)
            # numpy turns a scalar into an array with an axis.
            cotangents[pair.mine or "output"] = np.ascontiguousarray(array).reshape(array.shape)
        save_file(cotangents, folder / f"{number:03d}.safetensors")


def _gradients(parties: Parties, party: Party) -> Path:
    folder = parties.work / "gradients" / party.name
    write_cotangents(parties, party, folder / "cotangents")
    party.side.ask(
        protocol.Gradients(party.settings, parties.inputs, folder / "cotangents", folder)
    )
    return folder


def found_gradients(parties: Parties, party: Party, folder: Path, truth: Path) -> GradientErrors:
    """Compare the gradients of a party, in a folder, with the truth's."""
    from safetensors import safe_open

    errors = GradientErrors()
    for number in range(parties.inputs.count):
        file = f"{number:03d}.safetensors"
        with (
            safe_open(folder / file, framework="numpy") as mine,
            safe_open(truth / file, framework="numpy") as exact,
        ):
            add_weights(errors, party, number, mine, exact)
            _inputs(errors, party, number, mine, exact)
    return errors


def add_weights(errors: GradientErrors, party: Party, number: int, mine: Any, exact: Any) -> None:
    """Add the gradients of parameters in two files to the errors."""
    have, known = set(mine.keys()), set(exact.keys())
    for pair in party.weights:
        key = f"weights/{pair.name}"
        truths = [f"weights/{name}" for name in dict.fromkeys(pair.truths)]
        theirs = [name for name in truths if name in known]
        if not pair.comparable or (key not in have and not theirs):
            continue  # a buffer on both sides, or a weight whose gradient cannot be compared
        if key not in have:
            errors.missing.update(name for name in theirs if exact.get_tensor(name).any())
        elif len(theirs) < len(truths):
            if mine.get_tensor(key).any():
                errors.surplus.update(set(truths) - known)
        else:
            _compare(errors, key, number, pair.beside, mine, exact)


def _compare(
    errors: GradientErrors, key: str, number: int, beside: Callable[..., Any], mine: Any, exact: Any
) -> None:
    try:
        for name, truth, part in beside(
            mine.get_tensor(key), lambda name: exact.get_tensor(f"weights/{name}")
        ):
            distance = errors.distances.get(f"weights/{name}", Distance())
            distance.add(number, truth, part)
            errors.distances[f"weights/{name}"] = distance
    except ValueError as error:
        errors.misshapen[key] = str(error)


def _inputs(side_errors: GradientErrors, party: Party, number: int, mine: Any, exact: Any) -> None:
    have, known = (
        {key for key in list(arrays.keys()) if key.startswith("inputs/")}
        for arrays in (mine, exact)
    )
    for key in sorted(known - have):
        if exact.get_tensor(key).any():
            side_errors.missing.add(key)
    side_errors.surplus.update(key for key in have - known if mine.get_tensor(key).any())
    for key in sorted(known & have):
        truth, array = exact.get_tensor(key), mine.get_tensor(key)
        if key.removeprefix("inputs/") in party.settings.transposed:
            truth = np.moveaxis(truth, 1, -1)
        try:
            distance = side_errors.distances.get(key, Distance(loose=True))
            distance.add(number, truth, array)
            side_errors.distances[key] = distance
        except ValueError as error:
            side_errors.misshapen[key] = str(error)


def gradient_rows(
    parties: Parties, errors: dict[str, GradientErrors], noise: Sequence[GradientErrors] = ()
) -> Section:
    """Section with a row for each parameter and input.

    Args:
        parties: truth and sides.
        errors: of each party but the truth.
        noise: errors of a correct run with moved weights.
    """
    sides = [(party, errors[party.name]) for party in parties.sides]
    correct = _correct_run(parties)
    emulated = errors.get(correct) if correct else None
    names = dict.fromkeys(
        name for _, side_errors in sides for name in (*side_errors.distances, *side_errors.missing)
    )
    limit = parties.profile.gradient.value * math.sqrt(max(parties.operations, 1))
    totals = [side_errors.total() for _, side_errors in sides]
    correct_total = emulated.total() if emulated else None
    moved = [run.total() for run in noise]
    checks = [_row(parties, ALL_PARAMETERS, totals, correct_total, moved, limit)]
    scale = max((total.size for total in totals), default=0.0)
    for name in names:
        distances = [side_errors.distances.get(name) for _, side_errors in sides]
        known = emulated.distances.get(name) if emulated else None
        moved = [run.distances[name] for run in noise if name in run.distances]
        lost = [party.name for party, side_errors in sides if name in side_errors.missing]
        of_all = scale if name.startswith("weights/") else 0.0
        checks.append(_row(parties, _shown(name), distances, known, moved, limit, of_all, lost))
    for party, side_errors in sides:
        checks += [
            _failed(f"{_shown(name)} of {party.name}", f"{what}", limit)
            for name, what in (
                *(
                    (name, "a gradient that the truth has not")
                    for name in sorted(side_errors.surplus)
                ),
                *side_errors.misshapen.items(),
            )
        ]
    return Section("gradients", tuple(checks), notes=_notes(parties, errors))


def _correct_run(parties: Parties) -> str:
    """Name of a correct run: the emulation, else A if the truth is A's model; "" if there is none."""
    if parties.emulated is not None:
        return parties.emulated.name
    return parties.a.name if parties.truth.side is parties.a.side else ""


def _row(
    parties: Parties,
    name: str,
    distances: list[Distance | None] | list[Distance],
    emulated: Distance | None,
    moved: Sequence[Distance],
    limit: float,
    scale: float = 0.0,
    lost: list[str] | None = None,
) -> ParityCheck:
    known = [distance for distance in distances if distance is not None]
    source = f"{parties.profile.gradient.what}: {parties.profile.gradient.source}"
    if parties.profile.dtype == "bfloat16" and any(distance.loose for distance in known):
        limit, source = max(limit, BFLOAT16), _JAX
    sizes = [distance.size for distance in known]
    vanishing = bool(sizes) and max(sizes) < VANISHING * scale
    values, notes, passed = [], [], not lost
    for party, distance in zip(parties.sides, distances, strict=True):
        if distance is None:
            values.append(math.inf if lost and party.name in lost else None)
            continue
        value = distance.error / scale if vanishing else _over(distance.error, distance.size)
        values.append(value)
        if not value <= limit:
            excused = _as_emulated(parties.profile, distance, emulated)
            excused = excused or _as_moved(parties.profile, distance, emulated, moved)
            passed = passed and excused
            if excused:
                whose = "emulation" if parties.emulated else f"run of {parties.a.name} in float32"
                notes.append(f"{party.name} is no worse than the {whose}: the sums cancel")
    if vanishing:
        notes.append("rounding noise in the truth too: measured against the norm of all gradients")
    notes += [f"{side} has no gradient here" for side in lost or ()]
    a, b = values
    return ParityCheck(name, a, b, limit, passed, source, note="; ".join(notes))


def _as_emulated(profile: Profile, mine: Distance, emulated: Distance | None) -> bool:
    """Whether a side is as near to the truth as a correct run of its precision: ρ ≤ 2.

    That applies to the whole gradient and to the lower bound over the inputs. A strict profile requires the
    limit itself.
    """
    if emulated is None or mine.not_finite or profile.strict:
        return False
    bounds = ratio(mine.per_input, emulated.per_input, floor=profile.floor)
    worst = profile.ratio.value
    return mine.error <= worst * emulated.error and bounds is not None and bounds.low <= worst


def _as_moved(
    profile: Profile, mine: Distance, correct: Distance | None, moved: Sequence[Distance]
) -> bool:
    """Whether a side is as near to the truth as correct runs whose weights moved by a rounding: ρ ≤ 2."""
    if correct is None or mine.not_finite or not moved:
        return False
    largest = min(max(run.error for run in moved), _LUCK * correct.error)
    return mine.error <= profile.ratio.value * largest


def _failed(name: str, note: str, limit: float) -> ParityCheck:
    return ParityCheck(name, None, math.inf, limit, False, "both must have it", note=note)


def _notes(parties: Parties, errors: dict[str, GradientErrors]) -> tuple[str, ...]:
    notes = [
        f"of Σ <output, cotangent>, normal cotangents, seed {parties.seed}; relative L2 against float64"
    ]
    for party in parties.sides:
        odd = sorted(pair.name for pair in party.weights if not pair.comparable)
        if odd:
            notes.append(
                f"{party.name}: not compared, computed from other weights: {', '.join(odd)}"
            )
    if not any(side_errors.distances for side_errors in errors.values()):
        notes.append("no output depends on a parameter or a floating input by a gradient")
    if parties.emulated is not None:
        total = errors[parties.emulated.name].total()
        notes.append(f"the emulated run: {_over(total.error, total.size):.1e} over all parameters")
    return tuple(notes)


def _shown(name: str) -> str:
    kind, _, rest = name.partition("/")
    return f"gradient {rest}" if kind == "weights" else f"gradient of input {rest}"


def _columns(rows: Iterable[list[float]]) -> list[float]:
    return [math.fsum(column) for column in itertools.zip_longest(*rows, fillvalue=0.0)]


def _over(error: float, size: float) -> float:
    if error == 0:
        return 0.0
    return error / size if size else math.inf
