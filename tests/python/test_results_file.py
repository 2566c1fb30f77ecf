"""Results files that are refused: what is said of them in Python, and that the driver says the same."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import made_up_results as made_up
import pytest
from plot_programs import BAD_FILES, DEEP, ROOT, small

pytest.importorskip("jsonschema", reason="jsonschema is not installed")
sys.path.insert(0, str(ROOT / "plots"))
from results_file import InputError, read_results  # noqa: E402

DRIVER = Path(os.environ.get("HEADROOM_BUILD", "")) / "bin" / "headroom"


def written(folder: Path, document: dict | str) -> Path:
    file = folder / "run0.json"
    file.write_text(document if isinstance(document, str) else json.dumps(document))
    return file


def refusal(file: Path) -> str:
    with pytest.raises(InputError) as refused:
        read_results([file])
    return str(refused.value)


@pytest.mark.parametrize("name", BAD_FILES)
def test_a_bad_file_is_refused_in_a_line_that_names_the_place(tmp_path, name):
    make, *said = BAD_FILES[name]
    file = written(tmp_path, make())
    line = refusal(file)
    assert line.startswith(f"{file}: ")
    assert said[-1] in line
    assert "\n" not in line


@pytest.mark.skipif(not DRIVER.is_file(), reason="HEADROOM_BUILD names no build")
@pytest.mark.parametrize("name", BAD_FILES)
def test_the_driver_refuses_the_same_files_in_the_same_words(tmp_path, name):
    make, said, *_ = BAD_FILES[name]
    file = written(tmp_path, make())
    done = subprocess.run([DRIVER, "compare", file, file], capture_output=True, text=True, timeout=60)
    assert (done.returncode, done.stdout) == (2, "")
    assert done.stderr.startswith(f"headroom: {file}: ")
    assert said in done.stderr
    assert done.stderr.count("\n") == 1


@pytest.mark.skipif(not DRIVER.is_file(), reason="HEADROOM_BUILD names no build")
def test_both_readers_take_a_byte_order_mark(tmp_path):
    document = small()
    block = {"steps": 50, "device_seconds": 0.02, "wall_seconds": 0.02, "cpu_seconds": 0.01}
    for record in document["records"]:
        record["blocks"] = [{"order": order, **block} for order in range(12)]
    file = tmp_path / "run.json"
    file.write_text(json.dumps(document), encoding="utf-8-sig")
    assert len(read_results([file]).rows) == 3
    done = subprocess.run([DRIVER, "compare", file, file], capture_output=True, text=True, timeout=60)
    assert done.returncode == 0, done.stderr


@pytest.mark.skipif(not DRIVER.is_file(), reason="HEADROOM_BUILD names no build")
@pytest.mark.parametrize(
    "arguments",
    [
        ["compare", "deep.json", "deep.json"],
        ["compare", "--within", "deep.json", "--base-backend", "a", "--head-backend", "b"],
        ["compare", "--save-baseline", "main", "--baselines", "folder", "deep.json"],
        ["run", "--resume", "deep.json"],
        ["run", "--suite", "deep.json"],
    ],
)
def test_every_command_refuses_deep_brackets_in_one_line(tmp_path, arguments):
    (tmp_path / "deep.json").write_text(DEEP)
    environment = os.environ | {"HEADROOM_ROOT": str(ROOT)}
    done = subprocess.run(
        [DRIVER, *arguments], capture_output=True, text=True, cwd=tmp_path, env=environment, timeout=60
    )
    assert (done.returncode, done.stdout, done.stderr.count("\n")) == (2, "", 1), done.stderr
    assert "found brackets more than 64 deep" in done.stderr


def test_text_is_read_without_control_characters(tmp_path):
    document = small()
    document["device"]["name"] = "a \x1b[31mGPU\x00\x7f\x9b\uffff"
    document["records"][0]["message"] = "one\ntwo\tthree"
    results = read_results([written(tmp_path, document)])
    assert results.device == "a \ufffd[31mGPU\ufffd\ufffd\ufffd\ufffd"
    assert results.rows[0].message == "one two three"


def test_a_curve_is_checked_to_its_last_value_though_it_is_long(tmp_path):
    document = small()
    curve = {"seed": 1, "steps": list(range(5000)), "values": [0.5] * 5000, "last_mean": 0.5}
    document["records"][0]["losses"] = [{**curve, "held_out_accuracy": None, "held_out_r_squared": None}]
    assert len(read_results([written(tmp_path, document)]).rows[0].losses[0].values) == 5000
    for values, steps, said in (
        ("0.5", 4999, "values[4999]: expected a number or null"),
        (True, 4999, "values[4999]: expected a number or null"),
        (1e39, 4999, "values[4999]: expected a number or null, at least -3.40282e+38"),
        (0.5, 4999.0, "steps[4999]: expected a whole number"),
        (0.5, 4998, "steps: expected ascending numbers"),
    ):
        curve["values"][4999], curve["steps"][4999] = values, steps
        document["records"][0]["losses"] = [{**curve, "held_out_accuracy": None, "held_out_r_squared": None}]
        assert f"records[0].losses[0].{said}" in refusal(written(tmp_path, document))


def test_a_file_with_a_ladder_of_missing_terms_is_read(tmp_path):
    document = small()
    document["workloads"][0]["ladders"] = {"fp32": [made_up.missing_term("left", "no floor")]}
    assert read_results([written(tmp_path, document)]).workloads[0].ladders["fp32"][0].seconds is None


def test_a_file_of_version_1_is_the_same_file_with_what_was_meant(tmp_path):
    document = made_up.with_losses(small(), seeds=1, steps=3)
    (tmp_path / "old").mkdir()
    new = read_results([written(tmp_path, document)])
    old = read_results([written(tmp_path / "old", made_up.as_version_1(document))])
    assert old.workloads == new.workloads
    assert (old.workloads[0].trained, old.workloads[0].about) == ("", "")
    assert [row.losses for row in old.rows] == [row.losses for row in new.rows]


@pytest.mark.skipif(not DRIVER.is_file(), reason="HEADROOM_BUILD names no build")
def test_the_driver_reads_a_file_of_version_1_too_and_goes_on_in_none(tmp_path):
    document = small()
    block = {"steps": 50, "device_seconds": 0.02, "wall_seconds": 0.02, "cpu_seconds": 0.01}
    for record in document["records"]:
        record["blocks"] = [{"order": order, **block} for order in range(12)]
    new = written(tmp_path, document)
    old = tmp_path / "old.json"
    old.write_text(json.dumps(made_up.as_version_1(document)))
    done = subprocess.run([DRIVER, "compare", old, new], capture_output=True, text=True, timeout=60)
    assert done.returncode == 0, done.stderr
    environment = os.environ | {"HEADROOM_ROOT": str(ROOT)}
    done = subprocess.run(
        [DRIVER, "run", "--resume", old], capture_output=True, text=True, env=environment, timeout=60
    )
    assert (done.returncode, done.stdout, done.stderr.count("\n")) == (2, "", 1), done.stderr
    assert "is of version 1 of the results file" in done.stderr


def test_what_is_trained_is_told_apart(tmp_path):
    document = small()
    fields = {"activation": "tanh", "loss": "mse", "optimizer": made_up.adam(), "about": "a paper"}
    document["workloads"].append(made_up.workload((17, 64, 6), 64, "ppo", **fields))
    document["records"].append(made_up.record("ppo", "cuda-layered"))
    plain, other = sorted(read_results([written(tmp_path, document)]).workloads, key=lambda one: one.name)
    assert (plain.trained, plain.has_own_name) == ("", False)
    assert (other.network, other.has_own_name) == ("17-64-6, batch 64, tanh, mse, adam", True)
    assert other.about == "a paper"


def test_networks_on_several_gpus_are_told_apart_and_make_no_series_with_others(tmp_path):
    from width_series import find_series

    document = small()
    document["workloads"] = [
        made_up.workload(
            (784, width, width, 10), 32, f"mlp-784x{width}x{width}x10-b32{ending}", devices=devices
        )
        for width, ending, devices in ((64, "", 1), (128, "", 1), (256, "-g2", 2), (512, "-g2", 2))
    ]
    document["records"] = [made_up.record(one["name"], "cuda-layered") for one in document["workloads"]]
    workloads = read_results([written(tmp_path, document)]).workloads
    assert sorted(one.network for one in workloads)[2] == "784-512-512-10, batch 32, 2 GPUs"
    assert find_series(workloads) == []
