"""Single faults in ports of models: is the right layer named, with the right cause, and is a healthy port aligned?

    python benchmarks/models.py [--only WORD] [--keep DIR]

A fault is a change of the text of a port in configs/models: the PaddlePaddle or Keras port against the PyTorch one. `where` and
`causes` are regular expressions for the place and for the id, title or formula of the finding that explains most. A
fault counts as missed if nothing is found, as wrong if another place or cause is named first, as open if the place is
right and the answer is `not-identifiable` or no cause.
"""

from __future__ import annotations

import argparse
import os
import re
import subprocess
import sys
import tempfile
import time
from collections import Counter
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from parity.reporting.results.results import read_results

PORTS = Path(__file__).parents[1] / "configs" / "models"
EVAL, TRAIN = "loss: loss", "loss: loss, mode: train"
OWN = "loss: loss, weights: own"


@dataclass(frozen=True)
class Fault:
    """A fault by name: in the port of `model` in `framework`, text `old` is `new`; `options` of the case."""

    name: str
    model: str
    old: str
    new: str
    where: str
    causes: str
    options: str = EVAL
    framework: str = "paddle"


NORM = "self.norm2 = nn.LayerNorm(HIDDEN, epsilon=1e-12)"
BN = "self.bn1 = nn.BatchNorm2D(cout)"
RESIDUAL = "return self.norm2(x + self.dropout(self.down(self.act(self.up(x)))))"
ATTENDED = "self.norm1(x + self.dropout(self.attention(x, mask)))"
BUILT = "    return Encoder()"
STEM = "self.stem = nn.Conv2D(3, 8, 3, padding=1)"
ATTENTION, BLOCK = r"code of encoder\.\d\.attention", r"code of encoder\.\d"

FAULTS = (
    Fault("eps-1e-5", "encoder", NORM, NORM.replace("1e-12", "1e-5"), r"norm2", r"eps is|eps-value"),
    Fault(
        "eps-1e-3-first",
        "encoder",
        "self.norm = nn.LayerNorm(HIDDEN, epsilon=1e-12)",
        "self.norm = nn.LayerNorm(HIDDEN, epsilon=1e-3)",
        r"layer norm\b",
        r"eps is|eps-value",
    ),
    Fault("gelu-tanh", "encoder", "nn.GELU()", "nn.GELU(approximate=True)", r"act", r"approximate is|gelu"),
    Fault("relu", "encoder", "nn.GELU()", "nn.ReLU()", r"act", r"."),
    Fault("query-key-swapped", "encoder", "q, k, v = (layer", "k, q, v = (layer", ATTENTION, r"."),
    Fault("scale-missing", "encoder", " / (HIDDEN // HEADS) ** 0.5", "", ATTENTION, r"2\.828"),
    Fault("scale-of-hidden", "encoder", " / (HIDDEN // HEADS) ** 0.5", " / HIDDEN ** 0.5", ATTENTION, r"scores|matmul"),
    Fault("mask-complement", "encoder", "(1.0 - mask[:, None, None, :])", "mask[:, None, None, :]", ATTENTION, r"1 - "),
    Fault("mask-small", "encoder", "* -10000.0", "* -10.0", ATTENTION, r"-10"),
    Fault(
        "mask-missing",
        "encoder",
        "scores = scores + (1.0 - mask[:, None, None, :]) * -10000.0",
        "pass",
        ATTENTION,
        r".",
    ),
    Fault("softmax-axis", "encoder", "softmax(scores, -1)", "softmax(scores, -2)", ATTENTION, r"dim|axis|swapaxes"),
    Fault(
        "heads-not-transposed",
        "encoder",
        ".transpose([0, 2, 1, 3]).reshape([b, n, HIDDEN])",
        ".reshape([b, n, HIDDEN])",
        ATTENTION,
        r".",
    ),
    Fault(
        "pre-norm",
        "encoder",
        RESIDUAL,
        "return x + self.dropout(self.down(self.act(self.up(self.norm2(x)))))",
        BLOCK,
        r".",
    ),
    Fault("residual-missing", "encoder", ATTENDED, "self.norm1(self.dropout(self.attention(x, mask)))", BLOCK, r"."),
    Fault(
        "residual-twice", "encoder", ATTENDED, "self.norm1(x + x + self.dropout(self.attention(x, mask)))", BLOCK, r"."
    ),
    Fault(
        "position-offset",
        "encoder",
        "paddle.arange(ids.shape[1])",
        "paddle.clip(paddle.arange(ids.shape[1]) - 1, min=0)",
        r"code of the model|positions",
        r"positions",
    ),
    Fault("last-token", "encoder", "x[:, 0]", "x[:, -1]", r"code of the model", r"classifier|slice|-1"),
    Fault(
        "dropout-left-on",
        "encoder",
        BUILT,
        "    model = Encoder()\n    model.eval()\n    model.eval = lambda: None\n"
        "    model.encoder[1].dropout.train()\n    return model",
        r"encoder\.1\.dropout",
        r"training is|nondeterministic",
    ),
    Fault(
        "label-smoothing",
        "encoder",
        'cross_entropy(output, batch["labels"])',
        'cross_entropy(output, batch["labels"], label_smoothing=0.1)',
        r"loss",
        r"smooth",
    ),
    Fault(
        "loss-summed",
        "encoder",
        'cross_entropy(output, batch["labels"])',
        'cross_entropy(output, batch["labels"], reduction="sum")',
        r"loss",
        r"reduction|scaled|sum",
    ),
    Fault(
        "softmax-before-loss",
        "encoder",
        "cross_entropy(output,",
        "cross_entropy(nn.functional.softmax(output),",
        r"loss",
        r"probability|softmax",
    ),
    Fault(
        "bfloat16-in-a-layer",
        "encoder",
        "self.down(self.act(self.up(x)))",
        'self.down(self.act(self.up(x.astype("bfloat16").astype("float32"))))',
        BLOCK,
        r"bfloat16|rounded|precision",
    ),
    Fault(
        "square-weight-transposed",
        "encoder",
        BUILT,
        "    model = Encoder()\n    layer = model.encoder[1].attention.value\n"
        "    forward = layer.forward\n    layer.forward = lambda x: nn.functional.linear(x, layer.weight.t(), layer.bias)\n"
        "    return model",
        r"encoder\.1\.attention\.value",
        r"transpos|.",
    ),
    Fault(
        "bias-dropped",
        "encoder",
        BUILT,
        "    model = Encoder()\n    layer = model.encoder[0].up\n"
        "    layer.forward = lambda x: nn.functional.linear(x, layer.weight)\n    return model",
        r"encoder\.0\.up",
        r"bias|affine",
    ),
    Fault("weights-tied-in-one", "encoder", "", "", r"classifier\.weight", r"untied|one parameter"),
    Fault("layer-not-loaded", "encoder", "", "", r"encoder\.1\.down", r"weights-differ|not loaded", OWN),
    Fault("square-weight-loaded-transposed", "encoder", "", "", r"encoder\.0\.attention\.out", r"transposed", OWN),
    Fault("query-key-loaded-swapped", "encoder", "", "", r"attention\.(query|key)", r"should have", OWN),
    Fault("bn-eps", "resnet", BN, "self.bn1 = nn.BatchNorm2D(cout, epsilon=1e-3)", r"bn1", r"eps is|eps-value"),
    Fault(
        "bn-momentum",
        "resnet",
        "self.bn = nn.BatchNorm2D(8)",
        "self.bn = nn.BatchNorm2D(8, momentum=0.99)",
        r"layer bn\b",
        r"momentum",
        TRAIN,
    ),
    Fault(
        "bn-training-in-eval",
        "resnet",
        "    return Net()",
        "    model = Net()\n    model.eval()\n"
        "    model.eval = lambda: None\n    model.block1.bn2.train()\n    return model",
        r"block1\.bn2",
        r"training is|batch-norm",
    ),
    Fault(
        "bn-eval-in-training",
        "resnet",
        "    return Net()",
        "    model = Net()\n    train = model.train\n"
        "    model.train = lambda: (train(), model.block2.bn1.eval())\n    return model",
        r"block2\.bn1",
        r"training is|batch-norm|statistics",
        TRAIN,
    ),
    Fault(
        "padding",
        "resnet",
        STEM,
        'self.stem = nn.Conv2D(3, 8, 3, padding=1, padding_mode="replicate")',
        r"stem",
        r"padding",
    ),
    Fault(
        "leaky-relu",
        "resnet",
        "        self.relu = nn.ReLU()\n        self.pool",
        "        self.relu = nn.LeakyReLU(0.01)\n        self.pool",
        r"layer relu",
        r"its class|negative_slope",
    ),
    Fault(
        "dilation",
        "resnet",
        "self.conv2 = nn.Conv2D(cout, cout, 3, padding=1, bias_attr=False)",
        "self.conv2 = nn.Conv2D(cout, cout, 3, padding=2, dilation=2, bias_attr=False)",
        r"conv2",
        r"dilation",
    ),
    Fault(
        "align-corners",
        "resnet",
        "align_corners=False",
        "align_corners=True",
        r"code of the model",
        r"align|coordinate",
    ),
    Fault("nearest", "resnet", 'mode="bilinear", align_corners=False', 'mode="nearest"', r"code of the model", r"."),
    Fault("avg-pool-exclusive", "resnet", "padding=1, exclusive=False", "padding=1", r"avg", r"count_include_pad"),
    Fault(
        "max-pool-avg",
        "resnet",
        "self.pool = nn.MaxPool2D(3, stride=2, padding=1)",
        "self.pool = nn.AvgPool2D(3, stride=2, padding=1)",
        r"pool",
        r".",
    ),
    Fault(
        "relu-missing",
        "resnet",
        "return self.relu(y + self.short(x))",
        "return y + self.short(x)",
        r"code of block\d|relu",
        r"calls .* once, torch twice",
    ),
    Fault("mean-of-rows", "resnet", "x.mean((2, 3))", "x.max((2, 3))", r"code of the model", r"."),
)

KERAS_UP = 'layers.Dense(INNER, activation="gelu")'
KERAS_STEM = "self.stem = padded(8)"
IMAGES, IMAGES_TRAIN = "forward: forward, loss: loss", "forward: forward_training, loss: loss, mode: train"
KERAS_FAULTS = tuple(
    Fault(f"keras-{name}", model, old, new, where, causes, options, "keras")
    for name, model, old, new, where, causes, options in (
        ("eps-default", "encoder", "self.norm2 = layers.LayerNormalization(epsilon=1e-12)",
         "self.norm2 = layers.LayerNormalization()", r"norm2", r"eps is 1e-12 in torch and 0\.001", EVAL),
        ("gelu-tanh", "encoder", KERAS_UP,
         "layers.Dense(INNER, activation=lambda x: keras.activations.gelu(x, approximate=True))", r"up_activation",
         r"gelu|approximate|tanh", EVAL),
        ("relu", "encoder", KERAS_UP, 'layers.Dense(INNER, activation="relu")', r"up_activation", r"its class|relu", EVAL),
        ("silu", "encoder", KERAS_UP, 'layers.Dense(INNER, activation="silu")', r"up_activation", r"its class|silu", EVAL),
        ("activation-missing", "encoder", KERAS_UP, "layers.Dense(INNER)", BLOCK, r".", EVAL),
        ("mask-complement", "encoder", 'ops.cast(mask[:, None, :], "bool")', 'ops.cast(1 - mask[:, None, :], "bool")',
         r"code of encoder\.\d", r".", EVAL),
        ("mask-missing", "encoder", ", attention_mask=seen", "", r"code of encoder\.\d", r".", EVAL),
        ("causal", "encoder", "attention_mask=seen", "attention_mask=seen, use_causal_mask=True", ATTENTION, r".", EVAL),
        ("scale-of-hidden", "encoder", "self.norm1 = ", "self.attention._inverse_sqrt_key_dim = HIDDEN**-0.5\n"
         "        self.norm1 = ", ATTENTION, r".", EVAL),
        ("query-key-swapped", "encoder", "self.norm1 = ", "self.attention._compute_attention = swapped(self.attention)\n"
         "        self.norm1 = ", ATTENTION, r".", EVAL),
        ("pre-norm", "encoder", "return self.norm2(x + self.down(self.up(x)))",
         "return x + self.down(self.up(self.norm2(x)))", BLOCK, r".", EVAL),
        ("residual-missing", "encoder", "self.norm1(x + self", "self.norm1(self", BLOCK, r".", EVAL),
        ("position-offset", "encoder", "ops.arange(ids.shape[1])", "ops.maximum(ops.arange(ids.shape[1]) - 1, 0)",
         r"code of the model|positions", r"positions", EVAL),
        ("last-token", "encoder", "x[:, 0]", "x[:, -1]", r"code of the model", r"classifier|slice|-1", EVAL),
        ("loss-summed", "encoder", "ops.mean(keras.losses", "ops.sum(keras.losses", r"loss", r"reduction|scaled|sum", EVAL),
        ("softmax-before-loss", "encoder", 'batch["labels"], output, from', 'batch["labels"], 1.0 * ops.softmax(output), from',
         r"loss", r"probability|softmax", EVAL),
        ("bfloat16-in-a-layer", "encoder", "self.down(self.up(x))",
         'self.down(self.up(ops.cast(ops.cast(x, "bfloat16"), "float32")))', BLOCK, r"bfloat16|rounded|precision", EVAL),
        ("bn-eps-default", "resnet", "self.bn1 = layers.BatchNormalization(epsilon=1e-5, momentum=0.9)",
         "self.bn1 = layers.BatchNormalization(momentum=0.9)", r"bn1", r"eps is|eps-value", IMAGES),
        ("bn-momentum-default", "resnet", "self.bn = layers.BatchNormalization(epsilon=1e-5, momentum=0.9)",
         "self.bn = layers.BatchNormalization(epsilon=1e-5)", r"layer bn\b", r"momentum", IMAGES_TRAIN),
        ("bn-training-in-eval", "resnet", "self.bn1(self.conv1(x))", "self.bn1(self.conv1(x), training=True)", r"bn1",
         r"training is|batch-norm|statistics", IMAGES),
        ("leaky-relu", "resnet", "        self.relu = layers.ReLU()\n        self.edge",
         "        self.relu = layers.LeakyReLU(0.01)\n        self.edge", r"layer relu", r"its class|negative_slope", IMAGES),
        ("dilation", "resnet", "self.conv2 = padded(cout, use_bias=False)",
         "self.conv2 = padded(cout, use_bias=False, dilation_rate=2)", r"conv2", r"dilation", IMAGES),
        ("nearest", "resnet", '2, interpolation="bilinear"', "2", r"upsample|code of the model", r".", IMAGES),
        ("avg-pool-same", "resnet", "self.avg(self.edge(x))", "layers.AveragePooling2D(3, strides=1, padding='same')(x)",
         r"avg|code of the model", r".", IMAGES),
        ("max-pool-same", "resnet", "self.pool(self.edge(", "self.pool((", r"pool", r".", IMAGES),
        ("max-pool-avg", "resnet", "self.pool = layers.MaxPooling2D", "self.pool = layers.AveragePooling2D", r"pool", r".",
         IMAGES),
        ("relu-missing", "resnet", "return self.relu(y + self.short(x))", "return y + self.short(x)",
         r"code of block\d|relu", r"calls .* once, torch twice", IMAGES),
        ("rows-and-columns-swapped", "resnet", "(0, 2, 3, 1)", "(0, 3, 2, 1)", r"code of the model|stem|the model", r".",
         IMAGES),
    )
)  # fmt: skip
KERAS_SWAPPED = """

def swapped(attention):
    compute = type(attention)._compute_attention
    return lambda q, k, v, *rest, **options: compute(attention, k, q, v, *rest, **options)
"""

HEALTHY = (
    Fault("healthy-keras-encoder", "encoder", "", "", "", "", EVAL, "keras"),
    Fault("healthy-keras-resnet", "resnet", "", "", "", "", IMAGES, "keras"),
    Fault("healthy-keras-resnet-train", "resnet", "", "", "", "", IMAGES_TRAIN, "keras"),
    Fault("healthy-encoder", "encoder", "", "", "", ""),
    Fault(
        "healthy-encoder-train-functional", "encoder", "self.act(self.up(x))", "nn.functional.gelu(self.up(x))", "", ""
    ),
    Fault("healthy-resnet", "resnet", "", "", "", ""),
    Fault("healthy-encoder-own", "encoder", "", "", "", "", OWN),
)

NAMED = r"where torch has|training is"
"""What an answer says that names no cause, and yet the fault: the values of indices, and a layer in another mode."""

CONVERTED = """

def _converted():
    import numpy as np
    import torch, importlib.util
    spec = importlib.util.spec_from_file_location("torch_port", {port!r})
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    torch.manual_seed(0)
    theirs = {{name: value.detach().numpy() for name, value in module.build_model().state_dict().items()}}
    model = Encoder()
    for name, layer in model.named_sublayers():
        for own, tensor in layer._parameters.items():
            if tensor is not None:
                value = theirs[f"{{name}}.{{own}}"]
                tensor.set_value(value.T if isinstance(layer, nn.Linear) and own == "weight" else value)
    {change}
    return model


build_model = _converted
"""
CHANGES = {
    "healthy-encoder-own": "pass",
    "layer-not-loaded": "model.encoder[1].down.weight.set_value(nn.Linear(INNER, HIDDEN).weight)",
    "square-weight-loaded-transposed": "w = model.encoder[0].attention.out.weight; w.set_value(w.numpy().T)",
    "query-key-loaded-swapped": "a = model.encoder[1].attention; q, k = a.query.weight.numpy(), a.key.weight.numpy(); "
    "a.query.weight.set_value(k); a.key.weight.set_value(q)",
}
"""Ports with converted weights of their own: what goes wrong in the conversion."""


def port_of(fault: Fault, folder: Path) -> tuple[str, str]:
    """The texts of both ports."""
    torch, other = ((PORTS / f"{fault.model}_{name}.py").read_text() for name in ("torch", fault.framework))
    other += KERAS_SWAPPED if fault.framework == "keras" else ""
    if fault.name in CHANGES:
        other += CONVERTED.format(port=str(folder / "torch_port.py"), change=CHANGES[fault.name])
    elif fault.name == "weights-tied-in-one":
        classifier = "self.classifier = nn.Linear(HIDDEN, CLASSES)"
        torch = torch.replace(classifier, "self.classifier = nn.Linear(HIDDEN, VOCABULARY)\n"
                              "        self.classifier.weight = self.words.weight")  # fmt: skip
        other = other.replace(classifier, "self.classifier = nn.Linear(HIDDEN, VOCABULARY)")
    elif fault.old:
        if fault.old not in other:
            raise SystemExit(f"{fault.name}: {fault.old!r} is not in the port")
        other = other.replace(fault.old, fault.new)
    return torch, other


def run(fault: Fault, folder: Path) -> tuple[str, str]:
    """How a fault was judged, and what was said."""
    folder.mkdir(parents=True, exist_ok=True)
    torch, other = port_of(fault, folder)
    (folder / "torch_port.py").write_text(torch)
    (folder / "other_port.py").write_text(other)
    targets = "" if "forward:" in fault.options else "targets: [labels], "
    (folder / "config.yaml").write_text(
        "version: 1\ndtypes: [float32]\nbackends: [{name: torch, adapter: torch, ops: ./torch_port.py}, "
        f"{{name: {fault.framework}, adapter: {fault.framework}, ops: ./other_port.py}}]\n"
        f"cases: [{{id: model, kind: model, {targets}{fault.options}}}]\n"
    )
    command = [sys.executable, "-m", "parity", "run", "config.yaml", "--out", "out", "-q"]
    done = subprocess.run(command, cwd=folder, capture_output=True, text=True, timeout=900)
    if done.returncode not in (0, 1):
        return "failed", (done.stdout + done.stderr).strip()[-300:]
    return judged(fault, folder / "out")


def judged(fault: Fault, out: Path) -> tuple[str, str]:
    """The judgement of a run's result."""
    results = read_results(out)
    ours = [d for d in results.diagnoses if d.id != "running-var-ddof"]
    if not fault.where:
        return ("aligned", "") if not ours else ("false alarm", "; ".join(d.title for d in ours))
    if not ours:
        return "missed", ""
    main = max(ours, key=weight)
    said = f"{main.title} [{main.id}] {main.evidence.get('expression', '')} {main.evidence.get('parameters', '')}"
    if not re.search(fault.where, str(main.evidence.get("place", ""))):
        return "wrong place", said
    if main.id in ("unexplained", "not-identifiable") or (not main.explained and not re.search(NAMED, said)):
        return "open", said
    return ("right" if re.search(fault.causes, said) else "wrong cause"), said


def weight(diagnosis: Any) -> tuple[float, float]:
    """How much a finding explains."""
    share, ratio = diagnosis.evidence.get("share"), diagnosis.residual_before
    return (abs(share or 0.0), ratio if ratio is not None and ratio == ratio else 0.0)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", default="")
    parser.add_argument("--keep", type=Path)
    options = parser.parse_args()
    print(f"{os.cpu_count()} cores, load {os.getloadavg()[0]:.1f}")
    counted: Counter[str] = Counter()
    with tempfile.TemporaryDirectory() as name:
        for fault in (*HEALTHY, *FAULTS, *KERAS_FAULTS):
            if options.only in fault.name:
                began = time.monotonic()
                how, said = run(fault, (options.keep or Path(name)) / fault.name)
                counted[how] += 1
                print(
                    f"{how:12} {fault.name:32} {time.monotonic() - began:5.1f} s  {' '.join(said.split())[:230]}",
                    flush=True,
                )
    print(", ".join(f"{n} {how}" for how, n in counted.most_common()))


if __name__ == "__main__":
    main()
