"""A stand-in for `torch._six` of torch 1: what mae takes of it."""

from math import inf

__all__ = ["inf"]
