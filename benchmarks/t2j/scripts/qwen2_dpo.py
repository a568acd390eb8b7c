"""IPO and friends for a small Qwen2: one loss class, one loop, left padding, answers of many lengths."""
import argparse
import random

import torch
from torch import nn
from torch.utils.data import DataLoader, Dataset
from transformers import Qwen2Config, Qwen2ForCausalLM

parser = argparse.ArgumentParser()
parser.add_argument("--loss-type", choices=["sigmoid", "ipo", "hinge"], default="ipo")
parser.add_argument("--beta", type=float, default=0.3)
parser.add_argument("--lr", type=float, default=5e-4)
parser.add_argument("--batch-size", type=int, default=12)
parser.add_argument("--epochs", type=int, default=3)
parser.add_argument("--seed", type=int, default=5)
parser.add_argument("--save", type=str, default="")

PAD, EOS, SEP = 0, 1, 2
VOCAB_SIZE = 30


class PreferenceLoss(nn.Module):
    """Loss of a pair from the average log-probability of a token under policy and reference."""

    def __init__(self, loss_type, beta):
        super().__init__()
        self.loss_type, self.beta = loss_type, beta

    def forward(self, policy_chosen, policy_rejected, ref_chosen, ref_rejected):
        logits = (policy_chosen - policy_rejected) - (ref_chosen - ref_rejected)
        if self.loss_type == "sigmoid":
            losses = -nn.functional.logsigmoid(self.beta * logits)
        elif self.loss_type == "hinge":
            losses = torch.relu(1 - self.beta * logits)
        else:
            losses = (logits - 1 / (2 * self.beta)) ** 2
        return losses.mean()


class Repetitions(Dataset):
    """Prompt: a letter and how often it is wanted. The rejected answer is too short or too long."""

    def __init__(self, n, seed):
        self.rng = random.Random(seed)
        self.rows = [self._row() for _ in range(n)]

    def _row(self):
        letter, count = self.rng.randint(10, VOCAB_SIZE - 1), self.rng.randint(2, 6)
        wrong = self.rng.choice([c for c in range(1, 9) if c != count])
        prompt = [letter, 2 + count, SEP]
        return prompt, [letter] * count + [EOS], [letter] * wrong + [EOS]

    def __len__(self):
        return len(self.rows)

    def __getitem__(self, i):
        return self.rows[i]


def left_pad(rows):
    width = max(map(len, rows))
    return torch.tensor([[PAD] * (width - len(r)) + r for r in rows])


def collate(examples):
    """Stacks chosen over rejected: one forward pass for both."""
    prompts, chosen, rejected = zip(*examples)
    answers = list(chosen) + list(rejected)
    ids = left_pad([p + a for p, a in zip(prompts * 2, answers)])
    loss_mask = left_pad([[0] * len(p) + [1] * len(a) for p, a in zip(prompts * 2, answers)]).bool()
    attention = left_pad([[1] * (len(p) + len(a)) for p, a in zip(prompts * 2, answers)])
    return ids, attention, loss_mask


def avg_logps(model, ids, attention, loss_mask):
    position_ids = (attention.cumsum(-1) - 1).masked_fill(attention == 0, 0)
    logits = model(input_ids=ids, attention_mask=attention, position_ids=position_ids).logits
    logps = logits[:, :-1].log_softmax(dim=-1)
    per_token = logps.gather(-1, ids[:, 1:, None])[..., 0]
    mask = loss_mask[:, 1:]
    return per_token.masked_fill(~mask, 0.0).sum(-1) / mask.sum(-1)


def train_step(policy, ref, criterion, optimizer, batch):
    ids, attention, loss_mask = batch
    with torch.inference_mode():
        ref_chosen, ref_rejected = avg_logps(ref, ids, attention, loss_mask).chunk(2)
    chosen, rejected = avg_logps(policy, ids, attention, loss_mask).chunk(2)
    loss = criterion(chosen, rejected, ref_chosen.clone(), ref_rejected.clone())
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    return loss.item(), (chosen - ref_chosen > rejected - ref_rejected).float().mean().item()


def build(config):
    torch.manual_seed(0)
    return Qwen2ForCausalLM(config)


def main(args):
    torch.set_num_threads(1)
    config = Qwen2Config(vocab_size=VOCAB_SIZE, hidden_size=32, intermediate_size=48, num_hidden_layers=2,
                         num_attention_heads=4, num_key_value_heads=1, max_position_embeddings=32,
                         pad_token_id=PAD, bos_token_id=None, eos_token_id=EOS)
    policy, ref = build(config), build(config).eval()
    for p in ref.parameters():
        p.requires_grad = False
    torch.manual_seed(args.seed)
    loader = DataLoader(Repetitions(120, args.seed), args.batch_size, shuffle=True, collate_fn=collate)
    criterion = PreferenceLoss(args.loss_type, args.beta)
    optimizer = torch.optim.AdamW(policy.parameters(), lr=args.lr, betas=(0.9, 0.98), weight_decay=0.0)
    scheduler = torch.optim.lr_scheduler.StepLR(optimizer, step_size=1, gamma=0.7)
    for epoch in range(args.epochs):
        losses, accuracies = zip(*[train_step(policy, ref, criterion, optimizer, batch) for batch in loader])
        scheduler.step()
        print(f"epoch {epoch}: {args.loss_type} {sum(losses) / len(losses):.4f} "
              f"accuracy {sum(accuracies) / len(accuracies):.3f}")
    if args.save:
        torch.save(policy.state_dict(), args.save)


if __name__ == "__main__":
    main(parser.parse_args())
