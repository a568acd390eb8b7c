"""Weights of the program as torch's state dicts name and lay them out."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import jax
import numpy as np
from converters.kept import read_kept
from converters.reverse import to_state_dict


def by_torch_names(tree: Any, kept: Path) -> dict[str, np.ndarray[Any, Any]]:
    """Return the arrays of the program's variables by torch's names.

    Args:
        tree: `{"params": …}` and other variables.
        kept: the file that has what the way back to torch needs beside the arrays.
    """
    known = {leaf.path for leaf in read_kept(kept).leaves}
    arrays: dict[str, Any] = {}
    for path, array in jax.tree_util.tree_leaves_with_path(tree):
        names = [key.key for key in path]
        if "/".join(names) in known:
            *above, last = names
            node = arrays
            for name in above:
                node = node.setdefault(name, {})
            node[last] = np.asarray(array)
    return {name: np.asarray(x) for name, x in to_state_dict(arrays, kept=kept).items()}
