"""JSON files that somebody else may have made: read within limits, checked against a schema, then trusted.

The limits are those of bench/driver/system/json_file.cpp: what one side reads, the other reads too.
"""

from __future__ import annotations

import functools
import hashlib
import json
from collections.abc import Callable, Iterator
from pathlib import Path

SCHEMAS = Path(__file__).resolve().parents[1] / "results"
MOST_BYTES = 1 << 30
MOST_DEPTH = 64
# A terminal obeys escape sequences, and no XML may hold them: SVG and HTML of them would not be well-formed.
CONTROLS = {code: "\ufffd" for code in (*range(0x20), *range(0x7F, 0xA0), 0xFFFE, 0xFFFF)}
CONTROLS |= dict.fromkeys(map(ord, "\t\n\r"), " ")
TYPES = {
    "string": "a string",
    "number": "a number",
    "integer": "a whole number",
    "object": "an object",
    "boolean": "true or false",
    "array": "a list",
    "null": "null",
}


class InputError(Exception):
    """A file that cannot be used. One line: where, what is wrong, what would be right."""


def read(path: Path, what: str, schema: str) -> dict:
    """`what`: what was expected, such as 'a results file'. `schema`: a file of results/."""
    document = parsed(path, what)
    check(document, path, schema)
    return document


def parsed(path: Path, what: str) -> object:
    """Takes a byte order mark; text of the file holds no control characters. Raises InputError."""
    try:
        with path.open("rb") as stream:
            data = stream.read(MOST_BYTES + 1)
    except OSError as error:
        raise InputError(f"{path}: cannot be read: {error.strerror}") from None
    if len(data) > MOST_BYTES:
        raise InputError(f"{path}: is larger than {MOST_BYTES} bytes")
    try:
        text = data.decode("utf-8-sig")
        document = json.loads(text, parse_constant=_refuse_constant, object_pairs_hook=_members)
        return _clean(document, 0)
    except RecursionError:
        reason = f"brackets more than {MOST_DEPTH} deep"
    except UnicodeError:
        reason = "no JSON: not Unicode text"
    except _Fault as error:
        reason = str(error)
    except ValueError as error:
        reason = f"no JSON: {error}"
    raise InputError(f"{path}: expected {what}, found {reason}")


class _Fault(Exception):
    pass


def _refuse_constant(name: str) -> None:
    raise ValueError(f"{name} is no number of JSON")


def _members(pairs: list[tuple[str, object]]) -> dict:
    members = dict(pairs)
    if len(members) < len(pairs):
        keys = [key for key, _ in pairs]
        twice = next(key for key in keys if keys.count(key) > 1)
        raise _Fault(f"key {shown(twice)} twice in one object")
    return members


def _clean(value: object, depth: int) -> object:
    if isinstance(value, str):
        value.encode()  # a lone surrogate is no text
        return value.translate(CONTROLS)
    if isinstance(value, (dict, list)):
        if depth >= MOST_DEPTH:
            raise RecursionError
        if isinstance(value, list):
            return [
                _clean(item, depth + 1) if isinstance(item, (str, dict, list)) else item for item in value
            ]
        for key in value:
            if _clean(key, 0) != key:
                raise _Fault(f"key {shown(key)}, which holds a control character")
        return {key: _clean(item, depth + 1) for key, item in value.items()}
    return value


def shown(value: object) -> str:
    """For complaints: the value as JSON in at most 40 characters of ASCII."""
    text = json.dumps(value, separators=(",", ":"))
    return text if len(text) <= 40 else text[:37] + "..."


def check(document: object, path: Path, schema: str) -> None:
    """Raises InputError with the first fault: `records[3].step_seconds: expected a number, found null`."""
    rules = _rules(schema)
    version = rules["properties"]["schema_version"]["const"]
    # First, because a file of another version has other fields.
    if isinstance(document, dict) and document.get("schema_version", version) != version:
        found = shown(document["schema_version"])
        raise InputError(f"{path}: schema_version: expected {version}, found {found}")
    # It takes a second for some two megabytes, and who checks the docs reads the same files again and again.
    known = schema, hashlib.sha256(json.dumps(document).encode()).digest()
    if known in _checked:
        return
    error = next(_validator(rules).iter_errors(document), None)
    if error is not None:
        raise InputError(f"{path}: {_complaint(error)}")
    _checked.add(known)


_checked: set[tuple[str, bytes]] = set()


@functools.cache
def _rules(schema: str) -> dict:
    """The schema with its definitions where they are referred to: jsonschema is twice as fast with it."""
    rules = json.loads((SCHEMAS / schema).read_text(encoding="utf-8"))
    definitions = rules.pop("$defs")

    def inlined(part: object) -> object:
        if isinstance(part, list):
            return [inlined(item) for item in part]
        if not isinstance(part, dict):
            return part
        if "$ref" in part:
            return inlined(definitions[part["$ref"].removeprefix("#/$defs/")])
        return {key: inlined(value) for key, value in part.items()}

    return inlined(rules)


def _validator(rules: dict):
    import jsonschema  # here, so that programs can say that it is missing

    validator = jsonschema.Draft202012Validator
    # As in C++ (and unlike JSON Schema), 1.0 is no whole number: who reads it must not meet a float.
    whole = validator.TYPE_CHECKER.redefine(
        "integer", lambda _, value: isinstance(value, int) and not isinstance(value, bool)
    )
    items = _items(validator.VALIDATORS["items"])
    return jsonschema.validators.extend(validator, {"items": items}, type_checker=whole)(rules)


def _items(thorough: Callable) -> Callable:
    """jsonschema takes some 10 µs a value, and curves of losses hold most of a file's values: of a list of
    numbers only the extremes are checked. What a schema says of numbers is a type and a range."""

    def check_items(validator, items: dict, values: object, schema: dict) -> Iterator:
        if isinstance(values, list):
            kinds = {kind: [value for value in values if type(value) is kind] for kind in (int, float)}
            unknown = values.count(None)
            if len(values) == sum(map(len, kinds.values())) + unknown:
                extremes = [end for some in kinds.values() if some for end in (min(some), max(some))]
                extremes += [None] if unknown else []
                if all(validator.evolve(schema=items).is_valid(one) for one in extremes):
                    return
        yield from thorough(validator, items, values, schema)

    return check_items


def _complaint(error) -> str:
    while error.context:  # of anyOf and the like: what the first alternative lacked
        error = error.context[0]
    where = "".join(f"[{part}]" if isinstance(part, int) else f".{part}" for part in error.absolute_path)
    where = where.removeprefix(".")
    value, schema = error.instance, error.schema
    if error.validator == "required":
        missing = next(key for key in schema["required"] if key not in value)
        return f"{where}.{missing}: is missing".removeprefix(".")
    if error.validator == "additionalProperties":
        extra = next(key for key in value if key not in schema.get("properties", ()))
        return f"{where}.{extra}: unknown field".removeprefix(".")
    expected = expectation({"type": schema["type"]} if error.validator == "type" else schema)
    return f"{where and f'{where}: '}expected {expected or 'nothing'}, found {shown(value)}"


def expectation(schema: dict) -> str:
    """What a schema asks of a value itself, in words: 'a number or null, at least 0'."""

    def bare(value: object) -> str:
        return value if isinstance(value, str) else json.dumps(value)

    if "const" in schema:
        return bare(schema["const"])
    if "enum" in schema:
        return f"one of {', '.join(map(bare, schema['enum']))}"
    types = schema.get("type", [])
    words = [" or ".join(TYPES[name] for name in ([types] if isinstance(types, str) else types))]
    for key, word in (
        ("exclusiveMinimum", "above"),
        ("minimum", "at least"),
        ("maximum", "at most"),
        ("exclusiveMaximum", "below"),
    ):
        words += [f"{word} {schema[key]:g}"] if key in schema else []
    if "minLength" in schema:
        words = [words[0] or "a string", *words[1:], "not empty"]
    words += [f"like {schema['pattern']}"] if "pattern" in schema else []
    words += [f"{schema['minItems']} items or more"] if "minItems" in schema else []
    words += [f"{schema['maxItems']} items or fewer"] if "maxItems" in schema else []
    return ", ".join(filter(None, words))
