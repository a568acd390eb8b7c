"""Which of two sequences of layers correspond, keeping their order: what kinds, names and values say."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from migrate.parity.align.model import Model, Node
from migrate.parity.align.tensors import ALIKE, SURE, Tensors
from migrate.parity.ground.kinds import Operation, does_nothing, family, operation

Score = Callable[[Node, Node], float]


def best_chain(
    truth: Sequence[Node], mine: Sequence[Node], score: Score
) -> list[tuple[Node, Node]]:
    """The pairs (truth, mine) with the largest sum of scores, no two of them crossing.

    Needleman and Wunsch's alignment (1970) with gaps that cost nothing; only scores above 0 make a pair.
    """
    rows, columns = len(truth), len(mine)
    scores = [[score(t, m) for m in mine] for t in truth]
    best = [[0.0] * (columns + 1) for _ in range(rows + 1)]
    for i in range(rows - 1, -1, -1):
        for j in range(columns - 1, -1, -1):
            both = scores[i][j] + best[i + 1][j + 1] if scores[i][j] > 0 else 0.0
            best[i][j] = max(best[i + 1][j], best[i][j + 1], both)
    pairs, i, j = [], 0, 0
    while i < rows and j < columns:
        if scores[i][j] > 0 and best[i][j] == scores[i][j] + best[i + 1][j + 1]:
            pairs.append((truth[i], mine[j]))
            i, j = i + 1, j + 1
        elif best[i][j] == best[i + 1][j]:
            i += 1
        else:
            j += 1
    return pairs


class Likeness:
    """How much speaks for two calls being of the same layer.

    Args:
        truth, mine: the models.
        tensors: compares their tensors.
    """

    def __init__(self, truth: Model, mine: Model, tensors: Tensors) -> None:
        self._truth, self._mine, self._tensors = truth, mine, tensors

    def score(self, truth: Node, mine: Node) -> float:
        """Above 0 where they may be the same.

        Values that agree count most, then the same kind of layer, then the same last part of the name. Layers
        with different weights are never the same; neither is one with and one without.
        """
        if truth.tokens != mine.tokens:
            return 0.0
        if does_nothing(truth.layer.kind) != does_nothing(mine.layer.kind):
            return 0.0  # a dropout gives what the activation before it gave
        near = self.near(truth, mine)
        if near is None:
            return 0.0
        kinds = self._kinds(truth, mine)
        names = 1.0 if truth.name.rpartition(".")[2] == mine.name.rpartition(".")[2] else 0.0
        if truth.tokens:
            return 1.5 + near + kinds + names
        return near + kinds + names if near > 0 or kinds >= 1.0 else 0.0

    def near(self, truth: Node, mine: Node) -> float | None:
        """What their outputs say: None: cannot be the same; 0: nothing; 3: alike; 4: equal but for noise."""
        outputs, others = truth.call.outputs, mine.call.outputs
        if not outputs or not others:
            return 0.0 if bool(outputs) == bool(others) else None
        fitting = [(t, m) for m in others for t in outputs if self._tensors.fits(t, m)]
        if not fitting:
            return None
        t, m = fitting[0]
        if self._tensors.unlike(t, m):
            return 0.0
        found = self._tensors.between(t, m)
        if found is None or found.distance > ALIKE:
            return 0.0
        return 4.0 if found.distance <= SURE else 3.0

    def _kinds(self, truth: Node, mine: Node) -> float:
        a, b = operation(truth.layer.kind), operation(mine.layer.kind)
        leaves = self._truth.is_leaf(truth.name) == self._mine.is_leaf(mine.name)
        same = family(truth.layer.kind) == family(mine.layer.kind)
        return 0.5 * leaves + 2.0 * same + 0.5 * (a is b and a is not Operation.COMPOSITE)
