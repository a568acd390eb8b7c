"""Rules of a user for the models' outputs: pairs, layouts, and outputs left out.

    --outputs 'A.0=B.logits'                     A's first output is B's `logits`
    --outputs 'A.mask[b,h,w]=B.mask[b,h*w]'      the same output, with its last two axes merged in B
    --channels-last-b output.image               B has it channels last, A channels first
    --skip-output B.h                            not compared

A name alone (`A`) and `A.0` also stand for the only output of a model that returns a single tensor.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass

from migrate.parity.ground.errors import ParityError

Axes = tuple[tuple[str, ...], ...]
ONE = "1"  # an axis of one element, which the other side may lack
_SPEC = re.compile(r"([AB])(?:\.([^\[\]=]+))?(?:\[([^\[\]=]*)\])?")
_REMEDY = "write --outputs 'A.0=B.logits', with axes 'A.0[b,c,h,w]=B.0[b,h,w,c]'"


@dataclass(frozen=True)
class Said:
    """Output of a side, as a user names it.

    Attributes:
        path: path of the output; "" for the only output.
        axes: a name for each axis, or for each of the axes that are merged in it; None: not named.
    """

    path: str
    axes: Axes | None = None


@dataclass(frozen=True)
class OutputRules:
    """All rules for outputs.

    Attributes:
        pairs: outputs of A, each with its partner in B.
        skipped: side and path of outputs that are not compared.
        last: side and path of outputs that this side has channels last, and the other channels first.
        truth: "A" or "B": the side whose model is the truth.
    """

    pairs: tuple[tuple[Said, Said], ...] = ()
    skipped: tuple[tuple[str, str], ...] = ()
    last: tuple[tuple[str, str], ...] = ()
    truth: str = "A"

    @property
    def mine(self) -> str:
        """Letter of the side that is not the truth."""
        return "B" if self.truth == "A" else "A"


def read_rules(
    outputs: Sequence[str], skipped: Sequence[str], last: Sequence[tuple[str, str]]
) -> OutputRules:
    """Read the rules.

    Args:
        outputs: texts of `--outputs`.
        skipped: texts of `--skip-output`.
        last: as in `OutputRules`.

    Raises:
        ParityError: a rule cannot be read.
    """
    pairs = tuple(_pair(text) for text in outputs)
    for number, letter in enumerate("AB"):
        paths = [pair[number].path for pair in pairs]
        twice = next((path for path in paths if paths.count(path) > 1), None)
        if twice is not None:
            raise ParityError(f"--outputs: {shown(letter, twice)} appears twice", _REMEDY)
    return OutputRules(pairs, tuple(_skipped(text) for text in skipped), tuple(last))


def output_named(text: str) -> str | None:
    """Path of the output that `--channels-last-b` names (`output.image`); None: it names an input."""
    if text == "output":
        return ""
    return text.removeprefix("output.") if text.startswith("output.") else None


def shown(letter: str, path: str) -> str:
    """Name of an output as `--outputs` spells it."""
    return f"{letter}.{path or '0'}"


def _pair(text: str) -> tuple[Said, Said]:
    matches = [_SPEC.fullmatch(part.strip()) for part in text.split("=")]
    first, other = matches if len(matches) == 2 else (None, None)
    if first is None or other is None or {first[1], other[1]} != {"A", "B"}:
        raise ParityError(
            f"--outputs {text}: not a pair of an output of A and an output of B", _REMEDY
        )
    a, b = (first, other) if first[1] == "A" else (other, first)
    said = _read_output(a, text), _read_output(b, text)
    _check_axes(said[0].axes, said[1].axes, text)
    return said


def _read_output(match: re.Match[str], text: str) -> Said:
    if match[3] is None:
        return Said(match[2] or "")
    axes = tuple(
        tuple(name.strip() for name in axis.split("*") if name.strip() != ONE)
        for axis in match[3].split(",")
    )
    names = [name for axis in axes for name in axis]
    if not all(name.isidentifier() for name in names) or len(set(names)) < len(names):
        raise ParityError(f"--outputs {text}: each axis needs one name", _REMEDY)
    return Said(match[2] or "", axes)


def _check_axes(a: Axes | None, b: Axes | None, text: str) -> None:
    names = [
        None if side_axes is None else {name for axis in side_axes for name in axis}
        for side_axes in (a, b)
    ]
    if names[0] != names[1]:
        raise ParityError(f"--outputs {text}: both sides need the same names of axes", _REMEDY)


def _skipped(text: str) -> tuple[str, str]:
    match = _SPEC.fullmatch(text.strip())
    if match is None or match[3] is not None:
        raise ParityError(f"--skip-output {text}: not an output", "write --skip-output B.hidden")
    return match[1], match[2] or ""
