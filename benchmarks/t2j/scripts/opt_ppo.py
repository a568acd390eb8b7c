"""Step 3 of RLHF in the style of DeepSpeed-Chat: actor, critic, reference and reward models, two optimizers."""
import argparse

import torch
import torch.nn.functional as F
from torch import nn
from transformers import OPTConfig, OPTForCausalLM, OPTModel, get_linear_schedule_with_warmup


class RewardModel(nn.Module):
    """An OPT with a scalar head; a value at each token, and the score at the end."""

    def __init__(self, config):
        super().__init__()
        self.rwtransformer = OPTModel(config)
        self.v_head = nn.Linear(config.word_embed_proj_dim, 1, bias=False)

    def forward_value(self, input_ids, attention_mask, return_value_only=False):
        hidden = self.rwtransformer(input_ids=input_ids, attention_mask=attention_mask).last_hidden_state
        values = self.v_head(hidden).squeeze(-1)
        if return_value_only:
            return values
        return values[:, -1]


def gather_log_probs(logits, labels):
    return F.log_softmax(logits, dim=-1).gather(dim=-1, index=labels.unsqueeze(-1)).squeeze(-1)


class RLHFEngine:
    def __init__(self, args):
        config = OPTConfig(vocab_size=20, hidden_size=32, ffn_dim=64, num_hidden_layers=2, num_attention_heads=4,
                           max_position_embeddings=24, word_embed_proj_dim=32, dropout=0.0, attention_dropout=0.0,
                           pad_token_id=0, bos_token_id=1, eos_token_id=2)
        self.actor, self.ref = OPTForCausalLM(config), OPTForCausalLM(config)
        self.ref.load_state_dict(self.actor.state_dict())
        self.reward = RewardModel(config)
        self.critic = RewardModel(config)
        self.critic.load_state_dict(self.reward.state_dict())  # the critic starts as the reward model
        for frozen in (self.ref, self.reward):
            frozen.eval()
            for p in frozen.parameters():
                p.requires_grad_(False)
        self.actor_optim = torch.optim.AdamW(self.actor.parameters(), lr=args.actor_learning_rate, betas=(0.9, 0.95))
        self.critic_optim = torch.optim.AdamW(self.critic.parameters(), lr=args.critic_learning_rate, betas=(0.9, 0.95))
        total = args.iterations * args.ppo_epochs * 2
        self.actor_scheduler = get_linear_schedule_with_warmup(self.actor_optim, 2, total)
        self.critic_scheduler = get_linear_schedule_with_warmup(self.critic_optim, 2, total)


class PPOTrainer:
    def __init__(self, engine, args):
        self.engine, self.args = engine, args
        self.kl_ctl, self.clip_reward_value, self.cliprange, self.cliprange_value = 0.1, 5, 0.2, 0.2
        self.gamma, self.lam = 1.0, 0.95

    @torch.no_grad()
    def generate_experience(self, prompts):
        start = prompts.shape[1] - 1
        seq = self.engine.actor.generate(prompts, attention_mask=torch.ones_like(prompts), do_sample=True, top_k=0,
                                         max_new_tokens=self.args.answer_length, min_new_tokens=self.args.answer_length)
        mask = torch.ones_like(seq)
        logits = self.engine.actor(input_ids=seq, attention_mask=mask).logits
        logits_ref = self.engine.ref(input_ids=seq, attention_mask=mask).logits
        reward_score = self.engine.reward.forward_value(seq, mask)
        values = self.engine.critic.forward_value(seq, mask, return_value_only=True)[:, :-1]
        log_probs = gather_log_probs(logits[:, :-1], seq[:, 1:])
        ref_log_probs = gather_log_probs(logits_ref[:, :-1], seq[:, 1:])
        rewards = -self.kl_ctl * (log_probs - ref_log_probs)
        rewards[:, -1] += torch.clamp(reward_score, -self.clip_reward_value, self.clip_reward_value)
        lastgaelam, reversed_advantages, length = 0, [], rewards.size(1)
        for t in reversed(range(start, length)):
            nextvalues = values[:, t + 1] if t < length - 1 else 0.0
            delta = rewards[:, t] + self.gamma * nextvalues - values[:, t]
            lastgaelam = delta + self.gamma * self.lam * lastgaelam
            reversed_advantages.append(lastgaelam)
        advantages = torch.stack(reversed_advantages[::-1], dim=1)
        returns = advantages + values[:, start:]
        return {"input_ids": seq, "attention_mask": mask, "logprobs": log_probs, "value": values, "advantages": advantages,
                "returns": returns, "rewards": reward_score, "start": start}

    def actor_loss_fn(self, logprobs, old_logprobs, advantages):
        ratio = torch.exp(logprobs - old_logprobs)
        pg_loss1 = -advantages * ratio
        pg_loss2 = -advantages * torch.clamp(ratio, 1.0 - self.cliprange, 1.0 + self.cliprange)
        return torch.max(pg_loss1, pg_loss2).mean()

    def critic_loss_fn(self, values, old_values, returns):
        values_clipped = torch.clamp(values, old_values - self.cliprange_value, old_values + self.cliprange_value)
        return 0.5 * torch.max((values - returns) ** 2, (values_clipped - returns) ** 2).mean()

    def train_rlhf(self, inputs):
        start, seq = inputs["start"], inputs["input_ids"]
        logits = self.engine.actor(input_ids=seq, attention_mask=inputs["attention_mask"]).logits
        log_prob = gather_log_probs(logits[:, :-1], seq[:, 1:])
        actor_loss = self.actor_loss_fn(log_prob[:, start:], inputs["logprobs"][:, start:], inputs["advantages"])
        actor_loss.backward()
        self.engine.actor_optim.step()
        self.engine.actor_optim.zero_grad()
        self.engine.actor_scheduler.step()

        value = self.engine.critic.forward_value(seq, inputs["attention_mask"], return_value_only=True)[:, :-1]
        critic_loss = self.critic_loss_fn(value[:, start:], inputs["value"][:, start:], inputs["returns"])
        critic_loss.backward()
        self.engine.critic_optim.step()
        self.engine.critic_optim.zero_grad()
        self.engine.critic_scheduler.step()
        return actor_loss.item(), critic_loss.item()


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--actor_learning_rate", type=float, default=1e-3)
    parser.add_argument("--critic_learning_rate", type=float, default=1e-3)
    parser.add_argument("--iterations", type=int, default=5)
    parser.add_argument("--ppo_epochs", type=int, default=2)
    parser.add_argument("--batch", type=int, default=8)
    parser.add_argument("--answer_length", type=int, default=6)
    parser.add_argument("--seed", type=int, default=1234)
    args = parser.parse_args()
    torch.manual_seed(args.seed)
    torch.set_num_threads(1)
    trainer = PPOTrainer(RLHFEngine(args), args)
    for iteration in range(args.iterations):
        exps = [trainer.generate_experience(torch.randint(3, 20, (args.batch, 4))) for _ in range(2)]
        for _ in range(args.ppo_epochs):
            for inputs in exps:
                actor_loss, critic_loss = trainer.train_rlhf(inputs)
        reward = torch.cat([e["rewards"] for e in exps]).mean()
        print(f"iteration {iteration}: reward {reward:.4f} actor {actor_loss:.4f} critic {critic_loss:.4f}")


if __name__ == "__main__":
    main()
