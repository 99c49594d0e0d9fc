"""Text to shards: what the arrays hold, that every way of making them gives the same bytes, and what is refused."""

import errno
import json
import multiprocessing
import os
import random
import re
import shutil
import signal
import subprocess
import sys
import time
import unicodedata
from itertools import chain, pairwise
from pathlib import Path

import numpy as np
import pytest
from patience import is_alive, wait_until

from bertworks import __version__
from bertworks.data import prepare as units
from bertworks.data.prepare import Options, is_heading, is_held_out, prepare, split_document
from bertworks.data.shards import Dataset
from bertworks.errors import UserError
from bertworks.files import digest64, exclusive
from bertworks.text.corpus import Corpus
from bertworks.text.sentences import split_sentences
from bertworks.text.tokenizer import Tokenizer
from bertworks.text.vocabulary import SPECIAL_TOKENS

ENGLISH, KOREAN = (
    text.split()
    for text in (
        "the small river ran past an old mill where nobody worked any more but everyone met on sundays",
        "강물은 낡은 방앗간 옆을 조용히 흐르고 마을 사람들은 일요일마다 그곳에서 만났다",
    )
)
MARKS = (".", "!", "?", ".", "")
UNIT_BYTES = 3_000
NUM_DOCUMENTS = 40
TOKENS = "train-00000.tokens.npy"


def make_documents(number, seed=0):
    """Documents of one to eight lines of one to three sentences each, some of them mere headings."""
    rng = random.Random(seed)

    def sentence():
        words = rng.choices(rng.choice((ENGLISH, KOREAN)), k=rng.randint(1, 14))
        return " ".join(words).capitalize() + rng.choice(MARKS)

    def document():
        return [" ".join(sentence() for _ in range(rng.randint(1, 3))) for _ in range(rng.randint(1, 8))]

    return [document() for _ in range(number)]


def write_corpus(path, documents):
    path.write_text("".join("\n".join(lines) + "\n\n" for lines in documents), encoding="utf-8")
    return path


@pytest.fixture
def small_units(monkeypatch):
    monkeypatch.setattr(units, "UNIT_BYTES", UNIT_BYTES)
    monkeypatch.setattr(units, "_TOKENIZED_AT_ONCE", 700)


@pytest.fixture(scope="module")
def tokenizer():
    text = "".join(ENGLISH + KOREAN)
    letters = sorted({*text, *text.upper(), *".!?"})
    pieces = [*SPECIAL_TOKENS, *ENGLISH[:9], *KOREAN[:4], *letters, *("##" + letter for letter in letters)]
    return Tokenizer(list(dict.fromkeys(pieces)), strip_accents=False)


@pytest.fixture
def corpus(tmp_path):
    return write_corpus(tmp_path / "corpus.txt", make_documents(NUM_DOCUMENTS))


def run(source, tokenizer, out, options=None, **more):
    options = (options or Options())._asdict()
    return prepare(Corpus([source]), tokenizer, out, **options, **({"workers": 1} | more))


def contents(folder):
    return {path.name: path.read_bytes() for path in sorted(folder.iterdir())}


def decode(folder, split="train"):
    """The documents of a split as lists of sentences, each a list of ids, read without the package's help."""
    documents = []
    for path in sorted(folder.glob(f"{split}-*.tokens.npy")):
        tokens, sentences, starts = (
            np.load(str(path).replace(".tokens.", f".{kind}.")).tolist()
            for kind in ("tokens", "sentences", "documents")
        )
        assert sentences[-1] == len(tokens)
        assert starts[-1] == len(sentences) - 1
        cut = [tokens[start:end] for start, end in pairwise(sentences)]
        documents += [cut[start:end] for start, end in pairwise(starts)]
    return documents


def expected_documents(documents, tokenizer, cut=split_sentences):
    """The same by the plain Python tokenizer."""
    ids = {piece: id for id, piece in enumerate(tokenizer.pieces)}
    found = []
    for lines in documents:
        sentences = [sentence for line in lines for sentence in cut(line)]
        made = [[ids[piece] for piece in tokenizer.tokenize(sentence)] for sentence in sentences]
        found.append([sentence for sentence in made if sentence])
    return [document for document in found if document]


# What the arrays hold


@pytest.mark.usefixtures("small_units")
def test_shards_hold_what_the_plain_tokenizer_makes_of_every_sentence(corpus, tokenizer, tmp_path):
    documents = make_documents(NUM_DOCUMENTS)
    manifest = run(corpus, tokenizer, tmp_path / "data")
    assert len(list((tmp_path / "data").glob("train-*.tokens.npy"))) > 5
    expected = expected_documents(documents, tokenizer)
    assert decode(tmp_path / "data") == expected
    assert len(expected) == len(documents)  # nothing is dropped unless asked
    assert manifest["train"] == {
        "documents": len(expected),
        "sentences": sum(map(len, expected)),
        "tokens": sum(len(sentence) for document in expected for sentence in document),
    }
    assert manifest["holdout"] == {"documents": 0, "sentences": 0, "tokens": 0}
    assert (manifest["duplicates"], manifest["empty"], manifest["too_short"]) == (0, 0, 0)


@pytest.mark.usefixtures("small_units")
def test_what_was_prepared_opens_and_passes_every_check(corpus, tokenizer, tmp_path):
    manifest = run(corpus, tokenizer, tmp_path / "data", Options(holdout=0.3))
    dataset = Dataset(tmp_path / "data")
    assert dataset.manifest == manifest
    assert dataset.tokenizer.pieces == tokenizer.pieces
    for split in ("train", "holdout"):
        shards = dataset.shards(split)
        assert sum(shard.num_documents for shard in shards) == manifest[split]["documents"] > 0
        for shard in shards:
            dataset.check(shard)


def test_lines_can_be_sentences(corpus, tokenizer, tmp_path):
    run(corpus, tokenizer, tmp_path / "data", Options(lines_are_sentences=True))
    assert decode(tmp_path / "data") == expected_documents(
        make_documents(NUM_DOCUMENTS), tokenizer, cut=lambda line: [line]
    )


def test_headings_go_when_asked(tokenizer, tmp_path):
    documents = [["The mill", "The river ran past.", "An old mill"], ["only a heading"], ["everyone met."]]
    manifest = run(
        write_corpus(tmp_path / "c.txt", documents), tokenizer, tmp_path / "data", Options(drop_headings=True)
    )
    assert decode(tmp_path / "data") == expected_documents([["The river ran past."], ["everyone met."]], tokenizer)
    assert (manifest["empty"], manifest["too_short"]) == (1, 0)


@pytest.mark.parametrize(
    ("line", "expected"),
    [
        ("History", True),
        ("Early life and education ", True),
        ("He left.", False),
        ('"He left."', False),
        ("「갔다。」", False),
        ("Among them:", False),
        ("역사", True),
        ("no mark at its end though it has far more words than any heading would have", False),
    ],
)
def test_a_heading_is_short_and_not_closed(line, expected):
    assert is_heading(line) is expected


def test_short_documents_go_when_asked_and_are_counted(tokenizer, tmp_path):
    documents = [["river"], ["the small river ran past an old mill."], ["the river ran."], ["the old river"]]
    path = write_corpus(tmp_path / "c.txt", documents)
    manifest = run(path, tokenizer, tmp_path / "data", Options(min_tokens=4))
    assert decode(tmp_path / "data") == expected_documents([documents[1], documents[2]], tokenizer)
    assert (manifest["too_short"], manifest["empty"]) == (2, 0)
    assert run(path, tokenizer, tmp_path / "all")["train"]["documents"] == 4


@pytest.mark.usefixtures("small_units")
def test_duplicates_go_when_asked_and_are_counted(tokenizer, tmp_path):
    documents = make_documents(30)
    path = write_corpus(tmp_path / "c.txt", [*documents, *documents[::-1]])
    manifest = run(path, tokenizer, tmp_path / "data", Options(drop_duplicates=True))
    assert decode(tmp_path / "data") == expected_documents(documents, tokenizer)
    assert manifest["duplicates"] == 30
    assert run(path, tokenizer, tmp_path / "all")["train"]["documents"] == 60


def test_sentences_and_documents_without_tokens_leave_nothing_and_are_counted(tokenizer, tmp_path):
    nothing = "\u200b\u00ad"  # format characters, of which the tokenizer makes nothing
    documents = [[nothing, "the river.", nothing], [nothing], ["mill.", nothing + ". " + nothing]]
    manifest = run(write_corpus(tmp_path / "c.txt", documents), tokenizer, tmp_path / "data")
    found = decode(tmp_path / "data")
    assert found == expected_documents(documents, tokenizer)
    assert [len(document) for document in found] == [1, 2]
    assert manifest["empty"] == 1


def test_holdout_is_a_share_of_documents_chosen_by_their_text(tokenizer, tmp_path):
    documents = [[f"river {'ran ' * (number % 9)}{number}."] for number in range(1_500)]
    path = write_corpus(tmp_path / "c.txt", documents)
    manifest = run(path, tokenizer, tmp_path / "data", Options(holdout=0.2))
    held_out = [lines for lines in documents if is_held_out(digest64("\n".join(lines).encode()), 0.2)]
    kept = [lines for lines in documents if lines not in held_out]
    assert decode(tmp_path / "data", "holdout") == expected_documents(held_out, tokenizer)
    assert decode(tmp_path / "data") == expected_documents(kept, tokenizer)
    # Four standard errors of a binomial share.
    assert abs(manifest["holdout"]["documents"] / 1_500 - 0.2) < 4 * (0.2 * 0.8 / 1_500) ** 0.5
    shuffled = write_corpus(tmp_path / "shuffled.txt", random.Random(1).sample(documents, 1_500))
    run(shuffled, tokenizer, tmp_path / "again", Options(holdout=0.2))
    assert sorted(decode(tmp_path / "again", "holdout")) == sorted(decode(tmp_path / "data", "holdout"))


@pytest.mark.parametrize(("vocab_size", "dtype"), [(65_536, np.uint16), (65_537, np.uint32)])
def test_ids_are_stored_in_the_smallest_type(vocab_size, dtype, tmp_path):
    words = [f"w{number}" for number in range(vocab_size - len(SPECIAL_TOKENS))]
    tokenizer = Tokenizer([*SPECIAL_TOKENS, *words])
    run(write_corpus(tmp_path / "c.txt", [[f"{words[0]} {words[-1]}"]]), tokenizer, tmp_path / "data")
    tokens = np.load(tmp_path / "data" / "train-00000.tokens.npy")
    assert tokens.dtype == dtype
    assert tokens.tolist() == [len(SPECIAL_TOKENS), vocab_size - 1]
    dataset = Dataset(tmp_path / "data")
    dataset.check(dataset.shards("train")[0])


@pytest.mark.usefixtures("small_units")
def test_a_giant_document_becomes_several(tokenizer, tmp_path):
    lines = [line for document in make_documents(NUM_DOCUMENTS) for line in document]
    manifest = run(write_corpus(tmp_path / "c.txt", [lines]), tokenizer, tmp_path / "data")
    found = decode(tmp_path / "data")
    assert 2 < len(found) == manifest["train"]["documents"] < 20
    assert [list(chain.from_iterable(found))] == expected_documents([lines], tokenizer)


@pytest.mark.usefixtures("small_units")
def test_the_pieces_of_a_giant_document_are_in_one_split(tokenizer, tmp_path):
    """What is held out must not go on in what is trained on; the documents behind a giant choose for themselves."""
    giants = [[line for document in make_documents(12, seed) for line in document] for seed in range(16)]
    small = [[f"river {number}."] for number in range(160)]
    documents = [each for number, giant in enumerate(giants) for each in (giant, *small[number * 10 :][:10])]
    path = write_corpus(tmp_path / "c.txt", documents)
    made = []
    for workers in (1, 3):
        run(path, tokenizer, tmp_path / str(workers), Options(holdout=0.4), workers=workers)
        made.append(contents(tmp_path / str(workers)))
    assert made[0] == made[1]
    found = {split: list(chain.from_iterable(decode(tmp_path / "1", split))) for split in ("train", "holdout")}
    num_split = {"train": 0, "holdout": 0}
    for giant in expected_documents(giants, tokenizer):
        (split,) = [split for split in found if contains(found[split], giant)]
        num_split[split] += 1
    assert min(num_split.values()) >= 2
    own = [lines for lines in small if is_held_out(digest64(lines[0].encode()), 0.4)]
    assert [document for document in decode(tmp_path / "1", "holdout") if len(document) == 1] == expected_documents(
        own, tokenizer
    )


def contains(sentences, part):
    return any(sentences[first : first + len(part)] == part for first in range(len(sentences)))


def test_one_word_documents_are_documents(tokenizer, tmp_path):
    manifest = run(write_corpus(tmp_path / "c.txt", [["river"], ["mill"]] * 50), tokenizer, tmp_path / "data")
    assert manifest["train"] == {"documents": 100, "sentences": 100, "tokens": 100}


# The same bytes, whatever happens


@pytest.mark.usefixtures("small_units")
def test_any_number_of_workers_gives_the_same_bytes(corpus, tokenizer, tmp_path):
    made = []
    for workers in (1, 2, 3):
        run(corpus, tokenizer, tmp_path / str(workers), Options(holdout=0.2, drop_duplicates=True), workers=workers)
        made.append(contents(tmp_path / str(workers)))
    assert made[0] == made[1] == made[2]
    expected_names = {"manifest.json", "vocab.txt", "tokenizer.json", "tokenizer_config.json"}
    assert {name for name in made[0] if not name.endswith(".npy")} == expected_names


SCRIPT = """
import sys
from bertworks.data import prepare as units
from bertworks.data.prepare import prepare
from bertworks.text.corpus import Corpus
from bertworks.text.tokenizer import Tokenizer

corpus, vocabulary, out, unit_bytes = sys.argv[1:]
units.UNIT_BYTES = int(unit_bytes)
prepare(Corpus([corpus]), Tokenizer.from_folder(vocabulary), out, holdout=0.3, workers=2)
"""


def test_clock_locale_and_hash_seed_change_nothing(corpus, tokenizer, tmp_path):
    """F15, F16."""
    tokenizer.save(tmp_path / "vocabulary")
    surroundings = [
        {"PYTHONHASHSEED": "0", "TZ": "UTC", "LC_ALL": "C.UTF-8"},
        {"PYTHONHASHSEED": "1", "TZ": "Asia/Seoul", "LC_ALL": "C", "PYTHONUTF8": "0"},
    ]
    for number, environment in enumerate(surroundings):
        arguments = [str(each) for each in (corpus, tmp_path / "vocabulary", tmp_path / f"out{number}", UNIT_BYTES)]
        command = [sys.executable, "-c", SCRIPT, *arguments]
        subprocess.run(command, env={**os.environ, **environment}, check=True, timeout=60)
    made = [contents(tmp_path / f"out{number}") for number in range(len(surroundings))]
    assert len(made[0]) > 20
    assert made[0] == made[1]


def settled_units(out):
    """The files of units that have a record, with their identity on the disk."""
    found = {}
    for path in out.glob("unit-*.json"):
        for name in json.loads(path.read_text())["files"]:
            state = (out / name).stat()
            found[name] = (state.st_ino, state.st_mtime_ns)
    return found


def workers_of(process):
    return [int(pid) for pid in Path(f"/proc/{process.pid}/task/{process.pid}/children").read_text().split()]


@pytest.mark.skipif(sys.platform != "linux", reason="reads /proc")
@pytest.mark.usefixtures("small_units")
def test_a_killed_run_goes_on_where_it_stopped_and_gives_the_same_bytes(
    corpus, tokenizer, tmp_path, undisturbed, monkeypatch
):
    """P3: SIGKILL at random moments, five times over."""
    out = tmp_path / "killed"
    rng, before = random.Random(5), {}
    for num_done in range(1, 6):
        with monkeypatch.context() as patch:
            patch.setattr(units, "write_shard", slowly(units.write_shard))
            process = multiprocessing.get_context("fork").Process(target=run, args=(corpus, tokenizer, out))
            process.start()
        wait_until(lambda least=num_done: len(list(out.glob("unit-*.json"))) >= least)
        time.sleep(rng.uniform(0, 0.03))
        workers = workers_of(process)
        assert workers
        process.kill()
        process.join()
        assert not (out / "manifest.json").exists()
        wait_until(lambda pids=workers: not any(map(is_alive, pids)))
        after = settled_units(out)
        assert before.items() <= after.items(), "a unit that was done was done again"
        before = after
    (out / ".tmp-train-00000.tokens.npy-abc").write_bytes(b"left by a kill")
    run(corpus, tokenizer, out)
    assert len(before) >= 15
    assert {name: (out / name).stat().st_ino for name in before} == {name: inode for name, (inode, _) in before.items()}
    assert contents(out) == undisturbed


def slowly(function):
    def slow(*arguments):
        time.sleep(0.15)
        return function(*arguments)

    return slow


class StoppedError(Exception):
    """Stands for a kill that the test survives."""


def interrupted(monkeypatch, corpus, tokenizer, out, after=4, **more):
    """Run prepare until so many units are done."""
    done = units.is_done

    def stop(folder, unit):
        if unit.number >= after:
            wait_until(lambda: len(list(out.glob("unit-*.json"))) >= after)
            raise StoppedError
        return done(folder, unit)

    with monkeypatch.context() as patch:
        patch.setattr(units, "is_done", stop)
        with pytest.raises(StoppedError):
            run(corpus, tokenizer, out, **more)
    assert len(list(out.glob("unit-*.json"))) == after


@pytest.fixture(scope="module")
def prepared_once(tokenizer, tmp_path_factory):
    """A corpus, a run on it that was interrupted, and one that was not."""
    folder = tmp_path_factory.mktemp("prepared")
    corpus = write_corpus(folder / "corpus.txt", make_documents(NUM_DOCUMENTS))
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(units, "UNIT_BYTES", UNIT_BYTES)
        interrupted(patch, corpus, tokenizer, folder / "half")
        run(corpus, tokenizer, folder / "whole")
    return folder


@pytest.fixture
def half_done(prepared_once, small_units, tmp_path):
    return shutil.copytree(prepared_once / "half", tmp_path / "data")


@pytest.fixture(scope="module")
def undisturbed(prepared_once):
    return contents(prepared_once / "whole")


@pytest.mark.parametrize(
    "damage",
    [
        lambda folder: (folder / "unit-00001.json").write_bytes(b""),
        lambda folder: (folder / "unit-00001.json").write_text("[1, 2]"),
        lambda folder: (folder / "unit-00001.json").write_text('{"digest": '),
        lambda folder: (folder / "unit-00001.json").write_text("[" * 100_000),
        lambda folder: (folder / "unit-00001.json").unlink(),
        lambda folder: (folder / "train-00001.tokens.npy").unlink(),
        lambda folder: os.truncate(folder / "train-00001.sentences.npy", 100),
        lambda folder: edit_json(folder / "unit-00001.json", lambda record: record.pop("files")),
        lambda folder: edit_json(folder / "unit-00001.json", lambda record: record.update(too_short="x")),
        lambda folder: (folder / "vocab.txt").unlink(),
        lambda folder: (folder / ".tmp-unit-00004.json-0123").write_text("half"),
    ],
)
def test_a_damaged_unit_is_made_again(half_done, undisturbed, damage, corpus, tokenizer):
    damage(half_done)
    inode = (half_done / "train-00002.tokens.npy").stat().st_ino
    run(corpus, tokenizer, half_done)
    assert (half_done / "train-00002.tokens.npy").stat().st_ino == inode
    assert contents(half_done) == undisturbed


def edit_json(path, change):
    content = json.loads(path.read_text(encoding="utf-8"))
    change(content)
    path.write_text(json.dumps(content), encoding="utf-8")


def test_a_kill_while_clearing_up_is_made_good(half_done, undisturbed, corpus, tokenizer, monkeypatch):
    unlink = Path.unlink

    def die(path, **options):
        if path.name == "prepare.json":
            raise StoppedError
        unlink(path, **options)

    with monkeypatch.context() as patch:
        patch.setattr(Path, "unlink", die)
        with pytest.raises(StoppedError):
            run(corpus, tokenizer, half_done)
    assert (half_done / "manifest.json").exists()
    inode = (half_done / TOKENS).stat().st_ino
    assert run(corpus, tokenizer, half_done) == json.loads(undisturbed["manifest.json"])
    assert contents(half_done) == undisturbed
    assert (half_done / TOKENS).stat().st_ino == inode, "finished data was made again"


# What is shown


@pytest.mark.usefixtures("small_units")
def test_progress_counts_what_was_made(corpus, tokenizer, tmp_path):
    shown = []
    manifest = run(
        corpus, tokenizer, tmp_path / "data", Options(holdout=0.3), progress=lambda *what: shown.append(what), workers=2
    )
    stages, done, totals, details = zip(*shown, strict=True)
    assert set(stages) == {"preparing"}
    assert set(totals) == {corpus.stat().st_size}
    assert (done[0], details[0]) == (0, "")
    assert list(done) == sorted(done)
    assert done[-1] == corpus.stat().st_size
    tokens = (manifest["train"]["tokens"] + manifest["holdout"]["tokens"]) / 1e6
    assert re.fullmatch(rf"{NUM_DOCUMENTS} documents, {tokens:.1f}M tokens, \d+\.\d MB/s", details[-1])
    assert len(shown) == 1 + len({name.split("-")[1][:5] for name in manifest["files"]})


def test_a_run_that_goes_on_counts_what_was_there_but_not_its_speed(half_done, corpus, tokenizer):
    shown = []
    run(corpus, tokenizer, half_done, progress=lambda *what: shown.append(what))
    details = [detail for *_, detail in shown]
    assert details[1].endswith(" 0.0 MB/s")
    assert details[-1].startswith(f"{NUM_DOCUMENTS} documents")


# What is refused


def test_another_corpus_vocabulary_or_options_do_not_go_on(half_done, corpus, tokenizer, tmp_path):
    before = contents(half_done)
    (tmp_path / "elsewhere").mkdir()
    longer = write_corpus(tmp_path / "elsewhere" / corpus.name, make_documents(NUM_DOCUMENTS + 1))
    other = Tokenizer([*tokenizer.pieces, "more"], strip_accents=False)
    for source, its_tokenizer, options in (
        (longer, tokenizer, None),
        (corpus, other, None),
        (corpus, Tokenizer(tokenizer.pieces, lowercase=False), None),
        (corpus, tokenizer, Options(min_tokens=1)),
    ):
        with pytest.raises(UserError, match="interrupted run with another corpus, vocabulary or options"):
            run(source, its_tokenizer, half_done, options)
    assert contents(half_done) == before


@pytest.mark.parametrize("name", ["prepare.__version__", "prepare.unicodedata.unidata_version"])
def test_another_version_does_not_go_on(half_done, corpus, tokenizer, monkeypatch, undisturbed, name):
    with monkeypatch.context() as patch:
        patch.setattr(f"bertworks.data.{name}", "99.1")
        with pytest.raises(UserError, match=r"run of bertworks \d.* with Unicode \d.*, and this is .*99\.1"):
            run(corpus, tokenizer, half_done)
    run(corpus, tokenizer, half_done)
    assert contents(half_done) == undisturbed
    made_by = json.loads(undisturbed["manifest.json"])["made_by"]
    assert made_by == {"bertworks": __version__, "unicode": unicodedata.unidata_version}


def test_a_run_of_a_version_that_did_not_say_so_does_not_go_on(half_done, corpus, tokenizer):
    edit_json(half_done / "prepare.json", lambda settings: settings.pop("made_by"))
    with pytest.raises(UserError, match=r"interrupted run of bertworks \? with Unicode \?"):
        run(corpus, tokenizer, half_done)


def test_two_runs_into_one_folder_are_refused(half_done, corpus, tokenizer, undisturbed):
    """F19."""
    before = contents(half_done)
    with exclusive(half_done), pytest.raises(UserError, match=f"data is in use by process {os.getpid()} on "):
        run(corpus, tokenizer, half_done)
    assert contents(half_done) == before
    (half_done / ".lock").write_text('{"pid": 99999999, "host": "gone"}')
    run(corpus, tokenizer, half_done)
    assert contents(half_done) == undisturbed


def test_an_unknown_runner_is_a_user_error_that_names_both(corpus, tokenizer, tmp_path):
    with pytest.raises(UserError, match="the runner 'spark' is not known; choose local or ray"):
        run(corpus, tokenizer, tmp_path / "data", runner="spark")
    assert not (tmp_path / "data").exists()


def test_without_ray_it_is_said_what_to_install(corpus, tokenizer, tmp_path, monkeypatch):
    monkeypatch.setattr("bertworks.cluster.importlib.util.find_spec", lambda name: None)
    with pytest.raises(UserError, match=r'needs Ray: pip install "bertworks\[ray\]"'):
        run(corpus, tokenizer, tmp_path / "data", runner="ray")
    assert not (tmp_path / "data").exists()


def test_a_corpus_that_changed_in_place_is_noticed(half_done, corpus, tokenizer):
    text = corpus.read_text(encoding="utf-8")
    corpus.write_text(text.replace("river", "rover", 1), encoding="utf-8")
    with pytest.raises(UserError, match="the corpus has changed since"):
        run(corpus, tokenizer, half_done)
    corpus.write_text(text, encoding="utf-8")
    run(corpus, tokenizer, half_done)


def test_a_corpus_that_lost_its_end_is_noticed(half_done, corpus, tokenizer, monkeypatch):
    blocks = list(Corpus([corpus]).blocks())
    start_of_third = sum(len(unit.text) for unit in list(units.cut_units(blocks))[:2])
    shorter = "".join(blocks).encode()[:start_of_third].decode()
    monkeypatch.setattr(Corpus, "blocks", lambda self: iter([shorter]))
    with pytest.raises(UserError, match="become shorter"):
        run(corpus, tokenizer, half_done)


def test_finished_data_is_never_overwritten(corpus, tokenizer, tmp_path):
    run(corpus, tokenizer, tmp_path / "data")
    before = contents(tmp_path / "data")
    with pytest.raises(UserError, match="holds prepared data already; choose another --out"):
        run(corpus, tokenizer, tmp_path / "data")
    assert contents(tmp_path / "data") == before


def test_a_folder_with_other_things_is_refused_and_left_alone(corpus, tokenizer, tmp_path):
    out = tmp_path / "data"
    out.mkdir()
    (out / "thesis.txt").write_text("years of work")
    with pytest.raises(UserError, match="is not empty"):
        run(corpus, tokenizer, out)
    assert contents(out) == {"thesis.txt": b"years of work"}


def test_a_run_killed_before_its_first_file_can_start_again(corpus, tokenizer, tmp_path):
    out = tmp_path / "data"
    out.mkdir()
    (out / ".tmp-prepare.json-0123").write_text("{")
    run(corpus, tokenizer, out)
    assert not list(out.glob(".tmp-*"))


def test_out_can_be_deep_but_not_a_file(corpus, tokenizer, tmp_path):
    run(corpus, tokenizer, tmp_path / "not" / "yet" / "there")
    for out in (corpus, corpus / "below"):
        with pytest.raises(UserError, match="cannot make the folder"):
            run(corpus, tokenizer, out)


@pytest.mark.skipif(os.geteuid() == 0, reason="root may write anywhere")
def test_a_folder_without_permission_is_a_user_error(corpus, tokenizer, tmp_path):
    (tmp_path / "locked").mkdir(mode=0o500)
    with pytest.raises(UserError, match=r"cannot make the folder .*Permission denied"):
        run(corpus, tokenizer, tmp_path / "locked" / "data")


@pytest.mark.usefixtures("small_units")
def test_a_full_disk_is_a_user_error_and_what_was_done_stays(corpus, tokenizer, tmp_path, monkeypatch):
    """F4, for units: the workers inherit the full disk, as they are forked."""
    out = tmp_path / "data"
    write_header = np.lib.format.write_array_header_1_0

    def full(stream, header):
        if "train-00003" in stream.name:
            raise OSError(errno.ENOSPC, "No space left on device")
        write_header(stream, header)

    with monkeypatch.context() as patch:
        patch.setattr(np.lib.format, "write_array_header_1_0", full)
        with pytest.raises(UserError, match=r"cannot write .*train-00003.* bytes are free"):
            run(corpus, tokenizer, out)
    assert not list(out.glob(".tmp-*"))
    assert not (out / "manifest.json").exists()
    assert settled_units(out)
    run(corpus, tokenizer, out)
    run(corpus, tokenizer, tmp_path / "undisturbed")
    assert contents(out) == contents(tmp_path / "undisturbed")


@pytest.mark.parametrize(
    ("text", "options", "reason"),
    [
        ("", None, r"c\.txt: no text to train on$"),
        (" \n\n \n\t\n", None, r"c\.txt: no text to train on$"),
        ("\u200b\n", None, "1 empty"),
        ("river\n\nmill\n", Options(min_tokens=9), "2 too short"),
        ("river\n\nmill\n", Options(holdout=1.0), "2 held out"),
        ("river\n\nriver\n", Options(drop_duplicates=True, min_tokens=9), "1 duplicates, 1 too short"),
    ],
)
def test_nothing_to_train_on_is_said_and_leaves_nothing(text, options, reason, tokenizer, tmp_path):
    (tmp_path / "c.txt").write_text(text, encoding="utf-8")
    (tmp_path / "there").mkdir()
    for out in (tmp_path / "data", tmp_path / "there"):
        with pytest.raises(UserError, match=reason):
            run(tmp_path / "c.txt", tokenizer, out, options)
    assert not (tmp_path / "data").exists()
    assert contents(tmp_path / "there") == {}


def test_an_unreadable_corpus_leaves_nothing(tokenizer, tmp_path):
    (tmp_path / "c.txt").write_bytes(b"\xff\xfea\0b\0")
    with pytest.raises(UserError, match="UTF-16"):
        run(tmp_path / "c.txt", tokenizer, tmp_path / "data")
    assert not (tmp_path / "data").exists()


def test_a_worker_that_dies_is_a_user_error_and_leaves_nothing_half_written(half_done, corpus, tokenizer, monkeypatch):
    def die(stream, array, **_):
        stream.write(b"half")
        stream.flush()
        os.kill(os.getpid(), signal.SIGKILL)

    monkeypatch.setattr(np.lib.format, "write_array_header_1_0", die)
    before = contents(half_done)
    with pytest.raises(UserError, match="worker process was killed"):
        run(corpus, tokenizer, half_done)
    assert contents(half_done) == before


def test_split_document_gives_lines_or_sentences():
    text = "One two. Three\nFour"
    assert list(split_document(text, Options())) == ["One two.", "Three", "Four"]
    assert list(split_document(text, Options(lines_are_sentences=True))) == ["One two. Three", "Four"]


def test_a_folder_can_be_moved_and_still_opens(corpus, tokenizer, tmp_path):
    run(corpus, tokenizer, tmp_path / "data")
    shutil.move(tmp_path / "data", tmp_path / "moved")
    dataset = Dataset(tmp_path / "moved")
    dataset.check(dataset.shards("train")[0])
    assert str(tmp_path) not in (tmp_path / "moved" / "manifest.json").read_text(encoding="utf-8")
