"""Adapters of one of several ranks. RANK, WORLD_SIZE and so on are in the environment before they are created."""

from __future__ import annotations

import os
from collections.abc import Mapping
from typing import Any, ClassVar

from parity.adapters.base import Adapter, Job, Unsupported
from parity.adapters.oneflow.adapter import OneflowAdapter
from parity.adapters.paddle.adapter import PaddleAdapter
from parity.adapters.torch.adapter import TorchAdapter


class Ranked(Adapter):
    """One of several ranks, which only train."""

    def run(self, job: Job) -> dict[str, Any]:
        raise Unsupported(f"{job.op} is one op in one process; ranks are for trainings")


class TorchRanks(Ranked, TorchAdapter):
    """torch.distributed over gloo."""

    trainers: ClassVar[Mapping[str, str]] = {"eager": "parity.training.worker.rank_trainer:TorchRanksTrainer"}

    def __init__(self, device: str, threads: int, mode: str = "eager", ranks: int = 1) -> None:
        super().__init__(device, threads, mode, ranks)
        self.framework.distributed.init_process_group("gloo")


class PaddleRanks(Ranked, PaddleAdapter):
    """paddle.distributed over gloo."""

    trainers: ClassVar[Mapping[str, str]] = {"eager": "parity.training.worker.rank_trainer:PaddleRanksTrainer"}

    def __init__(self, device: str, threads: int, mode: str = "eager", ranks: int = 1) -> None:
        # What `python -m paddle.distributed.launch` sets.
        master = f"{os.environ['MASTER_ADDR']}:{os.environ['MASTER_PORT']}"
        os.environ.update(
            PADDLE_MASTER=master,
            PADDLE_TRAINER_ID=os.environ["RANK"],
            PADDLE_TRAINERS_NUM=str(ranks),
            PADDLE_TRAINER_ENDPOINTS=",".join([master] * ranks),
            PADDLE_CURRENT_ENDPOINT=master,
            PADDLE_DISTRI_BACKEND="gloo",
        )
        super().__init__(device, threads, mode, ranks)
        self.framework.distributed.init_parallel_env()


class OneflowRanks(Ranked, OneflowAdapter):
    """OneFlow reads the variables that its launcher sets."""

    trainers: ClassVar[Mapping[str, str]] = {"eager": "parity.training.worker.rank_trainer:OneflowRanksTrainer"}
