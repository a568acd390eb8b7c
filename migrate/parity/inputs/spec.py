"""`--inputs`: shapes, files, or a function of the user's, as the inputs of every side.

    x=float32[2,3,32,32]           drawn; floating: see `migrate.parity.inputs.drawn`
    ids=int64[2,500]<30522         drawn below the bound
    mask=bool[2,500]               true for the first entries of each row, as padding leaves them
    mask=ones:int64[2,500]         ones (or zeros:), in every input
    batch.safetensors              tensors by argument name: .safetensors, .npz, torch.save of a dict;
                                   a .npy is the first argument
    folder/                        such files, one input each, in the order of their names
    data.py:batches                a function, or pkg.module:function: called without arguments it returns an
                                   iterable of dicts, tuples or arrays

Drawn and read arguments may be mixed, as long as each argument has one source. Floating values are kept as
float32, so that every side and the truth see the same numbers. Nothing in a file is executed.
"""

from __future__ import annotations

import math
import re
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from migrate.parity.ground.errors import InputsError

FORMS = (
    "write NAME=float32[2,3,32,32], NAME=int64[2,500]<30522, NAME=ones:int64[2,500], a file, a folder "
    "or file.py:function"
)
_SHAPED = re.compile(
    r"(?P<name>[A-Za-z_]\w*|\d+)=(?:(?P<fill>\w+):)?(?P<dtype>\w+)\[(?P<shape>[^\]]*)\](?P<rest>.*)"
)
_NAMED = re.compile(r"(?:[A-Za-z_]\w*|\d+)=")
_FUNCTION = re.compile(r"(?P<location>.+):(?P<name>[A-Za-z_]\w*(?:\.\w+)*)")
FLOATING = ("float32", "bfloat16", "float16", "float64")
_INTEGERS = ("int64", "int32", "int16", "int8", "uint8")
_MOST_BYTES = 1 << 33


@dataclass(frozen=True)
class Shaped:
    """Argument that is drawn.

    Attributes:
        name: name of the argument; digits are a position.
        dtype: numpy's name of the dtype, or "bfloat16".
        shape: its shape.
        fill: "ones", "zeros", or "" if it is drawn.
        bound: upper bound of integers, exclusive; None for other dtypes.
    """

    name: str
    dtype: str
    shape: tuple[int, ...]
    fill: str = ""
    bound: int | None = None


@dataclass(frozen=True)
class Stored:
    """File or folder of inputs."""

    path: Path


@dataclass(frozen=True)
class InputFunction:
    """Function of the user's that returns inputs: `file.py:name` or `pkg.module:name`."""

    location: str
    name: str

    @property
    def shown(self) -> str:
        """Name as the user wrote it."""
        return f"{self.location}:{self.name}"


Spec = Shaped | Stored | InputFunction


def parse_inputs(texts: Sequence[str], *, drawn: bool = True) -> tuple[Spec, ...]:
    """Parse the texts of `--inputs`.

    Args:
        texts: the texts, one for each option.
        drawn: whether values will be drawn, so that integers need a bound and the size is limited.

    Raises:
        InputsError: a text has an unknown form, lacks a bound, or names an argument a second time.
    """
    specs = tuple(_parse(text, drawn) for text in texts)
    names = [spec.name for spec in specs if isinstance(spec, Shaped)]
    for name in names:
        if names.count(name) > 1:
            raise InputsError(f"--inputs: {name} is given twice", "give each argument once")
    functions = [spec for spec in specs if isinstance(spec, InputFunction)]
    if len(functions) > 1 or (functions and any(isinstance(spec, Stored) for spec in specs)):
        raise InputsError(
            "--inputs: a function cannot be combined with other inputs",
            "give one function, or files",
        )
    return specs


def _parse(text: str, drawn: bool) -> Spec:
    if matched := _SHAPED.fullmatch(text):
        return _shaped(text, matched, drawn)
    if _NAMED.match(text):
        raise InputsError(f"--inputs {text}: not a dtype with a shape", FORMS)
    path = Path(text)
    if path.exists():
        return Stored(path)
    if matched := _FUNCTION.fullmatch(text):
        return InputFunction(matched["location"], matched["name"])
    raise InputsError(f"--inputs {text}: no such file, and not a valid specification", FORMS)


def _shaped(text: str, matched: re.Match[str], drawn: bool) -> Shaped:
    name, dtype, fill, rest = (matched[part] or "" for part in ("name", "dtype", "fill", "rest"))
    if dtype not in (*FLOATING, *_INTEGERS, "bool"):
        known = ", ".join((*FLOATING, *_INTEGERS, "bool"))
        raise InputsError(f"--inputs {text}: {dtype} is not a dtype of inputs", f"one of {known}")
    if fill not in ("", "ones", "zeros"):
        raise InputsError(f"--inputs {text}: {fill}: is not known", "write ones: or zeros:")
    shape = _shape(text, matched["shape"])
    if drawn and math.prod(shape) * 8 > _MOST_BYTES:
        raise InputsError(f"--inputs {text}: is larger than 8 GiB", "give a smaller shape")
    bound = None
    if rest.lstrip().startswith(","):
        first, second = (
            argument.strip() for argument in (text.removesuffix(rest), rest.lstrip(", "))
        )
        raise InputsError(
            f"--inputs {text}: contains several arguments",
            f"write it once for each: --inputs '{first}' --inputs '{second}'",
        )
    if rest:
        limit = re.fullmatch(r"<\s*(\d+)", rest.strip())
        if limit is None or int(limit[1]) < 1 or fill or dtype not in _INTEGERS:
            raise InputsError(
                f"--inputs {text}: {rest} is not an upper bound of drawn integers",
                "write NAME=int64[2,500]<30522",
            )
        bound = int(limit[1])
        if bound - 1 > np.iinfo(dtype).max:
            raise InputsError(
                f"--inputs {text}: {bound} is too large for {dtype}", "give a wider dtype"
            )
    elif drawn and dtype in _INTEGERS and not fill:
        raise InputsError(
            f"--inputs {text}: the upper bound of the integers is unknown",
            f"write {text}<1000 for integers from 0 to 999 (such as the size of a vocabulary), or "
            f"{name}=ones:{dtype}[…] for a mask",
        )
    return Shaped(name, dtype, shape, fill, bound)


def _shape(text: str, inner: str) -> tuple[int, ...]:
    sides = [side.strip() for side in inner.split(",")] if inner.strip() else []
    if not all(side.isascii() and side.isdigit() and int(side) > 0 for side in sides):
        raise InputsError(f"--inputs {text}: [{inner}] is not a shape", "write [2,3,32,32]")
    return tuple(int(side) for side in sides)
