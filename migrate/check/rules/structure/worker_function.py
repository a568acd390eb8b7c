"""Workers that cannot be pickled."""

from __future__ import annotations

from collections.abc import Iterable

import libcst as cst

from migrate.catalogue.launchers import LAUNCHERS
from migrate.catalogue.prescan import named
from migrate.check.hazard import Hazard, Hit, Severity, example
from migrate.reading.facts import Facts
from migrate.reading.replicas.launch import is_forked, stays_in_process
from migrate.syntax.tree import keyword


class WorkerFunction(Hazard):
    """A lambda or a nested function is launched.

    **Why.** The replicas are processes of their own: the function is pickled by its name, and a lambda or a
    function in a function has none that can be found. A spawned process finds no function of a notebook
    either, as it imports modules.

    **What to do.** Define it at module level, and pass what it needs with `args=`. In a notebook:
    `torch_xla.launch(fn, start_method="fork")`.

    Source: torch_xla 2.9, measured in a script and in a Jupyter kernel.
    """

    code = "XLA707"
    name = "worker-function"
    severity = Severity.ERROR
    nodes = (cst.Call,)
    words = named(LAUNCHERS)
    examples = (
        example(
            """
            import torch_xla


            def main(config):
                def worker(index):
                    print(index, config)

                torch_xla.launch(worker)  # XLA707
                torch_xla.launch(lambda index: print(index))  # XLA707
            """
        ),
        example(
            """
            import torch_xla


            def worker(index, config):
                print(index, config)


            def main(config):
                torch_xla.launch(worker, args=(config,))
            """
        ),
    )
    mended = example(
        """
        import torch_xla


        def worker(index, config):
            print(index, config)


        def main(config):
            torch_xla.launch(worker, args=(config,))
        """
    )

    def find(self, node: cst.CSTNode, facts: Facts) -> Iterable[Hit]:
        """Yield one launch."""
        assert isinstance(node, cst.Call)
        if facts.names.of(node.func) not in LAUNCHERS:
            return
        first = keyword(node, "fn") or (node.args[0] if node.args else None)
        value = first.value if first is not None else None
        if value is not None and has_no_name(value, node, facts):
            yield self.hit(
                node, "a lambda or nested function cannot be pickled: define it at module level"
            )
        elif facts.context.source.is_notebook and not (
            is_forked(node, facts.context) or stays_in_process(node, facts.context)
        ):
            message = (
                "a spawned process finds no function of a notebook: torch_xla.launch(fn, "
                "start_method='fork')"
            )
            yield self.hit(node, message)


def has_no_name(fn: cst.BaseExpression, node: cst.Call, facts: Facts) -> bool:
    """Whether `fn`, which `node` launches, is a lambda or a function in a function: no module has it."""
    return isinstance(fn, cst.Lambda) or (
        isinstance(fn, cst.Name)
        and any(
            isinstance(above, cst.FunctionDef) and _defines(above, fn.value, facts)
            for above in facts.context.ancestors(node)
        )
    )


def _defines(around: cst.FunctionDef, name: str, facts: Facts) -> bool:
    return any(
        function.name.value == name and facts.context.function_around(function) is around
        for function in facts.context.all_of(cst.FunctionDef)
    )
