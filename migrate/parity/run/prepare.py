"""Preparation of a comparison: the same inputs and the same weights for both sides."""

from __future__ import annotations

import contextlib
import dataclasses
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

from converters.errors import ConversionError, MisfitError
from migrate.parity.align.weight_map import (
    WeightConversion,
    WeightMap,
    bring,
    bring_back,
    load_file,
    only_names,
    same_names,
)
from migrate.parity.dump.dump import Dump
from migrate.parity.fitting.fit import fit
from migrate.parity.ground.errors import InputsError, ParityError, WeightsError
from migrate.parity.ground.options import ParityOptions, SideOptions
from migrate.parity.ground.requests import TORCH
from migrate.parity.ground.settings import SideSettings
from migrate.parity.inputs.channels import channels_first_inputs, layout_remedy
from migrate.parity.inputs.make import make_inputs
from migrate.parity.inputs.set import InputSet, write_inputs
from migrate.parity.sides import protocol
from migrate.parity.sides.side import ComparedSide


@dataclass(frozen=True)
class Prepared:
    """Inputs, settings and weights of both sides.

    Attributes:
        inputs: the inputs of both sides.
        a, b: settings of the sides, with the layouts of inputs.
        truth_of_a: whether the truth is A's model in float64; otherwise it is B's.
        weights_a, weights_b: names of each side's weights in the truth.
    """

    inputs: InputSet
    a: SideSettings
    b: SideSettings
    truth_of_a: bool
    weights_a: WeightMap
    weights_b: WeightMap


def prepare(
    a: ComparedSide,
    b: ComparedSide,
    options: ParityOptions,
    work: Path,
    progress: Callable[[str], None],
) -> Prepared:
    """Create inputs, and load the same weights into both sides.

    The truth runs the torch side's model, because the conversion of weights starts from its module tree. It
    runs A's model if both sides are torch's or neither is.

    Raises:
        InputsError: no input is given and none can be created.
        ParityError, ConversionError: the weights do not fit.
    """
    truth_of_a = a.kind in TORCH or b.kind not in TORCH
    truth, other = (a, b) if truth_of_a else (b, a)
    progress("making inputs")
    inputs = inputs_for(truth, other, options, work / "inputs")
    first, second = (options.a, options.b) if truth_of_a else (options.b, options.a)
    settings = {
        truth: _laid_out(first, ()),
        other: laid_out_for(truth, other, second, inputs, work),
    }
    progress("bringing the weights to both sides")
    functions = [side for side in settings if side.kind == "jax"]
    for side, how in settings.items():
        if side not in functions:
            side.ask(protocol.Prepare(how, inputs))
    conversion = WeightConversion(options.mapping, options.drop, image_shapes(inputs))
    with layout_told(inputs, settings[other]):
        checkpoints = first.weights, second.weights
        try:
            mine = _weights(truth, other, *checkpoints, conversion, work)
        except (WeightsError, MisfitError) as error:
            turned = settings[other].transposed
            if turned and layout_remedy(error.what, inputs[0], turned):
                raise  # the input's layout is wrong, and following the layers would not show it
            if not _can_be_followed(truth, other, conversion) or checkpoints[1] is not None:
                raise
            conversion, said = _fit_by_running(
                truth, other, inputs, settings[other], conversion, work, progress
            )
            mine = _weights(truth, other, *checkpoints, conversion, work)
            mine = dataclasses.replace(mine, notes=(*mine.notes, *said))
    for side in functions:  # the owner alone knows the weights of a function
        side.ask(protocol.Prepare(settings[side], inputs))
    truths = same_names(work / "truth.safetensors")
    pair = (truths, mine) if truth_of_a else (mine, truths)
    return Prepared(inputs, settings[a], settings[b], truth_of_a, *pair)


def _can_be_followed(
    truth: ComparedSide, other: ComparedSide, conversion: WeightConversion
) -> bool:
    followed = other.kind in ("linen", "nnx") and other.constants is None
    return truth.kind in TORCH and followed and conversion.mapping is None


def _fit_by_running(
    truth: ComparedSide,
    other: ComparedSide,
    inputs: InputSet,
    settings: SideSettings,
    conversion: WeightConversion,
    work: Path,
    progress: Callable[[str], None],
) -> tuple[WeightConversion, tuple[str, ...]]:
    """Fit the weights by running both models and following their layers, because names are not enough."""
    mapping = work / "fitted.yaml"
    fitted = fit(
        truth,
        other,
        inputs,
        settings,
        work / "fit",
        mapping,
        drop=conversion.drop,
        example=conversion.example,
        progress=progress,
    )
    note = f"weights: {fitted.sentence} ({fitted.layers} layers, found by running both)"
    return dataclasses.replace(conversion, mapping=mapping), (note, *fitted.notes)


def inputs_for(
    truth: ComparedSide, other: ComparedSide, options: ParityOptions, folder: Path
) -> InputSet:
    """Return the user's inputs, else inputs derived from one of the models.

    Raises:
        InputsError: there are no inputs.
    """
    if options.inputs:
        return make_inputs(options.inputs, options.count, options.seed, folder)
    try:
        return truth.ask(protocol.SuggestInputs(options.count, options.seed, folder))
    except ParityError as error:
        with contextlib.suppress(ParityError):
            return other.ask(protocol.SuggestInputs(options.count, options.seed, folder))
        raise InputsError(error.what, error.remedy) from None


def laid_out_for(
    truth: ComparedSide, other: ComparedSide, options: SideOptions, inputs: InputSet, work: Path
) -> SideSettings:
    """Settings of the other side, with images in its layout."""
    return _laid_out(options, _channels_last(truth, other, inputs, work))


def _channels_last(
    truth: ComparedSide, other: ComparedSide, inputs: InputSet, work: Path
) -> tuple[str, ...]:
    """Inputs that the other side takes channels last, because torch's layers take them channels first."""
    if truth.kind not in TORCH or other.kind in TORCH or other.lies_as_torch:
        return ()
    if not any(array.ndim >= 3 and array.dtype.kind == "f" for array in inputs[0].values()):
        return ()
    probe_inputs = write_inputs(work / "probe-inputs", [inputs[0]])
    truth.ask(protocol.Capture(SideSettings(device="cpu"), probe_inputs, work / "probe"))
    return channels_first_inputs(Dump(work / "probe"), probe_inputs)


def image_shapes(inputs: InputSet) -> tuple[tuple[int, ...], ...] | None:
    """Shapes of image inputs, which decide the rows of a Linear after a flattened image."""
    arrays = list(inputs[0].values())
    if any(array.dtype.kind != "f" for array in arrays):
        return None
    return tuple(array.shape for array in arrays)


def _laid_out(options: SideOptions, layouts: tuple[str, ...]) -> SideSettings:
    chosen = layouts if options.channels_last is None else options.channels_last
    return dataclasses.replace(options.settings, transposed=chosen)


@contextlib.contextmanager
def layout_told(inputs: InputSet, settings: SideSettings) -> Iterator[None]:
    """Add the layout of inputs to errors: a linen model fits its weights to any layout of its inputs."""
    try:
        yield
    except (ParityError, ConversionError) as error:
        # Weights without a place are listed with their shapes.
        said = f"of these shapes: {error.what}" if isinstance(error, MisfitError) else error.what
        layout = layout_remedy(said, inputs[0], settings.transposed)
        if not layout or not settings.transposed:
            raise
        if not isinstance(error, MisfitError):
            raise ParityError(error.what, f"{layout}; {error.remedy}") from error
        error.remedy = f"{layout}; {error.remedy}"  # its list stays
        error.args = (f"{error.what}; {error.remedy}",)
        raise


def _weights(
    truth: ComparedSide,
    other: ComparedSide,
    of_truth: Path | None,
    of_other: Path | None,
    conversion: WeightConversion,
    work: Path,
) -> WeightMap:
    """Load the weights of both sides; return the other side's names in the truth."""
    own = work / "truth.safetensors"
    if of_truth is not None:
        load_file(truth, of_truth, work)
    if of_other is not None:
        load_file(other, of_other, work)
    if of_other is None:
        names = bring(truth, other, work, conversion)
    elif of_truth is None:
        names = bring_back(truth, other, work, conversion)
    else:
        names = only_names(truth, other, work, conversion)
    truth.ask(protocol.SaveWeights(own))
    return names
