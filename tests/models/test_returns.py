"""Functions of a user's file that return what they must not: the answer says which one, where, and the remedy."""

import pytest

from tests.conftest import call
from tests.models.ports import TWO, config_of
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


@pytest.mark.parametrize("name", BROKEN)
def test_what_a_function_returns(name, tmp_path):
    function, right, wrong, said = BROKEN[name]
    assert right in TWO
    text = TWO.replace(right, wrong, 1)
    done, results = run_case(tmp_path, {"ours": text, "theirs": TWO})
    line = text[: text.index(f"def {function}(")].count("\n") + 1
    place = f"models.yaml:4, {KEYS.get(function, function)}: ours.py:{line}: {function} "
    messages = {row.backend: row.message for row in results.outcomes if row.outcome != "ok"}
    assert done.returncode == 3
    assert any(place in message and said in message for message in messages.values()), messages
    assert place in done.stdout
    assert "Error" not in done.stdout


def test_a_forward_function_that_returns_nothing(tmp_path):
    text = TWO + "\n\ndef run(model, batch):\n    model(batch['x'])\n"
    done, _ = run_case(tmp_path, {"ours": text, "theirs": text}, f"{CASE}, forward: run")
    assert "forward: ours.py:" in done.stdout
    assert (
        "run returned None (is a `return` missing?); return what the model returns, one tensor at least" in done.stdout
    )


def test_a_port_of_another_framework_is_told_so(tmp_path):
    text = TWO.replace("from torch import nn", "from torch import nn\nimport paddle").replace(
        "    return Net()\n", "    return paddle.nn.Linear(8, 3)\n"
    )
    done, _ = run_case(tmp_path, {"ours": TWO, "theirs": text})
    assert f"build_model returned a Linear; {MODEL}" in done.stdout


def test_a_loss_in_paddle(tmp_path):
    text = """
import paddle


def build_model():
    return paddle.nn.Linear(8, 3)


def make_batch():
    import numpy as np

    return {"x": np.ones((4, 8), np.float32)}


def loss(output, batch):
    return LOSS
"""
    for i, (wrong, said) in enumerate({
        "output.sum(-1)": "loss returned a tensor of shape [4]; return one number",
        "output.sum().detach()": "loss returned a tensor that depends on no parameter",
        "None": "loss returned None",
    }.items()):  # fmt: skip
        folder = tmp_path / str(i)
        folder.mkdir()
        path = config_of(
            folder,
            {"ours": text.replace("LOSS", "output.sum()"), "theirs": text.replace("LOSS", wrong)},
            "id: net, kind: model, loss: loss",
        )
        path.write_text(path.read_text().replace("adapter: torch", "adapter: paddle"))
        done = call("run", path, "--out", folder / "out")
        assert done.returncode == 3
        assert f"models.yaml:4, loss: theirs.py:15: {said}" in done.stdout


def test_another_number_of_outputs(tmp_path):
    two = TWO.replace(
        "        return self.head(self.act(x + self.attention(self.norm(x))).mean(1))",
        "        y = self.head(self.act(x + self.attention(self.norm(x))).mean(1))\n        return y, y * 2",
    )
    more = two.replace("return y, y * 2", "return y, y * 2, y * 3")
    case = "id: net, kind: model, targets: [labels]"
    for i, (ours, theirs, said) in enumerate(
        [
            (two, more, "theirs returns 3 tensors, ours 2"),
            (more, two, "theirs returns 2 tensors, ours 3"),
            (TWO, two, "theirs returns 2 tensors, ours 1"),
        ]
    ):
        folder = tmp_path / str(i)
        folder.mkdir()
        done, _ = run_case(folder, {"ours": ours, "theirs": theirs}, case)
        assert done.returncode == 1
        assert said in done.stdout, done.stdout


def test_how_long_a_model_may_take(tmp_path):
    text = TWO.replace("    return Net()", "    import time\n    time.sleep(600)\n    return Net()")
    done, results = run_case(tmp_path, {"ours": TWO, "theirs": text}, CASE, "--timeout", "2")
    assert {row.outcome for row in results.outcomes} == {"ok", "timeout"}
    assert "no result after 20 s; raise --timeout if it needs longer (a model may take 10 times its 2 s)" in done.stdout


def test_a_crash_is_told_without_warnings(tmp_path):
    text = TWO.replace("import torch\n", "import torch\nimport warnings\n").replace(
        "    return Net()\n",
        "    warnings.warn('no ccache found')\n    print('the end', file=__import__('sys').stderr)\n    __import__('os')._exit(3)\n",
    )
    done, _ = run_case(tmp_path, {"ours": TWO, "theirs": text})
    assert "exited with status 3 before it replied; last output: the end" in done.stdout
    assert "ccache" not in done.stdout + done.stderr
