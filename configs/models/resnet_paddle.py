"""The same network in PaddlePaddle."""

from paddle import nn


class Block(nn.Layer):
    def __init__(self, cin, cout, stride):
        super().__init__()
        self.conv1 = nn.Conv2D(cin, cout, 3, stride=stride, padding=1, bias_attr=False)
        self.bn1 = nn.BatchNorm2D(cout)
        self.conv2 = nn.Conv2D(cout, cout, 3, padding=1, bias_attr=False)
        self.bn2 = nn.BatchNorm2D(cout)
        self.short = nn.Conv2D(cin, cout, 1, stride=stride)
        self.relu = nn.ReLU()

    def forward(self, x):
        y = self.relu(self.bn1(self.conv1(x)))
        y = self.bn2(self.conv2(y))
        return self.relu(y + self.short(x))


class Net(nn.Layer):
    def __init__(self):
        super().__init__()
        self.stem = nn.Conv2D(3, 8, 3, padding=1)
        self.bn = nn.BatchNorm2D(8)
        self.relu = nn.ReLU()
        self.pool = nn.MaxPool2D(3, stride=2, padding=1)
        self.block1 = Block(8, 8, 1)
        self.block2 = Block(8, 12, 2)
        self.avg = nn.AvgPool2D(3, stride=1, padding=1, exclusive=False)
        self.head = nn.Linear(12, 6)

    def forward(self, x):
        x = self.pool(self.relu(self.bn(self.stem(x))))
        x = nn.functional.interpolate(self.block1(x), scale_factor=2, mode="bilinear", align_corners=False)
        x = self.avg(self.block2(x))
        return self.head(x.mean((2, 3)))


def build_model():
    return Net()


def loss(output, batch):
    return nn.functional.cross_entropy(output, batch["labels"])
