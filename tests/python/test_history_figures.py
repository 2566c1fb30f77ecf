"""plots/history.py as a program, on a made-up history: what is drawn and marked, and how bad input ends."""

import json
import subprocess
import sys
import xml.etree.ElementTree as ElementTree

import pytest
from plot_programs import ROOT, one_line

pytest.importorskip("matplotlib", reason="matplotlib is not installed")
pytest.importorskip("jsonschema", reason="jsonschema is not installed")

WORKLOAD = "mlp-784x10-b32"


def point(source, microseconds, change="equivalent", **fields):
    seconds = microseconds * 1e-6
    judged = change in ("regression", "improvement", "equivalent", "inconclusive")
    made = {
        "source": source,
        "step_seconds": {"median": seconds, "low": 0.99 * seconds, "high": 1.01 * seconds},
        "blocks": 12,
        "change": change,
        "compared_with": None if change in ("first", "failed") else source - 1,
        "finding": {"ratio": 1.08, "low": 1.07, "high": None, "level": 0.01} if judged else None,
        "message": "",
    }
    return made | fields


def cell(*points, backend="cuda-layered", precision="fp32", workload=WORKLOAD):
    return {
        "workload": workload,
        "trained": WORKLOAD,
        "backend": backend,
        "precision": precision,
        "points": list(points),
    }


def device(*cells, name="made-up GPU (test data)", sources=4):
    return {
        "device": name,
        "order": "measured",
        "sources": [
            {
                "label": f"{number}" * 9,
                "commit": f"{number}" * 40,
                "dirty": False,
                "date": f"2026-01-0{number + 1}T00:00:00Z",
                "files": ["a.json"],
            }
            for number in range(sources)
        ],
        "cells": list(cells),
    }


def history(*devices):
    rule = {"tolerance": 0.0404, "tolerance_seconds": 5e-8, "level": 0.01, "widened_by": 0.02}
    return {"schema_version": 1, "rule": rule, "devices": list(devices), "left_out": [], "notes": []}


def run(folder, document):
    file = folder / "history.json"
    file.write_text(document if isinstance(document, str) else json.dumps(document))
    words = [sys.executable, ROOT / "plots" / "history.py", file, "-o", folder / "figures"]
    return subprocess.run(words, capture_output=True, text=True, timeout=120)


def drawn(folder, *devices):
    """Name of each figure to all of its text."""
    done = run(folder, history(*devices))
    assert done.returncode == 0, done.stderr
    assert done.stdout == ""
    texts = {}
    for path in (folder / "figures").glob("*.svg"):
        assert path.with_suffix(".png").exists()
        nodes = [node for node in ElementTree.parse(path).iter() if node.tag.endswith("}text")]
        texts[path.stem] = " ".join(" ".join("".join(node.itertext()) for node in nodes).split())
    return texts


def test_what_the_rule_calls_real_is_marked_and_nothing_else(tmp_path):
    points = [point(0, 40, "first"), point(1, 43.2, "regression"), point(2, 43, "inconclusive")]
    (text,) = drawn(tmp_path, device(cell(*points))).values()
    assert text.count("+8.0 %") == 1
    assert "tolerance 4.04 %, of which 2 % are for the drift between runs" in text
    for said in ("cuda-layered", "fp32", "000000000", "2026-01-03", "made-up GPU"):
        assert said in text


def test_a_figure_without_a_real_change_explains_no_mark(tmp_path):
    (text,) = drawn(tmp_path, device(cell(point(0, 40, "first"), point(1, 40)))).values()
    assert "Triangles" not in text and "Crosses" not in text


def test_lines_are_broken_where_points_cannot_be_compared():
    sys.path.insert(0, str(ROOT / "plots"))
    try:
        from history import pieces
    finally:
        sys.path.pop(0)
    failed = point(2, 1, "failed", step_seconds=None)
    points = [point(0, 40, "first"), point(1, 41), failed, point(3, 42), point(4, 20, "not compared")]
    assert [[one["source"] for one in piece] for piece in pieces(points)] == [[0, 1, 3], [4]]


def test_failures_and_breaks_are_said(tmp_path):
    why = "device.driver is '1' and '2'"
    broken = cell(point(0, 40, "first"), point(1, 80, "not compared", message=why))
    failed = cell(point(0, 9, "first"), point(2, 1, "failed", step_seconds=None), backend="cuda-fused")
    (text,) = drawn(tmp_path, device(broken, failed)).values()
    assert f"Broken lines, not compared: {why}." in text
    assert "Crosses at the foot, failed: cuda-fused fp32 at 222222222." in text


def test_each_device_and_workload_has_its_figure(tmp_path):
    cells = [cell(point(0, 40, "first")), cell(point(0, 40, "first"), workload="ppo")]
    assert set(drawn(tmp_path, device(*cells))) == {"history-mlp-784x10-b32", "history-ppo"}
    devices = [device(*cells), device(cells[1], name="another GPU")]
    assert set(drawn(tmp_path, *devices)) == {
        "history-made-up_GPU_test_data_-mlp-784x10-b32",
        "history-made-up_GPU_test_data_-ppo",
        "history-another_GPU-ppo",
    }


def test_many_commits_have_room(tmp_path):
    points = [point(0, 40, "first"), *(point(number, 40) for number in range(1, 90))]
    many = device(cell(*points), sources=1)
    many["sources"] = [many["sources"][0] | {"label": f"commit-{number}"} for number in range(90)]
    (text,) = drawn(tmp_path, many).values()
    assert "commit-89" in text and text.count("commit-") <= 24


def test_a_cell_that_only_failed_is_drawn(tmp_path):
    (text,) = drawn(tmp_path, device(cell(point(0, 1, "failed", step_seconds=None)))).values()
    assert "failed: cuda-layered fp32" in text


@pytest.mark.parametrize(
    ("document", "said"),
    [
        ("rubbish", "expected a history, found no JSON"),
        ({"schema_version": 2}, "schema_version: expected 1, found 2"),
        (history(), "devices"),
        (history(device(cell(point(0, 40, "better")))), "change: expected one of first, regression"),
    ],
)
def test_bad_input_is_one_line(tmp_path, document, said):
    done = run(tmp_path, document)
    assert done.returncode == 2
    assert said in one_line(done)
    assert not (tmp_path / "figures").exists()
