"""PPO with verifiable rewards for DeepSeek-V3 in small; rollouts in a list of records, token-level loss."""
import random
from dataclasses import dataclass

import torch
import torch.nn as nn
import torch.nn.functional as F
from torch.nn.utils.rnn import pad_sequence
from transformers import DeepseekV3Config, DeepseekV3ForCausalLM


@dataclass
class Sample:
    prompt: torch.Tensor
    response: torch.Tensor
    logps: torch.Tensor
    values: torch.Tensor
    advantages: torch.Tensor = None
    returns: torch.Tensor = None
    reward: float = 0.0


class DeepseekWithCritic(nn.Module):
    def __init__(self, config):
        super().__init__()
        self.lm = DeepseekV3ForCausalLM(config)
        self.critic = nn.Sequential(nn.LayerNorm(config.hidden_size), nn.Linear(config.hidden_size, 1))

    def forward(self, ids):
        hidden = self.lm.model(input_ids=ids, use_cache=False).last_hidden_state
        return self.lm.lm_head(hidden), self.critic(hidden).squeeze(-1)


class RLVRTrainer:
    PROMPT, MAX_NEW, EOS = 4, 6, 1

    def __init__(self, seed=88, lr=2e-3):
        self.rng = random.Random(seed)
        torch.manual_seed(seed)
        torch.set_num_threads(1)
        config = DeepseekV3Config(
            vocab_size=16, hidden_size=32, intermediate_size=48, moe_intermediate_size=16, num_hidden_layers=2,
            num_attention_heads=4, num_key_value_heads=4, n_routed_experts=4, n_shared_experts=1, num_experts_per_tok=2, n_group=1,
            topk_group=1, first_k_dense_replace=1, q_lora_rank=None, kv_lora_rank=16, qk_rope_head_dim=8, qk_nope_head_dim=8,
            v_head_dim=8, max_position_embeddings=16, pad_token_id=0, bos_token_id=None, eos_token_id=self.EOS)
        self.model = DeepseekWithCritic(config)
        self.reference = DeepseekV3ForCausalLM(config).requires_grad_(False)
        self.reference.load_state_dict(self.model.lm.state_dict())
        self.optimizer = torch.optim.AdamW(self.model.parameters(), lr=lr, betas=(0.9, 0.95), weight_decay=0.01)

    def verify(self, prompt, response):
        """A correct answer repeats the first token and then stops; partial credit for either."""
        r = response.tolist()
        return 0.6 * (r[0] == prompt[0].item()) + 0.4 * (self.EOS in r[1:3])

    @torch.no_grad()
    def sample(self, n):
        ids = torch.tensor([[self.rng.randrange(2, 16) for _ in range(self.PROMPT)] for _ in range(n)])
        done = torch.zeros(n, dtype=torch.bool)
        for _ in range(self.MAX_NEW):
            logits, _ = self.model(ids)
            token = torch.multinomial(F.softmax(logits[:, -1], dim=-1), 1).squeeze(1).masked_fill(done, 0)
            done = done | (token == self.EOS)
            ids = torch.cat([ids, token[:, None]], 1)
            if done.all():
                break
        logits, values = self.model(ids)
        logps = logits[:, :-1].log_softmax(-1).gather(2, ids[:, 1:, None]).squeeze(2)[:, self.PROMPT - 1:]
        ref = self.reference(input_ids=ids).logits[:, :-1].log_softmax(-1).gather(2, ids[:, 1:, None]).squeeze(2)[:, self.PROMPT - 1:]
        samples = []
        for row in range(n):
            response = ids[row, self.PROMPT:]
            stop = (response == self.EOS).nonzero()
            length = int(stop[0]) + 1 if len(stop) else len(response)
            s = Sample(ids[row, :self.PROMPT], response[:length], logps[row, :length], values[row, self.PROMPT - 1:self.PROMPT - 1 + length])
            s.reward = self.verify(s.prompt, s.response)
            rewards = 0.05 * (ref[row, :length] - s.logps)
            rewards[-1] += s.reward
            s.advantages = self.gae(rewards, s.values)
            s.returns = s.advantages + s.values
            samples.append(s)
        return samples

    @staticmethod
    def gae(rewards, values, gamma=1.0, lam=0.95):
        advantages = torch.zeros_like(rewards)
        carry = 0.0
        for t in range(len(rewards) - 1, -1, -1):
            after = values[t + 1] if t + 1 < len(rewards) else 0.0
            carry = rewards[t] + gamma * after - values[t] + gamma * lam * carry
            advantages[t] = carry
        return advantages

    def make_batch(self, samples):
        pad = lambda rows: pad_sequence(rows, batch_first=True)
        batch = {name: pad([getattr(s, name) for s in samples]) for name in ("response", "logps", "values", "advantages", "returns")}
        batch["ids"] = pad([torch.cat([s.prompt, s.response]) for s in samples])
        batch["mask"] = pad([torch.ones(len(s.response)) for s in samples])
        return batch

    def loss(self, batch):
        n = batch["response"].size(1)
        logits, values = self.model(batch["ids"])
        logps = -F.cross_entropy(logits[:, -n - 1:-1].transpose(1, 2), batch["response"], reduction="none")
        mask, adv = batch["mask"], batch["advantages"]
        centred = adv - (adv * mask).sum() / mask.sum()
        adv = centred / ((centred ** 2 * mask).sum() / mask.sum()).sqrt().clamp(min=1e-6)
        ratio = torch.exp((logps - batch["logps"]) * mask)
        policy = torch.max(-adv * ratio, -adv * ratio.clamp(0.8, 1.28)) * mask
        value = 0.5 * (values[:, -n - 1:-1] - batch["returns"]) ** 2 * mask
        return (policy.sum() + 0.5 * value.sum()) / mask.sum()

    def train(self, iterations=6, n=16, epochs=2, size=8):
        for iteration in range(iterations):
            samples = self.sample(n)
            for _ in range(epochs):
                self.rng.shuffle(samples)
                for k in range(0, n, size):
                    batch = self.make_batch(samples[k:k + size])
                    loss = self.loss(batch)
                    self.optimizer.zero_grad()
                    loss.backward()
                    nn.utils.clip_grad_norm_(self.model.parameters(), 1.0)
                    self.optimizer.step()
            print(f"iteration {iteration}: reward {sum(s.reward for s in samples) / n:.3f} loss {loss.item():.4f}")


if __name__ == "__main__":
    RLVRTrainer().train()
