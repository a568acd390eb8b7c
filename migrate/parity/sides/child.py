"""Process of a side: loads a model and answers its parent's requests, one line of JSON each.

    python -m migrate.parity.sides.child FD

Requests come on stdin, answers are written to the file descriptor FD. The output of the user's code goes to
stdout and stderr. The process ends when stdin does.
"""

from __future__ import annotations

import json
import os
import sys
import traceback
from typing import Any

from converters.errors import ConversionError
from converters.installing import missing_behind
from migrate.errors import MigrateError
from migrate.parity.sides.load import load_runner
from migrate.parity.sides.protocol import REQUESTS, Load, Loaded, to_plain, to_typed
from migrate.parity.sides.runner import Runner
from shims.activate import import_quickly


class Child:
    """Model of this process, once it is loaded."""

    def __init__(self) -> None:
        self._runner: Runner | None = None

    def answer(self, line: str) -> dict[str, Any]:
        """Answer a line: `ok`, or `error` (the user's), or `crash` (a defect)."""
        name, fields = json.loads(line)
        try:
            return {"ok": to_plain(self._answer(name, fields))}
        except (MigrateError, ConversionError) as error:
            return _refused(error)
        except Exception as error:
            if missing := missing_behind(error):
                return _refused(missing)
            last = traceback.format_exc()
            what = f"{type(error).__name__}: {str(error)[:300]}".replace("\n", " ")
            return {"crash": what, "traceback": last}

    def _answer(self, name: str, fields: Any) -> Any:
        if name == Load.__name__:
            load: Load = to_typed(Load, fields)
            self._runner, weights = load_runner(load.target, load.seed)
            return Loaded(self._runner.kind, weights, self._runner.lies_as_torch)
        assert self._runner is not None
        return to_typed(REQUESTS[name], fields).answer(self._runner)


def _refused(error: MigrateError | ConversionError) -> dict[str, Any]:
    kind, names = type(error).__name__, list(getattr(error, "names", ()))
    return {"error": {"kind": kind, "what": error.what, "remedy": error.remedy, "names": names}}


def main() -> None:
    """Answer until stdin ends."""
    import_quickly("torch", "jax", "flax", "transformers")
    child = Child()
    with os.fdopen(int(sys.argv[1]), "w") as replies:
        for line in sys.stdin:
            replies.write(json.dumps(child.answer(line)) + "\n")
            replies.flush()


if __name__ == "__main__":
    main()
