"""The random numbers of XLA get their own seed."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

import libcst as cst

from migrate.catalogue import catalogue
from migrate.catalogue.entry import names
from migrate.catalogue.torch_cuda import RANDOM_SEEDS, STATE_OF_ALL, STATE_OF_ONE
from migrate.check.hazard import Severity
from migrate.reading.replicas.launch import Style
from migrate.reading.values.devices import (
    GENERATOR,
    Kind,
    device_of_generator,
    makes_generator,
)
from migrate.rewrite.rule import Edit, Rule, RuleFinding, checked, left_alone, reported, rewritten
from migrate.rewrite.rules.random.following import (
    after_joining,
    after_silent_seed,
    statement_after,
    unseeded_here,
)
from migrate.rewrite.rules.random.kept_states import in_bytes, is_only_put_back, number_of
from migrate.rewrite.rules.random.portable_rng import FORK, forks_a_device, portable_rng
from migrate.rewrite.rules.random.seeds import (
    AT_IMPORT,
    CPU_SEED,
    CUDA_SEED,
    ELSEWHERE,
    IN_THE_WORKER,
    TOO_EARLY,
    XLA_SEED,
    draws,
    launched_worker_seeds,
    launches,
    runs_at_launch,
    worker_seed,
)
from migrate.rewrite.workspace import Workspace
from migrate.syntax.tree import bind, code

SEEDS_XLA = frozenset(
    {
        "accelerate.utils.random.set_seed",
        "accelerate.utils.set_seed",
        "shims.manual_seed",
        "torch_xla.core.xla_model.set_rng_state",
        "torch_xla.manual_seed",
    }
)
DRAWN = ".initial_seed()"  # the seed that was drawn for the CPU
BY_HAND = names(*RANDOM_SEEDS)
STATES = names(*STATE_OF_ONE, *STATE_OF_ALL)


class Rng(Rule):
    """Seed XLA where the script seeds PyTorch.

    **Why.** `torch.manual_seed(s)` seeds the CPU and the GPU, not XLA, which starts every replica of every
    run at one and the same seed of its own: the seed of the script changes nothing on the device, and where
    it depends on the rank, all replicas draw the same noise and drop the same elements. Accelerate, Fabric
    and Lightning do not change that; `accelerate.utils.set_seed` seeds XLA too.

    **What it does.** `torch_xla.manual_seed(s)` comes after the seed of the CPU, or takes the place of
    `torch.cuda.manual_seed(s)` or `manual_seed_all(s)`, once; where `s` is drawn (`np.random.randint(…)`) it
    is given `torch.initial_seed()`. `torch.cuda.get_rng_state()` and `set_rng_state`, with or without `_all`,
    become those of `torch_xla.core.xla_model`. There the state is a number, on CUDA it is 16 bytes: a seed
    and a position. What is saved has CUDA's form, with XLA's number as the seed and position 0: the CUDA
    script loads it. From a state that CUDA saved, XLA takes the seed. A variable that only keeps the state
    and puts it back in the same function holds the number.
    `torch.Generator(device='cuda')` becomes a generator on the CPU: it draws other numbers than on
    the GPU, and they are copied to the device where one is asked for. So does one of a device that is not
    known, and one of a class that derives from it, which is given `"cpu"`.

    Code that seeds torch and stays as it is gets `torch_xla.manual_seed(torch.initial_seed())` after its
    call: that of a library (`transformers.set_seed`, `seed_everything`), or of a file that is not
    rewritten. So does the call that joins the process group, where torch is seeded when the script or
    what it imports is read: XLA must not be touched then. A script that nothing seeds, and that draws on
    the device (dropout, `torch.randn_like`), lets each replica seed XLA by its own number there: on GPUs
    the ranks draw different numbers too.

    **Left alone.** The seed of a script that never leaves the CPU; that of the processes of a data loader
    (`worker_init_fn`, `__getitem__`, what asks `get_worker_info`).

    A seed in the process that launches the replicas is not inherited by them, and XLA must not be touched
    there: the worker seeds XLA with it and its rank first of all, under the same conditions, where it
    receives what the seed is made of: the processes of `mp.spawn` do not have it, each GPU draws its own
    numbers. For the same reason the worker does not seed the CPU.

    **Reported.** A seed in the launching process that the worker does not receive, and one in a function
    that this process calls, too, in
    this file or in another one of the project. A seed that is set when a file is imported, where a library
    (Lightning, Accelerate) starts the replicas. States that a call unpacks with `*`.

    Source: torch_xla 2.9 (measured: torch.manual_seed leaves XLA's numbers as they are, Generator('xla')
    raises, a seed before the launch stops the launch); pytorch/xla#2092; the form of CUDA's state:
    CUDAGeneratorImpl.cpp of torch 2.9 (read).
    """

    name = "rng"
    code = "XLA813"
    beside_frameworks = True
    edited = Severity.WARNING
    nodes = (cst.Call,)
    examples = (
        rewritten(
            """
            import random

            import torch


            def seed_everything(args, rank):
                random.seed(args.seed)
                torch.manual_seed(args.seed + rank)
                torch.cuda.manual_seed(args.seed + rank)
                torch.cuda.manual_seed_all(args.seed + rank)  # for several GPUs
            """,
            """
            import random

            import torch
            import torch_xla


            def seed_everything(args, rank):
                random.seed(args.seed)
                torch.manual_seed(args.seed + rank)
                torch_xla.manual_seed(args.seed + rank)
            """,
        ),
        rewritten(
            """
            import numpy as np
            import torch


            def seed_everything(model):
                torch.manual_seed(np.random.randint(1 << 31))
                model.cuda()
            """,
            """
            import numpy as np
            import torch
            import torch_xla


            def seed_everything(model):
                torch.manual_seed(np.random.randint(1 << 31))
                torch_xla.manual_seed(torch.initial_seed())
                model.to("xla")
            """,
        ),
        rewritten(
            """
            import torch
            from torch import manual_seed as seed

            seed(1)  # the same weights everywhere
            if True: seed(2)
            model = torch.nn.Linear(2, 2).cuda()
            generator = torch.Generator(device='cuda')
            of_args = torch.Generator(device=args.device)
            on_cpu = torch.Generator('cpu')
            state = {'rng': torch.cuda.get_rng_state()}
            torch.cuda.set_rng_state(state['rng'].cpu())
            states = torch.cuda.get_rng_state_all()
            """,
            """
            import torch
            import torch_xla
            import torch_xla.core.xla_model as xm
            from torch import manual_seed as seed

            seed(1)  # the same weights everywhere
            torch_xla.manual_seed(1)
            if True: seed(2); torch_xla.manual_seed(2)
            model = torch.nn.Linear(2, 2).to('xla')
            generator = torch.Generator()
            of_args = torch.Generator()
            on_cpu = torch.Generator('cpu')
            state = {'rng': torch.ByteTensor([*xm.get_rng_state().to_bytes(16, 'little')])}
            xm.set_rng_state(int.from_bytes(state['rng'].cpu()[:8].tolist(), 'little'))
            states = [torch.ByteTensor([*xm.get_rng_state().to_bytes(16, 'little')])]
            """,
        ),
        rewritten(
            """
            import torch
            import torch.distributed as dist


            def main(rank):
                dist.init_process_group("nccl")
                images = torch.zeros(8, 4).cuda()
                print(images + torch.randn_like(images))


            if __name__ == "__main__":
                main(0)
            """,
            """
            import os

            import torch
            import torch.distributed as dist
            import torch_xla
            import torch_xla.distributed.xla_backend
            import torch_xla.runtime as xr


            def main(rank):
                dist.init_process_group("xla", init_method="xla://")
                # XLA starts all replicas at the same seed: each gets its own, as each GPU does.
                torch_xla.manual_seed(torch.initial_seed() + xr.global_ordinal())
                images = torch.zeros(8, 4).to("xla")
                print(images + torch.randn_like(images))


            def _mp_fn(index):
                if "TORCHELASTIC_RUN_ID" not in os.environ:  # else torchrun has set them
                    os.environ["RANK"] = str(index)
                    os.environ["LOCAL_RANK"] = str(xr.local_ordinal())
                    os.environ["WORLD_SIZE"] = str(xr.world_size())
                    os.environ["LOCAL_WORLD_SIZE"] = str(xr.local_device_count())
                main(0)


            if __name__ == "__main__":
                torch_xla.launch(_mp_fn)
            """,
        ),
        rewritten(
            """
            import torch


            def resume(path):
                state = torch.load(path, map_location="cpu")
                torch.cuda.set_rng_state(state["cuda_rng"].cpu())
            """,
            """
            import torch
            import torch_xla.core.xla_model as xm


            def resume(path):
                state = torch.load(path, map_location="cpu")
                xm.set_rng_state(int.from_bytes(state["cuda_rng"].cpu()[:8].tolist(), "little"))
            """,
        ),
        left_alone(
            """
            import torch

            torch.manual_seed(0)
            print(torch.rand(3))
            """
        ),
        left_alone(
            """
            import torch
            import torch_xla

            torch.manual_seed(0)
            torch_xla.manual_seed(0)
            generator = torch.Generator().manual_seed(0)
            with torch.random.fork_rng(devices=[]):
                print(torch.rand(3).to('xla'))
            """
        ),
        rewritten(
            """
            import torch
            import torch.multiprocessing as mp


            def worker(rank, options):
                global best
                print(torch.ones(3).cuda(), options)


            def main(args):
                if args.seed is not None:
                    torch.manual_seed(args.seed)
                    torch.cuda.manual_seed_all(args.seed)
                mp.spawn(worker, args=(args,), nprocs=2)
            """,
            """
            import torch
            import torch_xla
            import torch_xla.runtime as xr


            def worker(rank, options):
                global best
                if options.seed is not None:
                    torch_xla.manual_seed(options.seed + xr.global_ordinal())
                print(torch.ones(3).to("xla"), options)


            def main(args):
                if args.seed is not None:
                    torch.manual_seed(args.seed)
                torch_xla.launch(worker, args=(args,))
            """,
        ),
        reported(
            """
            import time

            import torch
            import torch.multiprocessing as mp


            def worker(rank):
                torch.ones(3).cuda()


            if __name__ == "__main__":
                torch.manual_seed(int(time.time()))
                mp.spawn(worker, nprocs=2)
            """,
            "in the worker",
        ),
        reported(
            """
            import torch
            import torch.multiprocessing as mp


            def worker(rank):
                torch.ones(3).cuda()


            def main():
                mp.spawn(worker, nprocs=2)


            if __name__ == "__main__":
                torch.manual_seed(0)
                main()
            """,
            "launch",
        ),
        reported(
            """
            import torch
            import torch.multiprocessing as mp


            def set_seed(seed):
                torch.manual_seed(seed)


            def worker(rank):
                set_seed(rank)
                torch.ones(3).cuda()


            if __name__ == "__main__":
                set_seed(0)
                mp.spawn(worker, nprocs=2)
            """,
            "must not be touched",
        ),
        reported(
            """
            import torch

            torch.cuda.set_rng_state(*states)
            """,
            "the first 8 bytes",
        ),
        checked(
            """
            import torch

            torch.manual_seed(0)
            if torch.cuda.is_available():
                torch.cuda.manual_seed_all(0)  # XLA813
            x = torch.ones(3).cuda()
            """
        ),
        checked(
            """
            import torch
            import torch.distributed as dist

            dist.init_process_group("nccl")  # XLA813
            x = torch.ones(3).cuda()
            y = torch.nn.functional.dropout(x)
            """
        ),
        checked(
            """
            import torch
            from accelerate import Accelerator


            def main():
                accelerator = Accelerator()
                torch.manual_seed(7 + accelerator.process_index)  # XLA813
                return torch.randn(4, device=accelerator.device)
            """
        ),
        checked(
            """
            import torch
            from accelerate import Accelerator
            from accelerate.utils import set_seed


            def main():
                accelerator = Accelerator()
                set_seed(7, device_specific=True)
                torch.manual_seed(7)
                return torch.randn(4, device=accelerator.device)
            """
        ),
    )

    def find(self, node: cst.CSTNode, context: Workspace) -> Iterable[Edit | RuleFinding]:
        """Yield the edits and findings for one call that seeds, or that keeps or makes a state."""
        assert isinstance(node, cst.Call)
        name = context.qualified_name(node.func) or ""
        seeding, place = context.calls.seeding, context.place(node)
        seeds = name in CPU_SEED | CUDA_SEED or place in seeding.silent or place in seeding.joining
        if context.calls.led is not None and seeds and _seeds_xla(context):
            return
        if place in seeding.at_import:
            yield from self.report(node, AT_IMPORT)
        elif context.portable:
            yield from portable_rng(self, node, name, context)
        elif place in seeding.joining:
            yield from after_joining(self, node, seeding.joining[place], context)
        elif place in seeding.silent:
            yield from after_silent_seed(self, node, context)
        elif place in seeding.early or place in seeding.in_loaders:
            yield from unseeded_here(self, node, name, context)
        elif name in CPU_SEED:
            yield from self._after_cpu_seed(node, context)
        elif name in CUDA_SEED:
            yield from self._cuda_seed(node, context)
        elif name in STATES:
            yield from self._state(node, name, context)
        elif makes_generator(node, context):
            yield from self._generator(node, name, context)
        elif name == FORK:
            if forks_a_device(node):
                message = (
                    f"{code(node)}: raises on XLA with devices; and it does not restore XLA's state"
                )
                yield from self.report(node, message)
        elif name in BY_HAND and (entry := catalogue.of(name)):
            yield from self.report(node, f"{name}: {entry.says()}", subject=name)
        elif context.launch.style is Style.SPAWN and context.effects.seeds_early(node):
            yield from self.report(node, f"{code(node)}: {ELSEWHERE}")

    def _after_cpu_seed(self, node: cst.Call, context: Workspace) -> Iterable[Edit | RuleFinding]:
        # A framework moves to the device itself.
        used = context.devices.are_used or context.calls.led is not None
        used = used or context.place(node) in context.calls.seeding.for_devices
        if not used or next(_twins(node, context), None) is not None:
            return
        if launches(node, context):
            if worker_seed(node, context) is None and not launched_worker_seeds(node, context):
                yield from self.report(node, IN_THE_WORKER)
            return
        if runs_at_launch(node, context):
            yield from self.report(node, TOO_EARLY)
            return
        small = context.parent(node)
        if not isinstance(small, cst.Expr | cst.Assign) or len(node.args) != 1:
            message = f"{code(node)} does not seed XLA: torch_xla.manual_seed, with the same seed"
            yield from self.report(node, message)
            return
        value = node.args[0].value
        if draws(value, context):  # asked again it would be another number
            value = cst.parse_expression(f"{context.imports.require('torch')}{DRAWN}")
        seed = f"{context.imports.require('torch_xla')}.manual_seed({code(value)})"
        message = f"{code(node)} does not seed XLA: torch_xla.manual_seed beside it"
        wrong = _does_not_seed(code(node.func))
        yield statement_after(self, small, seed, message, context, wrong=wrong)

    def _cuda_seed(self, node: cst.Call, context: Workspace) -> Iterable[Edit | RuleFinding]:
        small = context.parent(node)
        wrong = _does_not_seed(code(node.func))
        if launches(node, context):
            if worker_seed(node, context) is None or not isinstance(small, cst.Expr):
                yield from self.report(node, IN_THE_WORKER)
            else:
                message = f"remove {code(node)}: the worker seeds XLA"
                yield self.edit(
                    small,
                    lambda _: cst.RemoveFromParent(),
                    message,
                    consumes=[node],
                    wrong=wrong,
                )
            return
        if runs_at_launch(node, context):
            yield from self.report(node, TOO_EARLY)
            return
        block = context.parent(context.parent(small))
        for twin in _twins(node, context):
            earlier = context.position(twin).line < context.position(node).line
            same = context.parent(context.parent(context.parent(twin))) is block
            if earlier and same and isinstance(small, cst.Expr):
                message = f"remove {code(node)}: XLA has this seed already"
                yield self.edit(
                    small,
                    lambda _: cst.RemoveFromParent(),
                    message,
                    consumes=[node],
                    severity=Severity.INFO,
                )
                return
        seed = cst.parse_expression(f"{context.imports.require('torch_xla')}.manual_seed")
        message = f"{code(node)} → torch_xla.manual_seed"
        yield self.edit(
            node.func,
            lambda _: seed,
            message,
            consumes=[node.func],
            wrong=wrong,
        )

    def _state(self, node: cst.Call, name: str, context: Workspace) -> Iterable[Edit | RuleFinding]:
        last = name.rsplit(".", 1)[-1]
        of_all, sets = last.endswith("_all"), last.startswith("set")
        bound = bind(node, ("new_states" if of_all else "new_state", "device"))
        states = None if bound is None else bound.get("new_states", bound.get("new_state"))
        if sets and states is None:
            message = (
                f"{code(node)}: xm.set_rng_state(number); the number is the first 8 bytes of a state of "
                "CUDA, read as little-endian"
            )
            yield from self.report(node, message)
            return
        module = context.imports.require("torch_xla.core.xla_model", "xm")
        function = cst.parse_expression(f"{module}.{last.removesuffix('_all')}")
        state = None if states is None else states.value
        only_put_back = is_only_put_back(node, state, STATES, context)

        def replace(updated: cst.Call) -> cst.BaseExpression:
            if states is None:
                asked = updated.with_changes(func=function, args=[])
                return asked if only_put_back else in_bytes(asked, of_all, context)
            number = updated.args[node.args.index(states)].value
            if not only_put_back:
                number = number_of(number, of_all, context)
            return updated.with_changes(func=function, args=[cst.Arg(number)])

        if only_put_back:
            message = f"{name} → xm.{last.removesuffix('_all')}"
        elif states is None:
            message = (
                f"{name} → xm.get_rng_state, as the bytes of a state of CUDA: CUDA loads it too"
            )
        else:
            message = f"{name} → xm.set_rng_state of the seed, the first 8 bytes of a state of CUDA"
        yield self.edit(
            node, replace, message, consumes=[node.func, *(a for a in node.args if a is not states)]
        )

    def _generator(
        self, node: cst.Call, name: str, context: Workspace
    ) -> Iterable[Edit | RuleFinding]:
        arg = device_of_generator(node, context)
        if arg is None:
            return
        kind = context.devices.kind(arg.value)
        if kind not in (Kind.CUDA, Kind.INDEX, Kind.XLA, Kind.UNKNOWN):
            return
        # A device that is not known here may be the CPU, which has the same generator.
        message = f"{code(node)} → on the CPU: XLA has none; it draws other numbers than on the GPU"
        wrong, severity = "a generator on the device raises on XLA: one of the CPU", Severity.ERROR
        if kind is Kind.UNKNOWN:
            wrong, severity = f"{wrong}, if {code(arg.value)} may be the device", Severity.WARNING
        if name == GENERATOR:
            yield self.edit(
                node,
                lambda call: call.with_changes(args=[]),
                message,
                consumes=node.args,
                wrong=wrong,
                severity=severity,
                code="XLA814",
            )
            return
        # A class of the project may need the argument.
        cpu = cst.SimpleString("'cpu'" if code(arg.value).startswith("'") else '"cpu"')
        yield self.edit(
            arg,
            lambda a: a.with_changes(value=cpu),
            message,
            consumes=[arg],
            wrong=wrong,
            severity=severity,
            code="XLA814",
        )


def _does_not_seed(name: str) -> str:
    """Return the effect of a seed of torch on XLA, and what to do."""
    return (
        f"{name} does not seed XLA, which starts every replica at the same seed: "
        "torch_xla.manual_seed(seed) too, in the replica"
    )


def _seeds_xla(context: Workspace) -> bool:
    """Whether the script seeds XLA somewhere."""
    return any(context.qualified_name(call.func) in SEEDS_XLA for call in context.all_of(cst.Call))


def _twins(node: cst.Call, context: Workspace) -> Iterator[cst.Call]:
    """Yield the calls in the same function that give the same seed to CUDA or XLA."""
    around = context.function_around(node) or context.module
    args = [code(arg.value) for arg in node.args]
    for call in context.below(around, cst.Call):
        name = context.qualified_name(call.func) or ""
        seeds = call is not node and (name in CUDA_SEED or name == XLA_SEED)
        arguments = [code(arg.value) for arg in call.args]
        if seeds and (
            arguments == args or (name == XLA_SEED and "".join(arguments).endswith(DRAWN))
        ):
            yield call
