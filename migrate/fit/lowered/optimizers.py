"""The optimizer of a Flax model's step: a name that torch has too, optax's own, or the user's."""

from __future__ import annotations

from operator import attrgetter
from typing import Any

from migrate.fit.errors import FitError
from migrate.parity.sides.jax.passes import in_user_code
from migrate.parity.sides.jax.training import optimizer_of, users_function

_RATE = 1e-3  # of no account: only shapes are looked at
_OPTAX = "optax."


def optimizer_named(name: str) -> Any:
    """The optimizer of `adamw`, `optax.lion` or `train.py:make_optimizer`, a function without arguments.

    Raises:
        FitError, ParityError: there is none of this name, or it is none.
    """
    if name.startswith(_OPTAX):
        factory = _of_optax(name)
    elif ":" in name:
        make = users_function(name, "optimizer", "adamw, optax.NAME or file.py:function")
        with in_user_code(name):
            factory = make()
    else:
        return optimizer_of(name, _RATE)
    if not (hasattr(factory, "init") and hasattr(factory, "update")):
        raise FitError(f"--train {name}: gives no optimizer of optax", "return an optax.chain")
    return factory


def _of_optax(name: str) -> Any:
    import optax

    try:
        return attrgetter(name.removeprefix(_OPTAX))(optax)(learning_rate=_RATE)
    except AttributeError:
        raise FitError(
            f"--train {name}: optax has no such optimizer", "see the documentation of optax"
        ) from None
    except TypeError as error:
        raise FitError(
            f"--train {name}: cannot be created from a learning rate alone ({error})",
            "write a function that returns it: --train file.py:function",
        ) from None
