"""The process of a side: loads one model and does what its parent asks, a line of JSON each.

    python -m migrate.parity.sides.child FD

Requests come on stdin, answers go to the file descriptor FD; what the user's code prints goes where
stdout and stderr lead. It ends when stdin does.
"""

from __future__ import annotations

import dataclasses
import json
import os
import sys
import traceback
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from converters.errors import ConversionError
from migrate.errors import MigrateError
from migrate.parity.ground.alignment import Alignment
from migrate.parity.ground.settings import Settings
from migrate.parity.inputs.set import InputSet, read_inputs
from migrate.parity.sides.capture import capture_into
from migrate.parity.sides.runner import Forced, Runner, Training

Request = Mapping[str, Any]


class Child:
    """The model of this process, and the requests that it answers (the methods without `_`)."""

    def __init__(self, runner: Runner | None = None) -> None:
        self._loaded = runner

    def load(self, request: Request) -> Any:
        """Load a target; the kind that it is, and the weights that came with it."""
        from migrate.parity.sides.load import load_runner
        from migrate.parity.sides.target import Target

        self._loaded, weights = load_runner(Target(**request["target"]), request["seed"])
        return {"kind": self._loaded.kind, "weights": None if weights is None else str(weights)}

    def facts(self, request: Request) -> Any:
        """What would run."""
        return dataclasses.asdict(self._runner.facts(_settings(request)))

    def arguments(self, request: Request) -> Any:
        """Arguments of the forward pass."""
        return self._runner.arguments()

    def suggest_inputs(self, request: Request) -> Any:
        """Make inputs as the model tells."""
        self._runner.suggest_inputs(request["count"], request["seed"], Path(request["folder"]))
        return None

    def save_weights(self, request: Request) -> Any:
        """Write the weights."""
        self._runner.save_weights(Path(request["file"]))
        return None

    def load_weights(self, request: Request) -> Any:
        """Take weights."""
        self._runner.load_weights(Path(request["file"]))
        return None

    def prepare(self, request: Request) -> Any:
        """Initialise what needs an input to be."""
        self._runner.prepare(_settings(request), _inputs(request))
        return None

    def capture(self, request: Request) -> Any:
        """Write a dump."""
        passed, reference = request["reference"], None
        if passed is not None:
            alignment = Alignment.from_json(Path(passed["alignment"]).read_text())
            reference = Forced(Path(passed["truth"]), alignment)
        return capture_into(
            self._runner,
            _settings(request),
            _inputs(request),
            Path(request["folder"]),
            layers=request["layers"],
            forced=reference if request["forced"] else None,
            measured=reference if request["measured"] else None,
            numbers=request["numbers"],
        )

    def gradients(self, request: Request) -> Any:
        """Write gradients."""
        cotangents, into = Path(request["cotangents"]), Path(request["into"])
        self._runner.gradients(_settings(request), _inputs(request), cotangents, into)
        return None

    def train(self, request: Request) -> Any:
        """The losses of K steps."""
        training = request["training"]
        training |= {"order": tuple(training["order"]), "targets": Path(training["targets"])}
        return self._runner.train(_settings(request), _inputs(request), Training(**training))

    def generate(self, request: Request) -> Any:
        """Greedy decoding."""
        made = self._runner.generate(
            _settings(request), _inputs(request), request["tokens"], request["output"]
        )
        return dataclasses.asdict(made)

    def approximate_top_k(self, request: Request) -> Any:
        """Approximate top-k's of a JAX side, as a section of the report."""
        runner: Any = self._runner
        return dataclasses.asdict(runner.approximate_top_k(_settings(request), _inputs(request)))

    def program(self, request: Request) -> Any:
        """Write what a compiler gets."""
        runner: Any = self._runner
        program = runner.program(_settings(request), _inputs(request))
        Path(request["file"]).write_bytes(program.data)
        return {"name": program.name, "format": program.format}

    def convert(self, request: Request) -> Any:
        """The torch model's weights as a pytree (`migrate.parity.align.weight_map`)."""
        from migrate.parity.align.weight_map import convert_for

        return convert_for(self._runner, request)

    def explain(self, request: Request) -> Any:
        """Why a layer parts."""
        from migrate.parity.run.explain import explain_for

        return explain_for(self._runner, request)

    @property
    def _runner(self) -> Runner:
        assert self._loaded is not None
        return self._loaded


def _settings(request: Request) -> Settings:
    return Settings.from_dict(request["settings"])


def _inputs(request: Request) -> InputSet:
    return read_inputs(Path(request["inputs"]))


def answer(child: Child, line: str) -> dict[str, Any]:
    """What is sent back for a line: `ok`, or `error` (the user's), or `crash` (a defect)."""
    request = json.loads(line)
    do: Callable[[Request], Any] = getattr(child, request["do"])
    try:
        return {"ok": do(request)}
    except (MigrateError, ConversionError) as error:
        return {"error": {"kind": type(error).__name__, "what": error.what, "remedy": error.remedy}}
    except Exception as error:
        last = traceback.format_exc()
        what = f"{type(error).__name__}: {str(error)[:300]}".replace("\n", " ")
        return {"crash": what, "traceback": last}


def main() -> None:
    """Answer until stdin ends."""
    child = Child()
    with os.fdopen(int(sys.argv[1]), "w") as replies:
        for line in sys.stdin:
            replies.write(json.dumps(answer(child, line)) + "\n")
            replies.flush()


if __name__ == "__main__":
    main()
