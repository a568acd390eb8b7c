"""The proof of a port: `migrate parity` between the original and the folder, for several shapes of inputs."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from types import MappingProxyType
from typing import Any

import numpy as np

from converters.errors import ConversionError
from migrate.parity.compare import compare_sides
from migrate.parity.ground.errors import NoGradientsError, ParityError
from migrate.parity.ground.options import ParityOptions, SideOptions
from migrate.parity.ground.requests import HostDrawn
from migrate.parity.ground.results import Parity
from migrate.parity.ground.settings import SideSettings
from migrate.parity.inputs.set import InputSet, write_inputs
from migrate.parity.sides import frames
from migrate.parity.sides.start import started, workplace
from migrate.parity.sides.target import Target
from migrate.port.results import GRADIENTS, LOW_PRECISION, TRAINING, ProofCase, with_sides
from migrate.progress import Progress, no_progress

Array = np.ndarray[Any, Any]
Arrays = Mapping[str, Array]
# The name that the compiler gives the axis of rows.
BATCH = "batch"
# Of inputs of a second shape, and of those in the precision of a TPU.
_FEW = 2
PADDED = "padded batches"


@dataclass(frozen=True)
class ProofComparison:
    """A comparison to make.

    Attributes:
        name: see `ProofCase`.
        inputs: what is fed; empty: it is not made, `skipped` says why.
        precision: precision of float32 matmuls on both sides.
        layers: whether each layer is compared, not only the outputs.
        gradients: whether the gradients of parameters and floating inputs are compared.
        modes: whether training mode is compared.
        skipped, undefined: see `ProofCase`.
    """

    name: str
    inputs: tuple[Arrays, ...]
    precision: str = "highest"
    layers: bool = True
    gradients: bool = False
    modes: bool = False
    skipped: str = ""
    undefined: str = ""


def supported(inputs: InputSet, arguments: Sequence[Any]) -> list[Arrays]:
    """Return the inputs; where the port holds for one value of an argument only, with that of the first."""
    fixed = {argument.name: inputs[0][argument.name] for argument in arguments if argument.fixed}
    return [{**inputs[number], **fixed} for number in range(inputs.count)]


def asked(
    inputs: InputSet,
    arguments: Sequence[Any],
    takes: Callable[[Arrays], bool],
    trains: bool = False,
    padded: Sequence[Arrays] = (),
    undefined: Mapping[str, Arrays] = MappingProxyType({}),
) -> Iterator[ProofComparison]:
    """Yield the comparisons: the inputs as given, in float32 and in a TPU's precision, their gradients, and
    other shapes of them.

    Args:
        inputs: the inputs, as given.
        arguments: those of the port: name, a shape of numbers and names (what is named is free), whether it
            holds for the values of the first input only.
        takes: whether the original takes an input at all.
        trains: whether the port computes otherwise in training.
        padded: padded batches, of a port that takes a mask.
        undefined: padded batches with rows for which the original gives NaN, by these rows. They have no
            gradients: a NaN in a row is one in every parameter's.
    """
    examples = supported(inputs, arguments)
    yield ProofComparison("float32", tuple(examples))
    few = alike(examples)[:_FEW]
    yield ProofComparison(GRADIENTS, few, layers=False, gradients=True)
    if trains:
        yield ProofComparison(TRAINING, few, layers=False, modes=True)
    batches = tuple(padded)
    if padded or undefined:
        rows = "; ".join(undefined)
        every = (*batches, *undefined.values())
        yield ProofComparison(PADDED, every, layers=False, undefined=rows)
    if padded:
        yield ProofComparison(f"{GRADIENTS}, {PADDED}", batches, layers=False, gradients=True)
    spared = [
        argument.name
        for argument in arguments
        if argument.optional and argument.name in examples[0]
    ]
    if spared:
        bare = tuple(
            {n: array for n, array in example.items() if n not in spared} for example in few
        )
        yield ProofComparison(f"without {', '.join(spared)}", bare, layers=False)
    yield ProofComparison(LOW_PRECISION, few, precision="default")
    free = free_axes(arguments, examples[0])
    compared: set[str] = set()  # shapes: two axes that only change together are one comparison
    for name, axes in free.items():
        argument, axis = axes[0]
        old = examples[0][argument].shape[axis]
        for sizes in ((1,), (old + 1, 2 * old)) if name == BATCH else (_sizes(old),):
            if old in sizes:
                continue
            first = next(
                (
                    (size, tuple(resized(example, axes, size) for example in few))
                    for size in sizes
                    if takes(resized(few[0], axes, size))
                ),
                None,
            )
            together = None if first or name == BATCH else _together(free, name, few, takes)
            if together is not None:
                shapes = described(together[1][0])
                if shapes not in compared:
                    compared.add(shapes)
                    yield ProofComparison(*together, layers=False)
            elif first is None:
                tried = " or ".join(map(str, sizes))
                yield ProofComparison(
                    f"{name} {tried}", (), skipped="the original takes no such inputs"
                )
            else:
                yield ProofComparison(f"{name} {first[0]}", first[1], layers=False)


def _together(
    free: Mapping[str, Sequence[tuple[str, int]]],
    name: str,
    few: Sequence[Arrays],
    takes: Callable[[Arrays], bool],
) -> tuple[str, tuple[Arrays, ...]] | None:
    """A size beside other sizes of the other free axes: a mask of 32 frames needs an input of 128 samples.

    Returns:
        The name of the comparison, and its inputs; None if the original takes none that were tried.
    """
    others = [other for other in free if other not in (name, BATCH)]
    for number in range(len(others)):
        for change in (_twice, _half):
            examples = list(few)
            sizes = []
            for axis_name in (name, *others[: number + 1]):
                argument, axis = free[axis_name][0]
                size = change(few[0][argument].shape[axis])
                examples = [resized(example, free[axis_name], size) for example in examples]
                sizes.append(f"{axis_name} {size}")
            if takes(examples[0]):
                return " with ".join(sizes), tuple(examples)
    return None


def _twice(size: int) -> int:
    return 2 * size


def _half(size: int) -> int:
    return -(-size // 2)


def free_axes(arguments: Sequence[Any], arrays: Arrays) -> dict[str, list[tuple[str, int]]]:
    """Name of a free size → the arguments and axes that have it.

    Two axes have one size if they have one name, or, as rows of inputs do, one place, and are as long as each
    other in what is given: the recording gives names to sizes that need not be equal.
    """
    free: list[tuple[str, int, list[tuple[str, int]]]] = []
    for argument in arguments:
        for axis, side in enumerate(argument.shape):
            if not isinstance(side, str) or argument.name not in arrays:
                continue
            size = arrays[argument.name].shape[axis]
            for name, other, axes in free:
                if other == size and (name == side or axis in [at for _, at in axes]):
                    axes.append((argument.name, axis))
                    break
            else:
                free.append((side, size, [(argument.name, axis)]))
    names = [name for name, _, _ in free]
    return {
        name if names.count(name) == 1 else f"{name} of {axes[0][0]}": axes
        for name, _, axes in free
    }


def same_sizes(
    arguments: Sequence[Any], arrays: Arrays, takes: Callable[[Arrays], bool]
) -> tuple[str, ...]:
    """Free axes that have different names, but one size: the original does not take them at two sizes.

    Args:
        arguments: the port's.
        arrays: an input.
        takes: whether the original takes an input.

    Returns:
        A line for each size: "axis 1 of x and axis 1 of mask: the same size".
    """
    sides = {argument.name: argument.shape for argument in arguments}
    lines = []
    for axes in free_axes(arguments, arrays).values():
        if len({sides[name][axis] for name, axis in axes}) < 2:
            continue
        old = arrays[axes[0][0]].shape[axes[0][1]]
        size = next((size for size in _sizes(old) if takes(resized(arrays, axes, size))), None)
        if size is None:
            continue
        tied = [place for place in axes if not takes(resized(arrays, [place], size))]
        if len(tied) > 1:
            lines.append(" and ".join(f"axis {axis} of {name}" for name, axis in tied))
    return tuple(f"{line}: the same size" for line in lines)


def resized(arrays: Arrays, axes: Sequence[tuple[str, int]], size: int) -> dict[str, Array]:
    """The inputs with so many entries along these axes: the first ones, or all of them again and again."""
    changed = dict(arrays)
    for name, axis in axes:
        if name in changed:
            changed[name] = np.take(
                changed[name], np.arange(size) % changed[name].shape[axis], axis=axis
            )
    return changed


def _sizes(old: int) -> tuple[int, ...]:
    """Other sizes than that: an odd neighbor first, then those that models which halve or pool can have."""
    return tuple(size for size in (old - 1, old + 1, old // 2, 2 * old) if size > 1)


def alike(examples: Sequence[Arrays]) -> tuple[Arrays, ...]:
    """Return the inputs whose shapes are those of the first."""
    first = {name: array.shape for name, array in examples[0].items()}
    return tuple(
        example for example in examples if {name: a.shape for name, a in example.items()} == first
    )


def proven(
    original: Target,
    folder: Path,
    shown: Path,
    cases: Sequence[ProofComparison],
    state: Path | None,
    params: Path | None,
    seed: int,
    timeout: float,
    progress: Progress,
    method: str = "",
    drawn: tuple[HostDrawn, ...] = (),
) -> tuple[ProofCase, ...]:
    """Compare the original with the folder, each in a process of its own.

    Args:
        original: the original, as the user named it.
        folder: folder of the port.
        shown: final path of the folder, for messages.
        cases: what is compared.
        state: the original's weights; None: it has none.
        params: the port's; None: it has none.
        seed: seed of the factory.
        timeout: seconds for one request to a side.
        progress: receives the progress.
        method: which is compared in place of the forward; "": the forward.
        drawn: what takes the place of what the original draws by Python or numpy in training.
    """
    original = replace(original, method=method)
    port = Target("port", str(folder), f"port:{shown}", method=method)
    options = ParityOptions(
        a=SideOptions(weights=state),
        b=SideOptions(weights=params),
        seed=seed,
        timeout=timeout,
    )
    with workplace(None) as work, contextlib.ExitStack() as stack:
        try:
            named = {"A": (original, options.a), "B": (port, options.b)}
            a, b = started(named, options, work, stack)
        except (ParityError, ConversionError) as error:
            return (ProofCase("loading", "", None, str(error)),)
        done: list[ProofCase] = []
        for number, case in enumerate(cases):
            if case.skipped:
                done.append(ProofCase(case.name, "", None, skipped=case.skipped))
                continue
            progress(f"comparing: {case.name}", number, len(cases), "comparison")
            place = work / f"case{number}"
            place.mkdir()
            written = write_inputs(place / "given", list(case.inputs))
            settings = SideSettings(precision=case.precision, seed=seed)  # type: ignore[arg-type]
            how = replace(
                options,
                a=replace(options.a, settings=settings),
                b=replace(options.b, settings=settings),
                inputs=(str(written.folder),),
                count=written.count,
                layers=case.layers,
                gradients=case.gradients,
                modes=case.modes,
                drawn=drawn,
            )
            shapes = described(case.inputs[0])
            try:
                parity = compare_sides(a, b, how, place, no_progress)
            except NoGradientsError:
                done.append(
                    ProofCase(case.name, shapes, None, skipped="its outputs have no gradients")
                )
                continue
            except (ParityError, ConversionError) as error:
                done.append(ProofCase(case.name, shapes, None, _line(error, folder, shown)))
                break  # what does not run once runs no second time
            final = _named_finally(parity, folder, shown)
            done.append(ProofCase(case.name, shapes, final, undefined=case.undefined))
        return tuple(done)


def described(arrays: Arrays) -> str:
    """Names, dtypes and shapes: "input_ids int64[2,64]"."""
    return ", ".join(
        f"{name} {array.dtype.name}[{','.join(map(str, array.shape))}]"
        for name, array in arrays.items()
    )


def _named_finally(parity: Parity, folder: Path, shown: Path) -> Parity:
    """The comparison with the folder's final name wherever it says where something stands."""
    names = {frames.shown(folder): str(shown), str(folder): str(shown)}

    def said(text: str) -> str:
        for old, new in names.items():
            text = text.replace(old, new)
        return text

    first = parity.first
    if first is not None and first.b is not None:
        b = replace(first.b, defined=said(first.b.defined), called=said(first.b.called))
        first = replace(first, b=b)
    return replace(parity, sentence=with_sides(said(parity.sentence)), first=first)


def _line(error: Exception, folder: Path, shown: Path) -> str:
    """Return the message with the folder's final name, or the last line that a dead side printed."""
    text = str(error).replace(str(folder), str(shown))
    output = getattr(error, "output", "")
    last = output.strip().splitlines()[-1:] if output else []
    return " ".join([text, *last])
