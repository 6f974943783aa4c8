"""A small GPT in PyTorch, and how it decodes."""

import numpy as np
import torch
from torch import nn

VOCABULARY, HIDDEN, HEADS, LAYERS, LENGTH = 50, 24, 3, 2, 32


class Attention(nn.Module):
    def __init__(self):
        super().__init__()
        self.query, self.key, self.value = (nn.Linear(HIDDEN, HIDDEN) for _ in range(3))
        self.out = nn.Linear(HIDDEN, HIDDEN)

    def heads(self, x):
        return x.reshape(*x.shape[:2], HEADS, HIDDEN // HEADS).transpose(1, 2)

    def forward(self, x, mask, cache=None):
        q, k, v = self.heads(self.query(x)), self.heads(self.key(x)), self.heads(self.value(x))
        if cache is not None:
            k, v = torch.cat([cache[0], k], 2), torch.cat([cache[1], v], 2)
        n, total = x.shape[1], k.shape[2]
        causal = torch.ones(n, total, dtype=torch.bool).tril(total - n)
        scores = q @ k.transpose(-1, -2) / (HIDDEN // HEADS) ** 0.5
        scores = scores.masked_fill(~(causal & mask[:, None, None, :].bool()), -1e9)
        context = (torch.softmax(scores, -1) @ v).transpose(1, 2).reshape(x.shape)
        return self.out(context), (k, v)


class Block(nn.Module):
    def __init__(self):
        super().__init__()
        self.norm1, self.attention = nn.LayerNorm(HIDDEN), Attention()
        self.norm2 = nn.LayerNorm(HIDDEN)
        self.up, self.act, self.down = nn.Linear(HIDDEN, 4 * HIDDEN), nn.GELU(), nn.Linear(4 * HIDDEN, HIDDEN)

    def forward(self, x, mask, cache=None):
        attended, cache = self.attention(self.norm1(x), mask, cache)
        x = x + attended
        return x + self.down(self.act(self.up(self.norm2(x)))), cache


class GPT(nn.Module):
    def __init__(self):
        super().__init__()
        self.words = nn.Embedding(VOCABULARY, HIDDEN)
        self.positions = nn.Embedding(LENGTH, HIDDEN)
        self.blocks = nn.ModuleList([Block() for _ in range(LAYERS)])
        self.norm = nn.LayerNorm(HIDDEN)
        self.head = nn.Linear(HIDDEN, VOCABULARY, bias=False)

    def forward(self, tokens, mask, positions, cache=None):
        x = self.words(tokens) + self.positions(positions)
        caches = []
        for i, block in enumerate(self.blocks):
            x, one = block(x, mask, None if cache is None else cache[i])
            caches.append(one)
        return self.head(self.norm(x)), caches


def build_model():
    return GPT()


def decode(model, tokens, mask, cache=None):
    positions = (mask.cumsum(-1) - 1).clamp(min=0)[:, -tokens.shape[1] :]
    return model(tokens, mask, positions, cache)


def prompts():
    rng = np.random.default_rng(0)
    return [rng.integers(0, VOCABULARY, n).tolist() for n in (10, 7, 4)]


def make_batch():
    rng = np.random.default_rng(1)
    mask = (np.arange(9) < np.array([[9], [6], [4]])).astype(np.int64)
    return {"tokens": rng.integers(1, VOCABULARY, (3, 9)) * mask, "mask": mask}


def forward(model, batch):
    return decode(model, batch["tokens"], batch["mask"])[0]


def loss(output, batch):
    following = batch["tokens"][:, 1:].reshape(-1)
    return nn.functional.cross_entropy(output[:, :-1].reshape(-1, VOCABULARY), following, ignore_index=0)
