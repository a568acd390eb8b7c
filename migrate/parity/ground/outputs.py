"""What a user says of the models' outputs: which of A is which of B, how they lie, which are left out.

    --outputs 'A.0=B.logits'                     A's first output is B's `logits`
    --outputs 'A.mask[b,h,w]=B.mask[b,h*w]'      the same output, with its last two axes merged in B
    --channels-last-b output.image               B has it channels last, A channels first
    --skip-output B.h                            not compared

A name alone (`A`) and `A.0` are also the only output of a model that gives a single tensor.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass

from migrate.parity.ground.errors import ParityError

Axes = tuple[tuple[str, ...], ...]
ONE = "1"  # an axis of one element, that need not be on the other side
_SPEC = re.compile(r"([AB])(?:\.([^\[\]=]+))?(?:\[([^\[\]=]*)\])?")
_REMEDY = "write --outputs 'A.0=B.logits', with axes 'A.0[b,c,h,w]=B.0[b,h,w,c]'"


@dataclass(frozen=True)
class Said:
    """One output of a side, as a user names it.

    Attributes:
        path: of the output; "" for the only one.
        axes: a name for each axis, or for each of the axes that are merged in it; None: not said.
    """

    path: str
    axes: Axes | None = None


@dataclass(frozen=True)
class OutputRules:
    """All that is said of outputs.

    Attributes:
        pairs: outputs of A, each with B's.
        skipped: side and path of what is not compared.
        last: side and path of what this side has channels last, and the other channels first.
        truth: "A" or "B", whose model the truth is.
    """

    pairs: tuple[tuple[Said, Said], ...] = ()
    skipped: tuple[tuple[str, str], ...] = ()
    last: tuple[tuple[str, str], ...] = ()
    truth: str = "A"

    @property
    def mine(self) -> str:
        """The letter of the other side."""
        return "B" if self.truth == "A" else "A"


def read_rules(
    outputs: Sequence[str], skipped: Sequence[str], last: Sequence[tuple[str, str]]
) -> OutputRules:
    """Read what was said.

    Args:
        outputs: of `--outputs`.
        skipped: of `--skip-output`.
        last: as of `OutputRules`.

    Raises:
        ParityError: it cannot be read.
    """
    pairs = tuple(_pair(text) for text in outputs)
    for number, letter in enumerate("AB"):
        paths = [pair[number].path for pair in pairs]
        twice = next((path for path in paths if paths.count(path) > 1), None)
        if twice is not None:
            raise ParityError(f"--outputs: {shown(letter, twice)} appears twice", _REMEDY)
    return OutputRules(pairs, tuple(_skipped(text) for text in skipped), tuple(last))


def output_named(text: str) -> str | None:
    """The path of the output that `--channels-last-b` names (`output.image`); None: an input's."""
    if text == "output":
        return ""
    return text.removeprefix("output.") if text.startswith("output.") else None


def shown(letter: str, path: str) -> str:
    """An output as `--outputs` names it."""
    return f"{letter}.{path or '0'}"


def _pair(text: str) -> tuple[Said, Said]:
    found = [_SPEC.fullmatch(part.strip()) for part in text.split("=")]
    one, other = found if len(found) == 2 else (None, None)
    if one is None or other is None or {one[1], other[1]} != {"A", "B"}:
        raise ParityError(
            f"--outputs {text}: not a pair of an output of A and an output of B", _REMEDY
        )
    a, b = (one, other) if one[1] == "A" else (other, one)
    said = _said(a, text), _said(b, text)
    _check_axes(said[0].axes, said[1].axes, text)
    return said


def _said(found: re.Match[str], text: str) -> Said:
    if found[3] is None:
        return Said(found[2] or "")
    axes = tuple(
        tuple(name.strip() for name in axis.split("*") if name.strip() != ONE)
        for axis in found[3].split(",")
    )
    names = [name for axis in axes for name in axis]
    if not all(name.isidentifier() for name in names) or len(set(names)) < len(names):
        raise ParityError(f"--outputs {text}: each axis needs one name", _REMEDY)
    return Said(found[2] or "", axes)


def _check_axes(a: Axes | None, b: Axes | None, text: str) -> None:
    names = [None if one is None else {name for axis in one for name in axis} for one in (a, b)]
    if names[0] != names[1]:
        raise ParityError(f"--outputs {text}: both sides need the same names of axes", _REMEDY)


def _skipped(text: str) -> tuple[str, str]:
    found = _SPEC.fullmatch(text.strip())
    if found is None or found[3] is not None:
        raise ParityError(f"--skip-output {text}: not an output", "write --skip-output B.hidden")
    return found[1], found[2] or ""
