"""PPO of a Mamba with a bandit's baseline turned critic: a linear value function on its hidden states."""
import random
from typing import NamedTuple

import torch
from torch import Tensor, nn
from transformers import MambaConfig, MambaForCausalLM


class Rollout(NamedTuple):
    ids: Tensor
    logp: Tensor
    value: Tensor
    advantage: Tensor
    ret: Tensor
    reward: Tensor


class MambaActorCritic(nn.Module):
    def __init__(self, cfg: MambaConfig):
        super().__init__()
        self.mamba = MambaForCausalLM(cfg)
        self.critic = nn.Linear(cfg.hidden_size, 1)
        nn.init.zeros_(self.critic.weight)
        nn.init.zeros_(self.critic.bias)

    def forward(self, ids):
        out = self.mamba(input_ids=ids, output_hidden_states=True)
        return out.logits, self.critic(out.hidden_states[-1])[..., 0]


class PPO:
    def __init__(self, seed=23, prompt=4, new=6, batch=12, vocab=14):
        random.seed(seed)
        torch.manual_seed(seed)
        torch.set_num_threads(1)
        self.prompt, self.new, self.batch, self.vocab = prompt, new, batch, vocab
        cfg = MambaConfig(vocab_size=vocab, hidden_size=24, state_size=4, num_hidden_layers=2, time_step_rank=4,
                          pad_token_id=0, bos_token_id=0, eos_token_id=0)
        self.agent = MambaActorCritic(cfg)
        self.anchor = MambaForCausalLM(cfg).requires_grad_(False)
        self.anchor.load_state_dict(self.agent.mamba.state_dict())
        self.optimizer = torch.optim.Adam(self.agent.parameters(), lr=2e-3)
        self.scheduler = torch.optim.lr_scheduler.ReduceLROnPlateau(self.optimizer, mode="max", factor=0.5, patience=1)

    def reward(self, ids):
        """The share of new tokens below the prompt's mean."""
        mean = ids[:, :self.prompt].float().mean(1, keepdim=True)
        return (ids[:, self.prompt:].float() < mean).float().mean(1)

    def logp_value(self, ids):
        logits, value = self.agent(ids)
        logp = logits[:, self.prompt - 1:-1].log_softmax(2)
        return torch.gather(logp, 2, ids[:, self.prompt:, None])[..., 0], value[:, self.prompt - 1:-1]

    @torch.no_grad()
    def rollout(self) -> Rollout:
        ids = torch.tensor([[random.randrange(1, self.vocab) for _ in range(self.prompt)] for _ in range(self.batch)])
        for _ in range(self.new):
            logits, _ = self.agent(ids)
            logits[:, -1, 0] = float("-inf")  # never the padding
            ids = torch.cat([ids, torch.multinomial(logits[:, -1].softmax(-1), 1)], 1)
        logp, value = self.logp_value(ids)
        anchor = self.anchor(input_ids=ids).logits[:, self.prompt - 1:-1].log_softmax(2)
        anchor = torch.gather(anchor, 2, ids[:, self.prompt:, None])[..., 0]
        reward = self.reward(ids)
        per_token = -0.05 * (logp - anchor)
        per_token[:, -1] = per_token[:, -1] + reward
        advantage, carry = torch.zeros_like(value), torch.zeros(self.batch)
        for t in reversed(range(self.new)):
            following = value[:, t + 1] if t < self.new - 1 else torch.zeros(self.batch)
            carry = per_token[:, t] + following - value[:, t] + 0.95 * carry
            advantage[:, t] = carry
        return Rollout(ids, logp, value, advantage, advantage + value, reward)

    def loss(self, part: Rollout):
        logp, value = self.logp_value(part.ids)
        ratio = torch.exp(logp - part.logp)
        advantage = (part.advantage - part.advantage.mean()) / (part.advantage.std() + 1e-8)
        gain = torch.minimum(ratio * advantage, torch.clip(ratio, 0.8, 1.2) * advantage)
        return -gain.mean() + 0.5 * torch.nn.functional.mse_loss(value, part.ret)

    def update(self, rollout: Rollout, epochs=2, size=6):
        for _ in range(epochs):
            order = list(range(self.batch))
            random.shuffle(order)
            for k in range(0, self.batch, size):
                part = Rollout(*(field[order[k:k + size]] for field in rollout))
                loss = self.loss(part)
                self.optimizer.zero_grad()
                loss.backward()
                nn.utils.clip_grad_norm_(self.agent.parameters(), 1.0)
                self.optimizer.step()
        return loss.item()

    def learn(self, iterations):
        for i in range(iterations):
            rollout = self.rollout()
            loss = self.update(rollout)
            mean = rollout.reward.mean().item()
            self.scheduler.step(mean)
            print(f"{i}: reward {mean:.3f} loss {loss:.4f} lr {self.optimizer.param_groups[0]['lr']:.1e}")


if __name__ == "__main__":
    PPO().learn(6)
