"""T5 summarises tables of facts; a sequence-to-sequence model with Adafactor and label smoothing."""
import logging
import random
from dataclasses import dataclass

import torch
from torch.utils.data import DataLoader, Dataset
from transformers import Adafactor, T5Config, T5ForConditionalGeneration

logging.basicConfig(format="%(message)s", level=logging.INFO)
logger = logging.getLogger("t5_sft")

NAMES = ["ann", "bob", "cleo", "dan"]
CITIES = ["rome", "oslo", "lima"]
JOBS = ["chef", "judge", "pilot"]
VOCABULARY = ["<pad>", "</s>", "name:", "city:", "job:", "age:", "|", "summarize:", "is", "a", "in", "years", "old", "and",
              *NAMES, *CITIES, *JOBS, *map(str, range(20, 40))]


@dataclass
class DataArguments:
    train_size: int = 128
    eval_size: int = 24
    max_source_length: int = 12
    max_target_length: int = 12


@dataclass
class TrainArguments:
    lr: float = 0.01
    batch_size: int = 16
    epochs: int = 3
    label_smoothing: float = 0.1
    clip: float = 1.0
    seed: int = 55


class FactsDataset(Dataset):
    def __init__(self, size, seed, args):
        rng = random.Random(seed)
        self.args = args
        self.examples = []
        for _ in range(size):
            name, city, job, age = rng.choice(NAMES), rng.choice(CITIES), rng.choice(JOBS), str(rng.randrange(20, 40))
            facts = [["name:", name], ["city:", city], ["job:", job]]
            target = [name, "is", "a", job, "in", city]
            if rng.random() < 0.5:
                facts.append(["age:", age])
                target += ["and", age, "years", "old"]
            rng.shuffle(facts)
            source = ["summarize:"] + [w for fact in facts for w in fact]
            self.examples.append((source, target + ["</s>"]))

    def __len__(self):
        return len(self.examples)

    def __getitem__(self, i):
        source, target = self.examples[i]
        return {"input_ids": [VOCABULARY.index(w) for w in source][: self.args.max_source_length],
                "labels": [VOCABULARY.index(w) for w in target][: self.args.max_target_length]}


def seq2seq_collator(features):
    source = max(len(f["input_ids"]) for f in features)
    target = max(len(f["labels"]) for f in features)
    return {
        "input_ids": torch.tensor([f["input_ids"] + [0] * (source - len(f["input_ids"])) for f in features]),
        "attention_mask": torch.tensor([[1] * len(f["input_ids"]) + [0] * (source - len(f["input_ids"])) for f in features]),
        "labels": torch.tensor([f["labels"] + [-100] * (target - len(f["labels"])) for f in features]),
    }


class LabelSmoother:
    """As in transformers' trainer: smoothed over the vocabulary, mean over what is not padding."""

    def __init__(self, epsilon, ignore_index=-100):
        self.epsilon, self.ignore_index = epsilon, ignore_index

    def __call__(self, logits, labels):
        log_probs = -torch.nn.functional.log_softmax(logits, dim=-1)
        labels = labels.unsqueeze(-1)
        padding_mask = labels.eq(self.ignore_index)
        nll_loss = log_probs.gather(dim=-1, index=torch.clamp(labels, min=0)).masked_fill_(padding_mask, 0.0)
        smoothed_loss = log_probs.sum(dim=-1, keepdim=True).masked_fill_(padding_mask, 0.0)
        num_active = padding_mask.numel() - padding_mask.long().sum()
        return (1 - self.epsilon) * nll_loss.sum() / num_active + self.epsilon * smoothed_loss.sum() / (num_active * logits.shape[-1])


def generate_accuracy(model, loader):
    model.eval()
    right = total = 0
    for batch in loader:
        out = model.generate(input_ids=batch["input_ids"], attention_mask=batch["attention_mask"], max_new_tokens=11)
        for guess, labels in zip(out[:, 1:].tolist(), batch["labels"].tolist()):
            wanted = [t for t in labels if t != -100]
            right += guess[: len(wanted)] == wanted
            total += 1
    model.train()
    return right / total


def main():
    data_args, args = DataArguments(), TrainArguments()
    torch.manual_seed(args.seed)
    torch.set_num_threads(1)
    train_loader = DataLoader(FactsDataset(data_args.train_size, args.seed, data_args), args.batch_size, shuffle=True,
                              collate_fn=seq2seq_collator, generator=torch.Generator().manual_seed(args.seed))
    eval_loader = DataLoader(FactsDataset(data_args.eval_size, args.seed + 1, data_args), 24, collate_fn=seq2seq_collator)
    model = T5ForConditionalGeneration(T5Config(
        vocab_size=len(VOCABULARY), d_model=32, d_kv=8, d_ff=64, num_layers=2, num_heads=4, dropout_rate=0.0,
        pad_token_id=0, eos_token_id=1, decoder_start_token_id=0, feed_forward_proj="gated-gelu", tie_word_embeddings=False))
    optimizer = Adafactor(model.parameters(), lr=args.lr, scale_parameter=False, relative_step=False, warmup_init=False)
    smoother = LabelSmoother(args.label_smoothing)
    model.train()
    for epoch in range(args.epochs):
        for step, batch in enumerate(train_loader):
            logits = model(**batch).logits
            loss = smoother(logits, batch["labels"])
            loss.backward()
            torch.nn.utils.clip_grad_norm_(model.parameters(), args.clip)
            optimizer.step()
            optimizer.zero_grad()
            if step % 4 == 0:
                logger.info("epoch %d step %d loss %.4f", epoch, step, loss.item())
        logger.info("epoch %d exact match %.3f", epoch, generate_accuracy(model, eval_loader))


if __name__ == "__main__":
    main()
