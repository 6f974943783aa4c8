"""Training in Paddle with the model as a static program."""

from __future__ import annotations

from parity.adapters.paddle.trainer import PaddleTrainer


class StaticTrainer(PaddleTrainer):
    """The model through `paddle.jit.to_static` in one program, forward and backward; the rest is dynamic."""

    def build(self) -> None:
        super().build()
        self.model = self.framework.jit.to_static(self.module, full_graph=True)
