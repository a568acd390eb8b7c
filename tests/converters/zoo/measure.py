"""What becomes of every key of a model, with its module tree and without; whether the way back is exact."""

from __future__ import annotations

import re
import time
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from converters.checkpoint.reader import Checkpoint
from converters.checkpoint.state_dict import StateDict
from converters.inference import Inference, infer, parse_assumptions
from converters.inference.words import own_name
from converters.layers.join import SUM
from converters.mapping import Outcome, Plan, Slot, make_plan, read_slots
from converters.mapping.file import MappingFile, mapping_text
from converters.mapping.leaves import keys_of, restore
from converters.mapping.paths import Api
from converters.mapping.rules_text import parse_rules
from tests.converters.zoo.tiny import build


@dataclass(frozen=True)
class Shares:
    """Keys whose layout an inference finds as the module tree does, otherwise, and not at all."""

    right: int
    wrong: int
    refused: int
    wrong_keys: tuple[str, ...] = ()


@dataclass(frozen=True)
class Measured:
    """One model.

    Attributes:
        model_type: transformers' name of it.
        keys: how many its state dict has.
        outcomes: linen and nnx, with the module tree: outcome → number of keys.
        refused: the keys refused with the module tree, with their reasons.
        inexact: the keys that did not come back bit for bit.
        unlike: the apis for which the plan's mapping file does not give the same plan again.
        alone: without the module.
        assumptions: what a user would say who knows the model, one for each name that is ambiguous.
        assuming: without the module, with these.
        seconds: to build it and to measure all of this.
    """

    model_type: str
    keys: int
    outcomes: Mapping[Api, Mapping[str, int]]
    refused: tuple[str, ...]
    inexact: tuple[str, ...]
    unlike: tuple[str, ...]
    alone: Shares
    assumptions: tuple[str, ...]
    assuming: Shares
    seconds: float


def measure(model_type: str) -> Measured:
    """Build a type and measure it.

    Raises:
        NotBuiltError: it cannot be built.
    """
    started = time.perf_counter()
    model = build(model_type)
    state = model.state_dict()
    checkpoint = StateDict(model_type, state)
    outcomes: dict[Api, Mapping[str, int]] = {}
    refused: list[str] = []
    inexact: list[str] = []
    unlike: list[str] = []
    for api in ("linen", "nnx"):
        plan = make_plan(model_type, checkpoint.infos, read_slots(model, api))
        outcomes[api] = plan.counts
        refused += [f"{api}: {row.key}: {row.note}" for row in plan.refused]
        inexact += [f"{api}: {key}" for key in _inexact(plan, checkpoint)]
        unlike += [] if _from_file(plan, api, checkpoint) == plan else [api]
    truth = read_slots(model)
    shared = [frozenset(keys) for keys in checkpoint.shared]
    # As a safetensors file has them, where no order of layers helps.
    infos = dict(sorted(checkpoint.infos.items())) if not shared else checkpoint.infos
    alone = infer(infos, shared=shared)
    said = _said(alone, truth, model)
    assuming = infer(infos, parse_assumptions(said), shared=shared)
    return Measured(
        model_type,
        len(state),
        outcomes,
        tuple(refused),
        tuple(inexact),
        tuple(unlike),
        shares(alone, truth),
        said,
        shares(assuming, truth),
        time.perf_counter() - started,
    )


def _from_file(plan: Plan, api: Api, checkpoint: Checkpoint) -> Plan:
    parsed = parse_rules(mapping_text(plan, api))
    assert parsed.problems == ()
    mapping = MappingFile(Path("mapping.yaml"), parsed.api, parsed.rules)
    return make_plan(plan.checkpoint, checkpoint.infos, mapping.slots(checkpoint.infos))


def _inexact(plan: Plan, checkpoint: Checkpoint) -> list[str]:
    """The keys that differ after the way there and back; dropped ones travel beside the pytree.

    So do the terms of a sum: they are not to be had from it.
    """
    arrays = {leaf.path: leaf.read(checkpoint.read) for leaf in plan.leaves}
    leaves = keys_of(plan.leaves)
    source = {row.targets: row.key for row in plan.mapped}
    wrong = []
    for row in plan.rows:
        if row.outcome in (Outcome.DROPPED, Outcome.REFUSED):
            continue
        key = source[row.targets]
        info = checkpoint.infos[key]
        back = restore(key, info, leaves[key], checkpoint.infos, arrays.__getitem__)
        if back is None:
            if not any(leaf.join == SUM for leaf in leaves[key]):
                wrong.append(row.key)
        elif not _same_bits(back, checkpoint.read(row.key)):
            wrong.append(row.key)
    return wrong


def _same_bits(one: Any, other: Any) -> bool:
    one, other = np.ascontiguousarray(one), np.ascontiguousarray(other)
    return (
        one.dtype == other.dtype
        and one.shape == other.shape
        and one.reshape(-1).view(np.uint8).tobytes() == other.reshape(-1).view(np.uint8).tobytes()
    )


def shares(inference: Inference, truth: Mapping[str, Slot]) -> Shares:
    """How the layouts of an inference compare with those of the module tree."""
    right = refused = 0
    wrong = []
    for key, slot in inference.slots.items():
        if slot.outcome is Outcome.REFUSED:
            refused += 1
        elif _layouts(slot, inference.slots) == _layouts(truth[key], truth):
            right += 1
        else:
            wrong.append(f"{key} {slot.shape}: {slot.evidence}")
    return Shares(right, len(wrong), refused, tuple(wrong))


def _layouts(slot: Slot, slots: Mapping[str, Slot]) -> list[str]:
    owner = slots[slot.tied] if slot.tied else slot
    if owner.outcome is not Outcome.MAPPED:
        return [owner.outcome.value]
    return sorted(f"{it.part} {it.layout} {it.join}" for it in owner.targets)


def _said(inference: Inference, truth: Mapping[str, Slot], model: Any) -> tuple[str, ...]:
    """As few assumptions as a user would need: of a name, else of a layer of all blocks, else of one."""
    kinds = {
        it.path: _kind(it.path, [truth[key] for key in it.keys], model) for it in inference.guesses
    }
    found: dict[str, None] = {}
    for it in inference.ambiguous:
        kind = kinds[it.path]
        if {key.rpartition(".")[2] for key in it.keys} > {"weight"} and kind == "Embedding":
            found[rf"{re.escape(it.path)}\.weight={kind}"] = None  # a subclass with more
            continue
        exact = re.escape(it.path)
        patterns = (
            rf"(?:.*\.)?{re.escape(own_name(it.path))}(?:\.\d+)*",
            re.sub(r"\d+", r"\\d+", exact),
            exact,
        )
        fitting = (
            pattern
            for pattern in patterns
            if all(kinds[path] == kind for path in kinds if re.fullmatch(pattern, path))
        )
        found[f"{next(fitting)}={kind}"] = None
    return tuple(found)


def _kind(path: str, slots: Iterable[Slot], model: Any) -> str:
    module = model.get_submodule(path)
    if hasattr(module, "num_heads") and hasattr(module, "in_proj_weight"):
        return f"MultiheadAttention(heads={module.num_heads})"
    known = {slot.kind.removeprefix("Parametrized") for slot in slots if slot.kind}
    known -= {"buffer", "ParametrizationList"}
    return next(iter(sorted(known - {"Parameter"})), "Parameter")
