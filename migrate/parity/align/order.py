"""Match two sequences of layers in order, by their kinds, names and values."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from migrate.parity.align.model import CallNode, Model
from migrate.parity.align.tensors import ALIKE, SURE, Tensors
from migrate.parity.ground.kinds import OperationClass, does_nothing, family, operation

Score = Callable[[CallNode, CallNode], float]


def best_chain(
    truth: Sequence[CallNode], mine: Sequence[CallNode], score: Score
) -> list[tuple[CallNode, CallNode]]:
    """Return the pairs (truth, mine) with the largest sum of scores, no two of them crossing.

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
    """Evidence that two calls are of the same layer.

    Args:
        truth, mine: the models.
        tensors: compares the tensors of the two models.
    """

    def __init__(self, truth: Model, mine: Model, tensors: Tensors) -> None:
        self._truth, self._mine, self._tensors = truth, mine, tensors

    def score(self, truth: CallNode, mine: CallNode) -> float:
        """Score of a pair: above 0 if the two calls may be of the same layer.

        Values that agree count most, then the same kind of layer, then the same last part of the name.
        Layers with different weights are never the same. Nor are a layer with weights and a layer without.
        """
        if truth.tokens != mine.tokens:
            return 0.0
        if does_nothing(truth.layer.kind) != does_nothing(mine.layer.kind):
            return 0.0  # a dropout returns the output of the activation before it
        near = self.near(truth, mine)
        if near is None:
            return 0.0
        kinds = self._kinds(truth, mine)
        names = 1.0 if truth.name.rpartition(".")[2] == mine.name.rpartition(".")[2] else 0.0
        if truth.tokens:
            return 1.5 + near + kinds + names
        return near + kinds + names if near > 0 or kinds >= 1.0 else 0.0

    def near(self, truth: CallNode, mine: CallNode) -> float | None:
        """Score of the outputs; None: cannot be the same; 0: unknown; 3: alike; 4: equal but for noise."""
        outputs, others = truth.call.outputs, mine.call.outputs
        if not outputs or not others:
            return 0.0 if bool(outputs) == bool(others) else None
        fitting = [(t, m) for m in others for t in outputs if self._tensors.fits(t, m)]
        if not fitting:
            return None
        t, m = fitting[0]
        if self._tensors.unlike(t, m):
            return 0.0
        match = self._tensors.between(t, m)
        if match is None or match.distance > ALIKE:
            return 0.0
        return 4.0 if match.distance <= SURE else 3.0

    def _kinds(self, truth: CallNode, mine: CallNode) -> float:
        a, b = operation(truth.layer.kind), operation(mine.layer.kind)
        leaves = self._truth.is_leaf(truth.name) == self._mine.is_leaf(mine.name)
        same = family(truth.layer.kind) == family(mine.layer.kind)
        return 0.5 * leaves + 2.0 * same + 0.5 * (a is b and a is not OperationClass.COMPOSITE)
