"""The store of a run: what is read is what was written, whatever ends the run, and however many runs it comes from."""

from __future__ import annotations

import csv
import io
import json
import math
import re
import shutil
import signal
import sqlite3
from contextlib import closing

import pytest
from msgspec.structs import replace

from parity.cluster.messages import ShardRows
from parity.judge.diagnose.diagnosis import Diagnosis
from parity.reporting.results.cells import cells, tensor_statuses
from parity.reporting.results.results import as_json, read_results
from parity.reporting.results.store import (
    COMPARISONS,
    DIAGNOSES,
    SCHEMA_VERSION,
    STORE,
    TABLES,
    VIEWS,
    Store,
    fill,
    read_only,
    store_of,
)
from tests.conftest import ROOT, call, run_in, started, user_config, waited_for
from tests.reporting import ci_runs

DOUBLED = "def linear(x, weight, bias):\n    return 2 * (x @ weight.T + bias)\n"
WAIT = """
import pathlib, time
def linear(x, weight, bias):
    while x.mean() > 4.5 and not pathlib.Path(__file__).with_name('go').exists():
        time.sleep(0.02)
    return x @ weight.T + bias
"""
SWEEP = """{op: linear, params: {out_features: 3}, gradients: false, sweep: {inputs.x.offset: [0, 1, 2, 3, 6]},
    inputs: {x: {shape: [4, 60]}}}"""
OPS = ["{id: exp, op: exp, dtypes: [float32], inputs: {x: {shape: [3], values: [0, 1, 1000]}}}", SWEEP]
TRAINING = """{id: t, kind: train, model: [{linear: {out_features: 3}}], batch_size: 8, steps: 4,
    data: {name: classification, features: [5], classes: 3, rows: 32}, optimizer: {name: sgd, lr: 0.01}}"""


@pytest.fixture(scope="module")
def found(tmp_path_factory):
    """A run with findings, a training, an infinite result and what is accepted."""
    folder = tmp_path_factory.mktemp("found")
    (folder / "ops.py").write_text(DOUBLED)
    known = "known: [{case: '*offset=1', reason: seen, until: 2099-01-01}]\n"
    done = run_in(folder, user_config("ops.py", cases=[*OPS, TRAINING]) + known)
    assert done.code == 1, done.stderr
    return done


def test_the_store_and_results_json_are_the_same(found):
    with read_only(found.run_dir / STORE) as store:
        stored = store.results()
    assert repr(stored) == repr(read_results(found.run_dir))
    assert stored.trainings
    assert stored.diagnoses
    assert {row.known for row in stored.comparisons} == {None, "seen"}


def test_a_row_that_sqlite_would_change_is_read_as_it_was(tmp_path):
    row = ci_runs.every_status().comparisons[0]
    odd = replace(
        row, max_abs_diff=math.nan, actual_value=-0.0, max_ulp_diff=2**64 - 1, rmse=math.inf, message="\x00 é"
    )
    cause = Diagnosis(row.case, row.dtype, "paddle", "scaled", "x", ("y",), True, evidence={"of": [1, {"a": math.nan}]})
    with closing(Store(tmp_path / STORE)) as store:
        store.add([odd, cause])
        [read], [told] = (list(store.rows(table)) for table in (COMPARISONS, DIAGNOSES))
    assert repr(read) == repr(odd)
    assert math.copysign(1, read.actual_value) == -1
    assert told.evidence["of"][0] == 1


@pytest.mark.parametrize("make", [ci_runs.every_status, None])
def test_the_views_say_what_reports_say(make, found):
    results = read_results(found.run_dir) if make is None else make()
    with closing(store_of(results)) as store:
        told = set(store.select("SELECT case_id, dtype, backend, status, verdict, n_comparisons FROM cells"))
        tensors = {row[:3]: row[3] for row in store.select("SELECT * FROM tensors")}
        n = store.select("SELECT count(*) FROM findings")[0][0]
    shown = cells(results)
    assert told == {(c.id, c.dtype, c.backend, c.status.value, c.verdict, len(c.rows)) for c in shown}
    assert tensors == {key: status.value for key, status in tensor_statuses(results).items()}
    assert n == len({(c.anchor, row.tensor) for c in shown for row in (*c.failing, *c.hidden)})


@pytest.mark.process
def test_a_killed_run_loses_nothing_that_was_written_and_goes_on(tmp_path):
    (tmp_path / "ops.py").write_text(WAIT)
    (tmp_path / "config.yaml").write_text(user_config("ops.py", cases=[SWEEP]))
    with started("run", "config.yaml", "--out", "run", cwd=tmp_path) as process:
        path = tmp_path / "run" / STORE
        waited_for(lambda: path.is_file() and n_compared(path) == 4)
        live = call("query", path.parent, "SELECT count(*) AS n FROM cells WHERE status = 'passed'")
        assert live.stdout == "n\n16\n"
        process.send_signal(signal.SIGKILL)
        process.wait()
    (tmp_path / "run" / "results.json").unlink()
    assert call("report", "run", "-q", cwd=tmp_path).stdout.startswith("INTERRUPTED  16 results kept")
    (tmp_path / "go").touch()
    resumed = call("run", "config.yaml", "--out", "run", "--resume", cwd=tmp_path)
    assert resumed.returncode == 0, resumed.stderr
    whole = call("run", "config.yaml", "--out", "whole", cwd=tmp_path)
    assert whole.returncode == 0
    one, other = (read_results(tmp_path / name) for name in ("run", "whole"))
    assert one.comparisons == other.comparisons
    assert [row.key for row in one.outcomes] == [row.key for row in other.outcomes]
    assert len({row.key for row in one.outcomes}) == len(one.outcomes) == 20


def n_compared(path):
    with closing(sqlite3.connect(path)) as db:
        tables = db.execute("SELECT count(*) FROM sqlite_schema WHERE name = 'comparisons'").fetchone()[0]
        return db.execute("SELECT count(DISTINCT case_id) FROM comparisons").fetchone()[0] if tables else 0


def test_a_query_is_answered_and_changes_nothing(found):
    ask = "SELECT backend, count(*) AS n FROM findings WHERE fails_run GROUP BY 1"
    answer = call("query", found.run_dir, ask)
    assert list(csv.DictReader(io.StringIO(answer.stdout))) == [{"backend": "mine", "n": "8"}]
    assert json.loads(call("query", found.run_dir, ask, "--json").stdout) == [{"backend": "mine", "n": 8}]
    for sql, said in (
        ("SELECT verdit FROM comparisons", "did you mean verdict?"),
        ("SELECT 1 FROM cels", "did you mean cells?"),
        ("SELECT case FROM cells", "the column is case_id"),
        ("DELETE FROM outcomes", "only be read"),
        ("ATTACH '/tmp/x' AS x", "only be read"),
    ):
        refused = call("query", found.run_dir, sql)
        assert (refused.returncode, refused.stdout) == (2, "")
        assert said in refused.stderr


def test_a_parquet_file_has_the_comparisons(found, tmp_path):
    duckdb = pytest.importorskip("duckdb")
    assert call("query", found.run_dir, "--parquet", tmp_path / "x.parquet").returncode == 0
    [(n,)] = duckdb.sql(f"SELECT count(*) FROM '{tmp_path}/x.parquet'").fetchall()
    assert n == len(found.results["comparisons"])


def test_shards_are_merged_into_the_run_that_they_are_parts_of(found, tmp_path):
    config = found.run_dir.parent / "config.yaml"
    for name, keyword in (("a", "offset or exp"), ("b", "t and not offset and not exp"), ("c", "offset=3")):
        assert call("run", config, "-k", keyword, "--out", tmp_path / name, "-q").returncode in (1, 3)
    runs = [tmp_path / name for name in "abc"]
    merged = call("merge", *runs, "--out", tmp_path / "all", "-q")
    assert merged.returncode == 1, merged.stderr
    one, other = read_results(tmp_path / "all"), read_results(found.run_dir)
    assert sorted(map(repr, one.comparisons)) == sorted(map(repr, other.comparisons))
    assert one.summary.cells == other.summary.cells
    assert [(row.state, row.n_matched) for row in one.known] == [(row.state, row.n_matched) for row in other.known]
    assert all((tmp_path / "all" / file).is_file() for case in one.cases for file in case.files)
    with closing(sqlite3.connect(tmp_path / "c" / STORE)) as db, db:
        db.execute("UPDATE comparisons SET max_abs_diff = 7")
    (tmp_path / "c" / "results.json").unlink()
    refused = call("merge", *runs, "--out", tmp_path / "all")
    assert refused.returncode == 2
    assert re.search(r"offset=3 in float\d\d has different results in .*/c and in .*/a$", refused.stderr.strip())


def test_a_missing_shard_is_no_pass(tmp_path):
    config = tmp_path / "config.yaml"
    config.write_text(
        "version: 1\nbackends: [numpy]\nbaseline: oracle\ncases:\n"
        "  - {op: relu, inputs: {x: {shape: [4]}}, sweep: {inputs.x.normal.mean: [0, 1, 2]}}\n"
    )
    runs = [tmp_path / str(i) for i in (1, 2, 3)]
    for i, run in enumerate(runs, 1):
        assert call("run", config, "--shard", f"{i}/3", "--out", run, "-q").returncode == 0
    part = call("merge", runs[0], runs[2], "--out", tmp_path / "part", "-q")
    assert (part.returncode, part.stderr) == (
        3,
        "incomplete: shard 2/3 is missing, with its cases\n",
    )
    assert call("merge", *runs, "--out", tmp_path / "all", "-q").returncode == 0


@pytest.fixture(scope="module")
def finished(tmp_path_factory):
    folder = tmp_path_factory.mktemp("finished")
    (folder / "config.yaml").write_text(
        "version: 1\nbackends: [numpy]\ncases: [{op: relu, inputs: {x: {shape: [2]}}}]\n"
    )
    assert call("run", "config.yaml", "--out", "run", "-q", cwd=folder).returncode == 0
    return folder


BROKEN = {
    b"": "holds no run: it is empty, or no file of parity",
    b"no database at all" * 99: "is broken (file is not a database)",
    None: "is broken (database disk image is malformed)",
}


@pytest.mark.parametrize("content", BROKEN)
def test_a_store_that_is_broken_is_named_with_what_to_do(finished, tmp_path, content):
    run = tmp_path / "run"
    shutil.copytree(finished / "run", run)
    (run / STORE).write_bytes((run / STORE).read_bytes()[:9000] if content is None else content)
    for done in (call("query", run, "SELECT * FROM cells"), call("judge", run, "--rtol", "1")):
        assert (done.returncode, done.stdout) == (2, "")
        assert done.stderr == f"{run / STORE} {BROKEN[content]}; delete it, then parity reads results.json beside it\n"
    resumed = call("run", finished / "config.yaml", "--out", run, "--resume")
    assert f"{run / STORE} {BROKEN[content]}" in resumed.stderr
    assert call("run", finished / "config.yaml", "--out", run, "-q").returncode == 0
    (run / STORE).write_bytes(b"\0")
    (run / "results.json").unlink()
    assert "its rows are lost: delete the directory and run the config again" in call("report", run).stderr
    assert (
        "it is not empty, and its results.sqlite is broken"
        in call("run", finished / "config.yaml", "--out", run).stderr
    )


LATER = [
    ("run", "subject"),
    ("cases", "subject"),
    ("comparisons", "counted"),
    ("comparisons", "call"),
    ("outcomes", "composed"),
]
"""The columns that the first version of the schema did not have."""


def test_a_store_of_an_earlier_release_is_read_and_continued(tmp_path):
    results, path = ci_runs.every_status(), tmp_path / STORE
    with closing(Store(path)) as store:
        fill(store, results)
        for name in VIEWS:
            store.db.execute(f"DROP VIEW {name}")
        for table, column in LATER:
            store.db.execute(f"ALTER TABLE {table} DROP COLUMN {column}")
        store.db.execute("PRAGMA user_version = 1")
    with read_only(path) as read:
        assert as_json(read.results()) == as_json(results)
        assert len(read.select("SELECT * FROM cells")) == len(cells(results))
    with closing(Store(path)) as store:
        store.add(results.comparisons[:1])
        assert list(store.rows(COMPARISONS)) == [*results.comparisons, results.comparisons[0]]
        assert store.select("PRAGMA user_version") == [(SCHEMA_VERSION,)]


def test_the_page_names_every_column():
    page = (ROOT / "docs" / "store.md").read_text()
    told = {
        name: set(re.findall(r"`(\w+)`", row)) for name, row in re.findall(r"^\| `(\w+)` \|.*?\|(.*)\|$", page, re.M)
    }
    with closing(Store()) as store:
        columns = {
            n: {row[1] for row in store.select(f"PRAGMA table_info({n})")} for n in (*VIEWS, *(t.name for t in TABLES))
        }
    assert told == columns


def test_a_large_run_has_its_rows_in_the_store_alone_and_reports_say_the_same(found, tmp_path, monkeypatch):
    monkeypatch.setattr("parity.reporting.results.store.LARGE", 8)
    monkeypatch.setattr("parity.run_state.LARGE", 8)
    monkeypatch.setattr("parity.reporting.results.store.MAX_CASES", 6)
    config, out = found.run_dir.parent / "config.yaml", tmp_path / "large"
    large = call("run", config, "--out", out, "-q", "--json")
    assert large.returncode == 1, large.stderr
    assert json.loads(large.stdout)["comparisons"] == found.results["comparisons"]
    assert not (out / "results.json").exists()
    for options in (["-q"], []):
        assert (
            call("report", out, *options).stdout.splitlines()[:3]
            == call("report", found.run_dir, *options).stdout.splitlines()[:3]
        )
    shown = read_results(out, whole=False)
    assert (len(read_results(out).cases), len(shown.cases), shown.left_out) == (7, 6, 4)
    page = (out / "report.html").read_text()
    assert f"The rows of 4 of {sum(shown.summary.cells.values())} cells are only in results.sqlite" in page
    for command in (["explain", out, "offset=3"], ["diff", found.run_dir, out], ["inspect", out, "offset=3", "y"]):
        assert call(*command).returncode == 0, command
    resumed = call("run", config, "--out", out, "--resume", "-q")
    assert (resumed.returncode, resumed.stdout) == (1, call("report", found.run_dir, "-q").stdout)


class Interrupted:
    """A connection whose user presses Ctrl-C right after a statement."""

    def __init__(self, db, at):
        self._db, self._at = db, at

    def __getattr__(self, name):
        return getattr(self._db, name)

    def execute(self, statement, *values):
        answer = self._db.execute(statement, *values)
        if statement == self._at:
            self._at = ""
            raise KeyboardInterrupt
        return answer


@pytest.mark.parametrize("at", ["BEGIN IMMEDIATE", "COMMIT"])
def test_ctrl_c_while_rows_are_written_loses_none_and_doubles_none(at):
    results = ci_runs.every_status()
    store = store_of(results)
    store.db = Interrupted(store.db, at)
    store.add(results.outcomes)
    with pytest.raises(KeyboardInterrupt):
        store.flush()
    assert store.n_outcomes == 2 * len(results.outcomes)


def test_a_case_is_never_stored_without_its_diagnoses(tmp_path, monkeypatch):
    """However often the store is written: a run that is killed in between goes on behind the case."""
    (tmp_path / "ops.py").write_text(DOUBLED)
    (tmp_path / "config.yaml").write_text(user_config("ops.py", cases=[SWEEP]))
    written, seen = Store.flush, []

    def flush(store):
        written(store)
        seen.append(
            [store.db.execute(f"SELECT count(*) FROM {table.name}").fetchone()[0] for table in (COMPARISONS, DIAGNOSES)]
        )

    monkeypatch.setattr(Store, "flush", flush)
    monkeypatch.setattr("parity.reporting.results.store.COMMIT_S", -1.0)
    assert call("run", "config.yaml", "--out", "run", cwd=tmp_path).returncode == 1
    assert len({n for n, _ in seen}) > 2
    assert all(diagnosed for compared, diagnosed in seen if compared)


def test_the_diagnoses_of_an_earlier_case_are_revised(tmp_path):
    cell = ("case", "float64", "mine")
    unexplained, kept = Diagnosis(*cell, "unexplained", "", ("y",), False), Diagnosis(*cell, "rounding", "", (), False)
    elsewhere = Diagnosis("other", *cell[1:], "unexplained", "", ("y",), False)
    named = Diagnosis(*cell, "variance-ddof", "", ("y",), True)
    with closing(Store(tmp_path / STORE)) as store:
        store.add([unexplained, kept, elsewhere])
        store.revise(cell, ["unexplained"], [named])
        assert list(store.rows(DIAGNOSES)) == [kept, elsewhere, named]
    rows = ShardRows()
    rows.add([unexplained, kept, elsewhere])
    rows.revise(cell, ["unexplained"], [named])
    assert rows.of(Diagnosis) == [kept, elsewhere, named]
