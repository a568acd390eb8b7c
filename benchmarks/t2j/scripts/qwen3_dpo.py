"""
Preference tuning of Qwen3 with length-normalised log-probabilities and a frozen reference, in
bfloat16 autocast. Settings by environment variables; everything else in functions.
"""
import os

import torch
from transformers import Qwen3Config, Qwen3ForCausalLM

SEED = int(os.getenv("SEED", 17))
BETA = float(os.getenv("BETA", 2.0))
MARGIN = float(os.getenv("MARGIN", 0.3))
LR = float(os.getenv("LR", 1e-3))
STEPS = int(os.getenv("STEPS", 24))
BATCH = int(os.getenv("BATCH", 8))
ACCUMULATE = int(os.getenv("ACCUMULATE", 2))
DEVICE = "cuda" if torch.cuda.is_available() else "cpu"

V, PROMPT, MAX_ANSWER = 32, 6, 8


def make_models():
    cfg = Qwen3Config(vocab_size=V, hidden_size=32, intermediate_size=64, num_hidden_layers=2, num_attention_heads=2,
                      num_key_value_heads=1, head_dim=16, max_position_embeddings=32, pad_token_id=0, bos_token_id=1,
                      eos_token_id=2)
    model = Qwen3ForCausalLM(cfg).to(DEVICE)
    reference = Qwen3ForCausalLM(cfg).to(DEVICE)
    reference.load_state_dict(model.state_dict())
    return model, reference.eval()


def get_batch(generator):
    """Prompts of numbers; the better answer counts up from the last, the worse one jumps about."""
    prompt = torch.randint(3, V - MAX_ANSWER - 1, (BATCH, PROMPT), generator=generator)
    lengths = torch.randint(2, MAX_ANSWER, (2, BATCH), generator=generator)
    up = prompt[:, -1:] + 1 + torch.arange(MAX_ANSWER)
    jump = torch.randint(3, V, (BATCH, MAX_ANSWER), generator=generator)
    position = torch.arange(MAX_ANSWER)
    rows, masks = [], []
    for answer, n in ((up, lengths[0]), (jump, lengths[1])):
        answer = torch.where(position == n[:, None], torch.tensor(2), answer)
        mask = position <= n[:, None]
        rows.append(torch.cat([prompt, answer * mask], 1))
        masks.append(torch.cat([torch.zeros(BATCH, PROMPT, dtype=torch.bool), mask], 1))
    return torch.cat(rows).to(DEVICE), torch.cat(masks).to(DEVICE)


def per_token_logps(model, tokens):
    with torch.autocast(DEVICE, torch.bfloat16):
        logits = model(input_ids=tokens, attention_mask=(tokens > 0).long(), use_cache=False).logits
    logits = logits[:, :-1].float()
    return logits.gather(2, tokens[:, 1:, None]).squeeze(2) - logits.logsumexp(-1)


def loss_fn(model, reference, tokens, mask):
    with torch.no_grad():
        ref = per_token_logps(reference, tokens)
    logratio = per_token_logps(model, tokens) - ref
    m = mask[:, 1:]
    score = torch.sum(logratio * m, 1) / torch.sum(m, 1)
    better, worse = score.chunk(2)
    gap = BETA * (better - worse) - MARGIN
    return torch.nn.functional.softplus(-gap).mean(), (better > worse).float().mean()


def lr_at(step):
    return LR * min((step + 1) / 3, 1 - step / STEPS)


def main():
    torch.manual_seed(SEED)
    torch.set_num_threads(1)
    model, reference = make_models()
    generator = torch.Generator().manual_seed(SEED)
    opt = torch.optim.NAdam(model.parameters(), lr=LR, betas=(0.9, 0.99))
    for step in range(STEPS):
        for group in opt.param_groups:
            group["lr"] = lr_at(step)
        opt.zero_grad()
        total = 0.0
        for _ in range(ACCUMULATE):
            tokens, mask = get_batch(generator)
            loss, accuracy = loss_fn(model, reference, tokens, mask)
            (loss / ACCUMULATE).backward()
            total += loss.item() / ACCUMULATE
        torch.nn.utils.clip_grad_value_(model.parameters(), 0.5)
        opt.step()
        if step % 4 == 0 or step == STEPS - 1:
            print(f"{step:3d}  loss {total:.4f}  accuracy {accuracy.item():.2f}  lr {lr_at(step):.1e}")


if __name__ == "__main__":
    main()
