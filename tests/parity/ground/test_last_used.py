"""The few things that were used last."""

from __future__ import annotations

from migrate.parity.ground.last_used import LastUsed


def test_what_was_not_used_for_longest_goes_before_the_next_is_made() -> None:
    made: list[str] = []
    held: LastUsed[str] = LastUsed(2)

    def get(key: str) -> str:
        def make() -> str:
            made.append(key)
            return key

        return held.get(key, make)

    assert [get(key) for key in "abacbcab"] == list("abacbcab")
    assert "".join(made) == "abcbab"
    held.forget("b")
    get("a")
    get("b")
    assert "".join(made) == "abcbabb"
    held.forget()
    get("a")
    assert "".join(made) == "abcbabba"
