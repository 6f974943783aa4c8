"""paddle.vision's ResNet-18, MobileNetV2 and VGG-11, for 10 classes; VGG's classifier as in vision_torch.py."""

from paddle import nn
from paddle.vision import models


def build_resnet18():
    return models.resnet18(num_classes=10)


def build_mobilenet_v2():
    return models.mobilenet_v2(num_classes=10)


def build_vgg11():
    model = models.vgg11(num_classes=10)
    model.classifier = nn.Sequential(
        nn.Linear(512 * 7 * 7, 64), nn.ReLU(), nn.Dropout(),
        nn.Linear(64, 64), nn.ReLU(), nn.Dropout(),
        nn.Linear(64, 10),
    )  # fmt: skip
    return model


def build_mobilenet_v2_training():
    return without_dropout(build_mobilenet_v2())


def build_vgg11_training():
    return without_dropout(build_vgg11())


def without_dropout(model):
    """Masks differ between frameworks."""
    for layer in model.sublayers():
        if isinstance(layer, nn.Dropout):
            layer.p = 0.0
    return model


def forward(model, batch):
    return model(batch["images"])


def loss(output, batch):
    return nn.functional.cross_entropy(output, batch["labels"])
