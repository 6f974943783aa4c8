"""A small residual network in PyTorch, with running statistics that are not 0 and 1."""

import numpy as np
import torch
from torch import nn


class Block(nn.Module):
    def __init__(self, cin, cout, stride):
        super().__init__()
        self.conv1 = nn.Conv2d(cin, cout, 3, stride=stride, padding=1, bias=False)
        self.bn1 = nn.BatchNorm2d(cout)
        self.conv2 = nn.Conv2d(cout, cout, 3, padding=1, bias=False)
        self.bn2 = nn.BatchNorm2d(cout)
        self.short = nn.Conv2d(cin, cout, 1, stride=stride)
        self.relu = nn.ReLU()

    def forward(self, x):
        y = self.relu(self.bn1(self.conv1(x)))
        y = self.bn2(self.conv2(y))
        return self.relu(y + self.short(x))


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.stem = nn.Conv2d(3, 8, 3, padding=1)
        self.bn = nn.BatchNorm2d(8)
        self.relu = nn.ReLU()
        self.pool = nn.MaxPool2d(3, stride=2, padding=1)
        self.block1 = Block(8, 8, 1)
        self.block2 = Block(8, 12, 2)
        self.avg = nn.AvgPool2d(3, stride=1, padding=1)
        self.head = nn.Linear(12, 6)

    def forward(self, x):
        x = self.pool(self.relu(self.bn(self.stem(x))))
        x = nn.functional.interpolate(self.block1(x), scale_factor=2, mode="bilinear", align_corners=False)
        x = self.avg(self.block2(x))
        return self.head(x.mean((2, 3)))


def build_model():
    model = Net()
    generator = torch.Generator().manual_seed(1)
    for module in model.modules():
        if isinstance(module, nn.BatchNorm2d):
            module.running_mean.normal_(generator=generator).mul_(0.2)
            module.running_var.uniform_(0.5, 2.0, generator=generator)
            module.weight.data.uniform_(0.5, 1.5, generator=generator)
            module.bias.data.normal_(generator=generator)
    return model


def make_batch():
    rng = np.random.default_rng(0)
    return {"x": rng.normal(size=(4, 3, 12, 12)).astype(np.float32), "labels": rng.integers(0, 6, 4)}


def loss(output, batch):
    return nn.functional.cross_entropy(output, batch["labels"])


def accuracy(output, batch):
    return float((output.argmax(-1) == batch["labels"]).mean())


def forward(model, batch):
    return model(batch["x"])


forward_training = forward
