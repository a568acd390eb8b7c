"""Make the pictures of the README: what three commands print on a terminal, from real runs.

python docs/pictures.py           run them; write docs/pictures/NAME.svg, NAME.txt where one says another text
python docs/pictures.py --check   write nothing; exit code 1 if one says another text

Times, and the last digits of what was measured, are of the machine: a picture is made again only where it
says something else without its numbers.
"""

from __future__ import annotations

import difflib
import fcntl
import os
import pty
import re
import shutil
import struct
import subprocess
import sys
import tempfile
import termios
from collections.abc import Callable
from dataclasses import dataclass
from io import StringIO
from pathlib import Path

from rich.console import Console
from rich.text import Text

ROOT = Path(__file__).parents[1]
PICTURES = ROOT / "docs" / "pictures"
COLUMNS = 104
# What rich asks before the terminal: the picture's is the one that counts.
OF_SCREENS = frozenset({"COLUMNS", "FORCE_COLOR", "LINES", "NO_COLOR", "TTY_COMPATIBLE"})
NUMBER = re.compile(r"\d[\d.,]*(e[-+]?\d+)?")


@dataclass(frozen=True)
class Screen:
    """A command, and what it finds in its folder.

    Args:
        name: of the picture.
        command: as a user types it.
        prepare: puts the files that it names into an empty folder.
        code: the exit code with which it has to end.
        measured: whether it prints times and errors, which are of the machine.
    """

    name: str
    command: str
    prepare: Callable[[Path], None]
    code: int
    measured: bool = True


def toy(folder: Path) -> None:
    """Put the toy script there."""
    shutil.copy(ROOT / "examples" / "ddp_toy" / "before.py", folder / "train.py")


def toy_without_ddp(folder: Path) -> None:
    """Put the toy script there, and a rewrite of it in which the gradients are not averaged."""
    toy(folder)
    after = (ROOT / "examples" / "ddp_toy" / "after.py").read_text()
    wrapped = "DDP(model, gradient_as_bucket_view=True)"
    assert wrapped in after
    (folder / "edited.py").write_text(after.replace(wrapped, "model"))


def port(folder: Path) -> None:
    """Put a torch model there, and its port to Flax with three mistakes."""
    for name in ("net.py", "flax_net.py"):
        shutil.copy(ROOT / "examples" / "parity_port" / name, folder / name)


SCREENS = (
    Screen("rewrite", "migrate rewrite train.py --diff", toy, 0, measured=False),
    Screen("prove", "migrate prove train.py --rewritten edited.py", toy_without_ddp, 1),
    Screen(
        "parity",
        "migrate parity net.py:Net flax_net.py:Net --inputs 'x=float32[2,3,16,12]'",
        port,
        1,
    ),
)


def printed(screen: Screen) -> str:
    """Run the command in a terminal of `COLUMNS`, and return all that it printed, with its colours."""
    with tempfile.TemporaryDirectory(prefix="migrate-pictures-") as name:
        folder = Path(name)
        screen.prepare(folder)
        ours, theirs = pty.openpty()
        fcntl.ioctl(theirs, termios.TIOCSWINSZ, struct.pack("HHHH", 50, COLUMNS, 0, 0))
        bin_folder = str(Path(sys.executable).parent)
        environment = {name: value for name, value in os.environ.items() if name not in OF_SCREENS}
        environment |= {"TERM": "xterm-256color", "COLORTERM": "truecolor"}
        environment["PATH"] = f"{bin_folder}{os.pathsep}{environment['PATH']}"
        # Of what is measured a spinner tells on stderr, for as long as it takes.
        running = subprocess.Popen(
            ["sh", "-c", screen.command],
            cwd=folder,
            env=environment,
            stdin=theirs,
            stdout=theirs,
            stderr=None if screen.measured else theirs,
        )
        os.close(theirs)
        said = b""
        while chunk := _read(ours):
            said += chunk
        os.close(ours)
        text = said.decode(errors="replace").replace("\r\n", "\n")
        if running.wait() != screen.code:
            raise SystemExit(f"{screen.command}: exit code {running.returncode}\n{text}")
    return text


def _read(terminal: int) -> bytes:
    try:
        return os.read(terminal, 1 << 16)
    except OSError:  # whoever wrote to it has ended
        return b""


def drawn(screen: Screen, said: str) -> tuple[str, str]:
    """The picture of what a command printed, and the same as plain text."""
    console = Console(
        record=True, width=COLUMNS, file=StringIO(), force_terminal=True, highlight=False
    )
    console.print(Text(f"$ {screen.command}", "bold"))
    console.print(Text.from_ansi(said.rstrip("\n")))
    text = console.export_text(clear=False)
    svg = console.export_svg(title=f"migrate {screen.name}", unique_id=screen.name)
    return svg, "".join(f"{line.rstrip()}\n" for line in text.splitlines())


def same(one: str, other: str, measured: bool) -> bool:
    """Whether two screens say the same; where they tell what was measured, whatever their numbers are."""
    if not measured:
        return one == other
    first, second = (NUMBER.sub("0", " ".join(text.split())) for text in (one, other))
    return first == second


def main() -> int:
    """Make or check the pictures; return the exit code."""
    checks = "--check" in sys.argv[1:]
    stale = []
    for screen in SCREENS:
        svg, text = drawn(screen, printed(screen))
        file = PICTURES / f"{screen.name}.txt"
        if file.exists() and same(file.read_text(), text, screen.measured):
            continue
        stale.append(file.with_suffix(".svg").relative_to(ROOT))
        if checks and file.exists():
            now, then = text.splitlines(), file.read_text().splitlines()
            print(*difflib.unified_diff(then, now, file.name, "printed", lineterm=""), sep="\n")
        elif not checks:
            PICTURES.mkdir(exist_ok=True)
            file.write_text(text)
            file.with_suffix(".svg").write_text(svg)
    for path in stale:
        print(
            f"{path} {'is not what the command prints: run `make docs`' if checks else 'was made'}"
        )
    return 1 if checks and stale else 0


if __name__ == "__main__":
    sys.exit(main())
