"""The small residual network in Keras, with the channels last; activations are options where they can be."""

import keras
import numpy as np
from keras import layers, ops


def padded(filters, stride=1, **options):
    """PyTorch's padding of 1: `same` would pad behind only, with a stride of 2."""
    return keras.Sequential(
        [layers.ZeroPadding2D(1), layers.Conv2D(filters, 3, strides=stride, **options)] if stride > 1
        else [layers.Conv2D(filters, 3, padding="same", **options)]
    )  # fmt: skip


class Block(layers.Layer):
    def __init__(self, cout, stride):
        super().__init__()
        self.conv1 = padded(cout, stride, use_bias=False)
        self.bn1 = layers.BatchNormalization(epsilon=1e-5, momentum=0.9)
        self.conv2 = padded(cout, use_bias=False)
        self.bn2 = layers.BatchNormalization(epsilon=1e-5, momentum=0.9)
        self.short = layers.Conv2D(cout, 1, strides=stride)
        self.relu = layers.ReLU()

    def call(self, x):
        y = self.relu(self.bn1(self.conv1(x)))
        y = self.bn2(self.conv2(y))
        return self.relu(y + self.short(x))


class Net(keras.Model):
    def __init__(self):
        super().__init__()
        self.stem = padded(8)
        self.bn = layers.BatchNormalization(epsilon=1e-5, momentum=0.9)
        self.relu = layers.ReLU()
        self.edge = layers.ZeroPadding2D(1)
        self.pool = layers.MaxPooling2D(3, strides=2)
        self.block1 = Block(8, 1)
        self.upsample = layers.UpSampling2D(2, interpolation="bilinear")
        self.block2 = Block(12, 2)
        self.avg = layers.AveragePooling2D(3, strides=1)
        self.head = layers.Dense(6)

    def call(self, x):
        # Zeros at the edge are never larger than what ReLU returns.
        x = self.pool(self.edge(self.relu(self.bn(self.stem(x)))))
        x = self.block2(self.upsample(self.block1(x)))
        x = self.avg(self.edge(x))
        return self.head(ops.mean(x, (1, 2)))


def build_model():
    model = Net()
    model(np.zeros((1, 12, 12, 3), "float32"))
    return model


def forward(model, batch):
    return model(ops.transpose(batch["x"], (0, 2, 3, 1)), training=False)


def forward_training(model, batch):
    return model(ops.transpose(batch["x"], (0, 2, 3, 1)), training=True)


def loss(output, batch):
    return ops.mean(keras.losses.sparse_categorical_crossentropy(batch["labels"], output, from_logits=True))
