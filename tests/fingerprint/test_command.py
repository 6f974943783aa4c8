"""`parity fingerprint` as a command: what a user gets wrong, what a backend does, and the plot."""

from __future__ import annotations

import json
import signal
import xml.etree.ElementTree as ElementTree

import numpy as np
import pytest

from parity.fingerprint.summation import meetings, order_name, pairs, patterns
from parity.reporting.plots.drift import Line, drift_file
from tests.conftest import started
from tests.fingerprint.test_fingerprint import Found, call, fingerprint

SVG = "{http://www.w3.org/2000/svg}"


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["layer_nrm"], "layer_norm"),
        (["linear", "-b", "torhc"], 'did you mean "torch"?'),
        (["linear", "-b", "mine=numpy:nowhere.py"], "no such file"),
        (["linear", "--config", "nowhere.yaml"], "nowhere.yaml"),
        (["linear", "--dtype", "float16"], "float32"),
        (["linear", "-b", "numpy", "--out", "full"], "name another --out"),
    ],
)
def test_mistakes_end_with_2_and_no_traceback(tmp_path, arguments, said):
    (tmp_path / "full").mkdir()
    (tmp_path / "full" / "thesis.txt").write_text("mine")
    done = call(*arguments, cwd=tmp_path)
    assert done.returncode == 2
    assert said in done.stderr
    assert "Traceback" not in done.stderr


def test_help_ends_with_an_example(tmp_path):
    lines = call("--help", cwd=tmp_path).stdout.rstrip().splitlines()
    assert lines[-1].strip().startswith("parity fingerprint ")


def test_the_backends_of_a_config(tmp_path):
    (tmp_path / "ops.py").write_text("def clip_grad_norm(grads, max_norm):\n    raise ValueError('not today')\n")
    (tmp_path / "mine.yaml").write_text(
        "version: 1\nbackends: [numpy, {name: mine, adapter: numpy, ops: ./ops.py}]\ncases: []\n"
    )
    done = call("clip_grad_norm", "--config", "mine.yaml", "--dtype", "float64", "--out", "out", "--json", cwd=tmp_path)
    found = Found(done, tmp_path / "out")
    assert found.code == 3
    assert json.loads(done.stdout) == found.document
    assert [row["name"] for row in found.document["backends"]] == ["numpy", "mine"]
    assert found.claims("numpy", "float64")["scope"] == "global"
    assert "not today" in found.claim("mine", "float64", "scope")["reason"]
    assert set(found.claims("mine", "float64").values()) == {"cannot tell"}


def test_a_crash_is_reported_and_the_others_go_on(tmp_path):
    (tmp_path / "crash.py").write_text("import os\n\ndef clip_grad_norm(grads, max_norm):\n    os.abort()\n")
    arguments = ["-b", "numpy", "-b", "crash=numpy:crash.py", "--dtype", "float32", "--out", "out"]
    found = Found(call("clip_grad_norm", *arguments, cwd=tmp_path), tmp_path / "out")
    assert found.code == 3
    assert "crash: crash in" in found.stdout
    assert "not measured" in found.stdout
    assert found.stdout.startswith("INCOMPLETE")
    assert {p["outcome"] for p in found.document["problems"]} == {"crash"}
    assert found.claims("numpy", "float32")["norm"] == "2-norm"


def test_a_missing_backward_costs_the_gradients_only(tmp_path):
    (tmp_path / "half.py").write_text(
        "def layer_norm(x, weight, bias, normalized_shape, eps):\n"
        "    m = x.mean(-1, keepdims=True)\n"
        "    return (x - m) / (((x - m) ** 2).mean(-1, keepdims=True) + x.dtype.type(eps)) ** 0.5 * weight + bias\n"
    )
    done = call("layer_norm", "-b", "half=numpy:half.py", "--dtype", "float32", "--out", "out", cwd=tmp_path)
    found = Found(done, tmp_path / "out")
    assert found.code == 3
    assert found.claims("half", "float32")["variance"] == "two-pass"
    assert found.claim("half", "float32", "sum of grad.bias")["measured"] is False


def test_an_interrupt_keeps_what_was_answered(tmp_path):
    (tmp_path / "slow.py").write_text("import time\n\ndef clip_grad_norm(grads, max_norm):\n    time.sleep(3600)\n")
    command = ("fingerprint", "clip_grad_norm", "-b", "numpy", "-b", "slow=numpy:slow.py", "--out", "out")
    with started(*command, cwd=tmp_path) as process:
        assert process.stderr is not None
        while "slow: numpy" not in process.stderr.readline():
            assert process.poll() is None
        process.send_signal(signal.SIGINT)
        out, _ = process.communicate()
    assert process.returncode == 130
    assert out.startswith("INTERRUPTED")
    assert json.loads((tmp_path / "out" / "fingerprint.json").read_text())["summary"]["exit_code"] == 130


NONSENSE = {
    "nan": "x * float('nan')",
    "shape": "x[:1]",
    "zeros": "x * 0",
    "dtype": "x.astype('float16')",
    "same": "x",
}


def test_nonsense_is_no_fingerprint(tmp_path):
    backends = []
    for name, returned in NONSENSE.items():
        body = f"    return {returned}\n"
        back = "def layer_norm_backward(grad_y, x, weight):\n    return {'x': x, 'weight': weight, 'bias': weight}\n"
        (tmp_path / f"{name}.py").write_text(f"def layer_norm(x, weight, bias, normalized_shape, eps):\n{body}{back}")
        backends += ["-b", f"{name}=numpy:{name}.py"]
    found = Found(call("layer_norm", *backends, "--out", "out", cwd=tmp_path), tmp_path / "out")
    assert "Traceback" not in found.stderr
    assert found.code == 3
    for name in NONSENSE:
        for dtype in ("float32", "float64"):
            claims = found.claims(name, dtype)
            assert {claims[a] for a in ("variance", "variance divisor", "affine", "eps", "grad.weight")} == {
                "cannot tell"
            }


def test_the_same_again(tmp_path):
    documents = []
    for name in ("one", "two"):
        folder = tmp_path / name
        folder.mkdir()
        documents.append(fingerprint(folder, "clip_grad_norm", {"mine": "clip_with()"}).document)
    assert documents[0]["fingerprints"] == documents[1]["fingerprints"]


HOSTILE = '"><script>alert(1)</script>&\x00\x1b[31m\ud800' + "n" * 200


@pytest.mark.parametrize("points", [(), ((1.0, 0.0),), ((1.0, 1e-7), (1e5, 1e-3), (1e6, float("nan")))])
def test_the_plot_is_xml_whatever_a_backend_is_called(points):
    drawn = drift_file(
        "a <title>",
        ("x & y", "error"),
        [Line(HOSTILE, "float32", points)],
        [Line("naive", "float32", ((1.0, 1e-7), (1e6, 1e5)))],
    )
    root = ElementTree.fromstring(drawn)
    assert root.tag == f"{SVG}svg"
    assert not list(root.iter(f"{SVG}script"))
    assert "http" not in drawn.replace("http://www.w3.org/2000/svg", "")
    assert "nan" not in drawn.replace("n" * 20, "")
    marks = [mark for plot in root.findall(f"{SVG}svg") for mark in plot.iter(f"{SVG}circle")]
    assert len(marks) == sum(y == y for _, y in points)
    for mark in marks:
        assert 84 <= float(mark.get("cx")) <= 664
        assert 48 <= float(mark.get("cy")) <= 488


def test_the_plot_has_a_line_for_each_backend_and_dtype():
    lines = [Line(name, dtype, ((1.0, 1e-7), (10.0, 1e-6))) for name in ("a", "b") for dtype in ("float32", "float64")]
    root = ElementTree.fromstring(drift_file("t", ("x", "y"), lines, []))
    labels = {t.text for t in root.iter(f"{SVG}text")}
    assert {"a float32", "a float64", "b float32", "b float64"} <= labels


def summed(order, n=64):
    """The sums of all patterns, by a tree given as nested pairs of places."""

    def total(tree, row):
        return row[tree] if isinstance(tree, int) else np.float32(total(tree[0], row) + total(tree[1], row))

    rows = patterns(n, 2.0**40).astype(np.float32)
    return np.array([total(order, row) for row in rows])


def left(terms):
    tree = terms[0]
    for term in terms[1:]:
        tree = (tree, term)
    return tree


def halves(terms):
    return terms[0] if len(terms) == 1 else (halves(terms[: len(terms) // 2]), halves(terms[len(terms) // 2 :]))


N = 64
TREES = {
    "sequential": left(list(range(N))),
    "sequential from the last term": left(list(range(N))[::-1]),
    "pairwise": halves(list(range(N))),
    "4 lanes, each in sequence, the lanes joined in sequence": left([left(list(range(k, N, 4))) for k in range(4)]),
    "4 lanes, each in sequence, the lanes joined in a tree": halves([left(list(range(k, N, 4))) for k in range(4)]),
    "sequential in blocks of 16, the blocks joined in sequence": left(
        [left(list(range(k, k + 16))) for k in range(0, N, 16)]
    ),
    "sequential in blocks of 16, the blocks joined in a tree": halves(
        [left(list(range(k, k + 16))) for k in range(0, N, 16)]
    ),
    "sequential in blocks of 24, the blocks joined in sequence": left(
        [left(list(range(k, min(k + 24, N)))) for k in range(0, N, 24)]
    ),
    "4 lanes, each in sequence over blocks of 32, the blocks joined": left(
        [left([left(list(range(s + k, s + 32, 4))) for k in range(4)]) for s in (0, 32)]
    ),
    "": left([0, 5, 3, *range(6, N), 1, 2, 4]),
}


@pytest.mark.parametrize("name", TREES)
def test_summation_trees_are_named(name):
    met = meetings(N, summed(TREES[name]))
    assert met is not None
    assert order_name(met) == name


def test_what_counts_no_terms_is_no_sum():
    assert meetings(N, np.full(len(pairs(N)), 3.5)) is None
    assert meetings(N, np.full(len(pairs(N)), np.nan)) is None
