"""Checkpoints made by other code than the package's: several blocks, shared prefixes, several files, parts.

A checksum of one bit at a time, written from its definition, and the formats again in their general form, so that
reader and writer of the package cannot agree on the same mistake. `seal` makes hostile content pass the checksums.
"""

import struct

import numpy as np

TYPES = {"float32": 1, "float64": 2, "int32": 3, "uint8": 4, "int64": 9, "bool": 10, "float16": 19}
MAGIC = bytes.fromhex("57fb808b247547db")


def crc_by_bits(data, state=0):
    state ^= 0xFFFFFFFF
    for byte in data:
        state ^= byte
        for _ in range(8):
            state = state >> 1 ^ (0x82F63B78 if state & 1 else 0)
    return state ^ 0xFFFFFFFF


def mask(crc):
    return ((crc >> 15 | crc << 17) + 0xA282EAD8) % 2**32


def varint(number):
    number %= 2**64
    groups = []
    while True:
        groups.append(number & 127)
        number >>= 7
        if not number:
            return bytes(group | 128 for group in groups[:-1]) + bytes(groups[-1:])


def field(number, value):
    """A number as a varint, bytes with their length; a float stands for four fixed bytes."""
    if isinstance(value, bytes):
        return varint(number << 3 | 2) + varint(len(value)) + value
    if isinstance(value, float):
        return varint(number << 3 | 5) + struct.pack("<I", int(value))
    return varint(number << 3) + varint(value)


def header(num_shards=1, *, big_endian=False):
    return field(1, num_shards) + (field(2, 1) if big_endian else b"") + field(3, field(1, 1))


def entry(type_number, shape, *, shard=0, offset=0, size=0, checksum=0, places=()):
    dims = b"".join(field(2, field(1, dim)) for dim in shape)
    slices = b"".join(
        field(7, b"".join(field(1, field(1, start) + field(2, length)) for start, length in place)) for place in places
    )
    place = field(3, shard) + field(4, offset) + field(5, size)
    return field(1, type_number) + field(2, dims) + place + field(6, float(checksum)) + slices


def seal(content, crc=crc_by_bits, kind=0):
    content += bytes([kind])
    return content + struct.pack("<I", mask(crc(content)))


def block(entries, restart_interval=16):
    written, restarts, before = bytearray(), [], b""
    for number, (key, value) in enumerate(entries):
        shared = 0
        if number % restart_interval == 0:
            restarts.append(len(written))
        else:
            while shared < min(len(key), len(before)) and key[shared] == before[shared]:
                shared += 1
        written += varint(shared) + varint(len(key) - shared) + varint(len(value)) + key[shared:] + value
        before = key
    return bytes(written) + b"".join(struct.pack("<I", number) for number in (*(restarts or [0]), len(restarts) or 1))


def table(entries, *, per_block=5, restart_interval=3, crc=crc_by_bits):
    """A whole table with several blocks, in each of which keys share their beginnings."""
    groups = [entries[first : first + per_block] for first in range(0, len(entries), per_block)]
    return assemble([block(group, restart_interval) for group in groups], [group[-1][0] for group in groups], crc)


def assemble(blocks, last_keys, crc=crc_by_bits):
    """Lay blocks end to end with all that belongs around them."""
    laid, handles = b"", []
    for content in [*blocks, block([])]:
        handles.append(varint(len(laid)) + varint(len(content)))
        laid += seal(content, crc)
    index = block(list(zip(last_keys, handles, strict=False)), 1)
    footer = handles[-1] + varint(len(laid)) + varint(len(index))
    return laid + seal(index, crc) + footer.ljust(40, b"\0") + MAGIC


def ordered_number(number):
    digits = number.to_bytes(8, "big").lstrip(b"\0")
    return bytes([len(digits)]) + digits


def ordered_signed(number):
    """Up to two bytes, enough for the sizes of the tests."""
    if -64 <= number < 64:
        return bytes([0x80 ^ number & 0xFF])
    assert 64 <= number < 8192
    return struct.pack(">H", 0xC000 ^ number)


def part_key(name, place):
    text = name.encode().replace(b"\xff", b"\xff\0") + b"\0\1"
    numbers = b"".join(ordered_signed(number) for extent in place for number in extent)
    return ordered_number(0) + text + ordered_number(len(place)) + numbers


def build(prefix, tensors, *, num_shards=1, parts=None, **options):
    """Write a checkpoint: tensors dealt to the shards in turn, some of them split as `parts` says (axis, lengths)."""
    shards, entries = [b""] * num_shards, {b"": header(num_shards)}

    def store(array, number):
        shard, raw = number % num_shards, array.tobytes()
        place = {"shard": shard, "offset": len(shards[shard]), "size": len(raw), "checksum": mask(crc_by_bits(raw))}
        shards[shard] += raw
        return entry(TYPES[array.dtype.name], array.shape, **place)

    for number, (name, array) in enumerate(tensors.items()):
        if name not in (parts or {}):
            entries[name.encode()] = store(array, number)
            continue
        axis, lengths = parts[name]
        places, starts = [], np.cumsum([0, *lengths])
        for turn, (start, length) in enumerate(zip(starts.tolist(), lengths, strict=False)):
            place = [(start, length) if at == axis else (0, dim) for at, dim in enumerate(array.shape)]
            part = np.take(array, range(start, start + length), axis)
            entries[part_key(name, place)] = store(part, number + turn)
            places.append(place)
        entries[name.encode()] = entry(TYPES[array.dtype.name], array.shape, places=places)
    prefix.with_name(prefix.name + ".index").write_bytes(table(sorted(entries.items()), **options))
    for shard, content in enumerate(shards):
        prefix.with_name(f"{prefix.name}.data-{shard:05d}-of-{num_shards:05d}").write_bytes(content)
    return prefix


def some_tensors(seed=0):
    """A tensor of every type and of several ranks, small enough for a checksum by bits."""
    random = np.random.default_rng(seed)
    tensors = {f"layer_{number}/{name}": random.normal(0, 9, (3, 4)).astype(name) for number, name in enumerate(TYPES)}
    return tensors | {
        "global_step": np.array(7, np.int64),
        "bert/embeddings/word_embeddings": random.normal(size=(50, 8)).astype(np.float32),
        "bert/embeddings/word_embeddings/adam_m": random.normal(size=(50, 8)).astype(np.float32),
        "empty": np.zeros((0, 5), np.float32),
        "cube": random.normal(size=(2, 3, 4)).astype(np.float32),
    }
