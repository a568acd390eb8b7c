"""Device work before the launch."""

from __future__ import annotations

from collections.abc import Iterable

import libcst as cst

from migrate.check.hazard import Hazard, Hit, Severity, example
from migrate.reading.facts import Facts
from migrate.reading.replicas.ranks import LAUNCHERS, SCRIPT
from migrate.reading.values.devices import is_move

ASKS = frozenset(
    {
        "torch_xla.device",
        "torch_xla.core.xla_model.xla_device",
        "torch_xla.runtime.global_device_count",
        "torch_xla.runtime.world_size",
        "torch_xla.runtime.global_ordinal",
        "torch_xla.runtime.addressable_device_count",
    }
)

RUNS_ITSELF = "runpy.run_path"


class ModuleLevel(Hazard):
    """The device is touched before the replicas are launched.

    **Why.** The runtime belongs to the process that first asks for it: a launch after that raises. Code at
    module level also runs in every replica once more, when the script is imported there.

    **What to do.** Move it into the launched function.

    Source: torch_xla 2.9, measured; pytorch/xla#7765, #9303.
    """

    code = "XLA706"
    name = "before-launch"
    severity = Severity.ERROR
    spoken_by = ("module-script", "launch-main")
    nodes = (cst.Call,)
    examples = (
        example(
            """
            import torch
            import torch_xla

            weights = torch.ones(3).to("xla")  # XLA706
            device = torch_xla.device()  # XLA706


            def worker(index):
                print(weights)


            if __name__ == "__main__":
                torch_xla.launch(worker)
            """
        ),
        example(
            """
            import torch
            import torch_xla

            weights = torch.ones(3)


            def worker(index):
                print(weights.to(torch_xla.device()))


            if __name__ == "__main__":
                torch_xla.launch(worker)
            """
        ),
        example(
            """
            import torch

            weights = torch.ones(3).to("xla")
            """
        ),
    )
    mended = example(
        """
        import torch
        import torch_xla


        def worker(index):
            weights = torch.ones(3).to("xla")
            print(weights)


        if __name__ == "__main__":
            torch_xla.launch(worker)
        """
    )

    def find(self, node: cst.CSTNode, facts: Facts) -> Iterable[Hit]:
        """Yield one call at module level of a script that launches."""
        assert isinstance(node, cst.Call)
        asks = facts.names.of(node.func) in ASKS
        if not asks and not is_move(node, facts.context):
            return
        if not facts.called.isdisjoint({RUNS_ITSELF, SCRIPT}):
            return  # every replica executes the file again
        if facts.context.function_around(node) is None and facts.launches:
            if any(isinstance(above, cst.Lambda) for above in facts.context.ancestors(node)):
                return
            if facts.context.source.is_notebook and not _launches_below(node, facts):
                return  # the cells run in their order, and only once
            message = "touches the device before the launch, which raises then: into the worker"
            yield self.hit(node, message)


def _launches_below(node: cst.Call, facts: Facts) -> bool:
    """Whether a launch stands below `node`, or in a function, which any later cell may call."""
    line = facts.context.position(node).line
    return any(
        facts.names.of(call.func) in LAUNCHERS
        and (
            facts.context.position(call).line > line
            or facts.context.function_around(call) is not None
        )
        for call in facts.calls
    )
