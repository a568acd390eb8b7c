"""torch.distributed in a script of Accelerate, which joins no process group on XLA."""

from __future__ import annotations

from collections.abc import Iterable

import libcst as cst

from migrate.check.hazard import Hazard, Hit, Severity, example
from migrate.reading.collectives.no_group import calls_without_group, instead_of
from migrate.reading.facts import Facts
from migrate.syntax.tree import code


class NoGroup(Hazard):
    """torch.distributed is called under Accelerate, which joins no process group on XLA.

    **Why.** On GPUs `Accelerator()` calls `torch.distributed.init_process_group`. On XLA it does not: it asks
    torch_xla for the rank, and its collectives are those of torch_xla. `dist.get_rank()`, `dist.barrier()`,
    `dist.all_reduce(x)` and `DistributedDataParallel(model)` raise "Default process group has not been
    initialized".

    **What to do.** What Accelerate has for it: `accelerator.process_index`, `accelerator.num_processes`,
    `accelerator.wait_for_everyone()`, `accelerator.reduce(x)`, `accelerator.gather(x)`,
    `accelerator.prepare(model)`. A script that takes only `PartialState()` of Accelerate, and trains in a
    loop of its own: `torch.distributed.init_process_group("xla", init_method="xla://")` before them.

    Nothing is reported where the project itself calls `init_process_group`, or a test asks first
    (`dist.is_initialized()`). One finding a file names all lines.

    Source: Accelerate 1.15 (`PartialState.__init__`) and torch 2.9.
    """

    code = "XLA885"
    name = "no-group"
    severity = Severity.ERROR
    nodes = (cst.Module,)
    words = "accelerate"
    examples = (
        example(
            """
            import torch
            import torch.distributed as dist
            from accelerate import Accelerator


            def main():
                accelerator = Accelerator()
                if dist.get_rank() == 0:  # XLA885
                    print(accelerator.device)
                dist.barrier()
            """
        ),
        example(
            """
            import torch
            import torch.distributed as dist
            from accelerate import Accelerator


            def rank():
                return dist.get_rank() if dist.is_initialized() else 0


            def main():
                accelerator = Accelerator()
                print(rank(), accelerator.device)
            """
        ),
    )
    mended = example(
        """
        import torch
        from accelerate import Accelerator


        def main():
            accelerator = Accelerator()
            if accelerator.process_index == 0:
                print(accelerator.device)
            accelerator.wait_for_everyone()
        """
    )

    def find(self, node: cst.CSTNode, facts: Facts) -> Iterable[Hit]:
        """Yield one finding for the calls of a script."""
        calls = sorted(
            calls_without_group(facts.context), key=lambda call: facts.context.position(call).line
        )
        if not calls:
            return
        lines: dict[str, list[str]] = {}
        for call in calls:
            line = facts.context.position(call).line
            lines.setdefault(code(call.func), []).append(str(line))
        listed = ", ".join(
            f"`{name}` (line{'s' if len(at) > 1 else ''} {', '.join(at)})"
            for name, at in lines.items()
        )
        if facts.context.calls.led is None:  # its own loop, with the state of Accelerate alone
            instead = {
                "`torch.distributed.init_process_group('xla', init_method='xla://')` first": None
            }
        else:
            instead = dict.fromkeys(f"`{instead_of(call, facts.context)}`" for call in calls)
        verb = "raises" if len(lines) == 1 else "raise"
        yield self.hit(
            calls[0],
            f'{listed} {verb} "Default process group has not been initialized" on XLA, where '
            f"Accelerate joins none: {', '.join(instead)}",
        )
