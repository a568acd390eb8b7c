"""DPO of an encoder-decoder: T5 prefers polite to rude replies."""
import copy
import random

import torch
from torch.nn import functional as F
from torch.utils.data import DataLoader
from transformers import T5Config, T5ForConditionalGeneration, get_inverse_sqrt_schedule

PAD, EOS = 0, 1
WORDS = ["<pad>", "</s>", "where", "when", "how", "is", "was", "the", "train", "meeting", "door", "tea", "?", "please", "kindly",
         "thanks", "look", "there", "ask", "someone", "yourself", "again", "silly", "no", "go", "away", "."]
IDS = {w: i for i, w in enumerate(WORDS)}


def make_dataset(size, rng):
    rows = []
    for _ in range(size):
        question = f"{rng.choice(['where', 'when', 'how'])} {rng.choice(['is', 'was'])} the {rng.choice(['train', 'meeting', 'door', 'tea'])} ?"
        polite = rng.choice(["please look there . thanks", "kindly ask someone", "please ask again . thanks ."])
        rude = rng.choice(["go away", "no . ask yourself", "look yourself silly", "no . go away silly ."])
        rows.append({"prompt": question, "chosen": polite, "rejected": rude})
    return rows


def tokenize(text):
    return [IDS[w] for w in text.split()] + [EOS]


def collate(rows):
    features = {}
    prompts = [tokenize(r["prompt"]) for r in rows]
    features["prompt_input_ids"] = torch.nn.utils.rnn.pad_sequence([torch.tensor(p) for p in prompts], batch_first=True)
    features["prompt_attention_mask"] = (features["prompt_input_ids"] != PAD).long()
    for side in ("chosen", "rejected"):
        features[f"{side}_labels"] = torch.nn.utils.rnn.pad_sequence(
            [torch.tensor(tokenize(r[side])) for r in rows], batch_first=True, padding_value=-100)
    return features


def forward_logps(model, features):
    """Encodes the prompts once for both answers."""
    encoded = model.get_encoder()(input_ids=features["prompt_input_ids"], attention_mask=features["prompt_attention_mask"])
    result = []
    for side in ("chosen", "rejected"):
        labels = features[f"{side}_labels"]
        logits = model(encoder_outputs=encoded, attention_mask=features["prompt_attention_mask"], labels=labels).logits
        mask = labels != -100
        token_logps = logits.log_softmax(-1).gather(2, labels.masked_fill(~mask, 0).unsqueeze(2)).squeeze(2)
        result.append((token_logps * mask).sum(-1))
    return result


def loss_fn(policy, reference, features, beta):
    chosen, rejected = forward_logps(policy, features)
    with torch.no_grad():
        ref_chosen, ref_rejected = forward_logps(reference, features)
    logits = (chosen - rejected) - (ref_chosen - ref_rejected)
    return -F.logsigmoid(beta * logits).mean(), (logits > 0).float().mean().item()


def train(policy, reference, loader, optimizer, scheduler, epochs, beta, clip):
    for epoch in range(epochs):
        policy.train()
        history = []
        for features in loader:
            loss, accuracy = loss_fn(policy, reference, features, beta)
            loss.backward()
            torch.nn.utils.clip_grad_norm_(policy.parameters(), clip)
            optimizer.step()
            scheduler.step()
            policy.zero_grad()
            history.append((loss.item(), accuracy))
        print(f"epoch {epoch}: loss {history[0][0]:.4f} -> {history[-1][0]:.4f}, accuracy {history[-1][1]:.2f}")


if __name__ == "__main__":
    rng = random.Random(3)
    torch.manual_seed(3)
    torch.set_num_threads(1)
    policy = T5ForConditionalGeneration(T5Config(
        vocab_size=len(WORDS), d_model=32, d_kv=8, d_ff=64, num_layers=2, num_heads=4, dropout_rate=0.0, pad_token_id=PAD,
        eos_token_id=EOS, decoder_start_token_id=PAD))
    reference = copy.deepcopy(policy).eval().requires_grad_(False)
    loader = DataLoader(make_dataset(96, rng), batch_size=8, collate_fn=collate, shuffle=True, drop_last=True)
    optimizer = torch.optim.AdamW(policy.parameters(), lr=1e-3, weight_decay=0.01)
    scheduler = get_inverse_sqrt_schedule(optimizer, num_warmup_steps=6)
    train(policy, reference, loader, optimizer, scheduler, epochs=2, beta=0.1, clip=1.0)
