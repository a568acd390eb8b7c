"""Batches of few distinct shapes: each new shape is a new graph, which XLA compiles for minutes."""

from shims.data.buckets import ShapeError
from shims.data.pad import Collate, pad_collate
from shims.data.sampler import BucketSampler
from shims.data.shapes import ShapeCount, ShapeReport, shapes_of

__all__ = [
    "BucketSampler",
    "Collate",
    "ShapeCount",
    "ShapeError",
    "ShapeReport",
    "pad_collate",
    "shapes_of",
]
