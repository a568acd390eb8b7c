"""What would hang on a TPU ends, and names the replicas, the step and the lines of both."""

import re

import pytest

from tests.shims.test_simulate import PROGRAMS, run

pytestmark = pytest.mark.xla

FAILING = PROGRAMS / "failing.py"


def place(words: str) -> str:
    """`failing.py:` and the number of the line that has `words`."""
    (found,) = [n for n, line in enumerate(FAILING.read_text().splitlines(), 1) if words in line]
    return f"failing.py:{found}"


LAST = place("dist.all_reduce(value)  # first second")

SAVE = place('xm.save({"value": doubled}')


@pytest.mark.parametrize(
    ("how", "patterns"),
    [
        ("raises", ["replica 1 of 2 failed: ValueError: the second replica gives up"]),
        pytest.param(
            "killed", ["replica 1 of 2 failed: killed by SIGKILL"], marks=pytest.mark.long
        ),
        pytest.param("exits", ["replica 1 of 2 exited with status 3"], marks=pytest.mark.long),
        pytest.param(
            "returns",
            [
                rf"replica 0 waits in all_reduce\(sum\) of float32\[3\] at \S*{LAST} \(step 1\), "
                r"which replica 1 never reaches: its function returned after "
                r"all_reduce\(sum\) of float32\[3\] at \S*failing.py:\d+ \(step 0\)"
            ],
            marks=pytest.mark.long,
        ),
        (
            "rendezvous",
            [
                rf"in rendezvous\('save'\) at \S*{place('xm.rendezvous(')} \(step 1\)",
                rf"in all_reduce\(sum\) of float32\[3\] at \S*{LAST} \(step 1\)",
                r"replica \d waits in .* which replica \d never reaches: it is in",
            ],
        ),
        (
            "guarded save",
            [
                r"replica 0 reads the result of a collective by xm.save at "
                rf"\S*{SAVE} \(step 1\), and replica 1 does not before",
                rf"\S*{LAST}",
            ],
        ),
        pytest.param(
            "host barrier",
            [
                rf"replica 0 waits in .* at \S*{LAST} \(step 1\), which replica 1 never reaches: "
                rf"it is in barrier at \S*{place('dist.barrier(')} \(step 1\)"
            ],
            marks=pytest.mark.long,
        ),
        pytest.param(
            "guarded read",
            [r"reads the result of a collective by to at", r"and replica 1 does not before"],
            marks=pytest.mark.long,
        ),
        pytest.param("guarded sync", [r"replica 0 syncs at"], marks=pytest.mark.long),
        pytest.param(
            "read at the end",
            [r"by to at .* and replica 1 does not before it ends"],
            marks=pytest.mark.long,
        ),
        pytest.param(
            "receives",
            [r"collective_permute", rf"at \S*{place('dist.recv(')}", rf"at \S*{LAST}"],
            marks=pytest.mark.long,
        ),
        pytest.param(
            "other shape",
            [r"of float32\[4\] at", r"of float32\[3\] at"],
            marks=pytest.mark.long,
        ),
    ],
)
@pytest.mark.long_cases("guarded save-patterns5", "raises-patterns0")
def test_what_hangs_on_a_tpu_ends(how: str, patterns: list[str]) -> None:
    done = run(FAILING, how)
    assert done.returncode == 1
    said = done.stderr.splitlines()[-1]
    for pattern in patterns:
        assert re.search(pattern, said), said
    if how == "raises":
        assert 'raise ValueError("the second replica gives up")' in done.stderr
        # The replica's traceback begins in the script.
        begins = (
            r'Traceback \(most recent call last\):\n  File "\S*failing.py", line \d+, in main\n'
        )
        assert re.search(begins, done.stderr)
        # Files of the simulation and of torch_xla are no lines of the script.
        assert not re.search(r'File "\S*(/torch_xla/|shims/simulate|/_simulated/)', done.stderr)


@pytest.mark.long
def test_who_waits_for_whom_is_said_and_nothing_is_ended() -> None:
    done = run(FAILING, "busy", SHIMS_WAIT_NOTICE_SECONDS="1")
    assert done.returncode == 0, done.stderr
    (said,) = [line for line in done.stderr.splitlines() if line.startswith("shims: ")]
    assert re.search(rf"replica 0 has waited \d+ s in .*{LAST}", said), said
    assert re.search(rf"replica 1 is at \S*{place('time.sleep(5)')} \(step 1\)", said), said
