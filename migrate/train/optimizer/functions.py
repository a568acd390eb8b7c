"""Python functions of a number as JAX functions: `if` becomes `jnp.where`, `math` becomes `jnp`.

Names, order and comments are the script's. What has no form without control flow raises `Unportable`; the
caller then evaluates the script's own function before training.
"""

from __future__ import annotations

import ast
import re
import textwrap
from collections.abc import Collection, Sequence
from dataclasses import dataclass, field, replace

from migrate.train.optimizer.recorded import RecordedFunction

_MATH = frozenset(
    ("cos", "sin", "tan", "exp", "log", "log2", "log10", "sqrt", "tanh", "pow", "floor", "ceil")
)
_MATH_MODULES = ("math", "np", "numpy", "torch")
_BUILTINS = {"max": "maximum", "min": "minimum", "abs": "abs", "round": "round", "int": "trunc"}


class Unportable(Exception):  # noqa: N818 (no error of the user's)
    """The function has no JAX form that this module knows."""


@dataclass
class ModuleNames:
    """Constants and functions of the written module, in the order of their use.

    Attributes:
        constants: name → value.
        functions: name → text.
    """

    constants: dict[str, object] = field(default_factory=dict)
    functions: dict[str, str] = field(default_factory=dict)

    def constant(
        self, name: str, value: object, taken: Collection[str] = (), *, numbered: bool = False
    ) -> str:
        """Add a constant under its name in the script, and return the name that it has here.

        Args:
            name: the name, with attributes.
            value: the constant.
            taken: names that mean something else where it is read.
            numbered: whether a further value of the name gets a number, as each call may pass its own.

        Raises:
            Unportable: the name has another value.
        """
        short = name.rpartition(".")[2]
        more = [f"{short}_{n}" for n in range(2, 100)] if numbered else []
        for candidate in (short, name.replace(".", "_"), *more):
            if candidate in self.functions or candidate in taken:
                continue
            if self.constants.setdefault(candidate, value) == value:
                return candidate
        raise Unportable(f"{name} has several values")

    def function(self, name: str, text: str) -> str:
        """Add a function or a table (`name = …`), and return the name that it has here."""
        candidate, renamed, number = name, text, 2
        while candidate in self.constants or self.functions.get(candidate, renamed) != renamed:
            candidate, number = f"{name}_{number}", number + 1
            defined = rf"^(def )?{re.escape(name)}(?=\(| = )"
            renamed = re.sub(defined, rf"\g<1>{candidate}", text, count=1, flags=re.MULTILINE)
        self.functions[candidate] = renamed
        return candidate


def parsed(function: RecordedFunction) -> ast.FunctionDef:
    """Return the function's definition; a lambda as a function with one return.

    Raises:
        Unportable: its source is unknown.
    """
    try:
        tree = ast.parse(textwrap.dedent(function.source).strip() or "None")
    except SyntaxError:
        raise Unportable("its source is unknown") from None
    for node in ast.walk(tree):
        if isinstance(node, ast.FunctionDef):
            return node
        if isinstance(node, ast.Lambda):
            result = ast.Return(node.body, lineno=node.lineno, col_offset=0)
            taken = {*function.functions, *function.values}
            name = "factor_of_step" if "factor" in taken else "factor"
            return ast.FunctionDef(name, node.args, [result], [], lineno=node.lineno, col_offset=0)
    raise Unportable("its source is unknown")


@dataclass(frozen=True)
class JaxFunction:
    """Function of one number in the written module.

    Attributes:
        name: its name there.
        constants: constants that it takes after the number, as text: ", total".
    """

    name: str
    constants: str = ""

    def of(self, number: str) -> str:
        """Return the call with an expression of the number."""
        return f"{self.name}({number}{self.constants})"


def port(
    function: RecordedFunction, definitions: ModuleNames, kept: Collection[str] | None = None
) -> JaxFunction:
    """Add a function in JAX to the definitions.

    A lambda that only passes named constants on (`lambda it: factor(it, total)`) becomes the call itself.

    Args:
        function: the function.
        definitions: the written module.
        kept: keyword arguments in `function.keywords` that stay parameters, if another function calls it;
            None if a schedule does.

    Raises:
        Unportable: it has loops, containers or calls without a JAX form.
    """
    node = parsed(function)
    arguments = [argument.arg for argument in (*node.args.posonlyargs, *node.args.args)]
    free = [name for name in arguments if name not in function.keywords]
    defaults = dict(zip(reversed(arguments), reversed(node.args.defaults), strict=False))
    if not free:
        raise Unportable("it takes no number")
    argument = free[0]
    fixed = {name: _default(v, function) for name, v in defaults.items() if name in free[1:]}
    missing = set(free[1:]) - set(fixed)
    if missing or node.args.vararg or node.args.kwarg:
        raise Unportable("it takes more than one number")
    for keyword, default in zip(node.args.kwonlyargs, node.args.kw_defaults, strict=True):
        if default is not None:
            fixed[keyword.arg] = _default(default, function)
    values = {**function.values, **fixed, **function.keywords}
    every = [*arguments, *(keyword.arg for keyword in node.args.kwonlyargs)]
    parameters = [name for name in every if name == argument or name in (kept or ())]
    writer = _JaxWriter(function, values, argument, definitions, parameters)
    lines = writer.body(node.body)
    only = re.fullmatch(rf"return (\w+)\({argument}((?:, (?:\w+=)?-?[\w.]+)*)\)", "\n".join(lines))
    if only and only[1] in definitions.functions and parameters == [argument]:
        passed = {text.rpartition("=")[2] for text in only[2].split(", ") if text}
        # Schedules call their own number and rate so, and a function around it may any name.
        hidden = {"step", "learning_rate", argument}
        plain = function.name == "<lambda>" and kept is None and not passed & hidden
        if not passed or plain:
            return JaxFunction(only[1], only[2])
    doc = f'"""From {function.module}: {function.name}."""'
    if isinstance(node.body[0], ast.Expr) and ast.get_docstring(node):
        doc = ast.get_source_segment(writer.source, node.body[0]) or doc
        lines = [doc, *lines]
    head = f"def {_plain(node.name)}({', '.join(parameters)}):\n"
    text = head + textwrap.indent("\n".join(lines), "    ")
    return JaxFunction(definitions.function(_plain(node.name), text))


def _default(node: ast.expr, function: RecordedFunction) -> object:
    """Return the value of an argument's default."""
    try:
        return ast.literal_eval(node)
    except ValueError:
        text = ast.unparse(node)
        if text in function.values:
            return function.values[text]
        raise Unportable(f"the value of {text} is unknown") from None


def _plain(name: str) -> str:
    """Return the name without what only marks it as private in its library."""
    if not name.startswith("_"):
        return name
    return name.removeprefix("_get_").removesuffix("_lambda").removesuffix("_lr").lstrip("_")


@dataclass
class _Choice:
    condition: str
    value: str
    comments: list[str]
    names: set[str]


class _JaxWriter:
    """Body of one function."""

    def __init__(
        self,
        function: RecordedFunction,
        values: dict[str, object],
        argument: str,
        definitions: ModuleNames,
        parameters: Sequence[str],
    ) -> None:
        self.source = textwrap.dedent(function.source).strip()
        self._lines = self.source.splitlines()
        self._function, self._values = function, values
        self._definitions = definitions
        self._traced = {argument}
        self._local = {*parameters}
        # Parameters that are constants of a caller: what they are until they are assigned.
        self._kept = {name: values[name] for name in parameters if name != argument}
        self._choices: list[_Choice] = []
        self._output: list[str] = []
        self._bound: set[str] = set()

    def body(self, statements: Sequence[ast.stmt]) -> list[str]:
        self._bound = {*self._local, *(n for s in statements for n in _stored(s))}
        self._block(statements)
        return self._output

    def _block(self, statements: Sequence[ast.stmt]) -> None:
        for index, statement in enumerate(statements):
            match statement:
                case ast.Expr(ast.Constant()) | ast.Assert() | ast.Pass():
                    continue
                case ast.Return(ast.expr() as value):
                    self._end(value, self._comments(statement))
                    return
                case ast.Assign([ast.Name(name)], value) | ast.AnnAssign(
                    ast.Name(name), _, ast.expr() as value
                ):
                    self._assign(name, self.text(value), self._is_traced(value), statement)
                case ast.AugAssign(ast.Name(name), operator, value):
                    whole = ast.BinOp(ast.Name(name, ast.Load()), operator, value)
                    self._assign(name, self.text(whole), self._is_traced(whole), statement)
                case ast.If() if _returns(statement.body):
                    self._early(statement)
                    self._block([*statement.orelse, *statements[index + 1 :]])
                    return
                case ast.If():
                    self._merge(statement)
                case _:
                    raise Unportable(f"it has a statement {type(statement).__name__}")
        raise Unportable("it may end without a value")

    def _assign(self, name: str, text: str, traced: bool, statement: ast.stmt) -> None:
        if any(name in choice.names for choice in self._choices):
            raise Unportable(f"{name} is assigned again")
        self._output += [*self._comments(statement), f"{name} = {text}"]
        self._local.add(name)
        self._kept.pop(name, None)
        self._traced = self._traced | {name} if traced else self._traced - {name}

    def _early(self, statement: ast.If) -> None:
        """Keep the value that is returned under a condition."""
        comments = self._comments(statement)
        condition = self._condition(statement.test)
        if not self._is_traced(statement.test):
            condition = f"jnp.asarray({condition})"
        *before, last = statement.body
        for inner in before:
            match inner:
                case ast.Assign([ast.Name(name)], value) if name not in self._local:
                    self._assign(name, self.text(value), self._is_traced(value), inner)
                case ast.Assert() | ast.Expr(ast.Constant()):
                    pass
                case _:
                    raise Unportable("statements before a return are more than assignments")
        if not isinstance(last, ast.Return) or last.value is None:
            raise Unportable("a condition returns no number")
        comments += self._comments(last)
        names = _names(statement.test) | _names(last.value)
        self._choices.append(_Choice(condition, self.text(last.value), comments, names))

    def _merge(self, statement: ast.If) -> None:
        """Write a value that branches assign as a choice."""
        branches: list[tuple[str, dict[str, str]]] = []
        comments = self._comments(statement)
        following: list[ast.stmt] = [statement]
        assigned: list[list[str]] = []
        chain: list[tuple[ast.expr | None, list[ast.stmt]]] = []
        while len(following) == 1 and isinstance(following[0], ast.If):
            chain.append((following[0].test, following[0].body))
            following = following[0].orelse
        chain.append((None, following))
        for _, body in chain:
            assigned.append([_target(inner) for inner in body if not isinstance(inner, ast.Assert)])
        every = [name for names in assigned for name in names]
        merged = {name for name in every if every.count(name) > 1 or name in self._local}
        if any(names.count(name) > 1 for names in assigned for name in merged):
            raise Unportable("a branch assigns a name twice")
        for test, body in chain:
            values: dict[str, str] = {}
            for inner in body:
                if isinstance(inner, ast.Assert):
                    continue
                name, value = _target(inner), inner.value  # type: ignore[attr-defined]
                if values.keys() & _names(value):
                    raise Unportable("a branch reads what it has assigned")
                if name in merged:
                    values[name] = self.text(value)
                else:
                    self._assign(name, self.text(value), self._is_traced(value), inner)
            branches.append(("" if test is None else self._condition(test), values))
        for name in sorted(merged):
            current = branches[-1][1].get(name, name)
            for condition, values in reversed(branches[:-1]):
                current = f"jnp.where({condition}, {values.get(name, name)}, {current})"
            if name not in self._local and any(name not in values for _, values in branches):
                raise Unportable(f"{name} may have no value")
            self._output += [*comments, f"{name} = {current}"]
            comments = []
            self._local.add(name)
            self._kept.pop(name, None)
            self._traced.add(name)
        if any(merged & choice.names for choice in self._choices):
            raise Unportable("a name is assigned again")

    def _end(self, value: ast.expr, comments: list[str]) -> None:
        result = self.text(value)
        if not self._choices:
            self._output += [*comments, f"return {result}"]
        elif len(self._choices) == 1:
            choice = self._choices[0]
            self._output += [
                *choice.comments,
                *comments,
                f"return jnp.where({choice.condition}, {choice.value}, {result})",
            ]
        else:
            conditions = [line for c in self._choices for line in (*c.comments, f"{c.condition},")]
            values = [f"{choice.value}," for choice in self._choices]
            self._output += [
                *comments,
                "return jnp.select(",
                "    [",
                *(f"        {line}" for line in conditions),
                "    ],",
                "    [",
                *(f"        {line}" for line in values),
                "    ],",
                f"    {result},",
                ")",
            ]

    def _comments(self, statement: ast.stmt) -> list[str]:
        """Return the comment lines right above a statement."""
        above: list[str] = []
        line = statement.lineno - 2
        while 0 <= line < len(self._lines) and self._lines[line].strip().startswith("#"):
            above.insert(0, self._lines[line].strip())
            line -= 1
        return above

    def _condition(self, node: ast.expr) -> str:
        return self.text(node)

    # ------------------------------------------------------------------ expressions

    def _is_traced(self, node: ast.AST) -> bool:
        return bool(_names(node) & self._traced)

    def text(self, node: ast.expr) -> str:
        """Return an expression in JAX."""
        return ast.unparse(self._expression(node))

    def _expression(self, node: ast.expr) -> ast.expr:
        traced = self._is_traced(node)
        match node:
            case ast.Constant():
                return node
            case ast.Name(name):
                return node if name in self._local else self._value(name)
            case ast.Attribute():
                dotted = ast.unparse(node)
                if dotted in ("math.pi", "np.pi", "numpy.pi", "torch.pi"):
                    return _name("jnp.pi")
                return self._value(dotted)
            case ast.BinOp(left, operator, right):
                return ast.BinOp(self._expression(left), operator, self._expression(right))
            case ast.UnaryOp(ast.Not(), operand) if traced:
                return ast.UnaryOp(ast.Invert(), self._expression(operand))
            case ast.UnaryOp(operator, operand):
                return ast.UnaryOp(operator, self._expression(operand))
            case ast.BoolOp(operator, values) if traced:
                joined: ast.operator = (
                    ast.BitAnd() if isinstance(operator, ast.And) else ast.BitOr()
                )
                result = self._expression(values[0])
                for value in values[1:]:
                    result = ast.BinOp(result, joined, self._expression(value))
                return result
            case ast.BoolOp(operator, values):
                return ast.BoolOp(operator, [self._expression(value) for value in values])
            case ast.Compare(left, operators, rights):
                return self._comparison(left, operators, rights, traced)
            case ast.IfExp(test, body, orelse):
                parts = [self._expression(part) for part in (test, body, orelse)]
                return ast.Call(_name("jnp.where"), parts, [])
            case ast.Call():
                return self._call(node, traced)
            case ast.Subscript(ast.Name() | ast.Attribute() as table, index) if self._is_table(
                table
            ):
                # behind its end it has no value, as in the script
                held, number = (ast.unparse(self._expression(part)) for part in (table, index))
                return _name(
                    f'jnp.asarray({held}).at[{number}].get(mode="fill", fill_value=jnp.nan)'
                )
            case ast.Tuple(elements) | ast.List(elements) if not traced:
                return type(node)([self._expression(e) for e in elements], ast.Load())
        raise Unportable(f"it has an expression {type(node).__name__}")

    def _is_table(self, node: ast.expr) -> bool:
        """Whether a name holds a list of numbers."""
        value = self._values.get(ast.unparse(node))
        return isinstance(value, list | tuple) and all(type(v) in (int, float) for v in value)

    def _comparison(
        self, left: ast.expr, operators: list[ast.cmpop], rights: list[ast.expr], traced: bool
    ) -> ast.expr:
        if any(isinstance(operator, ast.In | ast.NotIn) for operator in operators) and traced:
            raise Unportable("it looks for its number in a container")
        sides = [self._expression(side) for side in (left, *rights)]
        pairs: list[ast.expr] = [
            ast.Compare(sides[index], [operator], [sides[index + 1]])
            for index, operator in enumerate(operators)
        ]
        result = pairs[0]
        for pair in pairs[1:]:
            result = ast.BinOp(result, ast.BitAnd(), pair)
        return result

    def _call(self, node: ast.Call, traced: bool) -> ast.expr:
        dotted = ast.unparse(node.func)
        if dotted in self._function.functions:
            return self._own_call(self._function.functions[dotted], node)
        if node.keywords:
            raise Unportable("it calls a function with keywords")
        arguments = [self._expression(argument) for argument in node.args]
        root, _, last = dotted.rpartition(".")
        if root in _MATH_MODULES and last in (_MATH | {"maximum", "minimum", "where", "clip"}):
            return ast.Call(_name(f"jnp.{last}"), arguments, [])
        if dotted == "float" and len(arguments) == 1:
            return arguments[0]
        if dotted in _BUILTINS and not root:
            if not traced:
                return ast.Call(_name(dotted), arguments, [])
            result = arguments[0]
            if dotted in ("max", "min"):
                for argument in arguments[1:]:
                    result = ast.Call(_name(f"jnp.{_BUILTINS[dotted]}"), [result, argument], [])
                if len(arguments) < 2:
                    raise Unportable(f"it calls {dotted} of a container")
                return result
            return ast.Call(_name(f"jnp.{_BUILTINS[dotted]}"), arguments, [])
        raise Unportable(f"it calls {dotted}")

    def _own_call(self, function: RecordedFunction, call: ast.Call) -> ast.Call:
        """Write a call of a function of the script.

        A number that the call passes stays an argument. Other constants are constants of the module, under
        the names of the parameters.
        """
        listed = parsed(function).args
        names = [argument.arg for argument in (*listed.posonlyargs, *listed.args)]
        names = [name for name in names if name not in function.keywords]
        if len(call.args) > len(names) or any(k.arg is None for k in call.keywords):
            raise Unportable("it calls a function with unpacked arguments")
        passed = dict(zip(names, call.args, strict=False))
        passed |= {keyword.arg: keyword.value for keyword in call.keywords if keyword.arg}
        known = {name: self._constant(value) for name, value in passed.items()}
        fixed = {name: value[0] for name, value in known.items() if value}
        free = [name for name in passed if name not in fixed]
        if not free:  # a function of constants alone keeps its first argument
            free = list(passed)[:1]
        if any(name not in names for name in free) or len(free) > 1:
            raise Unportable(f"it calls {function.name} with more than one number")
        texts = {name: self._expression(passed[name]) for name in free}
        keywords = {name: value for name, value in fixed.items() if name not in free}
        for name, value in keywords.items():
            if type(value) in (int, float):
                texts[name] = self._number(passed[name], value)
        kept = [name for name in texts if name not in free]
        ported = port(
            replace(function, keywords={**function.keywords, **keywords}), self._definitions, kept
        )
        arguments = [texts[name] for name in names[: len(call.args)] if name in texts]
        by_keyword = [
            ast.keyword(keyword.arg, texts[keyword.arg])
            for keyword in call.keywords
            if keyword.arg in texts
        ]
        return ast.Call(_name(ported.name), arguments, by_keyword)

    def _number(self, node: ast.expr, value: object) -> ast.expr:
        """Return the number that a call passes, by its name if it has one here."""
        dotted = ast.unparse(node)
        if dotted in self._kept:
            return node
        if isinstance(node, ast.Name | ast.Attribute):
            try:
                return _name(self._definitions.constant(dotted, value, self._bound))
            except Unportable:
                pass
        return _name(repr(value))

    def _constant(self, node: ast.expr) -> tuple[object] | None:
        """Return the value of an expression in a tuple; None if it is no constant."""
        try:
            return (ast.literal_eval(node),)
        except ValueError:
            dotted = ast.unparse(node)
            if dotted in self._kept:
                return (self._kept[dotted],)
            if _names(node) & self._local or dotted not in self._values:
                return None
            return (self._values[dotted],)

    def _value(self, dotted: str) -> ast.expr:
        if dotted not in self._values:
            raise Unportable(f"the value of {dotted} is unknown")
        value, passed = self._values[dotted], dotted in self._function.keywords
        return _name(self._definitions.constant(dotted, value, self._bound, numbered=passed))


def _returns(body: Sequence[ast.stmt]) -> bool:
    return isinstance(body[-1], ast.Return)


def _target(statement: ast.stmt) -> str:
    if isinstance(statement, ast.Assign) and len(statement.targets) == 1:
        target = statement.targets[0]
        if isinstance(target, ast.Name):
            return target.id
    raise Unportable("a branch does more than assign numbers")


def _stored(node: ast.AST) -> set[str]:
    return {
        inner.id
        for inner in ast.walk(node)
        if isinstance(inner, ast.Name) and isinstance(inner.ctx, ast.Store)
    }


def _names(node: ast.AST) -> set[str]:
    return {inner.id for inner in ast.walk(node) if isinstance(inner, ast.Name)}


def _name(dotted: str) -> ast.expr:
    return ast.parse(dotted, mode="eval").body
