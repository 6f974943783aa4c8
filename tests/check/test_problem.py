"""What a reference's file says: arguments, weights, sizes, and what cannot be told from it."""

from __future__ import annotations

from pathlib import Path
from textwrap import dedent

import numpy as np
import pytest
import torch  # noqa: F401 - the references need it

from parity.check import CheckError
from parity.check.cases import Designer, weight_of
from parity.check.pair import pair_of
from parity.check.problem import ReferenceProblem, Weight, same
from parity.check.sizes import MOST_ELEMENTS, small
from parity.program.torch_reference import MOST_STEPS
from tests.check.pairs import FUNCTION, REFERENCE

DRAWN = """
import torch


def f(a, b, c, d, e, n):
    return a + b + c + d + e.float().mean() * n


def get_inputs():
    mask = torch.tril(torch.ones(4, 4))
    return [torch.rand(4, 4), torch.randn(4, 4) * 3, mask, torch.rand(4, 4).softmax(-1), torch.randint(0, 9, (4,)), 2.5]
"""
RANDOM = REFERENCE.replace("torch.relu(self.fc(x))", "torch.dropout(self.fc(x), 0.5, self.training)")


def problem(folder: Path, text: str = REFERENCE, **given: object) -> ReferenceProblem:
    path = folder / "reference.py"
    path.write_text(text)
    return ReferenceProblem(pair_of(str(path), str(path)), given)


def test_how_inputs_are_drawn(tmp_path):
    arguments = problem(tmp_path, DRAWN).at({}).arguments
    assert [a.kind for a in arguments] == ["uniform", "normal", "given", "given", "integers", "number"]
    assert arguments[-1].value == 2.5


def test_sizes_become_small_together_and_weights_with_them(tmp_path):
    it = problem(tmp_path)
    settings = small(it)
    assert settings == {"batch_size": 8, "dim": 16}
    sized = it.at(settings)
    assert it.cost(settings)[0] <= MOST_ELEMENTS
    assert {w.name: w.values.shape for w in sized.weights}["fc_weight"] == (16, 16)
    assert sized.params == {"init_dim": 16, "arguments": "x"}
    assert it.names["dim"] == 1024


def test_a_global_that_the_user_sets_stays(tmp_path):
    it = problem(tmp_path, dim=24)
    assert "dim" not in small(it)
    assert it.at(small(it)).arguments[0].value.shape[1] == 24


def test_initial_weights_that_hide_faults_are_drawn_anew():
    ones, zeros = (Weight("w", np.full(3, value, np.float32)) for value in (1, 0))
    assert weight_of(ones) == {"shape": [3], "offset": 1.0, "scale": 0.3}
    assert weight_of(zeros) == {"shape": [3], "offset": 0.0, "scale": 0.3}
    assert weight_of(Weight("bn_running_var", np.ones(2, np.float32), True))["uniform"] == {"low": 0.5, "high": 1.5}


def test_a_reference_that_is_random_in_training_mode_is_asked_in_evaluation_mode(tmp_path):
    it = problem(tmp_path, RANDOM)
    designer = Designer(it, tmp_path / "inputs")
    cases = list(designer.all(it.at({"batch_size": 4, "dim": 8})))
    assert all(asked.case["params"]["training"] is False for asked in cases)
    assert "random in training mode" in designer.notes[0]


def test_a_reference_that_is_always_random_is_not_judged(tmp_path):
    it = problem(tmp_path, RANDOM.replace("self.training", "True"))
    with pytest.raises(CheckError, match="draws random numbers"):
        list(Designer(it, tmp_path / "inputs").all(it.at({"batch_size": 4, "dim": 8})))


def test_a_reference_is_called_with_its_own_weights_and_with_others(tmp_path):
    it = problem(tmp_path)
    sized = it.at({"batch_size": 2, "dim": 4})
    assert same(sized.outputs, it.call(sized))
    other = it.call(sized, values={"ln_bias": np.ones(4, np.float32)})
    np.testing.assert_allclose(other["y"] - sized.outputs["y"], 1, rtol=1e-5)


def test_a_function_with_a_number(tmp_path):
    sized = problem(tmp_path, FUNCTION).at({})
    assert sized.params == {"scale": 0.5, "arguments": "x, scale"}


@pytest.mark.parametrize(
    ("text", "told"),
    [
        (DRAWN.replace("return [", "return torch.ones(3); return ["), "returns Tensor; return the list"),
        (DRAWN.replace("torch.rand(4, 4),", "torch.eye(2).to_sparse(),", 1), "sparse layout"),
    ],
)
def test_inputs_that_cannot_be_used(tmp_path, text, told):
    with pytest.raises(CheckError, match=told):
        problem(tmp_path, text).at({})


LITERAL = """
import torch
import torch.nn.functional as F


def f(x, target):
    return F.cross_entropy(x, target)


def get_inputs():
    return [torch.randn(6, 5), torch.randint(0, 5, (6,))]
"""


def designed(folder: Path, text: str) -> list[str]:
    it = problem(folder, text)
    return [case.id for case in Designer(it, folder / "inputs").all(it.at({}))]


def test_lengths_that_no_global_says_and_labels_that_are_ignored(tmp_path):
    ids = designed(tmp_path, LITERAL)
    assert {"f-batch=1", "f-batch=7", "f-length-5=6", "f-target-ignored"} <= set(ids)
    assert "f-length-5=1" not in ids  # others would be broadcast
    assert "f-target-large-integers" not in ids
    assert len(ids) == len(set(ids))


SQUARES = """
import torch


def f(n):
    return (n * n).sum(-1)


def get_inputs():
    return [torch.randint(-9, 9, (3, 4))]
"""
MASKED = """
import torch


def f(s, v):
    return s.masked_fill(torch.ones(4, 4).triu(1) > 0, float("-inf")).softmax(-1) @ v


def get_inputs():
    return [torch.randn(4, 4), torch.randn(4, 3)]
"""


def test_integers_whose_squares_overflow(tmp_path):
    assert "f-n-large-integers" in designed(tmp_path, SQUARES)


def test_a_nan_that_is_masked_is_not_asked(tmp_path):
    assert "f-v-nan" not in designed(tmp_path, MASKED)
    assert "Model-nan" in designed(tmp_path, REFERENCE)


@pytest.mark.parametrize(("line", "kind"), [("y = x + 1", "nan"), ("y = x.nan_to_num() + x", "nan-kept")])
def test_a_nan_counts_where_the_reference_speaks_of_nan_and_is_given_where_it_was_asked(tmp_path, line, kind):
    text = f"import torch\n\n\ndef f(x):\n    {line}\n    return y\n\n\ndef get_inputs():\n    return [torch.randn(4, 5)]\n"
    it = problem(tmp_path, text)
    (case,) = (case for case in Designer(it, tmp_path / "inputs").all(it.at({})) if case.id == "f-nan")
    assert case.kind == kind
    array = np.load(tmp_path / case.case["inputs"]["x"]["file"])
    assert np.isnan(array).sum() == 1


def test_sizes_beyond_the_numbers_of_the_candidate(tmp_path):
    text = "import torch\n\n\ndef f(x):\n    return x + 1\n\n\ndef get_inputs():\n    return [torch.randn(6, 5)]\n"
    new = "import torch\n\n\ndef f(x):\n    return x + 1 if x.numel() < 900 else x\n"
    (tmp_path / "ref.py").write_text(text)
    (tmp_path / "new.py").write_text(new)
    it = ReferenceProblem(pair_of(str(tmp_path / "ref.py"), str(tmp_path / "new.py")), {})
    ids = {case.id for case in Designer(it, tmp_path / "inputs").all(it.at({}))}
    assert {"f-batch=129", "f-batch=181", "f-batch=901"} <= ids


def test_pairs_and_coordinates_keep_their_length(tmp_path):
    text = """
        import torch

        def f(x, e):
            a, b = e
            return x[a] + x[b]

        def get_inputs():
            return [torch.randn(6, 3), torch.randint(0, 6, (2, 8))]
    """
    ids = designed(tmp_path, dedent(text))
    assert not [name for name in ids if "length-2=" in name or "length-3=" in name]


NUMBERED = """
import torch


class Model(torch.nn.Module):
    def __init__(self, slope, n):
        super().__init__()
        self.slope, self.n = slope, n

    def forward(self, x, alpha, k, flag):
        return torch.nn.functional.leaky_relu(x, self.slope) * alpha / (k if k < 4 else 0) + self.n


def get_inputs():
    return [torch.randn(4, 5), 0.4, 3, True]


def get_init_inputs():
    return [0.2, 1.0]
"""


def test_other_numbers_are_asked_where_the_reference_takes_them(tmp_path):
    it = problem(tmp_path, NUMBERED)
    cases = {case.id: case for case in Designer(it, tmp_path / "inputs").all(it.at({}))}
    numbers = {name: case.case["params"] for name, case in cases.items() if case.kind == "numbers"}
    # k = 4 divides by zero
    assert numbers.keys() == {"Model-alpha=0.3", "Model-slope=0.15", "Model-n=0.75"}
    assert numbers["Model-slope=0.15"]["init_slope"] == pytest.approx(0.15)


OVERFLOWING = """
import torch


def f(x, a):
    return torch.exp(-torch.exp(a)) * x


def get_inputs():
    return [torch.randn(4, 3), torch.randn(3)]
"""


def test_a_case_in_which_the_reference_overflows_is_not_asked(tmp_path):
    ids = designed(tmp_path, OVERFLOWING)
    assert "f-x-offset=100" in ids
    assert "f-a-offset=100" not in ids


READING = """
import torch
from torch import nn

batch_size = 6
dim = 4096


def state(n):
    return torch.zeros(batch_size, n)


class Model(nn.Module):
    def __init__(self, dim):
        super().__init__()
        self.h, self.fc = state(dim), nn.Linear(dim, 3)

    def forward(self, x):
        return self.fc(x + self.h)


def get_inputs():
    return [torch.randn(batch_size, dim)]


def get_init_inputs():
    return [dim]
"""


def test_a_global_that_the_reference_reads_stays(tmp_path):
    it = problem(tmp_path, READING)
    assert it.numbers == {"dim": 4096}
    assert small(it).keys() == {"dim"}


SMOOTHED = """
import torch
from torch import nn


class Model(nn.Module):
    def __init__(self):
        super().__init__()
        self.register_buffer("level", torch.zeros(3))
        self.register_buffer("mask", torch.ones(3))

    def forward(self, x):
        if self.training:
            self.level.lerp_(x.mean(0), 0.5)
        return (x - self.level) * self.mask


def get_inputs():
    return [torch.randn(4, 3)]
"""


def test_a_buffer_that_a_call_changes_is_state_with_its_initial_value(tmp_path):
    it = problem(tmp_path, SMOOTHED)
    sized = it.at({})
    assert sized.state == ("level",)
    assert sized.params["state_buffers"] == "level"
    np.testing.assert_array_equal({w.name: w.values for w in sized.weights}["level"], np.zeros(3))
    cases = list(Designer(it, tmp_path / "inputs").all(sized))
    assert all("file" in case.case["inputs"]["level"] for case in cases)
    assert {"Model-given", "Model-eval"} <= {case.id for case in cases}


CACHED = (
    SMOOTHED.replace("torch.zeros(3)", "torch.zeros(0)")
    .replace("self.level.lerp_(x.mean(0), 0.5)", "self.level = torch.cat([self.level, x.mean(0)])")
    .replace("x - self.level", "x")
)


def test_a_buffer_that_grows_is_no_state(tmp_path):
    assert problem(tmp_path, CACHED).at({}).state == ()


def test_an_argument_may_be_called_state(tmp_path):
    it = problem(tmp_path, FUNCTION.replace("scale", "state").replace("0.5]", "torch.randn(40)]"))
    assert {"soft-given", "soft-state-zeros"} <= {c.id for c in Designer(it, tmp_path / "inputs").all(it.at({}))}


CONSTRUCTED = """
import torch
import torch.nn as nn


class Model(nn.Module):
    def __init__(self, d_in, d_out, scale):
        super().__init__()
        self.fc = nn.Linear(d_in, d_out)

    def forward(self, x, labels):
        return self.fc(x)[labels]


def get_inputs():
    labels = torch.randint(0, 40, (6,))
    labels[::3] = -40
    return [torch.randn(40, 24), labels.clamp(min=0)]


def get_init_inputs():
    return [24, 12, -3]
"""


def test_whole_numbers_of_the_constructor_are_sizes(tmp_path):
    own = problem(tmp_path, CONSTRUCTED)
    assert own.literals.init == {"size_12", "size_24"}
    assert own.numbers == {"size_12": 12, "size_24": 24, "size_6": 6}  # 40 is a label, too
    sized = own.at({"size_24": 5, "size_12": 3})
    assert [list(a.value.shape) for a in sized.arguments] == [[40, 5], [6]]
    assert sized.outputs["y"].shape == (6, 3)
    assert own.at({}).outputs["y"].shape == (6, 12)


def test_sizes_of_the_constructor_are_asked_beside_lengths(tmp_path):
    cases = designed(tmp_path, CONSTRUCTED.replace("self.fc(x)[labels]", "self.fc(x) * labels.sum()"))
    assert {"Model-size_24=25", "Model-size_24=33", "Model-batch=41"} <= set(cases)
    assert not {"Model-size_24=1", "Model-size_24=129"} & set(cases)


WRITTEN = """
import torch
import torch.nn.functional as F


def loss(x, labels):
    return F.cross_entropy(x, labels)


def get_inputs():
    labels = torch.randint(0, 5, (9,))
    labels[2] = -100
    return [torch.randn(9, 5).mul_(2), labels]
"""


def test_what_is_written_into_a_draw_stays(tmp_path):
    own = problem(tmp_path, WRITTEN)
    assert [a.kind for a in own.at({}).arguments] == ["normal", "given"]
    cases = {case.id: case.case["inputs"] for case in Designer(own, tmp_path / "inputs").all(own.at({}))}
    assert "file" in cases["loss-drawn"]["labels"]


def test_inputs_far_above_and_far_below_zero(tmp_path):
    assert {"loss-x-offset=100", "loss-x-offset=-100"} <= set(designed(tmp_path, WRITTEN))


MADE = """
import torch


def scaled(x, y):
    return (x * y).sum() / x.numel()


def get_inputs():
    s = (8, 6)
    x = -torch.rand(s)
    return [x, x + torch.randn(s) * 0.5]
"""


def test_sizes_of_inputs_that_are_made_of_others(tmp_path):
    ids = designed(tmp_path, MADE)
    assert {"scaled-size_8=9", "scaled-size_6=1"} <= set(ids)
    plain = MADE.replace("-torch.rand(s)", "torch.rand(s)").replace("x + torch.randn(s) * 0.5", "torch.randn(s)")
    assert not [name for name in designed(tmp_path, plain) if "size_" in name]


DRAWN_ONCE = """
import torch
import torch.nn as nn


class Model(nn.Module):
    def __init__(self, dim):
        super().__init__()
        self.register_buffer("u", torch.randn(dim))

    def forward(self, x):
        return x * self.u


def get_inputs():
    return [torch.randn(5, 4)]


def get_init_inputs():
    return [4]
"""


def test_a_constructor_may_draw_constants(tmp_path):
    ids = designed(tmp_path, DRAWN_ONCE)
    assert "Model-inference" in ids


ODD_INPUTS = """
import torch


def f(x, labels, more=None):
    return x * (labels >= 0)


get_inputs = lambda: {}
"""


def test_integers_have_the_bounds_that_the_file_declares(tmp_path):
    text = ODD_INPUTS.format("[torch.randn(3), torch.randint(-2, 90, (3,))]")
    assert problem(tmp_path, text).at({}).arguments[1].bounds == (-2, 90)
    text = ODD_INPUTS.format("[torch.randn(3), torch.randint(90, (3,))]")
    assert problem(tmp_path, text).at({}).arguments[1].bounds == (0, 90)


@pytest.mark.parametrize(
    ("inputs", "message"),
    [
        ("[torch.randn(3), torch.ones(3), [1, (torch.ones(2), 2)]]", "more is a list with tensors; give each as"),
        ("[torch.randn(0, 3), torch.ones(3)]", r"x has no elements \(shape \[0, 3\]\): not supported"),
    ],
)
def test_inputs_that_are_not_supported(tmp_path, inputs, message):
    with pytest.raises(CheckError, match=message):
        problem(tmp_path, ODD_INPUTS.format(inputs)).at({})


WINDOWED = """
import torch
import torch.nn as nn

LENGTH = 64
DIM = 512


class Model(nn.Module):
    def __init__(self, dim, window):
        super().__init__()
        self.window = window

    def forward(self, x):
        i = torch.arange(x.shape[0])
        return (x @ x.T).masked_fill((i[:, None] - i).abs() >= self.window, 0.0) @ x


def get_inputs():
    return [torch.randn(LENGTH, DIM)]


def get_init_inputs():
    return [DIM, 8]
"""


def test_a_window_stays_smaller_than_a_length(tmp_path):
    sizes = small(problem(tmp_path, WINDOWED))
    assert sizes["size_8"] < sizes["LENGTH"]


def test_inputs_of_two_sizes_with_one_number_have_files_of_their_own(tmp_path):
    own = problem(tmp_path, MADE)
    cases = {case.id: case.case["inputs"] for case in Designer(own, tmp_path / "inputs").all(own.at({}))}
    files = [cases[f"scaled-size_{n}=129"]["x"]["file"] for n in (8, 6)]
    assert [np.load(tmp_path / file).shape for file in files] == [(129, 6), (8, 129)]


MASKED = """
import torch


def f(x, keep, weight):
    scores = x.masked_fill(~keep, float("-inf"))
    return torch.nan_to_num(torch.softmax(scores, -1)) * weight


def get_inputs():
    return [torch.randn(4, 6), torch.rand(4, 6) > 0.5, (torch.rand(4, 6) > 0.5).float()]
"""


@pytest.mark.parametrize(
    ("text", "words"),
    [
        (MASKED, {"keep-full", "keep-row", "keep-empty", "weight-full", "weight-row", "weight-empty"}),
        (MASKED.replace("torch.nan_to_num", ""), {"keep-full", "weight-full", "weight-row", "weight-empty"}),
        (MASKED.replace('float("-inf")', "-1e9").replace("torch.nan_to_num", ""), {"keep-full", "weight-full"}),
    ],
)
def test_masks_hide_nothing_a_row_or_all_where_the_reference_is_made_for_that(tmp_path, text, words):
    it = problem(tmp_path, text)
    cases = [case for case in Designer(it, tmp_path / "inputs").all(it.at({})) if case.kind == "mask"]
    assert {case.id.removeprefix("f-") for case in cases} == words


COLOURS = """
import torch

C, H = 3, 5


def f(x):
    return torch.stack([x[:, 0] + x[:, 1], x[:, 2]], 1)


def get_inputs():
    return [torch.rand(2, C, H)]
"""


def test_a_size_that_the_reference_does_not_look_at_is_not_asked(tmp_path):
    it = problem(tmp_path, COLOURS)
    ids = [case.id for case in Designer(it, tmp_path / "inputs").all(it.at({}))]
    assert not any(name.startswith("f-C=") for name in ids)
    assert {"f-H=129", "f-H=1"} <= set(ids)


LOOPED = """
import torch

T, D = 200, 4


def f(x):
    out = torch.zeros_like(x)
    for t in range(1, x.shape[0]):
        out[t] = out[t - 1] * 0.5 + x[t]
    return out


def get_inputs():
    return [torch.randn(T, D)]
"""


def test_loops_become_so_short_that_each_call_can_be_a_step(tmp_path):
    it = problem(tmp_path, LOOPED)
    assert small(it) == {"T": 50}
    assert it.n_counted <= MOST_STEPS


HALVES = """
import torch

H = 6


def f(x):
    return x[0::2] + x[1::2]


def get_inputs():
    return [torch.randn(H, 3)]
"""


def test_a_size_at_which_nothing_is_returned_is_not_asked(tmp_path):
    it = problem(tmp_path, HALVES)
    ids = [case.id for case in Designer(it, tmp_path / "inputs").all(it.at({}))]
    assert not [name for name in ids if name.startswith("f-H=")]


LEVELS = """
import torch

L, N = 64, 3


class Model(torch.nn.Module):
    def __init__(self, levels):
        super().__init__()
        self.levels = levels

    def forward(self, x):
        for _ in range(self.levels):
            x = torch.cat([x[:, 0::2], x[:, 1::2]], 1) * 0.5
        return x


def get_inputs():
    return [torch.randn(2, L)]


def get_init_inputs():
    return [N]
"""


def test_numbers_of_the_constructor_stay_near_those_of_the_file(tmp_path):
    it = problem(tmp_path, LEVELS)
    assert it.of_constructor == {"N"}
    ids = [case.id for case in Designer(it, tmp_path / "inputs").all(it.at({}))]
    assert [name for name in ids if name.startswith("Model-N=")] == ["Model-N=5"]
    assert "Model-L=129" in ids


STEPS = """
import torch


def gae(rewards, values, dones):
    out, total = [], 0
    for t in reversed(range(rewards.shape[0])):
        total = rewards[t] + values[t + 1] - values[t] + (1 - dones[t]) * total
        out.append(total)
    return torch.stack(out)


def get_inputs():
    return [torch.randn(8, 5), torch.randn(9, 5), (torch.rand(8, 5) < 0.3).float()]
"""


def test_values_of_one_more_step_get_longer_with_the_steps(tmp_path):
    own = problem(tmp_path, STEPS)
    cases = [case for case in Designer(own, tmp_path / "inputs").all(own.at({})) if case.kind == "size-one"]
    shapes = [tuple(case.case["inputs"][name].get("shape", ()) for name in ("rewards", "values")) for case in cases]
    assert ([1, 5], [2, 5]) in shapes
    assert ([1, 5], [9, 5]) not in shapes


def test_an_axis_of_one_is_not_asked_where_it_would_be_broadcast(tmp_path):
    text = """
        import torch

        def f(x, lens):
            return (x * (torch.arange(x.shape[1]) < lens[:, None])).sum(1)

        def get_inputs():
            return [torch.randn(4, 7), torch.tensor([1, 7, 3, 5])]
    """
    assert not [name for name in designed(tmp_path, dedent(text)) if name in ("f-size_4=1", "f-batch=1")]


PRICES = """
import torch


def f(spot, up, z):
    return spot.log() * up + z * 2


def get_inputs():
    return [torch.rand(6) * 0.4 + 0.8, 2.0 + torch.rand(6), torch.rand(6) - 0.5]
"""


def test_positive_inputs_stay_positive(tmp_path):
    own = problem(tmp_path, PRICES.replace(".log()", ""))
    assert [a.kind for a in own.at({}).arguments] == ["positive", "positive", "uniform"]
    cases = {case.id: case.case["inputs"] for case in Designer(own, tmp_path / "inputs").all(own.at({}))}
    assert 0.7 < cases["f-drawn"]["spot"]["uniform"]["low"] < cases["f-drawn"]["spot"]["uniform"]["high"] < 1.3
    assert cases["f-drawn"]["z"] == {"shape": [6]}
    assert {"f-z-offset=-100", "f-tiny", "f-z-ties"} <= cases.keys()
    assert not {"f-spot-offset=100", "f-spot-offset=-100", "f-zeros", "f-up-outlier"} & cases.keys()


def test_all_inputs_are_far_from_zero_at_once(tmp_path):
    text = LITERAL.replace("def f(x, target):", "def f(x, z, target):").replace("(x, target)", "(x - z, target)")
    ids = designed(tmp_path, text.replace("torch.randn(6, 5),", "torch.randn(6, 5), torch.randn(6, 5),", 1))
    assert {"f-x-offset=100", "f-z-offset=100", "f-all-offset=100"} <= set(ids)


def test_coordinates_and_odd_kernels_keep_their_sizes(tmp_path):
    boxes = """
        import torch

        def f(a):
            return a[:, 0] * a[:, 1] - a[:, 2]

        def get_inputs():
            return [torch.rand(5, 3).cumsum(1)]
    """
    assert not [name for name in designed(tmp_path, dedent(boxes)) if "size_3" in name]
    kernel = """
        import torch

        class Model(torch.nn.Module):
            def __init__(self, channels, kernel):
                super().__init__()
                self.conv = torch.nn.Conv1d(channels, channels, kernel, padding=kernel // 2)

            def forward(self, x):
                return self.conv(x)

        def get_inputs():
            return [torch.randn(2, 4, 17)]

        def get_init_inputs():
            return [4, 5]
    """
    sizes = {name for name in designed(tmp_path, dedent(kernel)) if "size_5" in name}
    assert not {"Model-size_5=6", "Model-size_5=4"} & sizes


def test_the_cost_of_a_module_whose_constructor_reads_values_is_known(tmp_path):
    body = "self.rates = [rate.item() for rate in torch.linspace(0, 1, 3)]\n        self.fc = nn.Linear(dim, dim)"
    it = problem(tmp_path, REFERENCE.replace("self.fc = nn.Linear(dim, dim)", body))
    plain = problem(tmp_path, REFERENCE)
    for sizes in ({}, {"batch_size": 2, "dim": 4}):
        assert it.cost(sizes) == plain.cost(sizes) is not None
