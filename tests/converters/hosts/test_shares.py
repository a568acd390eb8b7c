"""Who does what: even shares, which keep together what belongs together."""

from __future__ import annotations

from converters.hosts import shares


def held(groups: list[dict[str, int]], dealt: dict[str, int], count: int) -> list[int]:
    return [
        sum(size for group in groups for name, size in group.items() if dealt[name] == process)
        for process in range(count)
    ]


def test_shares_are_even_and_keep_together_what_belongs_together() -> None:
    groups = [{f"{array}.{part}": 100 + array for part in range(4)} for array in range(37)]
    for divisible, most in ((True, 1.05), (False, 1.1)):
        dealt = shares(groups, 4, lambda number, answer=divisible: answer)  # type: ignore[misc]
        apart = [group for group in groups if len({dealt[name] for name in group}) > 1]
        assert len(apart) == divisible
        found = held(groups, dealt, 4)
        assert max(found) <= most * sum(found) / 4


def test_an_array_larger_than_a_share_is_shared() -> None:
    groups = [{f"large.{part}": 100 for part in range(8)}, {"a": 40}, {"b": 40}]
    dealt = shares(groups, 4, lambda number: False)
    assert sorted(held(groups, dealt, 4)) == [200, 200, 240, 240]
    one = {name: 0 for group in groups for name in group}
    assert shares(groups, 1, lambda number: True) == one
    assert shares([], 3, lambda number: True) == {}
