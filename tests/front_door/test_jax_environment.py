"""Which Python the JAX rows get: the one that is named, the one at hand, or an environment of their own.

Installations are stand-ins, as in test_front_door.py.
"""

import sys

import pytest
from test_front_door import copy, environment, installation, values_of  # noqa: F401 (fixtures)

GPU = "gpu_devices() { echo /dev/nvidia0; }"
NO_GPU = "gpu_devices() { :; }"


@pytest.fixture
def chosen(values_of):  # noqa: F811
    """Runs find_jax and, where it finds none, install_jax; returns exit code, values and messages."""

    def choose(setting: str, **variables: str) -> tuple[int, dict[str, str], str]:
        return values_of(
            f"""base_python=/the/base base_why="a test" base_jax_version='' base_jax_cuda=''
            {setting}
            find_jax
            [ -n "$jax_python" ] || install_jax
            printf '%s\\n' "python=$python" "jax_python=$jax_python"
            """,
            **variables,
        )

    return choose


@pytest.mark.parametrize(
    ("setting", "is_used"),
    [
        (f"base_jax_version=0.11.2; {NO_GPU}", True),
        (f"base_jax_version=0.11.2 base_jax_cuda=yes; {GPU}", True),
        (f"base_jax_version=0.11.2; {GPU}", False),
        (NO_GPU, False),
    ],
)
def test_jax_at_hand_is_used_where_it_knows_the_gpu(chosen, installation, setting, is_used):  # noqa: F811
    code, values, messages = chosen(setting)
    assert (code, values["python"]) == (0, "/the/chosen")
    assert (values["jax_python"] == "/the/base") == is_used
    assert (installation.calls() == []) == is_used
    assert ("JAX 0.11.2: /the/base (a test)" in messages) == is_used


@pytest.mark.parametrize(("setting", "asked"), [(GPU, "jax[cuda13]=="), (NO_GPU, "jax==")])
def test_an_environment_of_its_own_has_what_the_machine_needs(chosen, installation, setting, asked):  # noqa: F811
    code, values, _ = chosen(setting)
    (complete,) = installation.finished()
    assert (code, values["jax_python"]) == (0, str(complete.parent / "bin/python"))
    assert (complete.parent / "requirements.txt").read_text().startswith(asked)
    assert chosen(setting)[1] == values
    assert installation.calls() == ["venv", "pip"]  # the second time it is there


def test_a_failed_installation_costs_the_jax_rows_only(chosen, installation):  # noqa: F811
    installation.pip("exit 1")
    code, values, messages = chosen(NO_GPU)
    assert (code, values) == (0, {"python": "/the/chosen", "jax_python": ""})
    assert "goes on without JAX: its rows are skipped" in messages


def test_the_named_python_is_used_and_has_to_be_one(chosen, installation):  # noqa: F811
    code, values, messages = chosen(NO_GPU, HEADROOM_JAX_PYTHON=sys.executable)
    assert (code, values["jax_python"]) == (0, sys.executable)
    assert f": {sys.executable} (HEADROOM_JAX_PYTHON)" in messages
    code, _, messages = chosen(NO_GPU, HEADROOM_JAX_PYTHON="/bin/false")
    assert code == 2
    assert messages == "headroom: /bin/false does not run as a Python\n"
    assert installation.calls() == []
