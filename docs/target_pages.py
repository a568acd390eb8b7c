"""The page that compares both targets: which hazards, rules and names of the catalogue hold for which."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from migrate.catalogue import catalogue
from migrate.catalogue.entry import CatalogueEntry
from migrate.catalogue.target import TARGETS, TPU, Target
from migrate.check.rules import all_hazards
from migrate.report.text.rules import title
from migrate.rewrite.rules import all_rules

HEAD = """# torch_xla or torch_tpu: which one

Two packages drive a TPU from PyTorch. They need different versions of torch and cannot share an environment.

| | torch_xla | torch_tpu |
|---|---|---|
| last version | 2.9.0, with torch 2.9; its repository has no later one | 0.2.0, with torch 2.11 to 2.15 |
| how it runs | records a graph, compiles it at the end of a step | runs each operator at once, as CUDA does |
| a training step | `with torch_xla.step():` | nothing to write |
| reading a value | cuts the graph; late reads cost less | waits, as on CUDA |
| ranks | run the same graphs | may run different code |
| processes | `torch_xla.launch(fn)` | `mp.spawn` or torchrun, as on GPUs |
| sharded models | XlaFSDP, SPMD | `fully_shard`, DTensor |
| operators that are missing | run on the CPU, slowly | raise an error |
| evaluation of batch norm | right | right: the rewrite adds `shims.update_running_statistics()` (XLA897) |
| rewrite | `migrate rewrite train.py` | `migrate rewrite train.py --target torch_tpu` |
| proof without a TPU | `migrate prove train.py` | `migrate prove train.py --target torch_tpu` |

**Take torch_tpu** for a script that has to live on, for ranks that do different things, and for FSDP2 or
DTensor. **Take torch_xla** where the model needs an operator that torch_tpu does not have, and where an older
library is worth more than a new one. `migrate check train.py --target torch_tpu` names missing operators.
A script of torch_xla moves with `migrate rewrite train_xla.py --target torch_tpu`
([guide](guides/from-torch-xla-to-torch-tpu.md)).

The tables below are made from the hazards, the rules and the catalogue by `make docs`.
"""
YES, NO = "yes", "–"


def page() -> str:
    """Return the Markdown page of both targets."""
    parts = [HEAD]
    parts += [
        "## What `migrate check` reports",
        "",
        "A hazard of one target only does not hold on the other one. A text says what is different there.",
        "",
        *_table(
            ("hazard", "what", *TARGETS),
            (
                (f"[{h.code}](hazards/{h.code}.md)", h.title, *_holds(h.targets, h.on_torch_tpu))
                for h in all_hazards()
            ),
        ),
        "",
        "## What `migrate rewrite` does",
        "",
        *_table(
            ("rule", "does", *TARGETS),
            (
                (
                    f"[{rule.name}](rules/{rule.name}.md)",
                    title(rule),
                    *_holds(rule.targets, rule.on_torch_tpu),
                )
                for rule in all_rules()
            ),
        ),
        "",
        "## Names of torch",
        "",
        "What a name does on each target, and what to write. An empty cell: it works as on CUDA, or the name "
        "is not of that target.",
        "",
        *_table(("name", *TARGETS), _names()),
    ]
    return "\n".join(parts) + "\n"


def _names() -> Iterable[tuple[str, ...]]:
    """Yield the names whose support differs between the targets."""
    for name in sorted({entry.name for target in TARGETS for entry in catalogue.entries(target)}):
        cells = [_cell(catalogue.of(name, target)) for target in TARGETS]
        if cells[0] != cells[1] and not name.startswith("torch_xla"):
            yield (f"`{name}`", *cells)


def _cell(entry: CatalogueEntry | None) -> str:
    return "" if entry is None or entry.says() == "works" else entry.says()


def _holds(targets: frozenset[Target], on_torch_tpu: str) -> tuple[str, ...]:
    """Return a cell for each target; for torch_tpu, what is different there."""
    cells = {target: YES if target in targets else NO for target in TARGETS}
    if TPU in targets and on_torch_tpu:
        cells[TPU] = on_torch_tpu
    return tuple(cells.values())


def _table(columns: Sequence[str], rows: Iterable[Sequence[str]]) -> list[str]:
    lines = [columns, ["---"] * len(columns), *rows]
    return [
        f"| {' | '.join(cell.replace('|', chr(92) + '|') for cell in line)} |" for line in lines
    ]
