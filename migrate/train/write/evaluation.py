"""`evaluate.py` of a program, and the parts of other files that call it."""

from __future__ import annotations

import ast
import re
from collections.abc import Mapping, Sequence
from typing import Any

from migrate.train.slice.evaluation import EVALUATED
from migrate.train.write.split import EVALUATION

UNKNOWN, GIVE_VALUES = "unknown_values", "give_values"


def evaluation_text(source: str, sites: Sequence[Mapping[str, Any]], statistics: bool) -> str:
    """`evaluate.py`: the class of the evaluations, and their values of a batch.

    Args:
        source: the class.
        sites: the evaluations, as they were recorded.
        statistics: whether the model has statistics of batches, which stay as they are.
    """
    names, inputs = [], []
    for site in sites:
        names.append(f"    {site['label']!r}: {tuple(site['numbers'])!r},")
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
    return f"""{source.rstrip()}


EVALUATION = {EVALUATION}(StepConfig())
# Whether the script reads each value as a Python number, or as a tensor.
VALUES = {{
{chr(10).join(names)}
}}


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
    return [x.item() for x in (values if isinstance(values, tuple) else (values,))]


def as_read(name, values):
    \"\"\"The values as the script reads them: numbers, or tensors of one number.\"\"\"
    read = zip(values, VALUES[name], strict=True)
    result = [x if is_number else torch.tensor(x) for x, is_number in read]
    return result[0] if len(result) == 1 else result


class Evaluations:
    \"\"\"Gives values to `data.py`: of the state, or those of an earlier run while its updates are skipped.

    Args:
        folder: that of the checkpoints; None: nothing is stored.
        before: what to do before an evaluation.
    \"\"\"

    def __init__(self, folder, before):
        self.state, self._before = None, before
        self._file = epath.Path(folder) / "evaluations.json" if folder else None
        known = self._file is not None and self._file.exists()
        self._known = json.loads(self._file.read_text()) if known else []
        self._next = 0

    def start(self, state):
        \"\"\"Evaluate from here on with the state; what was stored after it is of a run that was ended.\"\"\"
        self.state = state
        self._known = self._known[: self._next]

    def __call__(self, name, **batch):
        \"\"\"Values of a batch.\"\"\"
        if self.state is None:
            if self._next == len(self._known):
                raise SystemExit(
                    f"{{self._file}}: evaluations of the updates before the checkpoint are missing; "
                    "start with another folder"
                )
            self._next += 1
            return as_read(name, self._known[self._next - 1])
        self._before()
        values = evaluated(self.state, name, batch)
        if self._file is not None:
            self._known.append(values)
            if jax.process_index() == 0:
                whole = self._file.with_suffix(".tmp")  # a file that is half written has no name
                whole.write_text(json.dumps(self._known))
                whole.replace(self._file)
        return as_read(name, values)
"""


_HEAD = "from devices import EVERYWHERE, by_rows\n"


def with_imports(text: str) -> str:
    """The text with what its last functions import."""
    tree = ast.parse(text)
    first = next(n for n in tree.body if isinstance(n, ast.Import | ast.ImportFrom))
    lines = text.splitlines()
    more = ["import functools", "import json", "import jax", "import numpy as np", "import torch"]
    more += ["from etils import epath", _HEAD.strip()]
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
    """A text of `data.py`, whose `batches` takes the function that evaluates."""
    text = tidy(text)
    before = "def batches():\n"
    first = text.index(before)
    doc_end = text.index('"""\n', text.index('"""', first) + 3)
    head = f"def batches({GIVE_VALUES}={UNKNOWN}):\n"
    doc = text[first + len(before) : doc_end]
    rest = text[doc_end + len('"""\n') :]
    described = f" `{GIVE_VALUES}(name, **batch)`\n    gives the values of an evaluation."
    taken = f"    global {EVALUATED}\n    {EVALUATED} = {GIVE_VALUES}\n"
    own = f'{unknown_text(sites)}\n\n{head}{doc}{described}\n    """\n{taken}{rest}'
    return text[:first] + own


def tidy(text: str) -> str:
    """The text without blank lines at the start of a function, where statements were left out."""
    return re.sub(r"(\n *def [^\n]*:\n)\n+(?= )", r"\1", text)
