"""Pair the calls of a side's layers with the truth's: by weights, then by order inside known pairs."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence

from migrate.parity.align.model import CallNode, Model, Tokens
from migrate.parity.align.order import Likeness, best_chain
from migrate.parity.align.tensors import Tensors

Key = tuple[str, int]


class Matching:
    """Pairs of calls, collected step by step.

    Args:
        truth, mine: the models.
        tensors: compares the tensors of the two models.

    Attributes:
        pairs: call of the side → call of the truth, and how the pair was found.
    """

    def __init__(self, truth: Model, mine: Model, tensors: Tensors) -> None:
        self.truth, self.mine = truth, mine
        self.pairs: dict[Key, tuple[Key, str]] = {}
        self._back: dict[Key, Key] = {}
        self._likeness = Likeness(truth, mine, tensors)

    def add(self, truth: Key, mine: Key, how: str) -> None:
        """Add a pair, if neither call has a partner yet."""
        if mine not in self.pairs and truth not in self._back:
            self.pairs[mine] = (truth, how)
            self._back[truth] = mine

    def fixed(self, layers: Mapping[str, str], how: str) -> None:
        """Pair all calls of the given layers in order; `layers` maps the side's layers to the truth's."""
        for mine, truth in layers.items():
            for number in range(max(self.mine.calls(mine), self.truth.calls(truth))):
                if (mine, number) in self.mine.nodes and (truth, number) in self.truth.nodes:
                    self.add((truth, number), (mine, number), how)

    def by_weights(self) -> None:
        """Pair the only calls of the two sides that hold the same weights of the truth.

        Several calls may hold them: a wrapper and the layer it wraps, or a layer called several times. Then
        the values decide, from the inside to the outside.
        """
        groups: dict[Tokens, tuple[list[CallNode], list[CallNode]]] = defaultdict(lambda: ([], []))
        for side, model, known in ((0, self.truth, self._back), (1, self.mine, self.pairs)):
            for key, node in model.nodes.items():
                if node.tokens and key not in known:
                    groups[node.tokens][side].append(node)
        for truth, mine in groups.values():
            self._group(self._sorted(self.truth, truth), self._sorted(self.mine, mine))

    def _group(self, truth: Sequence[CallNode], mine: Sequence[CallNode]) -> None:
        if len(truth) == len(mine) and all(
            self._likeness.near(t, m) is not None for t, m in zip(truth, mine, strict=True)
        ):
            pairs = list(zip(truth, mine, strict=True))
        else:
            pairs = best_chain(truth, mine, self._likeness.score)
        for t, m in pairs:
            self.add(_key(t), _key(m), "weights")

    @staticmethod
    def _sorted(model: Model, nodes: Iterable[CallNode]) -> list[CallNode]:
        return sorted(
            nodes, key=lambda node: (node.call.number, model.height(node.name), node.call.order)
        )

    def by_order(self) -> None:
        """Pair calls inside paired calls, between paired neighbors; containers before their contents."""
        done: set[Key] = set()
        while left := [key for key in self.pairs if key not in done]:
            mine = max(left, key=lambda key: self.mine.nodes[key].call.order)
            done.add(mine)
            truth = self.truth.nodes[self.pairs[mine][0]]
            self._inside(self.truth.inside(truth), self.mine.inside(self.mine.nodes[mine]))

    def _inside(self, truth: list[CallNode], mine: list[CallNode]) -> None:
        """Pair the calls inside two calls; a container without a partner is replaced by its contents."""
        while truth and mine:
            for t, m in self._between_known(truth, mine):
                self.add(_key(t), _key(m), "fingerprint" if self._likeness.near(t, m) else "order")
            opened = (
                self._opened(self.truth, truth, self._back),
                self._opened(self.mine, mine, self.pairs),
            )
            if opened == (truth, mine):
                return
            truth, mine = opened

    @staticmethod
    def _opened(model: Model, nodes: list[CallNode], known: Mapping[Key, object]) -> list[CallNode]:
        opened: list[CallNode] = []
        for node in nodes:
            inside = [] if _key(node) in known else model.inside(node)
            opened.extend(inside or [node])
        return opened

    def _between_known(
        self, truth: Sequence[CallNode], mine: Sequence[CallNode]
    ) -> list[tuple[CallNode, CallNode]]:
        """Return new pairs between each two known pairs that follow one another on both sides."""
        pairs: list[tuple[CallNode, CallNode]] = []
        place = {_key(node): number for number, node in enumerate(truth)}
        start, left = 0, []
        for node in mine:
            known = self.pairs.get(_key(node))
            at = None if known is None else place.get(known[0])
            if known is None:
                left.append(node)
            elif at is not None and at >= start:
                pairs += self._free(truth[start:at], left)
                start, left = at + 1, []
        return pairs + self._free(truth[start:], left)

    def _free(
        self, truth: Sequence[CallNode], mine: Sequence[CallNode]
    ) -> list[tuple[CallNode, CallNode]]:
        free = [node for node in truth if _key(node) not in self._back]
        return best_chain(free, mine, self._likeness.score)

    def by_contents(self) -> None:
        """Pair containers without a partner that contain the same paired leaves."""
        held = [
            self._contents(self.truth, {truth: truth for truth, _ in self.pairs.values()}),
            self._contents(self.mine, {mine: truth for mine, (truth, _) in self.pairs.items()}),
        ]
        known: tuple[Mapping[Key, object], Mapping[Key, object]] = (self._back, self.pairs)
        groups: dict[frozenset[Key], tuple[list[Key], list[Key]]] = defaultdict(lambda: ([], []))
        for side in (0, 1):
            for key, leaves in held[side].items():
                if leaves and key not in known[side]:
                    groups[leaves][side].append(key)
        for truth, mine in groups.values():
            nodes = [self.truth.nodes[key] for key in truth], [self.mine.nodes[key] for key in mine]
            for t, m in best_chain(*nodes, self._likeness.score):
                self.add(_key(t), _key(m), "weights" if t.tokens else "order")

    @staticmethod
    def _contents(model: Model, leaves: Mapping[Key, Key]) -> dict[Key, frozenset[Key]]:
        known = {key: frozenset({leaf}) for key, leaf in leaves.items()}
        contents: dict[Key, frozenset[Key]] = {}
        for key, node in sorted(model.nodes.items(), key=lambda pair: pair[1].call.order):
            inside = [_key(child) for child in model.inside(node)]
            if inside:
                contents[key] = frozenset().union(
                    *(contents.get(child) or known.get(child, frozenset()) for child in inside)
                )
        return {key: held for key, held in contents.items() if held}


def _key(node: CallNode) -> Key:
    return node.name, node.call.number
