"""Batches with few distinct shapes: XLA compiles a new graph for each shape, which takes minutes."""

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
