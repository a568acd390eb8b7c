"""Greedy decoding on both sides: the first differing token of each row, and whether noise explains it.

Two correct sides may diverge at a near-tie, and continue with other tokens after it. So only the first
difference of each row counts. It is accepted where both sides' margins (between the two largest logits) are
below 6√2σ, σ being the noise of the difference of their logits, but it is still reported.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

from migrate.parity.ground.errors import ParityError
from migrate.parity.ground.requests import Generated
from migrate.parity.ground.results import ParityCheck, Section
from migrate.parity.sides import protocol
from migrate.parity.tasks.logits import allowed_noise, noise_of
from migrate.parity.tasks.outputs import logits_path
from migrate.parity.tasks.party import Parties

_SHOWN = 8
_SOURCE = "a top token flips only below 6√2σ of its margin: six sd of the difference of two logits"


@dataclass(frozen=True)
class FirstDivergence:
    """First divergence of a row.

    Attributes:
        input, row: the input, and the row of it.
        token: number of equal tokens before.
        a, b: the tokens.
        margin: the larger of the two sides' margins at that token.
        tie: whether noise explains it.
    """

    input: int
    row: int
    token: int
    a: int
    b: int
    margin: float
    tie: bool


def compare_generation(parties: Parties, tokens: int, named: str | None = None) -> Section:
    """Let both sides append tokens, and compare the tokens.

    Args:
        parties: parties whose inputs have `input_ids`.
        tokens: number of tokens to append.
        named: path of the truth's output with logits; None: the output called logits.

    Raises:
        ParityError: the model takes no `input_ids` or returns no logits.
    """
    path = logits_path(parties.truth.dump, named)
    if path is None or "input_ids" not in parties.inputs.names:
        lacks = "gives no output called logits" if path is None else "takes no input_ids"
        raise ParityError(f"greedy decoding: the model {lacks}", "leave --tokens out")
    generated, caps = [], []
    allowed = allowed_noise(parties, path)
    for party in parties.sides:
        pair = party.pair(path)
        if pair is None:
            raise ParityError(f"{party.name} has no output {path}", "name it with --outputs")
        generated.append(
            party.side.ask(protocol.Generate(party.settings, parties.inputs, tokens, pair.mine))
        )
        noise = noise_of(parties, party, path)
        caps.append([min(error, most) for error, most in zip(noise.errors, allowed, strict=True)])
    doubt = [6 * math.sqrt(2) * math.hypot(a, b) for a, b in zip(*caps, strict=True)]
    return _section(generated[0], generated[1], doubt, tokens)


def partings(a: Generated, b: Generated, doubt: list[float]) -> list[FirstDivergence]:
    """Return the first difference of each row with differences.

    Args:
        a, b: generated tokens of the sides.
        doubt: for each input the margin below which a token may differ.
    """
    divergences = []
    for number, rows in enumerate(a.tokens):
        for row, tokens in enumerate(rows):
            for place, (mine, other) in enumerate(zip(tokens, b.tokens[number][row], strict=True)):
                if mine != other:
                    margins = a.margins[number][row][place], b.margins[number][row][place]
                    margin = math.inf if any(map(math.isnan, margins)) else max(margins)
                    tie = margin <= doubt[number]
                    divergences.append(
                        FirstDivergence(number, row, place, mine, other, margin, tie)
                    )
                    break
    return divergences


def _section(a: Generated, b: Generated, doubt: list[float], tokens: int) -> Section:
    divergences = partings(a, b, doubt)
    rows = sum(len(row) for row in a.tokens)
    wrong = sum(not first.tie for first in divergences)
    share = 1 - wrong / rows if rows else 0.0
    check = ParityCheck(
        f"greedy decoding of {tokens} tokens, rows that agree or part at a near-tie",
        None,
        share,
        1.0,
        share == 1.0,
        _SOURCE,
        at_least=True,
        note=f"{rows - len(divergences)} of {rows} rows are the same to the end, "
        f"{len(divergences) - wrong} part at a near-tie",
    )
    notes = [
        f"input {first.input}, row {first.row}, token {first.token}: A {first.a}, B {first.b}, margin "
        f"{first.margin:.2e}, {'a near-tie' if first.tie else 'not explained by noise'}"
        for first in sorted(divergences, key=lambda first: first.tie)[:_SHOWN]
    ]
    if len(divergences) > _SHOWN:
        notes.append(f"and {len(divergences) - _SHOWN} more rows")
    return Section("generation", (check,), notes=tuple(notes))
