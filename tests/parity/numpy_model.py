"""A small framework in numpy whose runs are written as dumps: for the tests of alignment and judgement.

A model is a function of (run, x); `run.layer(name, kind, function, *arguments, weights=…)` calls a layer. In
a forced run each layer is fed with the truth's inputs, as the runners of real frameworks do.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from migrate.parity.dump.dump import Dump, Layer, Named
from migrate.parity.dump.writer import DumpWriter
from migrate.parity.ground.alignment import LayerAlignment
from migrate.parity.ground.facts import RunFacts

Array = np.ndarray[Any, Any]
Model = Callable[["Run", Array], Array]


class Run:
    """One run on one input.

    Attributes:
        weights: by name, in the run's dtype.
    """

    def __init__(
        self,
        writer: DumpWriter,
        number: int,
        weights: Mapping[str, Array],
        dtype: str,
        forced: tuple[Dump, LayerAlignment] | None = None,
    ) -> None:
        self.weights = {name: array.astype(dtype) for name, array in weights.items()}
        self._writer, self._input, self._dtype, self._forced = writer, number, dtype, forced
        self._order, self._counts, self._stack = 0, dict[str, int](), list[str]()
        self._alive: list[Array] = []

    def layer(
        self,
        name: str,
        kind: str,
        function: Callable[..., Any],
        *arguments: Array,
        weights: Sequence[str] = (),
        settings: Mapping[str, Any] | None = None,
    ) -> Any:
        """Call a layer; what its caller goes on with."""
        parent = self._stack[-1] if self._stack else None
        place = f"{name or 'model'}.py:1"
        self._writer.layer(
            Layer(
                name,
                kind,
                tuple(weights),
                settings or {},
                place,
                "" if parent is None else place,
                parent,
            )
        )
        number = self._counts.get(name, 0)
        self._counts[name] = number + 1
        named = [self._named(str(at), one) for at, one in enumerate(arguments)]
        given = self._writer.given(name, number, self._input, named)
        truth = self._truth(name, number)
        fed = list(arguments)
        if truth is not None:
            for pair in truth[0].arguments:
                fed[int(pair.mine)] = self._taken(truth[1].arguments, pair)
        self._stack.append(name)
        result = function(*fed)
        self._stack.pop()
        results = result if isinstance(result, tuple) else (result,)
        paths = [str(at) for at in range(len(results))] if isinstance(result, tuple) else [""]
        outputs = [self._named(*one) for one in zip(paths, results, strict=True)]
        self._writer.call(name, number, self._input, self._order, given, outputs)
        self._order += 1
        if truth is not None:
            goes_on = dict(zip(paths, results, strict=True))
            for pair in truth[0].outputs:
                goes_on[pair.mine] = self._taken(truth[1].outputs, pair)
            results = tuple(goes_on.values())
        return results if isinstance(result, tuple) else results[0]

    def _named(self, path: str, array: Array) -> Named:
        self._alive.append(array)
        return Named(path, array, (self._input, id(array)))

    def _truth(self, name: str, number: int) -> Any:
        if self._forced is None or (found := self._forced[1].pair(name, number)) is None:
            return None
        for call in self._forced[0].of(found[0].truth):
            if (call.number, call.input) == (found[1], self._input):
                return found[0], call
        return None

    def _taken(self, refs: Any, pair: Any) -> Array:
        assert self._forced is not None
        ref = next(ref for ref in refs if ref.path == pair.truth)
        array = pair.as_mine(self._forced[0].tensor(ref))
        if array.dtype.kind != "f":
            return array
        largest = float(np.finfo(self._dtype).max)
        return np.clip(array, -largest, largest).astype(self._dtype)


def capture(
    folder: Path,
    model: Model,
    weights: Mapping[str, Array],
    inputs: Sequence[Array],
    dtype: str = "float32",
    *,
    framework: str = "torch",
    forced: tuple[Dump, LayerAlignment] | None = None,
) -> Dump:
    """Run a model on inputs; a forced run takes the truth's dump and the alignment with it."""
    writer = DumpWriter(folder, RunFacts(framework, "model.py", "cpu", dtype), len(inputs))
    kept = []
    for number, x in enumerate(inputs):
        run = Run(writer, number, weights, dtype, forced)
        x = x.astype(dtype) if x.dtype.kind == "f" else x
        y = run.layer("", "Model", lambda x, run=run: model(run, x), x)
        writer.outputs(number, [Named("", y)])
        kept.append(run)
    writer.close()
    return Dump(folder)
