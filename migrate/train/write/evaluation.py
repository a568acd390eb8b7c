"""`evaluate.py` of a program, and the parts of other files that call it."""

from __future__ import annotations

import ast
import re
from collections.abc import Mapping, Sequence
from typing import Any

from migrate.train.slice.evaluation import EVALUATED
from migrate.train.write.split import EVALUATION

UNKNOWN = "unknown_values"


def evaluation_text(source: str, sites: Sequence[Mapping[str, Any]], statistics: bool) -> str:
    """`evaluate.py`: the class of the evaluations, and their values of a batch.

    Args:
        source: the class.
        sites: the evaluations, as they were recorded.
        statistics: whether the model has statistics of batches, which stay as they are.
    """
    inputs = []
    for site in sites:
        same = all((name, ()) == tuple(key) for name, key in site["inputs"].items())
        reads = ", ".join(
            f"{name!r}: batch[{root!r}]" + "".join(f"[{key!r}]" for key in path)
            for name, (root, path) in site["inputs"].items()
        )
        inputs.append((site["label"], "" if same else reads))
    lines = []
    for label, reads in inputs:
        if reads:
            test = f"    if name == {label!r}:\n    " if len(inputs) > 1 else ""
            lines.append(f"{test}    batch = {{{reads}}}")
    mode = ", deterministic=True" if _takes_mode(source) else ""
    constants, tensors = _tensors(sites)
    return f"""{source.rstrip()}


EVALUATION = {EVALUATION}(StepConfig())
{constants}

@functools.partial(jax.jit, static_argnums=0, out_shardings=EVERYWHERE)
def values_of(name, params, variables, inputs):
    \"\"\"What an evaluation computes of a batch, in evaluation mode.\"\"\"
    return EVALUATION.apply(
        {{**variables, "params": params}}, **inputs{mode}, method=name
    )


def evaluated(state, name, batch):
    \"\"\"The values that the script reads of a batch, as Python numbers.\"\"\"
{chr(10).join([*lines, ""]) if lines else ""}\
    inputs = by_rows(jax.tree.map(np.asarray, batch))
    values = values_of(name, state.params, state.variables, inputs)
    return [value.item() for value in jax.tree.leaves(values)]


class Evaluations:
    \"\"\"Gives values to `data.py`: those of an earlier run as long as there are any, then of the state.

    Args:
        state: the state.
        values: values of the earlier run; it gets the new ones.
        before: what to do before an evaluation.
    \"\"\"

    def __init__(self, state, values, before=lambda: None):
        self.state, self._values, self._before, self._count = state, values, before, 0

    def __call__(self, name, **batch):
        \"\"\"Values of a batch, as the script reads them.\"\"\"
        if self._count == len(self._values):
            self._before()
            self._values.append(evaluated(self.state, name, batch))
        values = self._values[self._count]
        self._count += 1{tensors}
        return values[0] if len(values) == 1 else values
"""


def _tensors(sites: Sequence[Mapping[str, Any]]) -> tuple[str, str]:
    """A constant and a statement that make tensors of values that the script reads as such."""
    if all(all(site["numbers"]) for site in sites):
        return "", ""
    each = "".join(f"    {site['label']!r}: {tuple(site['numbers'])!r},\n" for site in sites)
    constants = f"""# Whether the script reads each value as a Python number, or as a tensor.
NUMBERS = {{
{each}}}
"""
    return (
        constants,
        """
        read = zip(values, NUMBERS[name], strict=True)
        values = [value if number else torch.tensor(value) for value, number in read]""",
    )


_HEAD = "from devices import EVERYWHERE, by_rows\n"


def with_imports(text: str) -> str:
    """The text with what its last functions import."""
    tree = ast.parse(text)
    first = next(n for n in tree.body if isinstance(n, ast.Import | ast.ImportFrom))
    lines = text.splitlines()
    more = ["import functools", "import jax", "import numpy as np", "import torch", _HEAD.strip()]
    more.append("from model import StepConfig")
    at = first.lineno - 1
    if isinstance(first, ast.ImportFrom) and first.module == "__future__":
        at += 1
    lines[at:at] = more
    return "\n".join(lines) + "\n"


def _takes_mode(source: str) -> bool:
    """Whether the methods of the evaluations have a mode."""
    return any(
        isinstance(node, ast.FunctionDef)
        and any(a.arg == "deterministic" for a in (*node.args.args, *node.args.kwonlyargs))
        for cls in ast.parse(source).body
        if isinstance(cls, ast.ClassDef) and cls.name == EVALUATION
        for node in cls.body
    )


def unknown_text(sites: Sequence[Mapping[str, Any]]) -> str:
    """Functions of `data.py` for values of evaluations."""
    values = []
    for site in sites:
        each = ["math.nan" if n else "torch.tensor(math.nan)" for n in site["numbers"]]
        values.append(
            f"{site['label']!r}: {each[0] if len(each) == 1 else '(' + ', '.join(each) + ')'}"
        )
    return f'''def {UNKNOWN}(name, **batch):
    """Values of an evaluation for a reader of the batches alone: not a number."""
    return {{{", ".join(values)}}}[name]


{EVALUATED} = {UNKNOWN}
'''


def with_evaluations(text: str, sites: Sequence[Mapping[str, Any]]) -> str:
    """A text of `data.py` with the name that its loop asks for values; `train.py` sets it."""
    before, batches, after = tidy(text).partition("def batches():\n")
    return f"{before}{unknown_text(sites)}\n\n{batches}{after}"


def tidy(text: str) -> str:
    """The text without blank lines at the start of a function, where statements were left out."""
    return re.sub(r"(\n *def [^\n]*:\n)\n+(?= )", r"\1", text)
