"""results/h200/gate.json: it fits its schema, counts follow from estimates, and it meets the goals."""

import json
import re
from pathlib import Path

import gate_tables
import pytest

jsonschema = pytest.importorskip("jsonschema", reason="jsonschema is not installed")

ROOT = Path(__file__).resolve().parents[2]
GATE = json.loads((ROOT / "results" / "h200" / "gate.json").read_text())
SCHEMA = json.loads((ROOT / "results" / "gate.schema.json").read_text())


def rows(percent):
    return [row for row in GATE["estimates"] if row["asked_percent"] == percent]


def count(percent, verdict):
    return sum(row["verdict"] == verdict for row in rows(percent))


def test_fits_its_schema():
    jsonschema.Draft202012Validator(SCHEMA).validate(GATE)


def test_counts_follow_from_the_estimates():
    aa = GATE["aa"]
    assert aa["suite_runs"] == len({row["comparison"] for row in rows(0)})
    assert aa["cells"] == len(rows(0))
    assert aa["false_alarms"] == count(0, "regression")
    for one in GATE["planted"]:
        assert one["trials"] == len(rows(one["slowdown_percent"]))
        assert one["caught"] == count(one["slowdown_percent"], "regression")
        assert one["inconclusive"] == count(one["slowdown_percent"], "inconclusive")


def test_meets_the_goals():
    aa = GATE["aa"]
    planted = {one["slowdown_percent"]: one for one in GATE["planted"]}
    assert aa["suite_runs"] >= 40 and aa["false_alarms"] == 0
    assert aa["seconds_a_comparison"]["most"] <= 20
    assert planted[5]["trials"] >= 100 and planted[5]["caught"] >= 0.99 * planted[5]["trials"]
    assert planted[3]["trials"] >= 100 and planted[3]["caught"] >= 0.90 * planted[3]["trials"]
    equal = GATE["simulation"]["runs"][0]["rates"][0]
    assert equal["slowdown"] == 1
    assert equal["suites_with_regression"] <= 0.01 * equal["suites"]


def test_verdicts_follow_from_the_intervals():
    for row in GATE["estimates"]:
        assert row["low"] < row["ratio"] < row["high"]
        if row["verdict"] == "regression":
            assert row["low"] > 1.02
        if row["verdict"] == "equivalent":
            assert 1 / 1.02 < row["low"] and row["high"] < 1.02


def test_tolerance_of_files_is_widened_by_what_was_measured():
    source = (ROOT / "bench" / "analysis" / "gate.h").read_text()
    (drift,) = re.findall(r"kRunDrift = ([0-9.]+);", source)
    assert GATE["between_runs"]["largest"] <= float(drift) <= 2 * GATE["between_runs"]["largest"] + 0.01


def test_planted_delays_are_what_was_asked_for():
    for one in GATE["planted"]:
        assert one["made_percent"]["median"] == pytest.approx(one["slowdown_percent"], abs=0.2)


def test_the_tables_of_the_docs_are_of_this_file():
    page = (ROOT / "docs" / "gate.md").read_text()
    assert page == gate_tables.with_tables(page, GATE)


def test_binomial_intervals_agree_with_scipy():
    stats = pytest.importorskip("scipy.stats", reason="SciPy is not installed")
    for successes, trials in ((0, 320), (1, 40), (101, 104), (104, 104), (50, 100)):
        exact = stats.binomtest(successes, trials).proportion_ci(method="exact")
        found = gate_tables.binomial_interval(successes, trials)
        assert found == pytest.approx((exact.low, exact.high), abs=1e-9)
