"""Sequences that grow by greedy decoding, for any framework.

They have their final length from the beginning, padded on the right. With one shape XLA compiles once, and a
causal model does not see later positions. New tokens of a row follow the last token of the attention mask.
New tokens of an encoder-decoder model follow its `decoder_input_ids`.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from migrate.parity.ground.errors import InputsError

Array = np.ndarray[Any, Any]

_POSITIONS = "position_ids"


class Rows:
    """Growing sequences of one input.

    Attributes:
        length: final length of all sequences.
        arrays: the inputs, with the tokens appended so far.

    Raises:
        InputsError: there are no `input_ids`.
    """

    def __init__(self, arrays: dict[str, Array], tokens: int, shown: str) -> None:
        prefix = "decoder_" if "decoder_input_ids" in arrays else ""
        self._ids, mask = f"{prefix}input_ids", f"{prefix}attention_mask"
        if self._ids not in arrays or arrays[self._ids].ndim != 2:
            raise InputsError(
                f"{shown}: decoding needs input_ids [rows, length], the inputs are "
                f"{', '.join(arrays)}",
                "give input_ids, or leave --tokens out",
            )
        ids = arrays[self._ids]
        self._mask = mask if mask in arrays else ""
        known = arrays[mask] if self._mask else np.ones_like(ids)
        # The last token that counts, for any position of the padding.
        self._ends = [int(np.flatnonzero(row)[-1]) + 1 if row.any() else 1 for row in known]
        self.length = ids.shape[1] + tokens
        self.arrays = {
            name: _longer(name, array, tokens) if self._follows(name, array, ids) else array
            for name, array in arrays.items()
        }
        self._found = np.zeros((len(ids), tokens), np.int64)
        self._margins = np.zeros((len(ids), tokens), np.float64)

    def _follows(self, name: str, array: Array, ids: Array) -> bool:
        """Whether an argument has a value for each token of the growing sequence."""
        return array.shape == ids.shape and name.startswith("decoder_") == self._ids.startswith(
            "decoder_"
        )

    def append(self, step: int, logits: Array) -> None:
        """Append the most likely token of each row."""
        for row, end in enumerate(self._ends):
            at = end + step
            here = logits[row, at - 1].astype(np.float64)
            second, first = np.partition(here, -2)[-2:]
            token = int(np.argmax(here))
            self._found[row, step], self._margins[row, step] = token, first - second
            self.arrays[self._ids][row, at] = token
            if self._mask:
                self.arrays[self._mask][row, at] = 1
            if _POSITIONS in self.arrays and not self._ids.startswith("decoder_"):
                positions = self.arrays[_POSITIONS]
                positions[row, at] = positions[row, at - 1] + 1

    def tokens(self) -> tuple[tuple[int, ...], ...]:
        """Appended tokens, row by row."""
        return tuple(tuple(int(token) for token in row) for row in self._found)

    def margins(self) -> tuple[tuple[float, ...], ...]:
        """Margins of the appended tokens over the next most likely ones."""
        return tuple(tuple(float(margin) for margin in row) for row in self._margins)


def _longer(name: str, array: Array, tokens: int) -> Array:
    """Extend an argument for the new tokens; other arguments than tokens and masks repeat their last
    value.
    """
    if name.endswith(("input_ids", "attention_mask")):
        more = np.zeros((len(array), tokens), array.dtype)
    else:
        more = np.repeat(array[:, -1:], tokens, axis=1)
    return np.concatenate([array, more], axis=1)
