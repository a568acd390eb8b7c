"""Torch functions that draw random numbers for a tensor: read in scripts, replaced while a proof records."""

from __future__ import annotations

# Methods that fill a tensor in place.
FILLS = frozenset(
    {
        "bernoulli_",
        "cauchy_",
        "exponential_",
        "geometric_",
        "log_normal_",
        "normal_",
        "random_",
        "uniform_",
    }
)
# Functions that make a tensor like another.
LIKES = frozenset({"rand_like", "randint_like", "randn_like"})
