"""`headroom compare` of two builds: real processes over the worker protocol, with made-up times."""

import json
import re
import signal
import time

import pytest
from compared import (
    ROOT,
    SECOND,
    SMALL,
    assert_refused,
    build_with,
    compare,
    compare_builds,
    finish,
    of_builds,
    start,
)

jsonschema = pytest.importorskip("jsonschema", reason="jsonschema is not installed")
VALIDATOR = jsonschema.Draft202012Validator(
    json.loads((ROOT / "results" / "compare.schema.json").read_text())
)
QUIET = "step_us=30 process_sd=0.001 block_sd=0.001"

# Speaks no version that this driver knows, as a base from long ago would.
OLD_WORKER = """#!/usr/bin/env python3
import json, sys
for line in sys.stdin:
    message = "asked for version 1 of the worker protocol, worker cuda speaks version 0"
    answer = {"id": json.loads(line)["id"], "ok": False, "error": {"kind": "input", "message": message}}
    print(json.dumps(answer), flush=True)
"""


@pytest.fixture
def build(tmp_path):
    return lambda name, times=QUIET, **more: build_with(tmp_path / name, times, **more)


def read_json(done):
    comparison = json.loads(done.stdout)
    VALIDATOR.validate(comparison)
    return comparison


@pytest.mark.parametrize(
    ("slowdown", "verdict", "code"),
    [(1.0, "equivalent", 0), (1.03, "regression", 1), (1.05, "regression", 1), (0.9, "improvement", 0)],
)
def test_verdict_and_exit_code(build, slowdown, verdict, code):
    done = compare_builds(build("base"), build("head", f"{QUIET} slowdown={slowdown}"), "--json")
    assert done.returncode == code, done.stderr
    comparison = read_json(done)
    (cell,) = comparison["cells"]
    assert cell["verdict"] == verdict
    assert cell["finding"]["ratio"] == pytest.approx(slowdown, rel=0.005)
    assert comparison["kind"] == "builds"
    assert comparison["rule"]["widened_by"] == 0


def test_pairs_are_balanced_and_from_fresh_processes(build):
    done = compare_builds(build("base"), build("head"), "--json", "--launches", 4, "--pairs", 6)
    (cell,) = read_json(done)["cells"]
    pairs = cell["pairs"]
    assert [pair["processes"] for pair in pairs] == [i // 6 for i in range(24)]
    for i in range(0, 24, 2):  # one of each two pairs has head first
        assert {pairs[i]["first"], pairs[i + 1]["first"]} == {"base", "head"}
    assert len({pair["base_steps"] for pair in pairs}) == 1
    assert all(pair["base_steps"] == pair["head_steps"] for pair in pairs)
    assert all(pair["base_step_seconds"] * pair["base_steps"] >= 0.0039 for pair in pairs)
    # Every process has drawn a speed of its own.
    assert len({round(pair["base_step_seconds"] * 1e9) for pair in pairs}) > 3


def test_what_stays_unclear_gets_one_more_round_and_is_exit_code_3(build):
    noisy = "step_us=30 block_sd=0.2"  # with seeds: luck would call one comparison in a hundred clear
    done = compare_builds(build("base", f"{noisy} seed=1"), build("head", f"{noisy} seed=2"), "--json")
    (cell,) = read_json(done)["cells"]
    assert done.returncode == 3
    assert cell["verdict"] == "inconclusive"
    assert cell["rounds"] == 2
    assert len(cell["pairs"]) == 24
    assert {pair["processes"] for pair in cell["pairs"]} == set(range(6))


def test_several_cells_are_judged_together(build):
    done = compare_builds(
        build("base"),
        build("head", f"{QUIET} slowdown=1.06"),
        "--json",
        "--precision",
        "fp32,bf16",
        workloads=f"{SMALL},{SECOND}",
        backends="cuda-layered,cuda-resident",
    )
    comparison = read_json(done)
    assert len(comparison["cells"]) == 8
    assert {cell["verdict"] for cell in comparison["cells"]} == {"regression"}
    assert {cell["finding"]["level"] for cell in comparison["cells"]} == {0.005}  # Holm: all rejected


@pytest.mark.parametrize("after", [1, 14, 25])
def test_head_that_dies_fails_its_cell_and_the_rest_is_reported(build, after):
    head = build("head", f"{QUIET} dies_after={after}")
    done = compare_builds(build("base"), head, "--json", workloads=f"{SMALL},{SECOND}")
    assert done.returncode == 1, done.stderr
    cells = read_json(done)["cells"]
    assert len(cells) == 2
    dead = [cell for cell in cells if cell["verdict"] == "failed"]
    assert dead and "Aborted" in dead[0]["message"] and "head: " in dead[0]["message"]


def test_a_worker_that_dies_in_one_cell_leaves_the_others(build, tmp_path):
    """One backend fails whatever it is asked; the other one is measured in the same comparison."""
    head = build("head")
    worker = head / "bin" / "headroom-cuda-worker"
    done = compare_builds(build("base"), head, "--json", backends="cuda-layered,cuda-resident")
    assert done.returncode == 0
    worker.write_text(worker.read_text().replace(QUIET, f"{QUIET} lacks=cuda-resident"))
    done = compare_builds(tmp_path / "base", head, "--json", backends="cuda-layered,cuda-resident")
    assert done.returncode == 1
    verdicts = {cell["head_backend"]: cell["verdict"] for cell in read_json(done)["cells"]}
    assert verdicts == {"cuda-layered": "equivalent", "cuda-resident": "missing"}
    # The other way round it is new, and no reason to fail.
    done = compare_builds(head, tmp_path / "base", "--json", backends="cuda-layered,cuda-resident")
    assert done.returncode == 0
    verdicts = {cell["head_backend"]: cell["verdict"] for cell in read_json(done)["cells"]}
    assert verdicts == {"cuda-layered": "equivalent", "cuda-resident": "new"}


def test_head_that_trains_wrongly_fails_verification(build):
    done = compare_builds(build("base"), build("head", f"{QUIET} learning_rate=wrong slowdown=0.5"), "--json")
    assert done.returncode == 1
    (cell,) = read_json(done)["cells"]
    assert cell["verdict"] == "failed"
    assert "verification" in cell["message"]


def test_head_that_fails_a_call(build):
    done = compare_builds(build("base"), build("head", f"{QUIET} fails_after=14"))
    assert done.returncode == 1
    assert "FAILED: head: timing: the made-up kernel failed" in done.stdout


def test_base_that_fails_leaves_nothing_to_say(build):
    """Not a regression, but no pass either."""
    base = build("base", f"{QUIET} fails_after=14")
    done = compare_builds(base, build("head"), "--json")
    assert done.returncode == 3
    (cell,) = read_json(done)["cells"]
    assert cell["verdict"] == "base failed"
    assert cell["message"] == "base: timing: the made-up kernel failed"
    both = compare_builds(
        build("a", f"{QUIET} fails_after=3"), build("b", f"{QUIET} fails_after=3"), "--json"
    )
    assert both.returncode == 1
    assert read_json(both)["cells"][0]["verdict"] == "failed"


def test_new_cell_that_does_not_work_is_a_failure(build):
    base = build("base", f"{QUIET} lacks=cuda-resident")
    head = build("head", f"{QUIET} learning_rate=wrong")
    done = compare_builds(base, head, "--json", backends="cuda-resident")
    assert done.returncode == 1
    assert read_json(done)["cells"][0]["verdict"] == "failed"


def test_nothing_on_both_sides_is_an_error(build):
    lacking = f"{QUIET} lacks=cuda-resident"
    done = compare_builds(build("base", lacking), build("head", lacking), backends="cuda-resident")
    assert_refused(done, "unknown backend 'cuda-resident'", "did you mean 'cuda-layered'")
    done = compare_builds(build("old", lacking), build("new"), backends="cuda-resident")
    assert_refused(done, "can be compared")


@pytest.mark.parametrize("old", ["base", "head"])
def test_another_protocol_is_exit_code_4(build, old):
    sides = {side: build(side, program=OLD_WORKER if side == old else None) for side in ("base", "head")}
    done = compare_builds(sides["base"], sides["head"])
    assert_refused(done, f"{old} is not comparable", "worker cuda speaks version 0", code=4)


def test_program_that_is_no_worker_is_a_failed_cell(build):
    done = compare_builds(build("base"), build("head", program="#!/bin/sh\necho hello\n"), "--json")
    assert done.returncode == 1
    assert read_json(done)["cells"][0]["verdict"] == "failed"


def test_folder_that_is_no_build_is_refused(build, tmp_path):
    (tmp_path / "empty" / "bin").mkdir(parents=True)
    done = compare_builds(tmp_path / "empty", build("head"))
    assert_refused(done, "--base", "there is no bin/headroom-cuda-worker in it")


def test_self_check_says_what_can_be_seen(build):
    arguments = ["--self-check", "--workload", SMALL, "--backend", "cuda-layered", "--device", "-1"]
    done = compare(*arguments, "--head", build("one"))
    assert done.returncode == 0, done.stderr
    (seen,) = re.findall(
        r"a slowdown of ([0-9.]+) % in any of these cells would have been called", done.stdout
    )
    assert 2 <= float(seen) < 4
    noisy = compare(*arguments, "--head", build("noisy", "step_us=30 block_sd=0.1"), "--json")
    quiet = compare(*arguments, "--head", build("quiet"), "--json")
    visible = [read_json(done)["cells"][0]["finding"]["visible_slowdown"] for done in (quiet, noisy)]
    assert 1.02 <= visible[0] < visible[1]


def test_self_check_repeats_and_writes_each(build, tmp_path):
    done = compare(
        *("--self-check", "--workload", SMALL, "--backend", "cuda-layered", "--device", "-1"),
        *("--head", build("one"), "--repeat", 3, "--output", tmp_path / "all.jsonl", "--format", "markdown"),
    )
    assert done.returncode == 0
    assert done.stdout.count("### Step time: No regression") == 3
    lines = (tmp_path / "all.jsonl").read_text().splitlines()
    assert len(lines) == 3
    for line in lines:
        VALIDATOR.validate(json.loads(line))


def test_a_delay_that_the_worker_does_not_plant_is_refused(build):
    done = compare(
        *("--self-check", "--workload", SMALL, "--backend", "cuda-layered", "--device", "-1"),
        *("--head", build("one"), "--plant", 3),
    )
    assert_refused(done, "--plant: cuda-layered does not know how to wait inside a step")


def test_ctrl_c_ends_it_in_order(build):
    process = start(*of_builds(build("base"), build("head")), "--launches", 100, "--pairs", 100)
    assert "round 1" in process.stderr.readline()
    time.sleep(0.5)
    process.send_signal(signal.SIGINT)
    done = finish(process, timeout=20)  # also looks for what was left behind
    assert done.returncode == 130
    assert done.stdout == ""


def targets(*arguments):
    """What the front door asks before it builds anything."""
    return compare("--print-targets", "--base", "main", *arguments)


def test_targets_for_the_front_door():
    done = targets()
    if done.returncode == 0:
        assert done.stdout == "headroom-cuda-worker\n"
    else:
        assert_refused(done, "no CUDA device")
    done = targets("--backend", "cuda-layered,oracle,cublaslt-graph")
    assert done.stdout.split() == [
        "headroom-oracle-worker",
        "headroom-cuda-worker",
        "headroom-cublaslt-worker",
    ]
    assert_refused(targets("--backend", "pytorch-eager,oracle"), "is not a program of a build")


def test_without_a_device_nothing_is_built_for_backends_that_need_one():
    assert_refused(targets("--device", "-1"), "no CUDA device, and every backend")
    assert_refused(targets("--device", "-1", "--backend", "cuda-layered"), "no CUDA")


@pytest.mark.parametrize(
    "arguments, reason",
    [
        (("--backend", "oracl"), "did you mean 'oracle'?"),
        (("--workload", "mlp-1x"), "mlp-1x"),
        (("--launches", "1", "--pairs", "1"), "that makes 1 pairs a round"),
        (("--repeat", "2"), "--repeat and --plant go with --self-check"),
        (("--self-check",), "two different comparisons"),
        (("--output", "/nowhere/a.json"), "cannot be written"),
    ],
)
def test_nothing_is_built_for_a_comparison_that_cannot_be(arguments, reason):
    assert_refused(targets("--backend", "oracle", *arguments), reason)


def test_ci_suite_is_small():
    suite = json.loads((ROOT / "bench" / "suites" / "ci.json").read_text())
    cells = sum(
        len(one.get("precisions", suite["precisions"])) * len(one.get("backends", suite["backends"]))
        for one in suite["workloads"]
    )
    assert 1 <= cells <= 8
    backends = {name for one in (suite, *suite["workloads"]) for name in one.get("backends", [])}
    assert all(name.startswith("cuda-") for name in backends)


def test_ci_suite_has_every_strategy_and_adam():
    suite = json.loads((ROOT / "bench" / "suites" / "ci.json").read_text())
    backends = {name for one in suite["workloads"] for name in one.get("backends", suite["backends"])}
    strategies = {"cuda-layered", "cuda-resident", "cuda-streamed", "cuda-fused", "cuda-tiled"}
    assert backends == strategies
    assert any(one.get("optimizer") == "adam" for one in suite["workloads"])


def test_builds_whose_cuda_took_the_same_are_compared(tmp_path):
    base = build_with(tmp_path / "base", "step_us=30 takes=cuda-resident")
    head = build_with(tmp_path / "head", "step_us=30 takes=cuda-resident")
    done = compare_builds(base, head, "--json", backends="cuda")
    assert done.returncode == 0, done.stdout + done.stderr
    assert [cell["verdict"] for cell in json.loads(done.stdout)["cells"]] == ["equivalent"]


def test_builds_whose_cuda_took_another_are_not_comparable(tmp_path):
    base = build_with(tmp_path / "base", "step_us=30 takes=cuda-resident")
    head = build_with(tmp_path / "head", "step_us=30 takes=cuda-layered")
    done = compare_builds(base, head, "--json", backends="cuda,cuda-layered")
    assert done.returncode == 4, done.stdout + done.stderr
    comparison = json.loads(done.stdout)
    assert comparison["verdict"] == "not_comparable"
    by_backend = {cell["head_backend"]: cell for cell in comparison["cells"]}
    said = "base took cuda-resident, head took cuda-layered; compare these with --backend"
    assert by_backend["cuda"]["verdict"] == "chose otherwise"
    assert by_backend["cuda"]["message"] == said
    assert by_backend["cuda-layered"]["verdict"] == "equivalent"
    text = compare_builds(base, head, backends="cuda").stdout
    assert "Not comparable: 1 chose otherwise" in text and said in " ".join(text.split())
