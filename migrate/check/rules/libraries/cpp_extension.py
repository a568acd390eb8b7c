"""A CUDA extension is built or loaded."""

from __future__ import annotations

from collections.abc import Iterable

import libcst as cst

from migrate.catalogue.target import BOTH
from migrate.check.common import ImportHazard
from migrate.check.failing_imports import fallback, is_optional
from migrate.check.hazard import Hit, Severity, example
from migrate.check.manual_work import ManualWork
from migrate.reading.facts import Facts
from migrate.syntax.tree import dotted, string_value

LOADERS = frozenset({"torch.ops.load_library", "torch.classes.load_library"})
OPERATIONS = "use the operations of torch"


class CppExtension(ImportHazard):
    """A CUDA extension is built or loaded.

    **Why.** Kernels in CUDA do not run on a TPU, and tensors on XLA have no address that a C++
    extension could take. So is an import of a module that the project itself compiles so: by the name that
    its `setup.py` gives `CUDAExtension` or `CppExtension`.

    **What to do.** Write it with operations of torch, which XLA fuses; or as a Pallas kernel, called through
    `torch_xla.experimental.custom_kernel`.
    """

    code = "XLA401"
    name = "cuda-extension"
    severity = Severity.ERROR
    targets = BOTH
    other_work = ManualWork.KERNELS
    nodes = (cst.Import, cst.ImportFrom, cst.Call)
    words = "load_library|cpp_extension|ffi"
    of_facts = ("extensions",)
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
            from setuptools import setup
            from torch.utils.cpp_extension import BuildExtension, CUDAExtension  # XLA401

            setup(ext_modules=[CUDAExtension("fused_norm", ["norm.cu"])])
            import fused_norm  # XLA401
            """
        ),
        example(
            """
            import torch

            torch.ops.load_library("build/fused_norm.so")  # XLA401
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

    def find(self, node: cst.CSTNode, facts: Facts) -> Iterable[Hit]:
        """Yield one import: of what builds an extension, or of an extension of the project."""
        if isinstance(node, cst.Call):
            yield from self._loaded(node, facts)
            return
        for name in _imported(node, facts):
            if _is_own(name, facts):
                message = f"{name} is compiled by this project and does not take tensors of XLA: {OPERATIONS}"
                without = fallback(node, facts)
                severity = Severity.INFO if is_optional(node, facts) else self.severity
                yield self.hit(node, message + without, severity, is_shown=bool(without))
                return
        yield from super().find(node, facts)

    def _loaded(self, call: cst.Call, facts: Facts) -> Iterable[Hit]:
        """Yield what loads an extension while the script runs."""
        name = facts.names.of(call.func)
        package = string_value(call.args[0].value) if call.args else None
        if name in LOADERS:
            message = f"{name}: operators of one's own do not take tensors of XLA"
            yield self.hit(call, message, subject=name)
        elif name == "importlib.import_module" and package is not None and _is_own(package, facts):
            yield self.hit(call, f"{package} is compiled by this project: {OPERATIONS}")


def _is_own(name: str, facts: Facts) -> bool:
    """Whether the dotted `name` is an extension that the project compiles, or in one."""
    own = facts.context.calls.extensions
    return any(name == module or name.startswith(f"{module}.") for module in own)


def _imported(node: cst.CSTNode, facts: Facts) -> list[str]:
    """Return the dotted names that an import imports, each as an extension of the project would have it."""
    if not facts.context.calls.extensions:
        return []
    if not isinstance(node, cst.ImportFrom) or not node.relative:
        return facts.imported(node)
    if isinstance(node.names, cst.ImportStar):
        return []
    folders = facts.context.source.path.parent.parts
    folders = folders[: len(folders) - len(node.relative) + 1]
    module = tuple(dotted(node.module).split(".")) if node.module is not None else ()
    names = []
    for alias in node.names:
        parts = (*folders, *module, alias.evaluated_name)
        for own in facts.context.calls.extensions:
            size = own.count(".") + 1
            if tuple(own.split(".")) in (parts[-size:], parts[-size - 1 : -1]):
                names.append(own)
    return names
