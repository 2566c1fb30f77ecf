"""The workflows of .github/ are YAML that GitHub takes, end by themselves, and call commands that exist.

The parser is PyYAML of this Python, or of the system's. Where actionlint is on PATH, it is asked too.
"""

import json
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
FILES = sorted((ROOT / ".github" / "workflows").glob("*.yml"))
# YAML 1.1 reads the key `on` as true, which JSON writes "true".
PARSE = "import json, sys, yaml; json.dump(yaml.safe_load(sys.stdin), sys.stdout)"


def parsed(text: str) -> dict:
    for python in (sys.executable, "/usr/bin/python3"):
        if Path(python).exists() and not subprocess.run([python, "-c", "import yaml"], stderr=-3).returncode:
            done = subprocess.run([python, "-c", PARSE], input=text, capture_output=True, text=True)
            assert done.returncode == 0, done.stderr
            document = json.loads(done.stdout)
            document["on"] = document.pop("true")
            return document
    pytest.skip("no PyYAML is installed (Debian: python3-yaml)")


@pytest.fixture(params=FILES, ids=lambda file: file.stem)
def workflow(request) -> dict:
    return parsed(request.param.read_text())


def steps_of(workflow: dict) -> list[dict]:
    return [step for job in workflow["jobs"].values() for step in job["steps"]]


def test_every_job_has_a_time_limit_and_says_what_it_may_do(workflow):
    assert "contents" in workflow["permissions"]
    for job in workflow["jobs"].values():
        assert 0 < job["timeout-minutes"] <= 120
        assert job["runs-on"]


def test_every_step_runs_or_uses_an_action_of_a_stated_version(workflow):
    for step in steps_of(workflow):
        assert ("run" in step) != ("uses" in step)
        assert re.fullmatch(r"actions/[a-z-]+@v\d+", step.get("uses", "actions/checkout@v4"))


def test_no_event_text_is_put_into_a_shell(workflow):
    """What a stranger wrote would be commands; variables are not."""
    assert [step["run"] for step in steps_of(workflow) if "${{" in step.get("run", "")] == []


def test_the_commands_of_the_steps_exist_with_their_options(workflow):
    scripts = "\n".join(step.get("run", "") for step in steps_of(workflow))
    for program in re.findall(r"^\s*(\.[\w./]+)", scripts, re.M):
        assert (ROOT / program).is_file()
    for words in re.findall(r"\./headroom (\w+ .*)", scripts):
        command, *rest = words.split()
        text = subprocess.run([ROOT / "headroom", command, "--help"], capture_output=True, text=True).stdout
        options = {word for word in rest if word.startswith("-")}
        assert {option for option in options if not re.search(rf"(?<![\w-]){option}(?![\w-])", text)} == set()


def test_the_tests_are_those_that_everybody_types():
    workflow = parsed((ROOT / ".github/workflows/tests.yml").read_text())
    (job,) = workflow["jobs"].values()
    assert job["runs-on"] == "ubuntu-24.04"
    assert ".ci/run" in [step.get("run") for step in job["steps"]]
    assert {"push", "pull_request"} <= set(workflow["on"])


def test_the_gate_runs_by_hand_and_for_pull_requests_with_its_label_only():
    workflow = parsed((ROOT / ".github/workflows/gate.yml").read_text())
    assert set(workflow["on"]) == {"workflow_dispatch", "pull_request"}
    assert workflow["on"]["pull_request"]["types"] == ["labeled"]  # a push of a stranger starts nothing
    (job,) = workflow["jobs"].values()
    assert "github.event.label.name == 'gate'" in job["if"]
    assert "self-hosted" in job["runs-on"]
    assert workflow["concurrency"]


@pytest.mark.skipif(shutil.which("actionlint") is None, reason="actionlint is not installed")
def test_actionlint_finds_nothing():
    done = subprocess.run(["actionlint", *FILES], cwd=ROOT, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout
