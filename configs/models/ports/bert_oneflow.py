"""The same BERT classifier in OneFlow."""

import math

import oneflow as flow
from oneflow import nn

VOCABULARY, POSITIONS, SEGMENTS, CLASSES = 128, 32, 2, 3
WIDTH, HEADS, INNER, DEPTH = 32, 4, 64, 3
EPS = 1e-12


class BertEmbeddings(nn.Module):
    def __init__(self, dropout):
        super().__init__()
        self.word_embeddings = nn.Embedding(VOCABULARY, WIDTH, padding_idx=0)
        self.position_embeddings = nn.Embedding(POSITIONS, WIDTH)
        self.token_type_embeddings = nn.Embedding(SEGMENTS, WIDTH)
        self.layernorm = nn.LayerNorm(WIDTH, eps=EPS)
        self.dropout = nn.Dropout(dropout)

    def forward(self, tokens, segments):
        positions = flow.arange(tokens.size(1), device=tokens.device)
        x = self.word_embeddings(tokens) + self.token_type_embeddings(segments) + self.position_embeddings(positions)
        return self.dropout(self.layernorm(x))


class BertSelfAttention(nn.Module):
    def __init__(self, dropout):
        super().__init__()
        self.query = nn.Linear(WIDTH, WIDTH)
        self.key = nn.Linear(WIDTH, WIDTH)
        self.value = nn.Linear(WIDTH, WIDTH)
        self.dense = nn.Linear(WIDTH, WIDTH)
        self.dropout = nn.Dropout(dropout)

    def transpose_for_scores(self, x):
        return x.reshape(x.size(0), x.size(1), HEADS, WIDTH // HEADS).permute(0, 2, 1, 3)

    def forward(self, x, mask):
        query = self.transpose_for_scores(self.query(x))
        key = self.transpose_for_scores(self.key(x))
        value = self.transpose_for_scores(self.value(x))
        scores = flow.matmul(query, key.transpose(-1, -2)) / math.sqrt(WIDTH // HEADS) + mask
        context = flow.matmul(self.dropout(flow.softmax(scores, dim=-1)), value)
        return self.dense(context.permute(0, 2, 1, 3).reshape(x.size(0), x.size(1), WIDTH))


class BertLayer(nn.Module):
    def __init__(self, dropout):
        super().__init__()
        self.attention = BertSelfAttention(dropout)
        self.attention_norm = nn.LayerNorm(WIDTH, eps=EPS)
        self.intermediate = nn.Linear(WIDTH, INNER)
        self.activation = nn.GELU()
        self.output = nn.Linear(INNER, WIDTH)
        self.output_norm = nn.LayerNorm(WIDTH, eps=EPS)
        self.attention_dropout = nn.Dropout(dropout)
        self.output_dropout = nn.Dropout(dropout)

    def forward(self, x, mask):
        x = self.attention_norm(x + self.attention_dropout(self.attention(x, mask)))
        return self.output_norm(x + self.output_dropout(self.output(self.activation(self.intermediate(x)))))


class Bert(nn.Module):
    def __init__(self, dropout):
        super().__init__()
        self.embeddings = BertEmbeddings(dropout)
        self.encoder = nn.ModuleList([BertLayer(dropout) for _ in range(DEPTH)])
        self.pooler = nn.Linear(WIDTH, WIDTH)
        self.dropout = nn.Dropout(dropout)
        self.classifier = nn.Linear(WIDTH, CLASSES)

    def forward(self, tokens, segments, valid):
        mask = (1.0 - valid.unsqueeze(1).unsqueeze(2)) * -10000.0
        x = self.embeddings(tokens, segments)
        for layer in self.encoder:
            x = layer(x, mask)
        return self.classifier(self.dropout(flow.tanh(self.pooler(x[:, 0]))))


def build_model():
    return Bert(dropout=0.1)


def build_training():
    """Without dropout, whose masks differ between frameworks."""
    return Bert(dropout=0.0)


def forward(model, batch):
    return model(batch["tokens"], batch["segments"], batch["valid"])


def loss(output, batch):
    return nn.functional.cross_entropy(output, batch["labels"])
