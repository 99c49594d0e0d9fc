"""Files changed at random: values of other kinds, keys lost or written twice, bytes flipped or cut off."""

import json
import random
import re

_DEEP = "[" * 60 + "]" * 60
_WORDS = (
    "", "x", "0", "a" * 3_000, "\ud800", "\0", "\x1b[31m\r\n", "../../etc/passwd", "/", "train-00000.tokens.npy",
    "한국어", "NaN", "1e9", "true", "[MASK]", "bert",
)  # fmt: skip
_VALUES = (
    *(json.dumps(word) for word in _WORDS),
    "0", "1", "-1", "2", "3.5", "-0.0", "0.1", "1e-320", "1e300", "-1e300", "1e999", "NaN", "Infinity", "-Infinity",
    "9007199254740993", "4294967296", "9" * 19, "9" * 40, "-" + "9" * 300, "9" * 330, "9" * 5_000,
    "null", "true", "false", "[]", "{}", "[1]", '["a", "b"]', "[[]]", '{"a": 1}', '{"": null}', "[null]", "[NaN]",
    '[{}]', '{"a": {"b": [1, "2", {}]}}', _DEEP, '{"a": ' * 60 + "1" + "}" * 60, "[" * 5_000, "[" + "0," * 5_000 + "0]",
)  # fmt: skip


_BYTES = (b"\0", b"\xff", b"\n", b'"', b"{", b"\xed\xa0\x80", b"\\ud800", b"\xef\xbb\xbf")
_TOML = (*_VALUES, "nan", "inf", "2026-01-01", "1_000", "'''a'''", "0x10", "{a = 1}", "'base'")
_TOML_LINES = ("[task]", "[[train]]", "a.b.c = 1", "like = 3", 'like = "base"', "x", "= 1")


class Raw:
    """A value as it is to be written."""

    def __init__(self, text):
        self.text = text


def _places(value, path=()):
    """Every place of a JSON value; of long lists and objects some."""
    yield path
    if isinstance(value, dict):
        for key in list(value)[:60]:
            yield from _places(value[key], (*path, key))
    elif isinstance(value, list):
        for index in list(range(len(value)))[:12]:
            yield from _places(value[index], (*path, index))


def _written(value):
    """JSON of a value with raw parts and keys that stand twice."""
    if isinstance(value, Raw):
        return value.text
    if isinstance(value, dict):
        return "{" + ", ".join(f"{json.dumps(str(key))}: {_written(inner)}" for key, inner in value.items()) + "}"
    if isinstance(value, list):
        return "[" + ", ".join(map(_written, value)) + "]"
    return json.dumps(value)


def _with(value, path, changed):
    """A value with another one at a place."""
    if not path:
        return changed
    copy = dict(value) if isinstance(value, dict) else list(value)
    copy[path[0]] = _with(value[path[0]], path[1:], changed)
    return copy


def _at(value, path):
    for key in path:
        value = value[key]
    return value


def mutated_json(text, rng):
    """JSON with one to three of its values changed."""
    value = json.loads(text)
    for _ in range(rng.choice((1, 1, 1, 2, 3))):
        places = [path for path in _places(value) if path] or [()]
        path, odd, kind = rng.choice(places), Raw(rng.choice(_VALUES)), rng.random()
        if kind < 0.7 or not path:
            value = _with(value, path, odd)
        elif kind < 0.8:  # a key or an item is gone
            parent, key = _at(value, path[:-1]), path[-1]
            left = [item for index, item in enumerate(parent) if index != key]
            if isinstance(parent, dict):
                left = {name: item for name, item in parent.items() if name != key}
            value = _with(value, path[:-1], left)
        elif kind < 0.9:  # what another place has
            value = _with(value, path, _at(value, rng.choice(places)))
        else:  # an item more, or a key, perhaps one that is there already
            parent = _at(value, path[:-1])
            more = [*parent, odd]
            if isinstance(parent, dict):
                start = _written(parent)[:-1] + (", " if parent else "")
                more = Raw(f"{start}{json.dumps(rng.choice((*_WORDS, path[-1])))}: {odd.text}}}")
            value = _with(value, path[:-1], more)
        text = _written(value)
        try:
            value = json.loads(text)
        except (ValueError, RecursionError):
            break
    return text.encode("utf-8", "surrogatepass")


def mutated_bytes(data, rng):
    """Bytes flipped, lost, doubled or put in."""
    data = bytearray(data)
    for _ in range(rng.choice((1, 1, 2, 5))):
        place = rng.randrange(len(data) + 1)
        kind = rng.randrange(6)
        if kind == 0:
            del data[place:]
        elif kind == 1 and data:
            data[min(place, len(data) - 1)] ^= 1 << rng.randrange(8)
        elif kind == 2:
            data[place:place] = rng.choice(
                (b"\0", b"\xff", b"\n", b'"', b"{", b"\xed\xa0\x80", b"\\ud800", b"\xef\xbb\xbf")
            )
        elif kind == 3:
            del data[place : place + rng.randint(1, 20)]
        elif kind == 4:
            end = min(len(data), place + rng.randint(1, 40))
            data[place:place] = data[place:end]
        elif data:
            data[min(place, len(data) - 1)] = rng.randrange(256)
    return bytes(data)


def mutated_lines(data, rng, mutate):
    """One line or two changed, doubled, lost or moved."""
    lines = data.split(b"\n")
    for _ in range(rng.choice((1, 1, 2))):
        index = rng.randrange(len(lines))
        kind = rng.random()
        if kind < 0.75 and lines[index].strip():
            lines[index] = mutate(lines[index], rng)
        elif kind < 0.85:
            lines.insert(rng.randrange(len(lines) + 1), lines[index])
        elif kind < 0.95:
            lines[index] = rng.choice((b"", b"null", b"[]", b"3", b'"', b"\0", b"x" * 5_000, b"{}", b'{"step": 3}'))
        else:
            rng.shuffle(lines)
    return b"\n".join(lines)


def mutated_text(data, rng):
    """A file of plain lines with some of them changed."""

    def other(line, rng):
        word = rng.choice(_WORDS).encode("utf-8", "surrogatepass")
        return rng.choice((word, mutated_bytes(line, rng)))

    return mutated_lines(data, rng, other)


def mutated_toml(data, rng):
    """A recipe with some of its values changed."""
    lines = data.decode().split("\n")
    for _ in range(rng.choice((1, 1, 2))):
        index = rng.randrange(len(lines))
        key, equals, _ = lines[index].partition(" = ")
        kind = rng.random()
        if equals and kind < 0.7:
            lines[index] = f"{key} = {rng.choice(_TOML)}"
        elif kind < 0.8:
            lines.insert(index, lines[rng.randrange(len(lines))])
        elif kind < 0.9:
            del lines[index]
            lines = lines or [""]
        else:
            lines.insert(index, rng.choice(_TOML_LINES))
    return "\n".join(lines).encode("utf-8", "surrogatepass")


def mutated_safetensors(data, rng):
    """A file of weights whose header is changed, or a few of its bytes."""
    length = int.from_bytes(data[:8], "little")
    if rng.random() < 0.3:
        return mutated_bytes(data[: 8 + length], rng) + data[8 + length :]
    header = mutated_json(data[8 : 8 + length].decode(), rng)
    return len(header).to_bytes(8, "little") + header + data[8 + length :]


def mutate(name, data, rng):
    """Change a file in a way that fits its name."""
    if rng.random() < 0.15 and not name.endswith(".safetensors"):
        return mutated_bytes(data, rng)
    if name.endswith(".safetensors"):
        return mutated_safetensors(data, rng)
    if name.endswith(".toml"):
        return mutated_toml(data, rng)
    if name.endswith((".jsonl", ".ndjson")):
        return mutated_lines(data, rng, lambda line, rng: mutated_json(line.decode(), rng) if _is_json(line) else b"")
    if name.endswith(".json"):
        return mutated_json(data.decode(), rng)
    return mutated_text(data, rng)


def _is_json(line):
    try:
        json.loads(line)
    except (ValueError, RecursionError):
        return False
    return True


def seeded(*names):
    """A generator that is the same for the same names."""
    return random.Random(re.sub(r"\W", "", repr(names)))
