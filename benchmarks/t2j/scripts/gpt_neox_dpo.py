"""DPO of GPT-NeoX with the reference updated slowly towards the policy (TR-DPO's soft update)."""
import copy
import random

import numpy as np
import torch
import torch.nn.functional as F
from torch.utils.data import DataLoader, TensorDataset
from transformers import GPTNeoXConfig, GPTNeoXForCausalLM

# Preference data: analogies a:b::c:? in a small modular arithmetic. Chosen d = c + (b - a), rejected anything else.
MOD, COLON, DOUBLE, EOS, PAD = 20, 20, 21, 22, 23
SEED = 50


def analogies(n, rng):
    prompts, chosen, rejected = [], [], []
    for _ in range(n):
        a, b, c = (rng.randrange(MOD) for _ in range(3))
        d = (c + b - a) % MOD
        wrong = rng.choice([x for x in range(MOD) if x != d])
        prompts.append([a, COLON, b, DOUBLE, c, COLON])
        chosen.append([d, EOS])
        rejected.append([wrong, EOS] if rng.random() < 0.7 else [EOS, PAD])
    return tuple(torch.from_numpy(np.array(x)) for x in (prompts, chosen, rejected))


class Objective:
    def __init__(self, policy, reference, beta=0.3):
        self.policy, self.reference, self.beta = policy, reference, beta

    def log_likelihood(self, model, prompt, answer):
        ids = torch.cat([prompt, answer], 1)
        logits = model(input_ids=ids, attention_mask=ids.ne(PAD).long()).logits
        n = answer.shape[1]
        logp = torch.distributions.Categorical(logits=logits[:, -n - 1:-1]).log_prob(answer)
        return logp.masked_fill(answer.eq(PAD), 0.0).sum(1)

    def __call__(self, prompt, chosen, rejected):
        with torch.no_grad():
            r_c = self.log_likelihood(self.reference, prompt, chosen)
            r_r = self.log_likelihood(self.reference, prompt, rejected)
        p_c = self.log_likelihood(self.policy, prompt, chosen)
        p_r = self.log_likelihood(self.policy, prompt, rejected)
        delta = self.beta * (p_c - r_c - p_r + r_r)
        # hinge with a soft edge on half of it, as in a mixture of SLiC and DPO
        return (0.5 * F.relu(1 - delta) + 0.5 * F.softplus(-delta)).mean(), (delta > 0).float().mean().item()


def soft_update(reference, policy, alpha):
    with torch.no_grad():
        for r, p in zip(reference.parameters(), policy.parameters()):
            r.mul_(1 - alpha).add_(p, alpha=alpha)


def seed_everything(seed):
    random.seed(seed)
    np.random.seed(seed)
    torch.manual_seed(seed)


def main(steps_per_sync=4, alpha=0.3, epochs=2, lr=1e-3):
    seed_everything(SEED)
    torch.set_num_threads(1)
    config = GPTNeoXConfig(vocab_size=24, hidden_size=32, intermediate_size=64, num_hidden_layers=2, num_attention_heads=4,
                           rotary_pct=0.5, max_position_embeddings=16, use_parallel_residual=False, hidden_dropout=0.0,
                           attention_dropout=0.0, bos_token_id=EOS, eos_token_id=EOS, pad_token_id=PAD)
    policy = GPTNeoXForCausalLM(config)
    reference = copy.deepcopy(policy).requires_grad_(False)
    objective = Objective(policy, reference)
    loader = DataLoader(TensorDataset(*analogies(112, random.Random(SEED))), batch_size=8, shuffle=True)
    optimizer = torch.optim.Adam(policy.parameters(), lr=lr, weight_decay=1e-3)  # L2 in the gradient, not decoupled
    scheduler = torch.optim.lr_scheduler.CosineAnnealingWarmRestarts(optimizer, T_0=len(loader), eta_min=1e-4)
    step = 0
    for epoch in range(epochs):
        for prompt, chosen, rejected in loader:
            loss, accuracy = objective(prompt, chosen, rejected)
            optimizer.zero_grad()
            loss.backward()
            torch.nn.utils.clip_grad_norm_(policy.parameters(), 1.0)
            optimizer.step()
            scheduler.step()
            step += 1
            if step % steps_per_sync == 0:
                soft_update(reference, policy, alpha)
                print(f"step {step}: loss {loss.item():.4f} accuracy {accuracy:.2f} lr {scheduler.get_last_lr()[0]:.2e}")


if __name__ == "__main__":
    main()
