"""A CUDA extension is built or loaded."""

from __future__ import annotations

from migrate.check.common import ImportHazard
from migrate.check.hazard import Severity, example
from migrate.check.work import Work


class CppExtension(ImportHazard):
    """A CUDA extension is built or loaded.

    **Why.** Kernels in CUDA do not run on a TPU, and tensors on XLA have no address that a C++
    extension could take.

    **What to do.** Write it with operations of torch, which XLA fuses; or as a Pallas kernel, called through
    `torch_xla.experimental.custom_kernel`.
    """

    code = "XLA401"
    name = "cuda-extension"
    severity = Severity.ERROR
    other_work = Work.KERNELS
    examples = (
        example(
            """
            from torch.utils.cpp_extension import CUDAExtension  # XLA401

            try:
                from torch.utils.cpp_extension import load  # XLA401 info
            except ImportError:
                load = None
            """
        ),
        example(
            """
            import torch
            from setuptools import Extension, setup

            setup(ext_modules=[Extension("fast", ["fast.c"])])
            """
        ),
    )
    mended = example(
        """
        import torch


        def fused(x, bias):  # what the kernel computed
            return torch.nn.functional.gelu(x + bias)
        """
    )
