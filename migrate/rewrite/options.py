"""Options of a rewrite. Rules read them as `context.options`."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Literal, get_args

from migrate.check.config import Config

Style = Literal["native", "portable"]
STYLES: tuple[Style, ...] = get_args(Style)


@dataclass(frozen=True)
class RewriteOptions:
    """Options of a rewrite.

    Args:
        style: `native` writes calls of the target's own interface; `portable` writes calls of `shims`,
            so that one source runs on CUDA, CPU and TPU.
        config: the configuration, with the package that drives the TPU and the selection of findings.
        defer_reads: whether logged values are read from the device once for each print instead of once for
            each step.
    """

    style: Style = "native"
    defer_reads: bool = False
    config: Config = field(default_factory=Config)


DEFAULT = RewriteOptions()
