"""Causes of different graphs on the replicas between two collectives (XLA305). Each file has one cause."""

from __future__ import annotations

from dataclasses import dataclass

import libcst as cst


@dataclass(frozen=True, eq=False)
class GraphDifference:
    """A place where the replicas part.

    Args:
        node: the place.
        message: what happens there, and what to do.
    """

    node: cst.CSTNode
    message: str
