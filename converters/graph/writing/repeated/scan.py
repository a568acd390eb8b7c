"""Lists of layers that are called one after the other, as a scan over stacked weights."""

from __future__ import annotations

import ast
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from converters.graph.expression import call, code
from converters.graph.writing.forms.form import names_read, names_stored
from converters.graph.writing.forms.lists import equal_modules, is_numbered
from converters.graph.writing.holes import fill
from converters.graph.writing.model import Class, Method, Model
from converters.graph.writing.repeated.chains import (
    LAYER,
    LayerChain,
    NotAChainError,
    chain_of,
    layer_lists,
    needed,
)
from converters.graph.writing.repeated.runs import Run, runs
from converters.graph.writing.repeated.stacks import LayerStack, stacks
from converters.graph.writing.training import MODE

# The parameters of the function that a scan repeats.
_STEP, _LAYERS, _CARRY = "step", "layers", "carry"


@dataclass(frozen=True)
class ScannedModel:
    """A model whose repeated layers are scanned.

    Attributes:
        model: its classes.
        stacks: the lists whose weights are stacked.
        lists: class and attribute of each of them.
        left: list of layers → why it is not scanned.
    """

    model: Model
    stacks: tuple[LayerStack, ...]
    lists: frozenset[tuple[str, str]]
    left: Mapping[str, str]


@dataclass
class _List:
    """A list of layers of a class.

    Attributes:
        cls: the class.
        attribute: its name there.
        layers: how its layers are made.
        chains: the calls of the layers in each method that has them.
        runs: runs of equal layers.
        free: the number of layers, if the list has equal layers of any number.
    """

    cls: Class
    attribute: str
    layers: Sequence[ast.expr]
    chains: dict[str, LayerChain] = field(default_factory=dict)
    runs: tuple[Run, ...] = ()
    free: ast.expr | None = None


def with_scans(model: Model, original: Model) -> ScannedModel:
    """Scan all lists of layers that allow it. The given classes stay as they are.

    Args:
        model: the classes.
        original: the classes before their layers were wrapped (`nn.remat`).
    """
    left: dict[str, str] = {}
    scanned_lists: dict[tuple[str, str], tuple[Run, ...]] = {}
    classes: list[Class] = []
    for cls in model.classes:
        changed = replace(cls, setup=list(cls.setup), methods=dict(cls.methods))
        for attribute in [name for name, *_ in layer_lists(cls)]:
            try:
                layers = _readable(cls, attribute, model)
                _scan(changed, layers)
            except NotAChainError as error:
                left[f"{cls.name}.{attribute}"] = str(error)
            else:
                scanned_lists[cls.name, attribute] = layers.runs
        classes.append(changed)
    of_model = stacks(original.classes, scanned_lists)
    scanned = replace(model, classes=tuple(classes))
    return ScannedModel(scanned, of_model, frozenset(scanned_lists), left)


def _readable(cls: Class, attribute: str, model: Model) -> _List:
    """A list with its runs.

    Raises:
        NotAChainError: it cannot be scanned.
    """
    if _read_elsewhere(model, attribute):
        raise NotAChainError("another module reads its layers")
    parts, length = next((p, n) for name, p, n in layer_lists(cls) if name == attribute)
    if length is not None and is_numbered(parts[0]):
        raise NotAChainError("its layers differ by their number")
    layers = _List(cls, attribute, parts)
    for name, method in cls.methods.items():
        chain = chain_of(cls, method, attribute)
        if chain is not None:
            layers.chains[name] = chain
    if not layers.chains:
        raise NotAChainError("its layers are not called one after the other")
    lengths = [chain.length for chain in layers.chains.values()]
    if all(length is not None for length in lengths):
        layers.free, layers.runs = lengths[0], (Run(0, 1, 0),)
        for name, chain in layers.chains.items():
            if _carried(cls.methods[name], chain, layers.runs[0]) is None:
                raise NotAChainError("a value of its last layer is read later")
        return layers
    if any(length is not None for length in lengths):
        raise NotAChainError("its methods call its layers differently")
    if length is not None:
        count = len(next(iter(layers.chains.values())).turns)
        layers.layers = [parts[0]] * count
    layers.runs = _runs(layers)
    if all(run.count == 1 for run in layers.runs):
        raise NotAChainError("no layers repeat")
    return layers


def _read_elsewhere(model: Model, attribute: str) -> bool:
    """Whether any class reads a list of this name of another module (`self.encoder.layers[0]`)."""
    return any(
        isinstance(node, ast.Attribute)
        and node.attr == attribute
        and isinstance(node.ctx, ast.Load)
        and not (isinstance(node.value, ast.Name) and node.value.id == "self")
        and not (isinstance(node.value, ast.Attribute) and node.value.attr == "config")
        for cls in model.classes
        for method in cls.methods.values()
        for statement in (*method.body, method.result)
        for node in ast.walk(statement)
    )


def _runs(layers: _List) -> tuple[Run, ...]:
    """The runs of layers that are made alike, and called alike in all methods."""
    keys = [
        (
            ast.dump(layer),
            *("\n".join(map(ast.dump, chain.turns[number])) for chain in layers.chains.values()),
        )
        for number, layer in enumerate(layers.layers)
    ]
    divided: list[Run] = []
    for run in runs(keys):
        if run.count > 1 and all(
            _carried(layers.cls.methods[name], chain, run) is not None
            for name, chain in layers.chains.items()
        ):
            divided.append(run)
        else:
            divided += [Run(number, 1, 1) for number in range(run.first, run.end)]
    return tuple(divided)


def _carried(method: Method, chain: LayerChain, run: Run) -> list[str] | None:
    """The values that each group of layers gives to the next one; None if one has no value before."""
    turns = chain.turns[run.first : run.first + run.period] if run.count else chain.turns
    body = [statement for turn in turns for statement in turn]
    defined = {*method.arguments, *method.sizes, MODE}
    before = [*method.body[: chain.start], *chain.before]
    before += [statement for turn in chain.turns[: run.first] for statement in turn]
    defined |= set(names_stored(before))
    after = (
        [statement for turn in chain.turns[run.end :] for statement in turn] if run.count else []
    )
    live = needed([*after, *method.body[chain.end :], ast.Expr(method.result)])
    stored = dict.fromkeys(names_stored(body))
    carried = [name for name in stored if name in live | needed(body)]
    return carried if carried and {*carried} <= defined else None


def _scan(cls: Class, layers: _List) -> None:
    """Write the scans of a list into a class."""
    for name in layers.chains:
        method = cls.methods[name]
        own = chain_of(cls, method, layers.attribute)
        assert own is not None
        statements = list(own.before)
        place = 0
        for run in layers.runs:
            carried = [] if run.count == 1 else _carried(method, own, run)
            if run.count == 1:
                statements += [
                    _with_layer(each, f"self.{layers.attribute}", place)
                    for each in own.turns[run.first]
                ]
            else:
                assert carried is not None
                taken = _names_in([*method.body, *statements])
                statements += _scanned(own, layers, run, place, carried, taken)
            place += run.period
        body = [*method.body[: own.start], *statements, *method.body[own.end :]]
        cls.methods[name] = replace(method, body=body)
    kept = [layers.layers[run.first + at] for run in layers.runs for at in range(run.period)]
    if layers.free is not None:
        kept = [layers.layers[0]]
    value: ast.expr = ast.List(kept, ast.Load())
    if len(kept) > 1 and len({*map(ast.dump, kept)}) == 1:
        value = equal_modules(kept[0], len(kept))
    for at, statement in enumerate(cls.setup):
        match statement:
            case ast.Assign(targets=[ast.Attribute(attr=layers.attribute) as target]):
                cls.setup[at] = ast.Assign([target], value)


def _scanned(
    chain: LayerChain, layers: _List, run: Run, place: int, carried: Sequence[str], taken: set[str]
) -> list[ast.stmt]:
    """A function of one group of layers, and the statement that scans it."""
    turns = chain.turns[run.first : run.first + run.period] if run.count else chain.turns
    body = [
        _with_layer(statement, _LAYERS, at) for at, turn in enumerate(turns) for statement in turn
    ]
    name = _free(_STEP, taken)
    several = len(carried) > 1
    names = [ast.Name(each, ast.Load()) for each in carried]
    value: ast.expr = ast.Tuple([*names], ast.Load()) if several else names[0]
    carry = _free(_CARRY, taken) if several else carried[0]
    if several:
        stored = ast.Tuple([ast.Name(each, ast.Store()) for each in carried], ast.Store())
        body.insert(0, ast.Assign([stored], ast.Name(carry, ast.Load())))
    kind = code("Any") if several else code("jax.Array")
    last = body[-1]
    match last:
        case ast.Assign(targets=[ast.Name(id=same)]) if not several and same == carried[0]:
            body[-1] = ast.copy_location(ast.Return(last.value), last)
        case _:
            body.append(ast.Return(value))
    parameters = [ast.arg(_LAYERS, code("Any")), ast.arg(carry, kind)]
    signature = ast.arguments([], parameters, None, [], [], None, [])
    step = ast.FunctionDef(name, signature, body, [], kind)
    length = layers.free if layers.free is not None else run.count
    whole = len(layers.runs) == 1
    part = "self.{0}" if whole else "self.{0}[{1}:{2}]"
    own = code(part.format(layers.attribute, place or "", place + run.period))
    scan = call("scan_layers", ast.Name(name, ast.Load()), own, length, value)
    targets: list[ast.expr] = [ast.Name(each, ast.Store()) for each in carried]
    target = ast.Tuple(targets, ast.Store()) if several else targets[0]
    return [step, ast.Assign([target], scan)]


def _with_layer(statement: ast.stmt, layers: str, number: int) -> ast.stmt:
    """A statement of a turn, with its layer as the member of a list."""

    class Named(ast.NodeTransformer):
        def visit_Name(self, node: ast.Name) -> ast.expr:
            return code(f"{layers}[{number}]") if node.id == LAYER else node

    named: ast.stmt = Named().visit(fill(statement, lambda hole: hole))
    return named


def _names_in(trees: Sequence[ast.AST]) -> set[str]:
    return {name for tree in trees for name in (*names_read(tree), *names_stored([tree]))} | {
        node.name for tree in trees for node in ast.walk(tree) if isinstance(node, ast.FunctionDef)
    }


def _free(name: str, taken: set[str]) -> str:
    numbered: Any = (f"{name}_{number}" for number in range(2, 1000))
    return next(each for each in (name, *numbered) if each not in taken)
