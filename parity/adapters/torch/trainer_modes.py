"""Trainings in PyTorch's modes of execution."""

from __future__ import annotations

from typing import Any

from parity.adapters.base import Unsupported
from parity.adapters.torch.modes import in_bfloat16
from parity.adapters.torch.trainer import TorchTrainer


class CompileTrainer(TorchTrainer):
    """The model through `torch.compile` in one graph, forward and backward; loss and optimizer are eager."""

    def build(self) -> None:
        super().build()
        self.framework.compiler.reset()
        self.model = self.framework.compile(self.module, fullgraph=True, dynamic=False)


class ChannelsLastTrainer(TorchTrainer):
    """Images and the weights of convolutions in memory as NHWC."""

    def build(self) -> None:
        super().build()
        if not any(parameter.dim() == 4 for parameter in self.parameters.values()):
            raise Unsupported("channels_last is an order of four axes, and no parameter has as many")
        self.module.to(memory_format=self.framework.channels_last)


class AmpTrainer(TorchTrainer):
    """Forward passes under `torch.autocast` to bfloat16; the output and the loss are in the weights' dtype."""

    def forward(self, x: Any) -> Any:
        output = in_bfloat16(self.framework, self.adapter.device, self.model, x)
        return output.to(getattr(self.framework, self.job.dtype))
