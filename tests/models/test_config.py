import pytest

from parity.config import ConfigError, load_plan

HEAD = "version: 1\ndtypes: [float32]\n"
BOTH = "backends: [{name: a, adapter: torch, ops: ./port.py}, {name: b, adapter: torch, ops: ./port.py}]\n"


def planned(folder, text):
    (folder / "port.py").write_text("")
    path = folder / "model.yaml"
    path.write_text(HEAD + text)
    return load_plan([path])


def test_a_case_names_the_functions_of_the_files(tmp_path):
    plan = planned(tmp_path, BOTH + "cases: [{kind: model, build: net, loss: ce, sweep: {mode: [eval, train]}}]\n")
    assert [(case.id, case.params.mode) for case in plan.cases] == [
        ("model-mode=eval", "eval"),
        ("model-mode=train", "train"),
    ]
    assert plan.cases[0].params.functions == ("net", "make_batch", "ce")
    assert plan.cases[0].gradients


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("backends: [torch, paddle]\ncases: [{kind: model}]\n", "torch has no port: give it a file"),
        (BOTH + "baseline: oracle\ncases: [{kind: model}]\n", "a model is compared with a backend's"),
        (BOTH + "cases: [{kind: model, build: a-b}]\n", "build must be the name of a function"),
        (BOTH + "cases: [{kind: model, batch: no.npz}]\n", "no such file"),
        (BOTH + "cases: [{kind: model, mood: eval}]\n", "mode"),
        (BOTH + "cases: [{kind: model, dtypes: [float16]}]\n", "models run in float64, float32 and bfloat16"),
    ],
)
def test_a_wrong_case_is_told_with_the_remedy(tmp_path, text, message):
    with pytest.raises(ConfigError, match=message):
        planned(tmp_path, text)
