"""Cases of `kind: decode` with the real wheel: a healthy GPT, and the same with one fault each."""

import pytest

from parity.config import ConfigError, load_plan
from parity.models.decode.ways import calls_of
from parity.models.worker.decode import aligned
from parity.reporting.results.results import read_results
from tests.conftest import CONFIGS, call

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


def config_of(folder, ports, dtype="float32"):
    backends = []
    for name, text in ports.items():
        (folder / f"{name}.py").write_text(text)
        backends.append(f"{{name: {name}, adapter: torch, ops: ./{name}.py}}")
    path = folder / "gpt.yaml"
    path.write_text(
        f"version: 1\ndtypes: [{dtype}]\nbackends: [{', '.join(backends)}]\ncases: [{{id: gpt, kind: decode}}]\n"
    )
    return path


@pytest.fixture(scope="module")
def faulty(tmp_path_factory):
    folder = tmp_path_factory.mktemp("decode")
    ports = {"healthy": GPT}
    for name, (old, new) in FAULTS.items():
        assert old in GPT
        ports[name] = GPT.replace(old, new)
    ports["uncached"] = ports["uncached"].replace(
        "tokens, mask, cache=None):\n    positions", "tokens, mask):\n    positions"
    )
    formats = ["--markdown", folder / "report.md", "--junit-xml", folder / "junit.xml"]
    done = call("run", config_of(folder, ports), "--out", folder / "out", *formats)
    return folder, done, read_results(folder / "out")


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
    _, _, results = faulty
    rows = [row for row in results.diagnoses if row.backend == fault]
    assert [row.evidence["way"] for row in rows] == ways
    assert {row.id for row in rows} == {diagnosis}
    assert rows[0].evidence["place"].startswith(place)
    assert cause in rows[0].evidence["cause"]
    assert all(row.explained and row.evidence["left"] < 8 for row in rows)
    off = {row.tensor.partition(".")[0] for row in results.comparisons if row.actual == fault and row.fails}
    assert off == set(ways)


def test_ports_that_differ_in_one_pass_are_told_apart_from_ways_that_do(faulty):
    _, _, results = faulty
    [row] = [row for row in results.diagnoses if row.backend == "eps"]
    assert (row.evidence["way"], row.explained) == ("port", False)
    assert row.evidence["place"] == "layer blocks.0.norm2, layer blocks.1.norm2"
    assert {row.tensor.partition(".")[0] for row in results.comparisons if row.actual == "eps" and row.fails} == {
        "port"
    }


def test_a_way_that_fails_or_cannot_be_tried_is_told_and_the_others_run(faulty):
    _, done, results = faulty
    said = {(row.actual, row.tensor): row for row in results.comparisons}
    assert "it does not run: broken.py" in said["broken", "step.0"].message
    assert said["broken", "left.0"].verdict in ("equal", "close")
    assert ("uncached", "step.0") not in said
    assert "step is not run: decode does not take cache" in done.stdout
    assert not [row for row in results.diagnoses if row.backend in ("healthy", "uncached")]


def test_every_format_has_the_answer(faulty):
    folder, done, _ = faulty
    assert done.returncode == 1
    for text in (done.stdout, *((folder / name).read_text() for name in ("report.md", "junit.xml", "out/report.html"))):
        assert "token 0 depends on the other rows of its batch" in " ".join(text.split())
    explained = call("explain", folder / "out", "gpt")
    assert explained.returncode == 0, explained.stderr
    assert "should be 1" in explained.stdout


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


@pytest.fixture(scope="module")
def cached(tmp_path_factory):
    folder = tmp_path_factory.mktemp("caches")
    ports = {}
    for name, (one, other, *_) in CACHES.items():
        assert one[0] in GPT
        assert other[0] in GPT
        ports[name] = GPT.replace(*one).replace(*other)
    config = config_of(folder, ports)
    config.write_text(config.read_text().replace("kind: decode}", "kind: decode, ways: [step]}"))
    done = call("run", config, "--out", folder / "out")
    return done, read_results(folder / "out")


@pytest.mark.parametrize("name", CACHES)
def test_what_a_call_reads_beside_one_pass(cached, name):
    _, results = cached
    *_, diagnosis, words = CACHES[name]
    (row,) = (row for row in results.diagnoses if row.backend == name and row.evidence["way"] == "step")
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


def test_a_way_that_would_not_be_what_it_is_called_is_not_run(tmp_path):
    ports = {"short": GPT.replace("(10, 7, 4)", "(3, 1)")}
    done = call("run", config_of(tmp_path, ports), "--out", tmp_path / "out")
    assert done.returncode == 0, done.stdout + done.stderr
    assert "left-step is not run: the shortest prompt has one token" in " ".join(done.stdout.split())
    assert not [row for row in read_results(tmp_path / "out").comparisons if row.tensor.startswith("left-step")]


def test_one_pass_in_bfloat16_is_compared_with_float32(tmp_path):
    wrong = GPT.replace(
        "self.positions(positions)", "self.positions(positions + (self.head.weight.dtype == torch.bfloat16))"
    )
    done = call("run", config_of(tmp_path, {"ours": wrong}, "bfloat16"), "--out", tmp_path / "out")
    results = read_results(tmp_path / "out")
    [row] = results.diagnoses
    assert (row.id, row.evidence["way"], row.evidence["place"]) == ("unexplained", "dtype", "no layer is named")
    assert {one.tensor for one in results.comparisons if one.fails} <= {"dtype.0", "dtype.1", "dtype.2"}
    assert "greedy choices are not float32's" in " ".join(done.stdout.split())
