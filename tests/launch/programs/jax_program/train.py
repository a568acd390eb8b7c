"""Train a small model in JAX on all hosts, resume by orbax with the position of the data."""

import argparse
import os
import signal
import sys
import time

import jax
import jax.numpy as jnp
import orbax.checkpoint as ocp
from model import loss_of

PREEMPTED = 75


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--run", required=True)
    parser.add_argument("--steps", type=int, default=30)
    parser.add_argument("--pause", type=float, default=0.05)
    options = parser.parse_args()
    if int(os.environ["HOST_COUNT"]) > 1:
        jax.distributed.initialize(
            os.environ["COORDINATOR_ADDRESS"],
            int(os.environ["HOST_COUNT"]),
            int(os.environ["HOST_INDEX"]),
        )
    asked = []
    signal.signal(signal.SIGTERM, lambda *_: asked.append(True))
    state = {"weights": jnp.zeros(4), "losses": jnp.zeros(options.steps), "step": 0}
    step_of = jax.jit(jax.value_and_grad(loss_of))
    with ocp.CheckpointManager(
        options.run, options=ocp.CheckpointManagerOptions(max_to_keep=2)
    ) as kept:
        if (newest := kept.latest_step()) is not None:
            state = kept.restore(newest, args=ocp.args.StandardRestore(state))
        for step in range(int(state["step"]), options.steps):
            key = jax.random.fold_in(jax.random.key(0), step)  # the data's position is the step
            loss, gradient = step_of(state["weights"], jax.random.normal(key, (8, 4)))
            state["weights"] = state["weights"] - 0.1 * gradient
            state["losses"] = state["losses"].at[step].set(loss)
            state["step"] = step + 1
            print(f"step {step + 1}", flush=True)
            if asked:
                kept.save(step + 1, args=ocp.args.StandardSave(state))
                kept.wait_until_finished()
                sys.exit(PREEMPTED)
            time.sleep(options.pause)  # slow: a step, to be preempted in
    print("losses", *(f"{loss:.9g}" for loss in state["losses"].tolist()), flush=True)


if __name__ == "__main__":
    main()
