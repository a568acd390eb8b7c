"""What fails in another process is told by this one."""

from __future__ import annotations

import pickle

import pytest

from migrate.errors import MigrateError
from migrate.fit.products import UnknownProductError
from migrate.syntax.source import UnreadableScriptError

ERRORS = (
    MigrateError("x.py", "look"),
    UnreadableScriptError("x.py", "look"),
    UnknownProductError("v5f", "v5e"),
)


@pytest.mark.parametrize("error", ERRORS, ids=lambda error: type(error).__name__)
def test_an_error_crosses_processes(error: MigrateError) -> None:
    again = pickle.loads(pickle.dumps(error))
    assert type(again) is type(error)
    assert (str(again), again.what, again.remedy) == (str(error), error.what, error.remedy)
