"""PPO with an actor and a critic that are models of their own (Qwen2), each with an optimizer.

Experience is made by sampling, kept in a replay buffer and used for some epochs, as in OpenRLHF.
"""
import random
from dataclasses import dataclass
from typing import List

import torch
import torch.nn as nn
import torch.nn.functional as F
from torch.utils.data import DataLoader
from transformers import Qwen2Config, Qwen2ForCausalLM, Qwen2Model


@dataclass
class Experience:
    sequences: torch.Tensor
    action_log_probs: torch.Tensor
    values: torch.Tensor
    returns: torch.Tensor
    advantages: torch.Tensor
    action_mask: torch.Tensor


class Actor(nn.Module):
    def __init__(self, config):
        super().__init__()
        self.model = Qwen2ForCausalLM(config)

    def forward(self, sequences, num_actions):
        logits = self.model(sequences).logits
        log_probs = F.log_softmax(logits[:, :-1, :], dim=-1)
        taken = log_probs.gather(dim=-1, index=sequences[:, 1:].unsqueeze(-1)).squeeze(-1)
        return taken[:, -num_actions:]

    @torch.no_grad()
    def generate(self, prompts, max_new_tokens, eos):
        self.eval()
        sequences = self.model.generate(prompts, max_new_tokens=max_new_tokens, min_new_tokens=max_new_tokens,
                                        do_sample=True, top_k=0, eos_token_id=eos, pad_token_id=0)
        self.train()
        return sequences


class Critic(nn.Module):
    def __init__(self, config):
        super().__init__()
        self.backbone = Qwen2Model(config)
        self.value_head = nn.Linear(config.hidden_size, 1, bias=False)

    def forward(self, sequences, num_actions):
        hidden = self.backbone(sequences).last_hidden_state
        return self.value_head(hidden).squeeze(-1)[:, :-1][:, -num_actions:]


def masked_mean(tensor, mask):
    return (tensor * mask).sum() / mask.sum()


class PolicyLoss(nn.Module):
    def __init__(self, clip_eps=0.2):
        super().__init__()
        self.clip_eps = clip_eps

    def forward(self, log_probs, old_log_probs, advantages, action_mask):
        ratio = (log_probs - old_log_probs).exp()
        surr1 = ratio * advantages
        surr2 = ratio.clamp(1 - self.clip_eps, 1 + self.clip_eps) * advantages
        return masked_mean(-torch.min(surr1, surr2), action_mask)


class ValueLoss(nn.Module):
    def __init__(self, clip_eps=0.2):
        super().__init__()
        self.clip_eps = clip_eps

    def forward(self, values, old_values, returns, action_mask):
        clipped = old_values + (values - old_values).clamp(-self.clip_eps, self.clip_eps)
        loss = torch.max((clipped - returns) ** 2, (values - returns) ** 2)
        return 0.5 * masked_mean(loss, action_mask)


class PPOTrainer:
    gamma, lambd, kl_coef, max_epochs, micro_batch = 1.0, 0.95, 0.05, 2, 8

    def __init__(self, actor, critic, initial_model, reward_fn, actor_lr=5e-4, critic_lr=2e-3):
        self.actor, self.critic, self.initial_model, self.reward_fn = actor, critic, initial_model, reward_fn
        self.actor_loss_fn, self.critic_loss_fn = PolicyLoss(), ValueLoss()
        self.actor_optim = torch.optim.AdamW(actor.parameters(), lr=actor_lr, betas=(0.9, 0.95), weight_decay=0.0)
        self.critic_optim = torch.optim.AdamW(critic.parameters(), lr=critic_lr, betas=(0.9, 0.95), weight_decay=0.0)
        self.buffer: List[Experience] = []

    @torch.no_grad()
    def make_experience(self, prompts, num_actions, eos):
        sequences = self.actor.generate(prompts, num_actions, eos)
        actions = sequences[:, -num_actions:]
        ended_before = (actions == eos).cumsum(1) - (actions == eos).long()
        action_mask = (ended_before == 0).float()
        log_probs = self.actor(sequences, num_actions)
        base_log_probs = self.initial_model(sequences, num_actions)
        values = self.critic(sequences, num_actions) * action_mask
        reward = self.reward_fn(actions, action_mask)
        kl = (log_probs - base_log_probs) * action_mask
        last = action_mask.sum(1).long() - 1
        rewards = -self.kl_coef * kl
        rewards[torch.arange(len(rewards)), last] += reward
        advantages = torch.zeros_like(rewards)
        running = torch.zeros(len(rewards))
        for t in range(num_actions - 1, -1, -1):
            following = values[:, t + 1] if t + 1 < num_actions else 0.0
            delta = rewards[:, t] + self.gamma * following - values[:, t]
            running = delta + self.gamma * self.lambd * running
            advantages[:, t] = running
        returns = advantages + values
        mean = masked_mean(advantages, action_mask)
        std = masked_mean((advantages - mean) ** 2, action_mask).sqrt()
        experience = Experience(sequences, log_probs, values, returns, (advantages - mean) / (std + 1e-8), action_mask)
        self.buffer.append(experience)
        return reward

    def items(self):
        fields = Experience.__dataclass_fields__
        return [Experience(**{f: getattr(e, f)[i] for f in fields}) for e in self.buffer for i in range(len(e.sequences))]

    @staticmethod
    def collate(items):
        return Experience(**{f: torch.stack([getattr(i, f) for i in items]) for f in Experience.__dataclass_fields__})

    def ppo_train(self):
        loader = DataLoader(self.items(), batch_size=self.micro_batch, shuffle=True, collate_fn=self.collate)
        status = {}
        for _ in range(self.max_epochs):
            for experience in loader:
                status = self.training_step(experience)
        self.buffer.clear()
        return status

    def training_step(self, experience: Experience):
        num_actions = experience.action_mask.size(1)
        log_probs = self.actor(experience.sequences, num_actions)
        actor_loss = self.actor_loss_fn(log_probs, experience.action_log_probs, experience.advantages,
                                        experience.action_mask)
        self.actor_optim.zero_grad()
        actor_loss.backward()
        nn.utils.clip_grad_norm_(self.actor.parameters(), 1.0)
        self.actor_optim.step()

        values = self.critic(experience.sequences, num_actions)
        critic_loss = self.critic_loss_fn(values, experience.values, experience.returns, experience.action_mask)
        self.critic_optim.zero_grad()
        critic_loss.backward()
        nn.utils.clip_grad_norm_(self.critic.parameters(), 1.0)
        self.critic_optim.step()
        return {"policy_loss": actor_loss.item(), "critic_loss": critic_loss.item()}


def count_even(actions, mask):
    """The share of even tokens among those before the end."""
    return ((actions % 2 == 0).float() * mask).sum(1) / mask.sum(1)


def main(seed=9, episodes=7):
    random.seed(seed)
    torch.manual_seed(seed)
    torch.set_num_threads(1)
    config = Qwen2Config(vocab_size=18, hidden_size=32, intermediate_size=48, num_hidden_layers=2, num_attention_heads=4,
                         num_key_value_heads=2, max_position_embeddings=32, pad_token_id=0, bos_token_id=None, eos_token_id=1)
    actor, critic, initial_model = Actor(config), Critic(config), Actor(config)
    initial_model.load_state_dict(actor.state_dict())
    initial_model.eval().requires_grad_(False)
    trainer = PPOTrainer(actor, critic, initial_model, count_even)
    for episode in range(episodes):
        prompts = torch.tensor([[random.randrange(2, 18) for _ in range(4)] for _ in range(16)])
        reward = trainer.make_experience(prompts, num_actions=8, eos=1)
        status = trainer.ppo_train()
        print(f"episode {episode}: reward {reward.mean():.3f}", " ".join(f"{k} {v:.4f}" for k, v in status.items()))


if __name__ == "__main__":
    main()
