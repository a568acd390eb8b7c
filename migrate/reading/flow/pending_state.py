"""What of a function's values waits for a collective, and what running the function leaves of it."""

from __future__ import annotations

from dataclasses import dataclass, field

import libcst as cst

# A collective by the id of its call, or a parameter of the function by its name.
Origin = int | str
Origins = frozenset[Origin]
State = dict[str, Origins]
NONE: Origins = frozenset()
ENTRY = ""  # gone from the state once the function has ended the graph


@dataclass
class Ran:
    """What running a function leaves behind.

    Args:
        hits: the reads in some replicas only, what keeps the others from each, and what each waits for.
        returned: what the result waits for.
        state: what is pending at the end, by dotted name.
        ends: whether it has ended the graph of its caller.
    """

    hits: list[tuple[cst.CSTNode, cst.CSTNode, Origins]] = field(default_factory=list)
    returned: Origins = NONE
    state: State = field(default_factory=dict)
    ends: bool = False

    def reads(self, parameter: str) -> cst.CSTNode | None:
        """Return the test of the rank under which `parameter` is read."""
        return next((guard for _, guard, origins in self.hits if parameter in origins), None)

    def writes(self, parameter: str) -> bool:
        """Whether a collective that has not run writes into `parameter`."""
        return any_call(self.state.get(parameter, NONE))


def any_call(origins: Origins) -> bool:
    """Whether a collective is among `origins`, not parameters alone."""
    return any(isinstance(one, int) for one in origins)


def joined(one: State, other: State) -> State:
    """Return what is pending in one of two states."""
    return {key: one.get(key, NONE) | other.get(key, NONE) for key in {*one, *other}}
