"""Names that somebody else chose: what is in them decides about no file and reaches no terminal."""

import json

import pytest
from running import SMALL, assert_refused, headroom, proxy, run_words

HOSTILE = ["", ".", "..", "-all", ".hidden", "a b", "a,b", "../x", "\x1b[31mred", "ü", "\u009b2J", "x" * 129]
RENAME = """
def tamper(request):
    def change(result):
        result["backends"][0]["name"] = {name!r}
    return change if request["call"] == "hello" else None
"""


def test_a_backend_named_like_a_file_is_refused_and_the_file_stays(tmp_path):
    victim = tmp_path / "x-losses.f32"
    victim.write_text("mine")
    worker = proxy(tmp_path, RENAME.format(name=str(tmp_path / "x")))
    output = tmp_path / "a.json"
    done = headroom(*run_words(output, worker, backends=str(tmp_path / "x")))
    said = "backends[0].name: expected a name of letters"
    assert_refused(done, "--worker fault", said, str(tmp_path / "x"))
    assert victim.read_text() == "mine"
    assert not output.exists()


@pytest.mark.parametrize("name", [".", "..", "\x1b[31mred"])
def test_a_backend_with_a_hostile_name_is_refused_on_one_clean_line(tmp_path, name):
    done = headroom(*run_words(tmp_path / "a.json", proxy(tmp_path, RENAME.format(name=name))))
    assert_refused(done, "expected a name of letters")
    assert "\x1b" not in done.stderr


def test_every_hostile_name_of_a_workload_and_of_a_suite_is_refused(tmp_path):
    for number, name in enumerate(HOSTILE):
        suite = {"description": "d", "precisions": ["fp32"], "backends": ["oracle"]}
        suite["workloads"] = [{"name": name, "widths": [12, 8, 4], "batch_size": 8}]
        file = tmp_path / f"suite{number}.json"
        file.write_text(json.dumps(suite))
        done = headroom("run", "--suite", file, "--device", -1)
        assert_refused(done, "workloads[0]: name", "expected a name of small letters")
        assert not {"\x1b", "\x9b"} & set(done.stderr)
    del suite["workloads"][0]["name"]
    for name in ("a b", "\x1b[31mred"):
        file = tmp_path / f"{name}.json"
        file.write_text(json.dumps(suite))
        done = headroom("run", "--suite", file, "--device", -1)
        assert_refused(done, "expected a name of letters")
        assert "\x1b" not in done.stderr


def test_every_hostile_name_of_a_worker_and_of_a_baseline_is_refused(tmp_path):
    (tmp_path / "a.json").write_text("{}")
    for name in HOSTILE[1:]:
        done = headroom("run", "--workload", SMALL, "--worker", f"{name}=/bin/true")
        assert_refused(done, "--worker", "expected a name of letters")
        words = [f"--save-baseline={name}", "--baselines", tmp_path / "b", tmp_path / "a.json"]
        assert_refused(headroom("compare", *words), "--save-baseline", "expected a name of letters")
    assert not (tmp_path / "b").exists()
