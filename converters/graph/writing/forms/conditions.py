"""Statements of several forms, those of some of them under conditions.

A condition asks whether an argument is given, or a field: an attribute of the original's modules that tells
the forms apart, else one that says whether a part is there (`has_downsample`).
"""

from __future__ import annotations

import ast
import itertools
from collections.abc import Iterable, Iterator, Sequence, Set
from dataclasses import dataclass
from typing import Any

from converters.graph.expression import code
from converters.graph.writing.forms.form import Apart, Entry, attribute, key, names_stored
from converters.graph.writing.forms.unified import Common


@dataclass(frozen=True)
class _Atom:
    """A test that holds for some forms: of an argument, or of a field with its values."""

    text: str
    forms: frozenset[int]
    argument: str = ""
    fields: tuple[tuple[str, tuple[tuple[Any, ...], ...]], ...] = ()


class Conditions:
    """The tests that there are, and those that are made up."""

    def __init__(self, common: Common) -> None:
        self.common = common
        self.forms = common.forms
        self.all = frozenset(range(len(common.forms)))
        # What is put together now, by which tests, and whether there may be others.
        self.entries: Sequence[Entry] = ()
        self.atoms: list[_Atom] = []
        self.may_invent = False
        # Tests of fields that the original has not.
        self.made_up: list[_Atom] = []
        self.attributes = list(self._attributes())

    def constructor(self, entries: Sequence[Entry]) -> list[ast.stmt]:
        """The statements of a constructor; there may be new fields for those of some forms."""
        return self._composed(entries, self.attributes, True)

    def forward(self, entries: Sequence[Entry]) -> list[ast.stmt]:
        """The statements of a forward, which may ask for arguments too."""
        arguments_by_form = self.common.arguments
        # What may be None in a form tells it from no other.
        nullable = {name for form in self.forms for name in form.cls.methods["__call__"].nullable}
        arguments = [
            _Atom(f"{name} is {word}None", frozenset(forms), name)
            for name in self.common.optional
            if name not in nullable
            for word, forms in (
                ("not ", {i for i in self.all if name in arguments_by_form[i]}),
                ("", {i for i in self.all if name not in arguments_by_form[i]}),
            )
        ]
        return self._composed(entries, [*arguments, *self.attributes, *self.made_up], False)

    def _attributes(self) -> Iterator[_Atom]:
        """Tests of attributes of the original's modules that tell forms apart."""
        first = vars(self.forms[0].modules[0])
        for name in first:
            if (
                not name.isidentifier()
                or name.startswith("_")
                or name in {*self.common.taken, "training"}
            ):
                continue
            if name.endswith(("idx", "index")):  # which layer it is says nothing of what it does
                continue
            values = tuple(
                tuple(vars(module).get(name) for module in form.modules) for form in self.forms
            )
            kinds = {type(value) for each in values for value in each}
            if len(kinds) != 1 or not kinds <= {bool, int, str}:
                continue
            kind = kinds.pop()
            held = ((name, values),)
            if kind is str:
                for text in sorted({value for each in values for value in each}):
                    is_it = tuple(tuple(value == text for value in each) for each in values)
                    yield from self._split(
                        is_it, f"{name} == {text!r}", f"{name} != {text!r}", held
                    )
            elif kind is bool:
                yield from self._split(values, name, f"not {name}", held)
            elif all(len(set(each)) == 1 and each[0] >= 0 for each in values):
                yield from self._split(values, f"{name} > 0", f"{name} == 0", held)

    def _split(
        self, values: tuple[tuple[Any, ...], ...], text: str, other: str, held: Any
    ) -> Iterator[_Atom]:
        truths = [set(map(bool, each)) for each in values]
        forms = frozenset(i for i, truth in enumerate(truths) if truth == {True})
        if all(len(truth) == 1 for truth in truths) and forms and forms != self.all:
            yield _Atom(_of_self(text), forms, fields=held)
            yield _Atom(_of_self(other), self.all - forms, fields=held)

    def _invented(self, entry: Entry) -> list[_Atom]:
        """Tests of a new field: a part that only some forms have, or have another class for."""
        forms = entry.forms
        where: dict[str, dict[frozenset[int], str]] = {}
        for other in self.entries:
            if name := attribute(other.statement):
                where.setdefault(name, {})[other.forms] = _class_of(other.statement)
        alone = [name for name, classes in where.items() if list(classes) == [forms]]
        rest = [name for name, classes in where.items() if list(classes) == [self.all - forms]]
        held = attribute(entry.statement)
        if alone or rest:
            text = f"has_{(alone or rest)[0].strip('_')}"
            forms = forms if alone else self.all - forms
        elif held and len(where[held]) == 2:
            words = {
                holders: _own_part(cls, where[held].values())
                for holders, cls in where[held].items()
            }
            forms, word = max(
                words.items(), key=lambda word_of_forms: word_of_forms[1].lower() != held.lower()
            )
            text = f"with_{word.lower()}" if all(words.values()) else ""
        else:
            text = ""
        known = {
            *self.common.taken,
            *self.common.fields,
            *(atom.text.split(".")[-1] for atom in self.made_up),
        }
        if not text.isidentifier() or text in known:
            raise Apart
        values = tuple(
            (number in forms,) * len(form.modules) for number, form in enumerate(self.forms)
        )
        atoms = list(self._split(values, text, f"not {text}", ((text, values),)))
        self.made_up += atoms
        return atoms

    def _test(
        self, forms: frozenset[int], among: frozenset[int], atoms: Sequence[_Atom]
    ) -> tuple[str, tuple[_Atom, ...]] | None:
        """The shortest condition that holds for these forms and for no other of `among`."""
        cut = [(atom, atom.forms & among) for atom in atoms]
        for atom, held in cut:
            if held == forms:
                return atom.text, (atom,)
        for size in (2, 3):
            for group in itertools.combinations(cut, size):
                texts = [atom.text for atom, _ in group]
                parts = tuple(atom for atom, _ in group)
                if frozenset.intersection(*(held for _, held in group)) == forms:
                    return " and ".join(texts), parts
                if size == 2 and frozenset.union(*(held for _, held in group)) == forms:
                    return " or ".join(texts), parts
        return None

    def _composed(
        self, entries: Sequence[Entry], atoms: Sequence[_Atom], made_up: bool
    ) -> list[ast.stmt]:
        """Statements, those of some forms under conditions; `made_up`: there may be new fields for these."""
        self.entries, self.atoms, self.may_invent = entries, list(atoms), made_up
        return self._under(entries, self.all, set())

    def _under(
        self, entries: Sequence[Entry], forms: frozenset[int], stored: Set[str]
    ) -> list[ast.stmt]:
        """The statements of some forms, where it is known that it is one of these."""
        statements: list[ast.stmt] = []
        known = set(stored)
        at = 0
        while at < len(entries):
            if entries[at].forms == forms:
                statements.append(entries[at].statement)
                known |= set(names_stored(statements[-1:]))
                at += 1
                continue
            text, those, end = self._parted(entries[at:], forms, known)
            inside = [other for other in entries[at : at + end] if other.forms <= those]
            outside = [other for other in entries[at : at + end] if not other.forms <= those]
            if not inside:
                text, those, inside, outside = _not(text), forms - those, outside, inside
            body = self._under(inside, those, known)
            statements.append(ast.If(code(text), body, self._under(outside, forms - those, known)))
            known |= {
                name for other in entries[at : at + end] for name in names_stored([other.statement])
            }
            at += end
        return statements

    def _parted(
        self, entries: Sequence[Entry], forms: frozenset[int], stored: Set[str]
    ) -> tuple[str, frozenset[int], int]:
        """A condition, for which of the forms it holds, and how many statements it parts into two sides."""
        atoms = [atom for atom in self.atoms if atom.argument not in stored]
        splits: list[tuple[tuple[int, bool, int], str, frozenset[int], tuple[_Atom, ...]]] = []
        own = {entry.forms for entry in entries}
        tests: list[tuple[str, tuple[_Atom, ...], frozenset[int]]] = [
            (atom.text, (atom,), atom.forms & forms) for atom in atoms
        ]
        tests += [
            (*test, those) for those in own if (test := self._test(those, forms, atoms)) is not None
        ]
        for text, parts, those in tests:
            rest = forms - those
            end = len(
                list(
                    itertools.takewhile(
                        lambda entry, a=those, b=rest: entry.forms <= a or entry.forms <= b,  # type: ignore[misc]
                        entries,
                    )
                )
            )
            if those and rest and end:
                usual = those in own or rest in own
                splits.append(((-end, not usual, len(parts)), text, those, parts))
        if not splits:
            if not self.may_invent:
                raise Apart
            self.atoms += self._invented(entries[0])
            return self._parted(entries, forms, stored)
        best = min(splits, key=lambda split: split[0])
        for atom in best[3]:
            for name, values in atom.fields:
                known = self.common.fields.setdefault(name, {})
                for form, value in enumerate(values):
                    if key(known.setdefault(form, value)) != key(value):
                        raise Apart
        return best[1], best[2], -best[0][0]


def _class_of(statement: ast.AST) -> str:
    """`self.mlp = Experts(…)` → "Experts"; of others nothing."""
    match statement:
        case ast.Assign(value=ast.Call(func=ast.Name(id=name))) if name.isalnum():
            return name
    return ""


def _own_part(name: str, names: Iterable[str]) -> str:
    """The distinctive part of a class's name: "DeepseekV3MoE" beside "DeepseekV3MLP" → "MoE"."""
    pairs = itertools.takewhile(lambda letters: len(set(letters)) == 1, zip(*names, strict=False))
    at = len(list(pairs))
    while at and not (name[at : at + 1].isupper() and not name[at - 1].isupper()):
        at -= 1
    return name[at:]


def _of_self(text: str) -> str:
    word, _, rest = text.partition(" ")
    return f"not self.{rest}" if word == "not" else f"self.{text}"


def _not(text: str) -> str:
    """The opposite of a test."""
    inverse = ast.unparse(ast.UnaryOp(ast.Not(), ast.parse(text, mode="eval").body))
    for a, b in ((" is not None", " is None"), (" is None", " is not None")):
        if text.endswith(a) and text.count(" ") == a.count(" "):
            return text.removesuffix(a) + b
    return text.removeprefix("not ") if text.startswith("not ") and " and " not in text else inverse
