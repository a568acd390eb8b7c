"""Calls of the replicas of a simulation, compared."""

from shims._simulated.calls import first_difference


def test_the_first_read_that_differs_is_reported_not_the_last_one() -> None:
    both, read, sync = "01 reads x at a.py:1", "02 reads y at a.py:2", "03 syncs at a.py:3"
    reads = first_difference(f"{both}\n{read}\n{sync}", f"{both}\n{sync}")
    assert reads == ("reads y at a.py:2", "syncs at a.py:3")
    assert first_difference(f"{both}\n{sync}", both) == ("syncs at a.py:3", "")
