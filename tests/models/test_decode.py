"""Cases of `kind: decode` with the real wheel: a healthy GPT, and the same with one fault each."""

import subprocess
from dataclasses import dataclass
from pathlib import Path

import pytest

from parity.config import ConfigError, load_plan
from parity.models.decode.ways import calls_of
from parity.models.worker.decode import aligned
from parity.reporting.results.results import Results, read_results
from tests.conftest import CONFIGS, call
from tests.models.ports import config_of_cases

GPT = (CONFIGS / "models" / "gpt_torch.py").read_text()
POSITIONS = "    positions = (mask.cumsum(-1) - 1).clamp(min=0)[:, -tokens.shape[1] :]\n"
SIZES = "        n, total = x.shape[1], k.shape[2]\n"
RETURNED = "return self.out(context), (k, v)"
FAULTS = {
    "offset": (POSITIONS, f"{POSITIONS}    positions = positions + (cache is not None)\n"),
    "unmasked": (" & mask[:, None, None, :].bool()", ""),
    "forgetful": (
        SIZES,
        f"        k, v = (k[:, :, -x.shape[1] - 1 :], v[:, :, -x.shape[1] - 1 :]) if cache else (k, v)\n{SIZES}"
        "        mask = mask[:, -total:]\n",
    ),
    "narrow": (RETURNED, "return self.out(context), (k.bfloat16().float(), v.bfloat16().float())"),
    "corner": (".tril(total - n)", ".tril()"),
    "neighbour": (RETURNED, "return self.out(context + 0.1 * (context.roll(1, 0) - context)), (k, v)"),
    "eps": ("self.norm2 = nn.LayerNorm(HIDDEN)", "self.norm2 = nn.LayerNorm(HIDDEN, eps=1e-3)"),
    "broken": ("mask[:, None, None, :]", "mask[:, None, None, :].expand(-1, 1, n, n)"),
    "uncached": (
        POSITIONS + "    return model(tokens, mask, positions, cache)",
        POSITIONS + "    return model(tokens, mask, positions)[0]",
    ),
}
CACHED = ["step", "chunks", "left-step"]
CACHES = {
    "half": (
        ("cat([cache[0], k], 2), torch.cat([cache[1], v], 2)", "cat([cache[0].float(), k], 2), torch.cat([cache[1].float(), v], 2)"),
        (RETURNED, "return self.out(context), (k.half(), v.half())"),
        "decode-cache-dtype", "the cache holds numbers of float16",
    ),
    "exchanged": (
        ("torch.cat([cache[1], v], 2)", "torch.cat([cache[0], v], 2)"), ("", ""),
        "decode-cache", "joins new tokens with a cache that is the output 1 of blocks.0.attention, not the output 2",
    ),
    "first": (
        ("None if cache is None else cache[i]", "None if cache is None else cache[0]"), ("", ""),
        "decode-cache", "what it gets as `cache` is the output 1 of blocks.0.attention",
    ),
    "scaled": (
        (RETURNED, "return self.out(context), (k / 2, v)"), ("", ""),
        "decode-cache", "joins new tokens with a cache that is 0.5 times what it should be",
    ),
    "length": (
        ("/ (HIDDEN // HEADS) ** 0.5", "/ total**0.5"), ("", ""), "decode-code", "where one pass has",
    ),
}  # fmt: skip
SHORT = GPT.replace("(10, 7, 4)", "(3, 1)")
NARROW = GPT.replace(
    "self.positions(positions)", "self.positions(positions + (self.head.weight.dtype == torch.bfloat16))"
)
PAIRS = {
    **{
        pair: {}
        for pair in ("healthy eps", "offset unmasked", "forgetful narrow", "corner neighbour", "broken uncached")
    },
    **{pair: {"ways": ["step"]} for pair in ("half exchanged", "first scaled", "healthy length")},
    "short short": {"ways": ["batch", "left-step"]},
    "bfloat16 healthy": {"ways": ["batch"], "dtypes": ["bfloat16"]},
}
"""The ports of a case: each decodes on its own, and all but eps and length are the same in one pass."""


def texts():
    ports = {"healthy": GPT, "short": SHORT, "bfloat16": NARROW}
    for name, (old, new) in FAULTS.items():
        assert old in GPT
        ports[name] = GPT.replace(old, new)
    ports["uncached"] = ports["uncached"].replace(
        "tokens, mask, cache=None):\n    positions", "tokens, mask):\n    positions"
    )
    for name, (one, other, *_) in CACHES.items():
        assert one[0] in GPT
        assert other[0] in GPT
        ports[name] = GPT.replace(*one).replace(*other)
    return ports


@dataclass(frozen=True)
class Faulty:
    """A run of ports with a fault each, and its rows by the port's name."""

    folder: Path
    done: subprocess.CompletedProcess[str]
    results: Results

    def diagnoses(self, port):
        return [row for row in self.results.diagnoses if self.is_of(port, row.case, row.backend)]

    def comparisons(self, port):
        return [row for row in self.results.comparisons if self.is_of(port, row.case, row.actual)]

    @staticmethod
    def is_of(port, case, backend):
        return case.split("_")[backend == "theirs"] == port


@pytest.fixture(scope="module")
def faulty(tmp_path_factory):
    folder, ports = tmp_path_factory.mktemp("decode"), texts()
    cases = {}
    for pair, options in PAIRS.items():
        ours, theirs = pair.split()
        cases[f"{ours}_{theirs}"] = (ports[ours], ports[theirs], {"kind": "decode", **options})
    formats = ["--markdown", folder / "report.md", "--junit-xml", folder / "junit.xml"]
    done = call("run", config_of_cases(folder, cases), "--out", folder / "out", *formats)
    return Faulty(folder, done, read_results(folder / "out"))


def test_the_shipped_gpt_is_aligned_in_all_ways(tmp_path):
    configs = [CONFIGS / "models" / name for name in ("gpt.yaml", "gpt_ports.yaml")]
    done = call("run", *configs, "--out", tmp_path)
    assert done.returncode == 0, done.stdout + done.stderr
    assert done.stdout.count("token by token with the cache, in chunks with the cache, in a batch of one length") == 4
    results = read_results(tmp_path)
    assert {row.verdict for row in results.comparisons} <= {"equal", "close"}
    assert {row.tensor for row in results.comparisons if row.dtype == "bfloat16"} >= {"left.1", "left-step.2", "step.0"}


@pytest.mark.parametrize(
    ("fault", "ways", "diagnosis", "place", "cause"),
    [
        ("offset", CACHED, "decode-position", "the code of the model", "`positions` of the model for token 1 is 2 (should be 1)"),
        ("unmasked", ["left", "left-step"], "decode-mask", "the code of blocks.0.attention", "token 0 depends on the padding"),
        ("forgetful", CACHED, "decode-mask", "the code of blocks.0.attention", "token 9 does not depend on tokens 0, 1, 2"),
        ("narrow", CACHED, "decode-cache-dtype", "the code of blocks.0.attention", "the cache holds numbers of bfloat16"),
        ("corner", CACHED, "decode-mask", "the code of blocks.0.attention", "token 9 does not depend on tokens 1, 2, 7, 8"),
        ("neighbour", ["batch", "right", "left", "left-step"], "decode-mask", "the code of blocks.0.attention",
         "token 0 depends on the other rows of its batch"),
    ],
)  # fmt: skip
def test_a_fault_is_found_where_it_begins(faulty, fault, ways, diagnosis, place, cause):
    rows = faulty.diagnoses(fault)
    assert [row.evidence["way"] for row in rows] == ways
    assert {row.id for row in rows} == {diagnosis}
    assert rows[0].evidence["place"].startswith(place)
    assert cause in rows[0].evidence["cause"]
    assert all(row.explained and row.evidence["left"] < 8 for row in rows)
    assert {row.tensor.partition(".")[0] for row in faulty.comparisons(fault) if row.fails} == set(ways)


def test_ports_that_differ_in_one_pass_are_told_apart_from_ways_that_do(faulty):
    [row] = faulty.diagnoses("eps")
    assert (row.evidence["way"], row.explained) == ("port", False)
    assert row.evidence["place"] == "layer blocks.0.norm2, layer blocks.1.norm2"
    assert {row.tensor.partition(".")[0] for row in faulty.comparisons("eps") if row.fails} == {"port"}


def test_a_way_that_fails_or_cannot_be_tried_is_told_and_the_others_run(faulty):
    broken = {row.tensor: row for row in faulty.comparisons("broken")}
    assert "it does not run: " in broken["step.0"].message
    assert broken["left.0"].verdict in ("equal", "close")
    uncached = {row.tensor for row in faulty.comparisons("uncached")}
    assert "left.0" in uncached
    assert "step.0" not in uncached
    assert "step is not run: decode_broken_uncached does not take cache" in " ".join(faulty.done.stdout.split())
    assert not faulty.diagnoses("healthy")
    assert not faulty.diagnoses("uncached")


def test_every_format_has_the_answer(faulty):
    folder, done = faulty.folder, faulty.done
    assert done.returncode == 1
    for text in (done.stdout, *((folder / name).read_text() for name in ("report.md", "junit.xml", "out/report.html"))):
        assert "token 0 depends on the other rows of its batch" in " ".join(text.split())
    explained = call("explain", folder / "out", "offset_unmasked")
    assert explained.returncode == 0, explained.stderr
    assert "should be 1" in explained.stdout


@pytest.mark.parametrize("name", CACHES)
def test_what_a_call_reads_beside_one_pass(faulty, name):
    *_, diagnosis, words = CACHES[name]
    (row,) = (row for row in faulty.diagnoses(name) if row.evidence["way"] == "step")
    assert row.id == diagnosis, row.evidence["cause"]
    assert words in row.evidence["cause"]
    assert row.explained


def test_padding_has_no_position_and_no_mask():
    [call_] = calls_of("left", [[5, 6, 7], [8]], 3, 0)
    assert call_.tokens == [[5, 6, 7], [0, 0, 8]]
    assert call_.mask == [[1, 1, 1], [0, 0, 1]]
    assert call_.positions == [[0, 1, 2], [0, 0, 0]]
    first, second, third = calls_of("left-step", [[5, 6, 7], [8, 9, 9]], 3, 0)
    assert [one.fresh for one in (first, second, third)] == [True, False, False]
    assert third.mask == [[1, 1, 1]] * 2
    assert [(row.start, row.count) for row in second.rows] == [(1, 1)] * 2


@pytest.mark.parametrize(
    ("full", "shape", "place"),
    [
        ((1, 10, 24), (3, 2, 24), (True, 1)),
        ((1, 4, 10, 6), (3, 4, 2, 6), (True, 2)),
        ((10,), (2,), (False, 0)),
        ((1, 4, 10, 6), (3, 4, 9, 6), None),
        ((1, 10, 24), (6, 24), None),
    ],
)
def test_tokens_of_a_tensor_are_found_by_its_shape(full, shape, place):
    assert aligned(full, shape, 3, 2, 10) == place


@pytest.mark.parametrize(
    ("case", "message"),
    [
        ("{kind: decode, forward: a-b}", "forward must be the name of a function"),
        ("{kind: decode, ways: [sideways]}", "sideways"),
        ("{kind: decode, dtypes: [float16]}", "models run in float64, float32 and bfloat16"),
        ("{kind: decode, chunk: 0}", "chunk"),
    ],
)
def test_a_wrong_case_is_told_with_the_remedy(tmp_path, case, message):
    (tmp_path / "a.py").write_text("")
    path = tmp_path / "decode.yaml"
    path.write_text(f"version: 1\nbackends: [{{name: a, adapter: torch, ops: ./a.py}}]\ncases: [{case}]\n")
    with pytest.raises(ConfigError, match=message):
        load_plan([path])


def test_a_way_that_would_not_be_what_it_is_called_is_not_run(faulty):
    assert "left-step is not run: the shortest prompt has one token" in " ".join(faulty.done.stdout.split())
    assert {row.tensor.partition(".")[0] for row in faulty.comparisons("short")} == {"batch", "port"}
    assert not faulty.diagnoses("short")


def test_one_pass_in_bfloat16_is_compared_with_float32(faulty):
    [row] = faulty.diagnoses("bfloat16")
    assert (row.id, row.evidence["way"], row.evidence["place"]) == ("unexplained", "dtype", "no layer is named")
    assert {one.tensor for one in faulty.comparisons("bfloat16") if one.fails} <= {"dtype.0", "dtype.1", "dtype.2"}
    assert "greedy choices are not float32's" in " ".join(faulty.done.stdout.split())
