"""MambaForCausalLM in Flax, ported from transformers.models.mamba.modeling_mamba."""

from __future__ import annotations

import math
from collections.abc import Sequence
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
from flax import linen as nn
from jax import Array
from jax.typing import DTypeLike

from .config import MambaForCausalLMConfig


def torch_uniform(key: Any, shape: Sequence[int], dtype: Any) -> Array:
    """torch's default for the weight of a Linear or a Conv: uniform within 1 / sqrt(fan_in)."""
    return nn.initializers.variance_scaling(1 / 3, "fan_in", "uniform")(key, shape, dtype)


def uniform_between(low: float, high: float) -> nn.initializers.Initializer:
    """Draws between two numbers."""
    return lambda key, shape, dtype: jax.random.uniform(key, shape, dtype, low, high)


def uniform_within(bound: float) -> nn.initializers.Initializer:
    """Draws between -bound and bound."""
    return lambda key, shape, dtype: jax.random.uniform(key, shape, dtype, -bound, bound)


def weights_of(layer: Any, *shape: int) -> Any:
    """The parameters of a layer that is not called here: `init` makes them by a call of this shape."""
    if layer.is_initializing() and "params" not in layer.variables:
        layer(jnp.zeros(shape))
    return layer.variables["params"]


class Module(nn.Module, kw_only=True):
    """A module of this model.

    Attributes:
        dtype: dtype of the computation, or None for that of the weights and inputs.
        param_dtype: dtype of the weights that `init` makes.
        precision: precision of the matrix products in layers.
    """

    dtype: DTypeLike | None = None
    param_dtype: DTypeLike = jnp.float32
    precision: jax.lax.PrecisionLike = None

    @property
    def dtypes(self) -> dict[str, Any]:
        return {"dtype": self.dtype, "param_dtype": self.param_dtype}

    @property
    def numerics(self) -> dict[str, Any]:
        return {**self.dtypes, "precision": self.precision}

    def cast_param(self, name: str, init: Any, shape: tuple[int, ...]) -> Array:
        """A weight in the dtype of the computation."""
        return jnp.asarray(self.param(name, init, shape, self.param_dtype), self.dtype)


def apply_mask_to_padding_states(hidden_states: Array, attention_mask: Array | None) -> Array:
    """Tunes out the hidden states for padding tokens, see https://github.com/state-
    spaces/mamba/issues/66"""
    return hidden_states if attention_mask is None else hidden_states * attention_mask[..., None]


def causal_conv1d_fn(hidden_states: Array, bias: Array, hidden_states_B_C: Array) -> Array:
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
    ssm_state: Array, discrete_A: Array, deltaB_u: Array, C: Array
) -> tuple[Array, Array]:
    # State calculation
    ssm_state = discrete_A * ssm_state + deltaB_u
    # Subsequent output
    scan_output = ssm_state.astype(C.dtype) @ C[..., None]
    hidden = scan_output[..., 0]
    return ssm_state, hidden


def mamba_selective_scan(
    hidden_states: Array,
    dt: Array,
    A: Array,
    B: Array,
    C: Array,
    D: Array,
    z: Array,
    delta_bias: Array,
) -> Array:
    dt = dt + delta_bias.astype(hidden_states.dtype)[..., None]
    dt = jax.nn.softplus(dt)
    # We need to transpose on the basis of the original kernel layout
    B = B.swapaxes(1, 2)
    C = C.swapaxes(1, 2)
    # Discretize A and B for the entire sequence
    discrete_A = dt[..., None]
    discrete_A_2 = jnp.exp(A[None, :, None] * discrete_A)
    discrete_B = discrete_A * B[:, None].astype(jnp.float32)
    deltaB_u = discrete_B * hidden_states[..., None].astype(jnp.float32)
    # "Initial hidden state" is not supported by the kernel path, so use
    # the same zero initialization as the kernel
    ssm_state = jnp.zeros((*hidden_states.shape[:2], A.shape[1]), hidden_states.dtype)
    # State calculation
    _, result = jax.lax.scan(
        lambda state, turn: mamba_selective_scan_step(state, *turn),
        ssm_state.astype(jnp.float32),
        (jnp.moveaxis(discrete_A_2, 2, 0), jnp.moveaxis(deltaB_u, 2, 0), C.swapaxes(0, 1)),
    )
    scan_output = jnp.moveaxis(result, 0, 2)
    scan_output = scan_output + hidden_states * D[None][..., None]
    return scan_output * jax.nn.silu(z)


class MambaRMSNorm(Module):
    config: MambaForCausalLMConfig

    def setup(self) -> None:
        self.weight = self.cast_param("weight", nn.initializers.ones, (self.config.hidden_size,))

    def __call__(self, hidden_states: Array) -> Array:
        input_dtype = hidden_states.dtype
        hidden_states = hidden_states.astype(jnp.float32)
        variance = jnp.square(hidden_states).mean(axis=-1, keepdims=True)
        hidden_states = hidden_states * jax.lax.rsqrt(variance + self.config.layer_norm_epsilon)
        return self.weight * hidden_states.astype(input_dtype)


class MambaRMSNorm2(Module):
    config: MambaForCausalLMConfig

    def setup(self) -> None:
        self.weight = self.cast_param("weight", nn.initializers.ones, (self.config.hidden_size,))

    def __call__(self, hidden_states: Array) -> Array:
        variance = jnp.square(hidden_states).mean(axis=-1, keepdims=True)
        hidden_states = hidden_states * jax.lax.rsqrt(variance + self.config.layer_norm_epsilon)
        return self.weight * hidden_states


class MambaMixer(Module):
    """Compute ∆, A, B, C, and D the state space parameters and compute the
    `contextualized_states`."""

    config: MambaForCausalLMConfig

    def setup(self) -> None:
        self.A_log = self.param(
            "A_log",
            lambda key, shape, dtype: jnp.broadcast_to(
                jnp.log(jnp.arange(1, shape[-1] + 1)), shape
            ),
            (self.config.intermediate_size, self.config.state_size),
            self.param_dtype,
        )
        self.D = self.param(
            "D", nn.initializers.ones, (self.config.intermediate_size,), self.param_dtype
        )
        self.conv1d = nn.Conv(
            self.config.intermediate_size,
            kernel_size=(self.config.conv_kernel,),
            padding=((self.config.conv_kernel - 1, self.config.conv_kernel - 1),),
            feature_group_count=self.config.intermediate_size,
            kernel_init=torch_uniform,
            **self.numerics,
        )
        dense: Any = partial(nn.Dense, use_bias=False, **self.numerics)
        init = nn.initializers.normal(self.config.initializer_range)
        self.in_proj = dense(self.config.intermediate_size * 2, kernel_init=init)
        self.x_proj = dense(
            self.config.time_step_rank + self.config.state_size * 2, kernel_init=init
        )
        self.dt_proj = nn.Dense(
            self.config.intermediate_size,
            kernel_init=uniform_within(
                self.config.time_step_rank**-0.5 * self.config.time_step_scale
            ),
            bias_init=lambda key, shape, dtype: (
                (
                    x := jnp.maximum(
                        jnp.exp(
                            uniform_between(
                                math.log(self.config.time_step_min),
                                math.log(self.config.time_step_max)
                                - math.log(self.config.time_step_min)
                                + math.log(self.config.time_step_min),
                            )(key, shape, dtype)
                        ),
                        0.0001,
                    )
                )
                + jnp.log(-jnp.expm1(-x))
            ),
            **self.numerics,
        )
        self.out_proj = dense(self.config.hidden_size, kernel_init=torch_uniform)

    def __call__(self, hidden_states: Array, attention_mask: Array | None) -> Array:
        dtype = hidden_states.dtype
        # 1. Gated MLP's linear projection
        hidden_states = apply_mask_to_padding_states(hidden_states, attention_mask)
        projected_states = self.in_proj(hidden_states).swapaxes(1, 2)
        A = -jnp.exp(self.A_log.astype(jnp.float32))
        hidden_states_B_C, gate = jnp.split(projected_states, 2, axis=1)
        hidden_states_B_C_2 = jnp.asarray(
            weights_of(self.conv1d, 1, 4, self.config.intermediate_size)["kernel"].transpose(
                (2, 1, 0)
            ),
            self.dtype,
        ).squeeze(1)
        hidden_states_B_C = causal_conv1d_fn(
            hidden_states_B_C_2,
            jnp.asarray(
                weights_of(self.conv1d, 1, 4, self.config.intermediate_size)["bias"], self.dtype
            ),
            hidden_states_B_C,
        )
        # 3. SSM transformation
        hidden_states_B_C = apply_mask_to_padding_states(
            hidden_states_B_C.swapaxes(1, 2), attention_mask
        )
        time_step = self.x_proj(hidden_states_B_C)
        time_step, B, C = jnp.split(
            time_step,
            [self.config.time_step_rank, self.config.time_step_rank + self.config.state_size],
            axis=-1,
        )
        time_step = jnp.asarray(
            weights_of(self.dt_proj, 1, self.config.time_step_rank)["kernel"].T, self.dtype
        ) @ time_step.swapaxes(1, 2)
        time_proj_bias = weights_of(self.dt_proj, 1, self.config.time_step_rank)["bias"].astype(
            jnp.float32
        )
        scan_result = hidden_states_B_C.swapaxes(1, 2)
        scan_output = scan_result
        scan_result = B.swapaxes(1, 2)
        scan_result_2 = C.swapaxes(1, 2)
        scan_result_3 = self.D.astype(jnp.float32)
        scan_result = mamba_selective_scan(
            scan_output,
            time_step,
            A,
            scan_result,
            scan_result_2,
            scan_result_3,
            gate,
            time_proj_bias,
        )
        # 4. Final linear projection
        return self.out_proj(scan_result.swapaxes(1, 2).astype(dtype))


class MambaBlock(Module):
    config: MambaForCausalLMConfig

    def setup(self) -> None:
        self.norm = MambaRMSNorm(self.config, **self.numerics)
        self.mixer = MambaMixer(self.config, **self.numerics)

    def __call__(
        self, hidden_states: Array, attention_mask: Array | None, dtype: DTypeLike | None = None
    ) -> Array:
        residual = hidden_states
        if dtype is not None:
            hidden_states = self.norm(hidden_states.astype(dtype))
        else:
            hidden_states = self.norm(hidden_states)
            residual = residual.astype(jnp.float32)
        hidden_states = self.mixer(hidden_states, attention_mask)
        return residual + hidden_states


class MambaModel(Module):
    """The bare Mamba Model outputting raw hidden-states without any specific head on top."""

    config: MambaForCausalLMConfig

    def setup(self) -> None:
        init = nn.initializers.normal(self.config.initializer_range)
        self.embeddings = nn.Embed(
            self.config.vocab_size, self.config.hidden_size, embedding_init=init, **self.dtypes
        )
        self.layers = [MambaBlock(self.config, **self.numerics) for _ in range(2)]
        self.norm_f = MambaRMSNorm2(self.config, **self.numerics)

    def __call__(self, input_ids: Array, attention_mask: Array | None) -> Array:
        inputs_embeds = self.embeddings(input_ids)
        hidden_states = self.layers[0](inputs_embeds, attention_mask)
        hidden_states = self.layers[1](hidden_states, attention_mask, dtype=inputs_embeds.dtype)
        return self.norm_f(hidden_states)


class MambaForCausalLM(Module):
    """The MAMBA Model transformer with a language modeling head on top (linear layer with
    weights tied to the input embeddings)."""

    config: MambaForCausalLMConfig

    def setup(self) -> None:
        self.backbone = MambaModel(self.config, **self.numerics)

    def __call__(
        self, input_ids: Array, attention_mask: Array | None = None, deterministic: bool = True
    ) -> dict[str, Array]:
        if not deterministic:
            raise NotImplementedError(
                "training is not in this port: training and evaluation differ (modeling_mamba.py:496)"
            )
        mamba_outputs = self.backbone(input_ids, attention_mask)
        logits = self.backbone.embeddings.attend(
            mamba_outputs.astype(self.dtype or self.param_dtype)
        ).astype(jnp.float32)
        return {"logits": logits}
