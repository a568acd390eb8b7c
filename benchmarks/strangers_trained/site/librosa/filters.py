"""A bank of filters."""

from __future__ import annotations

from typing import Any

import numpy as np


def mel(
    sr: float, n_fft: int, n_mels: int = 128, fmin: float = 0.0, fmax: float | None = None
) -> Any:
    """Return (n_mels, 1 + n_fft // 2) triangles, evenly spaced on the mel scale of HTK."""

    def to_mel(frequency: float) -> float:
        return 2595.0 * float(np.log10(1.0 + frequency / 700.0))

    edges = np.linspace(to_mel(fmin), to_mel(fmax or sr / 2), n_mels + 2)
    hertz = 700.0 * (10.0 ** (edges / 2595.0) - 1.0)
    bins = np.linspace(0, sr / 2, 1 + n_fft // 2)
    rising = (bins[None] - hertz[:-2, None]) / np.diff(hertz)[:-1, None]
    falling = (hertz[2:, None] - bins[None]) / np.diff(hertz)[1:, None]
    return np.maximum(0, np.minimum(rising, falling)).astype(np.float32)
