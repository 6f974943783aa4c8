"""What a framework other than PyTorch changes in a check: its environment, and the cases that it can be asked."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import replace

from parity.cases.layout import LAYOUTS
from parity.check import CheckError
from parity.check.cases import CheckCase
from parity.check.frameworks import NUMPY, TORCH
from parity.check.limit import FAR, KEPT_NAN, NAN
from parity.check.pair import FilePair, definitions
from parity.check.triton_code import has_triton
from parity.config.backends import ADAPTERS
from parity.config.plan import BackendSpec
from parity.engine.starting import BackendError, resolve


def check_installed(pair: FilePair) -> None:
    """Raise CheckError if the candidate's framework is neither installed here nor in a managed environment."""
    adapter = pair.candidate.adapter
    if adapter == TORCH:
        return
    spec = BackendSpec(adapter, adapter, ops=pair.candidate.path)
    try:
        resolve(spec, provision=False, announce=lambda _: None)
    except BackendError as error:
        raise CheckError(
            f"{pair.candidate.own_path} needs {adapter}, which is not installed here and has no environment yet: run "
            f"`parity env create {adapter}`"
        ) from error


def notes_of(pair: FilePair) -> Iterator[str]:
    """What is not judged since NumPy has no gradients."""
    if pair.candidate.adapter == NUMPY and not has_backward(pair):
        yield f"{pair.candidate.name} is NumPy, which has no gradients: only outputs are judged"
    elif pair.reference.adapter == NUMPY:
        yield "the reference is NumPy: gradients are not judged for inputs far from 1, where its own are not known"


def has_backward(pair: FilePair) -> bool:
    """Whether the candidate's file defines its gradients, `<name>_backward`."""
    return f"{pair.reference.name}_backward" in definitions(pair.candidate.own_path)


def adapted(asked: Iterable[CheckCase], pair: FilePair) -> Iterator[CheckCase]:
    """The cases that both can be asked: layouts where tensors have strides, gradients where there are any, a NaN where
    `maximum` keeps one: Triton's does not unless it is told."""
    loses_nan = has_triton(pair.candidate.own_path)
    strided = ADAPTERS[pair.candidate.adapter].strided
    without = pair.candidate.adapter == NUMPY and not has_backward(pair)
    for item in asked:
        if (item.kind in LAYOUTS and not strided) or (item.kind in (NAN, KEPT_NAN) and loses_nan):
            continue
        far = pair.reference.adapter == NUMPY and item.kind in FAR
        yield replace(item, case={**item.case, "gradients": False}) if without or far else item
