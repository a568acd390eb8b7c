"""Make docs/figures.md from what the benchmarks measured: one table a subject.

python docs/figures.py           write the page
python docs/figures.py --check   write nothing; exit code 1 if the page is not what the data says

The data: benchmarks/history/*.csv (`benchmarks/history.py` appends to them) and the tables of single
benchmarks. benchmarks/history/subjects.toml has the order, the titles and what each subject means. No figure
is typed here.
"""

from __future__ import annotations

import sys
import tomllib
from collections import Counter
from collections.abc import Collection, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[1]
sys.path.insert(0, str(ROOT / "benchmarks"))
from history import ORIGIN, read  # noqa: E402

PAGE = ROOT / "docs" / "figures.md"
SUBJECTS = ROOT / "benchmarks" / "history" / "subjects.toml"
HEAD = """# Figures

What was measured: the newest figures of each subject, with their date, command, versions and machine. Earlier
figures are data, in the file that each table names. No figure is of a TPU: nobody has run this on one.

This page is made from that data by `make docs`. A figure comes in by running its benchmark.
"""
Line = Mapping[str, str]


def page() -> str:
    """Return the text of the page."""
    subjects = tomllib.loads(SUBJECTS.read_text())
    groups = subjects["group"]
    parts = [HEAD]
    parts += [f"- [{group['title']}](#{anchor(group['title'])})" for group in groups]
    for group in groups:
        parts += ["", f"## {group['title']}"]
        for subject in group["subject"]:
            parts += ["", f"### {subject['title']}", "", subject["what"], ""]
            parts += described(subject)
    parts += ["", "## Not on this page", "", "Measured to find causes, and kept as data:", ""]
    parts += [f"- {data_of(SUBJECTS.with_name(f'{name}.csv'))}" for name in subjects["data_only"]]
    return "\n".join(parts) + "\n"


def anchor(title: str) -> str:
    """Return the anchor of a heading, as GitHub and mkdocs make it."""
    kept = "".join(letter for letter in title.lower() if letter.isalnum() or letter in " -")
    return kept.replace(" ", "-")


def described(subject: Mapping[str, Any]) -> list[str]:
    """Return the table of a subject and how its lines were measured."""
    if "count" in subject:
        lines = counted(subject)
        path = ROOT / subject["source"]
    elif "source" in subject:
        path = ROOT / subject["source"]
        lines = read(path)[1]
    else:
        path = ROOT / "benchmarks" / "history" / f"{subject['name']}.csv"
        lines = newest(path)
    if "total" in subject:
        lines = totaled(lines, subject)
    if "measured" in subject:
        lines = [dict(line) | subject["measured"] for line in lines]
    older = len(read(path)[1]) - len(lines) if not {"count", "total"} & subject.keys() else 0
    also = f", with {older} earlier {'line' if older == 1 else 'lines'}" if older > 0 else ""
    *rows, last = table(lines, subject.get("columns"))
    data = f"Data: {data_of(path)}{also}."
    return [*rows, f"{last} {data}"] if last.endswith(".") else [*rows, last, "", data]


def data_of(path: Path) -> str:
    """Return the link to a file of data."""
    name = path.relative_to(ROOT)
    return f"[{name}](../{name})"


def newest(path: Path) -> list[dict[str, str]]:
    """Return the newest line of each case, cases in the order in which they first came."""
    columns, lines = read(path)
    case = next(name for name in columns if name != "date")
    latest: dict[str, dict[str, str]] = {}
    for line in lines:
        before = latest.get(line[case])
        if before is None or line.get("date", "") >= before.get("date", ""):
            latest[line[case]] = line
    return list(latest.values())


def counted(subject: Mapping[str, Any]) -> list[dict[str, str]]:
    """Return how many lines of a benchmark's own table have each value of one column.

    Where the subject names columns as its `case`, the last line of each case counts.
    """
    _, lines = read(ROOT / subject["source"])
    if case := subject.get("case"):
        lines = list({tuple(line[name] for name in case): line for line in lines}.values())
    counts = Counter(line[subject["count"]] for line in lines if line[subject["count"]])
    found = [{subject["count"]: value, "number": f"{n:,}"} for value, n in counts.most_common()]
    return [*found, {subject["count"]: "all", "number": f"{sum(counts.values()):,}"}]


def totaled(lines: Sequence[Line], subject: Mapping[str, Any]) -> list[dict[str, str]]:
    """Return one line a date with the sums of columns, and how many lines there are."""
    totals: list[dict[str, str]] = []
    for date in sorted({line.get("date", "") for line in lines}):
        group = [line for line in lines if line.get("date", "") == date]
        total = {"date": date, subject["counts"]: f"{len(group):,}"} if date else {}
        total |= {subject["counts"]: f"{len(group):,}"}
        for name in subject["total"]:
            values = [float(line[name]) for line in group if line.get(name)]
            total[name] = f"{sum(values):,.0f}"
        for name in ORIGIN[:3]:
            total[name] = next((line[name] for line in group if line.get(name)), "")
        totals.append(total)
    return totals


def table(lines: Sequence[Line], columns: Sequence[str] | None = None) -> list[str]:
    """Return a Markdown table of lines; where they were not all measured alike, a letter says how."""
    shown = columns or list(dict.fromkeys(name for line in lines for name in line))
    shown = [
        name
        for name in shown
        if name not in {"date", *ORIGIN} and any(line.get(name) for line in lines)
    ]
    origins = {name: [line.get(name, "") for line in lines] for name in ("date", *ORIGIN)}
    differ = {name for name, values in origins.items() if len(set(values)) > 1}
    ways = list(dict.fromkeys(way(line, differ) for line in lines))
    names = [*shown, *(["date"] if "date" in differ else []), *(["how"] if len(ways) > 1 else [])]
    names += ["note"] if "note" in differ else []
    rows = []
    for line in lines:
        extra = {"how": letter(ways.index(way(line, differ)))}
        rows.append([cell({**line, **extra}.get(name, "")) for name in names])
    numeric = [all(_is_figure(row[index]) for row in rows) for index in range(len(names))]
    rule = "".join("--:|" if right else "---|" for right in numeric)
    result = [f"| {' | '.join(map(cell, names))} |", f"|{rule}"]
    result += [f"| {' | '.join(row)} |" for row in rows]
    if len(ways) > 1:
        result += ["", *(f"- {letter(index)}: {text}" for index, text in enumerate(ways))]
    alike = [name for name in ("date", *ORIGIN[:3]) if name not in differ and origins[name][0]]
    texts = [spelled(name, origins[name][0]) for name in alike]
    result += ["", f"Measured: {'; '.join(texts)}."] if texts else []
    if "note" not in differ and origins["note"][0]:
        result += ["", f"Note: {cell(origins['note'][0])}."]
    return result


def way(line: Line, differ: Collection[str]) -> str:
    """Return how a line was measured, as far as that differs between the lines of a table."""
    texts = [spelled(name, line.get(name, "")) for name in ORIGIN[:3] if name in differ]
    return "; ".join(filter(None, texts)) or "no single command"


def spelled(name: str, text: str) -> str:
    """Return a value as the page spells it: commands as code."""
    return f"`{text}`" if name == "command" and text else text


def letter(index: int) -> str:
    """Return a, b, … z, aa, ab, …"""
    text = ""
    index += 1
    while index:
        index, place = divmod(index - 1, 26)
        text = chr(ord("a") + place) + text
    return text


def cell(text: str) -> str:
    """Return text for a cell of a table."""
    return " ".join(text.split()).replace("|", "\\|")


def _is_figure(text: str) -> bool:
    return not text or text[0].isdigit() or text[0] in "≤<~−-"


def stale(paths: Iterable[Path] = (PAGE,)) -> bool:
    """Return whether the page is not what the data says."""
    return any(not path.exists() or path.read_text() != page() for path in paths)


def main() -> int:
    """Write or check the page; return the exit code."""
    if "--check" in sys.argv[1:]:
        if stale():
            print(
                f"{PAGE.relative_to(ROOT)} is not what the data says: run `python docs/figures.py`"
            )
            return 1
        return 0
    PAGE.write_text(page())
    return 0


if __name__ == "__main__":
    sys.exit(main())
