"""What docs/stability.md and CHANGELOG.md say of versions is what the files and programs have."""

import json
import re
from pathlib import Path

import pytest
from headroom_protocol.server import PROTOCOL_VERSION

ROOT = Path(__file__).resolve().parents[2]
STABILITY = (ROOT / "docs/stability.md").read_text()


def stated(what: str) -> str:
    (version,) = re.findall(rf"^\| {re.escape(what)}[^|]*\| ([^|]+) \|", STABILITY, re.M)
    return version


def test_the_changes_begin_with_the_projects_version():
    (project,) = re.findall(r"^project\(headroom VERSION (\S+) ", (ROOT / "CMakeLists.txt").read_text(), re.M)
    versions = re.findall(r"^## (\d+\.\d+\.\d+)", (ROOT / "CHANGELOG.md").read_text(), re.M)
    assert versions[0] == project
    assert versions == sorted(versions, reverse=True)


@pytest.mark.parametrize(
    ("what", "schema"),
    [
        ("results file", "schema.json"),
        ("comparison", "compare.schema.json"),
        ("history", "history.schema.json"),
        ("proof of the gate", "gate.schema.json"),
    ],
)
def test_formats_have_the_versions_of_their_schemas(what, schema):
    rules = json.loads((ROOT / "results" / schema).read_text())
    assert stated(what) == str(rules["properties"]["schema_version"]["const"])


def test_the_protocol_has_one_version_everywhere():
    text = (ROOT / "bench/worker/PROTOCOL.md").read_text()
    assert text.startswith(f"# The worker protocol, version {PROTOCOL_VERSION}\n")
    assert stated("worker protocol") == str(PROTOCOL_VERSION)
    assert stated("Python package") == f"{PROTOCOL_VERSION}.x"
    package = (ROOT / "torch_impl/python/pyproject.toml").read_text()
    assert re.search(rf'^version = "{PROTOCOL_VERSION}\.\d+\.\d+"', package, re.M)


def test_what_others_may_use_of_the_package_is_there():
    from headroom_protocol import backend_table, server, step_function

    (names,) = re.findall(r"with corrections\. (.*?) are what others may use", STABILITY, re.S)
    for name in re.findall(r"`(\w+)`", names):
        assert any(hasattr(module, name) for module in (backend_table, server, step_function)), name
