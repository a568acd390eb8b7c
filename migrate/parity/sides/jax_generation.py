"""Greedy decoding with a JAX side."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from migrate.parity.errors import InputsError, ParityError
from migrate.parity.inputs import InputSet
from migrate.parity.sides.jax_capture import Passes
from migrate.parity.sides.jax_model import JaxModel
from migrate.parity.sides.jax_session import Session
from migrate.parity.sides.runner import Generated

_TOKENS, _MASK, _POSITIONS = "input_ids", "attention_mask", "position_ids"
# A causal model gives what it gives whatever is appended; rounding may differ with the length.
_SAME = 1e-2

Arrays = dict[str, np.ndarray[Any, Any]]


def generate(
    passes: Passes, model: JaxModel, session: Session, inputs: InputSet, tokens: int, output: str
) -> Generated:
    """See `Runner.generate`.

    The sequence is padded on the right to its final length, so that one compilation serves all steps. A
    model that sees the padding (it is not causal) is run on growing sequences instead.
    """
    if _TOKENS not in inputs.names:
        raise InputsError(
            f"{model.shown}: takes no {_TOKENS} to append to", "give the inputs that name"
        )
    found, margins = [], []
    with session.active():
        weights = session.weights(model)
        for number in range(inputs.count):
            decoder = _Decoder(passes, weights, model.shown, output)
            one = decoder.decode(inputs[number], tokens)
            found.append(tuple(tuple(int(token) for token in row) for row in one[0]))
            margins.append(tuple(tuple(float(margin) for margin in row) for row in one[1]))
    return Generated(tuple(found), tuple(margins))


class _Decoder:
    def __init__(self, passes: Passes, weights: Mapping[str, Any], shown: str, output: str) -> None:
        self._passes, self._weights = passes, weights
        self._shown, self._output = shown, output

    def decode(self, arrays: Arrays, tokens: int) -> tuple[np.ndarray[Any, Any], Any]:
        """Tokens and margins, (rows, tokens) each."""
        length = arrays[_TOKENS].shape[1]
        padded = _extended(arrays, tokens, seen=False)
        last = self._logits(arrays, length)
        causal = _alike(last, self._logits(padded, length))
        chosen, margins = [], []
        for step in range(tokens):
            if causal:
                last = self._logits(padded, length + step)
            elif step:
                last = self._logits(arrays, length + step)
            best = np.argsort(last, axis=-1)[:, -2:]
            top = np.take_along_axis(last, best, axis=-1)
            chosen.append(np.argmax(last, axis=-1))
            margins.append(top[:, 1] - top[:, 0])
            if causal:
                padded[_TOKENS][:, length + step] = chosen[-1]
                if _MASK in padded:
                    padded[_MASK][:, length + step] = 1
            else:
                arrays = _extended(arrays, 1, seen=True)
                arrays[_TOKENS][:, -1] = chosen[-1]
        return np.stack(chosen, 1), np.stack(margins, 1)

    def _logits(self, arrays: Arrays, length: int) -> np.ndarray[Any, Any]:
        """Those of the last token of the first `length`, in float64."""
        outputs, _ = self._passes.outputs(self._weights, arrays)
        if self._output not in outputs:
            raise ParityError(
                f"{self._shown}: has no output {self._output or '(a single tensor)'}, but "
                f"{', '.join(outputs)}",
                "name the output that holds logits",
            )
        return outputs[self._output][:, length - 1].astype(np.float64)


def _extended(arrays: Arrays, count: int, *, seen: bool) -> Arrays:
    """The inputs with `count` more places: tokens 0, mask as `seen`, positions that go on, else the last."""
    length = arrays[_TOKENS].shape[1]
    longer = {}
    for name, array in arrays.items():
        if array.ndim != 2 or array.shape[1] != length or array.dtype.kind not in "iub":
            longer[name] = array
            continue
        last = array[:, -1:]
        more = np.repeat(last, count, axis=1)
        if name == _TOKENS:
            more = np.zeros_like(more)
        elif name == _MASK:
            more = np.full_like(more, seen)
        elif name == _POSITIONS:
            more = last + np.arange(1, count + 1, dtype=array.dtype)
        longer[name] = np.concatenate([array, more], axis=1)
    return longer


def _alike(one: np.ndarray[Any, Any], other: np.ndarray[Any, Any]) -> bool:
    return bool(np.linalg.norm(one - other) <= _SAME * np.linalg.norm(one))
