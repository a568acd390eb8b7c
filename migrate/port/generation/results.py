"""Results of the proof of a cached forward."""

from __future__ import annotations

from dataclasses import dataclass

# Relative L2 of logits in float32 that counts as equal.
LIMIT = 1e-5


@dataclass(frozen=True)
class CachedCase:
    """Comparison of the port's cached logits with the original's logits without a cache.

    Attributes:
        name: what is compared.
        inputs: shapes of the tokens.
        distance: relative L2 of the worst position.
        position: that position, among the tokens.
        error: why there was no comparison; "" otherwise.
    """

    name: str
    inputs: str
    distance: float = 0.0
    position: int = 0
    error: str = ""

    @property
    def matches(self) -> bool:
        """Whether every position has the original's logits."""
        return not self.error and self.distance <= LIMIT

    @property
    def verdict(self) -> str:
        """The verdict for a reader."""
        if self.error:
            return f"could not be compared: {self.error}"
        if self.matches:
            return "match"
        return f"differs: {self.distance:.1e} at token {self.position}, {LIMIT:.0e} is allowed"
