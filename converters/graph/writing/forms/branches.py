"""Forms of one class of the original as one class: what only some of them do stands under a condition.

Statements are put in line (`unified.py` says which two say the same), and `conditions.py` parts them.
"""

from __future__ import annotations

import ast
import inspect
from collections.abc import Mapping, Sequence, Set
from dataclasses import dataclass, replace
from typing import Any

from converters.graph.expression import SettingFloat, SettingInt, code
from converters.graph.writing.forms.asserted import asserted
from converters.graph.writing.forms.conditions import Conditions
from converters.graph.writing.forms.form import (
    Apart,
    Entry,
    Form,
    attribute,
    fields_of,
    key,
    names_read,
    names_stored,
    own_field,
)
from converters.graph.writing.forms.unified import Common, unified
from converters.graph.writing.holes import fill
from converters.graph.writing.model import Class
from converters.graph.writing.original.comments import commented, of
from converters.graph.writing.original.names import label_path

# How much shorter than its forms one class has to be.
_SHORTER = 0.9


@dataclass(frozen=True)
class Way:
    """Call of a form, before and after the forms are joined.

    Attributes:
        arguments: the arguments before, in order.
        needed: those that stay positional.
        optional: those that are named now.
        places: of the results before, among those of now.
        results: how many there are now.
    """

    arguments: tuple[str, ...]
    needed: tuple[str, ...]
    optional: tuple[str, ...]
    places: tuple[int, ...]
    results: int


@dataclass(frozen=True)
class Together:
    """Joined class of several forms, with the field values of each module of each form and the call
    of each form.
    """

    cls: Class
    fields: tuple[tuple[dict[str, Any], ...], ...]
    ways: tuple[Way, ...]


def together(
    forms: Sequence[Form], taken: Set[str], settings: Mapping[str, Any]
) -> Together | None:
    """Join forms into one class; None if it would not be shorter, or nothing distinguishes the forms.

    Args:
        forms: at least two, of one class of the original.
        taken: names that no field may have.
        settings: of the model, by name.
    """
    if any(set(form.cls.methods) != {"__call__"} for form in forms):
        return None
    try:
        joined = _Together(forms, taken, settings).run()
    except Apart:
        return None
    before = sum(map(_length, (form.cls for form in forms)))
    return joined if _length(joined.cls) <= _SHORTER * before else None


class _Together:
    def __init__(self, forms: Sequence[Form], taken: Set[str], settings: Mapping[str, Any]) -> None:
        self.forms = forms
        self.settings = settings
        self.all = frozenset(range(len(forms)))
        self.methods = [form.cls.methods["__call__"] for form in forms]
        self.kinds: dict[str, str] = {}
        for method in self.methods:
            for kind, names in (("tensor", method.arguments), ("size", method.sizes)):
                for name in names:
                    if self.kinds.setdefault(name, kind) != kind:
                        raise Apart
        self.names_by_form = [(*method.arguments, *method.sizes) for method in self.methods]
        everywhere = set.intersection(*map(set, self.names_by_form))
        order = sorted(self._order(), key=lambda name: self.kinds[name] == "size")
        self.needed = tuple(name for name in order if name in everywhere)
        self.optional = tuple(name for name in order if name not in everywhere)
        self.labels = tuple(
            sorted({label for method in self.methods for label in method.labels}, key=_place)
        )
        if any(not label_path(label) for label in self.labels) and len(self.labels) > 1:
            raise Apart
        if any(len(set(method.labels)) < len(method.labels) for method in self.methods):
            raise Apart  # nothing says which result is which
        self.common = Common(forms, taken, settings, self.names_by_form, self.optional)
        # Name of a field → its values, for each form and module.
        self.fields = self.common.fields
        for number, form in enumerate(forms):
            for name in form.cls.fields:
                self.fields.setdefault(name, {})[number] = tuple(
                    values[name] for values in form.fields
                )

    def run(self) -> Together:
        conditions = Conditions(self.common)
        setup = conditions.constructor(self._aligned(self._setups(), ()))
        bodies, results = self._bodies()
        entries = self._aligned(bodies, results)
        result, nothing = self._result(entries, results)
        self._demand_sound(entries)
        body = conditions.forward(entries)
        body[:0] = [_no_array(name) for name in sorted(nothing)]
        parts = result.elts if len(self.labels) > 1 and isinstance(result, ast.Tuple) else [result]
        nullable = frozenset(name for method in self.methods for name in method.nullable)
        _, known = asserted(body, {*self.optional, *nothing} - nullable)
        absent = frozenset(
            place
            for place, part in enumerate(parts)
            if isinstance(part, ast.Name) and part.id in {*self.optional, *nothing} - known
        )
        read = {name for tree in (*setup, *body, result) for name in fields_of(tree)}
        self.fields = {name: values for name, values in self.fields.items() if name in read}
        if any(
            attribute(node) in self.fields for statement in setup for node in ast.walk(statement)
        ):
            raise Apart  # what is given cannot be set
        fields = self._values()
        first = self.forms[0].cls
        method = replace(
            self.methods[0],
            arguments=tuple(
                name for name in (*self.needed, *self.optional) if self.kinds[name] == "tensor"
            ),
            sizes=tuple(
                name for name in (*self.needed, *self.optional) if self.kinds[name] == "size"
            ),
            body=body,
            result=result,
            labels=self.labels,
            optional=frozenset(self.optional),
            absent=absent,
            maybe=frozenset({name for method in self.methods for name in method.maybe} | nothing),
            nullable=nullable,
        )
        cls = replace(
            first,
            fields=self._kinds(fields),
            configured=any(form.cls.configured for form in self.forms),
            setup=setup,
            methods={"__call__": method},
        )
        ways = tuple(
            Way(
                self.names_by_form[number],
                self.needed,
                self.optional,
                tuple(self.labels.index(label) for label in self.methods[number].labels),
                len(self.labels),
            )
            for number in sorted(self.all)
        )
        return Together(cls, fields, ways)

    def _setups(self) -> list[list[ast.stmt]]:
        """The constructors; what some forms set by settings and others are given, all are given."""
        setups: list[list[ast.stmt]] = []
        for number, form in enumerate(self.forms):
            setups.append([])
            for statement in form.cls.setup:
                known = self.fields.get(attribute(statement), {number: ()})
                if (
                    isinstance(statement, ast.Assign)
                    and number not in known
                    and _by_settings(statement.value)
                ):
                    known[number] = (statement.value,) * len(form.modules)
                else:
                    setups[-1].append(_copied(statement))
        return setups

    # Arguments and results.

    def _order(self) -> list[str]:
        """The names of all arguments, as the original's forward has them."""
        names = list(
            dict.fromkeys(name for names_of_form in self.names_by_form for name in names_of_form)
        )
        try:
            known = list(inspect.signature(self.forms[0].cls.origin.forward).parameters)  # type: ignore[attr-defined]
        except (TypeError, ValueError):
            known = []
        return sorted(names, key=lambda name: known.index(name) if name in known else len(known))

    def _bodies(self) -> tuple[list[list[ast.stmt]], list[list[ast.expr | None]]]:
        """Statements of each form, and its results, each with a name; None: it has no such result."""
        bodies = [[_copied(statement) for statement in method.body] for method in self.methods]
        results: list[list[ast.expr | None]] = []
        for method in self.methods:
            result = _copied(method.result)
            parts = [result] if len(method.labels) < 2 else getattr(result, "elts", [])
            if len(parts) != max(len(method.labels), 1):
                raise Apart
            results_by_label = dict(zip(method.labels or ("",), parts, strict=True))
            results.append([results_by_label.get(label) for label in self.labels or ("",)])
        for place in range(len(self.labels) or 1):
            column = [row[place] for row in results]
            self._name(place, column, bodies, results)
        return bodies, results

    def _name(
        self,
        place: int,
        column: Sequence[ast.expr | None],
        bodies: list[list[ast.stmt]],
        results: list[list[ast.expr | None]],
    ) -> None:
        there = [expression for expression in column if expression is not None]
        if len({ast.dump(expression) for expression in there}) == 1 and len(there) == len(column):
            return
        named = [expression.id for expression in there if isinstance(expression, ast.Name)]
        named.sort(key=lambda name_: name_ not in self.optional)
        stored = [name for body in bodies for name in names_stored(body)]
        name = (named or stored[-1:] or [*self.needed, "hidden_states"])[0]
        for number, expression in enumerate(column):
            if expression is None or (isinstance(expression, ast.Name) and expression.id == name):
                continue
            others = [other for at, other in enumerate(results[number]) if at != place and other]
            if any(name in names_read(other) for other in others):
                raise Apart
            results[number][place] = ast.Name(name, ast.Load())
            if not (
                isinstance(expression, ast.Name)
                and _renamed(bodies[number], others, expression.id, name)
            ):
                assignment = ast.Assign([ast.Name(name, ast.Store())], expression)
                bodies[number].append(commented(assignment, of(expression)))

    def _result(
        self, entries: list[Entry], results: Sequence[Sequence[ast.expr | None]]
    ) -> tuple[ast.expr, set[str]]:
        """The returned expression, and names in it that are None in forms without such a result or
        name.
        """
        returned: list[ast.expr] = []
        nothing: set[str] = set()
        for place in range(len(self.labels) or 1):
            column = [row[place] for row in results]
            there = next(expression for expression in column if expression is not None)
            returned.append(there)
            without = [number for number, expression in enumerate(column) if expression is None]
            if not without:
                continue
            if not isinstance(there, ast.Name):
                raise Apart
            for number in without:
                stored = {
                    n for e in entries if number in e.places for n in names_stored([e.statement])
                }
                if there.id not in {*stored, *self.needed, *self.optional}:
                    nothing.add(there.id)
        return returned[0] if len(returned) == 1 else ast.Tuple(returned, ast.Load()), nothing

    # Statements that the forms have in common.

    def _aligned(
        self, bodies: Sequence[list[ast.stmt]], results: Sequence[Sequence[ast.expr | None]]
    ) -> list[Entry]:
        self.common.bodies, self.common.results = bodies, results
        merged = [Entry(statement, {0: at}) for at, statement in enumerate(bodies[0])]
        for number in range(1, len(bodies)):
            merged = self._with(merged, number, bodies[number])
        return merged

    def _with(self, merged: list[Entry], number: int, body: list[ast.stmt]) -> list[Entry]:
        """The longest common sequence of what is merged and a form, the rest of both around it."""
        fits: dict[tuple[int, int], Entry] = {}
        for i, entry in enumerate(merged):
            for j, statement in enumerate(body):
                both = unified(self.common, entry, number, j, statement)
                if both is not None:
                    fits[i, j] = both
        best = [[0] * (len(body) + 1) for _ in range(len(merged) + 1)]
        for i in reversed(range(len(merged))):
            for j in reversed(range(len(body))):
                best[i][j] = max(best[i + 1][j], best[i][j + 1])
                if (i, j) in fits:
                    best[i][j] = max(best[i][j], best[i + 1][j + 1] + 1)
        aligned: list[Entry] = []
        i = j = 0
        while i < len(merged) or j < len(body):
            if (i, j) in fits and best[i][j] == best[i + 1][j + 1] + 1:
                aligned.append(self._keep(fits[i, j]))
                i, j = i + 1, j + 1
            elif j == len(body) or (i < len(merged) and best[i + 1][j] >= best[i][j + 1]):
                aligned.append(merged[i])
                i += 1
            else:
                aligned.append(Entry(body[j], {number: j}))
                j += 1
        return aligned

    def _keep(self, entry: Entry) -> Entry:
        for name, values in entry.fields.items():
            known = self.fields.setdefault(name, {})
            for form, value in values.items():
                if key(known.setdefault(form, value)) != key(value):
                    raise Apart
        return entry

    def _demand_sound(self, entries: Sequence[Entry]) -> None:
        """An argument that stands for None in a form must not have been given a value there before."""
        for form in self.all:
            stored: set[str] = set()
            for entry in entries:
                if form not in entry.places:
                    continue
                own = set(names_stored([entry.statement]))
                before = stored | own if isinstance(entry.statement, ast.For) else stored
                if entry.none.get(form, set()) & before:
                    raise Apart
                stored |= own

    # Fields.

    def _values(self) -> tuple[tuple[dict[str, Any], ...], ...]:
        values_of_forms: list[tuple[dict[str, Any], ...]] = []
        for number, form in enumerate(self.forms):
            each: list[dict[str, Any]] = [{} for _ in form.modules]
            for name, values in self.fields.items():
                for at, module in enumerate(form.modules):
                    if number in values:
                        each[at][name] = values[number][at]
                        continue
                    value = vars(module).get(name)
                    if not isinstance(value, bool | int | float):
                        raise Apart
                    each[at][name] = value
            values_of_forms.append(tuple(each))
        return tuple(values_of_forms)

    def _kinds(self, fields: Sequence[Sequence[Mapping[str, Any]]]) -> dict[str, str]:
        known: dict[str, str] = {}
        for form in self.forms:
            known |= form.cls.fields
        for name in self.fields:
            for value in (values_of_module[name] for each in fields for values_of_module in each):
                if isinstance(value, ast.Attribute):
                    value = self.settings.get(value.attr)
                if name not in known and isinstance(value, bool | int | float | str):
                    known[name] = type(_plain_number(value)).__name__
        if set(self.fields) - set(known):
            raise Apart
        return {name: known[name] for name in self.fields}


def _by_settings(tree: ast.expr) -> bool:
    """Whether this is computed from settings and numbers alone: `self.config.width // self.config.heads`."""
    if isinstance(tree, ast.BinOp):
        return _by_settings(tree.left) and _by_settings(tree.right)
    return isinstance(tree, ast.Constant) or (
        isinstance(tree, ast.Attribute) and own_field(tree.value) == "config"
    )


def _plain_number(value: Any) -> Any:
    return value + 0 if isinstance(value, SettingInt | SettingFloat) else value


def _place(label: str) -> tuple[Any, ...]:
    return tuple((isinstance(step, str), step) for step in label_path(label))


def _copied(tree: Any) -> Any:
    return fill(tree, lambda hole: hole)


def _renamed(body: list[ast.stmt], results: Sequence[ast.expr], old: str, new: str) -> bool:
    """Give the value that a name has in the end another name; whether that can be."""
    stores = [at for at, statement in enumerate(body) if old in names_stored([statement])]
    if not stores or not isinstance(body[stores[-1]], ast.Assign):
        return False
    last = body[stores[-1]]
    behind = body[stores[-1] + 1 :]
    if any(new in {*names_read(tree), *names_stored([tree])} for tree in (*behind, *results)):
        return False
    if new in names_stored([last]):
        return False
    assert isinstance(last, ast.Assign)
    for tree in (*last.targets, *behind, *results):
        for node in ast.walk(tree):
            if isinstance(node, ast.Name) and node.id == old:
                node.id = new
    return True


def _no_array(name: str) -> ast.stmt:
    return ast.AnnAssign(
        ast.Name(name, ast.Store()), code("jax.Array | None"), ast.Constant(None), 1
    )


def _length(cls: Class) -> int:
    trees = [*cls.setup, *(tree for m in cls.methods.values() for tree in (*m.body, m.result))]
    text = "\n".join(ast.unparse(ast.fix_missing_locations(_copied(tree))) for tree in trees)
    return sum(1 + len(line) // 100 for line in text.splitlines()) + 2
