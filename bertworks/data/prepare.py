"""Any corpus to shards of token ids: one pass, streaming, the same bytes for any number of processes.

One process reads and cuts the corpus into units (`units.py`); others turn units into shards: sentences, token ids,
files on disk with their checksums. A unit's record is written when its files are. A run that was killed finds the
records, sees by their checksums that the corpus is still the same, and goes on behind them. The manifest comes last.
The others are processes of this machine or, with the runner `ray`, of a cluster (`runners.py`).
"""

import contextlib
import json
import os
import re
import time
import unicodedata
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import Future
from pathlib import Path
from typing import Any, NamedTuple, Protocol

from bertworks import __version__
from bertworks.data.shards import (
    ARRAYS,
    CHARACTERS_FILE,
    FORMAT,
    MANIFEST,
    SPLITS,
    digest_of_vocabulary,
    write_characters,
    write_shard,
)
from bertworks.data.units import Options, Unit, cut_units, make_arrays
from bertworks.errors import UserError, counted
from bertworks.files import (
    LOCK_NAME,
    MAX_MANIFEST_BYTES,
    TEMPORARY_PREFIX,
    atomic_write,
    exclusive,
    make_folder,
    read_object,
    usable_path,
)
from bertworks.processes import Progress, num_workers, progress_bar, wait_for, worker_pool
from bertworks.text.corpus import Corpus
from bertworks.text.kinds import CLASSES, TOKENIZER_FILES, AnyTokenizer

# Where units of a corpus become shards: in processes of this machine, or in those of a Ray cluster.
#
# A runner takes units one by one, as they are read, and keeps a bounded number of them under way. What is done with
# a unit is a function of the unit and the job alone, so every runner gives the same bytes.


RUNNERS = ("local", "ray")


class Runner(Protocol):
    """Makes all units."""

    def __call__(
        self,
        units: Iterable[Unit],
        load: Callable[[Any], None],
        make: Callable[[Unit, Any], Any],
        job: Any,
        workers: int | None,
        use: Callable[[Any], object],
    ) -> None:
        """Call `load(job)` once in every process, `make(unit, job)` for every unit, and `use` on what that returns."""


def runner_named(name: str) -> Runner:
    """Return a runner."""
    if name == "local":
        return run_local
    if name == "ray":
        from bertworks.data.ray import check_installed, run_on_ray

        check_installed()
        return run_on_ray
    raise UserError(f"the runner {name!r} is not known; choose {' or '.join(RUNNERS)}")


def run_local(
    units: Iterable[Unit],
    load: Callable[[Any], None],
    make: Callable[[Unit, Any], Any],
    job: Any,
    workers: int | None,
    use: Callable[[Any], object],
) -> None:
    """Make units in processes of this machine, as many as there are cores if not said."""
    num_processes = num_workers(workers)
    with worker_pool(num_processes, load, job) as pool:
        pending: set[Future[Any]] = set()
        for unit in units:
            pending.add(pool.submit(make, unit, job))
            # Units that wait take memory: one more than can be worked on keeps every process busy.
            pending = wait_for(pending, num_processes, use)
        wait_for(pending, 0, use)


__all__ = ["Options", "prepare"]

_SETTINGS_FILE = "prepare.json"  # there while a run is not finished
_RECORD = re.compile(r"unit-\d+\.json")
_SHARD_FILE = re.compile(rf"({'|'.join(SPLITS)})-\d+\.({'|'.join(ARRAYS)})\.npy")
_LEFT_OUT = ("duplicates", "empty", "too_short")  # documents, by reason


class _Job(NamedTuple):
    folder: Path  # where the tokenizer's files are, and the shards shall be
    kind: str  # of tokens
    vocab_size: int
    options: Options


class _Made(NamedTuple):
    """What a unit became."""

    number: int
    documents: int
    tokens: int
    text_bytes: int  # 0: it was there already


class _Tally:
    """Counts what has been made, for whoever watches."""

    def __init__(self, corpus: Corpus, progress: Progress) -> None:
        self.num_units = 0
        self._corpus, self._progress = corpus, progress
        self._read = 0  # bytes of the corpus: those of the last unit made, not of those that still wait
        self._read_by_unit: dict[int, int] = {}
        self._documents = self._tokens = self._text_bytes = 0
        self._started = time.monotonic()

    def cut(self, unit: Unit) -> None:
        self.num_units += 1
        self._read_by_unit[unit.number] = self._corpus.bytes_read

    def made(self, made: _Made) -> None:
        self._read = max(self._read, self._read_by_unit.pop(made.number))
        self._documents += made.documents
        self._tokens += made.tokens
        self._text_bytes += made.text_bytes
        self.show()

    def show(self) -> None:
        speed = self._text_bytes / 1e6 / max(1e-3, time.monotonic() - self._started)
        millions = f"{self._tokens / 1e6:,.{0 if self._tokens > 1e8 else 1}f}M"
        detail = f"{counted(self._documents, 'document')}, {millions} tokens, {speed:.1f} MB/s"
        self._progress("preparing", self._read, self._corpus.total_bytes, detail if self._documents else "")


def prepare(
    corpus: Corpus,
    tokenizer: AnyTokenizer,
    out: str | os.PathLike[str],
    options: Options | None = None,
    *,
    workers: int | None = None,
    runner: str = "local",
    quiet: bool = False,
    progress: Progress | None = None,
) -> dict[str, Any]:
    """Turn a corpus into shards in the folder `out` and return the manifest; a killed run goes on where it stopped.

    Args:
        corpus: the text.
        tokenizer: turns it into ids; its files are saved beside the shards.
        out: a folder that is new or of an interrupted run with the same settings.
        options: what to drop and what to keep aside.
        workers: how many processes tokenize; as many as there are cores if not given.
        runner: where they run: `local`, or `ray` for a Ray cluster; the bytes are the same.
        quiet: show nothing; else a bar, or lines where there is no terminal.
        progress: is told how far it is, instead.
    """
    if progress is None:
        with progress_bar(quiet=quiet) as bar:
            return prepare(corpus, tokenizer, out, options, workers=workers, runner=runner, progress=bar)
    run = runner_named(runner)
    options = options or Options()
    folder = Path(out)
    settings = _settings(corpus, tokenizer, options)
    is_new = not usable_path(folder).exists()
    make_folder(folder)
    try:
        with exclusive(folder):
            if _is_finished(folder, settings):
                return _clear(folder)
            with _nothing_half_done(folder):
                tokenizer.save(folder)
                characters = write_characters(folder, tokenizer)
                job = _Job(folder, tokenizer.kind, len(tokenizer), options)
                tally = _Tally(corpus, progress)
                tally.show()
                run(_units_to_make(corpus, job, tally), _load_tokenizer, _make_shard, job, workers, tally.made)
            return _finish(folder, settings, tally.num_units, corpus.num_replaced, characters)
    finally:
        if is_new:
            with contextlib.suppress(OSError):  # it is empty only if nothing came of the run
                folder.rmdir()


def _finish(
    folder: Path, settings: dict[str, Any], num_units: int, num_replaced: int, characters: dict[str, Any]
) -> dict[str, Any]:
    manifest = _manifest(folder, settings, num_units) | {"replaced_lines": num_replaced}
    manifest["files"] |= characters
    if not manifest["train"]["tokens"]:
        _discard(folder)
        raise UserError(f"{_sources(settings)}: no text to train on{_where_it_went(manifest)}")
    with atomic_write(folder / MANIFEST) as stream:
        json.dump(manifest, stream, ensure_ascii=False, indent=1)
    return _clear(folder)


def _settings(corpus: Corpus, tokenizer: AnyTokenizer, options: Options) -> dict[str, Any]:
    return {
        "format": FORMAT,
        "made_by": {"bertworks": __version__, "unicode": unicodedata.unidata_version},
        "kind": tokenizer.kind,
        "vocab_size": len(tokenizer),
        "vocab_sha256": digest_of_vocabulary(tokenizer),
        "tokenizer": tokenizer.rules._asdict(),
        "options": options._asdict(),
        "sources": [
            {"name": path.name, "bytes": path.stat().st_size if path.exists() else None} for path in corpus.files
        ],
    }


def _is_finished(folder: Path, settings: dict[str, Any]) -> bool:
    """Begin a run, or see that the folder is of one with the same settings; tells if that one has its manifest."""
    names = [path.name for path in folder.iterdir() if not path.name.startswith((TEMPORARY_PREFIX, LOCK_NAME))]
    if _SETTINGS_FILE in names:
        _check_same(folder, _read_object(folder / _SETTINGS_FILE), json.loads(json.dumps(settings)))
        return MANIFEST in names
    if MANIFEST in names:
        raise UserError(f"{folder} holds prepared data already; choose another --out, or remove it")
    if names:
        raise UserError(f"{folder} is not empty; choose another --out")
    with _nothing_half_done(folder), atomic_write(folder / _SETTINGS_FILE) as stream:
        json.dump(settings, stream, ensure_ascii=False, indent=1)
    return False


def _check_same(folder: Path, before: dict[str, Any], now: dict[str, Any]) -> None:
    if before | {"made_by": None} != now | {"made_by": None}:
        raise UserError(
            f"{folder} is of an interrupted run with another corpus, vocabulary or options; "
            "give the same ones to go on, or remove it"
        )
    # Another version may cut sentences or tokens otherwise, and the shards of one run must be of one kind.
    if before.get("made_by") != now["made_by"]:
        raise UserError(
            f"{folder} is of an interrupted run of {_version_text(before.get('made_by'))}, and this is "
            f"{_version_text(now['made_by'])}; go on with that version, or remove the folder"
        )


def _version_text(made_by: Any) -> str:
    known = made_by if isinstance(made_by, dict) else {}
    return f"bertworks {known.get('bertworks', '?')} with Unicode {known.get('unicode', '?')}"


def _read_object(path: Path) -> dict[str, Any]:
    """Return what a file of ours says, or nothing if it cannot be read."""
    try:
        return read_object(path, max_bytes=MAX_MANIFEST_BYTES)
    except UserError:
        return {}


@contextlib.contextmanager
def _nothing_half_done(folder: Path) -> Iterator[None]:
    """Remove what killed processes left half-written, and everything if an error comes before a unit is done."""
    try:
        yield
    except BaseException:
        _remove_temporary_files(folder)
        if not _files_like(folder, _RECORD):
            _discard(folder)
        raise
    _remove_temporary_files(folder)


def _remove_temporary_files(folder: Path) -> None:
    for path in folder.glob(f"{TEMPORARY_PREFIX}*"):
        with contextlib.suppress(OSError):
            path.unlink()


def _units_to_make(corpus: Corpus, job: _Job, tally: _Tally) -> Iterator[Unit]:
    """Give every unit that has no record yet."""
    for unit in cut_units(corpus.blocks(), drop_duplicates=job.options.drop_duplicates):
        tally.cut(unit)
        if _is_done(job.folder, unit):
            tally.made(_made(unit.number, _read_object(_record_path(job.folder, unit.number)), 0))
        else:
            yield unit


def _record_path(folder: Path, number: int) -> Path:
    return folder / f"unit-{number:05d}.json"


def _is_done(folder: Path, unit: Unit) -> bool:
    """Tell whether a unit has its record and its files; one that lost any of them is made again."""
    record = _read_object(_record_path(folder, unit.number))
    try:
        if (record["digest"], record["duplicates"]) != (unit.digest(), unit.num_duplicates):
            raise UserError(f"the corpus has changed since {folder} was begun; remove it to start again")
        counts = [record[split][kind] for split in SPLITS for kind in ARRAYS] + [record[name] for name in _LEFT_OUT]
        files = {name: entry["bytes"] for name, entry in record["files"].items()}
        is_whole = all((folder / name).stat().st_size == size for name, size in files.items())
    except (KeyError, TypeError, AttributeError, OSError):
        return False
    return is_whole and all(type(count) is int for count in counts)


_tokenizers: dict[str, AnyTokenizer] = {}  # of a process that makes shards: its one tokenizer


def _load_tokenizer(job: _Job) -> None:
    _tokenizers["current"] = CLASSES[job.kind].from_folder(job.folder)


def _make_shard(unit: Unit, job: _Job) -> _Made:
    """Turn one unit into the files of its shards and a record of them."""
    shards = make_arrays(unit, _tokenizers["current"], job.options, job.vocab_size)
    record: dict[str, Any] = {"digest": unit.digest(), "duplicates": unit.num_duplicates}
    record |= {"empty": shards.num_empty, "too_short": shards.num_too_short, "files": {}}
    for split, arrays in shards.by_split.items():
        record[split] = {kind: len(arrays[kind]) - (kind != "tokens") for kind in ARRAYS}
        if len(arrays["tokens"]):
            record["files"] |= write_shard(job.folder, f"{split}-{unit.number:05d}", arrays)
    with atomic_write(_record_path(job.folder, unit.number)) as stream:
        json.dump(record, stream, indent=1)
    return _made(unit.number, record, len(unit.text))


def _made(number: int, record: dict[str, Any], text_bytes: int) -> _Made:
    documents, tokens = (sum(record[split][kind] for split in SPLITS) for kind in ("documents", "tokens"))
    return _Made(number, documents, tokens, text_bytes)


def _manifest(folder: Path, settings: dict[str, Any], num_units: int) -> dict[str, Any]:
    """Put the records of all units together."""
    if len(_files_like(folder, _RECORD)) > num_units:
        raise UserError(f"the corpus has become shorter since {folder} was begun; remove it to start again")
    records = [_read_object(_record_path(folder, number)) for number in range(num_units)]
    if not all(records):
        raise UserError(f"a record of {folder} is gone; is another run writing there? Start again to go on")
    manifest: dict[str, Any] = dict(settings)
    for split in SPLITS:
        manifest[split] = {kind: sum(record[split][kind] for record in records) for kind in reversed(ARRAYS)}
    for name in _LEFT_OUT:
        manifest[name] = sum(record[name] for record in records)
    manifest["files"] = {name: entry for record in records for name, entry in sorted(record["files"].items())}
    return manifest


def _files_like(folder: Path, name: re.Pattern[str]) -> list[Path]:
    return [path for path in folder.iterdir() if name.fullmatch(path.name)]


def _clear(folder: Path) -> dict[str, Any]:
    """Remove what only an unfinished run needs, the settings last, and return the manifest."""
    for path in (*_files_like(folder, _RECORD), folder / _SETTINGS_FILE):
        path.unlink(missing_ok=True)
    return _read_object(folder / MANIFEST)


def _discard(folder: Path) -> None:
    """Remove what a run has made that gave nothing, and nothing else."""
    for path in (*(folder / name for name in (*TOKENIZER_FILES, CHARACTERS_FILE)), *_files_like(folder, _SHARD_FILE)):
        path.unlink(missing_ok=True)
    _clear(folder)


def _sources(settings: dict[str, Any]) -> str:
    names = [source["name"] for source in settings["sources"]]
    return ", ".join(names[:3]) + (f" and {len(names) - 3} more" if len(names) > 3 else "")


def _where_it_went(manifest: dict[str, Any]) -> str:
    """Say what became of the documents, where there were any."""
    counts = {name.replace("_", " "): manifest[name] for name in _LEFT_OUT}
    counts["kept aside"] = manifest["holdout"]["documents"]
    found = [f"{count:,} {name}" for name, count in counts.items() if count]
    return f" (documents: {', '.join(found)})" if found else ""
