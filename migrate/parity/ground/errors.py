"""Errors that end a comparison before there is a verdict."""

from __future__ import annotations

from collections.abc import Sequence

from migrate.errors import MigrateError


class ParityError(MigrateError):
    """The comparison could not be made.

    Cause: a side cannot be built, its model takes other inputs, its outputs have another structure.

    Remedy: as the line says.
    """


class TargetError(ParityError):
    """A side's name leads to nothing that can be compared.

    Cause: no such file, module or attribute, a factory that raises, an object that is no model.

    Remedy: `file.py:factory`, `pkg.module:factory`, a Hugging Face folder or a recorded dump.
    """


class ArgumentsError(TargetError):
    """A model cannot be built without arguments.

    Cause: its factory has parameters without defaults.

    Remedy: write them behind it: `jax_resnet:ResNet50(n_classes=1000)`.
    """

    def __init__(self, what: str, remedy: str, names: tuple[str, ...] = ()) -> None:
        super().__init__(what, remedy)
        self.names = names


class WeightsError(ParityError):
    """The weights of one model have no place in the other.

    Cause: other names, other shapes, other layers.

    Remedy: a mapping file (`--mapping`), or as the line says.
    """


class InputsError(ParityError):
    """The inputs cannot be made, or the model does not take them.

    Cause: the signature does not tell shapes, or a side takes other arguments.

    Remedy: say them: `--inputs 'x=float32[2,3,32,32]'`, a file, or a function.
    """


def refused_inputs(
    shown: str, unknown: Sequence[str], lacking: Sequence[str], takes: Sequence[str]
) -> InputsError:
    """Return the error for inputs that do not go with a model's parameters.

    Args:
        shown: the model, as the user named it.
        unknown: names of inputs that the model does not take.
        lacking: required parameters without an input.
        takes: all parameters that take inputs.
    """
    from converters.model import nearest

    what = [
        f"{verb} the input{'s' * (len(names) > 1)} {', '.join(names)}"
        for verb, names in (("does not take", unknown), ("needs", lacking))
        if names
    ]
    free = [name for name in takes if name not in unknown]
    meant = dict.fromkeys(near for name in unknown if (near := nearest(name, free)))
    advice = f"did you mean {', '.join(meant)}? " if meant else ""
    listed = f"the model takes: {', '.join(takes) or 'no inputs'}"
    return InputsError(f"{shown}: {' and '.join(what)}", f"{advice}{listed}")


class NoGradientsError(ParityError):
    """The models have no gradients to compare.

    Cause: no output of both is floating.

    Remedy: leave `--gradients` out.
    """


class DumpError(ParityError):
    """A recorded dump cannot be read.

    Cause: it was not finished, or something else wrote it.

    Remedy: record it again with `--keep`.
    """


class SideDiedError(ParityError):
    """A side's process ended, or gave no answer in time.

    Cause: it crashed (a signal, out of memory) or hangs; what it printed last is shown.

    Remedy: run that side alone, or give it more time with `--timeout`.
    """

    def __init__(self, what: str, remedy: str, output: str = "") -> None:
        super().__init__(what, remedy)
        self.output = output
