"""Pair the outputs of a side with the truth's; axes stay as they are unless a user says otherwise.

A model's outputs are what its users receive. An output under another name, with merged axes or with axes in
another order, is a different output, whatever its values. The rule that would make it equal is reported, not
assumed.
"""

from __future__ import annotations

import difflib
import math
from collections.abc import Iterator, Mapping, Sequence

from migrate.parity.align.tensors import ALIKE, SURE, TensorArrangement, Tensors, distance
from migrate.parity.dump.dump import TensorRef
from migrate.parity.ground.alignment import Apart, OutputPairs, TensorPair
from migrate.parity.ground.errors import ParityError
from migrate.parity.ground.outputs import ONE, Axes, OutputRules, Said, shown

Shape = tuple[int, ...]
Refs = Mapping[str, TensorRef]
_PLAIN = TensorArrangement()


def pair_outputs(
    tensors: Tensors,
    truth: Sequence[TensorRef],
    mine: Sequence[TensorRef],
    rules: OutputRules | None,
) -> OutputPairs:
    """Pair the outputs of two models.

    Args:
        tensors: compares the tensors of the two models.
        truth, mine: their outputs on the same input.
        rules: the user's rules; None: both sides run one model.

    Raises:
        ParityError: the rules name outputs that do not exist.
    """
    refs = {ref.path: ref for ref in truth}, {ref.path: ref for ref in mine}
    return _Pairing(tensors, *refs, rules or OutputRules()).pairs()


class _Pairing:
    def __init__(self, tensors: Tensors, truth: Refs, mine: Refs, rules: OutputRules) -> None:
        self._tensors, self._rules = tensors, rules
        self._truth, self._mine = dict(truth), dict(mine)
        self._notes: list[str] = []
        self._pairs: list[TensorPair] = []
        self._apart: list[Apart] = []

    def pairs(self) -> OutputPairs:
        truth_last, mine_last = self._channels_last()
        said = [self._named(pair) for pair in self._rules.pairs]
        # `--skip-output` does not remove an output that a rule pairs.
        taken = {truth.path for truth, _ in said}, {other.path for _, other in said}
        self._skip(*taken)
        alike = [path for path in self._truth if path in self._mine]
        said += [
            (Said(path), Said(path))
            for path in alike
            if path not in taken[0] and path not in taken[1]
        ]
        order = list(self._truth)
        for truth, other in sorted(said, key=lambda pair: order.index(pair[0].path)):
            last = truth.path in truth_last, other.path in mine_last
            self._pair(truth, other, *last)
        paired = {truth.path for truth, _ in said}, {other.path for _, other in said}
        self._left(
            [ref for path, ref in self._truth.items() if path not in paired[0]],
            [ref for path, ref in self._mine.items() if path not in paired[1]],
        )
        return OutputPairs(tuple(self._pairs), tuple(self._apart), tuple(self._notes))

    def _channels_last(self) -> tuple[set[str], set[str]]:
        last: tuple[set[str], set[str]] = (set(), set())
        for letter, path in self._rules.last:
            last[letter != self._rules.truth].add(self._path(letter, path, "--channels-last"))
        return last

    def _named(self, pair: tuple[Said, Said]) -> tuple[Said, Said]:
        a, b = (
            Said(self._path(letter, said.path, "--outputs"), said.axes)
            for letter, said in zip("AB", pair, strict=True)
        )
        return (a, b) if self._rules.truth == "A" else (b, a)

    def _skip(self, *taken: set[str]) -> None:
        said = [
            (f"{letter}.{named}", self._path(letter, named, "--skip-output"))
            for letter, named in self._rules.skipped
        ]
        for name, path in said:
            for refs, known in zip((self._truth, self._mine), taken, strict=True):
                if path not in known:
                    refs.pop(path, None)
            self._notes.append(f"output {path or '0'} is not compared: --skip-output {name}")

    def _path(self, letter: str, named: str, option: str) -> str:
        """Path of an output that a user names."""
        refs = self._truth if letter == self._rules.truth else self._mine
        if named in refs:
            return named
        if named in ("", "0") and len(refs) == 1:
            return next(iter(refs))
        known = [path or "0" for path in refs]
        near = difflib.get_close_matches(named, known, 1)
        raise ParityError(
            f"{option}: {letter} has no output {named or 'at the top'}",
            f"did you mean {near[0]}?" if near else f"it has: {', '.join(known)}",
        )

    def _pair(self, truth: Said, other: Said, truth_last: bool, mine_last: bool) -> None:
        ref, mine = self._truth[truth.path], self._mine[other.path]
        if truth.axes is not None and other.axes is not None:
            if truth_last != mine_last:
                where = f"output {truth.path or '0'}"
                raise ParityError(
                    f"--outputs and --channels-last both set the layout of {where}", "set it once"
                )
            way = way_of(truth.axes, other.axes, ref.shape, mine.shape)
        elif truth_last != mine_last:
            rank = len(ref.shape)
            to_last = (0, *range(2, rank), 1)
            way = TensorArrangement((0, rank - 1, *range(1, rank - 1)) if truth_last else to_last)
        else:
            way = _PLAIN
        floats = ["float" in each.dtype for each in (ref, mine)]
        lies = None if way is None else _shape(way, ref.shape)
        if floats[0] != floats[1]:
            self._differ(ref, mine, _side_texts(self._rules, ref.dtype, mine.dtype))
        elif way is None or lies != mine.shape:
            said = "" if way == _PLAIN else ", which is not what was said of its axes"
            shapes = _side_texts(self._rules, str(ref.shape), str(mine.shape))
            self._differ(ref, mine, f"{shapes}{said}")
        else:
            pair = way.pair(mine.path, ref.path)
            self._pairs.append(pair)
            if way == _PLAIN and math.prod(mine.shape) > 1:
                self._note_likely_match(ref, mine)

    def _differ(self, ref: TensorRef, mine: TensorRef, how: str) -> None:
        spec = self._spec(ref, mine)
        remedy = f"if that is meant, --outputs '{spec}'" if spec else ""
        self._apart.append(Apart(ref.path, mine.path, how, remedy))

    def _note_likely_match(self, ref: TensorRef, mine: TensorRef) -> None:
        """Note where the values differ as they are, but agree with other axes or another output."""
        plain = distance(self._tensors.values(ref, True), self._tensors.values(mine, False))
        if plain <= ALIKE:
            return
        for candidate in (
            ref,
            *(candidate for candidate in self._truth.values() if candidate is not ref),
        ):
            if (spec := self._spec(candidate, mine)) is not None:
                names = shown(self._rules.mine, mine.path), shown(self._rules.truth, candidate.path)
                how = " with its axes in another order" if candidate is ref else ""
                self._notes.append(
                    f"{names[0]} has the values of {names[1]}{how}: if that is meant, "
                    f"--outputs '{spec}'"
                )
                return

    def _left(self, truth: list[TensorRef], mine: list[TensorRef]) -> None:
        """Report outputs without a namesake; outputs with the same values are reported as a pair."""
        alone = len(truth) == len(mine) == 1
        for ref in truth:
            for other in mine:
                likely = alone and ref.shape == other.shape
                spec = self._spec(ref, other) or (self._rule_text(ref, other) if likely else None)
                if spec is not None:
                    names = (
                        f"'{output.path}'" if output.path else "a single tensor"
                        for output in (ref, other)
                    )
                    why = f"{_side_texts(self._rules, *names)}: another name or structure"
                    self._apart.append(Apart(ref.path, other.path, why, f"--outputs '{spec}'"))
                    mine = [output for output in mine if output is not other]
                    break
            else:
                self._alone(ref, self._rules.truth, mine=False)
        for ref in mine:
            self._alone(ref, self._rules.mine, mine=True)

    def _alone(self, ref: TensorRef, letter: str, *, mine: bool) -> None:
        truth, own = (None, ref.path) if mine else (ref.path, None)
        named = shown(letter, ref.path)
        remedy = f"name the other's with --outputs, or leave it out: --skip-output {named}"
        self._apart.append(Apart(truth, own, f"only {letter} has it", remedy))

    def _rule_text(self, ref: TensorRef, mine: TensorRef, axes: tuple[str, str] = ("", "")) -> str:
        texts = [
            shown(letter, output.path) + named
            for letter, output, named in zip(
                (self._rules.truth, self._rules.mine), (ref, mine), axes, strict=True
            )
        ]
        return "=".join(sorted(texts))

    def _spec(self, ref: TensorRef, mine: TensorRef) -> str | None:
        match = self._tensors.between(ref, mine)
        if match is None or match.distance > SURE:
            return None
        named = axes_of(match.way, ref.shape, mine.shape)
        if named is None:
            return None
        return self._rule_text(ref, mine, named)


def _side_texts(rules: OutputRules, truth: str, mine: str) -> str:
    said = sorted([(rules.truth, truth), (rules.mine, mine)])
    return " and ".join(f"{what} in {letter}" for letter, what in said)


def _shape(way: TensorArrangement, truth: Shape) -> Shape | None:
    """Shape of the truth's tensor in the side's layout; None: there is no such layout."""
    shape = truth
    if way.split is not None:
        if math.prod(way.split) != math.prod(shape):
            return None
        shape = way.split
    if way.axes is not None:
        if sorted(way.axes) != list(range(len(shape))):
            return None
        shape = tuple(shape[axis] for axis in way.axes)
    if way.shape is not None:
        return way.shape if math.prod(way.shape) == math.prod(shape) else None
    return shape


def way_of(
    truth: Axes, mine: Axes, truth_shape: Shape, mine_shape: Shape
) -> TensorArrangement | None:
    """Arrangement that the named axes describe; None: the axes do not fit the shapes.

    Raises:
        ParityError: the sizes of merged axes are unknown.
    """
    if len(truth) != len(truth_shape) or len(mine) != len(mine_shape):
        return None
    sizes: dict[str, int] = {}
    merged = []
    for axis, size in [
        *zip(truth, truth_shape, strict=True),
        *zip(mine, mine_shape, strict=True),
    ]:
        if len(axis) == 1 and sizes.setdefault(axis[0], size) != size:
            return None
        if not axis and size != 1:
            return None
        if len(axis) > 1:
            merged.append((axis, size))
    for axis, size in merged:
        unknown = [name for name in axis if name not in sizes]
        known = math.prod(sizes[name] for name in axis if name in sizes)
        if len(unknown) > 1:
            raise ParityError(
                f"--outputs: the sizes of {' and '.join(unknown)} are unknown on both sides",
                "compare models that return them separately",
            )
        if size % known or (not unknown and size != known):
            return None
        sizes.update(dict.fromkeys(unknown, size // known))
    names = [name for axis in truth for name in axis]
    order = [name for axis in mine for name in axis]
    split = tuple(sizes[name] for name in names)
    axes = tuple(names.index(name) for name in order)
    moved = tuple(sizes[name] for name in order)
    return TensorArrangement(
        axes if axes != tuple(range(len(axes))) else None,
        mine_shape if moved != mine_shape else None,
        split if split != truth_shape else None,
    )


def axes_of(way: TensorArrangement, truth: Shape, mine: Shape) -> tuple[str, str] | None:
    """Axes of both sides as `--outputs` names them; None: it cannot name this arrangement."""
    if way == _PLAIN:
        return "", ""
    sizes = way.split or (truth if way.axes is not None or len(truth) >= len(mine) else mine)
    names = [chr(ord("a") + axis) for axis in range(len(sizes))]
    axes = way.axes or tuple(range(len(sizes)))
    both = (
        _grouped(names, sizes, truth),
        _grouped([names[axis] for axis in axes], [sizes[axis] for axis in axes], mine),
    )
    a, b = (None if names is None else f"[{','.join(names)}]" for names in both)
    return None if a is None or b is None else (a, b)


def _grouped(names: Sequence[str], sizes: Sequence[int], merged: Shape) -> list[str] | None:
    """Axes of the merged shape, as names joined by `*`; None: the shape is no such merge."""
    left: Iterator[tuple[str, int]] = iter(zip(names, sizes, strict=True))
    groups = []
    for size in merged:
        group: list[str] = []
        product = 1
        while product < size or (size == 1 and not group and len(merged) == len(sizes)):
            name, length = next(left, ("", 0))
            if not name:
                return None
            group.append(name)
            product *= length
        if product != size:
            return None
        groups.append("*".join(group) or ONE)
    return groups if next(left, None) is None else None
