"""Stands in for mpi4py: the ranks are torchrun's, objects travel over its store.

Only what public training scripts ask of it: the rank, the size, `bcast`, `gather` and `Barrier`.
"""

from . import MPI

__all__ = ["MPI"]
