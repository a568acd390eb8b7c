"""Forms of one class of the original as one class: what only some of them do stands under a condition.

A condition asks whether an argument is given, or a field: an attribute of the original's modules that tells
the forms apart, else one that says whether a part is there (`has_downsample`).
"""

from __future__ import annotations

import ast
import inspect
import itertools
from collections.abc import Iterable, Iterator, Mapping, Sequence, Set
from dataclasses import dataclass, field, replace
from typing import Any, TypeGuard

from converters.graph.expression import SettingFloat, SettingInt, code
from converters.graph.writing.holes import fill
from converters.graph.writing.model import Class
from converters.graph.writing.original.comments import commented, of
from converters.graph.writing.original.names import label_path

# How much shorter than its forms one class has to be.
_SHORTER = 0.9


@dataclass(frozen=True)
class Form:
    """One form of a class.

    Attributes:
        cls: as it is written alone.
        modules: the original's that have it.
        fields: what the fields are for each of them.
    """

    cls: Class
    modules: tuple[Any, ...]
    fields: tuple[Mapping[str, Any], ...]


@dataclass(frozen=True)
class Way:
    """How a form is called, before and now.

    Attributes:
        given: the arguments before, in order.
        needed: those that stay positional.
        optional: those that are named now.
        places: of the results before, among those of now.
        results: how many there are now.
    """

    given: tuple[str, ...]
    needed: tuple[str, ...]
    optional: tuple[str, ...]
    places: tuple[int, ...]
    results: int


@dataclass(frozen=True)
class Together:
    """One class of several forms: what the fields are for each module of each form, how each is called."""

    cls: Class
    fields: tuple[tuple[dict[str, Any], ...], ...]
    ways: tuple[Way, ...]


def together(
    forms: Sequence[Form], taken: Set[str], settings: Mapping[str, Any]
) -> Together | None:
    """One class of forms; None where it would not be shorter, or nothing tells the forms apart.

    Args:
        forms: at least two, of one class of the original.
        taken: names that no field may have.
        settings: of the model, by name.
    """
    if any(set(one.cls.methods) != {"__call__"} for one in forms):
        return None
    try:
        made = _Together(forms, taken, settings).run()
    except _Apart:
        return None
    before = sum(map(_length, (one.cls for one in forms)))
    return made if _length(made.cls) <= _SHORTER * before else None


class _Apart(Exception):  # noqa: N818
    """The forms have no form in common."""


@dataclass
class _Entry:
    """A statement of some forms.

    Attributes:
        statement: as all of them have it.
        places: form → where it stands there.
        none: form → arguments named in it that the form has not, which are None there.
        fields: name of a new field in it → form → its value for each module.
    """

    statement: ast.stmt
    places: dict[int, int]
    none: dict[int, set[str]] = field(default_factory=dict)
    fields: dict[str, dict[int, tuple[Any, ...]]] = field(default_factory=dict)

    @property
    def forms(self) -> frozenset[int]:
        return frozenset(self.places)


@dataclass(frozen=True)
class _Atom:
    """A test that holds for some forms: of an argument, or of a field with its values."""

    text: str
    forms: frozenset[int]
    argument: str = ""
    fields: tuple[tuple[str, tuple[tuple[Any, ...], ...]], ...] = ()


class _Together:
    def __init__(self, forms: Sequence[Form], taken: Set[str], settings: Mapping[str, Any]) -> None:
        self.forms = forms
        self.settings = settings
        self.all = frozenset(range(len(forms)))
        self.methods = [one.cls.methods["__call__"] for one in forms]
        self.taken = taken
        self.kinds: dict[str, str] = {}
        for one in self.methods:
            for kind, names in (("tensor", one.arguments), ("size", one.sizes)):
                for name in names:
                    if self.kinds.setdefault(name, kind) != kind:
                        raise _Apart
        self.given = [(*one.arguments, *one.sizes) for one in self.methods]
        everywhere = set.intersection(*map(set, self.given))
        order = sorted(self._order(), key=lambda one: self.kinds[one] == "size")
        self.needed = tuple(name for name in order if name in everywhere)
        self.optional = tuple(name for name in order if name not in everywhere)
        self.labels = tuple(
            sorted({label for one in self.methods for label in one.labels}, key=_place)
        )
        if any(not label_path(one) for one in self.labels) and len(self.labels) > 1:
            raise _Apart
        if any(len(set(one.labels)) < len(one.labels) for one in self.methods):
            raise _Apart  # nothing says which result is which
        self.bodies: Sequence[list[ast.stmt]] = ()
        self.results: Sequence[Sequence[ast.expr | None]] = ()
        # What is put together now, by which tests, and whether there may be others.
        self.entries: Sequence[_Entry] = ()
        self.atoms: list[_Atom] = []
        self.may_invent = False
        # Tests of fields that the original has not.
        self.made_up: list[_Atom] = []
        # Name of a field → its values, for each form and module.
        self.fields: dict[str, dict[int, tuple[Any, ...]]] = {}
        for number, form in enumerate(forms):
            for name in form.cls.fields:
                self.fields.setdefault(name, {})[number] = tuple(one[name] for one in form.fields)

    def run(self) -> Together:
        attributes = list(self._attributes())
        setup = self._composed(self._aligned(self._setups(), ()), attributes, True)
        attributes += self.made_up
        bodies, results = self._bodies()
        entries = self._aligned(bodies, results)
        result, nothing = self._result(entries, results)
        self._demand_sound(entries)
        arguments = [
            _Atom(f"{name} is {word}None", frozenset(forms), name)
            for name in self.optional
            for word, forms in (
                ("not ", {i for i in self.all if name in self.given[i]}),
                ("", {i for i in self.all if name not in self.given[i]}),
            )
        ]
        body = self._composed(entries, [*arguments, *attributes], False)
        body[:0] = [_no_array(name) for name in sorted(nothing)]
        parts = result.elts if len(self.labels) > 1 and isinstance(result, ast.Tuple) else [result]
        _, known = asserted(body, {*self.optional, *nothing})
        absent = frozenset(
            place
            for place, one in enumerate(parts)
            if isinstance(one, ast.Name) and one.id in {*self.optional, *nothing} - known
        )
        read = {name for tree in (*setup, *body, result) for name in _fields_of(tree)}
        self.fields = {name: values for name, values in self.fields.items() if name in read}
        if any(_attribute(node) in self.fields for one in setup for node in ast.walk(one)):
            raise _Apart  # what is given cannot be set
        fields = self._values()
        first = self.forms[0].cls
        method = replace(
            self.methods[0],
            arguments=tuple(
                one for one in (*self.needed, *self.optional) if self.kinds[one] == "tensor"
            ),
            sizes=tuple(one for one in (*self.needed, *self.optional) if self.kinds[one] == "size"),
            body=body,
            result=result,
            labels=self.labels,
            optional=frozenset(self.optional),
            absent=absent,
            maybe=frozenset({name for one in self.methods for name in one.maybe} | nothing),
        )
        cls = replace(
            first,
            fields=self._kinds(fields),
            configured=any(one.cls.configured for one in self.forms),
            setup=setup,
            methods={"__call__": method},
        )
        ways = tuple(
            Way(
                self.given[number],
                self.needed,
                self.optional,
                tuple(self.labels.index(one) for one in self.methods[number].labels),
                len(self.labels),
            )
            for number in sorted(self.all)
        )
        return Together(cls, fields, ways)

    def _setups(self) -> list[list[ast.stmt]]:
        """The constructors; what some forms set by settings and others are given, all are given."""
        made: list[list[ast.stmt]] = []
        for number, form in enumerate(self.forms):
            made.append([])
            for one in form.cls.setup:
                known = self.fields.get(_attribute(one), {number: ()})
                if isinstance(one, ast.Assign) and number not in known and _by_settings(one.value):
                    known[number] = (one.value,) * len(form.modules)
                else:
                    made[-1].append(_copied(one))
        return made

    # Arguments and results.

    def _order(self) -> list[str]:
        """The names of all arguments, as the original's forward has them."""
        names = list(dict.fromkeys(name for one in self.given for name in one))
        try:
            known = list(inspect.signature(self.forms[0].cls.origin.forward).parameters)  # type: ignore[attr-defined]
        except (TypeError, ValueError):
            known = []
        return sorted(names, key=lambda one: known.index(one) if one in known else len(known))

    def _bodies(self) -> tuple[list[list[ast.stmt]], list[list[ast.expr | None]]]:
        """Statements of each form, and its results, each with a name; None: it has no such result."""
        bodies = [[_copied(one) for one in method.body] for method in self.methods]
        results: list[list[ast.expr | None]] = []
        for method in self.methods:
            result = _copied(method.result)
            parts = [result] if len(method.labels) < 2 else getattr(result, "elts", [])
            if len(parts) != max(len(method.labels), 1):
                raise _Apart
            found = dict(zip(method.labels or ("",), parts, strict=True))
            results.append([found.get(label) for label in self.labels or ("",)])
        for place in range(len(self.labels) or 1):
            column = [one[place] for one in results]
            self._name(place, column, bodies, results)
        return bodies, results

    def _name(
        self,
        place: int,
        column: Sequence[ast.expr | None],
        bodies: list[list[ast.stmt]],
        results: list[list[ast.expr | None]],
    ) -> None:
        there = [one for one in column if one is not None]
        if len({ast.dump(one) for one in there}) == 1 and len(there) == len(column):
            return
        named = [one.id for one in there if isinstance(one, ast.Name)]
        named.sort(key=lambda one: one not in self.optional)
        stored = [name for body in bodies for name in _stored(body)]
        name = (named or stored[-1:] or [*self.needed, "hidden_states"])[0]
        for number, one in enumerate(column):
            if one is None or (isinstance(one, ast.Name) and one.id == name):
                continue
            others = [other for at, other in enumerate(results[number]) if at != place and other]
            if any(name in _loaded(other) for other in others):
                raise _Apart
            results[number][place] = ast.Name(name, ast.Load())
            if not (isinstance(one, ast.Name) and _renamed(bodies[number], others, one.id, name)):
                made = ast.Assign([ast.Name(name, ast.Store())], one)
                bodies[number].append(commented(made, of(one)))

    def _result(
        self, entries: list[_Entry], results: Sequence[Sequence[ast.expr | None]]
    ) -> tuple[ast.expr, set[str]]:
        """What is returned, and which of it is None in a form that has no such result and no such name."""
        made: list[ast.expr] = []
        nothing: set[str] = set()
        for place in range(len(self.labels) or 1):
            column = [one[place] for one in results]
            there = next(one for one in column if one is not None)
            made.append(there)
            without = [number for number, one in enumerate(column) if one is None]
            if not without:
                continue
            if not isinstance(there, ast.Name):
                raise _Apart
            for number in without:
                stored = {n for e in entries if number in e.places for n in _stored([e.statement])}
                if there.id not in {*stored, *self.needed, *self.optional}:
                    nothing.add(there.id)
        return made[0] if len(made) == 1 else ast.Tuple(made, ast.Load()), nothing

    # Statements that the forms have in common.

    def _aligned(
        self, bodies: Sequence[list[ast.stmt]], results: Sequence[Sequence[ast.expr | None]]
    ) -> list[_Entry]:
        self.bodies, self.results = bodies, results
        merged = [_Entry(one, {0: at}) for at, one in enumerate(bodies[0])]
        for number in range(1, len(bodies)):
            merged = self._with(merged, number, bodies[number])
        return merged

    def _with(self, merged: list[_Entry], number: int, body: list[ast.stmt]) -> list[_Entry]:
        """The longest common sequence of what is merged and a form, the rest of both around it."""
        fits: dict[tuple[int, int], _Entry] = {}
        for i, entry in enumerate(merged):
            for j, statement in enumerate(body):
                found = self._unified(entry, number, j, statement)
                if found is not None:
                    fits[i, j] = found
        best = [[0] * (len(body) + 1) for _ in range(len(merged) + 1)]
        for i in reversed(range(len(merged))):
            for j in reversed(range(len(body))):
                best[i][j] = max(best[i + 1][j], best[i][j + 1])
                if (i, j) in fits:
                    best[i][j] = max(best[i][j], best[i + 1][j + 1] + 1)
        made: list[_Entry] = []
        i = j = 0
        while i < len(merged) or j < len(body):
            if (i, j) in fits and best[i][j] == best[i + 1][j + 1] + 1:
                made.append(self._keep(fits[i, j]))
                i, j = i + 1, j + 1
            elif j == len(body) or (i < len(merged) and best[i + 1][j] >= best[i][j + 1]):
                made.append(merged[i])
                i += 1
            else:
                made.append(_Entry(body[j], {number: j}))
                j += 1
        return made

    def _unified(self, entry: _Entry, number: int, at: int, statement: ast.stmt) -> _Entry | None:
        unify = _Unify(self, entry, number, at)
        made = unify.both(entry.statement, statement)
        if made is None:
            return None
        none = {form: set(names) for form, names in entry.none.items()}
        for form, names in unify.none.items():
            none.setdefault(form, set()).update(names)
        return _Entry(made, {**entry.places, number: at}, none, unify.fields)

    def _keep(self, entry: _Entry) -> _Entry:
        for name, values in entry.fields.items():
            known = self.fields.setdefault(name, {})
            for form, value in values.items():
                if _key(known.setdefault(form, value)) != _key(value):
                    raise _Apart
        return entry

    def unread(self, name: str, form: int, at: int) -> bool:
        """Whether a form does not read a name after its statement `at`."""
        loop = not isinstance(self.bodies[form][at], ast.Assign)  # it reads in the next turn
        after = self.bodies[form][at if loop else at + 1 :]
        results = [one for one in self.results[form] if one is not None] if self.results else []
        return not any(name in _loaded(one) for one in (*after, *results))

    def _demand_sound(self, entries: Sequence[_Entry]) -> None:
        """An argument that stands for None in a form must not have been given a value there before."""
        for form in self.all:
            stored: set[str] = set()
            for entry in entries:
                if form not in entry.places:
                    continue
                own = set(_stored([entry.statement]))
                before = stored | own if isinstance(entry.statement, ast.For) else stored
                if entry.none.get(form, set()) & before:
                    raise _Apart
                stored |= own

    # Conditions.

    def _attributes(self) -> Iterator[_Atom]:
        """Tests of attributes of the original's modules that tell forms apart."""
        first = vars(self.forms[0].modules[0])
        for name in first:
            if not name.isidentifier() or name.startswith("_") or name in {*self.taken, "training"}:
                continue
            if name.endswith(("idx", "index")):  # which layer it is says nothing of what it does
                continue
            values = tuple(
                tuple(vars(module).get(name) for module in form.modules) for form in self.forms
            )
            kinds = {type(one) for each in values for one in each}
            if len(kinds) != 1 or not kinds <= {bool, int, str}:
                continue
            kind = kinds.pop()
            held = ((name, values),)
            if kind is str:
                for text in sorted({one for each in values for one in each}):
                    is_it = tuple(tuple(one == text for one in each) for each in values)
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
        found = [set(map(bool, each)) for each in values]
        forms = frozenset(i for i, one in enumerate(found) if one == {True})
        if all(len(one) == 1 for one in found) and forms and forms != self.all:
            yield _Atom(_of_self(text), forms, fields=held)
            yield _Atom(_of_self(other), self.all - forms, fields=held)

    def _invented(self, entry: _Entry) -> list[_Atom]:
        """Tests of a new field: a part that only some forms have, or have another class for."""
        forms = entry.forms
        where: dict[str, dict[frozenset[int], str]] = {}
        for one in self.entries:
            if name := _attribute(one.statement):
                where.setdefault(name, {})[one.forms] = _class_of(one.statement)
        alone = [name for name, found in where.items() if list(found) == [forms]]
        rest = [name for name, found in where.items() if list(found) == [self.all - forms]]
        held = _attribute(entry.statement)
        if alone or rest:
            text = f"has_{(alone or rest)[0].strip('_')}"
            forms = forms if alone else self.all - forms
        elif held and len(where[held]) == 2:
            words = {one: _own_part(cls, where[held].values()) for one, cls in where[held].items()}
            forms, word = max(words.items(), key=lambda one: one[1].lower() != held.lower())
            text = f"with_{word.lower()}" if all(words.values()) else ""
        else:
            text = ""
        known = {*self.taken, *self.fields, *(one.text.split(".")[-1] for one in self.made_up)}
        if not text.isidentifier() or text in known:
            raise _Apart
        values = tuple(
            (number in forms,) * len(form.modules) for number, form in enumerate(self.forms)
        )
        made = list(self._split(values, text, f"not {text}", ((text, values),)))
        self.made_up += made
        return made

    def _test(
        self, forms: frozenset[int], among: frozenset[int], atoms: Sequence[_Atom]
    ) -> tuple[str, tuple[_Atom, ...]] | None:
        """The shortest condition that holds for these forms and for no other of `among`."""
        cut = [(one, one.forms & among) for one in atoms]
        for one, found in cut:
            if found == forms:
                return one.text, (one,)
        for size in (2, 3):
            for group in itertools.combinations(cut, size):
                texts = [one.text for one, _ in group]
                parts = tuple(one for one, _ in group)
                if frozenset.intersection(*(found for _, found in group)) == forms:
                    return " and ".join(texts), parts
                if size == 2 and frozenset.union(*(found for _, found in group)) == forms:
                    return " or ".join(texts), parts
        return None

    def _composed(
        self, entries: Sequence[_Entry], atoms: Sequence[_Atom], made_up: bool
    ) -> list[ast.stmt]:
        """Statements, those of some forms under conditions; `made_up`: there may be new fields for these."""
        self.entries, self.atoms, self.may_invent = entries, list(atoms), made_up
        return self._under(entries, self.all, set())

    def _under(
        self, entries: Sequence[_Entry], forms: frozenset[int], stored: Set[str]
    ) -> list[ast.stmt]:
        """The statements of some forms, where it is known that it is one of these."""
        made: list[ast.stmt] = []
        given = set(stored)
        at = 0
        while at < len(entries):
            if entries[at].forms == forms:
                made.append(entries[at].statement)
                given |= set(_stored(made[-1:]))
                at += 1
                continue
            text, those, end = self._parted(entries[at:], forms, given)
            inside = [one for one in entries[at : at + end] if one.forms <= those]
            outside = [one for one in entries[at : at + end] if not one.forms <= those]
            if not inside:
                text, those, inside, outside = _not(text), forms - those, outside, inside
            body = self._under(inside, those, given)
            made.append(ast.If(code(text), body, self._under(outside, forms - those, given)))
            given |= {name for one in entries[at : at + end] for name in _stored([one.statement])}
            at += end
        return made

    def _parted(
        self, entries: Sequence[_Entry], forms: frozenset[int], stored: Set[str]
    ) -> tuple[str, frozenset[int], int]:
        """A condition, for which of the forms it holds, and how many statements it parts into two sides."""
        atoms = [one for one in self.atoms if one.argument not in stored]
        found: list[tuple[tuple[int, bool, int], str, frozenset[int], tuple[_Atom, ...]]] = []
        own = {one.forms for one in entries}
        tests: list[tuple[str, tuple[_Atom, ...], frozenset[int]]] = [
            (one.text, (one,), one.forms & forms) for one in atoms
        ]
        tests += [
            (*test, those) for those in own if (test := self._test(those, forms, atoms)) is not None
        ]
        for text, parts, those in tests:
            rest = forms - those
            end = len(
                list(
                    itertools.takewhile(
                        lambda one, a=those, b=rest: one.forms <= a or one.forms <= b,  # type: ignore[misc]
                        entries,
                    )
                )
            )
            if those and rest and end:
                usual = those in own or rest in own
                found.append(((-end, not usual, len(parts)), text, those, parts))
        if not found:
            if not self.may_invent:
                raise _Apart
            self.atoms += self._invented(entries[0])
            return self._parted(entries, forms, stored)
        best = min(found, key=lambda one: one[0])
        for atom in best[3]:
            for name, values in atom.fields:
                known = self.fields.setdefault(name, {})
                for form, value in enumerate(values):
                    if _key(known.setdefault(form, value)) != _key(value):
                        raise _Apart
        return best[1], best[2], -best[0][0]

    # Fields.

    def _values(self) -> tuple[tuple[dict[str, Any], ...], ...]:
        made: list[tuple[dict[str, Any], ...]] = []
        for number, form in enumerate(self.forms):
            each: list[dict[str, Any]] = [{} for _ in form.modules]
            for name, values in self.fields.items():
                for at, module in enumerate(form.modules):
                    if number in values:
                        each[at][name] = values[number][at]
                        continue
                    value = vars(module).get(name)
                    if not isinstance(value, bool | int | float):
                        raise _Apart
                    each[at][name] = value
            made.append(tuple(each))
        return tuple(made)

    def _kinds(self, fields: Sequence[Sequence[Mapping[str, Any]]]) -> dict[str, str]:
        known: dict[str, str] = {}
        for form in self.forms:
            known |= form.cls.fields
        for name in self.fields:
            for value in (one[name] for each in fields for one in each):
                if isinstance(value, ast.Attribute):
                    value = self.settings.get(value.attr)
                if name not in known and isinstance(value, bool | int | float | str):
                    known[name] = type(_plain_number(value)).__name__
        if set(self.fields) - set(known):
            raise _Apart
        return {name: known[name] for name in self.fields}


class _Unify:
    """Two trees as one: an argument that one form has not stands for None, a name for what is not read."""

    def __init__(self, above: _Together, entry: _Entry, number: int, at: int) -> None:
        self.above, self.entry, self.number, self.at = above, entry, number, at
        self.none: dict[int, set[str]] = {}
        self.fields: dict[str, dict[int, tuple[Any, ...]]] = {}

    def both(self, a: Any, b: Any, hint: str = "") -> Any:
        if isinstance(a, list) and isinstance(b, list):
            if len(a) != len(b):
                return None
            made = [self.both(x, y, hint) for x, y in zip(a, b, strict=True)]
            return None if any(one is None for one in made) else made
        if not isinstance(a, ast.AST) or not isinstance(b, ast.AST):
            return _Leaf(a) if a == b and type(a) is type(b) else None
        if _is_none(a) and isinstance(b, ast.Name):
            return self._absent(b, self.entry.forms)
        if _is_none(b) and isinstance(a, ast.Name):
            return self._absent(a, {self.number})
        if isinstance(a, ast.Name) and isinstance(b, ast.Name) and a.id != b.id:
            return self._unread(a, b)
        if _is_value(a) and _is_value(b) and ast.dump(a) != ast.dump(b):
            return self._field(a, b, hint)
        if type(a) is not type(b):
            return None
        below = a.arg or "" if isinstance(a, ast.keyword) else ""
        parts: dict[str, Any] = {}
        for name in a._fields:
            one = self.both(getattr(a, name, None), getattr(b, name, None), below)
            if one is None:
                return None
            parts[name] = _plain(one)
        return commented(type(a)(**parts), of(a))

    def _absent(self, name: ast.Name, without: Iterable[int]) -> ast.Name | None:
        """An argument, which is None in the forms that have it not."""
        given, optional = self.above.given, self.above.optional
        if name.id not in optional or not isinstance(name.ctx, ast.Load):
            return None
        if any(name.id in given[form] for form in without):
            return None
        for form in without:
            self.none.setdefault(form, set()).add(name.id)
        return name

    def _unread(self, a: ast.Name, b: ast.Name) -> ast.Name | None:
        if not isinstance(a.ctx, ast.Store):
            return None
        if a.id == "_" and all(
            self.above.unread(b.id, form, at) for form, at in self.entry.places.items()
        ):
            return b
        if b.id == "_" and self.above.unread(a.id, self.number, self.at):
            return a
        return None

    def _field(self, a: ast.expr, b: ast.expr, hint: str) -> ast.expr | None:
        """A field for two numbers that differ: one that is there, or one as the original calls it."""
        forms, other = sorted(self.entry.forms), self.number
        values = {one: self._values(a, one) for one in forms} | {other: self._values(b, other)}
        if any(one is None for one in values.values()):
            return None
        own = [one for one in (_own_field(a), _own_field(b)) if one]
        # In a forward nothing says what a bare number is.
        candidates = own or (
            [] if _bare(a, b) and self.above.results else [self._called(values) or hint]
        )
        name = next((one for one in candidates if one and self._may_be(one, values)), "")
        if not name or name in self.above.taken:
            return None
        self.fields.setdefault(name, {}).update(
            {form: tuple(one or ()) for form, one in values.items()}
        )
        return code(f"self.{name}")

    def _may_be(self, name: str, values: Mapping[int, Any]) -> bool:
        """Whether a field may have these values: no form has others under its name."""
        known = [self.above.fields.get(name, {}), self.fields.get(name, {})]
        return all(
            _key(one) == _key(held[form])
            for form, one in values.items()
            for held in known
            if form in held
        )

    def _values(self, one: ast.expr, form: int) -> tuple[Any, ...] | None:
        modules = self.above.forms[form].modules
        if isinstance(one, ast.Constant):
            return (one.value,) * len(modules)
        own = _own_field(one)
        if own:
            return self.above.fields.get(own, {}).get(form)
        return (one,) * len(modules)

    def _called(self, values: Mapping[int, Any]) -> str:
        """The attribute of the original's modules that has these values."""
        first = self.above.forms[self.number].modules[0]
        for name in vars(first):
            if name.startswith("_") or not name.isidentifier() or name in self.above.taken:
                continue
            if all(
                self._is(vars(module).get(name), value)
                for form, each in values.items()
                for module, value in zip(self.above.forms[form].modules, each, strict=True)
            ):
                return name
        return ""

    def _is(self, held: Any, value: Any) -> bool:
        """Whether an attribute has the value that a number, or a setting of the model, has."""
        match value:
            case ast.Attribute(attr=name):
                value = self.above.settings.get(name)
        return type(held) is type(value) and bool(held == value)


@dataclass(frozen=True)
class _Leaf:
    """What is no tree, so that None is one too."""

    value: Any


def _plain(one: Any) -> Any:
    if isinstance(one, list):
        return [_plain(each) for each in one]
    return one.value if isinstance(one, _Leaf) else one


def _is_none(tree: Any) -> bool:
    return isinstance(tree, ast.Constant) and tree.value is None


def _is_value(tree: ast.AST) -> TypeGuard[ast.expr]:
    """Whether this is a number, a field or a setting."""
    if isinstance(tree, ast.Constant):
        return isinstance(tree.value, bool | int | float)
    setting = isinstance(tree, ast.Attribute) and _own_field(tree.value) == "config"
    return setting or bool(_own_field(tree))


def _by_settings(tree: ast.expr) -> bool:
    """Whether this is computed from settings and numbers alone: `self.config.width // self.config.heads`."""
    if isinstance(tree, ast.BinOp):
        return _by_settings(tree.left) and _by_settings(tree.right)
    return isinstance(tree, ast.Constant) or (
        isinstance(tree, ast.Attribute) and _own_field(tree.value) == "config"
    )


def _plain_number(value: Any) -> Any:
    return value + 0 if isinstance(value, SettingInt | SettingFloat) else value


def _key(values: Iterable[Any]) -> tuple[str, ...]:
    """What makes values of a field the same: numbers, and what gives them."""
    return tuple(
        ast.dump(one) if isinstance(one, ast.AST) else f"{one!r} {getattr(one, 'text', '')}"
        for one in values
    )


def _bare(*values: ast.expr) -> bool:
    """Whether one of these is a number that nothing gives."""
    return any(isinstance(one, ast.Constant) for one in values)


def _own_field(tree: ast.AST) -> str:
    """`self.width` → "width"."""
    match tree:
        case ast.Attribute(value=ast.Name(id="self"), attr=name, ctx=ast.Load()):
            return name
    return ""


def _fields_of(tree: ast.AST) -> Iterator[str]:
    return (name for node in ast.walk(tree) if (name := _own_field(node)))


def _place(label: str) -> tuple[Any, ...]:
    return tuple((isinstance(one, str), one) for one in label_path(label))


def _copied(tree: Any) -> Any:
    return fill(tree, lambda hole: hole)


def _stored(body: Iterable[ast.AST]) -> list[str]:
    return [
        node.id
        for one in body
        for node in ast.walk(one)
        if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store) and node.id != "_"
    ]


def _renamed(body: list[ast.stmt], results: Sequence[ast.expr], old: str, new: str) -> bool:
    """Give the value that a name has in the end another name; whether that can be."""
    stores = [at for at, one in enumerate(body) if old in _stored([one])]
    if not stores or not isinstance(body[stores[-1]], ast.Assign):
        return False
    last = body[stores[-1]]
    behind = body[stores[-1] + 1 :]
    if any(new in {*_loaded(one), *_stored([one])} for one in (*behind, *results)):
        return False
    if new in _stored([last]):
        return False
    assert isinstance(last, ast.Assign)
    for tree in (*last.targets, *behind, *results):
        for node in ast.walk(tree):
            if isinstance(node, ast.Name) and node.id == old:
                node.id = new
    return True


def _loaded(tree: ast.AST) -> set[str]:
    return {
        node.id
        for node in ast.walk(tree)
        if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Load)
    }


def _attribute(statement: ast.AST) -> str:
    """`self.norm = …` → "norm"."""
    match statement:
        case ast.Assign(targets=[ast.Attribute(value=ast.Name(id="self"), attr=name)]):
            return name
    return ""


def _class_of(statement: ast.AST) -> str:
    """`self.mlp = Experts(…)` → "Experts"; of others nothing."""
    match statement:
        case ast.Assign(value=ast.Call(func=ast.Name(id=name))) if name.isalnum():
            return name
    return ""


def _own_part(name: str, names: Iterable[str]) -> str:
    """What a class's name has of its own: "DeepseekV3MoE" beside "DeepseekV3MLP" → "MoE"."""
    pairs = itertools.takewhile(lambda one: len(set(one)) == 1, zip(*names, strict=False))
    at = len(list(pairs))
    while at and not (name[at : at + 1].isupper() and not name[at - 1].isupper()):
        at -= 1
    return name[at:]


def _of_self(text: str) -> str:
    word, _, rest = text.partition(" ")
    return f"not self.{rest}" if word == "not" else f"self.{text}"


def _not(text: str) -> str:
    """The opposite of a test."""
    made = ast.unparse(ast.UnaryOp(ast.Not(), ast.parse(text, mode="eval").body))
    for a, b in ((" is not None", " is None"), (" is None", " is not None")):
        if text.endswith(a) and text.count(" ") == a.count(" "):
            return text.removesuffix(a) + b
    return text.removeprefix("not ") if text.startswith("not ") and " and " not in text else made


def _no_array(name: str) -> ast.stmt:
    return ast.AnnAssign(
        ast.Name(name, ast.Store()), code("jax.Array | None"), ast.Constant(None), 1
    )


def asserted(
    body: Sequence[ast.stmt], optional: Set[str], known: Set[str] = frozenset()
) -> tuple[list[ast.stmt], set[str]]:
    """Statements, with assertions that what may be None is not where it is used, for a checker of types.

    Args:
        body: the statements.
        optional: names that may be None.
        known: those of them that are not, before the statements.

    Returns:
        The statements, and which of the names are known not to be None after them.
    """
    made: list[ast.stmt] = []
    found = set(known)
    for one in body:
        if isinstance(one, ast.If):
            needed = _used(one.test) & optional - found
            there, not_there = _tested(one.test)
            one.body, first = asserted(one.body, optional, found | there)
            one.orelse, second = asserted(one.orelse, optional, found | not_there)
            found = first & second
        elif isinstance(one, ast.For):
            needed = _used(one.iter) & optional - found
            one.body, _ = asserted(one.body, optional, found - set(_stored(one.body)))
            found -= set(_stored(one.body))
        else:
            asserts = isinstance(one, ast.Assert)
            needed = set() if asserts else _used(one) & optional - found
            found |= _tested(one.test)[0] if isinstance(one, ast.Assert) else needed
            found -= set(_stored([one]))
            if isinstance(one, ast.Assign) and not _gives_none(one):
                found |= set(_stored([one])) & optional
        made += [ast.Assert(code(f"{name} is not None"), None) for name in sorted(needed)]
        made.append(one)
    return made, found


def _gives_none(one: ast.Assign) -> bool:
    """Whether what is assigned may be None, or a module's results, of which one may be."""
    several = isinstance(one.targets[0], ast.Tuple)
    return several or _is_none(one.value) or isinstance(one.value, ast.Name)


def _used(tree: ast.AST) -> set[str]:
    """The names that are read, but those that are tested or given on by name."""
    match tree:
        case ast.Compare(ops=[ast.Is() | ast.IsNot()]):
            return set()
        case ast.keyword(value=ast.Name()):
            return set()
        case ast.Name(id=name, ctx=ast.Load()):
            return {name}
        case ast.Assign(value=ast.Name()):
            return set()
    return {name for child in ast.iter_child_nodes(tree) for name in _used(child)}


def _tested(test: ast.expr) -> tuple[set[str], set[str]]:
    """The names that are not None where a test holds, and where it does not."""
    match test:
        case ast.Compare(left=ast.Name(id=name), ops=[ast.IsNot()]):
            return {name}, set()
        case ast.Compare(left=ast.Name(id=name), ops=[ast.Is()]):
            return set(), {name}
        case ast.BoolOp(op=ast.And(), values=values):
            return {name for one in values for name in _tested(one)[0]}, set()
    return set(), set()


def _length(cls: Class) -> int:
    trees = [*cls.setup, *(one for m in cls.methods.values() for one in (*m.body, m.result))]
    text = "\n".join(ast.unparse(ast.fix_missing_locations(_copied(one))) for one in trees)
    return sum(1 + len(line) // 100 for line in text.splitlines()) + 2
