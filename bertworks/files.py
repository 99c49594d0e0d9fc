"""Atomic writes of files and folders, manifests, locks on folders, and JSON from outside.

`atomic_write` and `atomic_folder` write under a temporary name, sync to disk and rename. After a kill, a full disk or a
power cut the old state is still there. A manifest lists the size and sha256 of every file of a folder and is written
last: a folder whose manifest verifies is complete. Names from users become paths only through `safe_join`. `exclusive`
keeps two runs from writing into the same folder.

`parse_json` is the one place where JSON from outside is parsed. It is stricter than Python's parser, which raises a
RecursionError on deep nesting and a bare ValueError on integers of thousands of digits, returns integers that no float
can hold, and returns lone surrogates, which cannot be written to a file. Here the first three raise a CorruptFile with
file and line, and a lone surrogate becomes U+FFFD. NaN and infinity are not JSON, but Python writes them; they are
refused if the caller is `strict`. The structure of a parsed value is checked afterwards; for our own records by a class
and `config.validate`. Nothing here imports pydantic, because opening a tokenizer must stay fast.
"""

import contextlib
import errno
import json
import logging
import os
import re
import shutil
import socket
import time
from collections import Counter
from collections.abc import Iterator
from functools import cache
from itertools import accumulate
from pathlib import Path
from typing import IO, Any, Literal

from bertworks.errors import CannotResume, CorruptFile, UserError, shown

MAX_BYTES = 10_000_000  # of a file with settings or descriptions; data files have other limits
_MAX_DEPTH = 100
_MAX_DIGITS = 300  # a float has room for 308
_LONG_NUMBER = b"0" * _MAX_DIGITS
_MAX_KEY_SHOWN = 60
KIND_NAMES = {
    str: "a string", int: "a whole number", float: "a number", bool: "true or false", list: "a list",
    dict: "an object", type(None): "null",
}  # fmt: skip
_NOT_BRACKETS = bytes(byte for byte in range(256) if byte not in b"[]{}")
_STEPS = {byte: 1 if byte in b"[{" else -1 for byte in b"[]{}"}
_AS_ZEROS = bytes(ord("0") if byte in b"0123456789" else byte for byte in range(256))
_SURROGATE = re.compile(r"\\u[dD][89a-fA-F]")
# The order matters: first an escaped backslash (as in "\\ud800", which is text), then pairs, then lone surrogates.
_ESCAPES = re.compile(
    r"(?P<kept>\\\\|\\u[dD][89abAB][0-9a-fA-F]{2}\\u[dD][c-fC-F][0-9a-fA-F]{2})|\\u[dD][89a-fA-F][0-9a-fA-F]{2}"
)


def read_object(path: Path, *, max_bytes: int = MAX_BYTES, unique: bool = False) -> dict[str, Any]:
    """Return the object in a JSON file, or raise UserError with the file and what is wrong.

    Args:
        path: the file.
        max_bytes: how large it may be.
        unique: whether a repeated key is an error; otherwise its last value counts.
    """
    content = read_json(path, max_bytes=max_bytes, unique=unique)
    if not isinstance(content, dict):
        raise CorruptFile(f"{path} holds {name_kind(content)}, not an object")
    return content


def read_json(path: Path, *, max_bytes: int = MAX_BYTES, unique: bool = False) -> Any:
    """Return the value in a JSON file, or raise UserError with the file and what is wrong."""
    try:
        if path.exists() and not path.is_file() and not path.is_dir():  # such as a pipe, which would block
            raise UserError(f"cannot read {path}: it is not a regular file")
        with open(path, "rb") as stream:
            data = stream.read(max_bytes + 1)
    except (OSError, ValueError) as error:  # the latter for a path with a NUL
        raise UserError(f"cannot read {path}: {getattr(error, 'strerror', None) or error}") from error
    if len(data) > max_bytes:
        raise UserError(f"{path} has {path.stat().st_size:,} bytes; at most {max_bytes:,} are read")
    return parse_json(data, str(path), unique=unique)


def parse_json(data: bytes | str, where: str, *, line: int = 1, strict: bool = False, unique: bool = False) -> Any:
    """Parse JSON, or raise CorruptFile with file and line.

    Args:
        data: the JSON.
        where: the name of the file.
        line: the line of the file at which it begins.
        strict: whether NaN and infinity are errors.
        unique: whether a key that occurs twice in an object is an error.
    """
    try:
        text = without_surrogates(data.decode(json.detect_encoding(data)) if isinstance(data, bytes) else data)
        raw = data if isinstance(data, bytes) else data.encode("utf-8", "surrogatepass")
        # Only if there may be such a number, because checking each integer makes the parser slower.
        has_long = len(raw) > _MAX_DIGITS and _LONG_NUMBER in raw.translate(_AS_ZEROS)
        value = _decoder(strict, unique, has_long).decode(text)
        brackets = raw.translate(None, _NOT_BRACKETS) if len(raw) > _MAX_DEPTH else b""
        # Brackets inside strings are counted too, so this only tells which values need no closer look.
        if len(brackets) > _MAX_DEPTH and max(accumulate(map(_STEPS.__getitem__, brackets))) > _MAX_DEPTH:
            _check_depth(value)
    except json.JSONDecodeError as error:
        location = f"{where}:{line + error.lineno - 1}"
        raise CorruptFile(f"{location}: not JSON: {error.msg} at column {error.colno}") from error
    except RecursionError as error:
        raise CorruptFile(f"{where}:{line}: not JSON: nested too deeply") from error
    except UnicodeDecodeError as error:
        reason = f"byte {error.start} is not {error.encoding.upper()}"
        raise CorruptFile(f"{where}:{line}: not JSON: {reason}") from error
    except ValueError as error:  # also for integers of more than 4,300 digits
        raise CorruptFile(f"{where}:{line}: not JSON: {error}") from error
    return value


def without_surrogates(text: str) -> str:
    """Replace the escapes of lone surrogates in JSON, because such text cannot be written to a file."""
    return _ESCAPES.sub(lambda found: found["kept"] or "\\ufffd", text) if _SURROGATE.search(text) else text


@cache
def _decoder(strict: bool, unique: bool, has_long: bool) -> json.JSONDecoder:
    return json.JSONDecoder(
        parse_constant=_refuse_constant if strict else None,
        parse_int=_checked_int if has_long else None,
        object_pairs_hook=unique_keys if unique else None,
    )


def _check_depth(value: Any) -> None:
    level = [value]
    for _ in range(_MAX_DEPTH):
        values = (part for one in level for part in (one.values() if isinstance(one, dict) else one))
        level = [part for part in values if isinstance(part, dict | list)]
    if level:
        raise RecursionError


def _checked_int(digits: str) -> int:
    if len(digits) > _MAX_DIGITS:
        raise ValueError(f"a number of {len(digits):,} digits")
    return int(digits)


def _refuse_constant(name: str) -> None:
    raise ValueError(f"{name} is no JSON value")


def unique_keys(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    """Make a JSON object, or raise ValueError if a key is repeated; for json's `object_pairs_hook`."""
    content = dict(pairs)
    if len(content) < len(pairs):
        (key, _), *_ = Counter(key for key, _ in pairs).most_common(1)
        raise ValueError(f"{key[:_MAX_KEY_SHOWN]!r} is listed twice")
    return content


def name_kind(value: Any) -> str:
    """Name the type of a parsed value in words."""
    return KIND_NAMES.get(type(value), f"a {type(value).__name__}")


MANIFEST_NAME = "manifest.json"
TEMPORARY_PREFIX = ".tmp-"
LOCK_NAME = ".lock"
MAX_MANIFEST_BYTES = 1 << 28  # it has a line per file, and prepared data may have a hundred thousand files
_ORPHANS_END_S = 10.0  # how long to wait for the child processes of a killed run, which notice and end
_HASH_CHUNK_BYTES = 1 << 20
_MAX_NAME_BYTES = 200
_NAME = re.compile(r"[\w][\w.+ -]*", re.UNICODE)
_TEMPORARY_NAME = re.compile(
    re.escape(TEMPORARY_PREFIX) + r".*-[0-9a-f]{32}", re.DOTALL
)  # as _temporary_beside makes it


def usable_path(path: str | os.PathLike[str]) -> Path:
    """Return a usable path; a path with a NUL, one that is too long or a cycle of links is a UserError.

    Every path from a user, a recipe or a file passes through here, unless it is only written to.
    """
    try:
        os.stat(path)
    except (FileNotFoundError, NotADirectoryError, PermissionError):
        pass  # whoever opens it reports this
    except (OSError, ValueError) as error:
        raise UserError(f"{shown(path)} is not a usable path: {_why_not(error)}") from error
    return Path(path)


def make_folder(path: str | os.PathLike[str], what: str = "folder") -> Path:
    """Make a folder, if it does not exist."""
    folder = usable_path(path)
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise UserError(f"cannot make the {what} {folder}: {refusal_text(error, folder)}") from error
    return folder


def _why_not(error: OSError | ValueError) -> str:
    if isinstance(error, UnicodeError):
        return "it is not Unicode text"
    return error.strerror or str(error) if isinstance(error, OSError) else "it has a NUL character"


@contextlib.contextmanager
def atomic_write(path: str | os.PathLike[str], mode: Literal["w", "wb"] = "w") -> Iterator[IO[Any]]:
    """Open a file that takes its name only when the block ends without an error."""
    target = _file_target(path)
    temporary = _temporary_beside(target)
    text = {} if mode == "wb" else {"encoding": "utf-8", "newline": "\n"}
    try:
        with _refusals_named(path, temporary):
            with open(temporary, mode, **text) as stream:  # type: ignore[call-overload]
                yield stream
                stream.flush()
                os.fsync(stream.fileno())
            os.replace(temporary, target)
            sync_folder(target.parent)
    finally:
        with contextlib.suppress(OSError):
            temporary.unlink()


def check_can_write(path: str | os.PathLike[str], *sources: str | os.PathLike[str]) -> None:
    """Raise early what `atomic_write` would raise after minutes of work: no such folder, no permission, not a file.

    A path that is also one of the sources, the files to read, is refused too.
    """
    for source in sources:
        if os.path.exists(path) and os.path.exists(source) and os.path.samefile(path, source):
            raise UserError(f"cannot write {path}: it is an input and would be overwritten; choose another file")
    temporary = _temporary_beside(_file_target(path))
    with _refusals_named(path, temporary):
        temporary.touch()
        temporary.unlink()


@contextlib.contextmanager
def atomic_folder(path: str | os.PathLike[str]) -> Iterator[Path]:
    """Yield a temporary folder to fill; when the block ends, it gets a manifest and its real name."""
    target = _resolve_target(path)
    if target.exists():
        raise UserError(f"{path} exists already; choose another name or remove it")
    temporary = _temporary_beside(target)
    try:
        with _refusals_named(path, temporary):
            temporary.mkdir(parents=True)
            yield temporary
            write_manifest(temporary)
            _sync_tree(temporary)
            os.rename(temporary, target)
            sync_folder(target.parent)
    except UserError as error:
        if type(error) is not UserError or str(temporary) not in str(error):
            raise
        raise UserError(str(error).replace(str(temporary), str(path))) from error.__cause__  # of a file in it
    finally:
        shutil.rmtree(temporary, ignore_errors=True)


def set_aside(path: Path) -> Path:
    """Rename a file or folder atomically to a temporary name, and return that name."""
    aside = _temporary_beside(path)
    os.rename(path, aside)
    return aside


def discard_folder(folder: Path) -> None:
    """Remove a folder; after a kill it is either whole, or a leftover under a temporary name, but never half there."""
    shutil.rmtree(set_aside(folder))


def remove_leftovers(folder: Path) -> None:
    """Remove what killed writers left in a folder; only safe for a process that holds the folder's lock."""
    for path in folder.iterdir() if folder.is_dir() else ():
        if not _TEMPORARY_NAME.fullmatch(path.name):
            continue
        if path.is_dir() and not path.is_symlink():
            shutil.rmtree(path)
        else:
            path.unlink()


def _resolve_target(path: str | os.PathLike[str]) -> Path:
    """Follow links, so that a link stays and the file it points to is written; refuse impossible paths."""
    try:
        target = Path(os.path.realpath(path))
        target.exists()
    except (ValueError, OSError) as error:
        raise UserError(f"cannot write {shown(path)}: {_why_not(error)}") from error
    return target


def _file_target(path: str | os.PathLike[str]) -> Path:
    target = _resolve_target(path)
    if target.exists() and not target.is_file():
        raise UserError(f"cannot write {path}: it is not a regular file; choose another name")
    return target


def _temporary_beside(target: Path) -> Path:
    # At most 40 characters of the name: a full 255 bytes plus our prefix would be too long for the file system.
    return target.with_name(f"{TEMPORARY_PREFIX}{target.name[:40]}-{os.urandom(16).hex()}")


@contextlib.contextmanager
def _refusals_named(path: str | os.PathLike[str], temporary: Path) -> Iterator[None]:
    """Turn the system's errors about this file into a UserError; errors about other files pass through."""
    try:
        yield
    except OSError as error:
        # For a copy the system names both source and target, whichever of them failed.
        named = [name for name in (error.filename, error.filename2) if isinstance(name, str | bytes)]
        about = [Path(os.fsdecode(name)) for name in named] or [temporary]
        if not any(one == temporary or temporary in one.parents or one in temporary.parents for one in about):
            raise
        raise UserError(f"cannot write {path}: {refusal_text(error, temporary.parent)}") from error


def refusal_text(error: OSError, folder: str | os.PathLike[str]) -> str:
    """Explain why the system cannot write into a folder; for a full disk, also how much is free and what to do."""
    if error.errno == errno.ENOENT and not os.path.isdir(folder):
        return f"the folder {folder} does not exist"
    if error.errno in (errno.ENOSPC, errno.EDQUOT):
        there = next((one for one in (Path(folder), *Path(folder).parents) if one.is_dir()), ".")
        return f"{error.strerror} ({shutil.disk_usage(there).free:,} bytes are free); free some or choose another disk"
    return error.strerror or str(error)


def sync_folder(folder: Path) -> None:
    """Sync a folder, so that a rename in it survives a power cut."""
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    except OSError as error:
        # Some network and shared file systems cannot sync a folder; the file itself has been synced.
        if error.errno not in (errno.EINVAL, errno.ENOTSUP):
            raise
    finally:
        os.close(descriptor)


def _sync_tree(folder: Path) -> None:
    for path in sorted(folder.rglob("*")):
        if path.is_dir():
            sync_folder(path)
        elif path.is_file():
            with open(path, "rb") as stream:
                os.fsync(stream.fileno())
    sync_folder(folder)


@contextlib.contextmanager
def exclusive(folder: str | os.PathLike[str]) -> Iterator[None]:
    """Lock a folder for this process while the block runs; if it is locked, a UserError names the holder.

    The lock is the operating system's, on a file that records the holder. So a kill or a reboot frees it, and the file
    of a dead process is taken over. If the file's existence were the lock, it would block a run that is resumed
    elsewhere.
    """
    path = Path(folder) / LOCK_NAME
    descriptor = _locked(path)
    owner = os.getpid()
    try:
        yield
    finally:
        if os.getpid() == owner:  # a forked child shares the lock and must not release it
            path.unlink(missing_ok=True)
            os.close(descriptor)


def _locked(path: Path) -> int:
    import fcntl

    deadline = time.monotonic() + _ORPHANS_END_S
    while True:
        try:
            descriptor = os.open(path, os.O_RDWR | os.O_CREAT, 0o644)
        except OSError as error:
            raise UserError(f"cannot lock {path.parent}: {error.strerror}") from error
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            holder = _holder(descriptor)
            os.close(descriptor)
            if not _is_dead(holder) or time.monotonic() > deadline:
                raise CannotResume(
                    f"{path.parent} is in use by process {holder.get('pid', '?')} on {holder.get('host', '?')}; "
                    "wait until it ends, or choose another folder"
                ) from None
            time.sleep(0.1)
            continue
        except OSError as error:
            logging.getLogger(__name__).warning(
                "%s cannot be locked here (%s); make sure that nothing else writes to it", path.parent, error.strerror
            )
            return descriptor
        if _is_still(path, descriptor):
            try:
                os.ftruncate(descriptor, 0)
                os.pwrite(descriptor, json.dumps({"pid": os.getpid(), "host": socket.gethostname()}).encode(), 0)
            except OSError as error:
                os.close(descriptor)
                raise UserError(f"cannot write {path}: {refusal_text(error, path.parent)}") from error
            return descriptor
        os.close(descriptor)  # the previous holder has removed this file, so the next process would lock a new one


def _is_still(path: Path, descriptor: int) -> bool:
    try:
        return os.path.samestat(path.stat(), os.fstat(descriptor))
    except FileNotFoundError:
        return False


def _holder(descriptor: int) -> dict[str, Any]:
    """Return who holds the lock, from its file; nothing if the file is just being written."""
    with contextlib.suppress(CorruptFile):
        found = parse_json(os.pread(descriptor, 1 << 12, 0), LOCK_NAME)
        return found if isinstance(found, dict) else {}
    return {}


def _is_dead(holder: dict[str, Any]) -> bool:
    """Tell whether the holder is dead (its children may still hold the lock); unknown for another host."""
    if holder.get("host") != socket.gethostname() or type(holder.get("pid")) is not int:
        return not holder
    try:
        os.kill(holder["pid"], 0)
    except (ProcessLookupError, OverflowError):
        return True
    except OSError:
        return False
    return False


def sha256_of(path: str | os.PathLike[str]) -> str:
    """Return a file's sha256 in hex, reading it in pieces."""
    import hashlib

    digest = hashlib.sha256()
    with open(path, "rb") as stream:
        while chunk := stream.read(_HASH_CHUNK_BYTES):
            digest.update(chunk)
    return digest.hexdigest()


def digest64(data: bytes) -> bytes:
    """Return a checksum of 8 bytes, the same on every machine; used to choose texts by their content."""
    import hashlib

    return hashlib.blake2b(data, digest_size=8).digest()


def write_manifest(folder: Path) -> None:
    """List every file of a folder with its size and sha256, in the order of their names."""
    names = sorted(path.relative_to(folder).as_posix() for path in folder.rglob("*") if path.is_file())
    # safe_join here too: a manifest that lists a name it would later refuse could never be verified.
    files = {name: safe_join(folder, name) for name in names if name != MANIFEST_NAME}
    entries = {name: {"bytes": path.stat().st_size, "sha256": sha256_of(path)} for name, path in files.items()}
    with atomic_write(folder / MANIFEST_NAME) as stream:
        json.dump({"files": entries}, stream, indent=1)


def verify_manifest(folder: Path) -> dict[str, dict[str, Any]]:
    """Return a folder's manifest entries after checking each file, or raise CorruptFile with the file and reason."""
    entries = read_manifest(folder / MANIFEST_NAME)
    for name, entry in entries.items():
        try:
            path = safe_join(folder, name)
            if not path.is_file():
                raise CorruptFile(f"{path} is missing, but {MANIFEST_NAME} lists it")
            if (size := path.stat().st_size) != entry["bytes"]:
                raise CorruptFile(f"{path} has {size} bytes where {MANIFEST_NAME} says {entry['bytes']}")
            if sha256_of(path) != entry["sha256"]:
                raise CorruptFile(f"{path} was altered: its sha256 is not the one in {MANIFEST_NAME}")
        except OSError as error:
            raise UserError(f"cannot read {folder / name}: {error.strerror}") from error
    return entries


def read_manifest(manifest: Path) -> dict[str, dict[str, Any]]:
    """Return the entries of a manifest without checking the files."""
    try:
        entries = read_object(manifest, max_bytes=MAX_MANIFEST_BYTES, unique=True)["files"]
        for name, entry in entries.items():
            if type(entry["bytes"]) is not int or type(entry["sha256"]) is not str:
                raise ValueError(f"{name[:60]!r} needs a size and a sha256")
            safe_join(manifest.parent, name)
    except (ValueError, KeyError, TypeError, AttributeError, UserError) as error:
        if isinstance(error.__cause__, FileNotFoundError):
            raise CorruptFile(f"{manifest.parent} has no {MANIFEST_NAME}: writing it was not completed") from None
        if isinstance(error.__cause__, OSError):
            raise
        raise CorruptFile(f"{manifest} is not a manifest: {error}") from error
    return dict(entries)


def safe_join(folder: str | os.PathLike[str], name: str) -> Path:
    """Return folder/name for a relative name that stays inside the folder, or raise UserError.

    Each part of the name starts with a letter, digit or underscore and has no separators, control characters,
    percent signs or look-alike dots; links that lead out of the folder are refused.
    """
    parts = name.split("/")
    # Encode only after matching: the pattern excludes lone surrogates, which UTF-8 cannot encode.
    if not all(_NAME.fullmatch(part) for part in parts) or len(name.encode()) > _MAX_NAME_BYTES:
        raise UserError(
            f"{name[:60]!r} is not a usable name: relative, at most {_MAX_NAME_BYTES} bytes, "
            "each part starting with a letter or digit, without '..', ':', '%' or control characters"
        )
    root = Path(os.path.realpath(folder))
    path = root.joinpath(*parts)
    if not Path(os.path.realpath(path)).is_relative_to(root):
        raise UserError(f"{name!r} leads out of {folder}")
    return path
