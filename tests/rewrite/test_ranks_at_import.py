"""A rank that an imported file asks for when it is read: replicas read the whole script once it is there."""

from __future__ import annotations

import inspect
from pathlib import Path

import pytest

from migrate.rewrite.folder import rewrite_folder
from migrate.rewrite.rule import Style
