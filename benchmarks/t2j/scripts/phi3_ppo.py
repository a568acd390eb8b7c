"""PPO for Phi-3 with a shared trunk, several environments' worth of prompts and early stopping by KL."""
from dataclasses import dataclass, asdict

import numpy as np
import torch
from torch import nn, optim
from transformers import Phi3Config, Phi3Model


@dataclass
class PPOConfig:
    seed: int = 12
    iterations: int = 6
    n_prompts: int = 16
    prompt_len: int = 4
    horizon: int = 8
    update_epochs: int = 3
    minibatch_size: int = 8
    lr: float = 1e-3
    gamma: float = 1.0
    gae_lambda: float = 0.9
    clip_coef: float = 0.2
    ent_coef: float = 0.01
    vf_coef: float = 0.5
    ref_coef: float = 0.05
    max_grad_norm: float = 0.5
    target_kl: float = 0.2


class ActorCritic(nn.Module):
    """One trunk, two heads."""

    def __init__(self, config):
        super().__init__()
        self.trunk = Phi3Model(config)
        self.actor = nn.Linear(config.hidden_size, config.vocab_size, bias=False)
        self.critic = nn.Linear(config.hidden_size, 1)
        nn.init.orthogonal_(self.actor.weight, gain=0.01)
        nn.init.orthogonal_(self.critic.weight, gain=1.0)
        nn.init.zeros_(self.critic.bias)

    def forward(self, tokens):
        hidden = self.trunk(input_ids=tokens, use_cache=False).last_hidden_state
        return self.actor(hidden), self.critic(hidden).squeeze(-1)


class BalanceTask:
    """The sum of a sequence should end as near to zero as possible; token t counts t - 10."""

    vocab = 21

    def __init__(self, seed):
        self.rng = np.random.RandomState(seed)

    def reset(self, n, length):
        return torch.from_numpy(self.rng.randint(0, self.vocab, (n, length)))

    def score(self, tokens):
        total = (tokens - 10).sum(1).abs().float()
        return 1.0 - total / 20


class Buffer:
    def __init__(self, cfg):
        shape = (cfg.n_prompts, cfg.horizon)
        self.cfg = cfg
        self.logp, self.value, self.reward = (torch.zeros(shape) for _ in range(3))
        self.advantage, self.ret = torch.zeros(shape), torch.zeros(shape)
        self.tokens = None

    def finish(self):
        last = torch.zeros(self.cfg.n_prompts)
        for t in reversed(range(self.cfg.horizon)):
            following = 0.0 if t == self.cfg.horizon - 1 else self.value[:, t + 1]
            delta = self.reward[:, t] + self.cfg.gamma * following - self.value[:, t]
            last = delta + self.cfg.gamma * self.cfg.gae_lambda * last
            self.advantage[:, t] = last
        self.ret = self.advantage + self.value


@torch.no_grad()
def run_policy(agent, reference, task, cfg):
    buffer = Buffer(cfg)
    tokens = task.reset(cfg.n_prompts, cfg.prompt_len)
    for t in range(cfg.horizon):
        logits, value = agent(tokens)
        dist = torch.distributions.Categorical(logits=logits[:, -1])
        action = dist.sample()
        buffer.logp[:, t] = dist.log_prob(action)
        buffer.value[:, t] = value[:, -1]
        ref = reference(tokens)[0][:, -1].log_softmax(-1).gather(1, action[:, None]).squeeze(1)
        buffer.reward[:, t] = -cfg.ref_coef * (buffer.logp[:, t] - ref)
        tokens = torch.cat([tokens, action[:, None]], dim=1)
    buffer.reward[:, -1] += task.score(tokens)
    buffer.tokens = tokens
    buffer.finish()
    return buffer, task.score(tokens).mean().item()


def minibatch_loss(agent, cfg, tokens, old_logp, old_value, advantage, ret):
    logits, value = agent(tokens)
    dist = torch.distributions.Categorical(logits=logits[:, cfg.prompt_len - 1:-1])
    logratio = dist.log_prob(tokens[:, cfg.prompt_len:]) - old_logp
    ratio = logratio.exp()
    with torch.no_grad():
        approx_kl = ((ratio - 1) - logratio).mean()
    advantage = (advantage - advantage.mean()) / (advantage.std() + 1e-8)
    pg_loss = torch.max(-advantage * ratio, -advantage * ratio.clamp(1 - cfg.clip_coef, 1 + cfg.clip_coef)).mean()
    new_value = value[:, cfg.prompt_len - 1:-1]
    clipped = old_value + (new_value - old_value).clamp(-cfg.clip_coef, cfg.clip_coef)
    v_loss = 0.5 * torch.max((new_value - ret) ** 2, (clipped - ret) ** 2).mean()
    return pg_loss - cfg.ent_coef * dist.entropy().mean() + cfg.vf_coef * v_loss, approx_kl


def learn(agent, optimizer, buffer, cfg):
    rows = np.arange(cfg.n_prompts)
    for epoch in range(cfg.update_epochs):
        np.random.shuffle(rows)
        for start in range(0, cfg.n_prompts, cfg.minibatch_size):
            idx = torch.from_numpy(rows[start:start + cfg.minibatch_size].copy())
            loss, approx_kl = minibatch_loss(agent, cfg, buffer.tokens[idx], buffer.logp[idx], buffer.value[idx],
                                             buffer.advantage[idx], buffer.ret[idx])
            optimizer.zero_grad()
            loss.backward()
            nn.utils.clip_grad_norm_(agent.parameters(), cfg.max_grad_norm)
            optimizer.step()
        if approx_kl > cfg.target_kl:
            break
    return loss.item(), approx_kl.item(), epoch + 1


def main(cfg: PPOConfig):
    print(asdict(cfg))
    np.random.seed(cfg.seed)
    torch.manual_seed(cfg.seed)
    torch.set_num_threads(1)
    task = BalanceTask(cfg.seed)
    config = Phi3Config(vocab_size=task.vocab, hidden_size=32, intermediate_size=64, num_hidden_layers=2, num_attention_heads=4,
                        num_key_value_heads=4, max_position_embeddings=16, pad_token_id=None, bos_token_id=None, eos_token_id=None)
    agent, reference = ActorCritic(config), ActorCritic(config)
    reference.load_state_dict(agent.state_dict())
    reference.requires_grad_(False)
    optimizer = optim.Adam(agent.parameters(), lr=cfg.lr, eps=1e-5)
    schedule = optim.lr_scheduler.LinearLR(optimizer, start_factor=1.0, end_factor=0.2, total_iters=cfg.iterations)
    for iteration in range(cfg.iterations):
        buffer, score = run_policy(agent, reference, task, cfg)
        loss, kl, epochs = learn(agent, optimizer, buffer, cfg)
        schedule.step()
        print(f"iteration {iteration}: score {score:.3f} loss {loss:.4f} kl {kl:.4f} epochs {epochs}")


if __name__ == "__main__":
    main(PPOConfig())
