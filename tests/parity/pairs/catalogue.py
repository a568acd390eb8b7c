"""All pairs, and all faults with the pair that they are in."""

from __future__ import annotations

from tests.parity.pairs import decoder, encoder, plain, sequence, twins, vision, vision2
from tests.parity.pairs.pair import Fault, Pair

ROOMS = (plain, vision, vision2, sequence, encoder, decoder, twins)
PAIRS: dict[str, Pair] = {pair.name: pair for room in ROOMS for pair in room.PAIRS}
FAULTS: dict[str, tuple[Pair, Fault]] = {
    f"{pair.name}/{fault.name}": (pair, fault) for pair in PAIRS.values() for fault in pair.faults
}
