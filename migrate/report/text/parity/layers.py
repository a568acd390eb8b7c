"""The module tree of a comparison on a terminal: folded where all is well, the layers that part in full."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING

from migrate.parity.ground.results import LayerResult, LayerVerdict
from migrate.report.text.parity import words
from migrate.report.text.parity.figures import Figures
from migrate.report.text.parity.nodes import LayerNode, State, module_tree, runs
from migrate.report.text.tables import plain_table

if TYPE_CHECKING:
    from rich.console import RenderableType
    from rich.table import Table
    from rich.text import Text
    from rich.tree import Tree

    from migrate.parity.ground.results import Parity

EXPANDED = 4  # layers that part in full, each of another class; of the others a line each
LISTED = 24  # lines of layers that part; and of layers without a partner
_LOOKS = {
    State.MATCH: ("✓", "green"),
    State.CARRIED: ("~", "yellow"),
    State.UNFED: ("?", "cyan"),
    State.UNDEFINED: ("?", "magenta"),
    State.ALONE: ("·", "dim"),
    State.PARTS: ("✗", "bold red"),
}
_VERDICTS = {
    State.CARRIED: LayerVerdict.CARRIED,
    State.UNFED: LayerVerdict.UNFED,
    State.UNDEFINED: LayerVerdict.UNDEFINED,
    State.ALONE: LayerVerdict.ALONE,
}


def layers_summary(parity: Parity) -> Iterator[RenderableType]:
    """Yield how many layers match and part, their tree, and those without a partner."""
    if not parity.layers:
        yield "[dim]no layers were compared, only what the whole gives[/dim]"
        return
    yield _counts(parity.layers)
    yield _Drawing(parity).tree()
    alone = [layer for layer in parity.layers if layer.verdict is LayerVerdict.ALONE]
    if alone:
        yield ""
        yield f"[bold]without a partner[/bold]: {words.many(len(alone), 'layer')}, not compared"
        yield _alone(alone)


def _counts(layers: Sequence[LayerResult]) -> Text:
    from rich.text import Text

    counts = dict.fromkeys(LayerVerdict, 0)
    for layer in layers:
        counts[layer.verdict] += 1
    said = ", ".join(
        f"{count} {words.verdict(verdict)}" for verdict, count in counts.items() if count
    )
    return Text.assemble(("layers", "bold"), f": {said}")


class _Drawing:
    """The tree while it is drawn; it counts the layers that it shows in full."""

    def __init__(self, parity: Parity) -> None:
        self._parity = parity
        self._shown = self._hidden = 0
        self._kinds: set[str] = set()  # of the layers that were shown in full

    def tree(self) -> Tree:
        from rich.text import Text
        from rich.tree import Tree

        root = module_tree(self._parity.layers)
        tree = Tree(self._label(root), guide_style="dim")
        self._below(root, tree)
        if self._hidden:
            more = f"{words.many(self._hidden, 'more layer diverges', 'more layers diverge')}"
            tree.add(Text(f"… {more} (all are in --json and --html)", "bold red"))
        return tree

    def _below(self, node: LayerNode, tree: Tree) -> None:
        # The parts of the whole are named each, those of a block need not be.
        for run in runs(node.children, alike=not node.label):
            if len(run) > 1:
                tree.add(_folded(run))
                continue
            child = _joined(run[0])
            if child.state is not State.PARTS:
                tree.add(_folded(run))
            elif not child.parts:
                before = self._shown
                branch = tree.add(_title(child, child.state, ""))
                self._below(child, branch)
                if self._shown == before:
                    tree.children.remove(branch)
            elif self._shown < LISTED:
                self._below(child, tree.add(self._label(child)))
            else:
                self._hidden += 1
                self._below(child, tree)

    def _label(self, node: LayerNode) -> RenderableType:
        if not node.parts:
            return _title(node, node.state, words.many(len(node.layers), "layer"))
        assert node.layer is not None
        self._shown += 1
        is_first = words.is_first(self._parity, node.layer)
        title = _title(node, State.PARTS, words.verdict(node.layer.verdict))
        if is_first:
            title.append("  first", "bold red")
        kinds = self._kinds
        known = node.layer.kind in kinds or len(kinds) == EXPANDED
        if known and not is_first:
            title.append("  " + _worst((node,)), "red")
            return title
        kinds.add(node.layer.kind)
        return _in_full(title, node.layer, self._parity, is_first)


def _joined(node: LayerNode) -> LayerNode:
    """A module that only passes its inputs on to one other, and that one, as one line."""
    while node.state is State.PARTS and not node.parts and len(node.children) == 1:
        (child,) = node.children
        node = LayerNode(f"{node.label}.{child.label}", child.layer, child.children)
    return node


def _title(node: LayerNode, state: State, rest: str) -> Text:
    from rich.text import Text

    mark, style = _LOOKS[state]
    kind = "" if node.layer is None else node.layer.kind
    label = node.label or kind or "the model"
    title = Text.assemble((f"{mark} ", style), (label, "bold" if state is State.PARTS else ""))
    if kind and kind != label:
        title.append(f"  {kind}", "dim")
    if rest:
        title.append(f"  {rest}", style if state is State.PARTS else "")
    return title


def _folded(run: Sequence[LayerNode]) -> Text:
    """Return one line for adjacent layers that do not diverge."""
    from rich.text import Text

    state = run[0].state
    mark, style = _LOOKS[state]
    layers = sum(len(node.layers) for node in run)
    if len(run) == 1:
        title = _title(run[0], state, "" if layers == 1 else words.many(layers, "layer"))
    else:
        kinds = {node.layer.kind for node in run if node.layer is not None}
        (kind,) = kinds if len(kinds) == 1 else ("",)
        below = "" if layers == len(run) else f" ({words.many(layers, 'layer')})"
        title = Text.assemble((f"{mark} ", style), f"{run[0].label} … {run[-1].label}")
        title.append(f"  {len(run)} × {kind}{below}" if kind else f"  {len(run)} modules{below}")
    if state in _VERDICTS:
        title.append(f", {words.verdict(_VERDICTS[state])}", style)
    if state is not State.ALONE and (worst := _worst(run, state is State.MATCH)):
        title.append(f"  {worst}", "dim" if state is State.MATCH else style)
    return title


def _worst(nodes: Sequence[LayerNode], matches: bool = False) -> str:
    """Return the largest error; above its limit, a layer matches if a correct run is about as far."""
    worst = [node.worst for node in nodes if node.worst is not None]
    if not worst:
        return ""
    value, error = max(worst, key=lambda entry: entry[0])
    over = ", about as in a correct run" if matches and 1 < value < math.inf else ""
    share = f", {words.share(value)}" if value < math.inf else ""
    return f"worst {words.error(error)}{share}{over}"


def _in_full(title: Text, layer: LayerResult, parity: Parity, is_first: bool) -> RenderableType:
    from rich.console import Group
    from rich.text import Text

    lines: list[RenderableType] = [title, Figures(layer)]
    for letter, side in words.two(layer):
        source = words.where(parity.layers, layer, letter, side)
        lines.append(Text(f"{letter}: {words.side_name(layer, side)}  {source}".rstrip(), "dim"))
        for layout in words.layouts(side):
            lines.append(Text(f"{letter}: {layout} of the reference's", "dim"))
        if undefined := max(
            (entry.undefined for entry in (side.local, side.accumulated) if entry), default=0
        ):
            lines.append(
                Text(f"{letter}: {undefined} elements are NaN in the reference itself", "dim")
            )
    if not is_first:
        return Group(*lines)
    for cause in parity.causes:
        likely = "cause" if cause.certain else "perhaps"
        lines.append(Text.assemble((f"{likely}: ", "bold"), f"{cause.text} [{cause.name}]"))
        if cause.evidence:
            lines.append(Text(f"  shown by: {cause.evidence}"))
    if not parity.causes:
        lines.append(Text("cause: none of the known patterns", "dim"))
    return Group(*lines)


def _alone(layers: Sequence[LayerResult]) -> Table:
    table = plain_table()
    for layer in layers[:LISTED]:
        for letter, side in words.two(layer):
            table.add_row(f"only {letter}", words.side_name(layer, side), layer.kind)
        if layer.a is None and layer.b is None:
            table.add_row("only the reference", words.layer_name(layer.name), layer.kind)
    if len(layers) > LISTED:
        table.add_row("…", f"{len(layers)} in all", "")
    return table
