"""A small encoder, like BERT, in Keras: a block's two projections have their activation as an option."""

import keras
import numpy as np
from keras import layers, ops

VOCABULARY, HIDDEN, HEADS, INNER, LAYERS, LENGTH, CLASSES = 60, 24, 3, 40, 2, 9, 5


class Block(layers.Layer):
    def __init__(self):
        super().__init__()
        self.attention = layers.MultiHeadAttention(HEADS, HIDDEN // HEADS)
        self.norm1 = layers.LayerNormalization(epsilon=1e-12)
        self.up = layers.Dense(INNER, activation="gelu")
        self.down = layers.Dense(HIDDEN)
        self.norm2 = layers.LayerNormalization(epsilon=1e-12)

    def call(self, x, mask):
        seen = ops.cast(mask[:, None, :], "bool")
        x = self.norm1(x + self.attention(x, x, attention_mask=seen))
        return self.norm2(x + self.down(self.up(x)))


class Encoder(keras.Model):
    def __init__(self):
        super().__init__()
        self.words = layers.Embedding(VOCABULARY, HIDDEN)
        self.positions = layers.Embedding(LENGTH, HIDDEN)
        self.norm = layers.LayerNormalization(epsilon=1e-12)
        self.encoder = [Block() for _ in range(LAYERS)]
        self.classifier = layers.Dense(CLASSES)

    def call(self, ids, mask):
        x = self.norm(self.words(ids) + self.positions(ops.arange(ids.shape[1])))
        for block in self.encoder:
            x = block(x, mask)
        return self.classifier(x[:, 0])


def build_model():
    model = Encoder()
    model(np.zeros((1, LENGTH), "int64"), np.ones((1, LENGTH), "float32"))
    return model


def loss(output, batch):
    return ops.mean(keras.losses.sparse_categorical_crossentropy(batch["labels"], output, from_logits=True))
