"""Make the pictures of the documentation from real runs of the commands.

python docs/pictures.py               make those that say another text now
python docs/pictures.py NAME...       make these
python docs/pictures.py --check       write nothing; exit code 1 if a terminal picture says another text

What a command prints on a terminal becomes docs/pictures/NAME.svg. The page that it writes with --html
becomes docs/pictures/page-NAME-light.png and page-NAME-dark.png, by Chromium; without Chromium those are left
as they are. NAME.txt is the text of a picture. Times, and the last digits of what was measured, are of the
machine: a picture is made again only where it says something else without its numbers.
"""

from __future__ import annotations

import difflib
import fcntl
import hashlib
import os
import pty
import re
import shutil
import struct
import subprocess
import sys
import tempfile
import termios
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from io import StringIO
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.text import Text

ROOT = Path(__file__).parents[1]
sys.path.insert(0, str(ROOT))
PICTURES = ROOT / "docs" / "pictures"
COLUMNS = 104
# What rich asks before the terminal: the picture's is the one that counts.
OF_SCREENS = frozenset({"COLUMNS", "FORCE_COLOR", "LINES", "NO_COLOR", "TTY_COMPATIBLE"})
TEMPORARY = re.compile(rf"{re.escape(tempfile.gettempdir())}/[\w.-]+/")
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


def resnet(folder: Path) -> None:
    """Put a Flax ResNet there."""
    shutil.copy(ROOT / "examples" / "resnet_target" / "flax_resnet.py", folder / "flax_resnet.py")


@dataclass(frozen=True)
class Page:
    """A command that writes an HTML page, and the part of the page to show.

    Attributes:
        name: name of the picture.
        command: the command as a user types it, with `--html page.html`.
        prepare: puts the files that the command needs into an empty folder.
        codes: the exit codes with which the command may end.
        show: JavaScript expression for the element at the top of the picture; the top of the page where the
            expression gives none.
    """

    name: str
    command: str
    prepare: Callable[[Path], None]
    codes: tuple[int, ...]
    show: str = "null"


WIDTH, HEIGHT = 1000, 720
SCHEMES = ("light", "dark")
# The heading above the first plot.
PLOT = (
    "(svg => svg && [...document.querySelectorAll('h2, h3')]"
    ".filter(each => each.compareDocumentPosition(svg) & Node.DOCUMENT_POSITION_FOLLOWING).pop())"
    "(document.querySelector('figure svg, main svg, body svg'))"
)
PAGES = (
    Page(
        "run",
        "migrate run train.py --rewrite --replicas 2 --html page.html",
        toy,
        (0, 1),
    ),
    Page(
        "prove",
        "migrate prove train.py --rewritten edited.py --html page.html",
        toy_without_ddp,
        (1,),
    ),
    Page(
        "parity",
        "migrate parity net.py:Net flax_net.py:Net --inputs 'x=float32[2,3,16,12]' --html page.html",
        port,
        (1,),
    ),
    Page(
        "fit",
        "migrate fit flax_resnet.py:ResNet --inputs 'image=float32[1024,64,64,3]' --train adamw --loss mse "
        "--tpu v5e-8 --html page.html",
        resnet,
        (0,),
        PLOT,
    ),
    Page(
        "assess",
        "migrate assess . --script train.py --tpu v5e-8 --gpu h100 --gpus 8 --gpu-step-seconds 0.41 "
        "--steps 100000 --runs 20 --engineer-hour 200 --html page.html",
        toy,
        (0, 1),
    ),
)

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
    """Run the command in a terminal of `COLUMNS`, and return all that it printed, with its colors."""
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


def photograph(page: Page, browser: Any, again: bool) -> bool:
    """Run the command; take pictures of its page if the text or style is new, and return whether it is."""
    with tempfile.TemporaryDirectory(prefix="migrate-pictures-") as name:
        folder = Path(name)
        page.prepare(folder)
        ran = subprocess.run(
            ["sh", "-c", page.command],
            cwd=folder,
            env={
                **os.environ,
                "PATH": f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}",
            },
            capture_output=True,
            text=True,
            check=False,
        )
        if ran.returncode not in page.codes:
            raise SystemExit(
                f"{page.command}: exit code {ran.returncode}\n{ran.stdout}{ran.stderr}"
            )
        html = folder / "page.html"
        html.write_text(TEMPORARY.sub("", html.read_text()))
        browser.looks(WIDTH, HEIGHT)
        browser.call("Emulation.setScrollbarsHidden", hidden=True)
        browser.open(html.as_uri())
        text = described(page, browser)
        file = PICTURES / f"page-{page.name}.txt"
        if not again and file.exists() and same(file.read_text(), text, True):
            return False
        PICTURES.mkdir(exist_ok=True)
        for scheme in SCHEMES:
            browser.looks(WIDTH, HEIGHT, scheme)
            browser.open(html.as_uri())
            browser.evaluate(f"({page.show} || document.body).scrollIntoView()")
            browser.screenshot(PICTURES / f"page-{page.name}-{scheme}.png")
        file.write_text(text)
    return True


def described(page: Page, browser: Any) -> str:
    """Return the command, the hash of the page's style and its text."""
    style = browser.evaluate(
        "[...document.querySelectorAll('style')].map(each => each.textContent).join('')"
    )
    text = browser.evaluate("document.body.innerText")
    lines = [
        f"$ {page.command}",
        f"style {hashlib.sha256(style.encode()).hexdigest()}",
        *text.splitlines(),
    ]
    return "".join(f"{line.rstrip()}\n" for line in lines if line.strip())


def photographs(names: Sequence[str]) -> list[Path]:
    """Take the pictures of pages, of these names or of all that are stale; return those that were taken."""
    if not any(map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))):
        print("chromium is not installed: the pictures of pages stay as they are")
        return []
    from tests.report.browser import browser

    made = []
    with tempfile.TemporaryDirectory(prefix="migrate-chromium-") as profile:
        for page in PAGES:
            # A browser for each: a page's command may take minutes.
            if not names or f"page-{page.name}" in names:
                with browser(Path(profile)) as tab:
                    if photograph(page, tab, bool(names)):
                        made += [
                            Path(f"docs/pictures/page-{page.name}-{scheme}.png")
                            for scheme in SCHEMES
                        ]
    return made


def main() -> int:
    """Make or check the pictures; return the exit code."""
    checks = "--check" in sys.argv[1:]
    names = [word for word in sys.argv[1:] if not word.startswith("-")]
    known = [*(screen.name for screen in SCREENS), *(f"page-{page.name}" for page in PAGES)]
    if unknown := set(names) - set(known):
        raise SystemExit(
            f"no such picture: {', '.join(sorted(unknown))}; there are {', '.join(known)}"
        )
    stale = []
    for screen in SCREENS:
        if names and screen.name not in names:
            continue
        svg, text = drawn(screen, printed(screen))
        file = PICTURES / f"{screen.name}.txt"
        if not names and file.exists() and same(file.read_text(), text, screen.measured):
            continue
        stale.append(file.with_suffix(".svg").relative_to(ROOT))
        if checks and file.exists():
            now, then = text.splitlines(), file.read_text().splitlines()
            print(*difflib.unified_diff(then, now, file.name, "printed", lineterm=""), sep="\n")
        elif not checks:
            PICTURES.mkdir(exist_ok=True)
            file.write_text(text)
            file.with_suffix(".svg").write_text(svg)
    if not checks:
        stale += photographs(names)
    for path in stale:
        print(
            f"{path} {'is not what the command prints: run `make docs`' if checks else 'was made'}"
        )
    return 1 if checks and stale else 0


if __name__ == "__main__":
    sys.exit(main())
