"""Stands in for NVIDIA's apex, which is CUDA code: torch's DDP, and amp that computes in float32."""

from . import amp, parallel

__all__ = ["amp", "parallel"]
