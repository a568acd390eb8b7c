"""DPO of a Mamba: prompts and answers of fixed length, adaptive reference (refreshed between epochs)."""
import torch
import torch.nn as nn
from torch.utils.data import DataLoader, TensorDataset
from transformers import MambaConfig, MambaForCausalLM

torch.set_num_threads(1)
config = {"vocab": 16, "prompt": 6, "answer": 5, "pairs": 72, "batch": 9, "epochs": 2, "lr": 2e-3, "beta": 0.2, "seed": 19}


def synthetic_preferences(cfg):
    """Preferred: tokens of the prompt's parity. Dispreferred: of the other."""
    g = torch.Generator().manual_seed(cfg["seed"])
    parity = torch.randint(0, 2, (cfg["pairs"], 1), generator=g)
    half = (cfg["vocab"] - 2) // 2
    def tokens(parity, n):
        return 2 + 2 * torch.randint(0, half, (cfg["pairs"], n), generator=g) + parity
    prompt = tokens(parity, cfg["prompt"])
    return prompt, tokens(parity, cfg["answer"]), tokens(1 - parity, cfg["answer"])


class PreferenceModel(nn.Module):
    """Policy and reference in one module; the forward gives log-ratios of an answer."""

    def __init__(self, mamba_config):
        super().__init__()
        self.policy = MambaForCausalLM(mamba_config)
        self.reference = MambaForCausalLM(mamba_config).requires_grad_(False)
        self.refresh()

    def refresh(self):
        self.reference.load_state_dict(self.policy.state_dict())

    def score(self, model, sequence, n):
        logps = model(input_ids=sequence).logits[:, -n - 1:-1].log_softmax(-1)
        return logps.gather(-1, sequence[:, -n:, None]).squeeze(-1).sum(-1)

    def forward(self, prompt, answer):
        sequence = torch.cat([prompt, answer], dim=1)
        with torch.no_grad():
            reference = self.score(self.reference, sequence, answer.size(1))
        return self.score(self.policy, sequence, answer.size(1)) - reference


def dpo_step(model, prompt, better, worse, beta):
    margin = beta * (model(prompt, better) - model(prompt, worse))
    loss = nn.functional.binary_cross_entropy_with_logits(margin, torch.ones_like(margin))
    return loss, margin


def main(cfg):
    torch.manual_seed(cfg["seed"])
    model = PreferenceModel(MambaConfig(vocab_size=cfg["vocab"], hidden_size=24, state_size=4, num_hidden_layers=2,
                                        time_step_rank=4, pad_token_id=0, bos_token_id=0, eos_token_id=1))
    loader = DataLoader(TensorDataset(*synthetic_preferences(cfg)), cfg["batch"], shuffle=True, drop_last=True)
    optimizer = torch.optim.Adamax(model.policy.parameters(), lr=cfg["lr"])
    scheduler = torch.optim.lr_scheduler.PolynomialLR(optimizer, total_iters=cfg["epochs"] * len(loader), power=1.0)
    for epoch in range(cfg["epochs"]):
        model.refresh()
        for step, (prompt, better, worse) in enumerate(loader):
            loss, margin = dpo_step(model, prompt, better, worse, cfg["beta"])
            optimizer.zero_grad()
            loss.backward()
            nn.utils.clip_grad_norm_(model.policy.parameters(), 1.0)
            optimizer.step()
            scheduler.step()
            if step % 3 == 0:
                print(f"epoch {epoch} step {step} loss {loss.item():.4f} margin {margin.mean().item():+.4f}")


if __name__ == "__main__":
    main(config)
