"""Device work before the launch."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

import libcst as cst

from migrate.catalogue.entry import names
from migrate.catalogue.launchers import LAUNCHERS, SCRIPT
from migrate.catalogue.target import BOTH, TPU
from migrate.catalogue.torch_other import CPU_SEEDS
from migrate.check.hazard import Hazard, Hit, Severity, example
from migrate.reading.facts import Facts
from migrate.reading.replicas.launch import is_guard
from migrate.reading.values.devices import is_accelerator, is_move, makes_generator
from migrate.syntax.tree import keyword

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

# They hold for the thread that calls them, and the runtime runs a replica in a thread of its own.
OF_ONE_THREAD = frozenset(
    {
        "torch.set_default_device",
        "torch.set_grad_enabled",
        "torch.autograd.set_grad_enabled",
    }
)
RUNS_ITSELF = "runpy.run_path"
# On torch_tpu they seed the TPU, and open it for that.
SEEDS = names(*CPU_SEEDS) | {"torch.tpu.manual_seed", "torch.tpu.manual_seed_all"}


class ModuleLevel(Hazard):
    """The device is touched before the replicas are launched.

    **Why.** The runtime belongs to the process that first asks for it: a launch after that raises. Code at
    module level also runs in every replica once more, when the script is imported there. The same holds for
    a file that the script imports at its top.
    `torch.set_default_device` and `torch.set_grad_enabled` hold for one thread only, and a replica runs in
    another than the one that imports the script.

    **What to do.** Move it into the launched function.

    Source: torch_xla 2.9, measured; pytorch/xla#7765, #9303.
    """

    code = "XLA706"
    name = "before-launch"
    severity = Severity.ERROR
    targets = BOTH
    on_torch_tpu = (
        "The parent process must not touch the device: a second process that opens it aborts. "
        "torch.manual_seed opens it, too, and torch.accelerator.device_count() is 1 after that: all "
        "of the training runs on a single chip, with no error. A setting at module level holds in "
        "each rank, which imports the script again."
    )
    nodes = (cst.Call,)
    examples = (
        example(
            """
            import torch
            import torch_xla

            weights = torch.ones(3).to("xla")  # XLA706
            device = torch_xla.device()  # XLA706


            class Table:
                numbers = torch.arange(3, device="xla")  # XLA706


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

            torch.set_default_device("xla")  # XLA706
            torch.set_grad_enabled(False)  # XLA706


            def worker(index):
                print(torch.ones(3))


            if __name__ == "__main__":
                torch_xla.launch(worker)
            """
        ),
        example(
            """
            import torch
            import torch_xla

            torch.set_default_dtype(torch.float32)


            def worker(index):
                torch.set_default_device("xla")
                with torch.set_grad_enabled(False):
                    print(torch.ones(3))


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
        if facts.names.of(node.func) in OF_ONE_THREAD:
            yield from self._of_one_thread(node, facts)
            return
        if facts.target == TPU and facts.names.of(node.func) in SEEDS:
            yield from self._of_a_seed(node, facts)
            return
        asks = facts.names.of(node.func) in ASKS or _makes_on_device(node, facts)
        if not asks and not is_move(node, facts.context):
            return
        if not facts.called.isdisjoint({RUNS_ITSELF, SCRIPT}):
            return  # every replica executes the file again
        imported = not facts.launches and facts.context.calls.imported_before_launch
        if facts.context.function_around(node) is None and (facts.launches or imported):
            if any(isinstance(above, cst.Lambda) for above in facts.context.ancestors(node)):
                return
            if facts.context.source.is_notebook and not _launches_below(node, facts):
                return  # the cells run in their order, and only once
            if imported and _runs_as_main_only(node, facts):
                return
            message = "touches the device before the launch, which raises then: into the worker"
            if facts.target == TPU:
                message = (
                    "opens the TPU in the parent, where no rank can open it then: into the worker"
                )
            if imported:
                message = (
                    f"a script that launches imports this file: it {message}, or where it is used"
                )
            yield self.hit(node, message)

    def _of_a_seed(self, node: cst.Call, facts: Facts) -> Iterator[Hit]:
        """Yield a seed in the process that starts the ranks."""
        if seeds_before_launch(node, facts):
            yield self.hit(
                node,
                f"{facts.names.of(node.func)} opens the TPU in the parent: "
                "torch.accelerator.device_count() is 1 then, with no error; seed in the worker",
            )

    def _of_one_thread(self, node: cst.Call, facts: Facts) -> Iterator[Hit]:
        """Yield a setting of a thread that the replicas do not see."""
        script = facts.context
        if facts.target == TPU:
            return  # a rank is a process, which imports the script again
        statement = isinstance(script.parent(node), cst.Expr)
        if not statement or not facts.launches or script.function_around(node) is not None:
            return
        if script.source.is_notebook or not facts.called.isdisjoint({RUNS_ITSELF, SCRIPT}):
            return
        if any(isinstance(above, cst.If) for above in script.ancestors(node)):
            return  # below the guard of a script that launches workers it holds today in no worker either
        message = (
            f"{facts.names.of(node.func)} holds in the main thread only, and a replica runs in another: "
            "into the worker, as its first line"
        )
        yield self.hit(node, message)


def _runs_as_main_only(node: cst.Call, facts: Facts) -> bool:
    """Whether `node` stands below `if __name__ == "__main__":`, which an import does not run."""
    return any(
        isinstance(above, cst.If) and is_guard(above) for above in facts.context.ancestors(node)
    )


def _makes_on_device(node: cst.Call, facts: Facts) -> bool:
    """Whether `node` makes a tensor or a layer of torch on the device: `torch.ones(3, device="xla")`."""
    device = keyword(node, "device")
    name = facts.names.of(node.func) or ""
    makes = name.startswith("torch.") and not makes_generator(node, facts.context)
    return makes and device is not None and is_accelerator(device.value, facts.context)


def seeds_before_launch(node: cst.Call, facts: Facts) -> bool:
    """Whether a seed stands in the process that starts the ranks, before it does."""
    script = facts.context
    around = script.function_around(node)
    if around is None:
        early = facts.launches
    else:
        early = script.position(around.name).line in script.calls.at_launch or any(
            facts.names.of(call.func) in LAUNCHERS
            and script.function_around(call) is around
            and script.position(call).line > script.position(node).line
            for call in facts.calls
        )
    return early and facts.called.isdisjoint({RUNS_ITSELF, SCRIPT})


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
