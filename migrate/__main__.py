"""`python -m migrate`, for who has the package but not its script on the path."""

import os
import sys

# Python puts the working folder first, where a project may have a `shims.py` of its own.
_ROOT = os.path.realpath(os.path.join(os.path.dirname(__file__), os.pardir))
_HERE = os.path.realpath(".")
if sys.path and os.path.realpath(sys.path[0] or ".") == _HERE != _ROOT:
    sys.path[0] = _ROOT

from migrate.cli import main  # noqa: E402

main()
