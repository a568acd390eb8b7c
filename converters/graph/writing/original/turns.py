"""Loops in which a constructor makes the modules of a list: what their variables stand for in each turn."""

from __future__ import annotations

import ast
import copy
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

from converters.graph.expression import INDEX, code
from converters.graph.writing.original import constructors


class Index(ast.expr):
    """The number of a turn of the loop that makes a module of a list.

    Attributes:
        number: the number.
        holder: path of the list, if the number is the module's place there, too; else "".
    """

    _fields = ()

    def __init__(self, number: int, holder: str) -> None:
        super().__init__()
        self.number, self.holder = number, holder

    def __deepcopy__(self, memo: object) -> Index:
        return self


@dataclass(frozen=True)
class Entries:
    """Entries of a sequence of numbers that a constructor puts together.

    Attributes:
        text: expression of the entry, or of the sequence of them.
        values: the numbers.
        whole: whether `text` is a sequence: its length may be another one.
    """

    text: str
    values: tuple[int | float, ...]
    whole: bool = False


def entry_text(parts: Sequence[Entries], shift: int) -> str:
    """The entry at a member's place (`INDEX`) in a list, `shift` places further on: `widths[i]`."""
    left = list(parts)
    while left and not left[0].whole and shift > 0:
        shift -= 1
        left.pop(0)
    place = INDEX if not shift else f"{INDEX} {'+' if shift > 0 else '-'} {abs(shift)}"
    if len(left) == 1 and left[0].whole:
        return f"{left[0].text}[{place}]"
    listed = ", ".join(f"*{part.text}" if part.whole else part.text for part in left)
    return f"({listed}{',' * (len(left) == 1)})[{place}]"


def text_at(text: str, number: int) -> str:
    """An expression of a member's place, at one place: `widths[2]`."""
    return ast.unparse(_AtPlace(number).visit(ast.parse(text, mode="eval").body))


class _AtPlace(ast.NodeTransformer):
    def __init__(self, number: int) -> None:
        self.number = number

    def visit_Name(self, node: ast.Name) -> ast.expr:
        return ast.Constant(self.number) if node.id == INDEX else node

    def visit_BinOp(self, node: ast.BinOp) -> ast.expr:
        self.generic_visit(node)
        match node:
            case ast.BinOp(
                ast.Constant(value=int(left)), ast.Add(), ast.Constant(value=int(right))
            ):
                return ast.Constant(left + right)
            case ast.BinOp(
                ast.Constant(value=int(left)), ast.Sub(), ast.Constant(value=int(right))
            ) if left >= right:
                return ast.Constant(left - right)
        return node

    def visit_Subscript(self, node: ast.Subscript) -> ast.expr:
        self.generic_visit(node)
        match node:
            case ast.Subscript(value=ast.Tuple(elts=[*parts]), slice=ast.Constant(value=int(at))):
                before = [isinstance(part, ast.Starred) for part in parts]
                first = before.index(True) if any(before) else len(parts)
                if at < first:
                    return parts[at]
                if first == len(parts) - 1:
                    inner = parts[first]
                    assert isinstance(inner, ast.Starred)
                    return code(f"{{x}}[{at - first}]", x=inner.value)
        return node


def variables(trees: Sequence[ast.AST], call: ast.Call, index: Index) -> dict[str, ast.expr]:
    """The variables of the innermost loop around a call, as expressions of the turn's number.

    A value that the loop's body gives a name is one of them: `rate = 0.1 * i`.

    Args:
        trees: where the loop may stand.
        call: the call in the loop.
        index: the number of the turn.
    """
    for tree in trees:
        loops = loops_around(tree, call)
        innermost = loops[-1] if loops else None
        match innermost:
            case ast.For(target=target, iter=iterable, body=body):
                known = _bound(target, iterable, index)
                at = next(place for place, each in enumerate(body) if _holds(each, call))
                for statement in body[:at]:
                    match statement:
                        case ast.Assign(targets=[ast.Name(id=name)], value=value):
                            known[name] = turned(value, known)
                known |= _carried(innermost, body[at + 1 :], tree, known, index)
            case (
                ast.ListComp(generators=[ast.comprehension(target=target, iter=iterable, ifs=[])])
                | ast.GeneratorExp(
                    generators=[ast.comprehension(target=target, iter=iterable, ifs=[])]
                )
            ):
                known = _bound(target, iterable, index)
            case _:
                continue
        # The turns of loops around it are not known.
        unknown = {name for loop in loops[:-1] for name in bound_by(loop)}
        return {**dict.fromkeys(unknown, ast.Constant(None)), **known}
    return {}


def joined_first(node: ast.expr) -> ast.expr | None:
    """`(first, *widths)[i]` for `widths[i - 1] if i > 0 else first`; None for other expressions."""
    match node:
        case ast.IfExp(
            test=ast.Compare(
                left=Index() as index,
                ops=[ast.Gt() | ast.NotEq()],
                comparators=[ast.Constant(value=0)],
            )
            | (Index() as index),
            body=rest,
            orelse=first,
        ):
            pass
        case ast.IfExp(
            test=ast.Compare(
                left=Index() as index, ops=[ast.Eq()], comparators=[ast.Constant(value=0)]
            ),
            body=first,
            orelse=rest,
        ):
            pass
        case _:
            return None
    match rest:
        case ast.Subscript(
            value=over,
            slice=ast.BinOp(left=Index() as at, op=ast.Sub(), right=ast.Constant(value=1)),
        ) if at is index:
            whole = ast.Tuple([first, ast.Starred(over, ast.Load())], ast.Load())
            return ast.Subscript(whole, index, ast.Load())
    return None


def loops_around(tree: ast.AST, part: ast.AST) -> list[ast.AST]:
    """The loops and comprehensions around a part of a tree, the outermost first."""
    kinds = ast.For | ast.ListComp | ast.GeneratorExp
    return [node for node in ast.walk(tree) if isinstance(node, kinds) and _is_within(node, part)]


def loops_over(tree: ast.AST, name: str) -> list[ast.expr]:
    """Expressions that the loops go over whose variable is a name: `widths` of `for width in widths`."""
    over: list[ast.expr] = []
    for node in ast.walk(tree):
        match node:
            case ast.For(target=target, iter=ast.Call(func=ast.Name(id="enumerate"), args=[inner])):
                each = target.elts[-1] if isinstance(target, ast.Tuple) else target
            case ast.For(target=each, iter=inner):
                pass
            case _:
                continue
        if isinstance(each, ast.Name) and each.id == name:
            over.append(inner)
    return over


def bound_by(loop: ast.AST) -> set[str]:
    """The names that a loop or comprehension gives the entries of what it goes over."""
    targets = (
        [loop.target] if isinstance(loop, ast.For) else [each.target for each in loop.generators]  # type: ignore[attr-defined]
    )
    return {
        node.id for target in targets for node in ast.walk(target) if isinstance(node, ast.Name)
    }


def _carried(
    loop: ast.For,
    later: Sequence[ast.stmt],
    tree: ast.AST,
    known: Mapping[str, ast.expr],
    index: Index,
) -> dict[str, ast.expr]:
    """Variables that have a value of the turn before: `previous = width` at the loop's end.

    Also a value that no turn changes, `channels = config.dim`: the first turn alone has another one.

    Args:
        loop: the loop.
        later: its statements behind the one that is asked for.
        tree: the constructor.
        known: the variables of the turn.
        index: the number of the turn.
    """
    inside = {id(node) for node in ast.walk(loop)}
    carried: dict[str, ast.expr] = {}
    for statement in later:
        match statement:
            case ast.Assign(targets=[ast.Name(id=name)], value=value):
                pass
            case _:
                continue
        before = [
            node.value
            for node in ast.walk(tree)
            if isinstance(node, ast.Assign)
            and id(node) not in inside
            and any(isinstance(target, ast.Name) and target.id == name for target in node.targets)
        ]
        match turned(value, known):
            case ast.Subscript(value=over, slice=at) if at is index and len(before) == 1:
                whole = ast.Tuple([before[0], ast.Starred(over, ast.Load())], ast.Load())
                carried[name] = ast.Subscript(whole, index, ast.Load())
            case steady if len(before) == 1 and _is_steady(steady, loop):
                carried[name] = steady if index.number else before[0]
            case _:
                carried[name] = ast.Constant(None)
    return carried


def _is_steady(value: ast.expr, loop: ast.For) -> bool:
    """Whether an expression reads nothing that a turn of the loop changes."""
    changed = {
        ast.unparse(node)
        for node in ast.walk(loop)
        if isinstance(getattr(node, "ctx", None), ast.Store | ast.Del)
    }
    return not any(
        isinstance(node, Index | ast.Call | ast.NamedExpr)
        or (isinstance(node, ast.Constant) and node.value is None)
        or (isinstance(node, ast.Name | ast.Attribute) and ast.unparse(node) in changed)
        for node in ast.walk(value)
    )


def _is_within(loop: ast.AST, inner: ast.AST) -> bool:
    parts = loop.body if isinstance(loop, ast.For) else [loop.elt]  # type: ignore[attr-defined]
    return any(_holds(part, inner) for part in parts)


def _holds(tree: ast.AST, inner: ast.AST) -> bool:
    return any(node is inner for node in ast.walk(tree))


def place_in_turn(
    trees: Sequence[ast.AST], expression: ast.expr, call: ast.Call, place: int
) -> tuple[int, bool] | None:
    """The turn of a loop that makes a member of a list, and whether each turn is its member's place there.

    None if the source does not show it: what comes before the loop's members is not counted, or the call
    makes another member of the turn.

    Args:
        trees: the constructors.
        expression: what the list is made of.
        call: the call in the loop.
        place: the member's place in the list.
    """
    for node in ast.walk(expression):  # Sequential(first, *[Layer(width) for width in widths])
        parts = node.args if isinstance(node, ast.Call) else getattr(node, "elts", [])
        for at, part in enumerate(parts):
            if isinstance(part, ast.Starred) and _holds(part, call):
                if isinstance(node, ast.Tuple):  # with the values of local lists
                    continue
                before = any(isinstance(each, ast.Starred) for each in parts[:at])
                return None if before else (place - at, not at)
    for tree in trees:
        loops = loops_around(tree, call)
        if loops and isinstance(loops[-1], ast.For):
            return _appended_in(tree, loops[-1], call, place)
    return place, True


def _appended_in(
    tree: ast.AST, loop: ast.For, call: ast.Call, place: int
) -> tuple[int, bool] | None:
    """`place_in_turn` of a member that a loop appends to a list."""
    members = [each for statement in loop.body for each in appended(statement)]
    own = next((holder for holder, member in members if _holds(member, call)), "")
    body = next(
        (
            node.body
            for node in ast.walk(tree)
            if isinstance(node, ast.FunctionDef) and loop in node.body
        ),
        None,
    )
    if not own or body is None:
        return place, True
    within = [member for holder, member in members if holder == own]
    before = 0
    for statement in body[: body.index(loop)]:
        direct = [member for holder, member in appended(statement) if holder == own]
        every = [
            holder for node in ast.walk(statement) for holder, _ in appended(node) if holder == own
        ]
        if len(every) != len(direct):  # below a condition, or in a loop
            return None
        match statement:
            case ast.Assign(targets=[target], value=value) if ast.unparse(target) == own:
                listed = value.args[0] if isinstance(value, ast.Call) and value.args else value
                before = len(listed.elts) if isinstance(listed, ast.List) else 0
        before += len(direct)
    every = [holder for node in ast.walk(loop) for holder, _ in appended(node) if holder == own]
    if len(every) != len(within):
        return None
    turn, rest = divmod(place - before, len(within))
    if turn < 0 or not _holds(within[rest], call):
        return None
    return turn, len(within) == 1 and not before


def appended(statement: ast.AST) -> Iterator[tuple[str, ast.expr]]:
    """The lists that a statement appends to, each with a new member: `layers.append(…)`, `layers += […]`."""
    match statement:
        case ast.Expr(value=ast.Call(func=ast.Attribute(value=holder, attr="append"), args=[new])):
            yield ast.unparse(holder), new
        case (
            ast.Expr(
                value=ast.Call(
                    func=ast.Attribute(value=holder, attr="extend"),
                    args=[ast.List(elts=new) | ast.Tuple(elts=new)],
                )
            )
            | ast.AugAssign(target=holder, op=ast.Add(), value=ast.List(elts=new))
        ) if not any(isinstance(each, ast.Starred) for each in new):
            yield from ((ast.unparse(holder), each) for each in new)


def length_of(iterable: ast.expr) -> list[ast.expr]:
    """Expressions of the number of turns of a loop, the best first."""
    match iterable:
        case ast.Call(func=ast.Name(id="range"), args=[end]):
            return [end]
        case ast.Call(func=ast.Name(id="range"), args=[start, end]):
            plain = isinstance(start, ast.Constant) and start.value == 0
            return [end if plain else ast.BinOp(end, ast.Sub(), start)]
        case ast.Call(
            func=ast.Name(id="enumerate" | "reversed" | "list" | "tuple"), args=[inner, *_]
        ):
            return length_of(inner)
        case ast.Call(func=ast.Name(id="zip"), args=parts):
            return [length for part in parts for length in length_of(part)]
        case ast.Call(func=function, args=[inner]) if constructors.last(function) == "pairwise":
            return [code("len({x}) - 1", x=inner)]
        case ast.Name() | ast.Attribute() | ast.Subscript():
            return [code("len({x})", x=iterable)]
    return []


def _bound(target: ast.expr, iterable: ast.expr, index: Index) -> dict[str, ast.expr]:
    """The names of a loop's target, each with its value in a turn."""
    match target, iterable:
        case ast.Name(id=name), _:
            entry = entry_of(iterable, index)
            return {name: _entry(iterable, index) if entry is None else entry}
        case ast.Tuple(elts=[number, inner]), ast.Call(func=ast.Name(id="enumerate"), args=[over]):
            first = {number.id: index} if isinstance(number, ast.Name) else {}
            return {**first, **_bound(inner, over, index)}
        case ast.Tuple(elts=[_, _]), ast.Call(func=function, args=[over]) if (
            constructors.last(function) == "pairwise"
        ):
            rest = ast.Subscript(over, ast.Slice(ast.Constant(1)), ast.Load())
            return _bound(target, code("zip({x}, {y})", x=over, y=rest), index)
        case ast.Tuple(elts=parts), ast.Call(func=ast.Name(id="zip"), args=over) if len(
            parts
        ) == len(over):
            pairs = zip(parts, over, strict=True)
            return {
                name: value
                for part, each in pairs
                for name, value in _bound(part, each, index).items()
            }
    return {}


def entry_of(iterable: ast.expr, index: Index) -> ast.expr | None:
    """The expression of an entry of what a loop goes over; None if its source does not show it."""
    match iterable:
        case ast.Call(func=ast.Name(id="range"), args=[_], keywords=[]):
            return index
        case ast.Call(func=ast.Name(id="range"), args=[start, _], keywords=[]):
            return ast.BinOp(start, ast.Add(), index)
        case ast.Call(func=ast.Name(id="list" | "tuple"), args=[inner], keywords=[]):
            return entry_of(inner, index)
        case ast.Call(func=ast.Attribute(value=inner, attr="tolist"), args=[], keywords=[]):
            return entry_of(inner, index)
        case ast.Call(func=function, args=[start, end, count]) if (
            constructors.last(function) == "linspace"
        ):
            return _linspace(start, end, count, index)
        case ast.Call(func=function, args=[start, end], keywords=keywords) if (
            constructors.last(function) == "linspace"
        ):
            counts = [each.value for each in keywords if each.arg in ("steps", "num")]
            return _linspace(start, end, counts[0], index) if counts else None
        case ast.ListComp(
            elt=element, generators=[ast.comprehension(target=target, iter=over, ifs=[])]
        ):
            return turned(element, _bound(target, over, index))
    return None


def _linspace(start: ast.expr, end: ast.expr, count: ast.expr, index: Index) -> ast.expr:
    """`start + (end - start) * i / max(count - 1, 1)`."""
    steps = code("max({count} - 1, 1)", count=count)
    zero = isinstance(start, ast.Constant) and start.value == 0
    way = end if zero else ast.BinOp(end, ast.Sub(), start)
    share = ast.BinOp(ast.BinOp(way, ast.Mult(), index), ast.Div(), steps)
    return share if zero else ast.BinOp(start, ast.Add(), share)


def _entry(iterable: ast.expr, index: Index) -> ast.expr:
    return ast.Subscript(iterable, index, ast.Load())


def turned(tree: ast.expr, known: Mapping[str, ast.expr]) -> ast.Call:
    """A copy of an expression with the values of variables in place of their names."""
    changed: ast.Call = _Turned(known).visit(copy.deepcopy(tree))
    return changed


class _Turned(ast.NodeTransformer):
    def __init__(self, known: Mapping[str, ast.expr]) -> None:
        self.known = known

    def visit_Name(self, node: ast.Name) -> ast.expr:
        return self.known.get(node.id, node) if isinstance(node.ctx, ast.Load) else node
