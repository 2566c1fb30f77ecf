"""`run --format csv` and `report --format csv`: read back, their rows are what the results file holds."""

import csv
import io
import json
import re

import pytest
from compared import ROOT, record, results, write
from running import SMALL, assert_refused, headroom, run_words

HARD = 'it said "no", then\nended; 1,5 times, '  # a reader of files makes one line of it


def rows_of(done, code=0):
    assert done.returncode == code, done.stderr
    return list(csv.DictReader(io.StringIO(done.stdout, newline="")))


def columns_in_docs(what):
    text = (ROOT / "docs" / "usage.md").read_text()
    table = text.split(f"<!-- columns of {what} -->")[1].split("<!-- /columns -->")[0]
    return [
        name
        for line in table.splitlines()
        if line.startswith("| `")
        for name in re.findall(r"`(\w+)`", line.split(" | ")[0])
    ]


def test_the_rows_of_a_run_are_its_file(tmp_path):
    output = tmp_path / "a.json"
    words = [*run_words(output, backends="oracle-honest,fault-unavailable,fault-bias"), "--precision", "fp32"]
    rows = rows_of(headroom(*words, "--format", "csv", "--block-seconds", "0.02"), code=1)  # one failed
    document = json.loads(output.read_text())
    blocks = {one["backend"]: one["blocks"] for one in document["records"]}
    assert {row["file"] for row in rows} == {str(output)}
    assert {row["backend"]: row["outcome"] for row in rows} == {
        "oracle-honest": "ok",
        "fault-unavailable": "skipped",
        "fault-bias": "failed",
    }
    timed = [row for row in rows if row["backend"] == "oracle-honest"]
    assert len(timed) == len(blocks["oracle-honest"]) == 12
    for number, (row, block) in enumerate(zip(timed, blocks["oracle-honest"], strict=True)):
        assert (int(row["block"]), int(row["order"])) == (number, block["order"])
        assert int(row["steps"]) == block["steps"]
        for clock in ("device", "wall", "cpu"):
            assert float(row[f"{clock}_step_seconds"]) == block[f"{clock}_seconds"] / block["steps"]
    assert {(row["workload"], row["verdict"], row["precision"]) for row in timed} == {(SMALL, "pass", "fp32")}
    for row in rows:
        if row["outcome"] != "ok":
            assert row["message"] and not row["block"] and not row["device_step_seconds"]
    assert rows_of(headroom("report", output, "--format", "csv")) == rows


def test_fields_with_commas_quotes_and_blanks_are_read_back(tmp_path):
    made = results([record([1e-5] * 2, message=HARD), record([2e-5] * 2, backend="cuda-fused")])
    made["run"] |= {"id": 'a,"b"', "git_dirty": None, "git_sha": None}
    file = write(tmp_path / "a, b.json", made)
    rows = rows_of(headroom("report", "--format=csv", file))
    assert [row["message"] for row in rows] == [HARD.replace("\n", " ")] * 2 + [""] * 2
    assert {(row["run"], row["file"], row["commit"], row["dirty"]) for row in rows} == {
        ('a,"b"', str(file), "", "")
    }


def test_several_files_have_one_header(tmp_path):
    files = [write(tmp_path / f"{name}.json", results([record([1e-5])])) for name in "ab"]
    rows = rows_of(headroom("report", *files, "--format", "csv"))
    assert [row["file"] for row in rows] == list(map(str, files))


@pytest.mark.parametrize("what", ["blocks", "history"])
def test_the_docs_explain_every_column_in_its_order(tmp_path, what):
    file = write(tmp_path / "a.json", results([record([1e-5] * 12)]))
    command = ["report", "--format", "csv"] if what == "blocks" else ["history", "--format", "csv"]
    header = headroom(*command, file).stdout.splitlines()[0].split(",")
    assert columns_in_docs(what) == header


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["report"], "report: expected --format csv"),
        (["report", "--format", "csv"], "report: no results file is given"),
        (["report", "--format", "json", "a.json"], "--format json: a report's rows are csv"),
        (["report", "--format", "csv", "-o", "x", "a.json"], "rows go to standard output"),
        (["report", "--format", "csv", "nowhere.json"], "nowhere.json: cannot be read"),
        (["run", "--format", "cvs"], "--format cvs: unknown; did you mean 'csv'?"),
        (["run", "--format", "csv", "--benchmark_format=csv"], "both print on standard output"),
    ],
)
def test_wrong_usage_is_refused(arguments, said):
    assert_refused(headroom(*arguments), said)


def test_what_is_no_results_file_costs_all_rows(tmp_path):
    good = write(tmp_path / "a.json", results([record([1e-5])]))
    done = headroom("report", good, write(tmp_path / "b.json", "{}"), "--format", "csv")
    assert_refused(done, "b.json", "is missing")
    assert done.stdout == ""
