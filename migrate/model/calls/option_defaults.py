"""Values of expressions while all options of a program have their defaults, and seeds that then nothing sets.

`if args.seed is not None: set_seed(args.seed)`: without a given seed, nothing seeds the script.
"""

from __future__ import annotations

import ast
import operator
import re
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence, Set
from functools import cached_property, lru_cache
from typing import TYPE_CHECKING, Any

from migrate.model.calls.callers import callers_of
from migrate.model.calls.kinds import ClassInstance, External, OptionsValue
from migrate.model.calls.rank_tests import last_part
from migrate.model.calls.scopes import Class, Function, Scope, ValueBinding
from migrate.syntax.walk_ast import walk

if TYPE_CHECKING:
    from migrate.model.calls.analysis import Analysis

Site = tuple[ast.Call, Scope]
UNKNOWN = ...  # no option has this value
# An option with one of these in its name is the number of processes, or the index of this one.
OF_PROCESSES = re.compile(r"rank|world|size|gpu|node|proc|local|num|dist_url", re.IGNORECASE)
# Variables that a launcher of processes sets, besides those.
OF_LAUNCHERS = re.compile(
    r"MASTER_|SLURM|OMPI|PMI|TORCHELASTIC|MV2|XLA|TPU|PJRT|CUDA", re.IGNORECASE
)
FLAGS = "absl.flags.FLAGS"
DEFINES = "DEFINE_"
COMPARED: dict[type[ast.cmpop], Callable[[Any, Any], bool]] = {
    ast.Is: operator.is_,
    ast.IsNot: operator.is_not,
    ast.Eq: operator.eq,
    ast.NotEq: operator.ne,
    ast.Lt: operator.lt,
    ast.LtE: operator.le,
    ast.Gt: operator.gt,
    ast.GtE: operator.ge,
    ast.In: lambda value, container: value in container,
    ast.NotIn: lambda value, container: value not in container,
}


class OptionDefaults:
    """Values of expressions that follow from options alone, if none of these is given.

    An option is declared by `add_argument`, by absl, by `@click.option`, as the default of a parameter that
    no call of the project passes, as the field of a data class, or read from the environment. An option that
    counts processes, or numbers this one, has no default here: the launch sets it.

    Args:
        analysis: the project.
    """

    def __init__(self, analysis: Analysis) -> None:
        self._analysis = analysis
        self._evaluator = analysis.evaluator
        self._known: dict[tuple[ast.expr, Scope], object] = {}

    def of(self, node: ast.expr | None, scope: Scope) -> object:
        """Return the value of `node`; UNKNOWN if options alone do not decide it."""
        if node is None:
            return UNKNOWN
        key = node, scope
        if key not in self._known:
            self._known[key] = UNKNOWN  # what depends on itself
            self._known[key] = self._evaluate(node, scope)
        return self._known[key]

    def _evaluate(self, node: ast.expr, scope: Scope) -> object:
        match node:
            case ast.Constant():
                return node.value
            case ast.UnaryOp(op=ast.Not(), operand=operand):
                value = self.of(operand, scope)
                return UNKNOWN if value is UNKNOWN else not value
            case ast.BoolOp(op=op, values=parts):
                return self._joined(isinstance(op, ast.And), parts, scope)
            case ast.Compare(left=left, ops=[op], comparators=[right]):
                return self._compared(left, op, right, scope)
            case ast.Name(id=name):
                return self._same(self._evaluator.bindings_of(name, scope), name)
            case ast.Attribute():
                return self._attribute(node, scope)
            case ast.Subscript(value=of, slice=ast.Constant(value=str(key))):
                return self._variable(of, key, scope)
            case ast.Call():
                return self._result(node, scope)
        return _literal(node)

    def _joined(self, is_and: bool, parts: Sequence[ast.expr], scope: Scope) -> object:
        """Return `a and b` or `a or b`: one part may decide it where another is unknown."""
        value: object = UNKNOWN
        unknown = False
        for part in parts:
            value = self.of(part, scope)
            if value is UNKNOWN:
                unknown = True
            elif bool(value) is not is_and:
                return value
        return UNKNOWN if unknown else value

    def _compared(self, left: ast.expr, op: ast.cmpop, right: ast.expr, scope: Scope) -> object:
        value = self.of(left, scope)
        other = self.of(right, scope)
        if value is UNKNOWN or other is UNKNOWN:
            return UNKNOWN
        try:
            return COMPARED[type(op)](value, other)
        except (KeyError, TypeError):
            return UNKNOWN

    def _same(self, bindings: Iterator[ValueBinding], name: str) -> object:
        """Return the one value of all bindings of a name or an attribute."""
        values = [self._bound(binding, name) for binding in bindings]
        first = values[0] if values else UNKNOWN
        return first if all(_alike(value, first) for value in values) else UNKNOWN

    def _bound(self, binding: ValueBinding, name: str) -> object:
        if binding.kind == "value":
            return self.of(binding.value, binding.scope)
        if binding.kind == "param" and isinstance(binding.scope, Function):
            return self._parameter(binding.scope, binding.name or name)
        return UNKNOWN

    def _parameter(self, function: Function, name: str) -> object:
        """Return what all calls pass for a parameter; its default if a library calls the function."""
        default, _ = function.declared.get(name, (None, ()))
        outside = function.parent or function
        missing = self.of(default, outside) if default is not None else UNKNOWN
        callers = callers_of(self._analysis).get(function, ())
        if not callers:
            declared = self._clicked(function, name)
            value = missing if declared is UNKNOWN else declared
            return UNKNOWN if _counts(name, value) else value
        values = []
        for call, scope in callers:
            arg = _passed(call, function, name)
            values.append(missing if arg is None else self.of(arg, scope))
        return values[0] if all(_alike(value, values[0]) for value in values) else UNKNOWN

    def _clicked(self, function: Function, name: str) -> object:
        """Return the default that `@click.option` declares for a parameter."""
        for decorator in function.decorators:
            match decorator:
                case ast.Call(func=func) if last_part(func) == "option":
                    if name in option_names(decorator):
                        return option_default(decorator)
        return UNKNOWN

    def _attribute(self, node: ast.Attribute, scope: Scope) -> object:
        values = self._evaluator.values(node.value, scope)
        of_options = any(
            isinstance(value, OptionsValue) or value == External(FLAGS) for value in values
        )
        bindings = [
            binding
            for binding in self._evaluator.members_of(node.value, node.attr, scope)
            if binding.kind != "scope"
        ]
        if of_options:
            default = self.declared(node.attr)
            if not bindings:
                return default
            if default is not UNKNOWN:
                return UNKNOWN  # set to something else on the way
        if not bindings:
            return self._field(node, scope)
        fields = [value.of for value in values if isinstance(value, ClassInstance)]
        if any(self._is_given(of, node.attr) for of in fields):
            return UNKNOWN
        value = self._same(iter(bindings), node.attr)
        return UNKNOWN if _counts(node.attr, value) else value

    def _field(self, node: ast.Attribute, scope: Scope) -> object:
        """Return the default of a data class that a library fills: `tyro.cli(Options).distributed`."""
        if not isinstance(node.value, ast.Name):
            return UNKNOWN
        for binding in self._evaluator.origins(node.value, scope):
            if not isinstance(binding.value, ast.Call):
                continue
            for arg in binding.value.args:
                for value in self._evaluator.values(arg, binding.scope):
                    if isinstance(value, Class) and node.attr in value.fields:
                        bound = value.bindings.get(node.attr, ())
                        default = self._same(iter(bound), node.attr)
                        return UNKNOWN if _counts(node.attr, default) else default
        return UNKNOWN

    def _is_given(self, of: Class, name: str) -> bool:
        """Whether a call of the project passes a field of a data class."""
        return name in of.fields and (of, name) in self._evaluator.passed

    def declared(self, name: str) -> object:
        """Return the default of a command-line option; UNKNOWN if declarations differ or there is none."""
        values = self._declared.get(name, ())
        first = values[0] if values else UNKNOWN
        same = all(_alike(value, first) for value in values)
        return first if same and not _counts(name, first) else UNKNOWN

    @cached_property
    def _declared(self) -> Mapping[str, Sequence[object]]:
        declared: dict[str, list[object]] = defaultdict(list)
        for call, _ in self._evaluator.calls():
            last = last_part(call.func)
            if last == "add_argument":
                for name in option_names(call):
                    declared[name].append(option_default(call))
            elif last.startswith(DEFINES) and len(call.args) > 1:
                declared[str(_literal(call.args[0]))].append(_literal(call.args[1]))
        return declared

    def _result(self, call: ast.Call, scope: Scope) -> object:
        match call.func:
            case ast.Attribute(value=of, attr="get") if len(call.args) in (1, 2):
                return self._variable(of, _literal(call.args[0]), scope, call.args[1:])
            case ast.Attribute(attr="getenv") if len(call.args) in (1, 2):
                return _of_environment(_literal(call.args[0]), call.args[1:])
            case ast.Name(id="bool", ctx=_) if len(call.args) == 1:
                value = self.of(call.args[0], scope)
                return UNKNOWN if value is UNKNOWN else bool(value)
        functions = self._analysis.running[call].functions if call in self._analysis.running else ()
        values = [
            self.of(function.returns[0], function) if len(function.returns) == 1 else UNKNOWN
            for function in functions
        ]
        first = values[0] if values else UNKNOWN
        return first if all(_alike(value, first) for value in values) else UNKNOWN

    def _variable(
        self, of: ast.expr, name: object, scope: Scope, default: Sequence[ast.expr] = ()
    ) -> object:
        """Return the default of an environment variable that is read through `os.environ`."""
        if External("os.environ") not in self._evaluator.values(of, scope):
            return UNKNOWN
        return _of_environment(name, default)


@lru_cache(maxsize=2)
def option_defaults_of(analysis: Analysis) -> OptionDefaults:
    """Return the defaults of a project's options, computed once for all files."""
    return OptionDefaults(analysis)


def option_names(call: ast.Call) -> list[str]:
    """Return the attributes that may hold the value of a declared option."""
    named = [k.value for k in call.keywords if k.arg == "dest"] or call.args
    texts = [constant.value for constant in named if isinstance(constant, ast.Constant)]
    # click declares `--shout/--no-shout`.
    return [str(text).split("/")[0].lstrip("-").replace("-", "_") for text in texts]


def option_default(call: ast.Call) -> object:
    """Return the value of a declared option that is not given; UNKNOWN if the script does not show it."""
    named = {keyword.arg: keyword.value for keyword in call.keywords}
    if "default" in named:
        return _literal(named["default"])
    action = named.get("action")
    if isinstance(action, ast.Constant) and action.value in ("store_true", "store_false"):
        return action.value == "store_false"
    if isinstance(named.get("is_flag"), ast.Constant):
        return False
    if "required" in named and _literal(named["required"]) is not False:
        return UNKNOWN
    plain = action is None or (isinstance(action, ast.Constant) and action.value == "store")
    return None if plain and None not in named else UNKNOWN


def _of_environment(name: object, default: Sequence[ast.expr]) -> object:
    """Return the value of a variable that nobody sets; UNKNOWN for those that a launcher sets."""
    if not isinstance(name, str) or OF_PROCESSES.search(name) or OF_LAUNCHERS.search(name):
        return UNKNOWN
    return _literal(default[0]) if default else None


def _counts(name: str, value: object) -> bool:
    """Whether an option counts processes or numbers this one; a flag does neither."""
    return OF_PROCESSES.search(name) is not None and not isinstance(value, bool)


def _passed(call: ast.Call, function: Function, name: str) -> ast.expr | None:
    """Return the argument of `call` for a parameter; an unknown one if it unpacks others."""
    for keyword in call.keywords:
        if keyword.arg == name:
            return keyword.value
    unpacked = [k.value for k in call.keywords if k.arg is None]
    positional = function.parameters[function.is_bound :]
    if name in positional and positional.index(name) < len(call.args):
        before = call.args[: positional.index(name) + 1]
        starred = next((arg for arg in before if isinstance(arg, ast.Starred)), None)
        return starred or before[-1]
    starred = next((arg for arg in call.args if isinstance(arg, ast.Starred)), None)
    return starred or (unpacked[0] if unpacked else None)


def _literal(node: ast.expr) -> object:
    try:
        return ast.literal_eval(node)
    except (ValueError, TypeError, SyntaxError):
        return UNKNOWN


def _alike(value: object, other: object) -> bool:
    """Whether two values are the same constant; True is not 1."""
    return type(value) is type(other) and value == other


class OptionalSeeds:
    """Search for seeds that are set only if one is given, and for the code that runs before.

    Args:
        analysis: the project.
    """

    def __init__(self, analysis: Analysis) -> None:
        self._analysis = analysis
        self._tests: dict[Scope, dict[ast.Call, list[ast.expr]]] = {}

    def is_optional(self, site: Site) -> bool:
        """Whether a test of the seed itself decides if the call at `site` runs."""
        call = site[0]
        return self._is_asked(site, [*call.args, *(k.value for k in call.keywords)], frozenset())

    def _is_asked(self, site: Site, seeds: list[ast.expr], seen: frozenset[Scope]) -> bool:
        """Whether a test of one of `seeds`, which the call at `site` passes on, decides if it runs."""
        call, scope = site
        if any(self._asks_for(test, seeds) for test in self._tests_around(call, scope)):
            return True
        if not isinstance(scope, Function) or scope in seen:
            return False
        names = {n.id for seed in seeds for n in walk(seed) if isinstance(n, ast.Name)}
        callers = callers_of(self._analysis).get(scope, ())
        return bool(callers) and all(
            self._is_asked(caller, _passed_for(names, caller[0], scope), seen | {scope})
            for caller in callers
        )

    def comes_after(self, site: Site, firsts: Iterable[Site]) -> bool:
        """Whether the call at `site` runs after one of `firsts`, by the lines in the scopes that run both."""
        lines = self._lines(site)
        for first in firsts:
            before = self._lines(first)
            pairs = [(before[s], lines[s]) for s in lines.keys() & before.keys()]
            differing = [(a, b) for a, b in pairs if a != b]
            if differing and all(a < b for a, b in differing):
                return True
        return False

    def _lines(self, site: Site) -> dict[Scope, int]:
        """Return the scopes that reach the call at `site`, each with its first line that does."""
        lines: dict[Scope, int] = {}
        waiting = [site]
        while waiting:
            call, scope = waiting.pop()
            if scope not in lines and isinstance(scope, Function):
                waiting += callers_of(self._analysis).get(scope, ())
            lines[scope] = min(call.lineno, lines.get(scope, call.lineno))
        return lines

    def _tests_around(self, call: ast.Call, scope: Scope) -> list[ast.expr]:
        top = scope
        while top.parent is not None:
            top = top.parent
        if top not in self._tests:
            tests: dict[ast.Call, list[ast.expr]] = defaultdict(list)
            _note(scope.module.tree, [], tests)
            self._tests[top] = tests
        return self._tests[top].get(call, [])

    def _asks_for(self, test: ast.expr, seeds: list[ast.expr]) -> bool:
        """Whether `test` reads what is in one of `seeds`, and may fail."""
        names = {ast.dump(node) for seed in seeds for node in walk(seed)}
        for asked in _asked(test):
            if ast.dump(asked) in names:
                default = self._defaults.get(last_part(asked), ...)
                return default is ... or not _holds(test, asked, default)
        return False

    @cached_property
    def _defaults(self) -> dict[str, object]:
        """Defaults of the project's command-line options."""
        defaults: dict[str, object] = {}
        for call, _ in self._analysis.evaluator.calls():
            if last_part(call.func) != "add_argument":
                continue
            default = option_default(call)
            if default is not UNKNOWN:
                defaults |= dict.fromkeys(option_names(call), default)
        return defaults


def _passed_for(names: Set[str], call: ast.Call, function: Function) -> list[ast.expr]:
    """Return the arguments of a call of `function` for the parameters `names`; all where a `*` hides them."""
    keywords = [keyword.value for keyword in call.keywords]
    if any(isinstance(arg, ast.Starred) for arg in call.args) or any(
        keyword.arg is None for keyword in call.keywords
    ):
        return [*call.args, *keywords]
    positional = function.parameters[1:] if function.is_bound else function.parameters
    bound = [*zip(positional, call.args, strict=False)]
    bound += [(str(keyword.arg), keyword.value) for keyword in call.keywords]
    return [value for name, value in bound if name in names]


def _note(
    node: ast.AST, tests: list[ast.expr], tests_by_call: dict[ast.Call, list[ast.expr]]
) -> None:
    """Record the tests that decide whether each call below `node` runs, without inner functions."""
    if isinstance(node, ast.Call):
        tests_by_call[node] = tests
    if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.Lambda):
        tests = []
    for name, value in ast.iter_fields(node):
        around = tests
        if isinstance(node, ast.If) and name == "body" and not _seeds(node.orelse):
            around = [*tests, node.test]
        for child in value if isinstance(value, list) else [value]:
            if not isinstance(child, ast.AST):
                continue
            _note(child, around, tests_by_call)
            if isinstance(child, ast.If) and isinstance(child.body[-1], ast.Return):
                around = [*around, ast.UnaryOp(ast.Not(), child.test)]


def _seeds(statements: list[ast.stmt]) -> bool:
    """Whether `statements` call a function with the name of a seeding function."""
    return any(
        isinstance(node, ast.Call) and "seed" in last_part(node.func).lower()
        for statement in statements
        for node in walk(statement)
    )


def _asked(test: ast.expr) -> Iterator[ast.expr]:
    """Yield the names and attributes that `test` reads."""
    if isinstance(test, ast.UnaryOp):
        yield from _asked(test.operand)
    elif isinstance(test, ast.BoolOp):
        for value in test.values:
            yield from _asked(value)
    elif isinstance(test, ast.Compare):
        yield test.left
    elif isinstance(test, ast.Name | ast.Attribute):
        yield test


def _holds(test: ast.expr, asked: ast.expr, value: object) -> bool:
    """Whether `test` holds if `asked` is `value`; parts that ask for something else count as true."""
    if isinstance(test, ast.UnaryOp) and isinstance(test.op, ast.Not):
        return not _holds(test.operand, asked, value)
    if isinstance(test, ast.BoolOp):
        parts = [_holds(part, asked, value) for part in test.values]
        return all(parts) if isinstance(test.op, ast.And) else any(parts)
    if ast.dump(test) == ast.dump(asked):
        return bool(value)
    if isinstance(test, ast.Compare) and ast.dump(test.left) == ast.dump(asked):
        try:
            return COMPARED[type(test.ops[0])](value, ast.literal_eval(test.comparators[0]))
        except (KeyError, TypeError, ValueError):
            return False
    return True
