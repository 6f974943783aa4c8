"""A small BERT classifier in PyTorch: post-norm, exact GELU, learned positions."""

import math

import numpy as np
import torch
from torch import nn
from torch.nn import functional

VOCABULARY, POSITIONS, SEGMENTS, CLASSES = 128, 32, 2, 3
WIDTH, HEADS, INNER, DEPTH = 32, 4, 64, 3
EPS = 1e-12


class Embeddings(nn.Module):
    def __init__(self, dropout):
        super().__init__()
        self.word = nn.Embedding(VOCABULARY, WIDTH, padding_idx=0)
        self.position = nn.Embedding(POSITIONS, WIDTH)
        self.segment = nn.Embedding(SEGMENTS, WIDTH)
        self.norm = nn.LayerNorm(WIDTH, eps=EPS)
        self.dropout = nn.Dropout(dropout)

    def forward(self, tokens, segments):
        positions = torch.arange(tokens.shape[1], device=tokens.device)
        return self.dropout(self.norm(self.word(tokens) + self.position(positions) + self.segment(segments)))


class SelfAttention(nn.Module):
    def __init__(self, dropout):
        super().__init__()
        self.query = nn.Linear(WIDTH, WIDTH)
        self.key = nn.Linear(WIDTH, WIDTH)
        self.value = nn.Linear(WIDTH, WIDTH)
        self.out = nn.Linear(WIDTH, WIDTH)
        self.dropout = nn.Dropout(dropout)

    def heads(self, x):
        return x.view(x.shape[0], x.shape[1], HEADS, -1).transpose(1, 2)

    def forward(self, x, mask):
        query, key, value = self.heads(self.query(x)), self.heads(self.key(x)), self.heads(self.value(x))
        scores = query @ key.transpose(-1, -2) / math.sqrt(WIDTH // HEADS)
        weights = self.dropout(torch.softmax(scores + mask, dim=-1))
        return self.out((weights @ value).transpose(1, 2).reshape(x.shape))


class Layer(nn.Module):
    def __init__(self, dropout):
        super().__init__()
        self.attention = SelfAttention(dropout)
        self.norm1 = nn.LayerNorm(WIDTH, eps=EPS)
        self.inner = nn.Linear(WIDTH, INNER)
        self.outer = nn.Linear(INNER, WIDTH)
        self.norm2 = nn.LayerNorm(WIDTH, eps=EPS)
        self.dropout1 = nn.Dropout(dropout)
        self.dropout2 = nn.Dropout(dropout)

    def forward(self, x, mask):
        x = self.norm1(x + self.dropout1(self.attention(x, mask)))
        return self.norm2(x + self.dropout2(self.outer(functional.gelu(self.inner(x)))))


class Bert(nn.Module):
    def __init__(self, dropout):
        super().__init__()
        self.embeddings = Embeddings(dropout)
        self.layers = nn.ModuleList([Layer(dropout) for _ in range(DEPTH)])
        self.pooler = nn.Linear(WIDTH, WIDTH)
        self.dropout = nn.Dropout(dropout)
        self.classifier = nn.Linear(WIDTH, CLASSES)

    def forward(self, tokens, segments, valid):
        mask = (1.0 - valid[:, None, None, :]) * -10000.0
        x = self.embeddings(tokens, segments)
        for layer in self.layers:
            x = layer(x, mask)
        return self.classifier(self.dropout(torch.tanh(self.pooler(x[:, 0]))))


def build_model():
    return initialized(Bert(dropout=0.1))


def build_training():
    """Without dropout, whose masks differ between frameworks."""
    return initialized(Bert(dropout=0.0))


def initialized(model):
    """BERT's normal weights; norms and biases that are not 1 and 0, so that a swapped one shows.

    The row of the padding is zero: Paddle returns zeros for it, whatever it holds.
    """
    generator = torch.Generator().manual_seed(0)
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            mean, std = (1.0, 0.1) if "norm" in name and name.endswith("weight") else (0.0, 0.1)
            parameter.copy_(mean + std * torch.randn(parameter.shape, generator=generator))
        model.embeddings.word.weight[0] = 0.0
    return model


def make_batch():
    """Two sentences of 12 tokens in each of 4 rows, padded in two of them."""
    generator = np.random.RandomState(0)
    lengths = np.array([24, 24, 17, 9])
    valid = (np.arange(24) < lengths[:, None]).astype(np.float32)
    tokens = generator.randint(1, VOCABULARY, (4, 24)) * valid.astype(np.int64)
    segments = np.repeat([[0] * 12 + [1] * 12], 4, 0)
    return {"tokens": tokens, "segments": segments, "valid": valid, "labels": generator.randint(0, CLASSES, 4)}


def forward(model, batch):
    return model(batch["tokens"], batch["segments"], batch["valid"])


def loss(output, batch):
    return functional.cross_entropy(output, batch["labels"])
