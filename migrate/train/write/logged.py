"""Log lines in `data.py`: where they get values of an update from."""

from __future__ import annotations

from collections.abc import Sequence

from migrate.train.slice.logged import LOSS, NEXT_RATE, NORM, RATE, UPDATE
from migrate.train.write.evaluation import tidy

# Expression of each value in the loop of `train.py`, after the update. A learning rate becomes the shortest
# decimal number of its float32, which is what the script prints.
_VALUES = {
    LOSS: "losses[-1]",
    NORM: "state.norm",
    RATE: "float(str(rate))",
    NEXT_RATE: "float(str(learning_rate_of(state.step)))",
}


def with_logged(text: str, values: Sequence[str]) -> str:
    """A text of `data.py` with the values that its log lines read; `train.py` sets them."""
    if not values:
        return text
    unknown = ", ".join(f'"{value}": np.float32("nan")' for value in values)
    before, batches, after = tidy(text).partition("def batches():\n")
    head = f"# Values of the last update, which train.py sets.\n{UPDATE} = {{{unknown}}}\n\n\n"
    return f"{before}{head}{batches}{after}"


def logged_texts(values: Sequence[str]) -> tuple[str, str]:
    """Statements of `train.py` before its loop and after an update, which hand the values over."""
    each = ", ".join(f"{value}={_VALUES[value]}" for value in values)
    start = ""
    if NEXT_RATE in values:
        start = f"\n    data.{UPDATE}.update({NEXT_RATE}={_VALUES[NEXT_RATE]})"
    return start, f"data.{UPDATE}.update({each})"
