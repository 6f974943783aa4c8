"""torchvision's ResNet-18, MobileNetV2 and VGG-11, for 10 classes: `pip install --no-deps torchvision==0.29.2 pillow`.

VGG's classifier has 64 hidden features instead of 4096, which are 120 million weights that show nothing more.
"""

import numpy as np
import torch
from torch import nn

try:
    import torchvision
except RuntimeError:  # its operators need torch's CUDA build; models use none, but their registration names two
    OPERATORS = torch.library.Library("torchvision", "DEF")
    for name in ("nms", "qnms"):
        OPERATORS.define(f"{name}(Tensor dets, Tensor scores, float iou_threshold) -> Tensor")
    import torchvision


def build_resnet18():
    return initialized(torchvision.models.resnet18(num_classes=10))


def build_mobilenet_v2():
    return initialized(torchvision.models.mobilenet_v2(num_classes=10))


def build_vgg11():
    model = torchvision.models.vgg11(num_classes=10)
    model.classifier = nn.Sequential(
        nn.Linear(512 * 7 * 7, 64), nn.ReLU(True), nn.Dropout(),
        nn.Linear(64, 64), nn.ReLU(True), nn.Dropout(),
        nn.Linear(64, 10),
    )  # fmt: skip
    return initialized(model)


def build_mobilenet_v2_training():
    return without_dropout(build_mobilenet_v2())


def build_vgg11_training():
    return without_dropout(build_vgg11())


def without_dropout(model):
    """Masks differ between frameworks."""
    for layer in model.modules():
        if isinstance(layer, nn.Dropout):
            layer.p = 0.0
    return model


def initialized(model):
    """Default weights from a seed; statistics and shifts that are not 1 and 0, so that a swapped one shows."""
    torch.manual_seed(0)
    generator = torch.Generator().manual_seed(0)
    with torch.no_grad():
        for layer in model.modules():
            if isinstance(layer, (nn.Conv2d, nn.Linear)):
                layer.reset_parameters()
            elif isinstance(layer, nn.BatchNorm2d):
                size = layer.num_features
                layer.weight.copy_(1 + 0.1 * torch.randn(size, generator=generator))
                layer.bias.copy_(0.1 * torch.randn(size, generator=generator))
                layer.running_mean.copy_(0.1 * torch.randn(size, generator=generator))
                layer.running_var.copy_(1 + 0.5 * torch.rand(size, generator=generator))
    return model


def make_batch():
    """Four images of 64 x 64."""
    generator = np.random.RandomState(0)
    images = generator.randn(4, 3, 64, 64).astype(np.float32)
    return {"images": images, "labels": generator.randint(0, 10, 4)}


def forward(model, batch):
    return model(batch["images"])


def loss(output, batch):
    return nn.functional.cross_entropy(output, batch["labels"])
