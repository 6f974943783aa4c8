"""`parity compare`: who differs, since where and why, in constant memory, whatever the names and files."""

from __future__ import annotations

import contextlib
import json
import re
import signal
import sqlite3
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np
import pytest
from safetensors.numpy import save_file

from parity.judge.compare.chunked import RunningMaxima
from parity.judge.compare.metrics import Metrics, compare
from parity.judge.compare.screen import screened
from tests.conftest import call, parity_command

RANDOM = np.random.default_rng(0)


def normal(*shape: int) -> Any:
    return RANDOM.normal(size=shape).astype(np.float32)


def compared(tmp_path: Path, left: dict[str, Any], right: dict[str, Any], *options: str | Path) -> tuple[int, Any]:
    """The exit code and results.json of a comparison."""
    for name, arrays in (("left", left), ("right", right)):
        np.savez(tmp_path / f"{name}.npz", **arrays)
    done = call("compare", "left.npz", "right.npz", "--out", "run", "-q", *options, cwd=tmp_path)
    assert "Traceback" not in done.stdout + done.stderr
    return done.returncode, json.loads((tmp_path / "run" / "results.json").read_text())


def titles(results: Any) -> dict[str, tuple[str, str]]:
    return {row["tensors"][0]: (row["id"], row["title"]) for row in results["diagnoses"]}


def verdicts(results: Any, expected: str = "right.npz") -> dict[str, str]:
    return {row["tensor"]: row["verdict"] for row in results["comparisons"] if row["expected"] == expected}


def test_what_a_difference_looks_like(tmp_path):
    w, q = normal(12, 8), normal(24, 8)
    left = {
        "gates": w, "fused": q, "a": w[:6] * 2, "b": w[6:] * 3, "sign": w[:5], "scale": w[:7] * 2, "square": w[:8],
        "shift": w[:9], "half": w[:3] * 1.7, "one": w[:10],
    }  # fmt: skip
    right = {
        "gates": w.reshape(4, 3, 8)[[0, 1, 3, 2]].reshape(12, 8),
        "fused": q.reshape(3, 4, 2, 8).swapaxes(0, 1).reshape(24, 8),
        "a": left["b"], "b": left["a"], "sign": -w[:5], "scale": w[:7], "square": w[:8].T, "shift": np.roll(w[:9], 2, 0),
        "half": left["half"].astype(ml_dtypes.bfloat16).astype(np.float32), "one": np.where(w[:10] == w[4, 4], 9, w[:10]),
    }  # fmt: skip
    code, results = compared(tmp_path, left, right)
    found = titles(results)
    assert code == 1
    assert {name: diagnosis for name, (diagnosis, _) in found.items()} == {
        "gates": "gate-order", "fused": "head-grouping", "a": "swapped-outputs", "b": "swapped-outputs",
        "sign": "sign-flipped", "scale": "scaled", "square": "transposed", "shift": "shifted",
        "half": "reduced-precision",
    }  # fmt: skip
    assert "order [0, 1, 3, 2]" in found["gates"][1]
    assert "`a` and `b` are exchanged" in found["a"][1]


def test_missing_and_other_structures_fail(tmp_path):
    q, same = normal(12, 4), normal(5)
    left = {"fused": q, "same": same, "lost": normal(3), "shape": normal(4, 6), "dtype": normal(3), "tied": same}
    right = {
        "q": q[:4],
        "k": q[4:8],
        "v": q[8:],
        "same": same,
        "shape": left["shape"].T,
        "dtype": np.float64(left["dtype"]),
    }
    code, results = compared(tmp_path, left, right)
    messages = {row["tensor"]: row["message"] for row in results["comparisons"] if row["verdict"] == "structure"}
    assert code == 1
    assert messages["fused"] == "right.npz does not have it; it is q, k, v of right.npz, joined along axis 0"
    assert messages["lost"] == "right.npz does not have it"
    assert "another tensor has the same values" in messages["tied"]
    assert "left.npz is right.npz transposed" in messages["shape"]
    assert "--ignore-dtype" in messages["dtype"]
    assert set(messages) == {*left, *right} - {"same"}
    assert verdicts(compared(tmp_path, left, right, "--ignore-dtype")[1])["dtype"] in ("equal", "close")


def test_a_mapping_that_was_written_is_used(tmp_path):
    left = {"fc.weight": normal(4, 6), "fc.bias": normal(4), "bn.running_mean": normal(5), "x": normal(3, 3)}
    right = {"fc.weight": left["fc.weight"].T, "fc.bias": left["fc.bias"], "bn._mean": left["bn.running_mean"],
             "y": left["x"].T}  # fmt: skip
    code, results = compared(tmp_path, left, right, "--write-mapping", "names.yaml")
    assert (code, verdicts(results)["fc.weight"]) == (1, "structure")
    assert verdicts(results)["bn.running_mean"] == "equal"
    written = (tmp_path / "names.yaml").read_text()
    assert "x: y  # content" in written
    (tmp_path / "names.yaml").write_text(written.replace("x: y", "x: {name: y, transform: transpose}"))
    code, results = compared(tmp_path, left, right, "--mapping", "names.yaml")
    assert code == 0
    assert set(verdicts(results).values()) == {"equal"}
    (tmp_path / "names.yaml").write_text("nowhere: y\n")
    done = call("compare", "left.npz", "right.npz", "--mapping", "names.yaml", cwd=tmp_path)
    assert done.returncode == 2
    assert "names.yaml: the left side has no tensor 'nowhere'" in done.stderr


def test_two_arrays_are_one_pair_whatever_they_are_called(tmp_path):
    values = normal(4, 6)
    for name, array in (("golden", values), ("new", values), ("turned", values.T)):
        np.save(tmp_path / f"{name}.npy", array)
    assert call("compare", "golden.npy", "new.npy", "--out", "run", "-q", cwd=tmp_path).returncode == 0
    assert call("compare", "golden.npy", "turned.npy", "--out", "run", "-q", cwd=tmp_path).returncode == 1


def test_captures_know_how_a_framework_stores_a_weight(tmp_path):
    weight = normal(4, 4)
    for side, framework, arrays in (("left", "torch", weight), ("right", "paddle", np.ascontiguousarray(weight.T))):
        folder = tmp_path / side
        folder.mkdir()
        save_file({"net.fc.weight": arrays, "net.fc.weight.grad": 2 * arrays}, folder / "tensors-00000.safetensors")
        layers = [{"name": "net.fc", "class": "Linear", "options": {}}]
        index = {"format": "parity.capture/1", "complete": True, "frameworks": {framework: "1"}, "layers": layers}
        (folder / "index.json").write_text(json.dumps(index))
    done = call("compare", "left", "right", "--out", "run", cwd=tmp_path)
    assert done.returncode == 0, done.stdout
    assert "net.fc.weight = net.fc.weight (name, transpose)" in done.stdout


def test_the_options_of_captures_are_compared_in_the_same_words(tmp_path):
    given = {
        "torch": {"norm": ("LayerNorm", {"eps": 1e-5}), "act": ("GELU", {"approximate": "none"}),
                  "bn": ("BatchNorm2d", {"momentum": 0.1})},
        "paddle": {"norm": ("LayerNorm", {"epsilon": 1e-3}), "act": ("GELU", {"approximate": False}),
                   "bn": ("BatchNorm2D", {"momentum": 0.9}), "odd": ("BatchNorm2D", {"momentum": "none"})},
    }  # fmt: skip
    for framework, layers in given.items():
        folder = tmp_path / framework
        folder.mkdir()
        save_file({"norm.weight": np.ones(4, np.float32)}, folder / "tensors-00000.safetensors")
        rows = [{"name": name, "class": kind, "options": options} for name, (kind, options) in layers.items()]
        index = {"format": "parity.capture/1", "complete": True, "frameworks": {framework: "1"}, "layers": rows}
        (folder / "index.json").write_text(json.dumps(index))
    done = call("compare", "torch", "paddle", "--out", "run", cwd=tmp_path)
    assert done.returncode == 0, done.stdout
    assert "1 layer has other options\n  norm: eps 1e-05, 0.001\n" in done.stdout


def test_a_third_dump_says_who_is_off(tmp_path):
    exact = {f"{i}.h": RANDOM.normal(size=(40, 8)) for i in range(4)}
    near = {name: (values * (1 + 1e-7)).astype(np.float32) for name, values in exact.items()}
    off = {**near, "1.h": (exact["1.h"] * 1.001).astype(np.float32)}
    noise = [1e-3 * RANDOM.normal(size=(40, 8)) for _ in range(2)]
    near["2.h"], off["2.h"] = ((exact["2.h"] + part).astype(np.float32) for part in noise)
    np.savez(tmp_path / "truth.npz", **exact)
    code, results = compared(tmp_path, near, off, "--truth", "truth.npz")
    culprits = {row["tensor"]: row["culprit"] for row in results["comparisons"] if row["expected"] == "right.npz"}
    assert code == 1
    assert culprits == {"0.h": [], "1.h": ["right.npz"], "2.h": ["left.npz", "right.npz"], "3.h": []}
    assert titles(results)["1.h"] == ("scaled", "right.npz is 1.001 times the truth")
    html = (tmp_path / "run" / "report.html").read_text()
    said = "not aligned: the first tensor that differs beyond rounding, in the order of the dump, is 1.h (2nd of 4)"
    assert html.index(said) < html.index("Findings</h2>")
    np.savez(tmp_path / "truth.npz", **{name: values.astype(np.float16) for name, values in exact.items()})
    done = call("compare", "left.npz", "right.npz", "--truth", "truth.npz", "--out", "run", "-q", cwd=tmp_path)
    assert done.returncode == 3
    assert "cannot judge float32" in (tmp_path / "run" / "results.json").read_text()


def test_rounding_warns_and_what_is_known_passes(tmp_path):
    left = {"a.w": normal(50), "b.w": normal(50)}
    rounding = left["a.w"] + np.float32(1e-7) * np.abs(left["a.w"]).max()
    code, results = compared(tmp_path, left, {"a.w": rounding, "b.w": left["b.w"]}, "--rtol", "1e-7", "--atol", "0")
    assert (code, verdicts(results)) == (0, {"a.w": "rounding", "b.w": "equal"})
    right = {"a.w": left["a.w"], "b.w": left["b.w"] * 2}
    known = tmp_path / "known.yaml"
    known.write_text('known:\n  - {case: b, tensor: b.w, reason: "another scale, by design"}\n')
    assert compared(tmp_path, left, right)[0] == 1
    assert compared(tmp_path, left, right, "--known", "known.yaml")[0] == 0
    assert compared(tmp_path, left, left, "--known", "known.yaml")[0] == 1
    assert compared(tmp_path, left, right, "--rtol", "b.*:2", "--fail-on", "mismatch")[0] == 0
    known.write_text("known: 3\n")
    assert call("compare", "left.npz", "right.npz", "--known", "known.yaml", cwd=tmp_path).returncode == 2


def test_every_format_and_any_name(tmp_path):
    name = "<script>alert(1)</script>\n\u202e"
    for side, factor in (("l", 1), ("r", 2)):
        save_file(
            {name: normal(4) * 0 + factor, "": normal(3) * 0, "x" * 3000: normal(2) * 0},
            tmp_path / f"{side}.safetensors",
        )
    formats = ["--html", "x.html", "--junit-xml", "x.xml", "--markdown", "x.md", "--json"]
    done = call("compare", "l.safetensors", "r.safetensors", "--out", "run", *formats, cwd=tmp_path)
    assert done.returncode == 1
    assert json.loads(done.stdout)["summary"]["exit_code"] == 1
    assert "<script>alert" not in (tmp_path / "x.html").read_text()
    assert 'failures="1"' in (tmp_path / "x.xml").read_text()
    assert call("report", "run", cwd=tmp_path).stdout.startswith("FAIL  1 finding in 1 of 3 tensors")
    assert call("explain", "run", "x" * 3000, cwd=tmp_path).returncode == 0
    assert call("diff", "run", "run", cwd=tmp_path).returncode == 0


def test_every_dtype_has_its_own_roundoff(tmp_path):
    for name in ("float16", "bfloat16", "float8_e4m3fn", "float64", "complex64", "int64", "bool"):
        values = (RANDOM.normal(size=4000) * 3).astype(name)
        values[7] = 5
        other = values.copy()
        other[7] = -values[7] if name != "bool" else ~values[7]
        other[7] += name == "int64"
        for side, array in (("l", values), ("r", other)):
            (tmp_path / f"{side}.jsonl").write_text(
                json.dumps({"name": "x", "values": [str(v) for v in array.astype(np.float32)], "dtype": name})
                if array.dtype.kind == "V"
                else ""
            )
            if array.dtype.kind != "V":
                np.save(tmp_path / f"{side}.npy", array)
        suffix = "jsonl" if values.dtype.kind == "V" else "npy"
        done = call("compare", f"l.{suffix}", f"r.{suffix}", "--json", "--out", "run", cwd=tmp_path)
        row = json.loads(done.stdout)["comparisons"][0]
        assert (row["dtype"], row["n_mismatched"], row["worst_index"], row["n_elements"]) == (name, 1, [7], 4000), name
        assert row["verdict"] in ("semantic", "unstable"), name


def test_the_screen_says_what_all_metrics_say(tmp_path):
    values = normal(200_000)
    near = values * np.float32(1 + 3e-7)
    whole = compare(values, near, 1.3e-6, 1e-5)
    parts = [(values[i : i + 70_000], near[i : i + 70_000]) for i in range(0, 200_000, 70_000)]
    found = screened(parts, (200, 1000), 1.3e-6, 1e-5)
    assert isinstance(found, Metrics)
    assert (found.max_abs_diff, found.n_mismatched, found.equal) == (whole.max_abs_diff, 0, False)
    assert found.worst_index == tuple(map(int, np.unravel_index(np.abs(values - near).argmax(), (200, 1000))))
    np.testing.assert_allclose((found.rmse, found.cosine), (whole.rmse, whole.cosine), rtol=1e-4)
    for wrong in (np.nan, np.inf, 1.0, 1e30):
        spoiled = near.copy()
        spoiled[123_456] += wrong
        assert isinstance(screened([(values, spoiled)], (200_000,), 1.3e-6, 1e-5), RunningMaxima)
    assert isinstance(screened([(values * np.float32(1e-30),) * 2], (200_000,), 0, 0), RunningMaxima)


def test_a_corner_of_a_large_tensor_explains_what_differs_in_it(tmp_path):
    values = normal(1100, 1100)
    wrong = values.copy()
    wrong[-1, -1] += 1
    left = {"wrong": wrong, "scaled": 2 * values, "turned": values.T.copy(), "half": values.astype(np.float16)}
    left["half"] = left["half"].astype(np.float32)
    left["wrong"][0] = np.nextafter(left["wrong"][0], np.float32(9))
    code, results = compared(tmp_path, left, dict.fromkeys(left, values))
    assert code == 1
    assert set(verdicts(results).values()) == {"semantic"}
    assert {name: diagnosis for name, (diagnosis, _) in titles(results).items()} == {
        "scaled": "scaled", "turned": "transposed", "half": "reduced-precision",
    }  # fmt: skip


STREAM = """
import re, sys, threading, time
from parity.cli import main
peak = 0
def watch():
    global peak
    while True:
        peak = max(peak, int(re.search(r"RssAnon:\\s+(\\d+)", open("/proc/self/status").read())[1]))
        time.sleep(0.005)
threading.Thread(target=watch, daemon=True).start()
try:
    main(sys.argv[1:])
finally:
    print("peak", peak >> 10)
"""


@pytest.mark.process
def test_tensors_larger_than_memory_allows_stream(tmp_path):
    values = np.lib.format.open_memmap(tmp_path / "x.npy", "w+", np.float32, (8000, 8000))
    values[7000, 1] = 1
    np.savez_compressed(tmp_path / "l.npz", x=np.zeros((8000, 8000), np.float32))
    arguments = ["compare", "l.npz", "x.npy", "--out", "run", "-q"]
    done = subprocess.run([sys.executable, "-c", STREAM, *arguments], cwd=tmp_path, capture_output=True, text=True)
    assert done.returncode == 1, done.stderr
    # Either file has 244 MiB of numbers, one mapped, one compressed.
    assert int(re.search(r"peak (\d+)", done.stdout)[1]) < 200


def n_rows(store: Path) -> int:
    """The comparisons that are stored."""
    try:
        with contextlib.closing(sqlite3.connect(f"file:{store}?mode=ro", uri=True)) as db:
            return int(db.execute("SELECT count(*) FROM comparisons").fetchone()[0])
    except sqlite3.Error:
        return 0


@pytest.mark.process
def test_ctrl_c_keeps_what_was_compared(tmp_path):
    for side in "lr":
        lines = (json.dumps({f"layer{i}.{j}": [1.0] * 50 for j in range(20)}) for i in range(800))
        (tmp_path / f"{side}.jsonl").write_text("\n".join(lines))
    command = parity_command("compare", "l.jsonl", "r.jsonl", "--out", "run")
    with subprocess.Popen(command, cwd=tmp_path, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as process:
        deadline = time.monotonic() + 60
        while not n_rows(tmp_path / "run" / "results.sqlite") and time.monotonic() < deadline:
            time.sleep(0.02)
        process.send_signal(signal.SIGINT)
        out, _ = process.communicate(timeout=60)
    assert process.returncode == 130
    assert out.startswith("INTERRUPTED")
    assert 0 < n_rows(tmp_path / "run" / "results.sqlite") < 16_000


def test_help_ends_with_examples():
    assert "parity compare torch_dump/ paddle_dump/" in call("compare", "--help").stdout
