"""Data-parallel trainings: each rank computes its part of every micro-batch; the framework averages gradients."""

from __future__ import annotations

import os
from contextlib import nullcontext
from typing import Any

import numpy as np

from parity.adapters.base import Unsupported
from parity.training.worker.oneflow_trainer import OneflowTrainer
from parity.training.worker.paddle_trainer import PaddleTrainer
from parity.training.worker.torch_trainer import TorchTrainer
from parity.training.worker.trainer import Trainer, mean


class RanksTrainer(Trainer):
    """Gathers what a step shows by the framework's collectives; `model` is wrapped in its data-parallel class."""

    n_passed = 0
    model: Any

    def build(self) -> None:
        self.rank = int(os.environ["RANK"])
        super().build()
        self.model = self.parallel(self.model)

    def parallel(self, model: Any) -> Any:
        """The framework's data-parallel form of a model."""
        raise NotImplementedError

    def all_gather(self, tensor: Any) -> list[Any]:
        """The tensors of all ranks."""
        raise NotImplementedError

    def gathered(self, array: Any) -> Any:
        parts = self.all_gather(self.tensor(np.array(array)))
        return np.concatenate([self.adapter.to_numpy(part) for part in parts])

    def averaged(self, array: Any) -> Any:
        return mean(list(self.gathered(array.reshape(1))))


class Synchronised(RanksTrainer):
    """Exchanges gradients with the last micro-batch of a step only, as usual, by means of `no_sync`."""

    def micro_batch(self, rows: Any) -> tuple[Any, Any, Any]:
        self.n_passed += 1
        last = self.n_passed % self.recipe["accumulation"] == 0
        with nullcontext() if last else self.model.no_sync():
            return super().micro_batch(rows)


class TorchRanksTrainer(Synchronised, TorchTrainer):
    """torch.nn.parallel.DistributedDataParallel."""

    def parallel(self, model: Any) -> Any:
        return self.framework.nn.parallel.DistributedDataParallel(model)

    def all_gather(self, tensor: Any) -> list[Any]:
        parts = [self.framework.empty_like(tensor) for _ in range(self.ranks)]
        self.framework.distributed.all_gather(parts, tensor)
        return parts


class PaddleRanksTrainer(Synchronised, PaddleTrainer):
    """paddle.DataParallel."""

    def parallel(self, model: Any) -> Any:
        return self.framework.DataParallel(model)

    def all_gather(self, tensor: Any) -> list[Any]:
        parts: list[Any] = []
        self.framework.distributed.all_gather(parts, tensor)
        return parts


class OneflowRanksTrainer(RanksTrainer, OneflowTrainer):
    """oneflow.nn.parallel.DistributedDataParallel, which exchanges gradients with every micro-batch."""

    def parallel(self, model: Any) -> Any:
        if self.job.dtype != "float32":
            raise Unsupported("oneflow.nn.parallel.DistributedDataParallel takes parameters of float32 only")
        return self.framework.nn.parallel.DistributedDataParallel(model)

    def all_gather(self, tensor: Any) -> list[Any]:
        parts = [self.framework.zeros_like(tensor) for _ in range(self.ranks)]
        self.framework.comm.all_gather(parts, tensor)
        return parts
