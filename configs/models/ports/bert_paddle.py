"""The same BERT classifier in Paddle, on paddle.nn.TransformerEncoder."""

import paddle
from paddle import nn
from paddle.nn import functional

VOCABULARY, POSITIONS, SEGMENTS, CLASSES = 128, 32, 2, 3
WIDTH, HEADS, INNER, DEPTH = 32, 4, 64, 3
EPS = 1e-12


class Embeddings(nn.Layer):
    def __init__(self, dropout):
        super().__init__()
        self.word_embeddings = nn.Embedding(VOCABULARY, WIDTH, padding_idx=0)
        self.position_embeddings = nn.Embedding(POSITIONS, WIDTH)
        self.token_type_embeddings = nn.Embedding(SEGMENTS, WIDTH)
        self.layer_norm = nn.LayerNorm(WIDTH, epsilon=EPS)
        self.dropout = nn.Dropout(dropout)

    def forward(self, tokens, segments):
        positions = paddle.arange(tokens.shape[1])
        words = self.word_embeddings(tokens)
        x = words + self.position_embeddings(positions) + self.token_type_embeddings(segments)
        return self.dropout(self.layer_norm(x))


class Bert(nn.Layer):
    def __init__(self, dropout):
        super().__init__()
        self.embeddings = Embeddings(dropout)
        layer = nn.TransformerEncoderLayer(
            WIDTH, HEADS, INNER, dropout=dropout, activation="gelu", act_dropout=0.0, layer_norm_eps=EPS
        )
        self.encoder = nn.TransformerEncoder(layer, DEPTH)
        self.pooler = nn.Linear(WIDTH, WIDTH)
        self.dropout = nn.Dropout(dropout)
        self.classifier = nn.Linear(WIDTH, CLASSES)

    def forward(self, tokens, segments, valid):
        mask = (1.0 - valid.unsqueeze([1, 2])) * -10000.0
        x = self.encoder(self.embeddings(tokens, segments), mask)
        return self.classifier(self.dropout(paddle.tanh(self.pooler(x[:, 0]))))


def build_model():
    return Bert(dropout=0.1)


def build_training():
    """Without dropout, whose masks differ between frameworks."""
    return Bert(dropout=0.0)


def forward(model, batch):
    return model(batch["tokens"], batch["segments"], batch["valid"])


def loss(output, batch):
    return functional.cross_entropy(output, batch["labels"])
