"""Single faults in exports to ONNX: is the right layer named, with the right cause, and is a healthy graph aligned?

    python benchmarks/exports.py [--only WORD] [--keep DIR]

A fault is an edit of configs/models/encoder.onnx or resnet.onnx by the package onnx, against the model in PyTorch. `where`
and `causes` are regular expressions for the place and the title of the finding that explains most. A fault counts as
missed if nothing is found, as wrong if another place or cause is named first, as open if the place is right and the
answer is `not-identifiable` or no cause.
"""

from __future__ import annotations

import argparse
import os
import re
import runpy
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from parity.reporting.results.results import Results, read_results

MODELS = Path(__file__).parents[1] / "configs" / "models"
AT_ONCE = 8
"""Exports of one run."""

EDITED = """
import ast
import os
import tempfile

import numpy as np
import onnx
import onnx.version_converter
from onnx import helper, numpy_helper

MODEL = onnx.load({path!r})
GRAPH = MODEL.graph
GIVEN = {{item.name: item for item in GRAPH.initializer}}
NORMS = dict(np.load({norms!r}))


def node(scope, op, nth=0):
    found = [n for n in GRAPH.node if n.op_type == op and ast.literal_eval(n.metadata_props[0].value)[-2] == scope]
    return found[nth]


def option(found, name, value):
    kept = [item for item in found.attribute if item.name != name]
    del found.attribute[:]
    found.attribute.extend([*kept, helper.make_attribute(name, value)])


def without(found, place):
    for other in GRAPH.node:
        for i, name in enumerate(other.input):
            if name == found.output[0]:
                other.input[i] = found.input[place]
    GRAPH.node.remove(found)


def changed(name, change):
    array = change(numpy_helper.to_array(GIVEN[name]))
    GIVEN[name].CopyFrom(numpy_helper.from_array(np.ascontiguousarray(array), name))


def given(name, value, dtype=np.float32):
    GRAPH.initializer.append(numpy_helper.from_array(np.array(value, dtype), name))
    return name


def swapped(a, b, place):
    a.input[place], b.input[place] = b.input[place], a.input[place]


def in_parts(found, nodes):
    at = list(GRAPH.node).index(found)
    for kind, inputs, output in reversed(nodes):
        made = helper.make_node(kind, inputs, [output])
        made.metadata_props.extend(found.metadata_props)
        GRAPH.node.insert(at, made)
    GRAPH.node.remove(found)


def behind(value, kind, others=(), within=None, **options):
    maker = next(n for n in GRAPH.node if value in n.output)
    made = helper.make_node(kind, [value, *others], [f"{{value}}_{{kind}}"], **options)
    made.metadata_props.extend((within or maker).metadata_props)
    for other in GRAPH.node:
        for i, name in enumerate(other.input):
            if name == value:
                other.input[i] = made.output[0]
    GRAPH.node.insert(list(GRAPH.node).index(maker) + 1, made)
    return made.output[0]


def to_opset(version):
    MODEL.CopyFrom(onnx.version_converter.convert_version(MODEL, version))


def sorted_otherwise():
    left, found = list(GRAPH.node), []
    while left:
        read = {{name for n in left for name in n.input}}
        last = next(n for n in left if read.isdisjoint(n.output))
        left.remove(last)
        found.insert(0, last)
    copies = [onnx.NodeProto.FromString(n.SerializeToString()) for n in found]
    del GRAPH.node[:]
    GRAPH.node.extend(copies)


def optimized(level):
    import onnxruntime

    options = onnxruntime.SessionOptions()
    options.graph_optimization_level = getattr(onnxruntime.GraphOptimizationLevel, level)
    options.optimized_model_filepath = os.path.join(tempfile.mkdtemp(), "optimized.onnx")
    onnxruntime.InferenceSession(MODEL.SerializeToString(), options, providers=["CPUExecutionProvider"])
    MODEL.CopyFrom(onnx.load(options.optimized_model_filepath))


def in_float16(scope):
    first, last = node(scope, "MatMul"), node(scope, "Add")
    for found in (first, last):
        found.input[1] = given(f"{{found.name}}_16", numpy_helper.to_array(GIVEN[found.input[1]]), np.float16)
    x, y = first.input[0], last.output[0]
    first.input[0], last.output[0] = "x_16", "y_16"
    at = list(GRAPH.node).index(first)
    GRAPH.node.insert(at, helper.make_node("Cast", [x], ["x_16"], to=onnx.TensorProto.FLOAT16))
    GRAPH.node.insert(at + 3, helper.make_node("Cast", ["y_16"], [y], to=onnx.TensorProto.FLOAT))


def build_model():
    {edit}
    return MODEL
"""
"""A file with a function `build_model` that returns a shipped graph after an edit."""

GELU = """act = node("encoder.0.act", "Gelu")
    x, y, root, one, half = act.input[0], act.output[0], given("root", {root}), given("one", 1), given("half", 0.5)
    in_parts(act, [("Div", [x, root], "a"), ("Erf", ["a"], "b"), ("Add", ["b", one], "c"), ("Mul", [x, "c"], "d"),
                   ("Mul", ["d", half], y)])"""
NORM = """norm = node("encoder.1.norm1", "LayerNormalization")
    (x, weight, bias), y = norm.input, norm.output[0]
    axes, two, eps = given("axes", [-1], np.int64), given("two", 2), given("eps", {eps})
    in_parts(norm, [("ReduceMean", [x, axes], "a"), ("Sub", [x, "a"], "b"), ("Pow", ["b", two], "c"),
                    ("ReduceMean", ["c", axes], "d"), ("Add", ["d", eps], "e"), ("Sqrt", ["e"], "f"),
                    ("Div", ["b", "f"], "g"), ("Mul", ["g", weight], "h"), ("Add", ["h", bias], y)])"""
OTHER_NORM = """norm = node("encoder.1.norm1", "LayerNormalization")
    (x, weight, bias), y = norm.input, norm.output[0]
    axes, two, eps, n = given("axes", [-1], np.int64), given("two", 2), given("eps", 1e-12), given("n", 24 / 23)
    in_parts(norm, [("ReduceMean", [x, axes], "a"), ("Sub", [x, "a"], "b"), ("Pow", ["b", two], "c"),
                    ("ReduceMean", ["c", axes], "d0"), {step}, ("Add", ["d", eps], "e"), ("Sqrt", ["e"], "f"),
                    ("Div", ["b", "f"], "g"), ("Mul", ["g", weight], "h"), ("Add", ["h", bias], y)])"""
TANH = """act = node("encoder.0.act", "Gelu")
    x, y, three, cubic = act.input[0], act.output[0], given("three", 3), given("cubic", 0.044)
    root, one, half = given("root", (2 / np.pi) ** 0.5), given("one", 1), given("half", 0.5)
    in_parts(act, [("Pow", [x, three], "a"), ("Mul", ["a", cubic], "b"), ("Add", [x, "b"], "c"), ("Mul", ["c", root], "d"),
                   ("Tanh", ["d"], "e"), ("Add", ["e", one], "f"), ("Mul", [x, "f"], "g"), ("Mul", ["g", half], y)])"""
BARE = """for number, found in enumerate(GRAPH.node):
        found.name = f"n{number}"
        del found.metadata_props[:]"""
BARE_TOO, FUSED_TOO = f"\n    {BARE}", '\n    optimized("ORT_ENABLE_EXTENDED")'
FIRST, SECOND = '"encoder.0.attention"', '"encoder.1.attention'


@dataclass(frozen=True)
class Fault:
    """A fault by name: an edit of the graph of `model`."""

    name: str
    model: str
    edit: str
    where: str = ""
    causes: str = ""


def refolded(name: str, norm: str, text: str) -> str:
    """Another bias of a convolution that has a BatchNorm in it: `text` of its weight g, bias b, mean m and variance v."""
    for word in ("weight", "bias", "running_mean", "running_var"):
        text = re.sub(
            rf"\b{word.removeprefix('running_')[0]}\b", f'NORMS["{norm}.{word}"]' if word != "weight" else "w", text
        )
    return f'w = NORMS["{norm}.weight"]; changed("{name}", lambda _: np.float32({text}))'


def value_of(scope: str) -> str:
    """The name of a weight."""
    return f'node("{scope}", "MatMul").input[1]'


FAULTS = (
    Fault("eps", "encoder", 'option(node("encoder.0.norm2", "LayerNormalization"), "epsilon", 1e-3)', "encoder.0.norm2", "eps is 1e-12 in torch and 0.001"),
    Fault("gelu", "encoder", 'option(node("encoder.1.act", "Gelu"), "approximate", "tanh")', "encoder.1.act", "approximate is none in torch and tanh"),
    Fault("scale", "encoder", f'without(node({FIRST}, "Div"), 0)', "code of encoder.0.attention", r"one step differs.*matmul / 2\.828"),
    Fault("mask-complement", "encoder", f'without(node({FIRST}, "Sub"), 1)', "code of encoder.[01].attention", "one step differs.*1 - "),
    Fault("mask-small", "encoder", f'node({FIRST}, "Mul").input[1] = given("small", -10)', "code of encoder.[01].attention", "-10"),
    Fault("axis", "encoder", f'option(node({FIRST}, "Softmax"), "axis", -2)', "code of encoder.0.attention", r"softmax_dim is -1 in torch and -2|Softmax\(.*axis=-2\), where"),
    Fault("query-key", "encoder", f'swapped(node({FIRST}, "Transpose", 0), node({FIRST}, "Transpose", 2), 0)', "code of encoder.0.attention", "one step differs.*swapaxes"),
    Fault("heads", "encoder", f'without(node({FIRST}, "Transpose", 3), 0)', "code of encoder.0.attention", r"one step differs.*transpose\(matmul_2, 1, 2\)"),
    Fault("residual", "encoder", 'without(node("encoder.0", "Add"), 1)', "code of encoder.0", r"gets attention, where torch gives it x \+ attention"),
    Fault("float16", "encoder", 'in_float16("encoder.0.up")', "encoder.0.up", "computes in float16"),
    Fault("transposed", "encoder", f'changed({value_of("encoder.1.attention.value")}, np.transpose)', "encoder.1.attention.value.weight", "torch's transposed"),
    Fault("query-key-weights", "encoder", f'swapped(node({SECOND}.query", "MatMul"), node({SECOND}.key", "MatMul"), 1)', r"encoder.1.attention.(query|key).weight", "should have"),
    Fault("stale", "encoder", f'changed({value_of("encoder.1.down")}, lambda w: w + np.float32(1e-3) * np.sign(w))', "encoder.1.down.weight", "from another training step"),
    Fault("float16-weight", "encoder", f'changed({value_of("encoder.0.up")}, lambda w: w.astype(np.float16).astype(np.float32))', "encoder.0.up.weight", "rounded to float16"),
    Fault("bfloat16-weight", "encoder", f'changed({value_of("encoder.1.up")}, lambda w: ((w.view(np.uint32) + 0x8000) & 0xFFFF0000).view(np.float32))', "encoder.1.up.weight", "rounded to bfloat16"),
    Fault("8-bits", "encoder", f'changed({value_of("encoder.0.down")}, lambda w: np.rint(w / abs(w).max() * 127) * (abs(w).max() / 127))', "encoder.0.down.weight", "quantised to 8 bits"),
    Fault("positions", "encoder", 'changed("embedding_1", lambda w: np.roll(w, 1, 0))', "embedding_1", "torch's shifted by 1"),
    Fault("last-token", "encoder", 'node("", "Gather").input[1] = given("last", 8, np.int64)', "code of the model", "-1|8"),
    Fault("alpha", "encoder", 'option(node("classifier", "Gemm"), "alpha", 0.5)', "classifier", r"y = y \* 0\.5"),
    Fault("bias", "encoder", 'del node("classifier", "Gemm").input[2]', "classifier", "weight or bias is not applied"),
    Fault("gelu-root", "encoder", GELU.format(root=1.4), "encoder.0.act", r"one step differs"),
    Fault("norm-eps", "encoder", NORM.format(eps=1e-3), "encoder.1.norm1", "a different epsilon"),
    Fault("pads", "resnet", 'option(node("bn", "Conv"), "pads", [0, 0, 2, 2])', "layer bn", "padding is 1 in torch and"),
    Fault("dilation", "resnet", 'option(node("block2.bn2", "Conv"), "dilations", [2, 2]), option(node("block2.bn2", "Conv"), "pads", [2] * 4)', "block2.bn2", "dilation is 1 in torch and 2"),
    Fault("folded", "resnet", 'changed(node("block1.bn1", "Conv").input[1], lambda w: w * np.float32(1.01))', "block1.bn1.weight", "away from torch's"),
    Fault("include-pad", "resnet", 'option(node("avg", "AveragePool"), "count_include_pad", 0)', "layer avg", "count_include_pad is True in torch and False"),
    Fault("pool-pads", "resnet", 'option(node("pool", "MaxPool"), "pads", [0, 0, 2, 2])', "layer pool", "padding is 1 in torch and"),
    Fault("corners", "resnet", 'option(node("", "Resize"), "coordinate_transformation_mode", "align_corners")', "code of the model", "align_corners'"),
    Fault("nearest", "resnet", 'option(node("", "Resize"), "mode", "nearest")', "code of the model", "mode is|nearest"),
    Fault("leaky", "resnet", 'node("relu", "Relu").op_type = "LeakyRelu"', "layer relu", "its class is ReLU in torch and LeakyReLU"),
    Fault("shortcut", "resnet", 'without(node("block1", "Add"), 0)', "code of block1", r"gets bn2, where torch gives it bn2 \+ short"),
    Fault("mean-of-rows", "resnet", 'found = node("", "ReduceMean"); found.op_type = "ReduceMax"', "code of the model", "ReduceMax"),
    Fault("mask-of-ids", "encoder", 'GRAPH.node.insert(0, helper.make_node("Cast", ["ids"], ["real"], to=1)); GRAPH.node.insert(1, helper.make_node("Sign", ["real"], ["mask0"])); node("encoder.0.attention", "Unsqueeze").input[0] = "mask0"', "code of the model|encoder.[01]", "(?i)ids"),
    Fault("scale-of-width", "encoder", f'node({FIRST}, "Div").input[1] = given("width", 24 ** 0.5)', "code of encoder.0.attention", "4.89"),
    Fault("mask-not-added", "encoder", f'without(node({SECOND}", "Add"), 0)', "code of encoder.1.attention", "where torch has .*scores|-10000"),
    Fault("softmax-float16", "encoder", 'behind(behind("softmax", "Cast", to=10), "Cast", to=1)', "code of encoder.0.attention", "(?i)float16"),
    Fault("reshape-mixes", "encoder", f'node({FIRST}, "Reshape", 3).input[0] = node({FIRST}, "MatMul", 1).output[0]', "code of encoder.0.attention", "(?i)transpose"),
    Fault("key-heads", "encoder", f'found = node({FIRST}, "Reshape", 1); found.input[1] = given("shape", [4, 3, 9, 8], np.int64); option(node({FIRST}, "Transpose", 2), "perm", [0, 1, 3, 2])', "code of encoder.0.attention", "(?i)reshape|view"),
    Fault("temperature", "encoder", 'behind("div_1", "Mul", [given("warm", 1.1)])', "code of encoder.1.attention", "1.1"),
    Fault("mask-of-two", "encoder", f'node({FIRST}, "Sub").input[0] = given("two", 2)', "code of encoder.[01].attention|encoder.0.attention", "2 - "),
    Fault("clipped", "encoder", 'behind("matmul", "Clip", [given("low", -1), given("high", 1)])', "code of encoder.0.attention", "(?i)clip"),
    Fault("key-for-value", "encoder", f'node({SECOND}", "MatMul", 1).input[1] = node({SECOND}", "Transpose", 0).output[0]', "code of encoder.1.attention", "query|q"),
    Fault("log-softmax", "encoder", f'node({FIRST}, "Softmax").op_type = "LogSoftmax"', "code of encoder.0.attention", "(?i)log_?softmax"),
    Fault("residual-half", "encoder", 'behind("linear_11", "Mul", [given("half", 0.5)])', "encoder.1", "0.5|half"),
    Fault("residual-early", "encoder", 'node("encoder.0", "Add", 1).input[0] = "layer_norm"', "code of encoder.0", "attention|norm1|x"),
    Fault("positions-twice", "encoder", 'behind("add", "Add", ["embedding_1"])', "code of the model", "(?i)position|embedding|2"),
    Fault("norm-unbiased", "encoder", OTHER_NORM.format(step='("Mul", ["d0", n], "d")'), "encoder.1.norm1", "unbiased|variance|24"),
    Fault("norm-no-root", "encoder", OTHER_NORM.format(step='("Mul", ["d0", "d0"], "d")'), "encoder.1.norm1", ""),
    Fault("gelu-tanh-parts", "encoder", TANH, "encoder.0.act", "(?i)tanh"),
    Fault("gelu-quick", "encoder", """act = node("encoder.0.act", "Gelu")
    x, y, k = act.input[0], act.output[0], given("k", 1.702)
    in_parts(act, [("Mul", [x, k], "a"), ("Sigmoid", ["a"], "b"), ("Mul", [x, "b"], y)])""", "encoder.0.act", "(?i)sigmoid|1.702"),
    Fault("mean-forgotten", "resnet", refolded("block1.conv2.weight_bias", "block1.bn2", "b"), "block1.bn2", "running_mean|running mean"),
    Fault("eps-in-fold", "resnet", refolded("block1.conv2.weight_bias", "block1.bn2", "b - m * w / np.sqrt(v + 1e-2)"), "block1.bn2", "eps"),
    Fault("mean-added", "resnet", refolded("block2.conv1.weight_bias", "block2.bn1", "b + m * w / np.sqrt(v + 1e-5)"), "block2.bn1", "running_mean|running mean"),
    Fault("weight-not-folded", "resnet", 'w = NORMS["block2.bn2.weight"]; changed(node("block2.bn2", "Conv").input[1], lambda k: np.float32(k / w[:, None, None, None]))', "block2.bn2", "weight"),
    Fault("pad-reflect", "resnet", 'found = node("block2.bn2", "Conv"); option(found, "pads", [0] * 4); found.input[0] = behind("relu_3", "Pad", [given("ends", [0, 0, 1, 1, 0, 0, 1, 1], np.int64)], within=found, mode="reflect")', "block2", "padding has other values|reflect"),
    Fault("pad-one", "resnet", 'option(node("avg", "AveragePool"), "pads", [0] * 4); behind("relu_4", "Pad", [given("ends", [0, 0, 1, 1, 0, 0, 1, 1], np.int64), given("one", 1)], node("avg", "AveragePool"))', "avg|code of the model", "(?i)pad|1"),
    Fault("asymmetric", "resnet", 'option(node("", "Resize"), "coordinate_transformation_mode", "asymmetric")', "code of the model", "(?i)asymmetric"),
    Fault("one-axis", "resnet", 'found = node("", "ReduceMean"); found.input[1] = given("three", [3], np.int64); behind("mean", "Gather", [given("first", 0, np.int64)], axis=2)', "code of the model", r"3"),
    Fault("shortcut-half", "resnet", 'behind("conv2d_3", "Mul", [given("half", 0.5)])', "block1", "0.5"),
    Fault("relu-before", "resnet", 'node("block1", "Add").input[0] = behind("getitem_6", "Relu")', "block1", "(?i)relu"),
    Fault("channels", "resnet", 'behind("max_pool2d", "Gather", [given("order", [1, 0, 2, 3, 4, 5, 6, 7], np.int64)], node("block1.bn1", "Conv"), axis=1); node("block1.short", "Conv").input[0] = "max_pool2d"', "code of block1|block1.bn1", r"1, 0, 2"),
    Fault("scale-bare", "encoder", f'without(node({FIRST}, "Div"), 0)' + BARE_TOO, "code of the model", r"scores = matmul, where torch has matmul / 2\.828"),
    Fault("eps-bare", "encoder", 'option(node("encoder.0.norm2", "LayerNormalization"), "epsilon", 1e-3)' + BARE_TOO, "code of the model", "epsilon=1e-3"),
    Fault("clipped-fused", "encoder", 'behind("matmul", "Clip", [given("low", -1), given("high", 1)])' + FUSED_TOO, "code of the model", r"Clip\(matmul, -1, 1\)"),
    Fault("residual-fused", "encoder", 'without(node("encoder.0", "Add"), 1)' + FUSED_TOO, "code of the model", r"out, where torch has x \+ out"),
    Fault("relu-fused", "resnet", 'node("block1", "Add").input[0] = behind("getitem_6", "Relu")' + FUSED_TOO, "code of the model", r"Relu\(bn2\), where torch has bn2"),
    Fault("half-fused", "resnet", 'behind("conv2d_3", "Mul", [given("half", 0.5)])' + FUSED_TOO, "short", "its weight and bias are not torch's"),
    Fault("shortcut-relu", "resnet", 'behind("conv2d_6", "Relu")', "block2", "(?i)relu"),
)  # fmt: skip

HEALTHY = (
    Fault("encoder-as-shipped", "encoder", "pass"),
    Fault("gelu-in-parts", "encoder", GELU.format(root="2**0.5")),
    Fault("norm-in-parts", "encoder", NORM.format(eps=1e-12)),
    Fault("encoder-without-scopes", "encoder", BARE),
    Fault("resnet-as-shipped", "resnet", "pass"),
    Fault("resnet-without-scopes", "resnet", BARE),
    Fault("resnet-opset-21", "resnet", "to_opset(21)"),
    Fault("encoder-opset-21", "encoder", "to_opset(21)"),
    Fault("another-order", "encoder", "sorted_otherwise()"),
    Fault("encoder-fused", "encoder", 'optimized("ORT_ENABLE_EXTENDED")'),
    Fault("resnet-fused", "resnet", 'optimized("ORT_ENABLE_EXTENDED")'),
)


def norms_of(folder: Path) -> Path:
    """The weights and statistics of the BatchNorms in resnet_torch.py, as a file."""
    state = runpy.run_path(str(MODELS / "resnet_torch.py"))["build_model"]().state_dict()
    path = folder / "norms.npz"
    np.savez(path, **{name: value.numpy() for name, value in state.items() if "bn" in name})
    return path


def config_of(folder: Path, faults: Sequence[Fault]) -> Path:
    """A config of a model and exports with these faults."""
    model = faults[0].model
    norms = norms_of(folder)
    lines = [f"{{name: torch, adapter: torch, ops: {MODELS / f'{model}_torch.py'}}}"]
    for fault in faults:
        text = EDITED.format(path=str(MODELS / f"{model}.onnx"), norms=str(norms), edit=fault.edit)
        (folder / f"{fault.name}.py").write_text(text)
        lines.append(f"{{name: {fault.name}, adapter: onnxruntime, ops: ./{fault.name}.py}}")
    path = folder / "exports.yaml"
    case = f"{{id: {model}, kind: model, targets: [labels]}}"
    path.write_text(f"version: 1\ndtypes: [float32]\nbackends: [{', '.join(lines)}]\ncases: [{case}]\n")
    return path


def judged(fault: Fault, results: Results) -> tuple[str, str]:
    """How a fault was judged, and what was said."""
    failed = [row.message for row in results.outcomes if row.backend == fault.name and row.outcome != "ok"]
    if failed:
        return "failed", failed[0]
    ours = [row for row in results.diagnoses if row.backend == fault.name]
    if not fault.where:
        return ("aligned", "") if not ours else ("false alarm", "; ".join(row.title for row in ours))
    if not ours:
        return "missed", ""
    main = max(ours, key=lambda row: row.evidence.get("share") or 0.0)
    said = f"{main.title} [{main.id}] {main.evidence.get('expression', '')}"
    if not re.search(fault.where, str(main.evidence.get("place", ""))):
        return "wrong place", said
    if not main.explained:
        return "open", said
    return ("right" if re.search(fault.causes, said) else "wrong cause"), said


def groups(only: str) -> list[list[Fault]]:
    """The faults of a model that run together."""
    found = []
    for model in ("encoder", "resnet"):
        chosen = [fault for fault in (*HEALTHY, *FAULTS) if fault.model == model and re.search(only, fault.name)]
        found += [chosen[i : i + AT_ONCE] for i in range(0, len(chosen), AT_ONCE)]
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", default="")
    parser.add_argument("--keep", type=Path)
    options = parser.parse_args()
    print(f"{os.cpu_count()} cores, load {os.getloadavg()[0]:.1f}")
    counted: Counter[str] = Counter()
    with tempfile.TemporaryDirectory() as name:
        for number, faults in enumerate(groups(options.only)):
            folder, began = (options.keep or Path(name)) / str(number), time.monotonic()
            folder.mkdir(parents=True, exist_ok=True)
            command = [sys.executable, "-m", "parity", "run", config_of(folder, faults), "--out", folder / "out", "-q"]
            subprocess.run(command, capture_output=True, timeout=900)
            results, each = read_results(folder / "out"), (time.monotonic() - began) / len(faults)
            for fault in faults:
                how, said = judged(fault, results)
                counted[how] += 1
                print(f"{how:12} {fault.name:24} {each:5.1f} s  {' '.join(said.split())[:230]}", flush=True)
    print(", ".join(f"{n} {how}" for how, n in counted.most_common()))


if __name__ == "__main__":
    main()
