"""PPO for Qwen3 with the algorithm's core as functions of tensors and a dict as batch, after verl."""
import collections
import math

import torch
import torch.nn.functional as F
from torch import nn
from transformers import Qwen3Config, Qwen3ForCausalLM, Qwen3ForTokenClassification

CONFIG = dict(
    seed=21, iterations=6, prompts=12, prompt_length=6, response_length=8,
    actor=dict(lr=8e-4, clip_ratio_low=0.2, clip_ratio_high=0.28, entropy_coeff=0.01, ppo_epochs=1, mini_batch=6, grad_clip=1.0),
    critic=dict(lr=2e-3, cliprange_value=0.5, grad_clip=1.0),
    algorithm=dict(gamma=1.0, lam=0.97, kl_coef=0.02),
)
PAD, EOS = 0, 1


# ---------------------------------------------------------------- core algorithms
def masked_mean(values, mask, axis=None):
    return (values * mask).sum(axis) / (mask.sum(axis) + 1e-8)


def masked_whiten(values, mask):
    mean = masked_mean(values, mask)
    var = masked_mean((values - mean) ** 2, mask)
    count = mask.sum()
    var = var * count / (count - 1)  # the unbiased one
    return (values - mean) * torch.rsqrt(var + 1e-8)


def compute_gae_advantage_return(token_level_rewards, values, response_mask, gamma, lam):
    with torch.no_grad():
        nextvalues, lastgaelam = 0, 0
        advantages_reversed = []
        for t in reversed(range(token_level_rewards.shape[-1])):
            delta = token_level_rewards[:, t] + gamma * nextvalues - values[:, t]
            lastgaelam_ = delta + gamma * lam * lastgaelam
            # what comes after the end is skipped
            nextvalues = values[:, t] * response_mask[:, t] + (1 - response_mask[:, t]) * nextvalues
            lastgaelam = lastgaelam_ * response_mask[:, t] + (1 - response_mask[:, t]) * lastgaelam
            advantages_reversed.append(lastgaelam)
        advantages = torch.stack(advantages_reversed[::-1], dim=1)
        returns = advantages + values
        return masked_whiten(advantages, response_mask), returns


def compute_policy_loss(old_log_prob, log_prob, advantages, response_mask, low, high):
    ratio = torch.exp(log_prob - old_log_prob)
    losses = torch.maximum(-advantages * ratio, -advantages * torch.clamp(ratio, 1 - low, 1 + high))
    return masked_mean(losses, response_mask)


def compute_value_loss(vpreds, values, returns, response_mask, cliprange_value):
    vpredclipped = torch.clamp(vpreds, values - cliprange_value, values + cliprange_value)
    losses = torch.max((vpreds - returns) ** 2, (vpredclipped - returns) ** 2)
    return 0.5 * masked_mean(losses, response_mask)


def entropy_from_logits(logits):
    pd = F.softmax(logits, dim=-1)
    return torch.logsumexp(logits, dim=-1) - torch.sum(pd * logits, dim=-1)


# ---------------------------------------------------------------- workers
def response_logits(model, data):
    output = model(input_ids=data["input_ids"], attention_mask=data["attention_mask"], position_ids=data["position_ids"])
    n = data["responses"].shape[1]
    return output.logits[:, -n - 1:-1]


def log_probs(logits, responses):
    return -F.cross_entropy(logits.transpose(1, 2), responses, reduction="none")


def sample(actor, prompts, length):
    """Sampling with a key-value cache."""
    ids, cache, finished = prompts, None, torch.zeros(len(prompts), dtype=torch.bool)
    step_input = prompts
    for _ in range(length):
        out = actor(input_ids=step_input, past_key_values=cache, use_cache=True)
        cache = out.past_key_values
        token = torch.distributions.Categorical(logits=out.logits[:, -1]).sample()
        token = torch.where(finished, PAD, token)
        finished |= token == EOS
        ids = torch.cat([ids, token[:, None]], 1)
        step_input = token[:, None]
    return ids


def reward_function(responses, mask):
    """How often a token is larger than the one before it."""
    rising = (responses[:, 1:] > responses[:, :-1]).float() * mask[:, 1:]
    return rising.sum(1) / mask.shape[1]


def rollout(actor, critic, ref, cfg):
    data = {}
    prompts = torch.randint(2, 26, (cfg["prompts"], cfg["prompt_length"]))
    with torch.no_grad():
        data["input_ids"] = sample(actor, prompts, cfg["response_length"])
        data["responses"] = data["input_ids"][:, cfg["prompt_length"]:]
        ended = (data["responses"] == EOS).long()
        data["response_mask"] = ((ended.cumsum(1) - ended) == 0).float()
        data["attention_mask"] = torch.cat([torch.ones_like(prompts), data["response_mask"].long()], 1)
        data["position_ids"] = torch.arange(data["input_ids"].shape[1]).expand_as(data["input_ids"])
        data["old_log_probs"] = log_probs(response_logits(actor, data), data["responses"])
        ref_log_probs = log_probs(response_logits(ref, data), data["responses"])
        data["values"] = response_logits(critic, data).squeeze(-1) * data["response_mask"]
        data["scores"] = reward_function(data["responses"], data["response_mask"])
        rewards = -cfg["algorithm"]["kl_coef"] * (data["old_log_probs"] - ref_log_probs) * data["response_mask"]
        last = data["response_mask"].sum(1).long() - 1
        rewards[torch.arange(len(last)), last] += data["scores"]
    data["advantages"], data["returns"] = compute_gae_advantage_return(
        rewards, data["values"], data["response_mask"], cfg["algorithm"]["gamma"], cfg["algorithm"]["lam"])
    return data


def split(data, size):
    for start in range(0, len(data["input_ids"]), size):
        yield {key: value[start:start + size] for key, value in data.items()}


def update_critic(critic, optimizer, data, cfg):
    for mini in split(data, cfg["actor"]["mini_batch"]):
        vpreds = response_logits(critic, mini).squeeze(-1)
        loss = compute_value_loss(vpreds, mini["values"], mini["returns"], mini["response_mask"], cfg["critic"]["cliprange_value"])
        optimizer.zero_grad()
        loss.backward()
        nn.utils.clip_grad_norm_(critic.parameters(), cfg["critic"]["grad_clip"])
        optimizer.step()
    return loss.item()


def update_actor(actor, optimizer, data, cfg):
    for _ in range(cfg["actor"]["ppo_epochs"]):
        for mini in split(data, cfg["actor"]["mini_batch"]):
            logits = response_logits(actor, mini)
            new_log_probs = log_probs(logits, mini["responses"])
            pg_loss = compute_policy_loss(mini["old_log_probs"], new_log_probs, mini["advantages"], mini["response_mask"],
                                          cfg["actor"]["clip_ratio_low"], cfg["actor"]["clip_ratio_high"])
            entropy = masked_mean(entropy_from_logits(logits), mini["response_mask"])
            loss = pg_loss - cfg["actor"]["entropy_coeff"] * entropy
            optimizer.zero_grad()
            loss.backward()
            nn.utils.clip_grad_norm_(actor.parameters(), cfg["actor"]["grad_clip"])
            optimizer.step()
    return pg_loss.item(), entropy.item()


def fit(cfg):
    torch.manual_seed(cfg["seed"])
    torch.set_num_threads(1)
    shape = Qwen3Config(vocab_size=26, hidden_size=32, intermediate_size=48, num_hidden_layers=2, num_attention_heads=4,
                        num_key_value_heads=2, head_dim=8, max_position_embeddings=32, pad_token_id=PAD, bos_token_id=None,
                        eos_token_id=EOS)
    actor, ref = Qwen3ForCausalLM(shape), Qwen3ForCausalLM(shape).eval()
    ref.load_state_dict(actor.state_dict())
    shape.num_labels = 1
    shape.classifier_dropout = 0.0
    critic = Qwen3ForTokenClassification(shape)
    actor_optimizer = torch.optim.AdamW(actor.parameters(), lr=cfg["actor"]["lr"], weight_decay=0.01)
    critic_optimizer = torch.optim.AdamW(critic.parameters(), lr=cfg["critic"]["lr"], weight_decay=0.01)
    history = collections.deque(maxlen=3)
    for iteration in range(cfg["iterations"]):
        data = rollout(actor, critic, ref, cfg)
        critic_loss = update_critic(critic, critic_optimizer, data, cfg)
        pg_loss, entropy = update_actor(actor, actor_optimizer, data, cfg)
        history.append(data["scores"].mean().item())
        assert math.isfinite(critic_loss)
        print(f"iteration {iteration} score {history[-1]:.3f} pg {pg_loss:.4f} vf {critic_loss:.4f} entropy {entropy:.3f}")


if __name__ == "__main__":
    fit(CONFIG)
