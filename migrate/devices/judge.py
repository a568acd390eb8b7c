"""Interpret the events of a probe: find each bad chip and its fault."""

from __future__ import annotations

import math
from collections import Counter, defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from migrate.devices.programs import ALL_REDUCE
from migrate.devices.report import Chip, ChipFinding, ChipProgram, DevicesReport

Event = Mapping[str, Any]
_REPLACE = "take this chip out of service: report it to the provider, or run on another VM"
_AGAIN = "run it again, with more --repeats; keep the output for the provider"
_LINKS = "chips compute right and exchange wrong: recreate the slice, report it to the provider"
# Of two results, that which is so many times farther from float64 is the wrong one.
_FARTHER = 2.0


@dataclass
class CheckResults:
    """Results of one program.

    Attributes:
        limit: limit of the program's error.
        results: chip → its results, repeat by repeat.
        apart: digest → how far it is from the commonest.
        answered: digest → a result with it.
        errors: chip → what it raised.
        silent: chips that did not answer.
    """

    limit: float
    results: dict[int, list[Event]] = field(default_factory=lambda: defaultdict(list))
    apart: dict[str, Event] = field(default_factory=dict)
    answered: dict[str, Event] = field(default_factory=dict)
    errors: dict[int, str] = field(default_factory=dict)
    silent: set[int] = field(default_factory=set)

    def flaky(self) -> list[int]:
        """Chips whose repeats differ."""
        return [chip for chip, ones in self.results.items() if len(_digests(ones)) > 1]

    def steady(self) -> dict[str, list[int]]:
        """Digest → the chips that gave it in every repeat."""
        wrong_chips: dict[str, list[int]] = defaultdict(list)
        for chip, ones in self.results.items():
            if len(digests := _digests(ones)) == 1:
                wrong_chips[next(iter(digests))].append(chip)
        return wrong_chips

    def right(self) -> str | None:
        """The digest that most steady chips gave; of as many on both sides that which is clearly nearer to
        float64; None if that does not tell.
        """
        steady = self.steady()
        if not steady:
            counts = Counter(event["digest"] for ones in self.results.values() for event in ones)
            return counts.most_common(1)[0][0] if counts else None
        most = max(len(chips) for chips in steady.values())
        first, *others = sorted(
            (digest for digest, chips in steady.items() if len(chips) == most),
            key=lambda digest: self.error(digest),
        )
        if others and self.error(others[0]) <= max(_FARTHER * self.error(first), self.limit / 100):
            return None
        return first

    def error(self, digest: str) -> float:
        """Relative L2 distance of a result from float64."""
        return float(self.answered[digest]["error"])


def judge(events: Sequence[Event], seconds: float) -> DevicesReport:
    """Interpret the events. Without events, the report has no chips."""
    head = next((event for event in events if event["event"] == "chips"), {})
    chips = {chip["id"]: Chip(**chip) for chip in head.get("chips", ())}
    seen = _seen(events)
    findings = [
        *_silent(seen, chips),
        *_raised(seen, chips),
        *_failed(events),
        *_not_finite(seen, chips),
        *_flaky(seen, chips),
        *_different(seen, chips),
        *_all_wrong(seen),
        *_exchanged(seen, chips),
    ]
    return DevicesReport(
        head.get("runtime", ""),
        tuple(chips.values()),
        tuple(_program(name, check) for name, check in seen.items()),
        head.get("repeats", 0),
        head.get("size", 0),
        tuple(findings),
        tuple(f"{event['op']}: left out, {event['why']}" for event in _of(events, "left out")),
        seconds,
    )


def _seen(events: Sequence[Event]) -> dict[str, CheckResults]:
    checks = {event["op"]: CheckResults(event["limit"]) for event in _of(events, "running")}
    for event in _of(events, "result"):
        checks[event["op"]].results[event["chip"]].append(event)
        checks[event["op"]].answered.setdefault(event["digest"], event)
    for event in _of(events, "difference"):
        checks[event["op"]].apart[event["digest"]] = event
    for event in _of(events, "error"):
        checks[event["op"]].errors.setdefault(event["chip"], event["what"])
    for event in _of(events, "no answer"):
        checks[event["op"]].silent.add(event["chip"])
    return checks


def _program(name: str, seen: CheckResults) -> ChipProgram:
    right = seen.right()
    if right is None:
        return ChipProgram(name, "", None, seen.limit, 0)
    same = len(seen.steady().get(right, ()))
    return ChipProgram(name, seen.answered[right]["checksum"], seen.error(right), seen.limit, same)


def _silent(seen: Mapping[str, CheckResults], chips: Mapping[int, Chip]) -> Iterator[ChipFinding]:
    for name, check in seen.items():
        for chip in sorted(check.silent):
            yield ChipFinding(
                "no answer", (chip,), f"{chips[chip]} did not answer in {name}", _REPLACE
            )


def _raised(seen: Mapping[str, CheckResults], chips: Mapping[int, Chip]) -> Iterator[ChipFinding]:
    for name, check in seen.items():
        for chip, what in sorted(check.errors.items()):
            yield ChipFinding(
                "failed", (chip,), f"{chips[chip]} failed in {name}: {what}", _REPLACE
            )


def _failed(events: Sequence[Event]) -> Iterator[ChipFinding]:
    for event in _of(events, "failed"):
        text = f"{event['op']} does not run on these chips: {event['what']}"
        yield ChipFinding(
            "failed", (), text, "see that the versions of the runtime fit (migrate doctor)"
        )


def _not_finite(
    seen: Mapping[str, CheckResults], chips: Mapping[int, Chip]
) -> Iterator[ChipFinding]:
    names_by_chip: dict[int, list[str]] = defaultdict(list)
    for name, check in seen.items():
        for chip, results in check.results.items():
            bad = [result for result in results if result["not_finite"]]
            if bad:
                most = max(result["not_finite"] for result in bad)
                names_by_chip[chip].append(
                    f"{name} ({most} in {len(bad)} of {len(results)} repeats)"
                )
    for chip, where in sorted(names_by_chip.items()):
        text = f"{chips[chip]} gives NaN or infinity where there is none: {', '.join(where)}"
        yield ChipFinding("not finite", (chip,), text, _REPLACE)


def _flaky(seen: Mapping[str, CheckResults], chips: Mapping[int, Chip]) -> Iterator[ChipFinding]:
    names_by_chip: dict[int, list[str]] = defaultdict(list)
    for name, check in seen.items():
        if name == ALL_REDUCE:
            continue
        for chip in check.flaky():
            if any(result["not_finite"] for result in check.results[chip]):
                continue  # said already
            counts = Counter(result["digest"] for result in check.results[chip])
            names_by_chip[chip].append(
                f"{name} ({len(counts)} results in {counts.total()} repeats)"
            )
    for chip, where in sorted(names_by_chip.items()):
        text = f"{chips[chip]} is flaky: the same input gives other bits in {', '.join(where)}"
        yield ChipFinding("flaky", (chip,), text, _REPLACE)


def _different(
    seen: Mapping[str, CheckResults], chips: Mapping[int, Chip]
) -> Iterator[ChipFinding]:
    names_by_chip: dict[int, list[str]] = defaultdict(list)
    for name, check in seen.items():
        right, steady = check.right(), check.steady()
        if name == ALL_REDUCE or not steady:
            continue
        if right is None:
            sides = " against ".join(", ".join(map(str, ids)) for ids in steady.values())
            text = f"{name}: chips disagree ({sides}), and it cannot be told which are right"
            yield ChipFinding("disagree", tuple(sorted(check.results)), text, _AGAIN)
            continue
        for digest, ids in steady.items():
            # A NaN is said already.
            if digest != right and not check.answered[digest]["not_finite"]:
                for chip in ids:
                    names_by_chip[chip].append(f"{name} ({_apart(check, digest)})")
    for chip, where in sorted(names_by_chip.items()):
        text = f"{chips[chip]} always differs from the others in {', '.join(where)}"
        yield ChipFinding("differs", (chip,), text, _REPLACE)


def _apart(seen: CheckResults, digest: str) -> str:
    event = seen.apart.get(digest)
    if event is None:
        return "other bits"
    return f"{event['elements']} elements, by {event['largest']:.3g} at most"


def _all_wrong(seen: Mapping[str, CheckResults]) -> Iterator[ChipFinding]:
    for name, check in seen.items():
        right = check.right()
        if name == ALL_REDUCE or right is None:
            continue
        if not check.error(right) <= check.limit and math.isfinite(check.error(right)):
            text = (
                f"{name}: what most chips give is {check.error(right):.2e} from float64, more than "
                f"{check.limit:g}: all are wrong in the same way"
            )
            remedy = "it is the compiler, its flags or the runtime, not a chip: see migrate doctor"
            yield ChipFinding("all wrong", (), text, remedy)


def _exchanged(
    seen: Mapping[str, CheckResults], chips: Mapping[int, Chip]
) -> Iterator[ChipFinding]:
    """The all-reduce of integers: every chip must have the exact sum."""
    check = seen.get(ALL_REDUCE)
    if check is None:
        return
    wrong = {
        chip: [result for result in results if result["error"] != 0]
        for chip, results in check.results.items()
    }
    bad = sorted(chip for chip, results in wrong.items() if results)
    if not bad:
        return
    lost = {result["lost"] for results in wrong.values() for result in results}
    repeats = max(len(results) for results in wrong.values())
    total = max(len(results) for results in check.results.values())
    who = "all chips" if len(bad) == len(check.results) else ", ".join(map(str, bad))
    if len(lost) == 1 and (culprit := next(iter(lost))) is not None:
        text = f"{ALL_REDUCE}: the part of {chips[culprit]} is missing in the sum of {who}"
        about: tuple[int, ...] = (culprit,)
    else:
        text = f"{ALL_REDUCE}: the sum is wrong on {who}"
        about = tuple(bad) if who != "all chips" else ()
    yield ChipFinding("all-reduce", about, f"{text}, in {repeats} of {total} repeats", _LINKS)


def _digests(results: Sequence[Event]) -> set[str]:
    return {result["digest"] for result in results}


def _of(events: Sequence[Event], kind: str) -> Iterator[Event]:
    return (event for event in events if event["event"] == kind)
