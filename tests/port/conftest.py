from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner, Result

from migrate.cli import commands
from migrate.port import pipeline
from migrate.port.errors import MissingOperatorsError
from tests.port import standin
from tests.port.standin import StandIn

Run = Callable[..., Result]


@pytest.fixture
def run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Run:
    """Run `migrate port` in a folder with net.py, with what a compiler would give for it."""
    standin.written(tmp_path)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(pipeline, "has_compiler", lambda: True)

    def ran(*words: str, gives: StandIn = standin.RIGHT) -> Result:
        def compiled(module: Any, inputs: Any, shown: str, **how: Any) -> StandIn:
            if gives.missing and not how["allow_stubs"]:
                raise MissingOperatorsError(shown, gives.missing)
            return gives

        monkeypatch.setattr(pipeline, "compiled", compiled)
        return CliRunner().invoke(commands, ["port", *words])

    return ran
