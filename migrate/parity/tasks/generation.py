"""Greedy decoding on both sides: the first token of each row that differs, and whether noise explains it.

Two correct sides may part at a near-tie, and after one other token they say other things. So of each row
only the first difference counts; it is forgiven where both sides' margins (their two largest logits) are
below 6√2σ, σ being the noise of the difference of their logits, and told all the same.
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
class Parting:
    """Where a row parts first.

    Attributes:
        input, row: which.
        token: how many tokens were the same before.
        a, b: the tokens.
        margin: the larger of the two sides' margins there.
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
    """Let both sides append tokens and compare them.

    Args:
        parties: whose inputs have `input_ids`.
        tokens: how many to append.
        named: path of the truth's output with logits; None: one that is called so.

    Raises:
        ParityError: the model takes no `input_ids` or gives no logits.
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
        caps.append([min(one, most) for one, most in zip(noise.errors, allowed, strict=True)])
    doubt = [6 * math.sqrt(2) * math.hypot(a, b) for a, b in zip(*caps, strict=True)]
    return _section(generated[0], generated[1], doubt, tokens)


def partings(a: Generated, b: Generated, doubt: list[float]) -> list[Parting]:
    """The first difference of each row that has one.

    Args:
        a, b: what the sides generated.
        doubt: for each input the margin below which a token may differ.
    """
    found = []
    for number, rows in enumerate(a.tokens):
        for row, tokens in enumerate(rows):
            for place, (one, other) in enumerate(zip(tokens, b.tokens[number][row], strict=True)):
                if one != other:
                    margins = a.margins[number][row][place], b.margins[number][row][place]
                    margin = math.inf if any(map(math.isnan, margins)) else max(margins)
                    tie = margin <= doubt[number]
                    found.append(Parting(number, row, place, one, other, margin, tie))
                    break
    return found


def _section(a: Generated, b: Generated, doubt: list[float], tokens: int) -> Section:
    found = partings(a, b, doubt)
    rows = sum(len(one) for one in a.tokens)
    wrong = sum(not one.tie for one in found)
    share = 1 - wrong / rows if rows else 0.0
    check = ParityCheck(
        f"greedy decoding of {tokens} tokens, rows that agree or part at a near-tie",
        None,
        share,
        1.0,
        share == 1.0,
        _SOURCE,
        at_least=True,
        note=f"{rows - len(found)} of {rows} rows are the same to the end, "
        f"{len(found) - wrong} part at a near-tie",
    )
    notes = [
        f"input {one.input}, row {one.row}, token {one.token}: A {one.a}, B {one.b}, margin "
        f"{one.margin:.2e}, {'a near-tie' if one.tie else 'not explained by noise'}"
        for one in sorted(found, key=lambda one: one.tie)[:_SHOWN]
    ]
    if len(found) > _SHOWN:
        notes.append(f"and {len(found) - _SHOWN} more rows")
    return Section("generation", (check,), notes=tuple(notes))
