"""Price of a chip for an hour, on GPUs and TPUs: defaults with sources and dates, or the user's own."""

from __future__ import annotations

import difflib
import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from migrate.assess.errors import AssessError
from migrate.assess.tables import TableEntry, read_table
from migrate.fit.products import GENERATIONS

SHIPPED = Path(__file__).with_name("prices.yaml")
_SIZE = re.compile(r"\d+gb?")
# Vendors, series and form factors.
_FORM = re.compile(
    r"nvidia|tesla|geforce|gpu|tensor|core|sxm\d?|pcie|nvl|hgx|dgx|hbm\d?e?|gddr\d\w?"
)


@dataclass(frozen=True)
class Price:
    """Dollars for one chip or GPU and one hour.

    Attributes:
        name: name of the generation or the GPU.
        on_demand: what anybody pays.
        spot: what one pays for what may be taken away at any time, or None if nothing is said.
        source: source of the price.
        read: the day on which it stood there.
    """

    name: str
    on_demand: float
    spot: float | None
    source: str
    read: str


@dataclass(frozen=True)
class Free:
    """Programs that give free use on application."""

    name: str
    says: str
    source: str
    read: str


@dataclass(frozen=True)
class Prices:
    """A table of prices.

    Attributes:
        file: file of the prices.
        tpu: prices by generation.
        gpu: prices by name.
        free: None where nothing is.
    """

    file: Path
    tpu: Mapping[str, Price]
    gpu: Mapping[str, Price]
    free: Free | None

    def of_gpu(self, name: str) -> Price:
        """The price of a GPU.

        Raises:
            AssessError: none is known.
        """
        matches = self.gpus_named(name)
        if not matches:
            near = difflib.get_close_matches(name.lower(), self.gpu, 4, 0.0)
            raise AssessError(
                f"--gpu {name}: no price is known",
                f"near: {', '.join(near)}; or give your own with --prices FILE",
            )
        return matches[0]

    def gpus_named(self, name: str) -> list[Price]:
        """Return the GPUs that a name may mean, the default first.

        "A100" may be the GPU with 80 GB or with 40: the first of the table is taken. A vendor, a form factor
        and a size that the table does not part by may be in the name: "NVIDIA H100 80GB HBM3".
        """
        if name.lower() in self.gpu:
            return [self.gpu[name.lower()]]
        asked = _words(name)
        sizes = {word for word in asked if _SIZE.fullmatch(word)}
        for wanted in (asked, asked - sizes):
            matches = [
                price
                for known, price in self.gpu.items()
                if wanted
                and wanted <= _words(known)
                and not (sizes - wanted and _words(known) - wanted)  # another size
            ]
            if matches:
                return matches
        return []


def _words(name: str) -> frozenset[str]:
    """Return the parts of a GPU's name that distinguish it from others."""
    text = re.sub(r"(?<=\d)\s+gb\b", "gb", name.lower())
    words = (word.removeprefix("rtx") for word in re.split(r"[^a-z0-9]+", text))
    return frozenset(word for word in words if word and not _FORM.fullmatch(word))


def read_prices(file: Path = SHIPPED) -> Prices:
    """Read a table of prices.

    Raises:
        AssessError: it cannot be read, or says what it cannot mean; with key and line.
    """
    parts = read_table(file, SHIPPED).table({"tpu", "gpu"}, {"free"})
    names = {generation.name for generation in GENERATIONS}
    tpu = {}
    for name, entry in parts["tpu"].entries():
        if name not in names:
            near = difflib.get_close_matches(name, sorted(names), 4, 0.0)
            entry.wrong("is not a generation of TPUs", f"near: {', '.join(near)}")
        tpu[name] = _price(name, entry)
    gpu = {name.lower(): _price(name.lower(), entry) for name, entry in parts["gpu"].entries()}
    return Prices(file, tpu, gpu, _free(parts["free"]) if "free" in parts else None)


def _price(name: str, entry: TableEntry) -> Price:
    said = entry.table({"on_demand"}, {"spot", "source", "read"})
    texts = {key: said[key].text() if key in said else "" for key in ("source", "read")}
    spot = said["spot"].number() if "spot" in said else None
    return Price(name, said["on_demand"].number(), spot, **texts)


def _free(entry: TableEntry) -> Free:
    said = entry.table({"name", "says", "source", "read"}, set())
    return Free(**{name: entry.text() for name, entry in said.items()})
