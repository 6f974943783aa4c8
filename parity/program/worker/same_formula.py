"""A user's class or function, computed with residues: the values and residues of its outputs and gradients.

`python same_formula.py REQUEST FOLDER` answers a request in a process of its own and writes `field.json`, and
`field.bin` with all numbers in float64, to FOLDER. The host reads both without trusting them.
"""

from __future__ import annotations

import importlib.util
import json
import os
import sys
import zlib
from typing import Any, Dict, List, Mapping, Tuple

import numpy as np

from parity.program.worker.user_module import UserModule, entry_of

REPLY, NUMBERS = "field.json", "field.bin"
MOST_NUMBERS = 1 << 22
"""Numbers of a reply: 32 MB."""
MOST_WORDS = 160
Parts = Tuple[Any, Any, Any]
"""A tensor's values, and its residues."""


def computed(
    module: UserModule, given: Mapping[str, Any], params: Mapping[str, Any], *, gradients: bool
) -> Dict[str, Parts]:
    """Values and residues of each output, and of each gradient of an input, as `grad.x`, for gradients that are drawn
    for outputs."""
    import torch

    from parity.program.worker.field_mode import exact_arithmetic
    from parity.program.worker.field_tensor import as_field, is_floating, of_input
    from parity.program.worker.trail import arguments_in
    from parity.torch_gradients import scalar_of

    leaves = {n: of_input(t).requires_grad_(gradients) if t.is_floating_point() else t for n, t in given.items()}
    copied = arguments_in(given, params)
    with exact_arithmetic(), torch.set_grad_enabled(gradients):
        own = {n: t.clone() if n in copied and t.is_floating_point() else t for n, t in leaves.items()}
        outputs = {n: v for n, v in module(**own, **params).items() if isinstance(v, torch.Tensor)}
    ends = {n: v for n, v in outputs.items() if v.requires_grad}
    arriving = [of_input(drawn(n, v.shape)) for n, v in ends.items()]
    if ends:
        with exact_arithmetic(fresh=False):
            scalar_of(list(ends.values()), arriving).backward()
    results = {n: t.detach() for n, t in outputs.items()}
    results.update({f"grad.{n}": t.grad for n, t in leaves.items() if is_floating(t) and t.grad is not None})
    fields = {n: as_field(t if t.is_floating_point() else t.double()) for n, t in results.items()}
    return {n: (plain(t.value), plain(t.q), plain(t.p)) for n, t in fields.items()}


def plain(part: Any) -> Any:
    """A tensor as an array."""
    return np.array(part.detach().contiguous().numpy())


def drawn(name: str, shape: Any) -> Any:
    """The gradient that arrives at an output, the same for any code."""
    import torch

    generator = torch.Generator().manual_seed(zlib.crc32(name.encode()))
    return torch.randn(tuple(shape), generator=generator, dtype=torch.float64)


def main() -> None:
    """Answer the request of the command line."""
    import torch

    request, folder = sys.argv[1:3]
    with open(request, encoding="utf-8") as file:
        asked = json.load(file)
    torch.set_num_threads(1)
    sys.path.append(os.path.dirname(asked["file"]))
    sys.dont_write_bytecode = True
    replies: List[Any] = []
    numbers: List[Any] = []
    try:
        replies, numbers = replied(asked)
        error = ""
    except Exception as failure:  # Whatever a user's code raises, and PyTorch for calls that cannot be computed so.
        error = f"{type(failure).__name__}: {failure}"[:MOST_WORDS]
    np.concatenate(numbers or [np.empty(0)]).tofile(os.path.join(folder, NUMBERS))
    with open(os.path.join(folder, REPLY), "w", encoding="utf-8") as file:
        json.dump({"error": error, "replies": replies}, file)


def replied(asked: Mapping[str, Any]) -> Tuple[List[Any], List[Any]]:
    """For each interpretation the calls without a rule and the tensors' shapes by name, and all numbers. Raises
    ValueError for more than are kept."""
    import torch

    from parity.program.worker import field
    from parity.program.worker.field_tensor import NOTES

    spec: Any = importlib.util.spec_from_file_location("candidate", asked["file"])
    code = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(code)
    given = {name: torch.from_numpy(np.load(path, allow_pickle=False)) for name, path in asked["given"].items()}
    replies: List[Any] = []
    numbers: List[Any] = []
    for eager, strict, key in asked["interpretations"]:
        field.NOW.eager, field.NOW.strict, field.NOW.key = eager, strict, key
        entry = vars(code).get(asked["name"]) if asked["is_reference"] else entry_of(vars(code), asked["name"])
        module = UserModule(entry)
        parts = computed(module, given, asked["params"], gradients=asked["gradients"])
        replies.append({"notes": sorted(NOTES), "shapes": {n: list(own[0].shape) for n, own in parts.items()}})
        numbers += [part.ravel() for own in parts.values() for part in own]
        if sum(map(len, numbers)) > MOST_NUMBERS:
            raise ValueError("its results have too many numbers")
    return replies, numbers
