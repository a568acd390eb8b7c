"""What is said of the `except` that the import of a CUDA library goes to."""

from __future__ import annotations

from pathlib import Path

import pytest

from migrate.check.check import check_source
from migrate.check.config import Config
from migrate.check.hazard import Severity
from migrate.syntax.source import parse

GOES_ON = "continues without it, by the `except` of line {}"
ENDS = "ends there, by the `except` of line {}"


def finding(script: str) -> tuple[str, Severity]:
    source = parse(script.encode(), Path("script.py"))
    (found,) = check_source(source, Config(select=("XLA410",)))
    return found.message, found.severity


@pytest.mark.parametrize(
    "body",
    [
        'raise ImportError("Please install it")',
        "raise",
        "print('no')\n    raise",
        "sys.exit(1)",
        "if sys.argv:\n        raise\n    else:\n        sys.exit(1)",
        "with open('log'):\n        raise",
    ],
)
def test_a_handler_that_raises_or_exits_ends_the_script(body: str) -> None:
    script = f"import sys\ntry:\n    import xformers.ops\nexcept ImportError:\n    {body}\n"
    message, severity = finding(script)
    assert message.endswith(ENDS.format(4))
    assert severity is Severity.ERROR


@pytest.mark.parametrize(
    "body",
    [
        "xformers = None",
        "if sys.argv:\n        raise\n    xformers = None",
        "def fail():\n        raise ImportError",
        "for one in sys.argv:\n        raise",
    ],
)
def test_a_handler_that_may_go_on_is_information(body: str) -> None:
    script = f"import sys\ntry:\n    import xformers.ops\nexcept ImportError:\n    {body}\n"
    message, severity = finding(script)
    assert message.endswith(GOES_ON.format(4))
    assert severity is Severity.INFO


def test_what_a_handler_raises_goes_to_the_try_around_it() -> None:
    inner = (
        "    try:\n        import xformers.ops\n    except ImportError as error:\n        raise\n"
    )
    script = f"try:\n{inner}except Exception:\n    xformers = None\n"
    message, severity = finding(script)
    assert message.endswith(GOES_ON.format(6))
    assert severity is Severity.INFO


def test_the_next_handler_of_the_same_try_is_not_met() -> None:
    handlers = "except ImportError:\n    raise\nexcept Exception:\n    xformers = None\n"
    message, severity = finding(f"try:\n    import xformers.ops\n{handlers}")
    assert message.endswith(ENDS.format(3))
    assert severity is Severity.ERROR
