"""`headroom history`: which files are one point, what is judged and by whom, and what is refused."""

import csv
import io
import json
import os
import re
import subprocess

import pytest
from compared import PROGRAM, ROOT, compare, record, results, write
from test_compare_files import set_at, steps

jsonschema = pytest.importorskip("jsonschema", reason="jsonschema is not installed")
VALIDATOR = jsonschema.Draft202012Validator(
    json.loads((ROOT / "results" / "history.schema.json").read_text())
)
OLD, MIDDLE, NEW = ("1" * 40, "2" * 40, "3" * 40)


def history(*arguments, root=ROOT):
    return subprocess.run(
        [PROGRAM, "history", *map(str, arguments)],
        capture_output=True,
        text=True,
        timeout=60,
        env=os.environ | {"HEADROOM_ROOT": str(root)},
    )


def measured(path, records, commit=OLD, day=1, **run):
    """A results file of a commit, started on that day."""
    made = results(records)
    made["run"] |= {"id": path.name, "git_sha": commit, "started_utc": f"2026-01-{day:02}T00:00:00Z", **run}
    return write(path, made)


def read_json(*files):
    done = history(*files, "--json")
    assert done.returncode == 0, done.stderr
    document = json.loads(done.stdout)
    VALIDATOR.validate(document)
    return document


def points_of(document, device=0, cell=0):
    return document["devices"][device]["cells"][cell]["points"]


def refused(done):
    assert (done.returncode, done.stdout) == (2, ""), done.stderr
    (line,) = done.stderr.splitlines()
    assert line.startswith("headroom: ")
    return line


@pytest.fixture
def three(tmp_path):
    """The last commit is 8 % slower than the others. Named so that only their dates order them."""
    return [
        measured(tmp_path / "b.json", [record(steps(1.08, 2))], NEW, 3),
        measured(tmp_path / "c.json", [record(steps(1.0, 0))], OLD, 1),
        measured(tmp_path / "a.json", [record(steps(1.001, 1))], MIDDLE, 2),
    ]


def test_points_are_in_the_order_of_their_dates_and_judged_by_the_one_before(three):
    document = read_json(*three)
    (device,) = document["devices"]
    assert [source["commit"] for source in device["sources"]] == [OLD, MIDDLE, NEW]
    assert device["order"] == "measured"
    points = points_of(document)
    assert [point["change"] for point in points] == ["first", "equivalent", "regression"]
    assert [point["compared_with"] for point in points] == [None, 0, 1]
    assert points[2]["finding"]["ratio"] == pytest.approx(1.08, rel=0.003)


def test_a_verdict_is_the_one_of_compare(three):
    newest, _, middle = three
    compared = json.loads(compare(middle, newest, "--json").stdout)
    document = read_json(*three)
    (cell,) = compared["cells"]
    found = points_of(document)[2]["finding"]
    assert {name: cell["finding"][name] for name in found} == found
    assert document["rule"] == {name: compared["rule"][name] for name in document["rule"]}


def test_what_is_called_real_is_marked_in_the_table_and_the_drift_is_said(three):
    done = history(*three)
    assert done.returncode == 0
    table = " ".join(done.stdout.split())
    assert re.search(r"333333333 2026-01-03 43\.\d us .* \+[78]\.\d+ % .* REGRESSION", table)
    assert "Changes: 1 regression, 1 equivalent." in table
    assert "The tolerance is 4.04 %, 2 % of it for the drift between runs" in table


def test_a_change_within_the_drift_is_not_called_real(tmp_path):
    files = [
        measured(tmp_path / "a.json", [record(steps())], OLD, 1),
        measured(tmp_path / "b.json", [record(steps(1.03, 1))], NEW, 2),
    ]
    assert points_of(read_json(*files))[1]["change"] == "equivalent"


def test_csv_is_read_back(three):
    done = history(*three, "--format", "csv")
    rows = list(csv.DictReader(io.StringIO(done.stdout)))
    assert [row["commit"] for row in rows] == [OLD, MIDDLE, NEW]
    points = points_of(read_json(*three))
    for row, point in zip(rows, points, strict=True):
        assert row["change"] == point["change"]
        assert float(row["step_seconds"]) == point["step_seconds"]["median"]
        assert float(row["step_seconds_high"]) == point["step_seconds"]["high"]
        assert (row["ratio"] == "") == (point["finding"] is None)
    assert float(rows[2]["ratio"]) == points[2]["finding"]["ratio"]
    assert rows[2]["compared_with"] == MIDDLE


def test_files_of_one_commit_are_one_point(tmp_path):
    files = [
        measured(tmp_path / "a.json", [record(steps())], OLD, 1),
        measured(tmp_path / "b.json", [record(steps(1.0, 1))], OLD, 2),
        measured(tmp_path / "c.json", [record(steps(1.0, 2), backend="cuda-resident")], OLD[:12], 3),
    ]
    document = read_json(*files)
    ((source,), cells) = (document["devices"][0][name] for name in ("sources", "cells"))
    assert source["files"] == [str(file) for file in files]
    assert [(cell["backend"], cell["points"][0]["blocks"]) for cell in cells] == [
        ("cuda-layered", 24),
        ("cuda-resident", 12),
    ]


def test_a_record_that_two_files_share_counts_once(tmp_path):
    files = [measured(tmp_path / f"{name}.json", [record(steps())], OLD, 1) for name in "ab"]
    document = read_json(*files)
    assert points_of(document)[0]["blocks"] == 12
    (note,) = document["notes"]
    assert note["file"] == str(files[1]) and "count once" in note["text"]


def test_devices_are_kept_apart(tmp_path):
    other = results([record(steps(2.0, 1))])
    other["device"]["name"] = "another GPU"
    other["run"] |= {"git_sha": NEW, "started_utc": "2026-01-02T00:00:00Z"}
    files = [measured(tmp_path / "a.json", [record(steps())], OLD, 1), write(tmp_path / "b.json", other)]
    document = read_json(*files)
    assert [device["device"] for device in document["devices"]] == ["made-up GPU", "another GPU"]
    assert [points_of(document, device)[0]["change"] for device in (0, 1)] == ["first", "first"]


@pytest.mark.parametrize(
    ("path", "value", "said"),
    [
        ("device.driver", "570.1", "device.driver is '580.1' and '570.1'"),
        ("workloads.0.seed", 2, "seed is '1' and '2'"),
        ("run.settings.block-seconds", "0.5", "run.settings.block-seconds"),
    ],
)
def test_what_compare_refuses_is_not_compared_and_says_why(tmp_path, path, value, said):
    base = measured(tmp_path / "a.json", [record(steps())], OLD, 1)
    for commit in (NEW, OLD):  # nor is it one point where the commit is the same
        head = json.loads(measured(tmp_path / "b.json", [record(steps(2.0, 1))], commit, 2).read_text())
        set_at(path, value)(head)
        points = points_of(read_json(base, write(tmp_path / "b.json", head)))
        assert [point["change"] for point in points] == ["first", "not compared"]
        assert said in points[1]["message"]


def test_too_few_blocks_are_not_judged(tmp_path):
    files = [
        measured(tmp_path / "a.json", [record(steps())], OLD, 1),
        measured(tmp_path / "b.json", [record(steps(2.0, 1, count=5))], NEW, 2),
    ]
    point = points_of(read_json(*files))[1]
    assert (point["change"], point["message"]) == ("not compared", "5 blocks, expected at least 12")


def test_a_commit_where_a_cell_failed_or_is_missing_does_not_end_its_line(tmp_path):
    failed = record(steps(), outcome="failed", message="verification: step_update, of weight1")
    other = record(steps(), backend="cuda-resident")
    files = [
        measured(tmp_path / "a.json", [record(steps()), other], OLD, 1),
        measured(tmp_path / "b.json", [failed, other], MIDDLE, 2),
        measured(tmp_path / "c.json", [record(steps(1.08, 1))], NEW, 3),
    ]
    document = read_json(*files)
    points = points_of(document)
    assert [point["change"] for point in points] == ["first", "failed", "regression"]
    assert (points[1]["step_seconds"], points[2]["compared_with"]) == (None, 0)
    assert points[1]["message"] == "verification: step_update, of weight1"
    assert len(points_of(document, cell=1)) == 2
    rows = list(csv.DictReader(io.StringIO(history(*files, "--format=csv").stdout)))
    assert rows[1]["message"] == points[1]["message"]


def test_a_file_without_a_commit_or_of_another_version_is_left_out_and_named(tmp_path, three):
    unknown = measured(tmp_path / "unknown.json", [record(steps())], None, 4)
    later = write(tmp_path / "later.json", json.loads(three[0].read_text()) | {"schema_version": 3})
    proof = ROOT / "results" / "h200" / "gate.json"
    document = read_json(*three, unknown, later, proof)
    assert document["devices"] == read_json(*three)["devices"]
    assert {note["file"]: note["text"] for note in document["left_out"]} == {
        str(later): "schema_version: expected 1 or 2, found 3",
        str(proof): "expected a results file, found the proof of the gate",
        str(unknown): "it names no commit",
    }
    assert f"{later}: left out: schema_version" in history(*three, later).stdout
    assert f"{unknown}: left out: it names no commit" in history(*three, unknown, "--format", "csv").stderr


def test_a_dirty_file_is_a_point_of_its_own_and_named(tmp_path):
    changed = {"git_dirty": True, "source_digest": "fnv1a64:1"}
    files = [
        measured(tmp_path / "a.json", [record(steps())], OLD, 1),
        measured(tmp_path / "b.json", [record(steps(0.8, 1))], OLD, 2, **changed),
        measured(tmp_path / "c.json", [record(steps(0.8, 2))], OLD, 3, **changed),
        measured(tmp_path / "d.json", [record(steps(0.8, 3))], OLD, 4, git_dirty=True),
    ]
    document = read_json(*files)
    labels = [source["label"] for source in document["devices"][0]["sources"]]
    assert labels == ["111111111", "111111111+", "111111111+"]
    assert points_of(document)[1]["change"] == "improvement"
    assert [note["file"] for note in document["notes"]] == [str(file) for file in files[1:]]
    assert f"{files[1]}: measured with changes that are in no commit (111111111+)" in history(*files).stdout


def test_commits_that_the_checkout_has_are_in_the_order_of_their_own_dates(tmp_path):
    """The older commit was measured last."""

    def git(*arguments, **environment):
        return subprocess.run(
            ["git", "-C", tmp_path, "-c", "user.name=n", "-c", "user.email=e", *arguments],
            check=True,
            capture_output=True,
            text=True,
            env=os.environ | environment,
        ).stdout.strip()

    git("init", "-q")
    commits = []
    for day in (1, 2):
        git("commit", "-q", "--allow-empty", "-m", "x", GIT_COMMITTER_DATE=f"2025-01-0{day}T00:00:00Z")
        commits.append(git("rev-parse", "HEAD"))
    files = [
        measured(tmp_path / "a.json", [record(steps())], commits[1], 1),
        measured(tmp_path / "b.json", [record(steps(1.0, 1))], commits[0], 2),
    ]
    done = history(*files, "--json", root=tmp_path)
    (device,) = json.loads(done.stdout)["devices"]
    assert (device["order"], [source["commit"] for source in device["sources"]]) == ("commit", commits)


def test_the_published_files_have_a_history():
    files = sorted((ROOT / "results" / "h200").glob("*.json"))
    document = read_json(*files)
    (device,) = document["devices"]
    assert device["device"] == "NVIDIA H200"
    named = {file for source in device["sources"] for file in source["files"]}
    assert named | {note["file"] for note in document["left_out"]} == set(map(str, files))


# ---- bad input: exit code 2, one line


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        ([], "history: no results file is given; expected RESULTS.json"),
        (["nowhere.json"], "nowhere.json: cannot be read"),
        (["--format", "cvs", "a.json"], "--format cvs: unknown; did you mean 'csv'?"),
        (["--tolerence", "3", "a.json"], "did you mean '--tolerance'?"),
        (["--output", "", "a.json"], "its value is empty"),
        (["--tolerance", "0", "a.json"], "--tolerance"),
    ],
)
def test_wrong_usage_is_refused(arguments, said):
    assert said in refused(history(*arguments))


def test_what_is_no_results_file_is_refused(tmp_path, three):
    for text, said in (("{}", "schema_version: is missing"), ("rubbish", "found no JSON")):
        file = write(tmp_path / "bad.json", text)
        assert said in refused(history(*three, file))
    nothing = measured(tmp_path / "unknown.json", [record(steps())], None, 4)
    assert "nothing was measured on a commit in this file" in refused(history(nothing))
    skipped = record(steps(), outcome="skipped", message="no GPU", blocks=[], step_seconds=None)
    skipped["verification"] = {"verdict": "not_run", "checks": []}
    assert "every record was skipped" in refused(history(measured(tmp_path / "s.json", [skipped])))


def test_names_behind_two_dashes_are_files(three):
    assert history("--json", "--", *three).stdout == history(*three, "--json").stdout


def test_figures_are_drawn_where_a_folder_is_named(tmp_path, three):
    pytest.importorskip("matplotlib", reason="matplotlib is not installed")
    done = history(*three, "-o", tmp_path / "figures")
    assert done.returncode == 0, done.stderr
    assert f"Figures: {tmp_path / 'figures'}" in done.stderr
    names = {path.name for path in (tmp_path / "figures").iterdir()}
    assert names == {"history-mlp-784x10-b32.svg", "history-mlp-784x10-b32.png", "manifest.json"}
    text = (tmp_path / "figures" / "history-mlp-784x10-b32.svg").read_text()
    assert re.search(r"\+[78]\.\d %", text), "the regression is marked"


def test_figures_that_cannot_be_written_are_one_line(tmp_path, three):
    pytest.importorskip("matplotlib", reason="matplotlib is not installed")
    (tmp_path / "file").write_text("")
    done = history(*three, "-o", tmp_path / "file")
    assert done.returncode == 2
    (line,) = done.stderr.splitlines()
    assert line.startswith("headroom history: ") and "cannot be written" in line
