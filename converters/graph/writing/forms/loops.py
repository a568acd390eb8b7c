"""Repeated calls of the modules of a list as a loop over the list."""

from __future__ import annotations

import ast
from collections.abc import Collection, Iterator, Mapping, Sequence, Set

from converters.graph.expression import as_code, call, code
from converters.graph.writing.forms.numbered import by_number
from converters.graph.writing.holes import fill

# What counts the turns of a loop.
_COUNTERS = ("i", "index", "number")


def rolled(
    body: Sequence[ast.stmt],
    length: Mapping[str, int],
    aliases: Set[tuple[str, str]] = frozenset(),
    arguments: Collection[str] = (),
    begun: Mapping[str, int | float] | None = None,
) -> tuple[list[ast.stmt], set[str]]:
    """Statements with runs that differ in the index of a module only made a loop.

    Args:
        body: the statements.
        length: attribute → how many modules its list has.
        aliases: (new, old) where the original gives a value another name (`hidden_states = inputs_embeds`).
        arguments: names of arguments that are lists with an entry for each module.
        begun: name → number that the original gives it (`total = 0.0`).

    Returns:
        The statements, and the lists that a loop goes over: with these, any number of modules will do.
    """
    statements, over = list(body), set()
    for attribute, count in length.items():
        if count and attribute not in over:
            statements, lists_found = _rolled(
                statements, attribute, count, aliases, arguments, begun or {}
            )
            over |= lists_found
    return statements, over


def _rolled(
    body: list[ast.stmt],
    attribute: str,
    count: int,
    aliases: Set[tuple[str, str]],
    arguments: Collection[str],
    begun: Mapping[str, int | float],
) -> tuple[list[ast.stmt], set[str]]:
    first = {
        index: place
        for place in reversed(range(len(body)))
        for index in indices(body[place], attribute)
    }
    if sorted(first) != list(range(count)):
        return body, set()
    # Which module each turn is of: `for flow in reversed(self.flows)` begins with the last.
    order = sorted(range(count), reverse=count > 1 and first[0] > first[1])
    step = first[order[1]] - first[order[0]] if count > 1 else 1
    starts = [first[order[0]] + turn * step for turn in range(count)]
    if step < 1 or any(
        not starts[turn] <= first[order[turn]] < starts[turn] + step for turn in range(count)
    ):
        return body, set()
    end = starts[-1] + step
    # The statement that names the module need not be the first of its turn.
    for shift in range(step):
        low, high = starts[0] - shift, end - shift
        if low < 0 or high > len(body):
            continue
        turns = [body[low + i * step : low + (i + 1) * step] for i in range(count)]
        lists = _lists(turns, order, arguments)
        members = _member_names(lists, body, arguments)
        turned = [
            _turn(turn, members, order[number], arguments) for number, turn in enumerate(turns)
        ]
        before: list[ast.stmt] = []
        renamed = _carried(turned, aliases)
        if renamed:
            old, new = renamed
            turned[0] = [RenamedValue(old, new).visit(statement) for statement in turned[0]]
            before = [ast.Assign([ast.Name(new, ast.Store())], ast.Name(old, ast.Load()))]
        turned[0], sums = _with_starts(turned, begun)
        before += sums
        forms = {"\n".join(map(ast.dump, turn)) for turn in turned}
        if len(forms) == 1 and goes_on(turned[0]):
            loop = _loop(turned[0], members, order, arguments)
            return [*body[:low], *before, loop, *body[high:]], set(lists)
        counter = next(
            (name for name in _COUNTERS if all(node.id != name for node in names_in(body))), ""
        )
        numbered = by_number(turned, counter) if counter and len(turned) > 2 else None
        if numbered is not None and goes_on(numbered):
            loop = _loop(numbered, members, order, arguments, counter)
            return [*body[:low], *before, loop, *body[high:]], set(lists)
    return body, set()


# What an operator leaves as it is: the recording has no operator for it.
_NEUTRAL: Mapping[type, int] = {ast.Add: 0, ast.Mult: 1}


def _with_starts(
    turns: Sequence[Sequence[ast.stmt]], begun: Mapping[str, int | float]
) -> tuple[list[ast.stmt], list[ast.stmt]]:
    """The first turn, adding to a sum as the other turns do, and the statements that begin the sums.

    Args:
        turns: statements of each turn.
        begun: name → number that the original gives it.
    """
    first, starts = list(turns[0]), list[ast.stmt]()
    for place, statement in enumerate(first if len(turns) > 1 else ()):
        match statement, turns[1][place]:
            case (
                ast.Assign(targets=[ast.Name(id=name)], value=value),
                ast.Assign(
                    targets=[ast.Name(id=other)], value=ast.BinOp(left=left, op=op) as following
                ),
            ) if name == other and type(op) in _NEUTRAL:
                pass
            case _:
                continue
        on_left = isinstance(left, ast.Name) and left.id == name
        on_right = isinstance(following.right, ast.Name) and following.right.id == name
        read = {node.id for node in names_in(first[: place + 1]) if isinstance(node.ctx, ast.Load)}
        if name in read or on_left == on_right:
            continue
        total, neutral = ast.Name(name, ast.Load()), _NEUTRAL[type(op)]
        sides = (total, value) if on_left else (value, total)
        first[place] = ast.Assign([ast.Name(name, ast.Store())], ast.BinOp(sides[0], op, sides[1]))
        number = begun[name] if begun.get(name) == neutral else neutral
        target = ast.Name(name, ast.Store())
        starts.append(ast.AnnAssign(target, code("Any"), ast.Constant(number), 1))
    return first, starts


def _carried(
    turns: Sequence[Sequence[ast.stmt]], aliases: Set[tuple[str, str]]
) -> tuple[str, str] | None:
    """The name that the first turn reads in place of the other turns' name: (its name, theirs)."""
    targets = {name.id for name in names_in(turns[0]) if isinstance(name.ctx, ast.Store)}
    if len(turns) == 1:
        read = [name.id for name in names_in(turns[0]) if isinstance(name.ctx, ast.Load)]
        if targets & set(read):
            return None
        return next(
            ((old, new) for new, old in sorted(aliases) if new in targets and old in read), None
        )
    pairs = {
        (name.id, other.id)
        for name, other in zip(names_in(turns[0]), names_in(turns[1]), strict=False)
        if name.id != other.id
    }
    if len(pairs) != 1:
        return None
    old, new = pairs.pop()
    return (old, new) if new in targets else None


def goes_on(turn: Sequence[ast.stmt]) -> bool:
    """Whether a turn reads what it gives: else a loop would do the same again and again."""
    stored: set[str] = set()
    for statement in turn:
        names = names_in([statement])
        if any(isinstance(name.ctx, ast.Load) and name.id not in stored for name in names):
            read = {name.id for name in names if isinstance(name.ctx, ast.Load)}
            turn_stores = {name.id for name in names_in(turn) if isinstance(name.ctx, ast.Store)}
            if (read - stored) & turn_stores:
                return True
        stored |= {name.id for name in names if isinstance(name.ctx, ast.Store)}
    return False


def names_in(turn: Sequence[ast.stmt]) -> list[ast.Name]:
    """The names in statements."""
    return [
        node for statement in turn for node in ast.walk(statement) if isinstance(node, ast.Name)
    ]


class RenamedValue(ast.NodeTransformer):
    """A name, where its value is read, becomes another one."""

    def __init__(self, old: str, new: str) -> None:
        self.old, self.new = old, new

    def visit_Name(self, node: ast.Name) -> ast.Name:
        """Rename the name if it is the one, and read."""
        if node.id == self.old and isinstance(node.ctx, ast.Load):
            return ast.Name(self.new, ast.Load())
        return node


def indices(tree: ast.AST, attribute: str) -> Iterator[int]:
    """The numbers of a list's members that a tree reads."""
    for node in ast.walk(tree):
        if (member := member_of(node)) and member[0] == attribute:
            yield member[1]


def member_of(node: ast.AST, arguments: Collection[str] = ()) -> tuple[str, int] | None:
    """`self.layers[3]` → ("layers", 3); `cache[3]` → ("cache", 3) for a list that is an argument."""
    match node:
        case ast.Subscript(value=ast.Name(id=name), slice=ast.Constant(value=int(index))) if (
            name in arguments
        ):
            return name, index
        case ast.Subscript(
            value=ast.Attribute(value=ast.Name(id="self"), attr=name),
            slice=ast.Constant(value=int(index)),
        ):
            return name, index
    return None


def _lists(
    turns: Sequence[Sequence[ast.stmt]], order: Sequence[int], arguments: Collection[str]
) -> list[str]:
    """The lists of which each turn has the module that it is of."""
    members: dict[str, set[tuple[int, int]]] = {}
    for number, turn in enumerate(turns):
        for statement in turn:
            for node in ast.walk(statement):
                if member := member_of(node, arguments):
                    members.setdefault(member[0], set()).add((number, member[1]))
    names = [name for name, seen in members.items() if seen == set(enumerate(order))]
    return sorted(names, key=lambda name: name in arguments)


def singular(name: str, arguments: Collection[str] = ()) -> str:
    """The name of a member of a list: "layers" → "layer"; of an argument, "cache" → "layer_cache"."""
    if name in arguments:
        return f"layer_{name}"
    if name.endswith("ies"):
        return f"{name[:-3]}y"
    if name.endswith(("ses", "xes")):
        return name[:-2]
    return name[:-1] if name.endswith("s") and len(name) > 3 else name


def _member_names(
    lists: Sequence[str], body: Sequence[ast.stmt], arguments: Collection[str]
) -> dict[str, str]:
    """The name of a member of each list: `text_part` of `self.text` where `text` is something else."""
    loops = [node for s in body for node in ast.walk(s) if isinstance(node, ast.For)]
    of_loops = {
        name.id for loop in loops for name in ast.walk(loop.target) if isinstance(name, ast.Name)
    }
    taken = {name.id for name in names_in(body)} - of_loops
    names = {name: singular(name, arguments) for name in lists}
    return {  # a turn gives the member of an argument its new value by the same name
        name: f"{own}_part" if own in taken and name not in arguments else own
        for name, own in names.items()
    }


class _Members(ast.NodeTransformer):
    def __init__(self, names: Mapping[str, str], index: int, arguments: Collection[str]) -> None:
        self.names, self.index, self.arguments = names, index, arguments

    def visit_Subscript(self, node: ast.Subscript) -> ast.AST:
        member = member_of(node, self.arguments)
        if member and member[0] in self.names and member[1] == self.index:
            return ast.Name(self.names[member[0]], ast.Load())
        return self.generic_visit(node)


def _turn(
    turn: Sequence[ast.stmt], names: Mapping[str, str], index: int, arguments: Collection[str]
) -> list[ast.stmt]:
    members = _Members(names, index, arguments)
    return [members.visit(fill(statement, lambda hole: hole)) for statement in turn]


def _loop(
    turn: Sequence[ast.stmt],
    members: Mapping[str, str],
    order: Sequence[int],
    arguments: Collection[str],
    counter: str = "",
) -> ast.stmt:
    itself = ast.Name("self", ast.Load())
    sources: list[ast.expr] = [
        ast.Name(name, ast.Load()) if name in arguments else ast.Attribute(itself, name, ast.Load())
        for name in members
    ]
    if order[0] > 0:
        sources = [call("reversed", source) for source in sources]
    names: list[ast.expr] = [ast.Name(name, ast.Store()) for name in members.values()]
    over = sources[0] if len(members) == 1 else call("zip", *sources, strict=True)
    target = names[0] if len(members) == 1 else ast.Tuple(names, ast.Store())
    if counter:
        over = call("enumerate", over)
        target = ast.Tuple([ast.Name(counter, ast.Store()), target], ast.Store())
    return ast.For(target, as_code(over), list(turn), [])
