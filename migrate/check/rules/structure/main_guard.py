"""A launch outside of `if __name__ == "__main__":`."""

from __future__ import annotations

from collections.abc import Iterable

import libcst as cst

from migrate.catalogue.launchers import LAUNCHERS
from migrate.catalogue.prescan import named
from migrate.check.hazard import Hazard, Hit, Severity, example
from migrate.reading.facts import Facts
from migrate.syntax.tree import code, nodes_of


class MainGuard(Hazard):
    """The replicas are launched when the script is imported.

    **Why.** Every replica imports the script to find its function, and would launch replicas of its own:
    Python raises.

    **What to do.** `if __name__ == "__main__":` around the launch, or around the call of the function that
    launches.
    """

    code = "XLA708"
    name = "main-guard"
    severity = Severity.ERROR
    nodes = (cst.Call,)
    words = named(LAUNCHERS)
    examples = (
        example(
            """
            import torch_xla


            def worker(index):
                print(index)


            def main():
                torch_xla.launch(worker)


            main()  # XLA708
            """
        ),
        example(
            """
            import torch_xla


            def worker(index):
                print(index)


            def main():
                torch_xla.launch(worker)


            if __name__ == "__main__":
                main()
            """
        ),
    )
    mended = example(
        """
        import torch_xla


        def worker(index):
            print(index)


        def main():
            torch_xla.launch(worker)


        if __name__ == "__main__":
            main()
        """
    )

    def find(self, node: cst.CSTNode, facts: Facts) -> Iterable[Hit]:
        """Yield one call that launches on import."""
        assert isinstance(node, cst.Call)
        if launches_on_import(node, facts):
            message = 'launches on import, in every replica again: if __name__ == "__main__":'
            yield self.hit(node, message)


def launches_on_import(node: cst.Call, facts: Facts) -> bool:
    """Whether `node` starts the replicas while the script is imported, itself or in a function."""
    if facts.context.function_around(node) is not None or not facts.launches:
        return False
    if facts.context.source.is_notebook:
        return False  # `__name__` is "__main__" in every cell, and nothing imports it
    launches = facts.names.of(node.func) in LAUNCHERS
    for callee in facts.context.called(node):
        calls = nodes_of(callee.body, cst.Call)
        launches = launches or any(facts.names.of(call.func) in LAUNCHERS for call in calls)
    return launches and not any(
        isinstance(above, cst.If) and "__name__" in code(above.test)
        for above in facts.context.ancestors(node)
    )
