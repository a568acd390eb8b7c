"""A real browser for the tests of pages."""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path

import pytest


def seen_by_chromium(page: Path, profile: Path) -> str:
    """Return the document as headless Chromium has read it; the test is skipped where there is none."""
    browser = shutil.which("chromium")
    if browser is None:
        pytest.skip("chromium is not installed")
    options = ["--headless", "--no-sandbox", "--disable-gpu", f"--user-data-dir={profile}"]
    done = subprocess.run(
        [browser, *options, "--dump-dom", page.as_uri()],
        capture_output=True,
        text=True,
        check=True,
        timeout=120,
    )
    return done.stdout
