"""Comparisons as the pipeline would find them, made up: for the tests of the reports."""

from __future__ import annotations

import dataclasses
import itertools
import math
import random
from collections.abc import Callable, Iterator, Mapping

from migrate.parity.ground.facts import RunFacts
from migrate.parity.ground.results import (
    Errors,
    LayerResult,
    LayerVerdict,
    Parity,
    ParityCause,
    ParityCheck,
    ParityVerdict,
    Ratio,
    Section,
    SideResult,
)

INPUTS = 8
LOCAL_LIMIT = 1e-6
TORCH = RunFacts(
    framework="torch",
    target="bert.py:make",
    device="cpu",
    dtype="float32",
    versions={"torch": "2.9.1", "transformers": "5.0.0"},
)
LINEN = RunFacts(
    framework="linen",
    target="bert_flax.py:make",
    device="cpu",
    dtype="float32",
    precision="highest",
    versions={"jax": "0.10.0", "flax": "0.12.8"},
    notes=("XLA:CPU computes every precision in plain float32",),
)
TRUTH = dataclasses.replace(TORCH, dtype="float64", notes=())

_BLOCK = (
    ("attention.self.query", "Linear"),
    ("attention.self.key", "Linear"),
    ("attention.self.value", "Linear"),
    ("attention.self.dropout", "Dropout"),
    ("attention.self", "BertSelfAttention"),
    ("attention.output.dense", "Linear"),
    ("attention.output.dropout", "Dropout"),
    ("attention.output.LayerNorm", "LayerNorm"),
    ("attention.output", "BertSelfOutput"),
    ("attention", "BertAttention"),
    ("intermediate.dense", "Linear"),
    ("intermediate.intermediate_act_fn", "GELUActivation"),
    ("intermediate", "BertIntermediate"),
    ("output.dense", "Linear"),
    ("output.dropout", "Dropout"),
    ("output.LayerNorm", "LayerNorm"),
    ("output", "BertOutput"),
    ("", "BertLayer"),
)
_EMBEDDINGS = (
    ("word_embeddings", "Embedding"),
    ("position_embeddings", "Embedding"),
    ("token_type_embeddings", "Embedding"),
    ("LayerNorm", "LayerNorm"),
    ("dropout", "Dropout"),
    ("", "BertEmbeddings"),
)


def bert(blocks: int) -> Iterator[tuple[str, str]]:
    """Name and class of each module of a BERT, in the order in which they end."""
    for name, kind in _EMBEDDINGS:
        yield f"embeddings.{name}".rstrip("."), kind
    for block in range(blocks):
        for name, kind in _BLOCK:
            yield f"encoder.layer.{block}.{name}".rstrip("."), kind
    yield "encoder", "BertEncoder"
    yield from (("pooler.dense", "Linear"), ("pooler.activation", "Tanh"), ("pooler", "BertPooler"))
    yield "", "BertModel"


def errors(relative_l2: float, *, not_finite: int = 0, ulps: float | None = None) -> Errors:
    """Errors of this size, over all inputs."""
    return Errors(
        relative_l2=relative_l2,
        max_over_rms=6 * relative_l2,
        cosine=1 - relative_l2**2 / 2,
        ulps=ulps,
        not_finite=not_finite,
        elements=2 * 128 * 768,
        per_input=(relative_l2,) * INPUTS,
    )


# Layer name → how many times its limit B's local error is there.
Faults = Mapping[str, float]


def layers(
    blocks: int, faults: Faults | None = None, *, truth: bool = True, seed: int = 0
) -> list[LayerResult]:
    """The layers of a BERT with this many blocks, and B's faults in it."""
    rng = random.Random(seed)
    names = list(bert(blocks))
    containers = {name.rpartition(".")[0] for name, _ in names} | {""}
    found, depth, carried = [], 0, 0.0
    for order, (name, kind) in enumerate(names):
        leaf = name not in containers
        times = (faults or {}).get(name, 0.0)
        limit = LOCAL_LIMIT * math.sqrt(depth + 1)
        floor = 8e-8 * math.exp(rng.gauss(0, 0.3))
        local_a = 0.0 if kind in ("Embedding", "Dropout") else floor
        local_b = times * LOCAL_LIMIT or local_a * math.exp(rng.gauss(0, 0.2))
        carried = math.hypot(carried, times * LOCAL_LIMIT)
        grown = floor * (depth + 1) ** 0.4
        parts = local_b > LOCAL_LIMIT or not math.isfinite(local_b)
        found.append(
            LayerResult(
                name=name,
                kind=kind,
                order=order,
                depth=depth,
                a=_side(name, "torch", local_a if truth else None, grown if truth else None, True),
                b=_side(name, "flax", local_b, math.hypot(grown, carried), truth),
                emulated=(grown * 0.9, floor * 0.9) if truth else (None, None),
                local_limit=LOCAL_LIMIT,
                accumulated_limit=limit,
                verdict=LayerVerdict.B_PARTS
                if parts
                else LayerVerdict.CARRIED
                if not math.hypot(grown, carried) <= limit
                else LayerVerdict.MATCH,
            )
        )
        depth += leaf
    return found


def _side(
    name: str, framework: str, local: float | None, accumulated: float | None, ratios: bool
) -> SideResult:
    file = "models/bert.py" if framework == "torch" else "ports/bert_flax.py"
    line = 100 + sum(map(ord, name)) % 400
    place = ".".join(f"layer_{p}" if p.isdigit() else p for p in name.split("."))
    ratio = None if local is None or not local else local / 8e-8
    return SideResult(
        name=name if framework == "torch" else place.replace("layer.layer_", "layer_"),
        aligned="same model" if framework == "torch" else "weights",
        defined=f"{file}:{line}",
        called=f"{file}:{line + 41}" if name else "",
        accumulated=None if accumulated is None else _errors(accumulated),
        local=None if local is None else _errors(local),
        ratio=None if ratio is None or not ratios else Ratio(ratio, ratio * 0.94, ratio * 1.07),
    )


def _errors(value: float) -> Errors:
    return errors(value, not_finite=0 if math.isfinite(value) else 4096)


def alone(name: str, kind: str, order: int, *, in_b: bool) -> LayerResult:
    """A layer that only one side has."""
    side = dataclasses.replace(
        _side(name, "flax" if in_b else "torch", None, None, False), aligned=""
    )
    return LayerResult(
        name=name,
        kind=kind,
        order=order,
        depth=0,
        a=None if in_b else side,
        b=side if in_b else None,
        emulated=(None, None),
        local_limit=LOCAL_LIMIT,
        accumulated_limit=LOCAL_LIMIT,
        verdict=LayerVerdict.ALONE,
    )


def outputs(b: float, limit: float = 1.3e-5) -> Section:
    """The outputs of the model."""
    source = "1e-06 · √depth, measured"
    return Section(
        "outputs",
        tuple(
            ParityCheck(f"output {name}", 3.1e-7, b, limit, b <= limit, source)
            for name in ("last_hidden_state", "pooler_output")
        ),
    )


def matching(blocks: int = 12) -> Parity:
    """All within the limits."""
    return Parity(
        a=TORCH,
        b=LINEN,
        truth=TRUTH,
        profile="f32-highest",
        limits=(
            "local relative L2 ≤ 1e-06: six passes / float32, measured at k = 1024",
            "accumulated relative L2 ≤ 1e-06 · √depth: growth measured as depth^0.27..0.43",
            "ρ ≤ 2, its lower 95 % bound",
        ),
        inputs=(
            "8 × input_ids int64[2,128], uniform in 0..30521, seed 0",
            "attention_mask: lengths 17..128",
        ),
        floor=3.0e-7,
        layers=tuple(layers(blocks)),
        sections=(outputs(3.4e-7),),
        first=None,
        causes=(),
        verdict=ParityVerdict.MATCH,
        sentence="A and B match: of 226 layers none is farther from float64 than 25 % of its limit, "
        "and B's outputs are as near to it as A's (3.4e-07 and 3.1e-07).",
        seconds=(("capture A", 2.1), ("capture B", 4.75), ("truth", 6.0), ("judge", 0.4)),
        histograms=(histogram("output last_hidden_state", -7.2, -7.15),),
    )


FAULT = "encoder.layer.3.intermediate.intermediate_act_fn"


def parting(blocks: int = 12, fault: str = FAULT, times: float = 440.0) -> Parity:
    """B has the tanh form of gelu in one block."""
    found = layers(blocks, {fault: times})
    extra = (
        alone("encoder.layer.0.attention.rotary", "RotaryEmbedding", 21, in_b=True),
        alone("pooler.dropout", "Dropout", len(found) - 2, in_b=False),
    )
    first = next(one for one in found if one.name == fault)
    return dataclasses.replace(
        matching(blocks),
        layers=tuple(sorted((*found, *extra), key=lambda one: one.order)),
        sections=(outputs(4.4e-4),),
        first=first,
        causes=(
            ParityCause(
                "gelu-form",
                "B's GELU has the tanh form, A's the exact one (erf).",
                "with the tanh form the truth's layer gives B's output: 3.1e-08 instead of 4.4e-04",
                True,
            ),
            ParityCause(
                "activation-dtype",
                "B's activation may compute in another dtype.",
                "only the settings differ: dtype None and float32",
                False,
            ),
        ),
        verdict=ParityVerdict.B_WORSE,
        sentence=f"B diverges from the reference at {fault}: its own error there is 4.4e-04, "
        "440 times the limit; the likely cause: gelu-form.",
        histograms=(
            histogram(fault, -7.3, -3.6),
            histogram("output last_hidden_state", -7.2, -3.5),
        ),
        notes=("1 layer of B was aligned by order of execution only: pooler",),
    )


def histogram(
    name: str, a: float, b: float
) -> tuple[str, tuple[float, ...], tuple[int, ...], tuple[int, ...]]:
    """Counts around 10^a and 10^b."""
    edges = tuple(-10 + 0.25 * step for step in range(41))
    middles = [(low + high) / 2 for low, high in itertools.pairwise(edges)]

    def counts(middle: float) -> tuple[int, ...]:
        spread: Callable[[float], int] = lambda x: round(  # noqa: E731
            9000 * math.exp(-((x - middle) ** 2) / (0.3 if x < middle else 0.08))
        )
        return tuple(map(spread, middles))

    return name, edges, counts(a), counts(b)


def _training(steps: int = 40) -> Section:
    rng = random.Random(1)
    a = [0.4 + 2.2 * math.exp(-step / 12) + rng.gauss(0, 0.02) for step in range(steps)]
    b = [value + rng.gauss(0, 0.006) for value in a]
    return Section(
        "training",
        (
            ParityCheck("loss of step 1", None, 2.1e-7, 1e-5, True, "float32, one forward pass"),
            ParityCheck(
                "loss curve outside of the band", None, 0.0, 0.05, True, "seed-to-seed, 5 seeds"
            ),
        ),
        curves=(
            ("A", tuple(a)),
            ("B", tuple(b)),
            ("band low", tuple(value - 0.06 for value in a)),
            ("band high", tuple(value + 0.06 for value in a)),
            ("A, each step", tuple(value + rng.gauss(0, 0.1) for value in a)),
            ("B, each step", tuple(value + rng.gauss(0, 0.1) for value in b)),
        ),
        notes=("AdamW, 40 steps, learning rate 1e-3; the band is of 5 seeds of A",),
    )


def with_all_sections() -> Parity:
    """Layers that match, and each section there is; two of them failed."""
    gradients = Section(
        "gradients",
        tuple(
            ParityCheck(
                f"gradient {name}.weight", 2.2e-7, 2.9e-7, 4e-6, True, "4 × the forward pass'"
            )
            for name, kind in bert(12)
            if kind in ("Linear", "LayerNorm", "Embedding")
        ),
    )
    logits = Section(
        "logits",
        (
            ParityCheck(
                "KL", None, 0.031, 0.015, False, "bfloat16: measured", note="mean of 4096 tokens"
            ),
            ParityCheck("KL p99.9", None, 0.2, 0.5, True, "bfloat16: measured"),
            ParityCheck("top-1 agreement", None, 0.997, 1.0, False, "where margin > 6√2σ", True),
            ParityCheck("top-5 agreement", None, 0.9991, 0.99, True, "near-ties apart", True),
        ),
        notes=("112 of 4096 tokens are near-ties (margin below 6√2σ) and are not counted",),
    )
    generation = Section(
        "generation",
        (
            ParityCheck(
                "greedy tokens in common", None, 17, 32, False, "of 32 tokens", True, "parts at 18"
            ),
        ),
    )
    batch = Section(
        "batch", (ParityCheck("batch 1 against 8", 1.1e-7, 1.2e-7, 2e-6, True, "ρ ≤ 2"),)
    )
    excess = Section(
        "excess precision",
        (
            ParityCheck(
                "reduce-precision instructions", None, 3, 0, False, "jit with the option off"
            ),
        ),
        notes=("add.7 (models/bert.py:120) keeps 24 bits where bfloat16 has 8",),
    )
    topk = Section(
        "approximate top-k",
        (ParityCheck("recall of approx_max_k", None, 1.0, 0.95, True, "recall_target", True),),
    )
    sections = (outputs(3.4e-7), gradients, _training(), logits, generation, batch, excess, topk)
    return dataclasses.replace(
        matching(),
        sections=sections,
        verdict=ParityVerdict.PARTLY,
        sentence="The layers match; logits, generation and excess precision do not: KL 0.031, limit 0.015.",
    )


def with_nan() -> Parity:
    """B has NaN from one layer on."""
    fault = "encoder.layer.1.attention.self"
    found = layers(2, {fault: math.nan})
    first = next(one for one in found if one.name == fault)
    return dataclasses.replace(
        matching(2),
        floor=math.nan,
        layers=tuple(found),
        sections=(
            Section(
                "outputs",
                (
                    ParityCheck(
                        "output 0", 3e-7, math.nan, 1e-5, False, "measured", note="NaN: 4096"
                    ),
                ),
            ),
        ),
        first=first,
        verdict=ParityVerdict.B_WORSE,
        sentence=f"B gives NaN at {fault}, where the truth is finite.",
        histograms=(),
    )


def without_truth() -> Parity:
    """Two dumps: B is measured against A."""
    dump = dataclasses.replace(TORCH, target="dumps/gpu", device="cuda:0 (NVIDIA H200)")
    other = dataclasses.replace(TORCH, framework="xla", target="dumps/tpu", device="TPU v5 lite")
    found = [
        dataclasses.replace(
            one,
            b=dataclasses.replace(one.b, local=None) if one.b else None,
            verdict=LayerVerdict.UNFED,
        )
        for one in layers(2, truth=False)
    ]
    return dataclasses.replace(
        matching(2),
        a=dump,
        b=dataclasses.replace(other, precision="default"),
        truth=None,
        profile="tpu-default",
        layers=tuple(found),
        sentence="B is as near to A as the precision of a TPU allows: 3.1e-03 at the outputs.",
        notes=("there is no truth: B is measured against A (record it with --truth)",),
    )


def empty() -> Parity:
    """Only the outputs were compared: a plain function has no layers."""
    return dataclasses.replace(matching(), layers=(), histograms=(), seconds=())


ALL: Mapping[str, Callable[[], Parity]] = {
    "matching": matching,
    "parting": parting,
    "with_all_sections": with_all_sections,
    "with_nan": with_nan,
    "without_truth": without_truth,
    "empty": empty,
}
