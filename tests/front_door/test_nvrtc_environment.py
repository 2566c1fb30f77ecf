"""Which NVRTC kernels may be compiled with: the one that is named, or one in an environment of its own.

Installations are stand-ins, as in test_front_door.py.
"""

import pytest
from test_front_door import copy, environment, installation, values_of  # noqa: F401 (fixtures)

# As pip leaves it, and not as PyTorch brings it.
INSTALLED = """
folder=$(ls -d "$XDG_CACHE_HOME"/headroom/env-*/)lib/python3.11/site-packages/nvidia/cu13/lib
mkdir -p "$folder"
touch "$folder/libnvrtc.so.13"
"""


@pytest.fixture
def found(values_of):  # noqa: F811
    """Runs find_nvrtc; returns exit code, values and messages."""

    def find(**variables: str) -> tuple[int, dict[str, str], str]:
        return values_of(
            """find_nvrtc
            printf '%s\\n' "python=$python" "nvrtc=$nvrtc"
            """,
            **variables,
        )

    return find


def test_nvrtc_is_installed_once_into_an_environment_of_its_own(found, installation):  # noqa: F811
    installation.pip(INSTALLED)
    code, values, _ = found()
    (complete,) = installation.finished()
    assert (code, values["python"]) == (0, "/the/chosen")
    assert values["nvrtc"].startswith(str(complete.parent))
    assert values["nvrtc"].endswith("/nvidia/cu13/lib/libnvrtc.so.13")
    assert (complete.parent / "requirements.txt").read_text().startswith("nvidia-cuda-nvrtc==13.1")
    assert found()[1] == values
    assert installation.calls() == ["venv", "pip"]  # the second time it is there


def test_a_failed_installation_of_nvrtc_costs_nothing_else(found, installation):  # noqa: F811
    installation.pip("exit 1")
    code, values, messages = found()
    assert (code, values) == (0, {"python": "/the/chosen", "nvrtc": ""})
    assert "goes on without NVRTC" in messages


def test_the_named_nvrtc_is_used_and_has_to_be_there(found, installation, tmp_path):  # noqa: F811
    library = tmp_path / "libnvrtc.so.13"
    code, _, messages = found(HEADROOM_NVRTC=str(library))
    assert (code, f"there is no {library}" in messages) == (2, True)
    library.touch()
    assert found(HEADROOM_NVRTC=str(library))[1]["nvrtc"] == str(library)
    assert installation.calls() == []
