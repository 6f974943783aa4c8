"""Exports to ONNX, run by ONNX Runtime, against the model in PyTorch."""

import os
import subprocess
import sys

import pytest

from benchmarks.exports import FAULTS, HEALTHY, MODELS, Fault, config_of, judged
from parity.reporting.results.results import read_results
from tests.conftest import call
from tests.test_pythons import uv

EXPORTER = ("onnx==1.23.2", "onnxscript==0.7.2", "onnx-ir==1.1.0", "ml_dtypes", "protobuf")
CHOSEN = ("eps", "scale", "residual", "transposed", "stale", "gelu-root", "axis", "softmax-float16", "scale-bare")
OTHERWISE = ("gelu-in-parts", "norm-in-parts", "encoder-without-scopes", "encoder-fused")

pytestmark = pytest.mark.frameworks


@pytest.mark.parametrize(
    ("model", "said"),
    [
        ("encoder", ["encoder.0.up.weight: {from: encoder.0.up.weight}  # name", "embedding_1: {from: positions.weight}  # content"]),
        ("resnet", ["# block1.bn1.weight: block1.bn1.weight,", "block1.conv1.weight, folded into one"]),
    ],
)  # fmt: skip
def test_the_shipped_exports_are_aligned(tmp_path, model, said):
    done = call("run", MODELS / f"{model}_export.yaml", "--out", tmp_path)
    assert done.returncode == 0, done.stdout + done.stderr
    assert "aligned with torch; the difference at the output is rounding" in done.stdout
    assert "onnxruntime has no loss, so neither it nor gradients are compared" in done.stdout
    assert "output" in {row.tensor for row in read_results(tmp_path).comparisons}
    mapping = next(tmp_path.rglob("mapping.yaml")).read_text()
    assert all(line in mapping for line in said)


def test_the_shipped_exports_are_what_the_script_writes(tmp_path):
    uv(tmp_path, "pip", "install", "-q", "--no-deps", "--target", tmp_path / "exporter", *EXPORTER)
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(map(str, (tmp_path / "exporter", MODELS)))}
    command = [sys.executable, MODELS / "export_onnx.py"]
    done = subprocess.run(command, cwd=tmp_path, env=environment, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    for name in ("encoder.onnx", "resnet.onnx"):
        assert (tmp_path / name).read_bytes() == (MODELS / name).read_bytes()


@pytest.fixture(scope="module")
def edited(tmp_path_factory):
    folder = tmp_path_factory.mktemp("exports")
    chosen = [fault for fault in (*FAULTS, *HEALTHY) if fault.name in (*CHOSEN, *OTHERWISE)]
    done = call("run", config_of(folder, chosen), "--out", folder / "out")
    assert done.returncode == 1, done.stderr
    return done.stdout, read_results(folder / "out"), {fault.name: fault for fault in chosen}


@pytest.mark.parametrize("name", CHOSEN)
def test_a_fault_in_an_export_is_found_in_its_place(edited, name):
    _, results, faults = edited
    assert judged(faults[name], results)[0] == "right"
    (row,) = [row for row in results.diagnoses if row.backend == name]
    assert row.evidence["share"] == pytest.approx(1, abs=0.01)
    assert row.evidence["left"] < 8


def test_a_script_shows_the_layer_alone(edited):
    _, results, _ = edited
    (row,) = [row for row in results.diagnoses if row.backend == "eps"]
    python = next(backend.executable for backend in results.backends if backend.name == "eps")
    done = subprocess.run([python, row.evidence["script"]], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    value, exact = (float(word) for word in done.stdout.split("eps: ")[1].split(" at ")[0].split(" exact: "))
    assert abs(value - exact) > 1e-4


def test_the_nodes_of_an_export_are_calls(edited):
    text, results, _ = edited
    said = "Cast(Cast(softmax, float16), float32), where torch has softmax"
    assert said in text
    (row,) = [row for row in results.diagnoses if row.backend == "softmax-float16"]
    assert (row.evidence["expression"], row.explained) == (said, True)


@pytest.mark.parametrize("name", OTHERWISE)
def test_another_graph_of_the_same_model_is_aligned(edited, name):
    text, results, faults = edited
    assert judged(faults[name], results) == ("aligned", "")
    assert f"model encoder float32: {name}\n  aligned with torch" in text


def test_what_an_export_cannot_do_is_told(tmp_path):
    path = config_of(tmp_path, [Fault("wrong", "encoder", "return 3")])
    (tmp_path / "broken.onnx").write_bytes(b"no model")
    text = path.read_text().replace("}]\ncases", "}, {name: broken, adapter: onnxruntime, ops: ./broken.onnx}]\ncases")
    path.write_text(text.replace("targets: [labels]}", "targets: [labels]}, {kind: model, id: train, mode: train}"))
    done = call("run", path, "--out", tmp_path / "out")
    said = {(row.case, row.backend): row.message for row in read_results(tmp_path / "out").outcomes}
    assert done.returncode == 3
    assert "must return the path of an ONNX file, its bytes or a ModelProto, not a int" in said["encoder", "wrong"]
    assert "broken.onnx: this ONNX model cannot be read: Error parsing message" in said["encoder", "broken"]
    assert "its models have no training mode" in said["train", "wrong"]
