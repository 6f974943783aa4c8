"""Writes bert_torch.py's model as `bert.onnx`, and its batch as `bert.npz`: needs torch, onnx and onnxscript."""

import bert_torch
import numpy as np
import torch

NAMES = ("tokens", "segments", "valid")


def export():
    model, batch = bert_torch.build_model().eval(), bert_torch.make_batch()
    tensors = tuple(torch.from_numpy(batch[name]) for name in NAMES)
    torch.onnx.export(model, tensors, "bert.onnx", input_names=NAMES, output_names=["logits"], external_data=False)
    np.savez("bert.npz", **{name: batch[name] for name in NAMES})


if __name__ == "__main__":
    export()
