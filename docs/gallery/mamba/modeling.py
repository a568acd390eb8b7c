"""MambaForCausalLM in Flax, ported from transformers.models.mamba.modeling_mamba."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
from flax import linen as nn

from .config import MambaForCausalLMConfig


def weights_of(layer: Any, *shape: int) -> Any:
    """The parameters of a layer that is not called here: `init` makes them by a call of this shape."""
    if layer.is_initializing() and "params" not in layer.variables:
        layer(jnp.zeros(shape))
    return layer.variables["params"]


def causal_conv1d_fn(
    hidden_states: jax.Array, bias: jax.Array, hidden_states_B_C: jax.Array
) -> jax.Array:
    out = hidden_states[:, None]
    out = (
        jax.lax.conv_general_dilated(
            hidden_states_B_C,
            out,
            (1,),
            [(3, 3)],
            dimension_numbers=("NCW", "OIW", "NCW"),
            feature_group_count=48,
        )
        + bias[:, None]
    )
    out = out[..., :9]
    return jax.nn.silu(out)


def mamba_selective_scan_step(
    ssm_state: jax.Array, discrete_A: jax.Array, deltaB_u: jax.Array, C: jax.Array
) -> tuple[jax.Array, jax.Array]:
    # State calculation
    ssm_state = discrete_A * ssm_state + deltaB_u
    # Subsequent output
    scan_output = ssm_state @ C[..., None]
    hidden = scan_output[..., 0]
    return ssm_state, hidden


def mamba_selective_scan(
    dt: jax.Array,
    A: jax.Array,
    D: jax.Array,
    z: jax.Array,
    bias: jax.Array,
    scan_result: jax.Array,
    scan_result_2: jax.Array,
    scan_result_3: jax.Array,
    intermediate_size: int,
) -> jax.Array:
    dt_2 = dt + bias[..., None]
    dt_2 = jax.nn.softplus(dt_2)
    # We need to transpose on the basis of the original kernel layout
    B = scan_result.swapaxes(1, 2)
    C = scan_result_2.swapaxes(1, 2)
    # Discretize A and B for the entire sequence
    discrete_A = dt_2[..., None]
    discrete_A_2 = jnp.exp(A[None][..., None, :] * discrete_A)
    discrete_B = discrete_A * B[:, None]
    deltaB_u = discrete_B * scan_result_3[..., None]
    # "Initial hidden state" is not supported by the kernel path, so use
    # the same zero initialization as the kernel
    ssm_state = jnp.zeros((dt.shape[0], intermediate_size, A.shape[1]), jnp.float32)
    # State calculation
    _, result = jax.lax.scan(
        lambda state, turn: mamba_selective_scan_step(state, *turn),
        ssm_state,
        (jnp.moveaxis(discrete_A_2, 2, 0), jnp.moveaxis(deltaB_u, 2, 0), C.swapaxes(0, 1)),
    )
    scan_output = jnp.moveaxis(result, 0, 2)
    scan_output = scan_output + scan_result_3 * D[None][..., None]
    return scan_output * jax.nn.silu(z)


class MambaRMSNorm(nn.Module):
    config: MambaForCausalLMConfig

    def setup(self) -> None:
        self.weight = self.param("weight", nn.initializers.ones, (self.config.hidden_size,))

    def __call__(self, hidden_states: jax.Array) -> jax.Array:
        variance = jnp.square(hidden_states).mean(axis=-1, keepdims=True)
        hidden_states = hidden_states * jax.lax.rsqrt(variance + self.config.layer_norm_epsilon)
        return self.weight * hidden_states


class MambaMixer(nn.Module):
    """Compute ∆, A, B, C, and D the state space parameters and compute the
    `contextualized_states`."""

    config: MambaForCausalLMConfig

    def setup(self) -> None:
        self.A_log = self.param(
            "A_log",
            nn.initializers.normal(0.02),
            (self.config.intermediate_size, self.config.state_size),
        )
        self.D = self.param("D", nn.initializers.ones, (self.config.intermediate_size,))
        self.conv1d = nn.Conv(
            self.config.intermediate_size,
            kernel_size=(self.config.conv_kernel,),
            padding=((3, 3),),
            feature_group_count=48,
        )
        self.in_proj = nn.Dense(self.config.intermediate_size * 2, use_bias=False)
        self.x_proj = nn.Dense(
            self.config.time_step_rank + self.config.state_size * 2, use_bias=False
        )
        self.dt_proj = nn.Dense(self.config.intermediate_size)
        self.out_proj = nn.Dense(self.config.hidden_size, use_bias=False)

    def __call__(self, hidden_states: jax.Array) -> jax.Array:
        projected_states = self.in_proj(hidden_states).swapaxes(1, 2)
        A = -jnp.exp(self.A_log)
        hidden_states_B_C, gate = jnp.split(projected_states, 2, axis=1)
        hidden_states_B_C_2 = (
            weights_of(self.conv1d, 1, 4, self.config.intermediate_size)["kernel"]
            .transpose((2, 1, 0))
            .squeeze(1)
        )
        hidden_states_B_C = causal_conv1d_fn(
            hidden_states_B_C_2,
            weights_of(self.conv1d, 1, 4, self.config.intermediate_size)["bias"],
            hidden_states_B_C,
        )
        # 3. SSM transformation
        hidden_states_B_C = hidden_states_B_C.swapaxes(1, 2)
        time_step = self.x_proj(hidden_states_B_C)
        time_step, B, C = jnp.split(time_step, [5, 11], axis=-1)
        time_step = weights_of(self.dt_proj, 1, self.config.time_step_rank)[
            "kernel"
        ].T @ time_step.swapaxes(1, 2)
        scan_result = hidden_states_B_C.swapaxes(1, 2)
        scan_output = scan_result
        scan_result = B.swapaxes(1, 2)
        scan_result_2 = C.swapaxes(1, 2)
        scan_result = mamba_selective_scan(
            time_step,
            A,
            self.D,
            gate,
            weights_of(self.dt_proj, 1, self.config.time_step_rank)["bias"],
            scan_result,
            scan_result_2,
            scan_output,
            self.config.intermediate_size,
        )
        # 4. Final linear projection
        return self.out_proj(scan_result.swapaxes(1, 2))


class MambaBlock(nn.Module):
    config: MambaForCausalLMConfig

    def setup(self) -> None:
        self.norm = MambaRMSNorm(self.config)
        self.mixer = MambaMixer(self.config)

    def __call__(self, hidden_states: jax.Array) -> jax.Array:
        residual = hidden_states
        hidden_states = self.norm(hidden_states)
        hidden_states = self.mixer(hidden_states)
        return residual + hidden_states


class MambaModel(nn.Module):
    """The bare Mamba Model outputting raw hidden-states without any specific head on top."""

    config: MambaForCausalLMConfig

    def setup(self) -> None:
        self.embeddings = nn.Embed(self.config.vocab_size, self.config.hidden_size)
        self.layers = [MambaBlock(self.config) for _ in range(self.config.num_hidden_layers)]
        self.norm_f = MambaRMSNorm(self.config)

    def __call__(self, input_ids: jax.Array) -> jax.Array:
        inputs_embeds = self.embeddings(input_ids)
        hidden_states = inputs_embeds
        for layer in self.layers:
            hidden_states = layer(hidden_states)
        return self.norm_f(hidden_states)


class MambaForCausalLM(nn.Module):
    """The MAMBA Model transformer with a language modeling head on top (linear layer with
    weights tied to the input embeddings)."""

    config: MambaForCausalLMConfig

    def setup(self) -> None:
        self.backbone = MambaModel(self.config)

    def __call__(self, input_ids: jax.Array) -> dict[str, jax.Array]:
        mamba_outputs = self.backbone(input_ids)
        logits = self.backbone.embeddings.attend(mamba_outputs)
        return {"logits": logits}
