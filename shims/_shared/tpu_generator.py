"""Random generator of torch_tpu's device."""

from __future__ import annotations

import warnings

import torch


def tpu_generator() -> torch.Generator:
    """Return the default generator of this process's TPU."""
    with warnings.catch_warnings():
        # torch_tpu calls the name experimental.
        warnings.simplefilter("ignore")
        generator: torch.Generator = torch.tpu.default_generators[0]
        return generator
