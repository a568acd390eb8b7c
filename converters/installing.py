"""Missing packages: detection, and the command that installs them.

No package index has tpu-migrate, so every command installs an extra from a clone.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from importlib.util import find_spec

from converters.errors import MissingDependencyError

# Module → extra of pyproject.toml that installs it.
EXTRAS = {
    "torch": "torch",
    "transformers": "torch",
    "torch_xla": "xla",
    "jax": "jax",
    "jaxlib": "jax",
    "flax": "jax",
    "optax": "jax",
    "orbax": "jax",
    "libtpu": "tpu",
    "huggingface_hub": "hub",
    "gcsfs": "gcs",
    "s3fs": "s3",
    "adlfs": "azure",
    "fsspec": "gcs",
    "jinja2": "report",
    "matplotlib": "report",
    "ruff": "port",
}
# Extra → extras that it includes.
_BRINGS = {"xla": ("torch",), "tpu": ("jax",), "port": ("torch", "jax")}


def is_installed(module: str) -> bool:
    """Whether `module` can be imported, without importing it."""
    try:
        return find_spec(module) is not None
    except (ImportError, ValueError):
        return False


def install_command(*extras: str) -> str:
    """Return the command that installs extras, for a shell in a clone."""
    wanted = dict.fromkeys(extras)
    brought = {name for extra in wanted for name in _BRINGS.get(extra, ())}
    return f"pip install '.[{','.join(extra for extra in wanted if extra not in brought)}]'"


def how_to_install(*extras: str) -> str:
    """Return the instruction to install the extras, in one line."""
    return f"{install_command(*extras)} in a clone of tpu-migrate"


def missing_modules(modules: Sequence[str]) -> tuple[str, ...]:
    """Return the modules that are not installed."""
    return tuple(module for module in modules if not is_installed(module))


def require_installed(*modules: str, extra: str = "") -> None:
    """Check that all modules needed by a step are installed.

    Args:
        modules: their names, each in `EXTRAS`.
        extra: extra that the step is for, which brings all of them; "" for the extra of each module.

    Raises:
        MissingDependencyError: the message names all missing modules and the command.
    """
    if missing := missing_modules(modules):
        raise missing_error(*missing, extra=extra)


def missing_error(*modules: str, needed_by: str = "", extra: str = "") -> MissingDependencyError:
    """Return the error for modules that are not installed.

    Args:
        modules: their names, each in `EXTRAS`.
        needed_by: the file or step that needs them.
        extra: extra that brings all of them; "" for the extra of each module.
    """
    first, *others = modules
    what = f"{needed_by} needs {first}, which is" if needed_by else f"{first} is"
    remedy = how_to_install(*([extra] if extra else (EXTRAS[module] for module in modules)))
    if others:
        remedy += f" ({', '.join(others)} {'is' if len(others) == 1 else 'are'} missing too)"
    return MissingDependencyError(f"{what} not installed", remedy)


def missing_behind(error: BaseException) -> MissingDependencyError | None:
    """Return the error for a missing framework if `error` comes from its import, else None."""
    for cause in _chain(error):
        if isinstance(cause, MissingDependencyError):
            return cause
        module = (getattr(cause, "name", None) or "") if isinstance(cause, ImportError) else ""
        module = module.partition(".")[0]
        if module in EXTRAS and not is_installed(module):
            return missing_error(module)
    return None


def _chain(error: BaseException | None) -> Iterator[BaseException]:
    seen = set[int]()
    while error is not None and id(error) not in seen:
        seen.add(id(error))
        yield error
        error = error.__cause__ or error.__context__
