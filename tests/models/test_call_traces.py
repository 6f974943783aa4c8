"""Code between layers in two ports: what each calls, and where that parts."""

import sys
from types import SimpleNamespace

import numpy as np
import pytest

from parity.models.call_traces import Trail, TrailComparison, same, same_in_order
from parity.models.worker.calls import CallRecorder
from parity.models.worker.intercept import Interception
from parity.program.recorded import RecordedCall, Value
from tests.conftest import call
from tests.models.ports import TWO, config_of
from tests.models.test_run import CASE, found, run_case

LOSS = 'nn.functional.cross_entropy(output, batch["labels"])'
FAULTS = {
    "cap": (
        "return self.head(self.act(x + self.attention(self.norm(x))).mean(1))",
        "y = self.head(self.act(x + self.attention(self.norm(x))).mean(1))\n        return 2 * torch.tanh(y / 2)",
        "the code of the model",
        "tanh(head / 2) * 2, where ours has head",
    ),
    "max": (".mean(1)", ".amax(1)", "the code of the model", "head gets amax(act, 1), where ours gives it mean(act, 1)"),
    "scale": (
        "x + self.attention",
        "x + 0.5 * self.attention",
        "the code of the model",
        "attention * 0.5, where ours has attention",
    ),
    "exchanged": (
        "self.q(x) @ self.k(x)",
        "self.k(x) @ self.q(x)",
        "the code of attention",
        "k @ transpose(q, -1, -2) / 2.828427125, where ours has q @ transpose(k, -1, -2) / 2.828427125",
    ),
    "length": (
        " / 8**0.5",
        " / 8**0.5 * x.shape[1]",
        "the code of attention",
        "scores = scores * 5, where ours has scores",
    ),
    "loss": (LOSS, f"{LOSS} + 1e-2 * output.logsumexp(-1).square().mean()", "the loss", "+ mean(square(logsumexp(output, -1))) * 0.01"),
    "cut": (
        "torch.softmax(scores, -1)",
        "torch.softmax(scores, -1).detach()",
        "the code of attention",
        "it calls detach(softmax(scores, -1)), which ours does not",
    ),
}  # fmt: skip


def masked(at, given=None):
    """The trail of scores that get a mask along one of their last two axes."""
    rng = np.random.default_rng(0)
    values = {"_v0_": rng.normal(size=(2, 3, 4, 4)), "_v1_": np.array([[1.0, 1, 1, 1], [1, 1, 0, 0]])}

    def put(mark, value):
        values[mark] = (given or {}).get(mark, value)

    put("_v2_", values["_v1_"][:, None, None, :] if at == "None, :" else values["_v1_"][:, None, :, None])
    put("_v3_", (1 - values["_v2_"]) * -1e4)
    put("_v4_", values["_v0_"] + values["_v3_"])
    top = np.exp(values["_v4_"] - values["_v4_"].max(-1, keepdims=True))
    put("_v5_", top / top.sum(-1, keepdims=True))
    scores, mask, cut, added, whole = (Value(f"_v{i}_") for i in range(5))
    every = slice(None)
    index = (every, None, None, every) if at == "None, :" else (every, None, every, None)
    steps = [
        RecordedCall("_v2_", "getitem", "getitem", (mask, index)),
        RecordedCall("_v3_", "mul", "filled", (cut,)),
        RecordedCall("_v4_", "masked", "add", (scores, added), labelled=True),
        RecordedCall("_v5_", "softmax", "softmax", (whole, -1), labelled=True),
    ]
    names = {"_v0_": "scores", "_v1_": "mask", **{step.mark: step.name for step in steps}}
    inputs = {"_v0_": "in:0", "_v1_": "in:1"}
    return Trail(steps, values, names, inputs, {"net|0|out|0": "_v5_"})


def test_a_mask_along_another_axis_is_no_mask_that_lacks():
    """What it adds to a whole row has no effect on the softmax."""
    keys = {"net|0|out|0": "net|0|out|0"}
    parting = TrailComparison(
        masked("None, :"), masked(":, None"), keys, lambda given: masked(":, None", given), "ours", "net"
    )
    assert parting.divergences() == [
        "masked = scores + filled(mask[:, None, :, None]), where ours has scores + filled(mask[:, None, None, :])"
    ]


def test_what_the_source_writes_is_told_though_it_is_the_default():
    def told(function, **given):
        return CallRecorder._shown_arguments(
            SimpleNamespace(port=SimpleNamespace(roots=(__name__.partition(".")[0],))), function, given
        )

    def source(text):
        names = {"told": told, "loss": lambda output, from_logits=False: output, "given": {"from_logits": False}}
        return eval(compile(text, "source", "eval"), names)

    assert source("told(loss, output=3, from_logits=False)") == {"output": 3, "from_logits": False}
    assert source("told(loss, output=3, **given)") == {"output": 3}


@pytest.fixture(scope="module")
def faulty(tmp_path_factory):
    folder = tmp_path_factory.mktemp("trails")
    ports = {"ours": TWO}
    for name, (old, new, *_) in FAULTS.items():
        assert old in TWO
        ports[name] = TWO.replace(old, new)
    return run_case(folder, ports, CASE.replace(", metric: accuracy", ""))


@pytest.mark.parametrize("name", FAULTS)
def test_a_step_that_differs_is_told_in_the_words_of_both(faulty, name):
    _, results = faulty
    *_, place, words = FAULTS[name]
    rows = {row.evidence["place"]: row for row in results.diagnoses if row.backend == name}
    assert list(rows) == [place]
    assert words in f"{rows[place].title}: {rows[place].evidence.get('expression')}"
    assert rows[place].explained


PADDLE = """
import paddle
from paddle import nn


class Attention(nn.Layer):
    def __init__(self):
        super().__init__()
        self.q, self.k, self.v = nn.Linear(8, 8), nn.Linear(8, 8), nn.Linear(8, 8)

    def forward(self, x):
        scores = paddle.matmul(self.q(x), self.k(x), transpose_y=True) / 8**0.5
        return nn.functional.softmax(scores) @ self.v(x)


class Net(nn.Layer):
    def __init__(self):
        super().__init__()
        self.norm, self.attention, self.act = nn.LayerNorm(8), Attention(), nn.GELU()
        self.head = nn.Linear(8, 3)

    def forward(self, x):
        return self.head(self.act(x + self.attention(self.norm(x))).mean(1))


def build_model():
    return Net()


def loss(output, batch):
    return nn.functional.cross_entropy(output, batch["labels"])
"""


def test_a_framework_that_does_not_tell_its_calls(tmp_path):
    wrong = PADDLE.replace(
        "nn.functional.softmax(scores)", "nn.functional.softmax(scores).astype('float16').astype(x.dtype)"
    )
    wrong = wrong.replace("self.act(x + ", "paddle.nn.functional.relu(x + ")
    config = config_of(tmp_path, {"ours": TWO, "theirs": wrong}, CASE.replace(", metric: accuracy", ""))
    config.write_text(config.read_text().replace("adapter: torch, ops: ./theirs", "adapter: paddle, ops: ./theirs"))
    done = call("run", config, "--out", tmp_path / "out")
    assert done.returncode == 1, done.stdout + done.stderr
    assert "astype(astype(softmax(scores, -1), 'float16'), float64), where ours has softmax(scores, -1)" in done.stdout
    assert "relu(x + attention), where ours has gelu(x + attention, approximate='none')" in done.stdout
    assert "once fixed, the difference at the output is rounding" in done.stdout


class Tensor:
    """A framework's tensor."""

    def __init__(self, value):
        self.value = value

    def __add__(self, other):
        return Tensor(self.value + other.value)

    def doubled(self):
        return self + self


def relu(x):
    return Tensor(max(0, x.doubled().value))


def test_functions_are_wrapped_for_a_while_and_only_the_outermost_call_is_seen():
    here, seen = sys.modules[__name__], []
    before = relu, Tensor.__add__, Tensor.doubled

    def record(function, args, kwargs, result):
        seen.append(function.__name__)
        return Tensor(7) if function.__name__ == "relu" else result

    interception = Interception((__name__.partition(".")[0],), (here,), (Tensor,))
    attributes = {"activation": relu}
    with interception.handing(record, [attributes]):
        total = (attributes["activation"](Tensor(1)) + relu(Tensor(2))).value
    assert seen == ["relu", "relu", "__add__"]
    assert total == 14
    assert (relu, Tensor.__add__, Tensor.doubled) == before
    assert attributes == {"activation": relu}


def test_values_are_the_same_up_to_the_order_of_axes():
    x = np.arange(24.0).reshape(2, 3, 4)
    assert same(x.transpose(0, 2, 1), x)
    assert same(x.reshape(6, 4), x)
    assert not same_in_order(x.transpose(0, 2, 1).reshape(2, 3, 4), x)
    masked = x.copy()
    masked[:, 0] = -1e9
    other = masked.copy()
    other[1, 1, 1] += 1e-3
    assert not same_in_order(other, masked)


def test_a_layer_that_is_called_otherwise_is_a_part_of_the_code(tmp_path):
    _, results = run_case(tmp_path, {"ours": TWO, "theirs": TWO.replace("self.act(x +", "torch.relu(x +")})
    (row,) = found(results).values()
    assert row.evidence["expression"] == "relu(x + attention), where ours has gelu(x + attention, approximate='none')"
