"""A framework that takes the TPU is imported beside torch_xla."""

from __future__ import annotations

from collections.abc import Iterable

import libcst as cst

from migrate.check.hazard import Hazard, Hit, Severity, example
from migrate.reading.facts import Facts
from migrate.reading.replicas.launch import is_guard

DOES = {
    "jax": "both torch_xla and jax take the TPU, the second hangs or fails: "
    'os.environ["JAX_PLATFORMS"] = "cpu" before the import keeps jax on the host',
    "tensorflow": "both torch_xla and tensorflow take the TPU, the second hangs or fails: "
    "install tensorflow-cpu",
}


class RivalFrameworks(Hazard):
    """JAX or TensorFlow is imported in a process that uses torch_xla.

    **Why.** One process at a time owns a TPU chip, and in it one runtime. JAX takes all chips at its first
    array, torch_xla at its first tensor on the device: the second of them hangs or fails. A TensorFlow built
    for TPUs does the same. Only the process that uses torch_xla is meant: what it imports, also through
    files of the project and in functions that it calls. Under `try:`, or where the script asks for a
    framework by name (`if backend == "jax":`), this is information.

    **What to do.** Keep the other framework on the host: `os.environ["JAX_PLATFORMS"] = "cpu"` before the
    first import of jax, the package `tensorflow-cpu` in place of `tensorflow`. Or do its part in a process of
    its own.

    Source: torch_xla 2.9, `torch_xla/_internal/jax_workarounds.py` ("grab the TPU before JAX locks it") and
    the warning about tensorflow in `torch_xla/__init__.py`; pytorch/xla#8793.
    """

    code = "XLA840"
    name = "rival-framework"
    severity = Severity.ERROR
    nodes = (cst.Import, cst.ImportFrom, cst.Call)
    of_facts = ("rivals",)
    examples = (
        example(
            """
            import jax  # XLA840
            import torch_xla


            def main(index):
                import tensorflow as tf  # XLA840

                print(jax.tree.map(float, {"a": index}), tf)


            if __name__ == "__main__":
                torch_xla.launch(main)
            """
        ),
        example(
            """
            import os

            os.environ["JAX_PLATFORMS"] = "cpu"

            import jax
            import torch_xla


            def main(index):
                print(jax.numpy.zeros(index))


            if __name__ == "__main__":
                torch_xla.launch(main)
            """
        ),
        example(
            """
            import jax
            import torch


            def convert(weights):
                return jax.tree.map(torch.from_numpy, weights)
            """
        ),
    )
    mended = example(
        """
        import os

        os.environ["JAX_PLATFORMS"] = "cpu"

        import jax
        import torch_xla


        def main(index):
            print(jax.numpy.zeros(index))


        if __name__ == "__main__":
            torch_xla.launch(main)
        """
    )

    def find(self, node: cst.CSTNode, facts: Facts) -> Iterable[Hit]:
        """Yield the import, or the call that leads to it, of a program."""
        rivals = facts.context.calls.rivals
        if not rivals or not facts.uses_xla or not _is_program(facts):
            return
        place = facts.context.place(node)
        for rival in rivals:
            if rival.end == place:
                message = DOES[rival.framework]
                if rival.where:
                    message = f"leads to {rival.where}, which imports {rival.framework}: {message}"
                severity = Severity.INFO if rival.optional else self.severity
                yield self.hit(node, message, severity)


def _is_program(facts: Facts) -> bool:
    """Whether the file is run as a script: it has a main guard, launches, or works while it is read."""
    guarded = any(
        isinstance(statement, cst.If) and is_guard(statement)
        for statement in facts.context.module.body
    )
    return guarded or facts.launches or facts.context.launch.spawns
