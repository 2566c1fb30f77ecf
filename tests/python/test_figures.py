"""plots/figures.py as a program, on made-up results: what is drawn, what is said, and how bad input ends."""

import copy
import json
import os
import re
import subprocess
import sys
import tempfile
import xml.etree.ElementTree as ElementTree
from pathlib import Path

import made_up_results as made_up
import numpy as np
import pytest
from plot_programs import BAD_FILES, FIGURES, ROOT, changed, one_line, run, small

pytest.importorskip("matplotlib", reason="matplotlib is not installed")
jsonschema = pytest.importorskip("jsonschema", reason="jsonschema is not installed")

SCHEMA = json.loads((ROOT / "results" / "schema.json").read_text())
SERIES = "784-H-H-H-10-b32"


def drawn(folder: Path, *documents) -> dict[str, str]:
    """Runs the program; name of each figure to all of its text. Checks what holds for every figure."""
    for document in documents:
        errors = [error.message for error in jsonschema.Draft202012Validator(SCHEMA).iter_errors(document)]
        assert errors == [], "the made-up results are not valid themselves"
    done = run(FIGURES, folder, *documents)
    assert done.returncode == 0, done.stderr
    paths = [Path(line) for line in done.stdout.splitlines()]
    files = [path for path in (folder / "figures").iterdir() if path.name != "manifest.json"]
    assert sorted(paths) == sorted(files)
    texts = {}
    for path in paths:
        if path.suffix == ".svg":
            tree = ElementTree.parse(path)  # well formed
            texts[path.stem] = "\n".join(
                "".join(node.itertext()) for node in tree.iter() if node.tag.endswith("}text")
            )
            assert 3000 < path.stat().st_size < 1_000_000
        else:
            assert path.read_bytes().startswith(b"\x89PNG")
            assert 10_000 < path.stat().st_size < 1_000_000
    assert len(paths) == 2 * len(texts)
    return texts


def named_networks(count: int) -> dict:
    """With names of their own: 30 us by a rival, 10 us by ours and 1 us more for each further one."""
    document = made_up.empty_document()
    times = {"pytorch-eager": 2e-3, "pytorch-graph": 30e-6}
    for index in range(count):
        one = made_up.workload((17, 64, 6), name=f"net-{index}")
        document["workloads"].append(one)
        for backend, seconds in {**times, "cuda-tiled": (10 + index) * 1e-6}.items():
            document["records"].append(made_up.record(one["name"], backend, "bf16", seconds))
    return document


def test_networks_with_names_are_one_figure_with_the_rival_over_ours(tmp_path):
    document = named_networks(4)
    assert document["records"][-2]["backend"] == "pytorch-graph"
    document["records"][-2] = made_up.failed(document["records"][-2])
    text = drawn(tmp_path, document)["networks-bf16"]
    ratios = [float(ratio) for ratio in re.findall(r"^([0-9.]+)×$", text, re.MULTILINE)]
    assert ratios == [3.0, 2.7, 2.5]
    assert "no ratio" in text
    assert "No ratio for net-3: pytorch-graph failed verification." in text
    assert "17-64-6, batch 32" in text


def test_three_networks_with_names_are_bars_only(tmp_path):
    assert not any(name.startswith("networks") for name in drawn(tmp_path, named_networks(3)))


def gpus_figure(tmp_path: Path, document: dict) -> str:
    return " ".join(drawn(tmp_path, document)["gpus-bf16"].split())


def lines_of_gpus(tmp_path: Path, document: dict) -> dict:
    """Devices and speed-ups of ours and of the rival for the only network of a document."""
    import several_gpus
    from results_file import read_results

    (tmp_path / "run.json").write_text(json.dumps(document))
    results = read_results([tmp_path / "run.json"])
    (network,) = several_gpus.networks_of(results)
    lines = {side: several_gpus.line_of(results, network, "bf16", side) for side in several_gpus.SIDES}
    return {
        side: {point.devices: pytest.approx(point.speedup) for point in line.points} or line.reason
        for side, line in lines.items()
    }


def test_speed_up_over_gpus_is_samples_per_second_over_the_fastest_row_on_one(tmp_path):
    times = {
        "cuda-resident": {1: 4, 2: 5},
        "cuda-layered": {1: 20, 2: 22, 4: 40},  # the only one of ours on four, and twice as slow there
        "libtorch-expert": {1: 30},
        "pytorch-graph": {1: 33, 2: 40, 4: 60},
    }
    document = made_up.several_gpus(times)
    assert lines_of_gpus(tmp_path, document) == {
        "ours": {1: 1.0, 2: 1.6, 4: 0.4},
        "rival": {1: 1.0, 2: 1.5, 4: 2.0},
    }
    text = gpus_figure(tmp_path, document)
    assert "784-128-128-10, batch 32 ours: cuda-resident, cuda-layered" in text
    assert "rival: libtorch-expert, pytorch-graph" in text
    assert all(
        words in text for words in ("80 %", "75 %", "ours 10 %", "rival 50 %", "ideal", "weak scaling")
    )
    assert made_up.DEVICE in text


def test_on_two_gpus_a_network_of_twice_the_time_or_more_is_below_one(tmp_path):
    import several_gpus
    from results_file import read_results

    document = made_up.several_gpus({"cuda-tiled": {1: 4, 2: 10}, "pytorch-graph": {1: 30, 2: 60}})
    (tmp_path / "run.json").write_text(json.dumps(document))
    (axes,) = several_gpus.draw_several_gpus(read_results([tmp_path / "run.json"]), "bf16").figure.axes
    ends = {line.get_marker(): line.get_ydata()[-1] for line in axes.lines}
    assert (ends["X"], ends["D"]) == (pytest.approx(0.8), pytest.approx(1.0))
    assert axes.get_ylim()[0] < 0.8 and axes.get_ylim()[1] > 2  # the ideal is inside, too


def test_rows_on_gpus_that_failed_or_were_not_verified_count_for_nothing(tmp_path):
    times = {
        "cuda-resident": {1: 4, 2: 5},
        "cuda-layered": {1: 20, 2: 25},
        "pytorch-graph": {1: 33, 2: 40, 4: 50},
        "pytorch-ddp": {4: 90},  # the fastest rival on four that is verified, and perhaps not the fastest
    }
    document = made_up.several_gpus(times)
    by_row = {(one["workload"][-2:], one["backend"]): one for one in document["records"]}
    by_row["g2", "cuda-resident"]["verification"] = {"verdict": "not_run", "checks": []}
    by_row["g4", "pytorch-graph"].update(made_up.failed(by_row["g4", "pytorch-graph"]))
    assert lines_of_gpus(tmp_path, document) == {
        "ours": {1: 1.0, 2: pytest.approx(0.32)},
        "rival": {1: 1.0, 2: 1.65},
    }
    network = "784-128-128-10, batch 32"
    text = gpus_figure(tmp_path, document)
    assert f"No rival's point of {network} on 4 GPUs: pytorch-graph failed verification." in text
    # Nobody knows what the fastest rival on one GPU is, when one of them failed verification.
    by_row["32", "pytorch-graph"].update(made_up.failed(by_row["32", "pytorch-graph"]))
    assert lines_of_gpus(tmp_path, document)["rival"] == "pytorch-graph failed verification"
    assert "rival: pytorch-graph failed verification" in gpus_figure(tmp_path, document)


def test_a_side_without_a_result_on_one_gpu_has_no_line_and_says_so(tmp_path):
    document = made_up.several_gpus({"cuda-resident": {1: 4, 2: 5}, "pytorch-ddp": {2: 40}})
    assert lines_of_gpus(tmp_path, document) == {"ours": {1: 1.0, 2: 1.6}, "rival": "no result on one GPU"}
    assert "rival: no result on one GPU" in gpus_figure(tmp_path, document)


def test_one_number_of_gpus_or_two_files_give_no_figure_over_gpus(tmp_path):
    alone = made_up.several_gpus({"cuda-resident": {1: 4}})
    two = made_up.several_gpus({"cuda-resident": {2: 5}})
    assert not any(name.startswith("gpus") for name in drawn(tmp_path, alone, two))


def test_every_network_on_several_gpus_has_a_panel_of_its_own(tmp_path):
    shapes = tuple((784, width, width, 10) for width in range(64, 64 * 14, 64))
    times = {"cuda-resident": {1: 4, 2: 5}, "pytorch-graph": {1: 33, 2: 40}}
    text = gpus_figure(tmp_path, made_up.several_gpus(times, shapes))
    assert [width for _, width, _, _ in shapes if f"784-{width}-{width}-10, batch 32" not in text] == []
    assert text.count("ours 80 %") == len(shapes)
    assert text.count("ideal") == 2  # in the first panel and in the notes


def test_networks_that_differ_in_more_than_the_number_of_gpus_are_not_compared(tmp_path):
    document = made_up.several_gpus({"cuda-resident": {1: 4, 2: 5}})
    document["workloads"][1]["optimizer"] = made_up.adam()
    assert not any(name.startswith("gpus") for name in drawn(tmp_path, document))


def test_a_width_series_gives_time_and_both_speed_ups(tmp_path):
    texts = drawn(tmp_path, made_up.width_series(3, floors=True))
    time, best, eager = (
        texts[f"{name}-{SERIES}"] for name in ("step-time", "speedup-best-pytorch", "speedup-pytorch-eager")
    )
    for text in (time, best, eager):
        assert made_up.DEVICE in text
        assert "784-H-H-H-10, batch 32" in text
        assert all(f"\n{precision}\n" in text for precision in made_up.PRECISIONS)
        assert all(f"\n{width}\n" in text for width in (128, 256, 512, 1024, 2048, 4096, 8192))
        assert "autocast in fp16, bf16" in text
    assert all(
        word in time for word in ("pytorch-eager", "libtorch-eager", "cuda-layered", "floor", " µs", " ms")
    )
    assert "cuda-layered" in best
    assert "libtorch-eager at every H" in best
    assert all(word in eager for word in ("cuda-layered", "libtorch-eager", "×"))


def test_a_quantity_against_the_width_says_where_no_record_has_it(tmp_path):
    document = made_up.width_series(3, floors=True)
    for record in document["records"]:
        if record["precision"] == "fp32" and record["step_seconds"]:
            record["fraction_of_floor"] = 0.25
            record["joules_per_step"] = None if "x512x" in record["workload"] else 0.01
    texts = drawn(tmp_path, document)
    energy, floor = texts[f"energy-{SERIES}"], texts[f"floor-{SERIES}"]
    absent = "Not in the files: fp32 at H 512; tf32, fp16, bf16 at H 128, 256, 512, 1024, 2048, 4096, 8192."
    assert absent in " ".join(energy.split())
    assert "fp32 at H" not in floor
    assert "\n100 %\n" in floor  # the line that nothing passes is inside the axes


def test_a_single_workload_gives_bars_with_times_and_ratios_of_the_same_precision(tmp_path):
    document = small()
    for record in small("tf32")["records"]:
        record["step_seconds"] = {"median": 1e-5, "low": 1e-5, "high": 1e-5}
        document["records"].append(record)
    (text,) = drawn(tmp_path, document).values()
    assert all(word in text for word in ("40.0 µs", "20× vs best", "25× vs eager", "1.00 ms"))
    assert text.count("1.00× vs eager") == 2  # tf32, where all are equal
    assert "40.0 µs · 20× vs best, 25× vs eager" in text
    assert "rival" not in text  # it is PyTorch
    assert text.count("0.5 ms") == 2  # both panels have their ticks named


def test_without_a_gpu_the_title_names_the_cpu_and_skipped_rows_their_reason(tmp_path):
    document = small(device=None)
    name = document["workloads"][0]["name"]
    document["records"][2] = made_up.record(name, "cuda-layered", "fp32", None)
    document["records"].append(made_up.record(name, "cuda-layered", "bf16", None))
    document["records"].append(made_up.record(name, "oracle", "fp32", 1.0))
    (text,) = drawn(tmp_path, document).values()
    assert "CPU: made-up CPU" in text
    assert "the blocks' time per step" in text
    assert "skipped: no CUDA device" in text
    assert "Skipped: cuda-layered bf16: no CUDA device." in text
    assert "not a competitor" in text


def test_more_than_two_rows_skipped_for_one_reason_are_a_note_and_no_bars(tmp_path):
    document = small(device=None)
    name = document["workloads"][0]["name"]
    backends = ("cuda-layered", "cuda-resident", "cuda-streamed")
    document["records"][2:] = [made_up.record(name, backend, "fp32", None) for backend in backends]
    (text,) = drawn(tmp_path, document).values()
    assert text.count("no CUDA device") == 1
    assert "Skipped: cuda-layered, cuda-resident, cuda-streamed fp32: no CUDA device." in text


@pytest.mark.parametrize("outcome", ["ok", "failed"])
def test_a_failed_verification_is_drawn_as_failed_and_has_no_speed_up(tmp_path, outcome):
    document = small()
    document["records"][2] = {**made_up.failed(document["records"][2]), "outcome": outcome}
    (text,) = drawn(tmp_path, document).values()
    assert "FAILED: step_update of weight1" in text
    assert "Failed" in text
    assert "× vs best" not in text


def test_a_failed_pytorch_row_is_no_baseline(tmp_path):
    document = small()
    document["records"][1] = made_up.failed(document["records"][1])
    (text,) = drawn(tmp_path, document).values()
    assert "no speed-up: libtorch-eager failed verification" in text
    assert "vs best" not in text and "vs eager" not in text
    # One that crashed is named among the failures, and says nothing of the others.
    document["records"][1]["verification"] = {"verdict": "not_run", "checks": []}
    (text,) = drawn(tmp_path, document).values()
    assert "25× vs best" in text


def test_a_width_at_which_a_rival_failed_verification_has_no_speed_up(tmp_path):
    document = made_up.width_series(3, ("fp32",))
    index = next(at for at, one in enumerate(document["records"]) if one["backend"] == "libtorch-eager")
    document["records"][index] = made_up.failed(document["records"][index])
    figures = drawn(tmp_path, document)
    text = " ".join(figures["speedup-best-pytorch-784-H-H-H-10-b32"].split())
    assert "No speed-up, libtorch-eager failed verification: cuda-layered fp32 at H 128." in text


def test_widths_that_are_trained_otherwise_are_a_series_of_their_own(tmp_path):
    document = made_up.empty_document()
    for width in (128, 256, 512):
        plain = made_up.workload((784, width, 10))
        name = f"{plain['name']}-mse-adam"
        other = made_up.workload((784, width, 10), name=name, loss="mse", optimizer=made_up.adam())
        document["workloads"] += [plain, other]
        document["records"] += [made_up.record(plain["name"], "cuda-layered")]
        document["records"] += [made_up.record(name, "cuda-layered")]
    figures = drawn(tmp_path, document)
    text = " ".join(figures["step-time-784-H-10-b32-mse-adam"].split())
    assert "784-H-10, batch 32, mse, adam" in text
    assert "adam" not in figures["step-time-784-H-10-b32"]


def test_the_loss_and_what_is_trained_are_named_where_they_are_no_defaults(tmp_path):
    document = made_up.empty_document()
    fields = {"activation": "tanh", "loss": "mse", "optimizer": made_up.adam()}
    document["workloads"] = [made_up.workload((17, 64, 6), 64, "ppo", **fields)]
    document["records"] = [made_up.record("ppo", "pytorch-eager"), made_up.record("ppo", "cuda-layered")]
    made_up.with_losses(document, seeds=1, steps=200)
    for record in document["records"]:
        record["losses"][0] |= {"held_out_accuracy": None, "held_out_r_squared": 0.75}
    figures = drawn(tmp_path, document)
    assert "17-64-6, batch 64, tanh, mse, adam" in figures["step-time-ppo"]
    assert "mean squared error before each update" in figures["loss-ppo"]
    assert "R² 0.750" in figures["loss-ppo"] and "nats" not in figures["loss-ppo"]


def test_failures_in_a_series_are_named_with_their_width(tmp_path):
    document = made_up.width_series(3, precisions=("fp16",))
    for index, record in enumerate(document["records"]):
        if record["backend"] == "cuda-layered" and "x512x" in record["workload"]:
            document["records"][index] = made_up.failed(record)
        if record["backend"] == "libtorch-eager" and "x8192x" in record["workload"]:
            nothing = {"step_seconds": None, "verification": {"verdict": "not_run", "checks": []}}
            document["records"][index] = {
                **record,
                **nothing,
                "outcome": "failed",
                "message": "out of memory",
            }
    for text in drawn(tmp_path, document).values():
        assert "cuda-layered fp16 (H 512): step_update of weight1" in text
        assert "libtorch-eager fp16 (H 8192): out of memory." in text


def test_skips_that_differ_in_a_name_or_a_number_share_a_line(tmp_path):
    document = made_up.width_series(3, precisions=("fp16",))
    for record in document["records"]:
        if record["backend"] == "cuda-layered" and "x128x" not in record["workload"]:
            nothing = {
                "step_seconds": None,
                "blocks": [],
                "verification": {"verdict": "not_run", "checks": []},
            }
            size = len(record["workload"]) * 1000
            why = f"'{record['workload']}' in fp16 needs {size} bytes"
            record.update(nothing, outcome="skipped", message=why)
    texts = drawn(tmp_path, document)
    del texts[f"step-time-in-short-{SERIES}"]  # it shows no row by name
    for text in texts.values():
        (line,) = (line for line in text.splitlines() if "Skipped: cuda-layered" in line)
        assert "fp16 (H 256, 512" in line
        assert "such reasons" in text


def test_a_record_measured_under_slowdown_is_marked(tmp_path):
    document = small()
    document["records"][2]["slowdown_reasons"] = ["hardware_thermal_slowdown"]
    (text,) = drawn(tmp_path, document).values()
    assert "slowed down: cuda-layered fp32: hardware_thermal_slowdown." in text


def test_a_backend_that_failed_everywhere_is_named_inside_the_figure(tmp_path):
    import scaling
    import width_series
    from results_file import read_results

    document = made_up.width_series(4, precisions=("fp32", "fp16"))
    document["records"] = [
        made_up.failed(record)
        if (record["backend"], record["precision"]) == ("pytorch-graph", "fp16")
        else record
        for record in document["records"]
    ]
    for record in document["records"]:
        record["backend"] = record["backend"].replace("pytorch-graph", "pytorch-compile-graph-of-the-step")
    (tmp_path / "run.json").write_text(json.dumps(document))
    results = read_results([tmp_path / "run.json"])
    (series,) = width_series.find_series(results.workloads)
    page = scaling.draw_step_time(results, series)
    page.figure.draw_without_rendering()
    labels = [text for axes in page.figure.axes for text in axes.texts]
    assert any("(failed)" in label.get_text() for label in labels)
    for label in labels:
        box = label.get_window_extent()
        assert 0 <= box.x0 < box.x1 <= page.figure.bbox.x1, label.get_text()


def test_a_ladder_says_what_is_negative_noise_or_missing(tmp_path):
    document = small()
    document["workloads"][0]["ladders"] = {"fp32": made_up.ladder()}
    text = drawn(tmp_path, document)["ladder-mlp-784x128x10-b32"]
    assert "Where the time of a step goes: mlp-784x128x10-b32" in text
    assert "libtorch-eager to libtorch-graph" in text
    assert all(words in text for words in ("480 µs", "1.00 µs, inside the noise"))
    assert "-12.0 µs, NEGATIVE" in text
    assert "not known: no floor was computed" in text
    assert "Hollow" in text
    assert "Hatched" in text


def test_a_ladder_of_long_steps_has_ticks_without_exponents(tmp_path):
    document = small()
    terms = [term | {"seconds": term["seconds"] and 100 * term["seconds"]} for term in made_up.ladder()]
    document["workloads"][0]["ladders"] = {"fp32": terms}
    text = drawn(tmp_path, document)["ladder-mlp-784x128x10-b32"]
    assert "20000" in text
    assert "e+0" not in text


def test_ladders_of_two_files_are_named_by_file(tmp_path):
    first, second = small(), small("tf32")
    for document in (first, second):
        document["workloads"][0]["ladders"] = {"fp32": made_up.ladder()}
    text = drawn(tmp_path, first, second)["ladder-mlp-784x128x10-b32"]
    assert "fp32 (run0.json)" in text
    assert "fp32 (run1.json)" in text


def test_a_ladder_of_which_nothing_is_known_is_not_drawn(tmp_path):
    document = small()
    document["workloads"][0]["ladders"] = {"fp32": [made_up.missing_term("python", "no row")]}
    assert list(drawn(tmp_path, document)) == ["step-time-mlp-784x128x10-b32"]


def test_rows_that_were_not_verified_say_so(tmp_path):
    document = small()
    document["records"][2]["verification"] = {"verdict": "not_run", "checks": []}
    (text,) = drawn(tmp_path, document).values()
    assert "Not verified (hollow): cuda-layered fp32." in text


def test_loss_curves_have_a_panel_a_precision_and_the_difference_to_eager(tmp_path):
    document = small()
    document["records"] += small("bf16")["records"]
    made_up.with_losses(document, seeds=3, steps=800)
    texts = drawn(tmp_path, document)
    text = texts["loss-mlp-784x128x10-b32"]
    assert all(
        word in text for word in ("\nfp32\n", "\nbf16\n", "loss (nats)", "difference to", "training step")
    )
    assert all(word in text for word in ("cuda-layered", "seeds 1, 2, 3", "92.0 %", made_up.DEVICE))


def test_seeds_are_named_for_each_precision_where_they_differ(tmp_path):
    document, other = made_up.with_losses(small(), seeds=2, steps=300), small("bf16")
    document["records"] += made_up.with_losses(other, seeds=1, steps=300)["records"]
    text = drawn(tmp_path, document)["loss-mlp-784x128x10-b32"]
    assert "seeds 1, 2 (fp32), seed 1 (bf16); bands" in text


def test_losses_that_are_not_finite_and_lonely_seeds_are_shown(tmp_path):
    document = made_up.with_losses(small(), seeds=2, steps=300)
    document["records"][2]["losses"][0]["values"][50] = None
    document["records"][2]["losses"][0]["last_mean"] = None
    document["records"][1]["losses"][0]["seed"] = 77
    text = drawn(tmp_path, document)["loss-mlp-784x128x10-b32"]
    assert "Loss not finite: cuda-layered fp32" in text
    assert "77" in text


def test_a_curve_that_differs_is_said_beside_the_curves(tmp_path):
    document = made_up.with_losses(small(), steps=300)
    check = {
        "name": "curve",
        "tensor": "",
        "steps": [],
        "error": 0.02,
        "worst": 0.03,
        "bound": 5e-3,
        "passed": False,
    }
    document["records"][2]["verification"]["checks"].append(check)
    document["records"][2]["message"] = "the loss differs by 2 %"
    text = drawn(tmp_path, document)["loss-mlp-784x128x10-b32"]
    assert "Curve check not passed: cuda-layered fp32: the loss differs by 2 %" in text


def test_losses_without_eager_fp32_have_no_difference(tmp_path):
    document = made_up.with_losses(small("bf16"), steps=300)
    text = drawn(tmp_path, document)["loss-mlp-784x128x10-b32"]
    assert "No difference is drawn" in text


def test_names_are_text_and_never_markup_or_paths(tmp_path):
    document = small()
    evil = '<script>alert("1")</script> $x_1$ & ../../etc'
    document["workloads"][0]["name"] = evil
    for record in document["records"]:
        record["workload"] = evil
    document["records"][2]["backend"] = "<b>cuda</b>"
    document["records"][1]["message"] = "<i>note</i>"
    texts = drawn(tmp_path, document)
    ((name, text),) = texts.items()
    assert evil in text
    assert "<b>cuda</b>" in text
    assert "/" not in name
    assert "<script" not in (tmp_path / "figures" / f"{name}.svg").read_text()


def test_unknown_backends_and_ten_lines_are_drawn(tmp_path):
    document = made_up.width_series(10, precisions=("tf32",))
    for record in document["records"]:
        record["backend"] = record["backend"].replace("cublaslt-graph", "another-graph")
    texts = drawn(tmp_path, document)
    assert "another-graph" in texts[f"step-time-{SERIES}"]
    assert all(backend in texts[f"step-time-{SERIES}"] for backend in ("pytorch-compile", "cuda-resident"))


def test_the_same_input_gives_the_same_bytes(tmp_path):
    document = made_up.with_losses(small(), steps=200)
    for folder in ("first", "second"):
        assert run(FIGURES, tmp_path, document, output=folder).returncode == 0
    for path in (tmp_path / "first").iterdir():
        assert path.read_bytes() == (tmp_path / "second" / path.name).read_bytes(), path.name


def test_parts_of_a_suite_make_one_series_but_speed_ups_stay_inside_a_file(tmp_path):
    whole = made_up.width_series(3, precisions=("fp32",))
    first, second = copy.deepcopy(whole), copy.deepcopy(whole)
    names = [entry["name"] for entry in whole["workloads"]]
    for document, kept in ((first, names[:4]), (second, names[4:])):
        document["workloads"] = [entry for entry in document["workloads"] if entry["name"] in kept]
        document["records"] = [entry for entry in document["records"] if entry["workload"] in kept]
    second["records"] = [entry for entry in second["records"] if "torch" not in entry["backend"]]
    texts = drawn(tmp_path, first, second)
    assert "\n8192\n" in texts[f"step-time-{SERIES}"]
    assert (
        "its baseline has no result: cuda-layered fp32 at H 2048" in texts[f"speedup-best-pytorch-{SERIES}"]
    )


def test_an_interrupted_run_is_called_partial(tmp_path):
    document = small()
    document["run"].update(complete=False, finished_utc=None)
    (text,) = drawn(tmp_path, document).values()
    assert "Partial: the run of run0.json did not finish." in text


def test_only_skipped_records_are_said_and_not_drawn(tmp_path):
    document = small()
    name = document["workloads"][0]["name"]
    document["records"] = [made_up.record(name, "cuda-layered", "fp32", None)]
    done = run(FIGURES, tmp_path, document)
    assert done.returncode == 0
    assert "not drawn" in one_line(done)
    document["records"] = []
    assert "no records" in one_line(run(FIGURES, tmp_path, document))


def test_a_bad_file_is_refused_before_anything_is_written(tmp_path):
    make, words = BAD_FILES["null median"]
    done = run(FIGURES, tmp_path, make())
    assert done.returncode == 2
    line = one_line(done)
    assert words in line
    assert "run0.json" in line
    assert not (tmp_path / "figures").exists()


def test_bad_combinations_of_files(tmp_path):
    done = run(FIGURES, tmp_path, small(), small(device="another GPU"))
    assert (done.returncode, "another GPU" in one_line(done)) == (2, True)
    done = run(FIGURES, tmp_path, small(), small())
    assert (done.returncode, "is already in" in one_line(done)) == (2, True)
    done = run(FIGURES, tmp_path, small(), changed("workloads.0.batch_size", 64))
    assert (done.returncode, "is another workload in" in one_line(done)) == (2, True)


def test_a_missing_file_and_an_output_that_cannot_be_written(tmp_path):
    arguments = [sys.executable, str(FIGURES), str(tmp_path / "none.json"), "-o", str(tmp_path / "out")]
    done = subprocess.run(arguments, capture_output=True, text=True)
    assert (done.returncode, "none.json: cannot be read" in one_line(done)) == (2, True)
    (tmp_path / "taken").write_text("a file")
    done = run(FIGURES, tmp_path, small(), output="taken")
    assert (done.returncode, "taken: cannot be written" in one_line(done)) == (2, True)


@pytest.mark.skipif(os.geteuid() == 0, reason="root writes everywhere")
def test_a_folder_without_permission(tmp_path):
    (tmp_path / "locked").mkdir(mode=0o500)
    done = run(FIGURES, tmp_path, small(), output="locked")
    assert (done.returncode, "cannot be written" in one_line(done)) == (2, True)


def test_a_figure_that_somebody_else_made_is_not_replaced(tmp_path):
    mine = tmp_path / "figures/step-time-mlp-784x128x10-b32.svg"
    mine.parent.mkdir()
    mine.write_text("<svg/>")
    done = run(FIGURES, tmp_path, small())
    assert (done.returncode, f"{mine.name}: is there and not in a manifest.json" in one_line(done)) == (
        2,
        True,
    )
    assert [path.name for path in mine.parent.iterdir()] == [mine.name]
    assert mine.read_text() == "<svg/>"


def test_without_matplotlib_it_says_so_and_exits_3(tmp_path):
    done = run(FIGURES, tmp_path, small(), prelude="sys.modules['matplotlib'] = None")
    assert (done.returncode, "matplotlib" in one_line(done)) == (3, True)


def test_without_jsonschema_it_says_so_and_exits_3(tmp_path):
    done = run(FIGURES, tmp_path, small(), prelude="sys.modules['jsonschema'] = None")
    assert (done.returncode, "jsonschema" in one_line(done)) == (3, True)


def test_labels_are_spread_without_overlap_and_stay_in_order():
    from line_labels import spread

    random = np.random.default_rng()
    for _ in range(200):
        count = int(random.integers(1, 11))
        wanted = np.sort(random.uniform(0, 300, count)).tolist()
        placed = spread(wanted, 11.0, 0.0, 300.0)
        assert np.all(np.diff(placed) >= 11.0 - 1e-9), wanted
        assert min(placed) >= -1e-9, wanted
        assert max(placed) <= 300 + 1e-9, wanted
    assert spread([10.0, 50.0], 11.0, 0.0, 100.0) == [10.0, 50.0]


def test_numbers_are_written_as_a_reader_expects():
    from style import format_ratio, format_seconds

    seconds = {
        1.5: "1.50 s",
        1e-3: "1.00 ms",
        0.9999e-3: "1.00 ms",
        123.4e-6: "123 µs",
        24e-6: "24.0 µs",
        5e-7: "500 ns",
    }
    assert {value: format_seconds(value) for value in seconds} == seconds
    ratios = {
        0.5: "0.50×",
        1.0: "1.00×",
        1.18: "1.18×",
        1.97: "2.0×",
        8.14: "8.1×",
        23.4: "23×",
        167.2: "167×",
    }
    assert {value: format_ratio(value) for value in ratios} == ratios


def test_the_example_of_the_schema_is_drawn(tmp_path):
    example = json.loads((Path(__file__).parent / "data" / "example-results.json").read_text())
    texts = drawn(tmp_path, example)
    assert "FAILED: verification failed: step_update of bias1" in texts["step-time-mlp-784x128x10-b32"]


def test_a_wide_interval_does_not_hide_the_time(tmp_path):
    document = small()
    document["records"][0]["step_seconds"]["high"] = 9e-3
    name = document["workloads"][0]["name"]
    document["records"].append(made_up.record(name, "oracle", "fp32", 1.6e-3))
    (text,) = drawn(tmp_path, document).values()
    assert all(word in text for word in ("1.00 ms", "800 µs", "40.0 µs", "1.60 ms"))


def of_plane(document):
    """Results of one made-up document, and its only plane."""
    import plane
    from results_file import read_results

    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "plane.json"
        path.write_text(json.dumps(document))
        results = read_results([path])
    (found,) = plane.find_planes(results.workloads)
    return results, found


SMALL_PLANE = {"widths": (64, 128, 256), "batches": (32, 64, 256), "precisions": ("bf16",)}


def test_a_plane_gives_a_map_of_ratios_and_one_of_floors_and_no_figure_for_each_cell(tmp_path):
    document = made_up.plane(**SMALL_PLANE)
    texts = drawn(tmp_path, document)
    assert set(texts) == {"plane-rival-784-H-H-H-10", "plane-floor-784-H-H-H-10"}
    ratios, floors = texts["plane-rival-784-H-H-H-10"], texts["plane-floor-784-H-H-H-10"]
    for text in (ratios, floors):
        assert "784-H-H-H-10" in text and made_up.DEVICE in text
        assert all(f"\n{number}\n" in text for number in (64, 128, 256, 32))
        assert "■ cuda-resident" in text and "▲ cuda-streamed" in text and "cuda-layered" not in text
    times = {row["backend"]: row["step_seconds"]["median"] for row in document["records"][:3]}
    assert f"\n{times['cublaslt-graph'] / times['cuda']:.2f}\n" in ratios  # the faster rival
    shares = [row["fraction_of_floor"] for row in document["records"] if row["backend"] == "cuda"]
    assert all(f"{100 * share:.0f} %" in floors for share in shares)


def test_cells_of_a_plane_that_were_not_measured_are_empty_and_those_without_a_number_have_a_dash(tmp_path):
    document = made_up.plane(**SMALL_PLANE)
    whole = drawn(tmp_path, document)["plane-rival-784-H-H-H-10"]
    gone, refuted = "mlp-784x64x64x64x10-b32", "mlp-784x128x128x128x10-b32"
    document["workloads"] = [one for one in document["workloads"] if one["name"] != gone]
    document["records"] = [one for one in document["records"] if one["workload"] != gone]
    for index, one in enumerate(document["records"]):
        if (one["workload"], one["backend"]) == (refuted, "cublaslt-graph"):
            document["records"][index] = made_up.failed(one)
    fewer = drawn(tmp_path, document)["plane-rival-784-H-H-H-10"]

    def numbers(text):
        return sum(line.replace(".", "").isdigit() and "." in line for line in text.splitlines())

    assert numbers(whole) == 9
    assert numbers(fewer) == 7
    assert fewer.splitlines().count("–") == 1
    assert "In cells with a dash: cublaslt-graph failed verification." in fewer


def test_three_widths_and_three_batches_make_a_plane_and_fewer_do_not():
    import plane

    for widths, batches in (((64, 128, 256), (1, 2)), ((64, 128), (1, 2, 3))):
        with pytest.raises(ValueError, match="not enough values to unpack"):
            of_plane(made_up.plane(widths=widths, batches=batches))
    results, found = of_plane(made_up.plane(**SMALL_PLANE))
    assert found.widths == [64, 128, 256] and found.batches == [32, 64, 256]
    assert {cell.ours.taken for cell in plane.grids_of(results, found)["bf16"].values()} == {
        "cuda-resident",
        "cuda-streamed",
        "cuda-tiled",
        "cuda-fused",
    }


def test_cliffs_are_neighbours_whose_time_grows_far_more_than_their_work():
    import plane

    document = made_up.plane(**SMALL_PLANE)

    def set_time(name, seconds):
        for one in document["records"]:
            if one["workload"] == name and one["backend"] == "cuda":
                one["step_seconds"] = dict.fromkeys(("median", "low", "high"), seconds)

    for one in document["workloads"]:
        set_time(one["name"], 1e-5)
    assert plane.cliffs(of_plane(document)[0]) == []
    # Twice the work from batch 32 to 64: 2.4 times the time is no cliff, 2.5 times is one.
    set_time("mlp-784x64x64x64x10-b64", 2.4e-5)
    assert plane.cliffs(of_plane(document)[0]) == []
    set_time("mlp-784x64x64x64x10-b64", 2.5e-5)
    (cliff,) = plane.cliffs(of_plane(document)[0])
    assert str(cliff) == (
        "bf16 784x64x64x64x10-b32 (cuda-resident) to 784x64x64x64x10-b64 (cuda-streamed):"
        " 2.5 times the time for 2 times the work"
    )


def test_a_cell_is_lost_where_the_whole_interval_is_a_loss():
    import plane

    document = made_up.plane(**SMALL_PLANE)
    name = "mlp-784x64x64x64x10-b32"
    for median, lost in ((3.3e-5, True), (3.05e-5, False)):
        for one in document["records"]:
            if one["workload"] != name:
                continue
            middle = {"cuda": median, "cublaslt-graph": 3e-5, "pytorch-graph": 5e-5}[one["backend"]]
            one["step_seconds"] = {"median": middle, "low": 0.99 * middle, "high": 1.01 * middle}
        (cell,) = plane.close_cells(of_plane(document)[0])
        assert cell.workload.name == name
        assert plane.is_lost(cell) is lost
        assert ("lost" in plane.close_text(cell)) is lost
