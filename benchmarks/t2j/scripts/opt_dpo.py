"""DPO of an OPT as DeepSpeed-Chat's step 2: batches of pairs, chosen first, rejected second half."""
import argparse
import random

import torch
import torch.nn.functional as F
from torch.utils.data import DataLoader, Dataset
from transformers import OPTConfig, OPTForCausalLM

PAD, BOS, EOS, ASK = 0, 1, 2, 3


class DPODataset(Dataset):
    """Reads a list of items and names the cheapest; the rejected answer names another or all of them."""

    def __init__(self, size, seed, max_len):
        self.rng, self.max_len = random.Random(seed), max_len
        self.samples = [self.sample() for _ in range(size)]

    def sample(self):
        items = self.rng.sample(range(4, 14), self.rng.randint(2, 4))
        prices = self.rng.sample(range(14, 24), len(items))
        prompt = [BOS] + [t for pair in zip(items, prices) for t in pair] + [ASK]
        best = items[prices.index(min(prices))]
        others = [i for i in items if i != best]
        return prompt, [best, EOS], self.rng.choice([[self.rng.choice(others), EOS], items + [EOS]])

    def pad(self, ids, fill):
        return torch.tensor(ids + [fill] * (self.max_len - len(ids)))

    def __len__(self):
        return len(self.samples)

    def __getitem__(self, idx):
        prompt, chosen, rejected = self.samples[idx]
        return (self.pad(prompt + chosen, PAD), self.pad([-100] * len(prompt) + chosen, -100),
                self.pad(prompt + rejected, PAD), self.pad([-100] * len(prompt) + rejected, -100))


class DataCollatorDPO:
    def __call__(self, data):
        chosen, chosen_labels, rejected, rejected_labels = map(torch.stack, zip(*data))
        batch = {"input_ids": torch.cat([chosen, rejected]), "labels": torch.cat([chosen_labels, rejected_labels])}
        batch["attention_mask"] = (batch["input_ids"] != PAD).long()
        return batch


def get_batch_logps(logits, labels):
    labels = labels[:, 1:].clone()
    mask = labels != -100
    labels[~mask] = 0
    logps = logits[:, :-1].log_softmax(-1)
    return (logps.gather(2, labels.unsqueeze(2)).squeeze(2) * mask).sum(-1)


def create_model(dropout):
    return OPTForCausalLM(OPTConfig(
        vocab_size=24, hidden_size=32, ffn_dim=48, num_hidden_layers=2, num_attention_heads=2, max_position_embeddings=24,
        word_embed_proj_dim=16, do_layer_norm_before=True, dropout=dropout, attention_dropout=0.0, pad_token_id=PAD,
        bos_token_id=BOS, eos_token_id=EOS))


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--beta", type=float, default=0.1)
    parser.add_argument("--label_smoothing", type=float, default=0.0)
    parser.add_argument("--learning_rate", type=float, default=1e-3)
    parser.add_argument("--batch_size", type=int, default=8)
    parser.add_argument("--gradient_accumulation_steps", type=int, default=2)
    parser.add_argument("--num_train_epochs", type=int, default=2)
    parser.add_argument("--max_len", type=int, default=16)
    parser.add_argument("--dropout", type=float, default=0.0)
    parser.add_argument("--print_every", type=int, default=4)
    args = parser.parse_args()
    torch.manual_seed(15)
    torch.set_num_threads(1)
    model, ref_model = create_model(args.dropout), create_model(0.0)
    ref_model.load_state_dict(model.state_dict())
    ref_model.eval()
    loader = DataLoader(DPODataset(128, 15, args.max_len), args.batch_size, shuffle=True, collate_fn=DataCollatorDPO(),
                        generator=torch.Generator().manual_seed(15))
    biases_and_norms = [p for p in model.parameters() if p.ndim == 1]
    matrices = [p for p in model.parameters() if p.ndim > 1]
    optimizer = torch.optim.AdamW([{"params": matrices}, {"params": biases_and_norms, "weight_decay": 0.0}],
                                  lr=args.learning_rate, weight_decay=0.05, betas=(0.9, 0.95))
    scheduler = torch.optim.lr_scheduler.CyclicLR(optimizer, base_lr=1e-4, max_lr=args.learning_rate, step_size_up=4,
                                                  mode="triangular2", cycle_momentum=False)
    micro = 0
    for epoch in range(args.num_train_epochs):
        model.train()
        for batch in loader:
            half = batch["input_ids"].shape[0] // 2
            logits = model(input_ids=batch["input_ids"], attention_mask=batch["attention_mask"]).logits
            logps = get_batch_logps(logits, batch["labels"])
            with torch.no_grad():
                ref_logits = ref_model(input_ids=batch["input_ids"], attention_mask=batch["attention_mask"]).logits
                ref_logps = get_batch_logps(ref_logits, batch["labels"])
            log_ratio = (logps - ref_logps)
            margin = args.beta * (log_ratio[:half] - log_ratio[half:])
            loss = (-F.logsigmoid(margin) * (1 - args.label_smoothing) - F.logsigmoid(-margin) * args.label_smoothing).mean()
            loss = loss / args.gradient_accumulation_steps
            loss.backward()
            micro += 1
            if micro % args.gradient_accumulation_steps == 0:
                torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
                optimizer.step()
                scheduler.step()
                optimizer.zero_grad()
            if micro % args.print_every == 0:
                print(f"epoch {epoch} micro {micro} loss {loss.item() * args.gradient_accumulation_steps:.4f} "
                      f"accuracy {(margin > 0).float().mean().item():.2f} lr {scheduler.get_last_lr()[0]:.2e}")


if __name__ == "__main__":
    main()
