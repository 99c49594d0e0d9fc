"""Pickled weights, `pytorch_model.bin`: read on request only, and as data; no code in them is run.

A pickle is a program for a small stack machine, and the danger lies in two of its instructions: the one that looks up a
name and the one that calls what was found. `Machine` is such a machine that can look up and call nothing. A name
becomes a note of the name; a call of one of three known names becomes a note of a tensor, a storage or a dictionary;
anything else ends the reading. The result is the position of each tensor's numbers in the file, as plain JSON; the
numbers are then read from the mapped file like those of any other. There is no fallback.

- The machine runs as a process of its own, `python -m bertworks.models.pickles FILE`, with a limit of time and memory,
  for a hostile file may still try to be large.
- Why not `torch.load(weights_only=True)` in such a process: it needs torch there, which takes seconds to import against
  a quarter of a second; it holds the numbers themselves, so the limit of memory would have to grow with what the file
  claims, and they would have to come back through a second file; and it takes tensors of any size that repeat one
  number, which are refused here.
"""

import json
import math
import mmap
import os
import pickletools
import struct
import subprocess
import sys
import zipfile
from collections.abc import Callable
from pathlib import Path
from typing import IO, TYPE_CHECKING, Any, NamedTuple

from bertworks.errors import CorruptFile, UserError
from bertworks.models.folder import CONFIG_FILE, read_json
from bertworks.models.names import EMBEDDING, OUTPUT, TIED
from bertworks.models.weights import NUM_BYTES, Entry, read_sharded, view_of

if TYPE_CHECKING:
    from torch import Tensor

PICKLE_FILE = "pytorch_model.bin"
PICKLE_INDEX_FILE = "pytorch_model.bin.index.json"
_TIMEOUT_S = 60
_COPIES = {**TIED, OUTPUT: EMBEDDING}  # of a BERT and of a GPT-1
_TYPES = {
    "DoubleStorage": "F64", "FloatStorage": "F32", "HalfStorage": "F16", "BFloat16Storage": "BF16",
    "LongStorage": "I64", "IntStorage": "I32", "ShortStorage": "I16", "CharStorage": "I8", "ByteStorage": "U8",
    "BoolStorage": "BOOL",
}  # fmt: skip
_DICTIONARY, _REBUILD = "collections.OrderedDict", "torch._utils._rebuild_tensor_v2"
_ALLOWED = {_DICTIONARY, _REBUILD, *(f"torch.{name}" for name in _TYPES)}
_LEGACY_MAGIC = 0x1950A86A20F9469CFC6C
_MAX_DIMENSIONS = 8
_MAX_PROGRAM_BYTES = 64 << 20
_CPU_SECONDS, _MEMORY_BYTES = 20, 1 << 30

_PUSHES = {
    "BINUNICODE", "SHORT_BINUNICODE", "BINUNICODE8", "BININT", "BININT1", "BININT2", "LONG1", "BINFLOAT", "BINSTRING",
    "SHORT_BINSTRING",
}  # fmt: skip
_CONSTANTS: dict[str, Callable[[], Any]] = {
    "NONE": lambda: None, "NEWTRUE": lambda: True, "NEWFALSE": lambda: False, "EMPTY_DICT": dict, "EMPTY_LIST": list,
    "EMPTY_TUPLE": tuple,
}  # fmt: skip


def read_pickle_weights(path: str | os.PathLike[str]) -> "dict[str, Tensor]":
    """Return the tensors of a file that `torch.save` wrote, as views of the mapped file; no code in it is run."""
    command = [sys.executable, "-P", "-m", "bertworks.models.pickles", os.path.abspath(path)]
    try:
        # Our own module and a path, without a shell.
        ended = subprocess.run(command, capture_output=True, timeout=_TIMEOUT_S, check=False)  # noqa: S603
    except subprocess.TimeoutExpired:
        raise UserError(f"refused: pickle {path} takes longer than {_TIMEOUT_S} s to look through") from None
    try:
        answer = json.loads(ended.stdout)
    except ValueError:
        raise UserError(f"refused: pickle {path} takes more time or memory to look through than weights do") from None
    if "refused" in answer:
        raise UserError(f"refused: pickle {path} {answer['refused']}")
    if "damaged" in answer:
        raise CorruptFile(f"refused: pickle {path} is damaged ({answer['damaged']})")
    tensors: dict[str, Tensor] = {}
    if not answer["tensors"]:
        return tensors
    try:
        with open(path, "rb") as stream:
            mapped = mmap.mmap(stream.fileno(), 0, access=mmap.ACCESS_COPY)
        for name, (kind, first_byte, num_items, offset, size, stride) in answer["tensors"].items():
            entry = Entry(_TYPES[kind], (num_items,), first_byte, num_items * NUM_BYTES[_TYPES[kind]])
            tensors[name] = view_of(mapped, entry).as_strided(size, stride, offset)
        return tensors
    except (OSError, ValueError, RuntimeError) as error:
        raise CorruptFile(f"{path} was changed while it was read: {str(error)[:120]}") from error


def read_pickled_folder(folder: Path) -> "dict[str, Tensor]":
    """Return the weights, each once, of a folder with pytorch_model.bin, or with several such files and their index."""
    if (folder / PICKLE_FILE).is_file():
        tensors = read_pickle_weights(folder / PICKLE_FILE)
    elif (folder / PICKLE_INDEX_FILE).is_file():
        tensors = read_sharded(folder / PICKLE_INDEX_FILE, read_pickle_weights)
    else:
        raise UserError(f"{folder} has neither {PICKLE_FILE} nor {PICKLE_INDEX_FILE}")
    # If the configuration says that they are not tied, transformers needs both, even if they are equal.
    if read_json(folder / CONFIG_FILE).get("tie_word_embeddings") is not False:
        for copy, original in _COPIES.items():
            # In old files the original's name lacks its first part.
            originals = [tensors[one] for one in (original, original.partition(".")[2]) if one in tensors]
            if copy in tensors and any(tensors[copy].equal(one) for one in originals):
                tensors = {name: tensor for name, tensor in tensors.items() if name != copy}
    return tensors


class Name(NamedTuple):
    """A name that a pickle looked up; nothing was imported for it."""

    path: str


class Storage(NamedTuple):
    """A row of numbers that tensors are views of."""

    kind: str
    key: str
    num_items: int


class TensorNote(NamedTuple):
    """A view of a storage."""

    storage: Storage
    offset: int
    size: tuple[int, ...]
    stride: tuple[int, ...]


class Machine:
    """Runs one pickle without importing or calling anything."""

    def __init__(self) -> None:
        self.stack: list[Any] = []
        self.marks: list[int] = []
        self.memo: dict[int, Any] = {}

    def run(self, stream: IO[bytes]) -> Any:
        """Return what the pickle at the stream's place describes."""
        for opcode, argument, _ in pickletools.genops(stream):
            if opcode.name in _PUSHES:
                self.stack.append(argument)
            elif opcode.name in _CONSTANTS:
                self.stack.append(_CONSTANTS[opcode.name]())
            elif opcode.name == "STOP":
                return self.stack.pop()
            elif opcode.name not in ("PROTO", "FRAME"):
                self._do(opcode.name, argument)
        raise ValueError("it does not end")

    def _do(self, name: str, argument: Any) -> None:
        stack = self.stack
        if name == "MARK":
            self.marks.append(len(stack))
        elif name in ("BINPUT", "LONG_BINPUT", "MEMOIZE"):
            self.memo[len(self.memo) if name == "MEMOIZE" else argument] = stack[-1]
        elif name in ("BINGET", "LONG_BINGET"):
            stack.append(self.memo[argument])
        elif name.startswith("TUPLE"):
            stack.append(tuple(self._popped(int(name[5:]) if name[5:] else None)))
        elif name in ("SETITEM", "SETITEMS"):
            items = self._popped(2 if name == "SETITEM" else None)
            _of_kind(stack[-1], dict).update(zip(items[::2], items[1::2], strict=True))
        elif name in ("APPEND", "APPENDS"):
            items = self._popped(1 if name == "APPEND" else None)
            _of_kind(stack[-1], list).extend(items)
        else:
            self._do_harmless_form_of(name, argument)

    def _do_harmless_form_of(self, name: str, argument: Any) -> None:
        """Note what other readers of pickles would look up, call or change."""
        stack = self.stack
        if name == "GLOBAL":
            stack.append(_allowed(argument.replace(" ", ".")))
        elif name == "STACK_GLOBAL":
            module, attribute = self._popped(2)
            stack.append(_allowed(f"{module}.{attribute}"))
        elif name == "REDUCE":
            called, arguments = self._popped(2)
            stack.append(_note_call(called, arguments))
        elif name == "BINPERSID":
            stack.append(_note_storage(stack.pop()))
        elif name == "BUILD":  # attributes of the dictionary, such as version numbers of its layers
            stack.pop()
            _of_kind(stack[-1], dict)
        else:
            raise UserError(f"uses {name}, which a file of tensors does not")

    def _popped(self, count: int | None) -> list[Any]:
        """Take values off the stack: so many, or those above the last mark."""
        first = self.marks.pop() if count is None else len(self.stack) - count
        if first < 0:
            raise ValueError("it takes more from its stack than there is")
        values = self.stack[first:]
        del self.stack[first:]
        return values


def _of_kind(value: Any, kind: type) -> Any:
    if type(value) is not kind:
        raise ValueError(f"a {type(value).__name__} stands where a {kind.__name__} should")
    return value


def _allowed(path: str) -> Name:
    if path not in _ALLOWED:
        raise UserError(f"asks for {path[:80]}")
    return Name(path)


def _note_call(called: Any, arguments: Any) -> Any:
    path = _of_kind(called, Name).path
    if path == _DICTIONARY:
        return dict(*_of_kind(arguments, tuple))
    if path == _REBUILD:
        storage, offset, size, stride = _of_kind(arguments, tuple)[:4]
        return _check_view(TensorNote(_of_kind(storage, Storage), offset, size, stride))
    raise UserError(f"calls {path}, which a file of tensors does not")


def _note_storage(persistent_id: Any) -> Storage:
    word, name, key, _, num_items, *view = _of_kind(persistent_id, tuple)
    kind = _of_kind(name, Name).path.removeprefix("torch.")
    if word != "storage" or kind not in _TYPES or view not in ([], [None]):
        raise ValueError("a storage is not described as torch does")
    if type(num_items) is not int or not 0 <= num_items < 1 << 48:
        raise ValueError(f"a storage of {str(num_items)[:40]} numbers")
    return Storage(kind, _of_kind(key, str), num_items)


def _check_view(note: TensorNote) -> TensorNote:
    numbers = [note.offset, *_of_kind(note.size, tuple), *_of_kind(note.stride, tuple)]
    if not all(type(number) is int and 0 <= number < 1 << 48 for number in numbers):
        raise ValueError("a tensor's sizes are not whole numbers")
    if len(note.size) != len(note.stride) or len(note.size) > _MAX_DIMENSIONS:
        raise ValueError("a tensor has another number of sizes than of strides, or too many")
    last = note.offset + sum((size - 1) * stride for size, stride in zip(note.size, note.stride, strict=True))
    num_items = math.prod(note.size)
    # The second: a stride of 0 makes a tensor of any size out of one number.
    if num_items and (last >= note.storage.num_items or num_items > note.storage.num_items):
        raise ValueError("a tensor reaches beyond its storage")
    return note


def describe(path: Path) -> dict[str, list[Any]]:
    """Return for every tensor of a file: kind, first byte and length of its storage, offset, size, stride."""
    with open(path, "rb") as stream:
        start = stream.read(4)
        stream.seek(0)
        if start == b"PK\x03\x04":
            tensors, places = _read_archive(stream)
        elif start[:1] == b"\x80":
            tensors, places = _read_legacy(stream)
        else:
            raise UserError("is not a file that torch.save wrote")
        end = stream.seek(0, 2)
    described: dict[str, list[Any]] = {}
    for name, note in tensors.items():
        storage = note.storage
        first_byte, num_bytes = places[storage.key]
        if storage.num_items * NUM_BYTES[_TYPES[storage.kind]] > num_bytes or first_byte + num_bytes > end:
            raise ValueError(f"the numbers of {name!r:.60} are cut off")
        described[name] = [storage.kind, first_byte, storage.num_items, *note[1:]]
    return described


def _checked(content: Any) -> dict[str, TensorNote]:
    """Return what a file holds if that is tensors by name; a training checkpoint has a message of its own."""
    for name, part in _of_kind(content, dict).items():
        if type(part) is dict and any(type(note) is TensorNote for note in part.values()):
            raise UserError(
                f"is a training checkpoint: its weights are only one part of it, {name!r:.40}; where it was made, save "
                "that part alone with torch.save, as pytorch_model.bin"
            )
    return {_of_kind(name, str): _of_kind(note, TensorNote) for name, note in content.items()}


def _read_archive(stream: IO[bytes]) -> tuple[dict[str, TensorNote], dict[str, tuple[int, int]]]:
    """Read the zip form: a pickle beside one uncompressed file for each storage."""
    with zipfile.ZipFile(stream) as archive:
        entries = {entry.filename: entry for entry in archive.infolist()}
        programs = [name for name in entries if name.endswith("/data.pkl") and name.count("/") == 1]
        if len(programs) != 1 or len(entries) < len(archive.infolist()):
            raise UserError("is not a file that torch.save wrote")
        if any(entry.compress_type != zipfile.ZIP_STORED or entry.flag_bits & 1 for entry in entries.values()):
            raise UserError("is compressed or encrypted, which torch.save never does")
        root = programs[0].removesuffix("data.pkl")
        if f"{root}byteorder" in entries and archive.read(f"{root}byteorder") != b"little":
            raise UserError("has its bytes in the other order; save it again on a common machine")
        if entries[programs[0]].file_size > _MAX_PROGRAM_BYTES:
            raise UserError(f"has a pickle of {entries[programs[0]].file_size:,} bytes, too much for names and sizes")
        with archive.open(programs[0]) as program:
            tensors = _checked(Machine().run(program))
    storages = {name: entry for name, entry in entries.items() if name.startswith(f"{root}data/")}
    places = {name.removeprefix(f"{root}data/"): _place(stream, entry) for name, entry in storages.items()}
    return tensors, places


def _place(stream: IO[bytes], entry: zipfile.ZipInfo) -> tuple[int, int]:
    """Return where an uncompressed file lies in its archive: after a header with two parts of variable length."""
    stream.seek(entry.header_offset)
    signature, name_bytes, extra_bytes = struct.unpack("<4s22xHH", stream.read(30))
    if signature != b"PK\x03\x04":
        raise ValueError("its directory points to no file")
    return entry.header_offset + 30 + name_bytes + extra_bytes, entry.file_size


def _read_legacy(stream: IO[bytes]) -> tuple[dict[str, TensorNote], dict[str, tuple[int, int]]]:
    """Read the form before the zip: five pickles, then each storage's length and numbers in the order of the last."""
    magic, version, machine = (Machine().run(stream) for _ in range(3))
    if (magic, version) != (_LEGACY_MAGIC, 1001) or _of_kind(machine, dict).get("little_endian") is not True:
        raise UserError("is not a file that torch.save wrote")
    tensors, keys = _checked(Machine().run(stream)), _of_kind(Machine().run(stream), list)
    storages = [note.storage for note in tensors.values()]
    kinds = {storage.key: storage.kind for storage in storages}
    places = {}
    for key in keys:
        (num_items,) = struct.unpack("<q", stream.read(8))
        num_bytes = num_items * NUM_BYTES[_TYPES[kinds[key]]]
        places[key] = (stream.tell(), num_bytes)
        stream.seek(num_bytes, 1)
    return tensors, places


def main() -> None:
    """Print what a file holds, or why it is not read, as one line of JSON."""
    import resource

    resource.setrlimit(resource.RLIMIT_CPU, (_CPU_SECONDS, _CPU_SECONDS))
    resource.setrlimit(resource.RLIMIT_AS, (_MEMORY_BYTES, _MEMORY_BYTES))
    answer: dict[str, Any]
    try:
        answer = {"tensors": describe(Path(sys.argv[1]))}
    except UserError as error:
        answer = {"refused": str(error)}
    except OSError as error:
        answer = {"refused": f"cannot be read: {error.strerror}"}
    except Exception as error:  # whatever a hostile file makes a parser raise, it is a damaged file to us
        answer = {"damaged": f"{type(error).__name__}: {error}"[:200]}
    print(json.dumps(answer))


if __name__ == "__main__":
    main()
