"""The same encoder in PaddlePaddle."""

import paddle
from paddle import nn

VOCABULARY, HIDDEN, HEADS, INNER, LAYERS, LENGTH, CLASSES = 60, 24, 3, 40, 2, 9, 5


class Attention(nn.Layer):
    def __init__(self):
        super().__init__()
        self.query = nn.Linear(HIDDEN, HIDDEN)
        self.key = nn.Linear(HIDDEN, HIDDEN)
        self.value = nn.Linear(HIDDEN, HIDDEN)
        self.out = nn.Linear(HIDDEN, HIDDEN)

    def forward(self, x, mask):
        b, n, _ = x.shape
        layers = (self.query, self.key, self.value)
        q, k, v = (layer(x).reshape([b, n, HEADS, HIDDEN // HEADS]).transpose([0, 2, 1, 3]) for layer in layers)
        scores = q @ k.transpose([0, 1, 3, 2]) / (HIDDEN // HEADS) ** 0.5
        scores = scores + (1.0 - mask[:, None, None, :]) * -10000.0
        context = (nn.functional.softmax(scores, -1) @ v).transpose([0, 2, 1, 3]).reshape([b, n, HIDDEN])
        return self.out(context)


class Block(nn.Layer):
    def __init__(self):
        super().__init__()
        self.attention = Attention()
        self.norm1 = nn.LayerNorm(HIDDEN, epsilon=1e-12)
        self.up = nn.Linear(HIDDEN, INNER)
        self.act = nn.GELU()
        self.down = nn.Linear(INNER, HIDDEN)
        self.norm2 = nn.LayerNorm(HIDDEN, epsilon=1e-12)
        self.dropout = nn.Dropout(0.1)

    def forward(self, x, mask):
        x = self.norm1(x + self.dropout(self.attention(x, mask)))
        return self.norm2(x + self.dropout(self.down(self.act(self.up(x)))))


class Encoder(nn.Layer):
    def __init__(self):
        super().__init__()
        self.words = nn.Embedding(VOCABULARY, HIDDEN)
        self.positions = nn.Embedding(LENGTH, HIDDEN)
        self.norm = nn.LayerNorm(HIDDEN, epsilon=1e-12)
        self.encoder = nn.LayerList([Block() for _ in range(LAYERS)])
        self.classifier = nn.Linear(HIDDEN, CLASSES)

    def forward(self, ids, mask):
        x = self.norm(self.words(ids) + self.positions(paddle.arange(ids.shape[1])))
        for block in self.encoder:
            x = block(x, mask)
        return self.classifier(x[:, 0])


def build_model():
    return Encoder()


def loss(output, batch):
    return nn.functional.cross_entropy(output, batch["labels"])
