"""A loop of PPO for Gemma 3 in one function: sampling step by step, reward by a rule, KL in the loss."""
import torch
import torch.nn.functional as F
from transformers import Gemma3ForCausalLM, Gemma3TextConfig

N_VOCAB, PROMPT, RESPONSE = 20, 4, 6
UPDATES, EPOCHS, BATCH, MINIBATCH = 6, 2, 16, 8
GAMMA, LAMBDA, CLIP, BETA, VALUE_COEF = 1.0, 0.95, 0.2, 0.05, 0.25


class ValueNet(torch.nn.Module):
    """Values from the policy's features, which it does not train."""

    def __init__(self, width):
        super().__init__()
        self.norm = torch.nn.LayerNorm(width)
        self.out = torch.nn.Linear(width, 1)

    def forward(self, features):
        return self.out(torch.relu(self.norm(features))).squeeze(-1)


def evaluate_actions(policy, value_net, tokens):
    out = policy(input_ids=tokens, output_hidden_states=True)
    logits = out.logits[:, PROMPT - 1:-1]
    dist = torch.distributions.Categorical(logits=logits)
    values = value_net(out.hidden_states[-1][:, PROMPT - 1:-1].detach())
    return dist.log_prob(tokens[:, PROMPT:]), dist.entropy(), values


@torch.no_grad()
def play(policy, prompts):
    tokens = prompts
    for _ in range(RESPONSE):
        probs = F.softmax(policy(input_ids=tokens).logits[:, -1], dim=-1)
        tokens = torch.cat([tokens, torch.multinomial(probs, 1)], dim=1)
    return tokens


def reward_of(tokens):
    """One for each token that appeared in the prompt, a bit less for repeating oneself."""
    prompt, answer = tokens[:, :PROMPT], tokens[:, PROMPT:]
    echoed = (answer[:, :, None] == prompt[:, None]).any(-1).float()
    echoed[:, 1:] -= 0.5 * (answer[:, 1:] == answer[:, :-1]).float()
    return echoed


def gae(rewards, values):
    advantages = torch.empty_like(rewards)
    last = torch.zeros(rewards.shape[0])
    next_value = torch.zeros(rewards.shape[0])
    for t in range(RESPONSE - 1, -1, -1):
        delta = rewards[:, t] + GAMMA * next_value - values[:, t]
        last = delta + GAMMA * LAMBDA * last
        advantages[:, t] = last
        next_value = values[:, t]
    return advantages, advantages + values


def update(policy, value_net, reference, optimizer, tokens, old_logp, advantages, returns):
    with torch.no_grad():
        ref_logits = reference(input_ids=tokens).logits[:, PROMPT - 1:-1].log_softmax(-1)
    logp, entropy, values = evaluate_actions(policy, value_net, tokens)
    ratio = (logp - old_logp).exp()
    objective = torch.min(ratio * advantages, ratio.clamp(1 - CLIP, 1 + CLIP) * advantages).mean()
    # the low-variance estimate of the divergence
    log_r = ref_logits.gather(-1, tokens[:, PROMPT:, None]).squeeze(-1) - logp
    kl = (log_r.exp() - 1 - log_r).mean()
    value_loss = F.mse_loss(values, returns)
    loss = -objective + BETA * kl + VALUE_COEF * value_loss - 0.005 * entropy.mean()
    optimizer.zero_grad()
    loss.backward()
    torch.nn.utils.clip_grad_norm_([*policy.parameters(), *value_net.parameters()], 0.5)
    optimizer.step()
    return loss.item(), kl.item()


def main():
    torch.manual_seed(6)
    torch.set_num_threads(1)
    config = Gemma3TextConfig(vocab_size=N_VOCAB, hidden_size=32, intermediate_size=48, num_hidden_layers=2,
                              num_attention_heads=4, num_key_value_heads=2, head_dim=8, query_pre_attn_scalar=8,
                              sliding_window=4, layer_types=["sliding_attention", "full_attention"],
                              max_position_embeddings=16, pad_token_id=0, bos_token_id=1, eos_token_id=2)
    policy, reference = Gemma3ForCausalLM(config), Gemma3ForCausalLM(config)
    reference.load_state_dict(policy.state_dict())
    reference.requires_grad_(False).eval()
    value_net = ValueNet(config.hidden_size)
    optimizer = torch.optim.RAdam([{"params": policy.parameters(), "lr": 2e-3}, {"params": value_net.parameters(), "lr": 5e-3}])
    scheduler = torch.optim.lr_scheduler.ExponentialLR(optimizer, gamma=0.9)
    for step in range(UPDATES):
        tokens = play(policy, torch.randint(3, N_VOCAB, (BATCH, PROMPT)))
        with torch.no_grad():
            old_logp, _, values = evaluate_actions(policy, value_net, tokens)
        rewards = reward_of(tokens)
        advantages, returns = gae(rewards, values)
        advantages = (advantages - advantages.mean()) / (advantages.std() + 1e-8)
        for _ in range(EPOCHS):
            for chunk in torch.randperm(BATCH).split(MINIBATCH):
                loss, kl = update(policy, value_net, reference, optimizer, tokens[chunk], old_logp[chunk],
                                  advantages[chunk], returns[chunk])
        scheduler.step()
        print(f"{step}: reward {rewards.sum(1).mean():.3f} loss {loss:.4f} kl {kl:.4f}")


if __name__ == "__main__":
    main()
