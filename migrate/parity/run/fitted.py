"""`migrate weights --target` with inputs: fit one model's weights to another model."""

from __future__ import annotations

import contextlib
import dataclasses
import sys
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from converters.errors import ConversionError
from migrate.parity.fitting.fit import fit, require_model
from migrate.parity.fitting.results import Fit
from migrate.parity.ground.errors import ParityError
from migrate.parity.ground.options import ParityOptions, SideOptions
from migrate.parity.ground.requests import TORCH
from migrate.parity.inputs.channels import OF_A_SIDE
from migrate.parity.run.load import load_both
from migrate.parity.run.prepare import image_shapes, inputs_for, laid_out_for, layout_told
from migrate.parity.sides import protocol
from migrate.parity.sides.start import workplace
from migrate.parity.sides.target import Target, parse_target

_COUNT = 2
_LAST = "--target-channels-last"


@dataclass(frozen=True)
class Models:
    """Two models that are to have the same weights.

    Attributes:
        torch, flax: targets, as in `migrate parity`.
        inputs: inputs of both (`parity.inputs.spec`); none: derived from torch's model.
        apply: for a target that is no module, the function of (params, *inputs); `flax` is then the pytree
            of parameters, or a function that returns it.
        drop: regular expressions of torch's keys that the Flax model has no use for.
        python: the interpreter that runs the Flax model.
        channels_last: inputs that it takes channels last; None: those that torch's convolutions take.
    """

    torch: str
    flax: str
    inputs: Sequence[str] = ()
    drop: Sequence[str] = ()
    apply: str | None = None
    python: str = sys.executable
    channels_last: tuple[str, ...] | None = None


def fit_models(models: Models, mapping: Path, progress: Callable[[str], None]) -> Fit:
    """Find the place of each torch weight in the Flax model, and write a mapping file.

    Raises:
        ParityError, ConversionError: a model cannot be built or run, or a weight has no place.
    """
    target = SideOptions(python=models.python, channels_last=models.channels_last, hasty=True)
    options = ParityOptions(inputs=tuple(models.inputs), count=_COUNT, b=target)
    with workplace(None) as work, contextlib.ExitStack() as stack, _own_option():
        progress("loading both models")
        named = parse_target(models.torch), _target(models)
        torch, flax, said = load_both(*named, options, work, stack)
        if torch.kind not in TORCH:
            raise ParityError(
                f"{models.torch}: not a torch module", "name the torch module of the weights"
            )
        require_model(flax)
        if flax.kind == "jax" and models.apply is None:
            raise ParityError(
                f"{models.flax}: the target is a function; its parameters are unknown",
                "pass the function as --target-apply, and its pytree of parameters as --target",
            )
        progress("making inputs")
        inputs = inputs_for(torch, flax, options, work / "inputs")
        settings = laid_out_for(torch, flax, options.b, inputs, work)
        with layout_told(inputs, settings):
            torch.ask(protocol.Prepare(options.a.settings, inputs))
            flax.ask(protocol.Prepare(settings, inputs, drawn=False))
            fitted = fit(
                torch,
                flax,
                inputs,
                settings,
                work / "fit",
                mapping,
                drop=models.drop,
                example=image_shapes(inputs),
                progress=progress,
            )
        return dataclasses.replace(fitted, notes=(*said, *fitted.notes))


@contextlib.contextmanager
def _own_option() -> Iterator[None]:
    """Replace the option in remedies by the option of `migrate weights`."""
    try:
        yield
    except (ParityError, ConversionError) as error:
        option, of_two = OF_A_SIDE
        error.remedy = error.remedy.replace(option, _LAST).replace(of_two, "")
        error.args = (f"{error.what}; {error.remedy}",)
        raise


def _target(models: Models) -> Target:
    if models.apply is None:
        return parse_target(models.flax)
    parse_target(models.flax)
    return Target("jax", parse_target(models.apply).spec, models.apply, models.flax)
