"""What torch code does in place is recorded as new values, and a recording that is not the code's is refused."""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
import torch.nn.functional as F  # noqa: N812 - what everyone calls it

from parity.cases.replay import agree
from parity.cases.user_code import BroughtError
from parity.config import Overrides, load_plan
from parity.models import code
from parity.models.ports import ModelError
from parity.models.worker.calls import CallRecorder
from parity.models.worker.ports.torch_style import TorchPort
from parity.models.worker.tape import TensorTape
from parity.program.recorded import WHOLE, RecordedCall, written
from parity.program.recorded_code import Recording, reference
from parity.program.worker.recording import UntracedError
from parity.program.worker.tracer import Tracer

X = torch.tensor(np.random.default_rng(0).normal(size=(4, 6)), dtype=torch.float32)


def traced(body: str, x: Any = X) -> tuple[Recording, dict[str, Any], Callable[[Any], Any]]:
    """The recording of a function of x with this body, its constants and the values of its calls by mark, and the
    function."""
    names: dict[str, Any] = {"torch": torch, "F": F}
    exec("def f(x):\n    " + body.replace("\n", "\n    "), names)
    tracer, given = Tracer(torch), x.clone()
    tracer.know(given, "x")
    with TorchPort.intercepted(None, tracer.called), torch.no_grad():  # type: ignore[arg-type]  # self is not used
        y = names["f"](given)
    mark = tracer.mark_of(y)
    calls = tuple(map(RecordedCall.of, json.loads(json.dumps(tracer.named_rows()))))
    constants = {mark: tracer.constants[name] for mark, name in tracer.names.items() if name in tracer.constants}
    inputs = dict.fromkeys(constants, "constant:") | {"v0": "in:0"}
    recording = Recording(calls, tracer.names, inputs, {"y": "|0|out|0"}, {"y": mark}, tracer.reads)
    return recording, {mark: tensor.numpy() for mark, tensor in {**constants, **tracer.values}.items()}, names["f"]


def program(recording: Recording, values: Any, folder: Any) -> Callable[[Any], Any]:
    """The recording as a function of x."""
    constants = {recording.names[mark]: values[mark] for mark in recording.inputs if mark != "v0"}
    source, options = reference(recording, {"x": X.numpy(), **constants}, folder)
    return lambda x: source.function(x=x.double().numpy(), **constants, **options.values)["y"]


RECORDED = [
    "h = x * 2\nF.relu(h, inplace=True)\nreturn h + x",
    "h = x * 2\ny = F.leaky_relu(h, 0.1, True)\nreturn h * y",
    "h = torch.empty_like(x)\ntorch.exp(x, out=h)\nreturn h * 2",
    "h = torch.zeros(4, 6)\nv = h[0]\ntorch.exp(x, out=h)\nreturn h * v",
    "h = x * 2\nv = h[0]\nv += 1\nreturn h * h",
    "h = x * 2\na = h[0]\nc = a * 1\na.add_(5)\nh.mul_(2)\nreturn c + h + a",
    "h = x * 2\na, b = h[:2], h[1:3]\na.add_(1)\nb.mul_(2)\nreturn h + a.sum() - b.sum()",
    "h = torch.zeros(4, 6)\nh[1].copy_(x[0])\nh[:, ::2] = x[:, ::2]\nreturn h + x",
    "h = x.clone()\nh.view(-1).add_(1)\nh.T.mul_(3)\nreturn h * h",
    "h = x * 2\na, b = h.chunk(2, dim=1)\na.mul_(torch.sigmoid(b))\nreturn h",
    "h = x * 2\na, b, c, d = h.unbind(0)\na += b\nd.mul_(2)\nreturn h",
    "h = x * 2\nh[h < 0] = 0\nh.masked_fill_(x > 1, -1.0)\nreturn h * 3",
    "h = x.clone()\nh.index_put_((torch.tensor([0, 0]),), x[1], accumulate=True)\nreturn h * 2",
    "h = x.clone()\nh.index_add_(0, torch.tensor([0, 1, 0, 1]), x, alpha=2)\nreturn h",
    "i = x\nx += 1\nreturn i * x",
    "h = x * 2\nd = h.detach()\nd.add_(1)\nh.data.mul_(2)\nreturn h",
    "h = torch.zeros(4)\nys = []\nfor t in range(6):\n    h += x[:, t]\n    ys.append(h)\nreturn torch.stack(ys, 1)",
    "m = torch.ones(4, 6)\ny = x * m\nm[:, 0] = 0\nreturn y + x * m",
    "h = (x * 2).unsqueeze(1)\nh.squeeze_(1)\nreturn h + 1",
    "return x.to(torch.int32).float() + x",
    "return (x * 3).long().to(x.dtype) * x.bool()",
    "h = x.half()\nh += 1\nreturn h.float() * 2",
    "h = torch.zeros(4, 6, dtype=torch.long)\nh[:] = x * 3\nreturn h * x",
    "h = x * 2\nh.t()[1:4:2] -= 5\nreturn h",
    "h = x.clone()\nh[:, 1::2].masked_fill_(h[:, 1::2] > 0, 0.5)\nreturn h * x",
    "h = x.clone()\nv = h.view(2, 12)[1].view(2, 6)[:, ::3]\nv.exp_()\nreturn h",
    "h = x * 2\na = h[:, 2:]\nb = a[1:]\nh.mul_(2)\na.add_(1)\nreturn b * h[1:, 2:] + a.sum()",
    "h = x * 1\nfor i, p in enumerate(h.chunk(3, -1)):\n    p.mul_(i + 1)\nfor r in h:\n    r -= r.mean()\nreturn h",
    "h = x.clone()\nh[[0, 2]] = h[[2, 0]]\nh[0], h[1] = h[1], h[0]\nh[h > 0] *= 2\nreturn h",
    "h = torch.zeros(8, 6)\ntorch.mul(x, 3, out=h[2:6])\nreturn h[1:5]",
    "h = x * 1\nh.t_()\nh += 1\nreturn h @ x",
    "h = x.contiguous().float()\nh *= 2\nreturn x.T.contiguous().mul_(3).T + h + x",
    "a = b = x * 2\na += 1\nb *= a\na = a - b\nreturn a * b",
    "h = torch.arange(6).float()\nh *= 2\ny = x * h\nh.add_(1)\nreturn y - h",
    "q = torch.round(x / 0.1).clamp(-128, 127).to(torch.int8)\nreturn q.to(torch.float32) * 0.1",
    "q = x.view(1, 2, 2, 6)\nreturn F.scaled_dot_product_attention(q, q, q, torch.tensor([[True, False], [True, True]]))",
    "q, k = x.view(1, 4, 1, 6), x.view(1, 2, 2, 6)\nreturn F.scaled_dot_product_attention(q, k, k, enable_gqa=True)",
    "return torch.triu(x @ x.T, 1).masked_fill(torch.ones(4, 4).tril(-1).bool(), float('-inf')).softmax(-1)",
]


@pytest.mark.parametrize("body", RECORDED)
def test_a_recording_gives_what_the_code_gives_for_any_input(body: str, tmp_path: Any):
    recorded, values, f = traced(body)
    recording = program(recorded, values, tmp_path)
    for x in (X, -X.flip(0) * 1.5):
        kind = "float16" if "half" in body else "float32"
        assert agree(recording(x), f(x.clone()).double().numpy(), kind, 1.0)


@pytest.mark.parametrize(
    ("body", "message"),
    [
        ("h = x * 2\nh.data = x * 5\nreturn h", "it sets the data of a tensor"),
        ("v, i = torch.cummax(x, 1)\nreturn v * 2", "cummax has no translation to NumPy"),
        (
            "return F.multi_head_attention_forward(x, x, x, 6, 1, torch.ones(18, 6), None, None, None, False, 0.0, "
            "torch.ones(6, 6), None, need_weights=False)[0]",
            "multi_head_attention_forward has no translation",
        ),
        ("return F.dropout(x, 0.5)", "dropout is random"),
        ("torch.max(x, 1, out=(torch.empty(4), torch.empty(4, dtype=torch.long)))\nreturn x", "max writes to several"),
        ("return x.bfloat16().float()", "it computes in bfloat16"),
        ("KEPT[:] = x\nreturn KEPT * 2", "__setitem__ writes to a tensor that was made before the call"),
        ("y = x * 2\nchanged(y)\nreturn y", "a tensor has changed by something other than a call of torch's functions"),
    ],
)
def test_what_is_no_step_is_refused_at_its_line(
    body: str, message: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Any
):
    def changed(y: Any) -> None:
        with torch._C.DisableTorchFunction():
            y.mul_(2)

    monkeypatch.setattr("builtins.KEPT", torch.zeros(4, 6), raising=False)
    monkeypatch.setattr("builtins.changed", changed, raising=False)
    with pytest.raises((UntracedError, BroughtError, ModelError), match=message) as caught:
        program(*traced(body)[:2], tmp_path)(X)
    assert str(caught.value).startswith("<string>:") or "test_tracer.py:" in str(caught.value)


DIFFERS = "<string>:3: its recording for other inputs differs from mine: y is"
READ = r"Python gets values of tensors at <string>:2 \(%s\), which are constants of the recording"


@pytest.mark.parametrize(
    ("body", "message"),
    [
        ("h = x * 2\ny = h + 1\nreturn y", "^$"),
        ("k = 2 if x[0, 0] > 0 else 3\nreturn x * k", f"^{DIFFERS}.*; {READ % 'bool'}$"),
        ("s = x.max().item()\nreturn x * s", f"^{DIFFERS}.*; {READ % 'item'}$"),
        ("s = float(x.abs().max())\nreturn (x / s * 7).round() * s", f"^{DIFFERS}.*; {READ % 'float'}$"),
        ("while x.norm() > 1:\n    x = x / 2\nreturn x", f"^{DIFFERS}.*; {READ % 'bool'}$"),
        ("n = x.numpy() * 2\nreturn torch.from_numpy(n) + x", f"^{DIFFERS}.*; {READ % 'numpy'}$"),
        ("n = x.numpy()\nreturn torch.tensor(n) * 1", f"^its recording for other inputs differs.*; {READ % 'numpy'}$"),
        ("KEPT.append(x * 1)\nreturn x + KEPT[0]", f"^{DIFFERS} [^;]*$"),
        ("m, v = x[0] * 1, x[1].abs()\ny = F.batch_norm(x, m, v, training=True)\nreturn y + m",
         "^<string>:4: its recording differs from mine: add"),
        ("h = x * 2\nh.random_()\nreturn h", "^<string>:3: random has no translation to NumPy$"),
        ("h = x.view(24)[:9] * 1\nreturn h.scatter_add_(0, torch.tensor([0, 0]), x[0])", "^<string>:3: ValueError"),
    ],
)  # fmt: skip
def test_a_recording_is_replayed_with_other_inputs(
    body: str, message: str, tmp_path: Any, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr("builtins.KEPT", [], raising=False)
    assert re.search(message, refusal := replayed(tmp_path, *traced(body))), refusal


def test_the_first_line_that_differs_is_named(tmp_path: Any):
    recording, values, f = traced("h = x * 2\nk = h + 1\nreturn k * h")
    call = next(call for call in recording.calls if call.function == "add")
    for mark in (call.mark, recording.returned["y"]):
        values[mark] = values[mark] + 1
    assert f"its recording differs from mine: {call.name} is" in replayed(tmp_path, recording, values, f)


def replayed(folder: Any, recording: Recording, values: Any, f: Any) -> str:
    """Why a recording is refused; "" if it is not."""
    (folder / "m.py").write_text("")
    (folder / "c.yaml").write_text(
        "version: 1\nbackends: [{name: a, adapter: torch, ops: ./m.py}, {name: b, adapter: torch, ops: ./m.py}]\n"
        "cases: [{kind: model, id: net, build: b, batch: b}]\n"
    )
    model = load_plan([folder / "c.yaml"], Overrides()).cases[0]
    given = {recording.names[mark]: values[mark] for mark in recording.inputs if mark != "v0"} | {"x": X.numpy()}
    computed = {recording.names[mark]: array for mark, array in values.items()} | {"x": X.numpy()}

    class Kernel(SimpleNamespace):
        def __call__(self, _case: Any, _dtype: str, inputs: Any) -> Any:
            return {"y": f(torch.tensor(inputs["x"])).numpy()}

    try:
        case, _ = code.planned(model, "float32", recording, given, folder)
        code.replay(Kernel(port=SimpleNamespace(name="mine"), dtype="float32"), case, given, recording, computed)
    except ModelError as error:
        return str(error)
    return ""


def test_calls_show_what_was_written_through_a_view(tmp_path: Any):
    port = SimpleNamespace(
        roots=("torch",), tensors=list, is_tensor=torch.is_tensor, to_array=lambda t: t.detach().numpy().copy(),
        flows=lambda _: False, tensors_in=lambda _: [], dtype_of=lambda t: str(t.dtype),
    )  # fmt: skip
    recorder, x = CallRecorder(port, TensorTape(str(tmp_path)), {}), X.clone()
    recorder.know(x, "x")
    with TorchPort.intercepted(None, recorder.called), torch.no_grad():  # type: ignore[arg-type]  # self is not used
        h = x * 2
        v = h[0]
        v += 1
        y = h * 3
        F.relu(h, inplace=True)
        y = y - h
    calls = map(RecordedCall.of, recorder.named_rows())
    texts = [written(call, lambda mark: (recorder.names[mark], WHOLE))[0] for call in calls]
    assert texts == ["x * 2", "h[0]", "v + 1", "written(h, v_2)", "written * 3", "relu(written)", "y - relu"]
    assert torch.equal(y, (shown := torch.cat([x[:1] * 2 + 1, x[1:] * 2])) * 3 - torch.relu(shown))
