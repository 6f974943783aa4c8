"""The action, the hook and the examples: linted by tools of others, and their scripts run with a made-up environment."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
import yaml

from parity.reporting.markdown import MARKER
from tests.conftest import FAKES, ROOT, call, three_cases, user_config

EXAMPLES = ROOT / "docs" / "examples"
ACTION = ROOT / "action.yml"
WORKFLOW, GITLAB = EXAMPLES / "github-workflow.yml", EXAMPLES / "gitlab-ci.yml"
BIN = Path(sys.executable).parent
SCHEMAS = {
    ACTION: ["vendor.github-actions"],
    WORKFLOW: ["vendor.github-workflows"],
    GITLAB: ["vendor.gitlab-ci", "--data-transform", "gitlab-ci"],
}
FAKE_PARITY = """#!/bin/bash
printf '%s\\0' "$@" > "$RECORD"
mkdir -p "$RUN_DIR"
echo '<!-- parity -->' > "$RUN_DIR/comment.md"
exit "$PARITY_CODE"
"""
FAKE_GH = """#!/bin/bash
printf '%s ' "$@" >> "$RECORD"
echo >> "$RECORD"
case "$*" in
  *--paginate*) printf '%b' "$FOUND"; exit "$READ_CODE" ;;
  *) exit "$WRITE_CODE" ;;
esac
"""
FAKE_PYTHON = """#!/bin/bash
echo "$@" >> "$RECORD"
mkdir -p "$3/bin"
printf '#!/bin/bash\\necho pip "$@" >> "$RECORD"\\n' > "$3/bin/pip"
chmod +x "$3/bin/pip"
"""


FORMS = ROOT / ".github" / "ISSUE_TEMPLATE"
SCHEMAS |= {path: ["vendor.github-issue-forms"] for path in sorted(FORMS.glob("*.yml")) if path.stem != "config"}
SCHEMAS |= {FORMS / "config.yml": ["vendor.github-issue-config"]}


def lint(*command):
    return subprocess.run([str(BIN / command[0]), *map(str, command[1:])], capture_output=True, text=True)


def schema_errors(path, like):
    done = lint("check-jsonschema", "--builtin-schema", *SCHEMAS[like], path)
    return "" if done.returncode == 0 else done.stdout + done.stderr


def zizmor(path):
    """Zizmor's strictest opinion; an empty text where it has nothing to say."""
    done = lint("zizmor", "--offline", "--no-progress", "--persona=auditor", path)
    return "" if done.returncode == 0 else done.stdout + done.stderr


@pytest.mark.parametrize("path", SCHEMAS, ids=lambda path: path.name)
def test_files_are_what_their_readers_expect(path):
    assert schema_errors(path, path) == ""


@pytest.mark.parametrize("path", [ACTION, WORKFLOW], ids=lambda path: path.name)
def test_zizmor_finds_nothing(path):
    assert zizmor(path) == ""


@pytest.mark.parametrize(
    ("like", "old", "new"),
    [
        (ACTION, "using: composite", "using: composit"),
        (ACTION, "      shell: bash\n", "      shel: bash\n"),
        (WORKFLOW, "runs-on:", "run-on:"),
        (GITLAB, "when: always", "when: sometimes"),
        (FORMS / "bug.yml", "type: textarea", "type: text area"),
        (FORMS / "config.yml", "url:", "link:"),
    ],
)
def test_the_schemas_refuse_a_broken_file(like, old, new, tmp_path):
    path = tmp_path / like.name
    path.write_text(like.read_text().replace(old, new))
    assert path.read_text() != like.read_text()
    assert schema_errors(path, like)


@pytest.mark.parametrize(
    ("like", "old", "new", "audit"),
    [
        (ACTION, 'exit "$CODE"', "exit ${{ inputs.args }}", "template-injection"),
        (ACTION, "setup-python@5fda3b95a4ea91299a34e894583c3862153e4b97", "setup-python@v7", "unpinned-uses"),
        (WORKFLOW, "persist-credentials: false", "fetch-depth: 1", "artipacked"),
        (WORKFLOW, "pull_request:", "pull_request_target:", "dangerous-triggers"),
        (WORKFLOW, "permissions: {}", "permissions: write-all", "excessive-permissions"),
    ],
)
def test_zizmor_finds_what_is_dangerous(like, old, new, audit, tmp_path):
    path = tmp_path / ("action.yml" if like is ACTION else "workflow.yml")
    path.write_text(like.read_text().replace(old, new))
    assert path.read_text() != like.read_text()
    assert audit in zizmor(path)


def step(name):
    return next(step for step in yaml.safe_load(ACTION.read_text())["runs"]["steps"] if step["name"] == name)


def scripts():
    return [step["run"] for step in yaml.safe_load(ACTION.read_text())["runs"]["steps"] if "run" in step]


def test_a_commit_is_checked_as_ci_does():
    """Every command that CI runs in seconds is a hook, and each hook is one of them."""
    hooks = yaml.safe_load((ROOT / ".pre-commit-config.yaml").read_text())["repos"][0]["hooks"]
    lines = [re.sub(r"^beside \S+ ", "", line) for line in (ROOT / ".ci" / "run").read_text().splitlines()]
    commands = [line.removeprefix(".venv/bin/") for line in lines]
    checks = [line for line in commands if line.startswith(("ruff", "mypy", "parity"))]
    validated = ["parity validate configs/*.yaml", "parity validate configs/ops/*.yaml configs/issues/*.yaml"]
    assert checks == ["ruff format --check .", "ruff check .", "mypy", *validated]
    asked = [hook["entry"].removeprefix("sh -c '").removesuffix("'") for hook in hooks]
    assert asked == ["ruff format", "ruff check", "mypy", " && ".join(validated)]


@pytest.mark.parametrize("script", scripts())
def test_the_scripts_are_bash(script):
    assert subprocess.run(["bash", "-n"], input=script, text=True).returncode == 0
    assert "${{" not in script


def test_bash_finds_a_broken_script():
    assert subprocess.run(["bash", "-n"], input="if true; then", text=True, capture_output=True).returncode != 0


@pytest.fixture
def run_step(tmp_path):
    """Runs the script of a step as the runner does; returns the process, the outputs, and what the fakes were told."""

    def run(name, parity=FAKE_PARITY, **env):
        fakes = tmp_path / "fakes"
        fakes.mkdir(exist_ok=True)
        (tmp_path / "temp" / "parity" / "bin").mkdir(parents=True, exist_ok=True)
        for path, text in (
            (tmp_path / "temp/parity/bin/parity", parity),
            (fakes / "gh", FAKE_GH),
            (fakes / "py", FAKE_PYTHON),
        ):
            path.write_text(text)
            path.chmod(0o755)
        output, record, script = tmp_path / "output", tmp_path / "record", tmp_path / "script.sh"
        output.write_text("")
        record.write_text("")
        script.write_text(step(name)["run"])
        done = subprocess.run(
            ["bash", "--noprofile", "--norc", "-e", "-o", "pipefail", script],
            capture_output=True, text=True, cwd=tmp_path,
            env={
                "PATH": f"{fakes}:{os.environ['PATH']}", "RECORD": str(record), "GITHUB_OUTPUT": str(output),
                "RUNNER_TEMP": str(tmp_path / "temp"), "GITHUB_ACTION_PATH": str(ROOT), "PYTHON": str(fakes / "py"),
                "GITHUB_REPOSITORY": "o/r", "NUMBER": "7", "RUN_DIR": "out dir", "PARITY_CODE": "0", **env,
            },
        )  # fmt: skip
        return done, dict(line.split("=", 1) for line in output.read_text().splitlines()), record.read_text()

    return run


RUN = {"CONFIGS": "*.yaml", "BACKENDS": "", "FAIL_ON": "mismatch", "FAIL_ON_OTHERS": "false", "ARGS": ""}
LEAD = ["run", "--out", "out dir", "--fail-on", "mismatch", "--markdown", "out dir/comment.md", "--github"]


def test_the_run_gives_parity_what_the_inputs_say(run_step, tmp_path):
    for name in ("a.yaml", "--help.yaml"):
        (tmp_path / name).write_text("")
    asked = RUN | {"BACKENDS": "torch  paddle==2.6.2", "ARGS": "-k 'pair or offset' --rtol \"1e-5\"\n--timeout 30"}
    done, outputs, told = run_step("Run parity", **asked)
    assert done.returncode == 0
    backends = ["--backend", "torch", "--backend", "paddle==2.6.2"]
    more = ["-k", "pair or offset", "--rtol", "1e-5", "--timeout", "30"]
    assert told.split("\0")[:-1] == [*LEAD, *backends, *more, "--", "--help.yaml", "a.yaml"]
    assert outputs == {"exit-code": "0", "run-dir": "out dir"}


@pytest.mark.parametrize("text", ["torch paddle", "torch\npaddle\n", "  torch \n\n\tpaddle  "])
def test_backends_stand_on_one_line_or_on_several(run_step, text):
    done, _, told = run_step("Run parity", **RUN | {"BACKENDS": text})
    assert done.returncode == 0
    assert told.split("\0")[:-1] == [*LEAD, "--backend", "torch", "--backend", "paddle", "--", "*.yaml"]


def test_what_was_made_is_kept_before_the_job_can_fail():
    steps = yaml.safe_load(ACTION.read_text())["runs"]["steps"]
    names = [step["name"] for step in steps]
    restore, save = step("Restore environments and downloads"), step("Keep environments and downloads")
    assert names.index("Keep environments and downloads") == names.index("Run parity") + 1
    assert names[-1] == "End with parity's exit code"
    actions, pins = zip(*(cache["uses"].split("@") for cache in (restore, save)), strict=True)
    assert actions == ("actions/cache/restore", "actions/cache/save")
    assert len(set(pins)) == 1
    assert restore["with"]["path"] == save["with"]["path"]
    assert save["with"]["key"] == f"${{{{ steps.{restore['id']}.outputs.cache-primary-key }}}}"
    asked = [part.strip() for part in save["if"].split("&&")]
    assert asked == [
        "always()", restore["if"], "steps.cache.outputs.cache-hit != 'true'", "steps.run.outputs.exit-code != ''",
        "steps.run.outputs.exit-code != '2'",
    ]  # fmt: skip
    assert not any(step.get("uses", "").startswith("actions/cache@") for step in steps)
    assert yaml.safe_load(GITLAB.read_text())["parity"]["cache"]["when"] == "always"


@pytest.mark.parametrize("code", ["0", "1", "2", "3", "130"])
def test_the_exit_code_waits_for_the_last_step(run_step, code):
    done, outputs, told = run_step("Run parity", **RUN, PARITY_CODE=code)
    assert (done.returncode, outputs["exit-code"]) == (0, code)
    assert told.split("\0")[:-1] == [*LEAD, "--", "*.yaml"]
    done, _, _ = run_step("End with parity's exit code", CODE=code)
    assert done.returncode == int(code)


@pytest.mark.parametrize("key", ["CONFIGS", "BACKENDS", "FAIL_ON", "FAIL_ON_OTHERS", "ARGS", "RUN_DIR"])
def test_no_input_is_run_as_code(run_step, tmp_path, key):
    for text in (
        "$(touch hacked)",
        "`touch hacked`",
        "; touch hacked",
        'x" ; touch hacked; "',
        "${x:=$(touch hacked)}",
    ):
        run_step("Run parity", **RUN | {key: text})
        assert not list(tmp_path.rglob("hacked"))


def test_what_cannot_be_read_is_refused(run_step):
    done, outputs, _ = run_step("Run parity", **RUN | {"ARGS": "-k 'open"})
    assert done.returncode != 0
    assert "quote" in done.stderr
    assert outputs == {}
    done, outputs, _ = run_step("Run parity", **RUN | {"RUN_DIR": "a\nexit-code=0"})
    assert (done.returncode, outputs) == (2, {})


def test_the_run_step_works_with_parity_itself(run_step, tmp_path):
    (tmp_path / "config.yaml").write_text(user_config(FAKES / "nan.py", cases=three_cases()))
    summary = tmp_path / "summary.md"
    own = f'#!/bin/bash\nexec "{sys.executable}" -m parity "$@"\n'
    job = {"GITHUB_STEP_SUMMARY": str(summary), "GITHUB_WORKSPACE": str(tmp_path)}
    done, outputs, _ = run_step("Run parity", own, **RUN, **job)
    assert (done.returncode, outputs["exit-code"]) == (0, "1"), done.stderr
    kept = {path.name for path in (tmp_path / "out dir").iterdir()}
    uploaded = re.findall(r"run-dir }}/(\S+)", step("Upload the report")["with"]["path"])
    assert set(uploaded) <= kept
    assert (tmp_path / "out dir" / "comment.md").read_text().startswith(MARKER)
    assert MARKER in summary.read_text()
    assert re.search("^::error file=config.yaml,line=5,title=parity%3A bad::mine: .* – in y of ", done.stdout, re.M)


COMMENT = {"FOUND": "", "READ_CODE": "0", "WRITE_CODE": "0", "CODE": "1"}


@pytest.mark.parametrize(
    ("found", "target"),
    [
        ("", "--method POST repos/o/r/issues/7/comments"),
        ("12\\n", "--method PATCH repos/o/r/issues/comments/12"),
        ("12\\n34\\n", "--method PATCH repos/o/r/issues/comments/12"),
    ],
)
def test_the_comment_is_made_once_and_then_renewed(run_step, found, target):
    run_step("Run parity", **RUN)
    done, _, told = run_step("Comment on the pull request", **COMMENT | {"FOUND": found})
    assert done.returncode == 0
    read, write = told.splitlines()
    assert read.startswith("api --paginate repos/o/r/issues/7/comments --jq ")
    assert write.strip() == f"api {target} --field body=@out dir/comment.md --silent"


@pytest.mark.parametrize(
    ("code", "text"), [("READ_CODE", "cannot read the comments"), ("WRITE_CODE", "cannot write the comment")]
)
def test_a_token_that_may_not_comment_is_a_warning(run_step, code, text):
    run_step("Run parity", **RUN)
    done, _, _ = run_step("Comment on the pull request", **COMMENT | {code: "1"})
    assert done.returncode == 0
    assert re.search(f"^::warning title=parity::.*{text}", done.stdout)


def test_after_a_wrong_config_the_comment_says_that_nothing_ran(run_step, tmp_path):
    run_step("Run parity", **RUN)
    done, _, told = run_step("Comment on the pull request", **COMMENT | {"CODE": "2", "FOUND": "12\\n"})
    assert done.returncode == 0
    body = tmp_path / "temp" / "parity-comment.md"
    assert told.splitlines()[-1].strip() == (
        f"api --method PATCH repos/o/r/issues/comments/12 --field body=@{body} --silent"
    )
    text = body.read_text()
    assert text.startswith(MARKER)
    assert "nothing ran" in text
    assert "a config is wrong" in text


def test_there_is_no_comment_where_there_is_nothing_to_say(run_step):
    done, _, told = run_step("Comment on the pull request", **COMMENT)
    assert (done.returncode, told) == (0, "")


def test_the_filter_finds_our_comment_and_nobody_elses():
    assert shutil.which("jq"), "gh brings its own jq; install jq to try the filter with"
    comments = """[{"id": 1, "user": {"type": "User"}, "body": "<!-- parity -->"},
                   {"id": 2, "user": {"type": "Bot"}, "body": "hello"},
                   {"id": 3, "user": {"type": "Bot"}, "body": "<!-- parity -->\\nx"}]"""
    wanted = re.search(r"ours='(.*)'", step("Comment on the pull request")["run"])[1]
    done = subprocess.run(["jq", wanted], input=comments, text=True, capture_output=True)
    assert done.stdout == "3\n"
    assert MARKER in wanted


def test_jenkins_shows_the_test_cases_of_a_build_that_failed():
    (pipeline,) = re.findall(r"```groovy\n(.*?)```", (ROOT / "docs/ci.md").read_text(), re.S)
    steps, post = pipeline.split("post {")
    assert "junit" not in steps
    assert re.search(r"always \{ junit testResults: 'parity-run/junit.xml', allowEmptyResults: true \}", post)
    (script,) = re.findall(r"sh '(.*)'", steps)
    for code, wanted in {0: 0, 1: 0, 2: 1, 3: 1}.items():
        run = f"parity() {{ return {code}; }}; {script}"
        assert subprocess.run(["sh", "-e", "-c", run]).returncode == wanted


def test_the_install_is_from_the_action_itself(run_step):
    done, _, told = run_step("Install parity")
    assert done.returncode == 0
    assert told.splitlines()[-1].endswith(f"--no-build-isolation {ROOT}[frameworks]")


def test_the_cache_is_named_after_the_pins(run_step, tmp_path):
    _, first, _ = run_step("Name the cache")
    copy = tmp_path / "copy"
    (copy / "parity" / "environments").mkdir(parents=True)
    shutil.copy(ROOT / "pyproject.toml", copy)
    (copy / "parity" / "environments" / "pins.py").write_text("# other pins\n")
    _, second, _ = run_step("Name the cache", GITHUB_ACTION_PATH=str(copy))
    assert re.fullmatch("[0-9a-f]{64}", first["pins"])
    assert first != second


def test_the_workflow_asks_for_inputs_that_the_action_has():
    inputs = yaml.safe_load(ACTION.read_text())["inputs"]
    used = yaml.safe_load(WORKFLOW.read_text())["jobs"]["parity"]["steps"][-1]["with"]
    assert set(used) <= set(inputs)
    documented = set(
        re.findall(r"`([a-z-]+)`", "".join(re.findall(r"^\| `.*$", (ROOT / "docs/ci.md").read_text(), re.M)))
    )
    assert set(inputs) <= documented


def test_the_hook_checks_configs_as_the_example_asks(tmp_path):
    (hook,) = yaml.safe_load((ROOT / ".pre-commit-hooks.yaml").read_text())
    example = yaml.safe_load((EXAMPLES / "pre-commit-config.yaml").read_text())["repos"][0]["hooks"][0]
    assert example["id"] == hook["id"]
    configs = [str(path.relative_to(ROOT)) for path in sorted((ROOT / "configs").glob("*.yaml"))]
    assert all(re.search(pattern, name) for name in configs for pattern in (hook["files"], example["files"]))
    assert re.search(example["exclude"], "configs/common.yaml")
    command = hook["entry"].split()
    assert command[0] == "parity"
    assert call(*command[1:], *configs).returncode == 0
    broken = tmp_path / "broken.yaml"
    broken.write_text("version: 1\ncasess: []\n")
    assert call(*command[1:], broken).returncode == 2


def test_the_pytest_recipe_passes_and_can_fail(tmp_path):
    recipe = EXAMPLES / "test_kernel.py"
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", f"--rootdir={tmp_path}"]
    assert subprocess.run([*command, recipe], cwd=tmp_path, capture_output=True).returncode == 0
    spoiled = tmp_path / "test_kernel.py"
    spoiled.write_text(recipe.read_text().replace("+ eps", "+ 10 * eps"))
    done = subprocess.run([*command, spoiled], cwd=tmp_path, capture_output=True, text=True)
    assert done.returncode == 1
    assert "ParityError" in done.stdout
