"""The user's assumptions about layers that names and shapes leave open: `--assume 'tok.*=Embedding'`.

    heads=8                                      every MultiheadAttention has 8 heads
    encoder\\..*\\.attn=MultiheadAttention(heads=8)  these modules are one, with 8 heads
    encoder\\..*\\.attn: heads=8                   these have 8 heads, whatever they are
    .*\\.experts=Parameter                        kept as they are, under their own names
    .*\\.inv_freq=dropped                         not converted

The regular expression must match the whole path of a module ("encoder.layers.0.attn") or a whole
key ("tok_embed.weight"); in the latter case the assumption is about that key alone. The first match
decides.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field

from converters.errors import AssumptionError
from converters.inference.guess import BATCH_NORM, BUFFER, CONV1D, DROPPED, NORM, PARAMETER

CONTAINERS = ("Sequential", "ModuleList")
LAYERS = (
    "Linear",
    CONV1D,
    "Embedding",
    "EmbeddingBag",
    "Bilinear",
    "Conv",
    "ConvTranspose",
    NORM,
    BATCH_NORM,
    "PReLU",
    "MultiheadAttention",
    "LSTM",
    "GRU",
    "RNN",
)
AS_THEY_ARE = (PARAMETER, BUFFER, DROPPED)
KINDS = (*LAYERS, *AS_THEY_ARE, *CONTAINERS)
OPTIONS = ("heads", "groups")

# Classes of torch.nn with more information than the shapes need.
_OTHER_NAMES = {
    **{f"Conv{rank}d": "Conv" for rank in (1, 2, 3)},
    **{f"ConvTranspose{rank}d": "ConvTranspose" for rank in (1, 2, 3)},
    **{f"BatchNorm{rank}d": BATCH_NORM for rank in (1, 2, 3)},
    "SyncBatchNorm": BATCH_NORM,
    "LayerNorm": NORM,
    "RMSNorm": NORM,
    "GroupNorm": NORM,
    "InstanceNorm": NORM,
}
_OPTION = re.compile(r"\s*(?P<name>[a-z_]+)\s*=\s*(?P<value>\d+)\s*")
_KIND = re.compile(r"(?P<pattern>.+)=\s*(?P<kind>[A-Za-z]\w*)\s*(?:\((?P<options>[^()]*)\))?\s*")
_REMEDY = "write REGEX=Kind, REGEX=Kind(heads=8), REGEX: heads=8 or heads=8"


@dataclass(frozen=True)
class Assumption:
    """Assumption of the user.

    Attributes:
        text: as the user wrote it.
        pattern: the modules or keys; None for all.
        kind: their layer kind; "" if only options are given.
        options: {"heads": 8}.
    """

    text: str
    pattern: re.Pattern[str] | None
    kind: str = ""
    options: Mapping[str, int] = field(default_factory=dict)

    def matches(self, name: str) -> bool:
        """Whether the assumption is about this path or key."""
        return self.pattern is None or self.pattern.fullmatch(name) is not None


@dataclass(frozen=True)
class Assumptions:
    """Assumptions of the user, in order."""

    all: tuple[Assumption, ...] = ()

    def kind_for(self, names: Iterable[str]) -> Assumption | None:
        """Return the first assumption about the kind of something with one of these names."""
        candidates = tuple(names)
        for assumption in self.all:
            if assumption.kind and any(assumption.matches(name) for name in candidates):
                return assumption
        return None

    def options_for(self, path: str) -> tuple[dict[str, int], tuple[Assumption, ...]]:
        """Return the options for a module and the assumptions they come from. The first one with an
        option decides."""
        options: dict[str, int] = {}
        used = []
        for assumption in self.all:
            if assumption.options and assumption.matches(path):
                new = {k: v for k, v in assumption.options.items() if k not in options}
                options |= new
                if new:
                    used.append(assumption)
        return options, tuple(used)


def kind_of_class(name: str) -> str | None:
    """Return the kind of a torch.nn class by its full name, or None."""
    name = name.rpartition(".")[2]
    kind = _OTHER_NAMES.get(name, name)
    return kind if kind in LAYERS else None


def parse_assumptions(texts: Sequence[str]) -> Assumptions:
    """Parse assumptions from the command line.

    Raises:
        AssumptionError: an assumption has an unknown form, kind or option.
    """
    return Assumptions(tuple(_parsed(text) for text in texts))


def _parsed(text: str) -> Assumption:
    option = _OPTION.fullmatch(text)
    if option and option["name"] in OPTIONS:
        return Assumption(text, None, "", _options(text, text))
    pattern, colon, rest = text.rpartition(":")
    if colon and _OPTION.fullmatch(rest.split(",")[0]):
        return Assumption(text, _pattern(text, pattern), "", _options(text, rest))
    kind = _KIND.fullmatch(text)
    if kind is None:
        raise AssumptionError(f"{text!r} is not an assumption", _REMEDY)
    name = _OTHER_NAMES.get(kind["kind"], kind["kind"])
    if name not in KINDS:
        raise AssumptionError(
            f"{text!r}: there is no kind {kind['kind']}", f"choose one of {', '.join(KINDS)}"
        )
    options = _options(text, kind["options"]) if kind["options"] else {}
    return Assumption(text, _pattern(text, kind["pattern"]), name, options)


def _pattern(text: str, pattern: str) -> re.Pattern[str]:
    try:
        return re.compile(pattern.strip())
    except re.error as error:
        raise AssumptionError(f"{text!r}: no regular expression ({error})", _REMEDY) from None


def _options(text: str, listed: str) -> dict[str, int]:
    options = {}
    for part in listed.split(","):
        option = _OPTION.fullmatch(part)
        if option is None or option["name"] not in OPTIONS or int(option["value"]) < 1:
            raise AssumptionError(
                f"{text!r}: {part.strip()!r} is not an option",
                f"options are {', '.join(f'{name}=NUMBER' for name in OPTIONS)}",
            )
        options[option["name"]] = int(option["value"])
    return options
