"""Writes the models of encoder_torch.py and resnet_torch.py as `encoder.onnx` and `resnet.onnx`: needs torch, onnx and
onnxscript."""

from pathlib import Path

import encoder_torch
import resnet_torch
import torch

SCOPES = "pkg.torch.onnx.name_scopes"


def export(port, names, path):
    torch.manual_seed(0)
    model, batch = port.build_model().eval(), port.make_batch()
    tensors = tuple(torch.from_numpy(batch[name]) for name in names)
    program = torch.onnx.export(model, tensors, input_names=names, output_names=["output"], dynamo=True, verbose=False)
    Path(path).write_bytes(smaller(program.model_proto).SerializeToString(deterministic=True))


def smaller(model):
    """Without what only a debugger reads: stack traces, the shapes of values."""
    graph = model.graph
    for item in (*graph.node, *graph.input, *graph.output, *graph.initializer, graph, model):
        kept = [(entry.key, entry.value) for entry in item.metadata_props if entry.key == SCOPES]
        del item.metadata_props[:]
        for key, value in kept:
            item.metadata_props.add(key=key, value=value)
    del graph.value_info[:]
    return model


if __name__ == "__main__":
    export(encoder_torch, ("ids", "mask"), "encoder.onnx")
    export(resnet_torch, ("x",), "resnet.onnx")
