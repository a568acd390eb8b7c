"""PPO for Mistral. Policy, value model, reward model and reference as a dictionary of modules."""
import torch
import torch.nn.functional as F
from torch import nn
from transformers import MistralConfig, MistralForCausalLM, MistralForSequenceClassification, MistralForTokenClassification

SEED, ROUNDS, N, P, R = 25, 5, 16, 5, 6
LR_POLICY, LR_VALUE, EPS, KL, LAM = 5e-4, 2e-3, 0.2, 0.1, 0.95


def build_models():
    def config(**more):
        return MistralConfig(vocab_size=24, hidden_size=32, intermediate_size=48, num_hidden_layers=2, num_attention_heads=4,
                             num_key_value_heads=2, head_dim=8, sliding_window=6, max_position_embeddings=16, pad_token_id=0,
                             bos_token_id=1, eos_token_id=2, **more)
    policy = MistralForCausalLM(config())
    reference = MistralForCausalLM(config())
    reference.load_state_dict(policy.state_dict())
    models = nn.ModuleDict({
        "policy": policy,
        "value": MistralForTokenClassification(config(num_labels=1)),
        "reward": MistralForSequenceClassification(config(num_labels=1)),
        "reference": reference,
    })
    models["value"].dropout.p = 0.0
    for name in ("reward", "reference"):
        models[name].requires_grad_(False).eval()
    return models


def response_logprobs(model, tokens):
    logits = model(input_ids=tokens).logits[:, P - 1:-1]
    return torch.gather(F.log_softmax(logits, dim=-1), -1, tokens[:, P:].unsqueeze(-1)).squeeze(-1)


def response_values(model, tokens):
    return model(input_ids=tokens).logits.squeeze(-1)[:, P - 1:-1]


def sample_with_cache(model, prompts):
    tokens, out = prompts, model(input_ids=prompts, use_cache=True)
    for i in range(R):
        nxt = torch.multinomial(torch.softmax(out.logits[:, -1], -1), 1)
        tokens = torch.cat([tokens, nxt], 1)
        if i + 1 < R:
            out = model(input_ids=nxt, past_key_values=out.past_key_values, use_cache=True)
    return tokens


@torch.no_grad()
def rollout(models):
    tokens = sample_with_cache(models["policy"], torch.randint(3, 24, (N, P)))
    old = response_logprobs(models["policy"], tokens)
    reference = response_logprobs(models["reference"], tokens)
    values = response_values(models["value"], tokens)
    scores = 5 * torch.tanh(models["reward"](input_ids=tokens).logits.squeeze(-1))
    rewards = KL * (reference - old)
    rewards[:, -1] += scores
    # generalised advantages as a product with a triangular matrix: no loop over time
    following = torch.cat([values[:, 1:], torch.zeros(N, 1)], 1)
    deltas = rewards + following - values
    powers = torch.arange(R)[None] - torch.arange(R)[:, None]
    kernel = torch.where(powers >= 0, LAM ** powers.clamp(min=0).float(), torch.zeros(()))
    advantages = deltas @ kernel.T
    return {"tokens": tokens, "old": old, "values": values, "returns": advantages + values,
            "advantages": (advantages - advantages.mean()) / (advantages.std() + 1e-8), "scores": scores}


def losses(models, b):
    ratio = torch.exp(response_logprobs(models["policy"], b["tokens"]) - b["old"])
    policy = -torch.min(ratio * b["advantages"], torch.clamp(ratio, 1 - EPS, 1 + EPS) * b["advantages"]).mean()
    new_values = response_values(models["value"], b["tokens"])
    clipped = torch.max(torch.min(new_values, b["values"] + EPS), b["values"] - EPS)
    value = 0.5 * torch.maximum((new_values - b["returns"]) ** 2, (clipped - b["returns"]) ** 2).mean()
    return policy, value


def main():
    torch.manual_seed(SEED)
    torch.set_num_threads(1)
    models = build_models()
    optimizer = torch.optim.AdamW([
        {"params": models["policy"].parameters(), "lr": LR_POLICY},
        {"params": models["value"].parameters(), "lr": LR_VALUE},
    ], betas=(0.9, 0.95), weight_decay=0.0)
    scheduler = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, T_max=ROUNDS * 4)
    for r in range(ROUNDS):
        data = rollout(models)
        for _ in range(2):
            for rows in torch.randperm(N).chunk(2):
                batch = {k: v[rows] for k, v in data.items()}
                policy_loss, value_loss = losses(models, batch)
                (policy_loss + value_loss).backward()
                for name in ("policy", "value"):
                    nn.utils.clip_grad_norm_(models[name].parameters(), 1.0)
                optimizer.step()
                scheduler.step()
                optimizer.zero_grad()
        print(f"round {r}: score {data['scores'].mean():.4f} policy {policy_loss:.4f} value {value_loss:.4f}")


if __name__ == "__main__":
    main()
