"""`parity fingerprint` on kernels whose algorithm is known: each is named, and nothing else is claimed of it."""

from __future__ import annotations

import json
import subprocess
from pathlib import Path

import pytest

from tests.conftest import parity_command

PLANTED = Path(__file__).parents[1] / "user_ops"
MORE_DIGITS = {"float32": "float64 accumulation", "float64": "accumulated in a wider precision than float64"}
BOTH = ("float32", "float64")

HEALTHY = {
    "variance": "two-pass",
    "variance divisor": "n",
    "affine": "not folded: (x - m)*r",
    "eps": "inside the root",
    "sum of the mean": "pairwise",
    "sum of grad.bias": "sequential",
    "grad.weight": "centred",
    "scaling by 2^3": "changes no bit",
}
LAYER_NORMS = {
    "healthy": ("", {}),
    "welford": ("variance='welford'", {"variance": "Welford or merged blocks", "sum of the mean": "cannot tell"}),
    "naive": ("variance='naive'", {"variance": "naive"}),
    "corrected": (
        "variance='corrected'",
        {"variance": "corrected, shifted or in a wider precision", "sum of the mean": "*"},
    ),
    "merged": ("variance='merged'", {"variance": "Welford or merged blocks", "sum of the mean": "cannot tell"}),
    "shifted": (
        "variance='shifted'",
        {"variance": "corrected, shifted or in a wider precision", "sum of the mean": "cannot tell"},
    ),
    "floor": ("floor=True", {"eps": "cannot tell", "variance divisor": "cannot tell", "scaling by 2^3": "*"}),
    "folded": ("folded=True", {"affine": "folded: x*s + (b - m*s)", "variance": "*", "grad.weight": "*"}),
    "outside": ("outside=True", {"eps": "outside the root"}),
    "ddof": ("ddof=1", {"variance divisor": "n - 1"}),
    "sequential": (
        "sums='sequential', bias_sum='pairwise'",
        {"sum of the mean": "sequential", "sum of grad.bias": "pairwise"},
    ),
    "blocked": (
        "sums='blocked', bias_sum='lanes'",
        {
            "sum of the mean": "sequential in blocks of 32, the blocks joined in sequence",
            "sum of grad.bias": "8 lanes, each in sequence, the lanes joined in sequence",
        },
    ),
    "raw": ("raw=True", {"grad.weight": "not centred: x*r - m*r or raw moments"}),
    "eps32": ("eps32=True", {}),
}


class Found:
    """fingerprint.json, and how the command ended."""

    def __init__(self, done: subprocess.CompletedProcess[str], folder: Path) -> None:
        self.code, self.stdout, self.stderr = done.returncode, done.stdout, done.stderr
        self.folder = folder
        self.document = json.loads((folder / "fingerprint.json").read_text())

    def claims(self, backend: str, dtype: str) -> dict[str, str]:
        [row] = [f for f in self.document["fingerprints"] if (f["backend"], f["dtype"]) == (backend, dtype)]
        return {c["aspect"]: c["answer"] for c in row["claims"]}

    def claim(self, backend: str, dtype: str, aspect: str) -> dict[str, object]:
        [row] = [f for f in self.document["fingerprints"] if (f["backend"], f["dtype"]) == (backend, dtype)]
        [found] = [c for c in row["claims"] if c["aspect"] == aspect]
        return found


def call(*arguments: str | Path, cwd: Path) -> subprocess.CompletedProcess[str]:
    return subprocess.run(parity_command("fingerprint", *arguments), capture_output=True, text=True, cwd=cwd)


def fingerprint(folder: Path, op: str, kernels: dict[str, str], *options: str) -> Found:
    """Fingerprint NumPy kernels, each given as the expression that makes its ops by name."""
    backends = []
    for name, made in kernels.items():
        path = folder / f"{name}.py"
        path.write_text(
            f"import sys\nsys.path.append({str(PLANTED)!r})\nimport planted\nglobals().update(planted.{made})\n"
        )
        backends += ["-b", f"{name}=numpy:{path}"]
    return Found(call(op, *backends, "--out", folder / "out", *options, cwd=folder), folder / "out")


@pytest.fixture(scope="module")
def layer_norms(tmp_path_factory):
    kernels = {name: f"norms({choices})" for name, (choices, _) in LAYER_NORMS.items()}
    return fingerprint(
        tmp_path_factory.mktemp("layer_norm"),
        "layer_norm",
        {**kernels, "wide": "norms(all_wide=True, sums='sequential')"},
    )


@pytest.mark.parametrize("dtype", BOTH)
@pytest.mark.parametrize("kernel", LAYER_NORMS)
def test_each_layer_norm_is_named_and_nothing_else_is_claimed(layer_norms, kernel, dtype):
    assert layer_norms.code == 0, layer_norms.stdout + layer_norms.stderr
    expected = {**HEALTHY, **LAYER_NORMS[kernel][1]}
    claims = layer_norms.claims(kernel, dtype)
    assert {a: claims[a] for a, answer in expected.items() if answer != "*"} == {
        a: answer for a, answer in expected.items() if answer != "*"
    }


@pytest.mark.parametrize("dtype", BOTH)
def test_more_digits_than_the_dtype_has_are_seen(layer_norms, dtype):
    claims = layer_norms.claims("wide", dtype)
    assert claims["variance"] == MORE_DIGITS[dtype]
    assert claims["sum of the mean"] == f"sequential, accumulated in a wider precision than {dtype}"


def test_a_fused_multiplication_is_seen(tmp_path):
    found = fingerprint(tmp_path, "layer_norm", {"mine": "norms(folded='fused')"}, "--dtype", "float32")
    claims = found.claims("mine", "float32")
    assert claims["affine"] == "folded: fma(x, s, b - m*s)"
    assert claims["variance"] in ("two-pass", "cannot tell")
    assert claims["grad.weight"] in ("centred", "cannot tell")


def test_a_naive_variance_in_float64_is_told_from_one_in_float32(tmp_path):
    found = fingerprint(tmp_path, "layer_norm", {"mine": "norms(variance='naive64')"}, "--dtype", "float32")
    assert found.claims("mine", "float32")["variance"] == "naive, accumulated in float64"


def test_a_float32_eps_shows_in_float64_only(layer_norms):
    assert layer_norms.claims("eps32", "float64")["eps precision"] == "float32"
    assert layer_norms.claims("healthy", "float64")["eps precision"] == "float64"
    assert layer_norms.claims("eps32", "float32")["eps precision"] == "cannot tell"
    evidence = layer_norms.claim("eps32", "float64", "eps precision")["evidence"]
    assert evidence["relative deviation"] == pytest.approx(-2.526e-8, rel=1e-3)


def test_a_folded_kernel_is_not_called_naive_or_welford(layer_norms):
    for dtype in BOTH:
        assert layer_norms.claims("folded", dtype)["variance"] in ("two-pass", "cannot tell")


def test_every_claim_has_its_numbers(layer_norms):
    naive = layer_norms.claim("naive", "float32", "variance")
    assert naive["evidence"]["slope"] == pytest.approx(2, abs=0.3)
    assert naive["evidence"]["on multiples of ulp(mean^2)"] > 0.9
    assert layer_norms.claim("healthy", "float32", "variance")["evidence"]["on multiples of ulp(mean^2)"] < 0.5
    welford = layer_norms.claim("welford", "float64", "variance")
    assert welford["evidence"]["slope"] == pytest.approx(1, abs=0.3)
    for row in layer_norms.document["fingerprints"]:
        assert all(c["evidence"] or c["reason"] for c in row["claims"])


def test_the_table_is_plain_where_it_is_piped(layer_norms):
    assert "\x1b" not in layer_norms.stdout
    assert layer_norms.stdout.startswith("FINGERPRINT  layer_norm")


def test_the_inputs_are_not_kept(layer_norms):
    assert {p.name for p in layer_norms.folder.iterdir()} == {"fingerprint.json", "drift.svg", "log.txt"}


def test_batch_norms(tmp_path):
    kernels = {
        "healthy": "norms()",
        "biased": "norms(running_ddof=0)",
        "momentum32": "norms(momentum32=True)",
        "naive": "norms(variance='naive')",
        "folded": "norms(folded=True)",
    }
    found = fingerprint(tmp_path, "batch_norm", kernels)
    assert found.code == 0, found.stdout + found.stderr
    for dtype in BOTH:
        claims = {name: found.claims(name, dtype) for name in kernels}
        assert claims["healthy"]["running_var divisor"] == "n - 1"
        assert claims["biased"]["running_var divisor"] == "n"
        assert {claims[name]["variance"] for name in ("healthy", "biased", "momentum32", "folded")} == {"two-pass"}
        assert claims["naive"]["variance"] == "naive"
        assert claims["folded"]["affine"] == "folded: x*s + (b - m*s)"
        assert {c["momentum"].partition(",")[0] for c in claims.values()} == {"weights the new"}
    assert found.claims("momentum32", "float64")["momentum"] == "weights the new, stored in float32"
    assert found.claims("healthy", "float64")["momentum"] == "weights the new, stored in float64"


def test_linears(tmp_path):
    kernels = {
        "sequential": "linear_with()",
        "pairwise": "linear_with('pairwise')",
        "blocked": "linear_with('blocked')",
        "wide": "linear_with('wide')",
        "narrow": "linear_with(narrow=True)",
        "first": "linear_with(bias_first=True)",
    }
    found = fingerprint(tmp_path, "linear", kernels)
    assert found.code == 0, found.stdout + found.stderr
    for dtype in BOTH:
        claims = {name: found.claims(name, dtype) for name in kernels}
        for aspect in ("sum over K, many rows", "sum over K, one row"):
            assert {name: c[aspect] for name, c in claims.items()} == {
                "sequential": "sequential",
                "pairwise": "pairwise",
                "blocked": "sequential in blocks of 64, the blocks joined in sequence",
                "wide": f"sequential, accumulated in a wider precision than {dtype}",
                "narrow": "sequential",
                "first": "sequential",
            }
        assert {name: c["operands"] for name, c in claims.items()} == {
            **dict.fromkeys(kernels, dtype),
            "narrow": "bfloat16",
        }
        assert {name: c["bias"] for name, c in claims.items()} == {
            **dict.fromkeys(kernels, "added last"),
            "first": "added first",
        }
        products = {name: c["products"] for name, c in claims.items()}
        assert products["wide"] == "exact in a wider accumulator"
        assert products["sequential"] == "rounded, or never fused with their neighbour"


def test_clips(tmp_path):
    kernels = {
        "healthy": "clip_with()",
        "bare": "clip_with(eps=0)",
        "each": "clip_with(per_tensor=True)",
        "free": "clip_with(clamped=False)",
        "lanes": "clip_with(sums='lanes')",
        "pairwise": "clip_with(sums='pairwise')",
        "wide": "clip_with(sums='wide')",
    }
    found = fingerprint(tmp_path, "clip_grad_norm", kernels)
    assert found.code == 0, found.stdout + found.stderr
    for dtype in BOTH:
        claims = {name: found.claims(name, dtype) for name in kernels}
        assert {name: c["denominator eps"] for name, c in claims.items()} == {
            **dict.fromkeys(claims, "1e-06"),
            "bare": "none",
        }
        assert {name: c["scope"] for name, c in claims.items()} == {
            **dict.fromkeys(claims, "global"),
            "each": "per tensor",
        }
        assert claims["free"]["below max_norm"] == "scaled up: not clamped"
        assert claims["healthy"]["below max_norm"] == "left alone"
        assert claims["healthy"]["sum of squares"] == "sequential"
        assert claims["lanes"]["sum of squares"] == "8 lanes, each in sequence"
        assert claims["pairwise"]["sum of squares"] == "pairwise or in small blocks"
        assert claims["wide"]["sum of squares"] == MORE_DIGITS[dtype]


@pytest.mark.frameworks
def test_what_released_kernels_do(tmp_path):
    done = call("group_norm", "-b", "torch", "-b", "paddle", "--dtype", "float32", "--out", "out", cwd=tmp_path)
    found = Found(done, tmp_path / "out")
    assert found.code == 0, found.stdout + found.stderr
    assert found.claims("paddle", "float32")["variance"] == "naive"
    assert found.claims("torch", "float32")["variance"] != "naive"
    versions = {row["name"]: row["version"].partition("+")[0] for row in found.document["backends"]}
    assert versions == {"torch": "2.13.0", "paddle": "3.3.1"}
