"""plots/output_folder.py: what is replaced, what is refused, and what a failure or a kill leaves."""

import json
import os
import sys
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).resolve().parents[2] / "plots"))

import output_folder  # noqa: E402
from results_file import InputError  # noqa: E402


def fill(folder: Path, files: dict[str, str]) -> None:
    with output_folder.filled(folder) as made:
        for name, text in files.items():
            (made / name).parent.mkdir(exist_ok=True)
            (made / name).write_text(text)


def contents(folder: Path) -> dict[str, str]:
    """Of all files but the manifest, hidden ones too."""
    return {
        path.relative_to(folder).as_posix(): path.read_text()
        for path in folder.rglob("*")
        if path.is_file() and path.name != output_folder.MANIFEST
    }


FIRST = {"report.html": "one", "figures/a.svg": "a", "figures/b.svg": "b"}
SECOND = {"report.html": "two", "figures/b.svg": "b"}


def test_the_files_of_the_manifest_are_replaced_and_no_others(tmp_path):
    fill(tmp_path / "out", FIRST)
    foreign = {"figures/mine.svg": "mine", "notes.md": "notes"}
    for name, text in foreign.items():
        (tmp_path / "out" / name).write_text(text)
    fill(tmp_path / "out", SECOND)
    assert contents(tmp_path / "out") == {**SECOND, **foreign}
    listed = json.loads((tmp_path / "out/manifest.json").read_text())
    assert sorted(listed["files"]) == sorted(SECOND)
    assert "scratch" not in listed and "coming" not in listed


@pytest.mark.parametrize("kind", ["file", "folder", "link", "changed"])
def test_what_is_not_ours_is_refused_and_nothing_is_touched(tmp_path, kind):
    out = tmp_path / "out"
    (tmp_path / "target").write_text("somebody's")
    fill(out, {"figures/a.svg": "a"})
    if kind == "file":
        (out / "report.html").write_text("somebody's")
    elif kind == "folder":
        (out / "report.html").mkdir()
    elif kind == "link":
        (out / "report.html").symlink_to(tmp_path / "target")
    else:
        fill(out, {"figures/a.svg": "a", "report.html": "ours"})
        (out / "report.html").write_text("ours and somebody's")
    before, manifest = contents(out), (out / "manifest.json").read_text()
    with pytest.raises(InputError, match=r"report\.html: .*name another folder, or move it away"):
        fill(out, FIRST)
    assert contents(out) == before
    assert (out / "manifest.json").read_text() == manifest
    assert (tmp_path / "target").read_text() == "somebody's"


def test_a_changed_file_that_is_no_longer_made_stays(tmp_path):
    fill(tmp_path, FIRST)
    (tmp_path / "figures/a.svg").write_text("drawn over")
    fill(tmp_path, SECOND)
    assert contents(tmp_path) == {**SECOND, "figures/a.svg": "drawn over"}


def test_a_file_without_a_manifest_that_would_come_out_the_same_is_no_conflict(tmp_path):
    fill(tmp_path, FIRST)
    (tmp_path / "manifest.json").unlink()
    fill(tmp_path, FIRST)
    assert contents(tmp_path) == FIRST


def test_a_failure_while_files_are_made_leaves_what_was_there(tmp_path):
    def fail(folder: Path) -> None:
        with pytest.raises(OSError, match="No space"), output_folder.filled(folder) as made:
            (made / "report.html").write_text("half")
            raise OSError(28, "No space left on device")

    fail(tmp_path / "new")
    assert not (tmp_path / "new").exists()
    fill(tmp_path / "out", FIRST)
    manifest = (tmp_path / "out/manifest.json").read_text()
    fail(tmp_path / "out")
    assert contents(tmp_path / "out") == FIRST
    assert (tmp_path / "out/manifest.json").read_text() == manifest


def fill_and_be_killed(folder: Path, files: dict[str, str], renames: int) -> int:
    """Exit code of a child that is ended before its rename number `renames`, or 0."""
    child = os.fork()
    if child == 0:
        replace, left = os.replace, [None] * renames

        def replace_or_end(source, target):
            if not left:
                os._exit(9)
            left.pop()
            replace(source, target)

        os.replace = replace_or_end
        fill(folder, files)
        os._exit(0)
    return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])


def test_after_a_kill_at_any_point_the_next_run_leaves_nothing_of_it(tmp_path):
    codes = []
    for renames in range(6):  # manifest, manifest, two files, manifest
        fill(tmp_path, FIRST)
        codes.append(fill_and_be_killed(tmp_path, SECOND, renames))
        assert contents(tmp_path)["report.html"] in ("one", "two")
        fill(tmp_path, {"report.html": "three"})
        assert contents(tmp_path) == {"report.html": "three"}
    assert codes == [9, 9, 9, 9, 9, 0]


FOREIGN_MANIFESTS = {
    "of a web page": '{"name": "app", "start_url": "/"}',
    "no JSON": "files",
    "a list": "[]",
    "outside": json.dumps({"files": {"../precious": "0" * 64}}),
    "absolute": json.dumps({"files": {"/tmp/precious": "0" * 64}}),
    "scratch outside": json.dumps({"files": {}, "scratch": ".."}),
}


@pytest.mark.parametrize("name", FOREIGN_MANIFESTS)
def test_a_manifest_that_is_not_ours_is_refused(tmp_path, name):
    (tmp_path / "precious").write_text("precious")
    (tmp_path / "out").mkdir()
    (tmp_path / "out/manifest.json").write_text(FOREIGN_MANIFESTS[name])
    with pytest.raises(InputError, match="not a manifest that headroom wrote"):
        fill(tmp_path / "out", FIRST)
    assert (tmp_path / "out/manifest.json").read_text() == FOREIGN_MANIFESTS[name]
    assert [path.name for path in (tmp_path / "out").iterdir()] == ["manifest.json"]
    assert (tmp_path / "precious").read_text() == "precious"


def test_two_at_once_do_not_mix(tmp_path):
    with output_folder.filled(tmp_path) as made:
        with pytest.raises(InputError, match="another headroom is writing into it"):
            fill(tmp_path, SECOND)
        (made / "report.html").write_text("first")
    assert contents(tmp_path) == {"report.html": "first"}


def test_a_page_that_cannot_be_written_stays_as_it_was(tmp_path, monkeypatch):
    (tmp_path / "README.md").write_text("whole")

    def no_space(source, target):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(output_folder.os, "replace", no_space)
    with pytest.raises(OSError, match="No space"):
        output_folder.write_whole(tmp_path / "README.md", "new")
    assert contents(tmp_path) == {"README.md": "whole"}
