"""plots/report.py as a program, on made-up results: what it says, how it is escaped, how bad input ends."""

import copy
import json
import os
import re
import subprocess
import sys
from html.parser import HTMLParser
from pathlib import Path

import made_up_results as made_up
import pytest
from plot_programs import BAD_FILES, REPORT, ROOT, changed, one_line, run, small

pytest.importorskip("matplotlib", reason="matplotlib is not installed")
pytest.importorskip("jinja2", reason="Jinja2 is not installed")

sys.path.insert(0, str(ROOT / "plots"))
from rendering import escape_markdown  # noqa: E402

MOST_BYTES = 3_000_000
VOID = {"meta", "link", "input", "br", "hr", "img"}


class Document(HTMLParser):
    """Text (not that of figures), ids, links, what would be loaded from elsewhere; tags have to match."""

    def __init__(self, text: str):
        super().__init__()
        self.open, self.ids, self.links, self.loaded, self.words = [], [], [], [], []
        self.feed(text)
        assert self.open == []

    def handle_starttag(self, tag, attributes):
        values = dict(attributes)
        if tag not in VOID:
            self.open.append(tag)
        if "id" in values:
            self.ids.append(values["id"])
        if tag == "a":
            self.links.append(values["href"])
        if tag in ("script", "img", "iframe", "link"):
            self.loaded += [values[name] for name in ("src", "href") if name in values]

    def handle_endtag(self, tag):
        assert self.open.pop() == tag

    def handle_data(self, data):
        if self.open and not {"script", "style", "svg"} & set(self.open):
            self.words.append(data)

    @property
    def text(self) -> str:
        return " ".join(" ".join(self.words).split())


def reported(folder: Path, *documents) -> tuple[Document, str]:
    """The report's document and its Markdown. Checks what holds for every report."""
    done = run(REPORT, folder, *documents, output="report")
    assert done.returncode == 0, done.stderr
    assert done.stderr == ""
    paths = [Path(line) for line in done.stdout.splitlines()]
    files = [path for path in (folder / "report").rglob("*") if path.is_file()]
    assert sorted(paths) == sorted(path for path in files if path.name != "manifest.json")
    html = (folder / "report/report.html").read_text(encoding="utf-8")
    assert len(html.encode()) < MOST_BYTES
    document = Document(html)
    assert len(document.ids) == len(set(document.ids))
    assert document.loaded == ["data:,"]
    assert not re.search(r"url\((?!#)", html)
    for link in document.links:
        assert link.removeprefix("#") in document.ids, link
    for name in re.findall(r'href="#([^"]+)"', html):
        assert name in document.ids
    markdown = (folder / "report/report.md").read_text()
    for image in re.findall(r"\]\((figures/[^)]+)\)", markdown):
        assert (folder / "report" / image).exists()
    assert "\n\n\n\n" not in markdown
    return document, markdown


def with_floors_and_energy(document: dict) -> dict:
    for entry in document["workloads"]:
        entry["floors"] = {name: made_up.floor(2e-6) for name in made_up.PRECISIONS}
    for record in document["records"]:
        if record["step_seconds"]:
            record["fraction_of_floor"] = 2e-6 / record["step_seconds"]["median"]
            record["joules_per_step"] = 300 * record["step_seconds"]["median"]
    return document


def test_the_first_screen_answers_with_numbers_that_lead_to_their_records(tmp_path):
    document, markdown = reported(tmp_path, made_up.width_series(4, ("fp32", "bf16")))
    assert made_up.DEVICE in document.text
    for name, row in (("H = 128", "cuda-layered"), ("H = 8192", "cuda-layered")):
        assert name in document.text and row in document.text
    best = re.search(r"Best against best PyTorch ([\d.]+)×", document.text)
    worst = re.search(r"Worst against best PyTorch ([\d.]+)×", document.text)
    assert float(best.group(1)) > float(worst.group(1)) > 0
    assert "A CUDA graph of the eager step does without Python" in document.text
    assert "these files hold no floors" in document.text
    assert "All 56 records that ran passed every check" in document.text
    assert sum(link.startswith("#record-1-") for link in document.links) > 10
    assert best.group(1) in markdown
    assert "run0.json · mlp-784x128x128x128x10-b32 · cuda-layered · fp32" in markdown


def test_speed_ups_are_those_of_the_records(tmp_path):
    document, markdown = reported(tmp_path, small())
    assert "at mlp-784x128x10-b32 the fastest of our kernels is 20× as fast (fp32)" in document.text
    line = "| 1000 | libtorch-eager | 800 | the same | – | cuda-layered | 40.0 | 20× | – | 25× |"
    assert f"| mlp-784x128x10-b32 | fp32 {line}" in markdown
    assert "saves 20 % of the 1.00 ms" in document.text


def test_floors_energy_and_the_state_of_the_gpu_are_shown_when_they_are_there(tmp_path):
    results = with_floors_and_energy(made_up.width_series(3, ("fp32",)))
    unknown = ("memory_clock_megahertz", "temperature_celsius", "uncorrected_ecc_errors", "other_processes")
    gpu = {"samples": 3, "sm_clock_megahertz": 1980, "power_watts": 310.5, "throttle_reasons": ["power_cap"]}
    gpu |= dict.fromkeys(unknown)
    block = {"order": 0, "steps": 50, "device_seconds": 0.02, "wall_seconds": 0.02, "cpu_seconds": 0.01}
    results["records"][0]["blocks"] = [{**block, "gpu": gpu}, {**block, "order": 1, "gpu": gpu}]
    results["calibration"] = {
        "copy": {"value": 4.2e12, "unit": "bytes_per_second", "how": "device to device"}
    }
    document, _ = reported(tmp_path, results)
    for words in ("of the speed that the floor allows", "Share of the floor", "Energy of a training step"):
        assert words in document.text
    for words in ("1980 MHz", "310.5 W", "power_cap", "4.2e+12", "bytes per second", "device to device"):
        assert words in document.text
    assert "Not known for any record" not in document.text
    assert "Not known for 20 of 21 records: the state of the GPU" in document.text


def test_the_ladder_is_shown_when_it_is_there(tmp_path):
    results = small()
    document, _ = reported(tmp_path, results)
    assert "No figure of where the time goes (ladder)" in document.text
    results["workloads"][0]["ladders"] = {"fp32": made_up.ladder()}
    document, markdown = reported(tmp_path, results)
    assert "figure-ladder-mlp-784x128x10-b32" in document.ids
    assert "figures/ladder-mlp-784x128x10-b32.svg" in markdown
    assert "(ladder)" not in document.text


def test_eager_alone_is_not_called_the_best_pytorch(tmp_path):
    results = small()
    del results["records"][1]
    document, _ = reported(tmp_path, results)
    assert "Against pytorch-eager, the only PyTorch row, in the same precision" in document.text
    assert "gainst best PyTorch 25×" not in document.text
    assert "Against pytorch-eager 25×" in document.text


def test_what_is_missing_is_said(tmp_path):
    document, markdown = reported(tmp_path, small())
    for what in ("the floor", "the energy of a step", "the state of the GPU"):
        assert f"Not known for any record: {what}" in document.text
        assert f"Not known for any record: {what}" in markdown
    assert "No loss curves were recorded." in document.text


def test_a_record_faster_than_its_floor_is_a_loud_defect_of_the_floor(tmp_path):
    results = small()
    results["records"][2]["fraction_of_floor"] = 1.2
    document, markdown = reported(tmp_path, results)
    for text in (document.text, markdown):
        assert "Faster than its floor: cuda-layered fp32" in text
        assert "The floor is wrong." in text


def test_a_failed_record_has_no_time_and_no_speed_up_and_says_why(tmp_path):
    results = small()
    results["records"][2] = made_up.failed(results["records"][2])
    document, markdown = reported(tmp_path, results)
    assert "every record of our kernels failed" in document.text
    assert "1 failed and have no speed-up: cuda-layered fp32" in document.text
    assert "step_update of weight1: 0.3 is over 0.001" in document.text
    assert "40.0" not in document.text and "40.0" not in markdown
    assert not re.search(r"(?<![\d.])(20|25)×", document.text)


def with_a_failed_rival(verdict: str) -> dict:
    results = made_up.width_series(3, ("fp32",))
    for index, record in enumerate(results["records"]):
        if record["backend"] == "libtorch-eager" and "x128x" in record["workload"]:
            results["records"][index] = made_up.failed(record)
            results["records"][index]["verification"] = {"verdict": verdict, "checks": []}
    return results


def test_a_cell_whose_rival_failed_verification_has_its_name_and_no_speed_up(tmp_path):
    document, markdown = reported(tmp_path, with_a_failed_rival("fail"))
    assert "No speed-up is claimed in fp32 at H = 128: libtorch-eager failed verification" in document.text
    (line,) = [line for line in markdown.splitlines() if line.startswith("| mlp-784x128x")]
    assert line.count("libtorch-eager failed verification") == 2 and "×" not in line
    assert "at H = 128 there is nothing to compare" in document.text


def test_what_is_trained_is_shown_where_names_do_not_say_it(tmp_path):
    results = small()
    document, _ = reported(tmp_path, results)
    assert "What is trained" not in document.text
    fields = {"activation": "tanh", "loss": "mse", "optimizer": made_up.adam(), "about": "From a paper."}
    results["workloads"].append(made_up.workload((17, 64, 6), 64, "ppo", **fields))
    results["records"].append(made_up.record("ppo", "cuda-layered"))
    document, markdown = reported(tmp_path, results)
    assert "17-64-6, batch 64, tanh, mse, adam" in document.text
    assert "| ppo | 17-64-6, batch 64, tanh, mse, adam | " in markdown and "From a paper." in markdown


def test_the_users_file_that_a_network_was_read_off_is_named_with_its_digest(tmp_path):
    model = {"file": "net.py", "name": "make", "sha256": 64 * "5", "workload": "mlp-4x2-b1"}
    document, _ = reported(tmp_path, changed("run.model", model))
    assert f"net.py:make, read as mlp-4x2-b1; SHA-256 of the file {64 * '5'}" in document.text


def test_a_failed_rival_weakens_the_best_and_that_is_said(tmp_path):
    results = with_a_failed_rival("not_run")
    document, _ = reported(tmp_path, results)
    assert "libtorch-eager failed in fp32 at H = 128 and might have been faster than" in document.text
    assert "Best against best PyTorch" in document.text
    assert not re.search(r"Best against best PyTorch [\d.]+× fp32, H = 128:", document.text)


def test_skipped_records_stand_with_their_reasons(tmp_path):
    results = small(device=None)
    name = results["workloads"][0]["name"]
    results["records"][2] = made_up.record(name, "cuda-layered", "fp32", None)
    document, markdown = reported(tmp_path, results)
    assert "none of our kernels was measured" in document.text
    assert "CPU: made-up CPU" in document.text
    line = (
        "1 record was skipped: no CUDA device."
        " Backends: cuda-layered; precisions: fp32; workloads: mlp-784x128x10-b32."
    )
    assert line in document.text
    assert escape_markdown(line) in markdown


def test_records_skipped_for_the_same_reason_are_one_line(tmp_path):
    results = small(device=None)
    name = results["workloads"][0]["name"]
    for precision in made_up.PRECISIONS:
        for index in range(8):
            results["records"].append(made_up.record(name, f"cuda-{index}", precision, None))
    for size in (5, 6, 7):
        message = f"weights of {size} bytes do not fit"
        results["records"].append(made_up.record(name, f"cuda-a{size}", "fp32", None, message=message))
    document, markdown = reported(tmp_path, results)
    for text in (document.text, markdown):
        assert text.count("no CUDA device") == 1
        assert "32 records were skipped: no CUDA device. Backends: cuda-0, cuda-1, cuda-2," in text
        assert "3 records were skipped: weights of 5 bytes do not fit (one of 3 such reasons)." in text
    html = (tmp_path / "report/report.html").read_text(encoding="utf-8")
    assert html.count("no CUDA device") == 1
    assert 'title="weights of 6 bytes do not fit"' in html  # what the list does not quote


def test_noise_is_not_sold_as_a_share(tmp_path):
    results = small()
    results["records"][0]["step_seconds"] = {"median": 8.1e-4, "low": 7e-4, "high": 9e-4}
    document, _ = reported(tmp_path, results)
    assert "saves nothing that stands out from the noise of the 810 µs" in document.text


def test_ratios_stay_inside_a_precision_and_a_file(tmp_path):
    first, second = small("fp32"), small("tf32")
    del second["records"][:2]
    document, _ = reported(tmp_path, first, second)
    assert (
        "No speed-up for tf32 at mlp-784x128x10-b32: no PyTorch row of it has a result in run1.json."
        in document.text
    )
    assert "20× as fast (fp32)" in document.text


def test_an_interrupted_run_gives_a_report_that_says_what_is_missing(tmp_path):
    results = made_up.width_series(3, ("fp32",))
    results["run"].update(complete=False, finished_utc=None)
    del results["records"][-1]
    document, markdown = reported(tmp_path, results)
    for text in (document.text, markdown):
        assert "The run of run0.json did not finish" in text
    assert "Not in run0.json for mlp-784x8192x8192x8192x10-b32: cuda-layered fp32." in document.text
    assert "run not finished" in document.text


def test_files_of_different_versions_are_said_to_differ(tmp_path):
    first, second = small("fp32"), small("tf32")
    first["software"], second["software"] = {"torch": "2.11.0"}, {"torch": "2.6.0"}
    first["run"]["source_digest"], second["run"]["source_digest"] = "fnv1a64:1", "fnv1a64:2"
    document, markdown = reported(tmp_path, first, second)
    assert "The files differ in torch: 2.11.0, 2.6.0." in document.text
    assert "The files come from 2 versions of Headroom's source" in document.text
    assert all(f"source digest: fnv1a64:{n}" in markdown for n in (1, 2))


def test_files_of_one_version_are_not_said_to_differ(tmp_path):
    document, _ = reported(tmp_path, small("fp32"), small("tf32"))
    assert "versions of Headroom" not in document.text


EVIL = "<script>alert(1)</script>"


def test_text_from_files_is_shown_and_never_run(tmp_path):
    results = small()
    name = f"{EVIL}|`x`"
    results["workloads"][0]["name"] = name
    for record in results["records"]:
        record["workload"] = name
    results["device"]["name"] = f"GPU {EVIL}"
    results["run"]["argv"] = ["headroom", EVIL]
    results["run"]["id"] = '"><img src=x onerror=alert(1)>'
    results["software"] = {EVIL: EVIL}
    results["calibration"] = {EVIL: {"value": 1.0, "unit": EVIL, "how": EVIL}}
    results["records"][0]["message"] = EVIL
    results["records"][1] = made_up.failed(results["records"][1], message=EVIL)
    results["records"][2]["backend"] = f"cuda-{EVIL}"
    document, markdown = reported(tmp_path, results)
    html = (tmp_path / "report/report.html").read_text()
    assert document.text.count(EVIL) > 10
    assert EVIL not in html and "<img" not in html
    assert html.count("<script") == 1
    assert "<script" not in markdown and "|`x`" not in markdown


def test_the_same_input_gives_the_same_bytes_and_old_figures_go(tmp_path):
    results = made_up.with_losses(small(), steps=200)
    reported(tmp_path, results)
    first = {path.name: path.read_bytes() for path in (tmp_path / "report").rglob("*") if path.is_file()}
    without_losses = small()
    reported(tmp_path, without_losses)
    assert not list((tmp_path / "report/figures").glob("loss-*"))
    reported(tmp_path, results)
    again = {path.name: path.read_bytes() for path in (tmp_path / "report").rglob("*") if path.is_file()}
    assert again == first


def blocks(median: float, shift: int) -> list[dict]:
    times = [50 * median * (1 + 0.001 * ((7 * order + shift) % 12 - 6)) for order in range(12)]
    same = {"steps": 50, "wall_seconds": 0.02, "cpu_seconds": 0.01}
    return [{**same, "order": order, "device_seconds": time} for order, time in enumerate(times)]


@pytest.mark.long
def test_many_backends_and_losses_stay_under_the_limit(tmp_path):
    results = made_up.with_losses(made_up.width_series(10), seeds=3, steps=2000)
    with_floors_and_energy(results)
    for index, record in enumerate(results["records"]):
        if record["step_seconds"]:
            record["blocks"] = blocks(record["step_seconds"]["median"], index)
    document, markdown = reported(tmp_path, results)
    assert "Spread of the blocks" in document.text
    assert "Not drawn here" not in document.text


def test_what_does_not_fit_is_named_instead_of_drawn(tmp_path, monkeypatch):
    import report
    from results_file import read_results

    results = with_floors_and_energy(made_up.with_losses(small(), steps=2000))
    (tmp_path / "run.json").write_text(json.dumps(results))
    folder = tmp_path / "report"
    report.write_report(read_results([tmp_path / "run.json"]), folder)
    limit = (folder / "report.html").stat().st_size - 1
    monkeypatch.setattr(report, "MOST_BYTES", limit)
    report.write_report(read_results([tmp_path / "run.json"]), folder)
    html = (folder / "report.html").read_text()
    assert len(html.encode()) <= limit
    left_out = re.findall(r"figures/(\S+)\.svg has it", html)
    assert left_out == ["loss-mlp-784x128x10-b32"]  # of the last section
    assert (folder / f"figures/{left_out[0]}.svg").exists()
    assert f"figures/{left_out[0]}.svg" in (folder / "report.md").read_text()


def test_the_published_files_are_reported(tmp_path):
    published = sorted((ROOT / "results/h200").glob("*.json"))
    if os.environ.get("HEADROOM_TEST_ALL") != "1":  # a file takes seconds
        published = published[::12]
    document, _ = reported(tmp_path, *[path.read_text() for path in published])
    assert "NVIDIA H200" in document.text


def test_a_bad_file_is_refused_before_anything_is_written(tmp_path):
    make, words = BAD_FILES["null median"]
    done = run(REPORT, tmp_path, make(), output="report")
    assert done.returncode == 2
    line = one_line(done)
    assert words in line
    assert "run0.json" in line
    assert not (tmp_path / "report").exists()


def test_without_jsonschema_it_says_so_and_exits_3(tmp_path):
    done = run(REPORT, tmp_path, small(), prelude="sys.modules['jsonschema'] = None")
    assert (done.returncode, "jsonschema" in one_line(done)) == (3, True)


def test_bad_combinations_and_files_without_a_complete_workload(tmp_path):
    done = run(REPORT, tmp_path, small(), small(device="another GPU"))
    assert (done.returncode, "another GPU" in one_line(done)) == (2, True)
    nothing = small()
    nothing["records"] = []
    done = run(REPORT, tmp_path, nothing)
    assert (done.returncode, "no complete workload" in one_line(done)) == (2, True)
    skipped = small()
    name = skipped["workloads"][0]["name"]
    skipped["records"] = [made_up.record(name, "cuda-layered", "fp32", None)]
    done = run(REPORT, tmp_path, copy.deepcopy(skipped))
    assert (done.returncode, "every record was skipped: no CUDA device" in one_line(done)) == (2, True)
    done = run(REPORT, tmp_path, small(), changed("workloads.0.batch_size", 64))
    assert (done.returncode, "is another workload in" in one_line(done)) == (2, True)


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["x.json"], "-o/--output"),
        (["-o", "report"], "FILE and -o/--output are required, or --published"),
        (["x.json", "--published"], "--published takes no other FILE"),
        (["x.json", "-o", ""], "-o/--output: expected a folder, found an empty name"),
        (["x.json", "-o", "report", "--doc"], "unrecognized arguments: --doc"),
    ],
)
def test_wrong_usage_is_one_line(tmp_path, arguments, words):
    done = subprocess.run(
        [sys.executable, str(REPORT), *arguments], cwd=tmp_path, capture_output=True, text=True
    )
    assert (done.returncode, words in one_line(done)) == (2, True)
    assert list(tmp_path.iterdir()) == []


def test_an_output_that_cannot_be_written(tmp_path):
    (tmp_path / "taken").write_text("a file")
    done = run(REPORT, tmp_path, small(), output="taken")
    assert (done.returncode, "taken: cannot be written" in one_line(done)) == (2, True)
    (tmp_path / "report").mkdir()
    (tmp_path / "report/figures").write_text("a file")
    done = run(REPORT, tmp_path, small(), output="report")
    assert (done.returncode, "cannot be written" in one_line(done)) == (2, True)


def files_of(folder: Path) -> dict[str, bytes]:
    return {str(path.relative_to(folder)): path.read_bytes() for path in folder.rglob("*") if path.is_file()}


@pytest.mark.parametrize("name", ["report.html", "report.md", "figures/step-time-mlp-784x128x10-b32.svg"])
def test_a_file_that_no_report_made_is_not_replaced(tmp_path, name):
    (tmp_path / "report/figures").mkdir(parents=True)
    (tmp_path / "report/figures/mine.svg").write_text("mine")
    (tmp_path / "report" / name).write_text("somebody's")
    before = files_of(tmp_path / "report")
    done = run(REPORT, tmp_path, small(), output="report")
    words = "is there and not in a manifest.json of ours, so it is not replaced; name another folder"
    assert (done.returncode, f"report/{name}: {words}" in one_line(done)) == (2, True)
    assert files_of(tmp_path / "report") == before


def test_a_full_disk_leaves_the_earlier_report_whole(tmp_path):
    small_files = "import resource\nresource.setrlimit(resource.RLIMIT_FSIZE, (30_000, 30_000))"
    done = run(REPORT, tmp_path, small(), output="report", prelude=small_files)
    assert (done.returncode, "report: cannot be written" in one_line(done)) == (2, True)
    assert not (tmp_path / "report").exists()
    reported(tmp_path, small())
    before = files_of(tmp_path / "report")
    done = run(REPORT, tmp_path, small("tf32"), output="report", prelude=small_files)
    assert (done.returncode, "report: cannot be written" in one_line(done)) == (2, True)
    assert files_of(tmp_path / "report") == before


def test_names_that_cannot_be_printed_are_said_in_one_line(tmp_path):
    (tmp_path / "run.json").write_text(json.dumps(small()))
    command = [sys.executable, str(REPORT), "run.json", "-o", "report"]
    with open("/dev/full", "w") as full:
        done = subprocess.run(command, cwd=tmp_path, stdout=full, stderr=subprocess.PIPE, text=True)
    assert done.returncode == 2
    assert done.stderr == "headroom report: standard output cannot be written: No space left on device\n"


ASCII = [
    {"LC_ALL": "C", "PYTHONUTF8": "0", "PYTHONCOERCECLOCALE": "0"},
    {"LC_ALL": "POSIX", "PYTHONUTF8": "0", "PYTHONCOERCECLOCALE": "0", "PYTHONIOENCODING": "ascii:strict"},
]


@pytest.mark.parametrize("settings", ASCII, ids=["C", "POSIX"])
def test_under_an_ascii_locale_the_report_is_the_same(tmp_path, settings):
    results = small()
    results["run"]["complete"] = False  # so that figures and report name the file
    results["host"]["cpu"] = "Größe"
    (tmp_path / "größe.json").write_text(json.dumps(results, ensure_ascii=False), encoding="utf-8")
    command = [sys.executable, str(REPORT), "größe.json", "-o"]
    plain = {**os.environ, "PYTHONUTF8": "1"}
    subprocess.run([*command, "plain"], cwd=tmp_path, env=plain, check=True, stdout=subprocess.DEVNULL)
    environment = {name: value for name, value in os.environ.items() if not name.startswith("PYTHON")}
    done = subprocess.run(
        [*command, "größer"], cwd=tmp_path, env={**environment, **settings}, capture_output=True
    )
    assert (done.returncode, done.stderr) == (0, b"")
    assert done.stdout.decode("ascii").count("\n") == len(files_of(tmp_path / "größer")) - 1
    assert files_of(tmp_path / "größer") == files_of(tmp_path / "plain")
    assert "größe.json" in (tmp_path / "größer/report.md").read_text(encoding="utf-8")


@pytest.mark.skipif(os.geteuid() == 0, reason="root writes everywhere")
def test_a_folder_without_permission(tmp_path):
    (tmp_path / "locked").mkdir(mode=0o500)
    done = run(REPORT, tmp_path, small(), output="locked")
    assert (done.returncode, "cannot be written" in one_line(done)) == (2, True)


def test_without_jinja_it_says_so_and_exits_3(tmp_path):
    done = run(REPORT, tmp_path, small(), prelude="sys.modules['jinja2'] = None")
    assert (done.returncode, "jinja2" in one_line(done)) == (3, True)


def test_the_example_of_the_schema_is_reported(tmp_path):
    example = json.loads((Path(__file__).parent / "data" / "example-results.json").read_text())
    document, _ = reported(tmp_path, example)
    assert "bias1" in document.text


def test_the_best_rival_stands_beside_the_best_pytorch_where_it_is_another_row(tmp_path):
    results = small()
    name = results["workloads"][0]["name"]
    results["records"].append(made_up.record(name, "jax-scan", "fp32", 1e-4, family="jax"))
    document, markdown = reported(tmp_path, results)
    line = "| 1000 | libtorch-eager | 800 | jax-scan | 100 | cuda-layered | 40.0 | 20× | 2.5× | 25× |"
    assert line in markdown
    assert "Where the best rival is not PyTorch (jax-scan), ours is 2.5× as fast as it." in document.text
    assert "Against best rival" in document.text


def test_whom_a_backend_is_compared_with_is_its_family_and_not_its_name(tmp_path):
    results = small()
    for record, family in zip(results["records"], ("ours", "reference", "pytorch"), strict=True):
        record["family"] = family
    _, markdown = reported(tmp_path, results)
    assert "| – | cuda-layered | 40.0 | the same | – | pytorch-eager | 1000 | 0.04× | – | – |" in markdown


def test_a_plane_is_a_map_its_close_cells_and_its_cliffs_and_every_cell_is_in_the_tables(tmp_path):
    document = made_up.plane(widths=(64, 128, 256), batches=(32, 64, 256), precisions=("bf16",))
    html, markdown = reported(tmp_path, document)
    assert "![Ours over the best rival: 784-H-H-H-10](figures/plane-rival-784-H-H-H-10.svg)" in markdown
    assert "Cells below 1.15 of the best rival (0, of which 0 are lost)" in html.text
    assert "bf16 784x64x64x64x10-b32 (cuda-resident) to 784x64x64x64x10-b64 (cuda-streamed)" in html.text
    for entry in document["workloads"]:
        assert f"| {entry['name']} |" in markdown
    assert "| cuda (cuda-tiled) |" in markdown
    # A report without a plane says nothing of one.
    assert "Cells below" not in reported(tmp_path, small())[0].text


def test_workloads_that_lack_the_same_are_one_line(tmp_path):
    document = made_up.plane(widths=(64, 128, 256), batches=(32, 64, 256), precisions=("bf16",))
    document["records"].append(
        made_up.record(document["workloads"][0]["name"], "pytorch-compile-graph", "bf16", 4e-5)
    )
    assert (
        "Not in run0.json for 8 workloads: pytorch-compile-graph bf16."
        in reported(tmp_path, document)[0].text
    )
