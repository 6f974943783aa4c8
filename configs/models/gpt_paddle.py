"""A small GPT in PaddlePaddle, and how it decodes."""

import paddle
from paddle import nn

VOCABULARY, HIDDEN, HEADS, LAYERS, LENGTH = 50, 24, 3, 2, 32


class Attention(nn.Layer):
    def __init__(self):
        super().__init__()
        self.query, self.key, self.value = (nn.Linear(HIDDEN, HIDDEN) for _ in range(3))
        self.out = nn.Linear(HIDDEN, HIDDEN)

    def heads(self, x):
        return x.reshape([*x.shape[:2], HEADS, HIDDEN // HEADS]).transpose([0, 2, 1, 3])

    def forward(self, x, mask, cache=None):
        q, k, v = self.heads(self.query(x)), self.heads(self.key(x)), self.heads(self.value(x))
        if cache is not None:
            k, v = paddle.concat([cache[0], k], 2), paddle.concat([cache[1], v], 2)
        n, total = x.shape[1], k.shape[2]
        causal = paddle.ones([n, total]).tril(total - n).astype(bool)
        scores = q @ k.transpose([0, 1, 3, 2]) / (HIDDEN // HEADS) ** 0.5
        scores = paddle.where(causal & mask[:, None, None, :].astype(bool), scores, paddle.full_like(scores, -1e9))
        context = (nn.functional.softmax(scores, -1) @ v).transpose([0, 2, 1, 3]).reshape(x.shape)
        return self.out(context), (k, v)


class Block(nn.Layer):
    def __init__(self):
        super().__init__()
        self.norm1, self.attention = nn.LayerNorm(HIDDEN), Attention()
        self.norm2 = nn.LayerNorm(HIDDEN)
        self.up, self.act, self.down = nn.Linear(HIDDEN, 4 * HIDDEN), nn.GELU(), nn.Linear(4 * HIDDEN, HIDDEN)

    def forward(self, x, mask, cache=None):
        attended, cache = self.attention(self.norm1(x), mask, cache)
        x = x + attended
        return x + self.down(self.act(self.up(self.norm2(x)))), cache


class GPT(nn.Layer):
    def __init__(self):
        super().__init__()
        self.words = nn.Embedding(VOCABULARY, HIDDEN)
        self.positions = nn.Embedding(LENGTH, HIDDEN)
        self.blocks = nn.LayerList([Block() for _ in range(LAYERS)])
        self.norm = nn.LayerNorm(HIDDEN)
        self.head = nn.Linear(HIDDEN, VOCABULARY, bias_attr=False)

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
    positions = (mask.cumsum(-1) - 1).clip(min=0)[:, -tokens.shape[1] :]
    return model(tokens, mask, positions, cache)


def forward(model, batch):
    return decode(model, batch["tokens"], batch["mask"])[0]


def loss(output, batch):
    following = batch["tokens"][:, 1:].reshape([-1])
    return nn.functional.cross_entropy(output[:, :-1].reshape([-1, VOCABULARY]), following, ignore_index=0)
