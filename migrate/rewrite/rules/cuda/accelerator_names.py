"""Names of torch.cuda that torch.accelerator or torch.tpu has."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace

import libcst as cst

from migrate.catalogue import catalogue
from migrate.catalogue.entry import CatalogueEntry, names, public
from migrate.catalogue.target import TPU, TPU_ONLY
from migrate.catalogue.torch_cuda import STATE_OF_ALL, STATE_OF_ONE
from migrate.check.severity import Severity
from migrate.reading.values.devices import CURRENT
from migrate.rewrite.edits.nodes import with_args
from migrate.rewrite.rule import Edit, Rule, RuleFinding, left_alone, reported, rewritten
from migrate.rewrite.rules.random.kept_states import is_only_put_back
from migrate.rewrite.workspace import Workspace
from migrate.syntax.tree import bind, code

FIRST = "(…)"
# Of torch.cuda.set_rng_state, of whose arguments only the first stays.
PARAMETERS = ("new_state", "device")

GETS = names(*STATE_OF_ONE, *STATE_OF_ALL)
OF_A_TPU = (
    "the state has the form of CUDA's, and a state that CUDA saved loads here. CUDA loads a state of a TPU "
    "only if its position, the last 8 bytes, is a multiple of 4. If the CUDA script is to resume from this "
    "checkpoint, save `torch.cat([state[:8], torch.zeros(8, dtype=torch.uint8)])`, the seed alone"
)


class AcceleratorNames(Rule):
    """Ask torch.accelerator and torch.tpu what a script asks torch.cuda.

    **What it does.** The names of the catalogue that have a counterpart become it: `torch.cuda.synchronize()`
    is `torch.accelerator.synchronize()`, `torch.cuda.max_memory_allocated()` is
    `torch.accelerator.max_memory_allocated()`, `torch.cuda.Event` is `torch.tpu.Event`,
    `torch.cuda.manual_seed_all` is `torch.tpu.manual_seed_all`. A device among the arguments goes: a rank
    sees one chip. `torch.cuda.current_device()` stays for [device](device.md) where its value is a device.
    Calls that only manage the memory of a GPU go where they are statements. `torch.tpu` has
    names that raise in favor of `torch.accelerator`; they are replaced as well.

    **Left alone.** `torch.accelerator.*`, which torch_tpu answers.

    **Reported.** A removed call whose value is used, and a name without a call that needs one.

    Source: torch_tpu 0.2.0 with torch 2.13 (measured on XLA:CPU, and read in its `public_api.py`).
    """

    name = "accelerator-names"
    code = "XLA890"
    targets = TPU_ONLY
    nodes = (cst.Name, cst.Attribute)
    of_names = True
    words = "cuda|tpu|accelerator"
    examples = (
        rewritten(
            """
            import torch

            use_gpu = torch.cuda.is_available()
            torch.cuda.manual_seed_all(0)
            torch.cuda.empty_cache()
            torch.cuda.reset_peak_memory_stats()
            start = torch.cuda.Event(enable_timing=True)
            start.record()
            torch.cuda.synchronize(0)
            peak = torch.cuda.max_memory_allocated(0) / 2**20
            state = torch.cuda.get_rng_state(0)
            torch.cuda.set_rng_state(state, 0)
            if torch.cuda.is_bf16_supported() and use_gpu:
                print(torch.cuda.get_device_name(0))
            device = torch.cuda.current_device()
            print(torch.ones(1, device=device), torch.cuda.current_device() + 1)
            """,
            """
            import torch

            use_gpu = torch.accelerator.is_available()
            torch.tpu.manual_seed_all(0)
            torch.accelerator.empty_cache()
            torch.accelerator.reset_peak_memory_stats()
            start = torch.tpu.Event(enable_timing=True)
            start.record()
            torch.accelerator.synchronize()
            peak = torch.accelerator.max_memory_allocated() / 2**20
            state = torch.tpu.default_generators[0].get_state()
            torch.tpu.set_rng_state(state)
            if (torch.bfloat16 in torch.tpu.get_amp_supported_dtype()) and use_gpu:
                print(torch.tpu.get_device_name())
            device = "tpu"
            print(torch.ones(1, device=device), torch.accelerator.current_device_index() + 1)
            """,
            target=TPU,
        ),
        rewritten(
            """
            from torch.cuda import synchronize


            def timed(function, wait=synchronize):
                function()
                wait()
            """,
            """
            import torch


            def timed(function, wait=torch.accelerator.synchronize):
                function()
                wait()
            """,
            target=TPU,
        ),
        left_alone(
            """
            import torch

            torch.accelerator.synchronize()
            print(torch.accelerator.memory_allocated(), torch.tpu.get_device_name())
            """,
            target=TPU,
        ),
        reported(
            """
            import torch

            reset = torch.cuda.reset_accumulated_memory_stats
            reset()
            """,
            "is not implemented on a TPU",
            target=TPU,
        ),
    )

    def find(self, node: cst.CSTNode, context: Workspace) -> Iterable[Edit | RuleFinding]:
        """Yield the edit of one name, with its call, or the finding."""
        assert isinstance(node, cst.Name | cst.Attribute)
        name = context.qualified_name(node)
        entry = None if name is None else catalogue.of(name, context.target)
        if name is None or entry is None or entry.rule != self.name:
            return
        if entry.name not in (name, public(name)):
            return
        above = context.parent(node)
        if isinstance(above, cst.Attribute | cst.ImportAlias | cst.ImportFrom | cst.AsName):
            return
        call = above if isinstance(above, cst.Call) and above.func is node else None
        statement = context.parent(call) if call is not None else None
        if not entry.becomes:
            if isinstance(statement, cst.Expr):
                message = f"remove {code(statement)}: {name} {entry.does}"
                yield self.edit(
                    statement, lambda _: cst.RemoveFromParent(), message, consumes=[statement]
                )
            else:
                yield from self.report(node, f"{name} {entry.says()}", subject=name)
        elif not (_is_name(entry) if call is None else _shows_first(call, entry)):
            yield from self.report(node, f"{name} {entry.says()}", subject=name)
        else:
            edit = self._replaced(node, call, entry, context)
            yield replace(
                edit, yields=name in CURRENT
            )  # where it is a device, `device` replaces it
            if (
                call is not None
                and name in GETS
                and not is_only_put_back(call, None, GETS, context)
            ):
                yield from self.report(node, OF_A_TPU, Severity.INFO, subject=name)

    def _replaced(
        self,
        node: cst.Name | cst.Attribute,
        call: cst.Call | None,
        entry: CatalogueEntry,
        context: Workspace,
    ) -> Edit:
        """Return the edit of a name, or of its call where the counterpart takes other arguments."""
        torch = context.imports.require("torch")
        text = entry.becomes.replace("torch.", f"{torch}.")
        message = f"{code(node)} → {entry.becomes}"
        if call is None or _takes_all(entry):
            function = cst.parse_expression(text.removesuffix("()").removesuffix(FIRST))
            return self.edit(node, lambda _: function, message, consumes=[node])
        if text.endswith(FIRST):
            function, at = cst.parse_expression(text.removesuffix(FIRST)), _first(call)
            assert at is not None

            def kept(updated: cst.Call) -> cst.Call:
                alone = with_args(updated, [updated.args[at]])
                first = alone.args[0].with_changes(keyword=None, equal=cst.MaybeSentinel.DEFAULT)
                return alone.with_changes(func=function, args=[first])

            gone = [arg for index, arg in enumerate(call.args) if index != at]
            return self.edit(call, kept, message, consumes=[node, *gone])
        expression = cst.parse_expression(text)
        if isinstance(expression, cst.Comparison) and not _stands_alone(call, context):
            parentheses = {"lpar": [cst.LeftParen()], "rpar": [cst.RightParen()]}
            expression = expression.with_changes(**parentheses)
        return self.edit(call, lambda _: expression, message, consumes=[call])


def _first(call: cst.Call) -> int | None:
    """Return the place of the argument that stays. None: the call does not show it."""
    bound = bind(call, PARAMETERS) or {}
    return call.args.index(bound["new_state"]) if "new_state" in bound else None


def _shows_first(call: cst.Call, entry: CatalogueEntry) -> bool:
    """Whether the call shows the argument that stays, if only one does."""
    return not entry.becomes.endswith(FIRST) or _first(call) is not None


def _takes_all(entry: CatalogueEntry) -> bool:
    """Whether the counterpart takes the arguments of the call as they are."""
    return not entry.becomes.endswith(("()", FIRST, "]")) and " " not in entry.becomes


def _is_name(entry: CatalogueEntry) -> bool:
    """Whether the counterpart is a function by itself, which can be passed on."""
    bare = entry.becomes.removesuffix("()").removesuffix(FIRST)
    return "(" not in bare and not bare.startswith("[")


def _stands_alone(call: cst.Call, context: Workspace) -> bool:
    """Whether an expression in the place of `call` needs no parentheses."""
    above = context.parent(call)
    return isinstance(above, cst.Arg | cst.Assign | cst.If | cst.Return)
