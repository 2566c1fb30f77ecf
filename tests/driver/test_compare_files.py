"""`headroom compare` over results files: verdicts, SciPy's opinion of them, what is refused, baselines."""

import json
import math
import random

import pytest
from compared import ROOT, assert_refused, compare, record, results, write

jsonschema = pytest.importorskip("jsonschema", reason="jsonschema is not installed")
VALIDATOR = jsonschema.Draft202012Validator(
    json.loads((ROOT / "results" / "compare.schema.json").read_text())
)


ADAM = {"kind": "adam", "learning_rate": 1e-3, "beta1": 0.9, "beta2": 0.999, "epsilon": 1e-8}


def steps(scale=1.0, seed=0, count=12, noise=0.001, step=40e-6):
    made = random.Random(seed)
    return [step * scale * math.exp(made.gauss(0, noise)) for _ in range(count)]


@pytest.fixture
def files(tmp_path):
    """Writes base.json and head.json of these records; returns their paths."""

    def make(base, head, change_head=None):
        head_results = results(head)
        if change_head:
            change_head(head_results)
        return write(tmp_path / "base.json", results(base)), write(tmp_path / "head.json", head_results)

    return make


def read_json(done):
    comparison = json.loads(done.stdout)
    VALIDATOR.validate(comparison)
    return comparison


def cells_of(done):
    return {
        f"{cell['workload']}/{cell['head_backend']}/{cell['precision']}": cell
        for cell in read_json(done)["cells"]
    }


@pytest.mark.parametrize(
    ("scale", "verdict", "code"),
    [(1.0, "equivalent", 0), (1.08, "regression", 1), (0.9, "improvement", 0)],
)
def test_verdict_and_exit_code(files, scale, verdict, code):
    done = compare(*files([record(steps())], [record(steps(scale, 1))]), "--json")
    assert done.returncode == code, done.stderr
    (cell,) = read_json(done)["cells"]
    assert cell["verdict"] == verdict
    assert cell["finding"]["ratio"] == pytest.approx(scale, rel=0.003)


def test_cannot_tell_is_exit_code_3(files):
    done = compare(*files([record(steps(noise=0.05))], [record(steps(1.05, 1, noise=0.05))]))
    assert done.returncode == 3
    assert "Inconclusive: 1 inconclusive" in done.stdout


def test_tolerance_is_widened_and_said(files):
    done = compare(*files([record(steps())], [record(steps(1.03, 1))]), "--json")
    rule = read_json(done)["rule"]
    assert rule["widened_by"] > 0
    assert rule["tolerance"] == pytest.approx(1.02 * (1 + rule["widened_by"]) - 1)
    text = compare(*files([record(steps())], [record(steps(1.03, 1))])).stdout
    assert "widened by" in text and "not measured together" in text


def test_failed_missing_and_new_cells(files):
    gone = {"outcome": "skipped", "message": "no such device", "blocks": [], "step_seconds": None}
    failed = {"outcome": "failed", "message": "verification: step_update of weight1"}
    base = [
        record(steps(), backend="cuda-layered"),
        record(steps(), backend="cuda-resident"),
        record(steps(), backend="cuda", **gone),
        record(steps(), backend="cuda-fused"),
        record(steps(), backend="cuda-gemm", **gone),
        record(steps(), backend="cublaslt-graph", **failed),
    ]
    head = [
        record(steps(), backend="cuda-layered", **failed),
        record(steps(), backend="cuda", precision="fp32"),
        record(steps(), backend="cuda-streamed"),
        record(steps(), backend="cuda-fused"),
        record(steps(), backend="cuda-gemm", **gone),
        record(steps(), backend="cublaslt-graph"),
    ]
    for one in (*base, *head):
        if one["outcome"] == "skipped":
            one["verification"] = {"verdict": "not_run", "checks": []}
    done = compare(*files(base, head), "--json")
    assert done.returncode == 1, done.stderr
    verdicts = {name.split("/")[1]: cell["verdict"] for name, cell in cells_of(done).items()}
    assert verdicts == {
        "cuda-layered": "failed",
        "cuda-resident": "missing",
        "cuda": "new",
        "cuda-streamed": "new",
        "cuda-fused": "equivalent",
        "cuda-gemm": "skipped",
        "cublaslt-graph": "base failed",
    }
    assert compare(*files(base[5:], head[5:])).returncode == 3
    # Whatever the rest says, a cell that failed alone is enough.
    assert compare(*files(base[:1], head[:1])).returncode == 1


def test_files_whose_cuda_took_another_backend_are_not_comparable(files):
    def took(backend):
        return {"bf16": {"cuda": {"taken": backend, "kept": False, "candidates": []}}}

    def differs(head):
        head["workloads"][0]["choices"] = took("cuda-tiled")

    records = [record(steps(), backend="cuda", precision="bf16"), record(steps(), precision="bf16")]
    base, head = files(records, records, differs)
    # A file from before there were choices says nothing of them.
    assert compare(base, head).returncode == 0
    document = json.loads(base.read_text())
    document["workloads"][0]["choices"] = took("cuda-tiled")
    write(base, document)
    assert compare(base, head).returncode == 0
    document["workloads"][0]["choices"] = took("cuda-resident")
    write(base, document)
    done = compare(base, head, "--json")
    assert done.returncode == 4, done.stderr
    cells = {name.split("/")[1]: cell for name, cell in cells_of(done).items()}
    assert cells["cuda"]["verdict"] == "chose otherwise"
    assert "base took cuda-resident, head took cuda-tiled" in cells["cuda"]["message"]
    assert cells["cuda-layered"]["verdict"] == "equivalent"
    # A regression elsewhere is the graver news.
    slower = [records[0], record(steps(1.2, 1), precision="bf16")]
    assert compare(*files(records, slower, differs)).returncode == 1


def test_a_record_that_was_not_verified_is_no_result(files):
    unverified = record(steps(), verification={"verdict": "not_run", "checks": []})
    assert compare(*files([record(steps())], [unverified])).returncode == 1


def test_within_compares_two_backends_of_one_file(tmp_path):
    file = write(
        tmp_path / "a.json",
        results(
            [
                record(steps(), backend="pytorch-eager", contract="autocast"),
                record(steps(0.5, 1), backend="cuda-layered"),
                record(steps(0.5, 2), backend="cuda-layered", precision="bf16"),
            ]
        ),
    )
    done = compare(
        "--within", file, "--base-backend", "pytorch-eager", "--head-backend", "cuda-layered", "--json"
    )
    assert done.returncode == 0, done.stderr
    comparison = read_json(done)
    assert [cell["verdict"] for cell in comparison["cells"]] == ["improvement", "new"]
    assert comparison["rule"]["widened_by"] == 0
    assert "contracts differ" in comparison["cells"][0]["message"]
    back = compare(
        "--within", file, "--base-backend", "cuda-layered", "--head-backend", "pytorch-eager", "--json"
    )
    assert back.returncode == 1
    assert [cell["verdict"] for cell in read_json(back)["cells"]] == ["regression", "missing"]


# ---- the statistics against SciPy's


def scipy_bound(stats, values, level, low):
    """The bound where SciPy's exact p-value passes the level, by bisection."""
    sign = 1 if low else -1
    values = [sign * value for value in values]

    def p(theta):
        return stats.wilcoxon([v - theta for v in values], alternative="greater", method="exact").pvalue

    below, above = min(values) - 1, max(values) + 1
    for _ in range(80):
        middle = (below + above) / 2
        below, above = (middle, above) if p(middle) <= level else (below, middle)
    return sign * below


@pytest.mark.parametrize("seed", range(8))
def test_statistics_agree_with_scipy(files, seed):
    stats = pytest.importorskip("scipy.stats", reason="SciPy is not installed")
    made = random.Random(seed)
    count = made.choice([12, 13, 15, 20, 31])
    scale, noise = math.exp(made.gauss(0, 0.03)), made.choice([0.002, 0.01, 0.05])
    base, head = steps(1, 2 * seed, count, noise), steps(scale, 2 * seed + 1, count, noise)
    done = compare(*files([record(base)], [record(head)]), "--json")
    finding = read_json(done)["cells"][0]["finding"]
    logs = [math.log(h) - math.log(b) for b, h in zip(base, head, strict=True)]
    for theta, alternative, name in (
        (math.log(finding["slower_than"]), "greater", "p_slower"),
        (math.log(finding["faster_than"]), "less", "p_faster"),
    ):
        expected = stats.wilcoxon([v - theta for v in logs], alternative=alternative, method="exact").pvalue
        assert finding[name] == pytest.approx(expected, rel=1e-9)
    walsh = sorted((logs[i] + logs[j]) / 2 for i in range(count) for j in range(i, count))
    middle = len(walsh) // 2
    median = walsh[middle] if len(walsh) % 2 else (walsh[middle - 1] + walsh[middle]) / 2
    assert finding["ratio"] == pytest.approx(math.exp(median), rel=1e-9)
    for name, low in (("low", True), ("high", False)):
        expected = scipy_bound(stats, logs, finding["level"], low)
        assert finding[name] == pytest.approx(math.exp(expected), rel=1e-9)


# ---- not comparable: exit code 4, and the field that differs


def set_at(path, value):
    def change(document):
        *parents, last = [int(key) if key.isdigit() else key for key in path.split(".")]
        for key in parents:
            document = document[key]
        document[last] = value

    return change


@pytest.mark.parametrize(
    ("path", "value", "said"),
    [
        ("device.name", "another GPU", "device.name is 'made-up GPU' and 'another GPU'"),
        ("device.driver", "570.1", "device.driver"),
        ("device", None, "device.name is 'made-up GPU' and 'none'"),
        ("software.cuda_runtime", "12.8", "software.cuda_runtime"),
        ("software.worker_protocol", "7", "software.worker_protocol is '1' and '7'"),
        ("run.settings.block-seconds", "0.5", "run.settings.block-seconds"),
        ("workloads.0.seed", 2, "workload mlp-784x10-b32: seed"),
        ("workloads.0.batch_size", 64, "what is trained is 'mlp-784x10-b32' and 'mlp-784x10-b64'"),
        ("workloads.0.activation", "tanh", "what is trained is 'mlp-784x10-b32' and 'mlp-784x10-b32-tanh'"),
        ("workloads.0.loss", "mse", "what is trained"),
        ("workloads.0.optimizer", ADAM, "what is trained"),
        ("workloads.0.optimizer.momentum", 0.9, "what is trained"),
        ("workloads.0.optimizer.learning_rate", 0.1, "learning_rate"),
        ("workloads.0.dataset.digest", "00000000deadbeee", "dataset.digest"),
    ],
)
def test_not_comparable_says_which_field(files, path, value, said):
    done = compare(*files([record(steps())], [record(steps())], set_at(path, value)))
    assert_refused(done, "base.json and head.json are not comparable", said, code=4)


@pytest.mark.parametrize("number", ["learning_rate", "beta1", "beta2", "epsilon"])
def test_every_number_of_the_optimizer_is_compared(tmp_path, number):
    base = results([record(steps())])
    base["workloads"][0] |= {"name": "mlp-784x10-b32", "optimizer": ADAM}
    head = json.loads(json.dumps(base))
    head["workloads"][0]["optimizer"][number] *= 0.5
    done = compare(write(tmp_path / "base.json", base), write(tmp_path / "head.json", head))
    assert_refused(done, "not comparable", f"workload mlp-784x10-b32: {number}", code=4)


# ---- bad input: exit code 2, one line


@pytest.mark.parametrize(
    ("path", "value", "said"),
    [
        ("schema_version", 3, "schema_version: expected 1 or 2, found 3"),
        ("workloads.0.activation", "mish", "workloads[0].activation: expected one of relu, tanh"),
        ("workloads.0.loss", "l1", "workloads[0].loss: expected one of cross-entropy"),
        ("workloads.0.optimizer.kind", "lion", "workloads[0].optimizer.kind: expected one of sgd, adam"),
        ("records.0.blocks.3.device_seconds", 0, "records[0].blocks[3].device_seconds: expected a number"),
        ("records.0.blocks.3.device_seconds", -1.0, "blocks[3]"),
        ("records.0.blocks.3.steps", 0, "blocks[3]"),
        ("records.0.blocks.3.device_seconds", None, "blocks[3].device_seconds: expected a number"),
        ("records.0.blocks.3.device_seconds", "fast", "blocks[3].device_seconds: expected a number"),
        ("records.0.blocks.3.device_seconds", math.nan, "found no JSON"),
        ("records.0.blocks.3.device_seconds", math.inf, "found no JSON"),
        ("records.0.blocks", [], "0 blocks, expected at least 12"),
        ("records.0.precision", "fp64", "records[0].precision"),
        ("records", [record(steps())] * 2, "records[1]: cuda-layered fp32 of mlp-784x10-b32 is there twice"),
    ],
)
def test_bad_values_are_refused(files, path, value, said):
    done = compare(*files([record(steps())], [record(steps())], set_at(path, value)))
    assert_refused(done, "head.json", said)


def test_bad_files_are_refused(tmp_path, files):
    base, head = files([record(steps())], [record(steps())])
    truncated = write(tmp_path / "cut.json", head.read_text()[:-200])
    assert_refused(compare(base, truncated), "cut.json", "found no JSON")
    assert_refused(compare(base, tmp_path / "nowhere.json"), "nowhere.json", "cannot be read")
    both = compare(tmp_path / "first.json", tmp_path / "second.json")
    assert_refused(both, "first.json", "cannot be read")
    assert_refused(compare(base, tmp_path), "cannot be read")
    huge = write(
        tmp_path / "huge.json",
        head.read_text().replace('"device_seconds": 0.0', '"device_seconds": 1e999', 1),
    )
    assert_refused(compare(base, huge), "huge.json")
    empty = write(tmp_path / "empty.json", results([]) | {"workloads": []})
    assert_refused(compare(empty, empty), "no common cells")
    other = write(tmp_path / "other.json", results([record(steps(), workload="mlp-9x3-b4")]))
    assert_refused(compare(base, other), "no common cells")


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        ([], "nothing to compare"),
        (["one.json"], "expected 2 results files, found 1"),
        (["a.json", "b.json", "c.json"], "expected 2 results files, found 3"),
        (["--base", "a", "--within", "b.json"], "two different comparisons"),
        (["--within", "a.json"], "needs --base-backend"),
        (["--within", "a.json", "--base-backend", "x", "--head-backend", "x"], "the same"),
        (["a.json", "b.json", "--base-backend", "x"], "go with --within"),
        (["--baseline", "main", "a.json"], "needs --baselines FOLDER"),
        (["--baseline", "../main", "--baselines", "f", "a.json"], "expected a name of letters"),
        (["--save-baseline", "main", "--baselines", "f"], "expected 1 results file, found 0"),
        (["a.json", "b.json", "--format", "markdwn"], "did you mean 'markdown'?"),
        (["a.json", "b.json", "--repeat", "3"], "go with --self-check"),
        (["a.json", "b.json", "--head", "x"], "--head goes with --base"),
        (["--base", "nowhere"], "there is no such build folder"),
        (["--base", ".", "--launches", "2", "--pairs", "5"], "makes 10 pairs a round, expected at least 12"),
        (["--base", ".", "--suite", "cii"], "did you mean 'ci'?"),
        (["--tolerence", "3"], "did you mean '--tolerance'?"),
        (["a.json", "b.json", "--tolerance", "nan"], "--tolerance: Value nan not in range"),
        (["--within", "", "--base-backend", "x"], "--within: its value is empty"),
    ],
)
def test_wrong_usage_is_refused(arguments, said):
    assert_refused(compare(*arguments), said)


def test_within_names_the_nearest_backend(tmp_path):
    file = write(tmp_path / "a.json", results([record(steps())]))
    done = compare("--within", file, "--base-backend", "cuda-layerd", "--head-backend", "cuda-layered")
    assert_refused(done, "did you mean 'cuda-layered'?")


# ---- baselines


def test_baseline_is_stored_per_machine_and_compared(tmp_path, files):
    base, head = files([record(steps())], [record(steps(1.2, 1))])
    folder = tmp_path / "baselines"
    stored = compare("--save-baseline", "main", "--baselines", folder, base)
    assert stored.returncode == 0, stored.stderr
    (file,) = folder.glob("*.json")
    assert file.name.startswith("main-made-up-gpu-") and str(file) in stored.stdout
    done = compare("--baseline", "main", "--baselines", folder, head)
    assert done.returncode == 1
    assert compare("--baseline", "main", "--baselines", folder, base).returncode == 0
    assert_refused(compare("--baseline", "dev", "--baselines", folder, head), "there is: main-made-up-gpu-")
    other = json.loads(head.read_text())
    other["device"]["uuid"] = "GPU-1"
    elsewhere = write(tmp_path / "elsewhere.json", other)
    assert_refused(compare("--baseline", "main", "--baselines", folder, elsewhere), "is not there")


def test_baseline_that_was_changed_is_refused(tmp_path, files):
    base, head = files([record(steps())], [record(steps())])
    folder = tmp_path / "baselines"
    compare("--save-baseline", "main", "--baselines", folder, base)
    (file,) = folder.glob("*.json")
    file.write_text(file.read_text().replace("1000", "1001", 1))
    assert_refused(compare("--baseline", "main", "--baselines", folder, head), "is not what was stored")
    file.with_suffix(".digest").unlink()
    assert_refused(compare("--baseline", "main", "--baselines", folder, head), "cannot be read")
    cut = write(tmp_path / "cut.json", base.read_text()[:100])
    assert_refused(compare("--save-baseline", "main", "--baselines", folder, cut), "found no JSON")
