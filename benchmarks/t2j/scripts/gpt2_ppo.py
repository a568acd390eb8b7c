"""PPO in the style of the first TRL: GPT-2 with a value head learns to write happy words."""
import torch
from torch import nn
from torch.optim import Adam
from transformers import GPT2Config, GPT2LMHeadModel

config = {
    "steps": 8, "batch_size": 16, "mini_batch_size": 8, "ppo_epochs": 2,
    "txt_in_len": 4, "txt_out_len": 8, "lr": 1e-3, "gamma": 1.0, "lam": 0.95,
    "cliprange": 0.2, "cliprange_value": 0.2, "vf_coef": 0.1, "init_kl_coef": 0.05, "target": 6.0,
    "horizon": 10000, "seed": 1,
}
VOCAB, HAPPY = 24, range(16, 24)  # the last eight "words" are happy ones


class GPT2HeadWithValueModel(nn.Module):
    """A GPT-2 with a scalar head on its last hidden states."""

    def __init__(self, gpt2_config):
        super().__init__()
        self.lm = GPT2LMHeadModel(gpt2_config)
        self.v_head = nn.Linear(gpt2_config.n_embd, 1)
        nn.init.normal_(self.v_head.weight, std=0.02)
        nn.init.zeros_(self.v_head.bias)

    def forward(self, input_ids):
        out = self.lm(input_ids, output_hidden_states=True)
        value = self.v_head(out.hidden_states[-1]).squeeze(-1)
        return out.logits, value


class AdaptiveKLController:
    def __init__(self, init_kl_coef, target, horizon):
        self.value, self.target, self.horizon = init_kl_coef, target, horizon

    def update(self, current, n_steps):
        error = max(-0.2, min(0.2, current / self.target - 1))
        self.value *= 1 + error * n_steps / self.horizon


def logprobs_from_logits(logits, labels):
    return torch.gather(logits.log_softmax(-1), 2, labels.unsqueeze(-1)).squeeze(-1)


def whiten(values):
    return (values - values.mean()) * torch.rsqrt(values.var() + 1e-8)


@torch.no_grad()
def respond_to_batch(model, queries, txt_len):
    """Samples continuations from the model."""
    input_ids = queries
    for _ in range(txt_len):
        logits, _ = model(input_ids)
        next_token = torch.multinomial(logits[:, -1].softmax(-1), num_samples=1)
        input_ids = torch.cat([input_ids, next_token], dim=-1)
    return input_ids[:, -txt_len:]


class PPOTrainer:
    def __init__(self, model, ref_model, **params):
        self.model, self.ref_model, self.params = model, ref_model, params
        self.optimizer = Adam(model.parameters(), lr=params["lr"])
        self.kl_ctl = AdaptiveKLController(params["init_kl_coef"], params["target"], params["horizon"])

    def step(self, queries, responses, scores):
        bs, mbs = self.params["batch_size"], self.params["mini_batch_size"]
        model_input = torch.cat([queries, responses], dim=1)
        logprobs, ref_logprobs, values = self.batched_forward_pass(model_input, responses.shape[1])
        rewards = self.compute_rewards(scores, logprobs, ref_logprobs)
        advantages, returns = self.compute_advantages(rewards, values)
        stats = []
        for _ in range(self.params["ppo_epochs"]):
            order = torch.randperm(bs)
            for i in range(0, bs, mbs):
                idx = order[i:i + mbs]
                stats.append(self.train_minibatch(
                    logprobs[idx], values[idx], advantages[idx], returns[idx], responses[idx], model_input[idx]))
        self.kl_ctl.update((logprobs - ref_logprobs).sum(1).mean().item(), bs)
        return stats[-1]

    @torch.no_grad()
    def batched_forward_pass(self, model_input, gen_len):
        logits, values = self.model(model_input)
        ref_logits, _ = self.ref_model(model_input)
        logprobs = logprobs_from_logits(logits[:, :-1], model_input[:, 1:])[:, -gen_len:]
        ref_logprobs = logprobs_from_logits(ref_logits[:, :-1], model_input[:, 1:])[:, -gen_len:]
        return logprobs, ref_logprobs, values[:, -gen_len - 1:-1]

    def compute_rewards(self, scores, logprobs, ref_logprobs):
        rewards = -self.kl_ctl.value * (logprobs - ref_logprobs)
        rewards[:, -1] += scores
        return rewards

    def compute_advantages(self, rewards, values):
        lastgaelam, reversed_advantages = 0, []
        gen_len = rewards.shape[1]
        for t in reversed(range(gen_len)):
            nextvalues = values[:, t + 1] if t < gen_len - 1 else 0.0
            delta = rewards[:, t] + self.params["gamma"] * nextvalues - values[:, t]
            lastgaelam = delta + self.params["gamma"] * self.params["lam"] * lastgaelam
            reversed_advantages.append(lastgaelam)
        advantages = torch.stack(reversed_advantages[::-1]).transpose(0, 1)
        return whiten(advantages), advantages + values

    def train_minibatch(self, old_logprobs, old_values, advantages, returns, response, model_input):
        loss, stats = self.loss(old_logprobs, old_values, advantages, returns, response, model_input)
        self.optimizer.zero_grad()
        loss.backward()
        self.optimizer.step()
        return stats

    def loss(self, old_logprobs, old_values, advantages, returns, response, model_input):
        gen_len = response.shape[1]
        logits, vpred = self.model(model_input)
        logprob = logprobs_from_logits(logits[:, :-1], model_input[:, 1:])[:, -gen_len:]
        vpred = vpred[:, -gen_len - 1:-1]
        clip = self.params["cliprange_value"]
        vpredclipped = torch.clamp(vpred, old_values - clip, old_values + clip)
        vf_loss = 0.5 * torch.max((vpred - returns) ** 2, (vpredclipped - returns) ** 2).mean()
        ratio = torch.exp(logprob - old_logprobs)
        clipped = torch.clamp(ratio, 1.0 - self.params["cliprange"], 1.0 + self.params["cliprange"])
        pg_loss = torch.max(-advantages * ratio, -advantages * clipped).mean()
        return pg_loss + self.params["vf_coef"] * vf_loss, {"policy": pg_loss.item(), "value": vf_loss.item()}


torch.manual_seed(config["seed"])
torch.set_num_threads(1)
gpt2_config = GPT2Config(vocab_size=VOCAB, n_positions=16, n_embd=32, n_layer=2, n_head=4, bos_token_id=0,
                         eos_token_id=0, resid_pdrop=0.0, embd_pdrop=0.0, attn_pdrop=0.0)
gpt2_model = GPT2HeadWithValueModel(gpt2_config)
gpt2_model_ref = GPT2HeadWithValueModel(gpt2_config)
gpt2_model_ref.load_state_dict(gpt2_model.state_dict())
trainer = PPOTrainer(gpt2_model, gpt2_model_ref, **config)
happy = torch.zeros(VOCAB)
happy[list(HAPPY)] = 1.0

for epoch in range(config["steps"]):
    queries = torch.randint(0, VOCAB, (config["batch_size"], config["txt_in_len"]))
    responses = respond_to_batch(gpt2_model, queries, config["txt_out_len"])
    scores = happy[responses].mean(1) * 4 - 1
    stats = trainer.step(queries, responses, scores)
    print(f"step {epoch}: mean score {scores.mean():.3f} policy {stats['policy']:.4f} value {stats['value']:.4f}")
