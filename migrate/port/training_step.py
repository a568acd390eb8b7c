"""Source of some training steps on a port, for its README; a test runs it."""

from __future__ import annotations

from typing import Any

from migrate.port.substitution import substitute


def training_step(name: str, port: Any, frozen: bool = False) -> str:
    """Source that trains the port for some steps, below the lines of the page's "Use".

    Args:
        name: name of the package.
        port: what the compiler gave.
        frozen: whether the package has `trainable`, as the original trains only some weights.
    """
    spared = {drawn.name for drawn in port.drawn}
    own_loss = [output.code for output in port.outputs if output.is_loss]
    floats = [output.code for output in port.outputs if output.floating]
    compared = next(iter(floats), "outputs")
    asked = [
        input_.name
        for input_ in port.inputs
        if not input_.optional or input_.name in spared or (own_loss and "label" in input_.name)
    ]
    text = _NNX if port.api == "nnx" else _with_mode(port)
    changes = {"BATCH": ", ".join(f"{argument}={argument}" for argument in asked)}
    if own_loss:
        changes |= {
            "import jax.numpy as jnp\n": "",
            "target = jnp.zeros_like(COMPARED)  # your targets\n": "",
            ", target)": ")",
            "LOSS  # your loss": own_loss[0],
            "LOSS, updates  # your loss": f"{own_loss[0]}, updates",
        }
    else:
        changes |= {"LOSS": f"jnp.mean(({compared} - target) ** 2)", "COMPARED": compared}
    if frozen:
        changes |= _frozen_weights(name, port)
    for old, new in changes.items():
        text = text.replace(old, new)
    return text


def _with_mode(port: Any) -> str:
    """The step in Flax Linen, with the arguments that training mode of this port takes."""
    streams = [*port.streams, *(["dropout"] if port.draws and port.trains else [])]
    mode = ", deterministic=False" if port.trains else ""
    changes = {}
    if streams:
        split = f"jax.random.split(key, {len(streams)})"
        rngs = ", ".join(f'"{stream}": keys[{at}]' for at, stream in enumerate(streams))
        if len(streams) == 1:
            mode += f', rngs={{"{streams[0]}": key}}'
        else:
            mode += f", rngs={{{rngs}}}"
            changes["    def loss_of(params):\n"] = (
                f"    keys = {split}\n\n    def loss_of(params):\n"
            )
    else:
        changes |= {
            "variables, state, key, batch": "variables, state, batch",
            "    key = jax.random.key(step)  # other random numbers in each step\n": "",
        }
    if port.statistics:
        mode += ', mutable=["batch_stats"]'
        changes |= {
            "outputs = model.apply": "outputs, updates = model.apply",
            "        return LOSS": "        return LOSS, updates",
            "    loss, gradients = jax.value_and_grad(loss_of)(params)": (
                "    (loss, updates), gradients = jax.value_and_grad(loss_of, has_aux=True)(params)"
            ),
            '{**variables, "params": params}, state, loss': (
                '{**variables, **updates, "params": params}, state, loss'
            ),
        }
    if len(mode) > _SHORT:
        call = 'model.apply({**variables, "params": params}, **batchMODE)'
        arguments = f'{_INDENT}    {{**variables, "params": params}}, **batch,\n'
        changes[call] = f"model.apply(\n{arguments}{_INDENT}    {mode[2:]},\n{_INDENT})"
    else:
        changes["MODE"] = mode
    return substitute(_LINEN, changes)


def _frozen_weights(name: str, port: Any) -> dict[str, str]:
    """Changes of the text that leave out what the original does not train."""
    if port.api == "nnx":
        return {
            "import optax\n": f"import optax\nfrom {name} import trainable\n",
            "wrt=nnx.Param": "wrt=trainable",
            "nnx.value_and_grad(loss_of)": (
                "nnx.value_and_grad(loss_of, argnums=nnx.DiffState(0, trainable))"
            ),
        }
    return {
        "import optax\n": f"import optax\nfrom {name} import trainable\n",
        "optimizer = optax.adamw(1e-3)\n": (
            "rules = {True: optax.adamw(1e-3), False: optax.set_to_zero()}\n"
            "optimizer = optax.partition(rules, trainable)  # some weights stay, as in the original\n"
        ),
    }


_INDENT, _SHORT = " " * 8, 40
_LINEN = """\
import jax.numpy as jnp
import optax

batch = dict(BATCH)
target = jnp.zeros_like(COMPARED)  # your targets
optimizer = optax.adamw(1e-3)
state = optimizer.init(variables["params"])


@jax.jit
def train_step(variables, state, key, batch, target):
    def loss_of(params):
        outputs = model.apply({**variables, "params": params}, **batchMODE)
        return LOSS  # your loss

    params = variables["params"]
    loss, gradients = jax.value_and_grad(loss_of)(params)
    changes, state = optimizer.update(gradients, state, params)
    params = optax.apply_updates(params, changes)
    return {**variables, "params": params}, state, loss


for step in range(3):
    key = jax.random.key(step)  # other random numbers in each step
    variables, state, loss = train_step(variables, state, key, batch, target)
    print(step, loss)
"""
_NNX = """\
import jax.numpy as jnp
import optax

batch = dict(BATCH)
target = jnp.zeros_like(COMPARED)  # your targets
optimizer = nnx.Optimizer(model, optax.adamw(1e-3), wrt=nnx.Param)


@nnx.jit
def train_step(model, optimizer, batch, target):
    def loss_of(model):
        outputs = model(**batch)
        return LOSS  # your loss

    loss, gradients = nnx.value_and_grad(loss_of)(model)
    optimizer.update(model, gradients)
    return loss


model.train()
for step in range(3):
    print(step, train_step(model, optimizer, batch, target))
model.eval()
"""
