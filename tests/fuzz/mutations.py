"""Damages files: JSON as text and as values, and IDX files. All of it follows from the random generator."""

from __future__ import annotations

import copy
import gzip
import json
import random

TEXTS = [
    "",
    " ",
    "x" * 70_000,
    "a\nb\tc\r",
    "\x00",
    "\x1b[31mred\x1b[0m\x1b]0;title\x07",
    "\x7f\x80\x9b\ufffe\uffff",
    "\u202eabc\u2066",
    "e\u0301" * 40,
    "\U0001f680",
    "../../../etc/passwd",
    "/dev/stdin",
    "<script>alert(1)</script>&amp;\"'",
    "${HOME} $(id) `id` %s %n {0} {",
    "$x_1^2$ \\frac{1}{2}",
    "-1",
    "NaN",
    "fp32",
    "oracle",
    "mlp-1x1-b1",
    ".",
    "..",
    "a/b",
    "--help",
]
NUMBERS = [
    0,
    -0.0,
    -1,
    1,
    2,
    12,
    0.5,
    128.0,
    1e-320,
    1e-15,
    1e-300,
    1e12,
    1e39,
    1e300,
    -1e300,
    1e308,
    2**31 - 1,
]
NUMBERS += [
    2**31,
    2**32,
    2**53 - 1,
    2**53,
    2**63 - 1,
    2**63,
    2**64 - 1,
    2**64,
    -(2**63),
    -(2**63) - 1,
    65536,
    65537,
]
WORDS = [
    "ok",
    "skipped",
    "failed",
    "pass",
    "fail",
    "cannot_be_checked",
    "not_run",
    "exact",
    "autocast",
    "library",
    "adamw",
    "idx",
]
WORDS += ["sgd", "adam", "tanh", "mse", "bce"]
WORDS += ["cold", "warm", "missing", "noise", "negative", "left", "bf16", "tf32", "cuda", "pytorch-eager"]
RAW = [  # what no value of Python is written as
    "NaN",
    "-Infinity",
    "1e999",
    "-1e999",
    "1" + "0" * 400,
    "1" * 5000,
    "0x10",
    "01",
    "1.",
    "'x'",
    '"\\ud800"',
    '"\\udc80\\ud800"',
    '"\\u0000\\u001b[2J"',
    '"\x01"',
    '"\\x41"',
    "[1,]",
    '{"a": 1, "a": 2}',
    "[" * 100_000 + "]" * 100_000,
    '{"a":' * 100_000 + "1" + "}" * 100_000,
    "[" * 70 + "]" * 70,
    "/* a comment */ 1",
    "",
]
HOLE = "a hole to be filled"


def places(value: object) -> list[tuple[object, object]]:
    """Every member of `value`: what holds it, and its key there."""
    found = []
    if isinstance(value, (dict, list)):
        for key in value if isinstance(value, dict) else range(len(value)):
            found.append((value, key))
            found += places(value[key])
    return found


def odd_value(rng: random.Random) -> object:
    kind = rng.randrange(8)
    if kind < 2:
        return rng.choice(NUMBERS)
    if kind < 4:
        return rng.choice(TEXTS)
    if kind == 4:
        return rng.choice(WORDS)
    if kind == 5:
        return rng.choice([None, True, False, [], {}, [None], [[]], {"": None}, [1, "a", None]])
    if kind == 6:
        return rng.choice([1, -1]) * rng.random() * 10 ** rng.randint(-30, 30)
    return rng.randint(-100, 100_000)


def of_the_same_type(value: object, rng: random.Random) -> object:
    """Odd, but often what a schema allows: this is what the code after it has to live with."""
    if isinstance(value, bool):
        return not value
    if isinstance(value, int):
        return rng.choice([number for number in NUMBERS if isinstance(number, int)])
    if isinstance(value, float):
        return rng.choice([*NUMBERS, value * 10.0 ** rng.randint(-12, 12)])
    return rng.choice(TEXTS + WORDS) if isinstance(value, str) else None


def change_value(document: object, rng: random.Random) -> object:
    holder, key = rng.choice(places(document))
    kind = rng.randrange(14)
    if kind >= 9:
        leaves = [(at, name) for at, name in places(document) if not isinstance(at[name], (dict, list))]
        if leaves:
            holder, key = rng.choice(leaves)
            holder[key] = of_the_same_type(holder[key], rng)
    elif kind < 4:
        holder[key] = odd_value(rng)
    elif kind == 4:
        del holder[key]
    elif kind == 5 and isinstance(holder, list):
        holder[key:key] = [copy.deepcopy(holder[key])] * rng.choice([1, 1, 2, 300])
    elif kind == 5:
        holder[rng.choice([key.upper(), key + " ", "", "\x1b[31m", "extra", *TEXTS])] = holder.pop(key)
    elif kind == 6:
        other, at = rng.choice(places(document))
        holder[key] = copy.deepcopy(other[at])
    elif kind == 7 and isinstance(holder[key], (int, float)) and not isinstance(holder[key], bool):
        holder[key] = rng.choice([-holder[key], holder[key] * 10.0 ** rng.randint(-20, 20), str(holder[key])])
    elif kind == 7 and isinstance(holder[key], str):
        at = rng.randrange(len(holder[key]) + 1)
        holder[key] = holder[key][:at] + rng.choice(TEXTS) + holder[key][at:]
    else:
        holder[key] = HOLE
    return document


def damage_bytes(data: bytes, rng: random.Random) -> bytes:
    if not data:
        return bytes(rng.randrange(256) for _ in range(rng.randrange(64)))
    at, end = sorted((rng.randrange(len(data) + 1), rng.randrange(len(data) + 1)))
    short = min(end, at + rng.choice([1, 4, 40]))
    kind = rng.randrange(9)
    if kind == 0:
        return data[:at]
    if kind == 1:
        return data[:at] + data[end:]
    if kind == 2:
        return data[:at] + data[at:short] * rng.choice([2, 3, 50]) + data[short:]
    if kind == 3:
        return data[:at] + b"\0" * rng.choice([1, 8, 5000]) + data[at:]
    if kind == 4:
        return data[:at] + bytes(rng.randrange(256) for _ in range(rng.randrange(1, 9))) + data[short:]
    if kind == 5:
        return rng.choice(
            [b"", b"\0", b"\xef\xbb\xbf" + data, b"\xff\xfe" + data, data + data, b" " + data + b"\n"]
        )
    flipped = bytearray(data)
    for _ in range(rng.choice([1, 1, 2, 8])):
        flipped[rng.randrange(len(flipped))] ^= 1 << rng.randrange(8)
    return bytes(flipped)


def damaged_json(document: object, rng: random.Random) -> bytes:
    """Mostly one fault; a few at once now and then, so that one that is accepted does not hide another."""
    if rng.random() < 0.25:
        return damage_bytes(json.dumps(document, ensure_ascii=rng.random() < 0.5).encode(), rng)
    changed = copy.deepcopy(document)
    for _ in range(rng.choice([1, 1, 1, 2, 5])):
        if places(changed):
            changed = change_value(changed, rng)
    text = json.dumps(changed, indent=rng.choice([None, 1]))
    return text.replace(f'"{HOLE}"', rng.choice(RAW)).encode("utf-8", "surrogatepass")


def idx(kind: int, sizes: list[int], values: bytes, element: int = 8) -> bytes:
    header = bytes([0, 0, element, kind]) + b"".join((size % 2**32).to_bytes(4, "big") for size in sizes)
    return header + values


def idx_files(rng: random.Random, count: int = 400) -> dict[str, bytes]:
    return {
        "train-images-idx3-ubyte": idx(3, [count, 3, 2], bytes(rng.randrange(256) for _ in range(6 * count))),
        "train-labels-idx1-ubyte": idx(1, [count], bytes(rng.randrange(4) for _ in range(count))),
    }


def damaged_idx_folder(rng: random.Random) -> dict[str, bytes]:
    """Names and contents of a folder in which something is wrong."""
    files = idx_files(rng)
    zipped = rng.random() < 0.5
    name = rng.choice(list(files))
    data = files[name]
    kind = rng.randrange(7)
    if kind == 0:  # the header says something else
        dimensions = data[3]
        sizes = [
            rng.choice([0, 1, 2, 399, 401, 2**16, 2**31 - 1, 2**31, 2**32 - 1]) for _ in range(dimensions)
        ]
        data = idx(
            dimensions, sizes, data[4 + 4 * dimensions :], rng.choice([8, 8, 8, 9, 11, 12, 13, 14, 0, 255])
        )
    elif kind == 1:
        data = rng.choice(
            [b"", b"<!DOCTYPE html><html></html>", data[:7], data[:16], data[:-1], data + b"\0"]
        )
    elif kind == 2:
        del files[name]
    elif kind == 3:
        other = rng.choice(["t10k", "TRAIN", "test", "x", ""])
        files[name.replace("train", other)] = files[name]
    elif kind == 4:  # labels of any kind
        name, data = "train-labels-idx1-ubyte", idx(1, [400], bytes(rng.randrange(256) for _ in range(400)))
    else:
        data = damage_bytes(data, rng)
    if kind not in (2, 3):
        files[name] = data
    if zipped:
        files = {f"{name}.gz": gzip.compress(data, mtime=0) for name, data in files.items()}
        if rng.random() < 0.5:
            name = rng.choice(list(files))
            files[name] = rng.choice([gzip.compress(files[name]), damage_bytes(files[name], rng)])
    return files
