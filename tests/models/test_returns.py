"""Functions of a user's file that return what they must not: the answer says which one, where, and the remedy."""

import pytest

from parity.models import ports
from parity.reporting.results.results import read_results
from tests.conftest import call
from tests.models.ports import TWO, config_of_cases
from tests.models.test_run import CASE, run_case

LOSS = '    return nn.functional.cross_entropy(output, batch["labels"])\n'
METRIC = '    return float((output.argmax(-1) == batch["labels"]).mean())\n'
BATCH = '    return {"x": rng.normal(size=(4, 5, 8)).astype(np.float32), "labels": rng.integers(0, 3, 4)}\n'
BUILD = "    return Net()\n"
ONE = "return the loss, a tensor of one number"
ARRAYS = 'return NumPy arrays by name, such as {"x": x, "labels": labels}'
NUMBER = "return a number, or a mapping of names to numbers"
MODEL = "return the model, an instance of torch's Module"

BROKEN = {
    "a loss that returns nothing": ("loss", LOSS, "    nn.functional.cross_entropy(output, batch['labels'])\n",
                                    f"returned None (is a `return` missing?); {ONE}"),
    "a loss for each example": ("loss", LOSS, LOSS.replace("])", "], reduction='none')"),
                                "returned a tensor of shape [4]; return one number: its mean or its sum"),
    "a loss that is a float": ("loss", LOSS, LOSS.replace(")\n", ").item()\n"),
                               f"{ONE}: `.item()` and `float()` cut it off from the parameters"),
    "a loss without gradient": ("loss", LOSS, LOSS.replace(")\n", ").detach()\n"),
                                "returned a tensor that depends on no parameter; leave out what cuts it off"),
    "a metric that is a text": ("accuracy", METRIC, "    return 'good'\n", f"returned the str 'good'; {NUMBER}"),
    "a metric that returns nothing": ("accuracy", METRIC, "    pass\n", f"returned None (is a `return` missing?); {NUMBER}"),
    "metrics of which one is a text": ("accuracy", METRIC, "    return {'top': 1.0, 'kind': 'b'}\n",
                                       f"returned the str 'b' as 'kind'; {NUMBER}"),
    "no model": ("build_model", BUILD, "    Net()\n", f"returned None (is a `return` missing?); {MODEL}"),
    "a class": ("build_model", BUILD, "    return Net\n", f"returned the class Net, not an instance of it; {MODEL}"),
    "no batch": ("make_batch", BATCH, "    pass\n", f"returned None (is a `return` missing?); {ARRAYS}"),
    "an empty batch": ("make_batch", BATCH, "    return {}\n", f"returned an empty mapping; {ARRAYS}"),
    "a batch of words": ("make_batch", BATCH, "    return {'x': ['one', 'two']}\n", "returned a list as 'x', which is no array of numbers"),
    "a batch with rows of several lengths": ("make_batch", BATCH, "    return {'x': [[1, 2], [3]]}\n",
                                             "returned a list as 'x', which is no array of numbers"),
}  # fmt: skip
KEYS = {"accuracy": "metric", "build_model": "build", "make_batch": "batch"}
SLUGS = {name.replace(" ", "_"): row for name, row in BROKEN.items()}
FULL = {"targets": ["labels"], "loss": "loss", "metric": "accuracy"}
SILENT = TWO + "\n\ndef run(model, batch):\n    model(batch['x'])\n"
FOREIGN = TWO.replace("from torch import nn", "from torch import nn\nimport paddle").replace(
    BUILD, "    return paddle.nn.Linear(8, 3)\n"
)
HEAD = "self.head(self.act(x + self.attention(self.norm(x))).mean(1))"
PAIR, TRIPLE = (
    TWO.replace(f"return {HEAD}", f"y = {HEAD}\n        return {more}") for more in ("y, y * 2", "y, y * 2, y * 3")
)
COUNTS = {
    "more": (PAIR, TRIPLE, "theirs returns 3 tensors, ours 2"),
    "fewer": (TRIPLE, PAIR, "theirs returns 2 tensors, ours 3"),
    "another": (TWO, PAIR, "theirs returns 2 tensors, ours 1"),
}
CRASHING = TWO.replace("import torch\n", "import torch\nimport warnings\n").replace(
    BUILD,
    "    warnings.warn('no ccache found')\n    print('the end', file=__import__('sys').stderr)\n    __import__('os')._exit(3)\n",
)
CASES = {
    **{name: (TWO.replace(right, wrong, 1), TWO, FULL) for name, (_, right, wrong, _) in SLUGS.items()},
    **{name: (*texts, {"targets": ["labels"]}) for name, (*texts, _) in COUNTS.items()},
    "silent": (SILENT, SILENT, {**FULL, "forward": "run"}),
    "foreign": (TWO, FOREIGN, FULL),
    "crash": (TWO, CRASHING, FULL),
}


@pytest.fixture(scope="module")
def shared(tmp_path_factory):
    folder = tmp_path_factory.mktemp("returns")
    done = call("run", config_of_cases(folder, CASES), "--out", folder / "out")
    return done, read_results(folder / "out")


def messages_of(results, case):
    return {row.backend: row.message for row in results.outcomes if row.case == case and row.outcome != "ok"}


@pytest.mark.parametrize("name", SLUGS)
def test_what_a_function_returns(shared, name):
    done, results = shared
    function, right, wrong, said = SLUGS[name]
    text = TWO.replace(right, wrong, 1)
    line = text[: text.index(f"def {function}(")].count("\n") + 1
    place = f"{KEYS.get(function, function)}: ours_{name}.py:{line}: {function} "
    messages = messages_of(results, name)
    assert any("cases.yaml:" in message and place in message and said in message for message in messages.values()), (
        messages
    )
    assert place in done.stdout
    assert "Error" not in " ".join(messages.values())


def test_a_forward_function_that_returns_nothing(shared):
    message = messages_of(shared[1], "silent")["ours"]
    assert "forward: ours_silent.py:" in message
    assert "run returned None (is a `return` missing?); return what the model returns, one tensor at least" in message


def test_a_port_of_another_framework_is_told_so(shared):
    assert f"build_model returned a Linear; {MODEL}" in messages_of(shared[1], "foreign")["theirs"]


LINEAR = """
import paddle


def build_model():
    return paddle.nn.Linear(8, 3)


def make_batch():
    import numpy as np

    return {"x": np.ones((4, 8), np.float32)}


def loss(output, batch):
    return LOSS
"""
LOSSES = {
    "each": ("output.sum(-1)", "loss returned a tensor of shape [4]; return one number"),
    "detached": ("output.sum().detach()", "loss returned a tensor that depends on no parameter"),
    "nothing": ("None", "loss returned None"),
}


def test_a_loss_in_paddle(tmp_path):
    right = LINEAR.replace("LOSS", "output.sum()")
    cases = {name: (right, LINEAR.replace("LOSS", wrong), {"loss": "loss"}) for name, (wrong, _) in LOSSES.items()}
    config = config_of_cases(tmp_path, cases, adapter="paddle")
    config.write_text(config.read_text().replace('"torch"', '"paddle"'))
    done = call("run", config, "--out", tmp_path / "out")
    assert done.returncode == 3
    for name, (_, said) in LOSSES.items():
        assert f"loss: theirs_{name}.py:15: {said}" in done.stdout


@pytest.mark.parametrize("name", COUNTS)
def test_another_number_of_outputs(shared, name):
    done, results = shared
    *_, said = COUNTS[name]
    assert done.returncode == 1
    assert any(row.case == name and row.verdict == "structure" and said in row.message for row in results.comparisons)
    assert said in done.stdout


def test_how_long_a_model_may_take(tmp_path, monkeypatch):
    monkeypatch.setattr(ports, "LONGER", 1.0)
    text = TWO.replace("    return Net()", "    import time\n    time.sleep(600)\n    return Net()")
    done, results = run_case(tmp_path, {"ours": TWO, "theirs": text}, CASE, "--timeout", "2")
    assert {row.outcome for row in results.outcomes if row.backend == "theirs"} == {"timeout"}
    assert "no result after 2 s; raise --timeout if it needs longer (a model may take 1 times its 2 s)" in done.stdout


def test_a_crash_is_told_without_warnings(shared):
    done, results = shared
    message = messages_of(results, "crash")["theirs"]
    assert "exited with status 3 before it replied; last output: the end" in message
    assert "ccache" not in done.stdout + done.stderr
