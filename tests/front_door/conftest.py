"""What sets up and builds needs a build's system packages: where one is missing these tests are skipped."""

import subprocess
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
SET_UP = {"test_compare_revisions.py", "test_ends_what_it_started.py", "test_surroundings.py"}


def missing_packages():
    script = ". cmake/front_door/packages.sh; base_executable=python3; packages_for build | missing_packages"
    return subprocess.run(
        ["bash", "-c", script], cwd=ROOT, capture_output=True, text=True, check=True
    ).stdout.strip()


def pytest_collection_modifyitems(items):
    building = [item for item in items if item.path.name in SET_UP]
    missing = missing_packages() if building else ""
    for item in building if missing else []:
        item.add_marker(pytest.mark.skip(reason=f"system packages are missing: {missing}"))
