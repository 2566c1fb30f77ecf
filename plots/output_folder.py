"""A folder that a program here fills: the next run replaces what its manifest lists, and nothing else.

New files are made in a scratch folder inside, and put in their places when all of them are there: a full disk
or an interruption leaves the earlier files as they were. Before the first file is moved the manifest lists
old ones, new ones and the scratch folder, so that the next run knows what is ours even after a kill.
"""

from __future__ import annotations

import contextlib
import fcntl
import hashlib
import json
import os
import re
import secrets
import shutil
import stat
import sys
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass, field
from pathlib import Path

from results_file import InputError

MANIFEST = "manifest.json"
ABOUT = "What headroom made in this folder, with digests (SHA-256). It replaces these files and no others."
NAME = re.compile(r"(?:figures/)?[A-Za-z0-9][A-Za-z0-9._-]*")  # of a file that a program here makes
SCRATCH = re.compile(r"\.headroom-[0-9a-f]{16}")
DIGEST = re.compile(r"[0-9a-f]{64}")


def write_whole(path: Path, text: str) -> None:
    """All of the text or, where it cannot be written, what was there before."""
    beside = path.with_name(f".{path.name}.new")
    try:
        beside.write_text(text, encoding="utf-8")
        os.replace(beside, path)
    except BaseException:
        with contextlib.suppress(OSError):
            beside.unlink(missing_ok=True)
        raise


@dataclass
class Manifest:
    files: dict[str, str] = field(default_factory=dict)  # by name below the folder, their digests
    coming: dict[str, str] = field(default_factory=dict)  # those that are being moved to their places
    scratch: str = ""

    def write(self, folder: Path) -> None:
        known = {name: value for name, value in asdict(self).items() if value or name == "files"}
        write_whole(folder / MANIFEST, json.dumps({"about": ABOUT, **known}, indent=1, sort_keys=True) + "\n")


def read_manifest(folder: Path) -> Manifest | None:
    """None where there is none. A file of that name that is somebody else's is an InputError."""
    path = folder / MANIFEST
    if not os.path.lexists(path):
        return None
    try:
        values = json.loads(path.read_text(encoding="utf-8"))
        manifest = Manifest(values["files"], values.get("coming", {}), values.get("scratch", ""))
        for names in (manifest.files, manifest.coming):
            for name, digest in names.items():
                if not (NAME.fullmatch(name) and DIGEST.fullmatch(digest)):
                    raise ValueError(name)
        if manifest.scratch and not SCRATCH.fullmatch(manifest.scratch):
            raise ValueError(manifest.scratch)
    except (OSError, ValueError, KeyError, TypeError, AttributeError, RecursionError):
        raise InputError(
            f"{path}: not a manifest that headroom wrote; name another folder, or move this file away"
        ) from None
    return manifest


def digest_of(path: Path) -> str:
    """Empty for what is no regular file."""
    try:
        if not stat.S_ISREG(path.lstat().st_mode):
            return ""
        return hashlib.sha256(path.read_bytes()).hexdigest()
    except FileNotFoundError:
        return ""


def _locked(folder: Path) -> int:
    """A lock that ends with the process. Where folders cannot be locked there is none."""
    descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        os.close(descriptor)
        raise InputError(
            f"{folder}: another headroom is writing into it; wait, or name another folder"
        ) from None
    except OSError:
        pass
    return descriptor


def _refuse_others(folder: Path, old: Manifest, new: dict[str, str]) -> None:
    """What would be replaced must be ours and as we left it, or the same as what comes."""
    for name, digest in new.items():
        path = folder / name
        ours = {old.files.get(name), old.coming.get(name), digest} - {None}
        if not os.path.lexists(path) or digest_of(path) in ours:
            continue
        listed = name in old.files or name in old.coming
        what = (
            f"was changed since it was made ({MANIFEST})"
            if listed
            else f"is there and not in a {MANIFEST} of ours"
        )
        raise InputError(f"{path}: {what}, so it is not replaced; name another folder, or move it away")


def _put_in_place(folder: Path, scratch: Path, old: Manifest, new: dict[str, str]) -> None:
    for name in new:
        (folder / name).parent.mkdir(exist_ok=True)
    Manifest(old.files, {**old.coming, **new}, scratch.name).write(folder)
    for name in new:
        os.replace(scratch / name, folder / name)
    for name, digest in {**old.files, **old.coming}.items():
        path = folder / name
        if name not in new and digest_of(path) in (digest, old.files.get(name)):
            path.unlink()
            if path.parent != folder:
                with contextlib.suppress(OSError):
                    path.parent.rmdir()  # only if nothing else is in it
    shutil.rmtree(scratch)
    Manifest(new).write(folder)


@contextlib.contextmanager
def filled(folder: Path) -> Iterator[Path]:
    """A scratch folder. What is in it at the end takes the place of what an earlier run made in `folder`."""
    with contextlib.ExitStack() as ending:
        is_new = not folder.exists()
        folder.mkdir(parents=True, exist_ok=True)
        ending.callback(os.close, _locked(folder))
        earlier = read_manifest(folder)
        old = earlier or Manifest()
        if old.scratch and not (folder / old.scratch).is_symlink():
            shutil.rmtree(folder / old.scratch, ignore_errors=True)
        scratch = folder / f".headroom-{secrets.token_hex(8)}"
        moving = False
        try:
            Manifest(old.files, old.coming, scratch.name).write(folder)
            scratch.mkdir()
            yield scratch
            paths = sorted(path for path in scratch.rglob("*") if path.is_file())
            new = {path.relative_to(scratch).as_posix(): digest_of(path) for path in paths}
            _refuse_others(folder, old, new)
            moving = True
            _put_in_place(folder, scratch, old, new)
        except BaseException:
            shutil.rmtree(scratch, ignore_errors=True)
            with contextlib.suppress(OSError):
                if earlier is not None and not moving:
                    earlier.write(folder)
                elif not moving:
                    (folder / MANIFEST).unlink(missing_ok=True)
                if is_new:
                    folder.rmdir()
            raise


def filled_by(program: str, folder: Path, draw: Callable[[Path], list[str]]) -> list[str] | None:
    """What `draw` says that it made in `folder`; None where that fails, with a line on standard error."""
    try:
        with filled(folder) as made:
            return draw(made)
    except InputError as error:
        print(f"{program}: {error}", file=sys.stderr)
    except OSError as error:
        print(f"{program}: {folder}: cannot be written: {error.strerror or error}", file=sys.stderr)
    return None
