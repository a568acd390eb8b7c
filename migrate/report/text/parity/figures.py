"""The figures of a layer that parts: a table, or lines where the terminal is too narrow for it."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from migrate.parity.ground.results import Errors, LayerResult
from migrate.report.text.parity import words
from migrate.report.text.tables import plain_table

if TYPE_CHECKING:
    from rich.console import Console, ConsoleOptions, RenderableType
    from rich.table import Table
    from rich.text import Text

_HEADINGS = ("local", "accumulated", "max/rms", "ρ (95 %)", "ulps")


@dataclass(frozen=True)
class Figures:
    """Measurements of a layer: both sides, the emulation and the limits."""

    layer: LayerResult

    def __rich_console__(
        self, console: Console, options: ConsoleOptions
    ) -> Iterator[RenderableType]:
        from rich.measure import Measurement

        rows = self._rows()
        # A column in which nothing stands is left out.
        shown = [
            at for at in range(len(_HEADINGS)) if any(at < len(row) and row[at] for _, row in rows)
        ]
        table = _table(rows, shown)
        wide = options.update(width=1000)
        if Measurement.get(console, wide, table).maximum <= options.max_width:
            yield table
        else:
            yield from _lines(rows, shown)

    def _rows(self) -> list[tuple[str, list[Text]]]:
        layer = self.layer
        rows = [
            (
                letter,
                [
                    _held(side.local, layer.local_limit, letter in words.parting_sides(layer)),
                    _held(side.accumulated, layer.accumulated_limit),
                    *_others(side.local or side.accumulated, words.ratio(side.ratio)),
                ],
            )
            for letter, side in words.two(layer)
        ]
        accumulated, local = layer.emulated
        if (local, accumulated) != (None, None):
            rows.append(("emulated", _plain(words.size(local), words.size(accumulated))))
        limits = words.size(layer.local_limit), words.size(layer.accumulated_limit)
        return [*rows, ("limit", _plain(*limits))]


def _others(main: Errors | None, ratio: str) -> list[Text]:
    ulps = "" if main is None or main.ulps is None else words.figure(main.ulps)
    return _plain(words.size(None if main is None else main.max_over_rms), ratio, ulps)


def _plain(*texts: str) -> list[Text]:
    from rich.text import Text

    return [Text(text) for text in texts]


def _held(error: Errors | None, limit: float, parts: bool = False) -> Text:
    from rich.text import Text

    pressure = words.pressure(error, limit)
    wrong = parts or (pressure is not None and pressure > 1)
    return Text(words.error(error), "bold red" if wrong else "")


def _table(rows: Sequence[tuple[str, Sequence[Text]]], shown: Sequence[int]) -> Table:
    table = plain_table("", *(_HEADINGS[at] for at in shown))
    for column in table.columns:
        column.no_wrap = True
    for name, row in rows:
        table.add_row(name, *(row[at] if at < len(row) else "" for at in shown))
    return table


def _lines(rows: Sequence[tuple[str, Sequence[Text]]], shown: Sequence[int]) -> Iterator[Text]:
    from rich.text import Text

    for name, row in rows:
        line = Text(f"{name}: ")
        for at in shown:
            if at < len(row) and row[at]:
                line.append(f"{_HEADINGS[at].split(' ')[0]} ").append_text(row[at]).append("  ")
        line.rstrip()
        yield line
