"""No test rests on the speed of the machine: what waits does so by `tests/waiting.py`, and says what for."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path
from textwrap import dedent

import pytest

from tests.waiting import LIMIT

TESTS = Path(__file__).parent
CLOCKS = {"time", "monotonic", "perf_counter"}
# Those that take a limit in seconds as their only argument.
WAITS = {"wait", "join", "acquire"}
SLOW = "# slow: "  # of a sleep that is no wait: what is to be slow, and why
OWN = "# its own time"  # of a comparison with a clock that no other work can break


def resting_on_speed(source: str) -> Iterator[str]:
    """Yield each line of a test that waits for a time, or ends what takes longer than one."""
    lines = source.splitlines()
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Compare):
            if any(map(_reads_a_clock, ast.walk(node))) and OWN not in lines[node.lineno - 1]:
                yield f"{node.lineno}: compares with a clock; wait by `until`"
        elif isinstance(node, ast.Call):
            if _name(node.func) == "sleep" and SLOW not in lines[node.lineno - 1]:
                yield f"{node.lineno}: sleeps; wait by `until`, or say `{SLOW}…` what is to be slow"
            for limit in _limits(node):
                if limit < LIMIT:
                    yield f"{node.lineno}: a limit of {limit:g} s; `LIMIT` is {LIMIT:g}"


def _limits(call: ast.Call) -> Iterator[float]:
    """Yield the seconds after which a call gives up, where they are written at it."""
    given = [word.value for word in call.keywords if word.arg == "timeout"]
    if _name(call.func) in WAITS and isinstance(call.func, ast.Attribute):
        given += call.args
    for value in given:
        if isinstance(value, ast.Constant) and type(value.value) in (int, float):
            yield value.value
        elif isinstance(value, ast.Call) and _name(value.func) == "timedelta":
            units = {"seconds": 1, "minutes": 60, "hours": 3600}
            yield sum(
                units[word.arg or ""] * ast.literal_eval(word.value) for word in value.keywords
            )


def _reads_a_clock(node: ast.AST) -> bool:
    return isinstance(node, ast.Call) and ast.unparse(node.func) in {
        f"time.{clock}" for clock in CLOCKS
    }


def _name(function: ast.expr) -> str:
    return ast.unparse(function).rpartition(".")[2]


FILES = sorted(path for path in TESTS.rglob("*.py") if path.name != "waiting.py")


def test_no_test_rests_on_the_speed_of_the_machine() -> None:
    found = [
        f"{path.relative_to(TESTS)}:{line}"
        for path in FILES
        for line in resting_on_speed(path.read_text())
    ]
    assert not found, "\n".join(found)


@pytest.mark.parametrize(
    "source",
    [
        "time.sleep(1)",
        "from time import sleep\nsleep(0.1)",
        "subprocess.run(command, timeout=60)",
        "process.wait(5)",
        "thread.join(timeout=1.5)",
        "dist.init_process_group(timeout=timedelta(minutes=1))",
        "assert time.monotonic() - begun < 2",
        """
        while time.time() < end:
            pass
        """,
    ],
)
def test_what_rests_on_it_is_found(source: str) -> None:
    assert len(list(resting_on_speed(dedent(source)))) == 1


@pytest.mark.parametrize(
    "source",
    [
        'until(lambda: path.exists(), "the file")',
        "time.sleep(0.05)  # slow: a server far away",
        "subprocess.run(command, timeout=LIMIT)",
        'os.path.join("a", "b")',
        "took = time.perf_counter() - begun",
        "assert least <= time.perf_counter() - begun  # its own time",
    ],
)
def test_what_does_not_is_left_alone(source: str) -> None:
    assert list(resting_on_speed(source)) == []
