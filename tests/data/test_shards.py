"""F7, F8: data that is not what its manifest says is refused by name and reason, never read in silence."""

import hashlib
import json
import os
import pickle
import zipfile

import numpy as np
import pytest

from bertworks.data.prepare import prepare
from bertworks.data.shards import Dataset, token_type
from bertworks.errors import CorruptFile, UserError
from bertworks.text.corpus import Corpus
from bertworks.text.tokenizer import Tokenizer
from bertworks.text.vocabulary import SPECIAL_TOKENS

WORDS = ("river", "mill", "bridge", "stone", ".")
TOKENS, SENTENCES, DOCUMENTS = (f"train-00000.{kind}.npy" for kind in ("tokens", "sentences", "documents"))


@pytest.fixture(scope="module")
def tokenizer():
    return Tokenizer([*SPECIAL_TOKENS, *WORDS])


@pytest.fixture(scope="module")
def original(tokenizer, tmp_path_factory):
    folder = tmp_path_factory.mktemp("shards")
    (folder / "c.txt").write_text("River mill. Stone bridge.\n\nMill. Bridge river.\n\n" * 5)
    prepare(Corpus([folder / "c.txt"]), tokenizer, folder / "data", workers=1)
    return folder / "data"


@pytest.fixture
def data(original, tmp_path):
    folder = tmp_path / "data"
    folder.mkdir()
    for path in original.iterdir():
        (folder / path.name).write_bytes(path.read_bytes())
    return folder


def read(folder):
    """Go to the point where compiled code would read the arrays."""
    dataset = Dataset(folder)
    for shard in dataset.shards("train"):
        dataset.check(shard)


def edit_manifest(folder, change):
    path = folder / "manifest.json"
    manifest = json.loads(path.read_text(encoding="utf-8"))
    change(manifest)
    path.write_text(json.dumps(manifest), encoding="utf-8")


def write_and_list(folder, name, content):
    """Replace a file together with its entry in the manifest, as somebody with bad intentions or a bug would."""
    (folder / name).write_bytes(content)
    entry = {"bytes": len(content), "sha256": hashlib.sha256(content).hexdigest()}
    edit_manifest(folder, lambda manifest: manifest["files"].update({name: entry}))


def as_npy(array, folder):
    np.save(folder.parent / "made.npy", array, allow_pickle=True)
    return (folder.parent / "made.npy").read_bytes()


def test_untouched_data_passes(data):
    read(data)


# Arrays that lie, in files whose size and sha256 are right


def changed(index, value):
    def change(array):
        array[index] = value
        return array

    return change


@pytest.mark.parametrize(
    ("name", "change", "reason"),
    [
        (SENTENCES, changed(3, 1), "offsets do not ascend"),
        (SENTENCES, changed(3, 2**63), "offsets do not ascend"),
        (SENTENCES, changed(3, 10**6), "offsets do not ascend"),
        (SENTENCES, changed(-1, 10**6), "does not fit train-00000.tokens.npy"),
        (SENTENCES, changed(0, 1), "does not fit train-00000.tokens.npy"),
        (SENTENCES, lambda array: array[:0], "does not fit"),
        (SENTENCES, lambda array: array[:-1], "does not fit"),
        (DOCUMENTS, lambda array: array[:0], "does not fit"),
        (DOCUMENTS, changed(1, 10**6), "offsets do not ascend"),
        (DOCUMENTS, changed(-1, 2**64 - 1), "does not fit train-00000.sentences.npy"),
        (DOCUMENTS, lambda array: array.astype(np.int64), "holds int64"),
        (DOCUMENTS, lambda array: array.astype(">u8"), "holds >u8"),
        (DOCUMENTS, lambda array: array.reshape(-1, 1), "of 2 dimensions"),
        (DOCUMENTS, lambda array: array[0], "of 0 dimensions"),
        (TOKENS, changed(5, len(SPECIAL_TOKENS) + len(WORDS)), "id 10 in a vocabulary of 10"),
        (TOKENS, lambda array: array.astype(np.uint32), "holds uint32"),
        (TOKENS, lambda array: array.astype(np.float16), "holds float16"),
        (TOKENS, lambda array: array[:0], "train-00000"),
        (TOKENS, lambda array: array.astype(object), "pickle|object|Python"),
        (TOKENS, lambda array: np.zeros(3, [("a", "u2")]), "holds"),
    ],
)
def test_an_array_that_lies_is_refused(data, name, change, reason):
    write_and_list(data, name, as_npy(change(np.load(data / name)), data))
    with pytest.raises(CorruptFile, match=reason) as caught:
        read(data)
    assert name.split(".")[0] in str(caught.value)


def test_an_empty_shard_is_refused(data):
    for name, array in ((TOKENS, np.zeros(0, np.uint16)), (SENTENCES, np.zeros(1, np.uint64))):
        write_and_list(data, name, as_npy(array, data))
    write_and_list(data, DOCUMENTS, as_npy(np.zeros(1, np.uint64), data))
    with pytest.raises(CorruptFile, match="train"):
        read(data)


class Canary:
    """Makes a folder when it is unpickled."""

    def __init__(self, path):
        self.path = path

    def __reduce__(self):
        return os.mkdir, (str(self.path),)


def header(text):
    return b"\x93NUMPY\x01\x00" + len(text).to_bytes(2, "little") + text.encode()


@pytest.mark.parametrize(
    "content",
    [
        b"",
        b"\x93NUMPY",
        b"not an array at all" * 10,
        header("{'descr': '<u2', 'fortran_order': False, 'shape': (" + "(" * 900 + ")"),
        header("{'descr': '<u2', 'fortran_order': False, 'shape': (99999999999999999999,)}\n"),
        header("{'descr': '<u2', 'fortran_order': False, 'shape': (4611686018427387904,)}\n"),
        header("{'descr': '<u2', 'fortran_order': False, 'shape': (-1,)}\n"),
        header("{'descr': 'x', 'fortran_order': False, 'shape': (1,)}\n") + bytes(8),
        header("[1, 2]\n") + bytes(8),
        header("__import__('os').abort()\n"),
    ],
)
@pytest.mark.filterwarnings("ignore:overflow:RuntimeWarning")
def test_what_is_no_array_is_refused(data, content):
    write_and_list(data, TOKENS, content)
    with pytest.raises(CorruptFile, match=f"{TOKENS} is not a .npy array"):
        read(data)


def test_pickles_and_archives_are_not_opened(data, tmp_path):
    """S1, for shards: a pickle, an array of objects and an archive of one."""
    canary = Canary(tmp_path / "canary")
    objects = as_npy(np.array([canary], dtype=object), data)
    with zipfile.ZipFile(tmp_path / "made.npz", "w") as archive:
        archive.writestr("arr_0.npy", objects)
    for content in (pickle.dumps(canary), objects, (tmp_path / "made.npz").read_bytes()):
        write_and_list(data, TOKENS, content)
        with pytest.raises(CorruptFile, match=TOKENS):
            read(data)
    assert not canary.path.exists()


# Files that are not those of the manifest


@pytest.mark.parametrize("name", [TOKENS, SENTENCES, DOCUMENTS])
def test_truncated_and_missing_files_are_named(data, name):
    size = (data / name).stat().st_size
    for length in (0, 1, 7, size // 2, size - 1):
        os.truncate(data / name, length)
        with pytest.raises(CorruptFile, match=rf"{name} has {length} bytes where manifest.json says {size}"):
            read(data)
    (data / name).unlink()
    with pytest.raises(CorruptFile, match=rf"{name} is missing"):
        read(data)


@pytest.mark.parametrize("name", [TOKENS, SENTENCES, DOCUMENTS])
def test_every_flipped_bit_is_noticed(data, name):
    content = (data / name).read_bytes()
    for place in range(0, len(content), 7):
        flipped = bytearray(content)
        flipped[place] ^= 1 << place % 8
        (data / name).write_bytes(flipped)
        with pytest.raises(CorruptFile, match="train-00000"):
            read(data)


def test_a_file_swapped_for_a_folder_is_refused(data):
    (data / TOKENS).unlink()
    (data / TOKENS).mkdir()
    with pytest.raises(CorruptFile, match=TOKENS):
        read(data)


def test_a_link_out_of_the_folder_is_refused(data, tmp_path):
    (data / TOKENS).rename(tmp_path / "elsewhere.npy")
    (data / TOKENS).symlink_to(tmp_path / "elsewhere.npy")
    with pytest.raises(UserError, match="leads out"):
        read(data)


def opened(folder):
    dataset = Dataset(folder)
    (shard,) = dataset.shards("train")
    dataset.check(shard)
    return dataset, shard


@pytest.mark.parametrize("name", [TOKENS, SENTENCES, DOCUMENTS])
def test_a_shard_altered_while_it_is_in_use_is_noticed(data, name):
    """F8: rewritten in place, replaced by another file, or cut short."""
    content = bytearray((data / name).read_bytes())
    content[-2] ^= 1
    dataset, shard = opened(data)
    with (data / name).open("r+b") as stream:
        stream.write(content)
    os.utime(data / name, ns=(1, 1))  # clocks of file systems can be too coarse for a test
    with pytest.raises(CorruptFile, match="was altered"):
        dataset.check(shard)


def test_a_shard_replaced_or_cut_while_it_is_in_use_is_noticed(data):
    dataset, shard = opened(data)
    content = (data / TOKENS).read_bytes()
    (data / "new").write_bytes(content[:-2] + b"\0\0")
    (data / "new").replace(data / TOKENS)
    with pytest.raises(CorruptFile, match="was altered"):
        dataset.check(shard)
    os.truncate(data / TOKENS, 130)
    with pytest.raises(CorruptFile, match="has 130 bytes"):
        dataset.check(shard)
    (data / TOKENS).unlink()
    with pytest.raises(CorruptFile, match="cannot read"):
        dataset.check(shard)


def test_ids_are_checked_every_time(data):
    dataset, shard = opened(data)
    array = shard.tokens.copy()
    array[0] = 10
    with pytest.raises(CorruptFile, match="id 10 in a vocabulary of 10"):
        dataset.check(shard._replace(tokens=array))


def test_content_is_read_once_while_it_stays_the_same(data, monkeypatch):
    dataset, shard = opened(data)
    monkeypatch.setattr("bertworks.data.shards.sha256_of", lambda path: pytest.fail("it was read again"))
    dataset.check(shard)


# Manifests


@pytest.mark.parametrize(
    "content",
    [
        b"",
        b"not JSON",
        b"[]",
        b"null",
        b"3",
        b'{"format": 1}',
        b'{"format": 1, "files": [], "vocab_size": 10}',
        b"[" * 1_000,
        b"[" * 1_000 + b"]" * 1_000,
        b'{"format": 1, "files": ' + b'{"a": ' * 1_000 + b"1" + b"}" * 1_001,
        b"[" * 200_000,
        b"\xff\xfe\x00",
    ],
)
def test_a_manifest_that_is_none_is_refused(data, content):
    (data / "manifest.json").write_bytes(content)
    reasons = "is not a manifest of prepared data|holds (a list|null|a whole number), not an object"
    with pytest.raises(CorruptFile, match=rf"manifest\.json(:1: not JSON: | ({reasons}))"):
        Dataset(data)


@pytest.mark.parametrize(
    "change",
    [
        lambda manifest: manifest.update(vocab_size="10"),
        lambda manifest: manifest.update(vocab_size=True),
        lambda manifest: manifest.update(vocab_size=-1),
        lambda manifest: manifest.update(vocab_size=10.0),
        lambda manifest: manifest.update(train=None),
        lambda manifest: manifest.update(train={"tokens": "many"}),
        lambda manifest: manifest.pop("holdout"),
        lambda manifest: manifest.update(files=[TOKENS]),
        lambda manifest: manifest["files"].update({TOKENS: None}),
        lambda manifest: manifest["files"][TOKENS].update(bytes=None),
        lambda manifest: manifest["files"][TOKENS].update(bytes=-5),
        lambda manifest: manifest["files"][TOKENS].update(sha256=7),
        lambda manifest: manifest["files"][TOKENS].pop("sha256"),
        lambda manifest: manifest["files"].update({"../train-00000.tokens.npy": {"bytes": 1, "sha256": ""}}),
        lambda manifest: manifest["files"].update({"train-00000.secrets.npy": {"bytes": 1, "sha256": ""}}),
        lambda manifest: manifest["files"].update({"train-1.tokens.npy\n": {"bytes": 1, "sha256": ""}}),
    ],
)
def test_wrong_types_in_a_manifest_are_refused(data, change):
    edit_manifest(data, change)
    with pytest.raises(CorruptFile, match=r"manifest.json is not a manifest of prepared data") as caught:
        read(data)
    assert len(str(caught.value).splitlines()) <= 2


def test_a_file_that_is_listed_twice_is_refused(data):
    text = (data / "manifest.json").read_text(encoding="utf-8")
    entry = f'"{TOKENS}": {{"bytes": 1, "sha256": ""}},'
    (data / "manifest.json").write_text(text.replace('"files": {', '"files": {' + entry))
    with pytest.raises(CorruptFile, match=f"'{TOKENS}' is listed twice"):
        Dataset(data)


def test_a_manifest_that_forgets_a_file_is_refused(data):
    edit_manifest(data, lambda manifest: manifest["files"].pop(SENTENCES))
    with pytest.raises(CorruptFile, match=f"does not list {SENTENCES}"):
        read(data)


def test_a_manifest_that_forgets_a_shard_is_refused(data):
    def add_a_shard(manifest):
        for kind in ("tokens", "sentences", "documents"):
            manifest["train"][kind] += 3

    edit_manifest(data, add_a_shard)
    with pytest.raises(CorruptFile, match=r"lists \d+ train tokens, not"):
        read(data)


def test_no_shards_at_all_is_said(data):
    edit_manifest(data, lambda manifest: manifest.update(files={}))
    with pytest.raises(UserError, match="has no train data"):
        read(data)


def test_data_without_holdout_says_how_to_get_one(data):
    with pytest.raises(UserError, match="has no holdout data; prepare it with --holdout"):
        Dataset(data).shards("holdout")


def test_another_format_is_named(data):
    edit_manifest(data, lambda manifest: manifest.update(format=2))
    with pytest.raises(UserError, match="format 2; this version reads 1"):
        Dataset(data)


def test_what_is_not_prepared_data_is_said(tmp_path):
    with pytest.raises(UserError, match="is not a folder"):
        Dataset(tmp_path / "nowhere")
    with pytest.raises(UserError, match=r"has no manifest.json: not prepared data, or .* was not finished"):
        Dataset(tmp_path)


# The vocabulary


def test_another_vocabulary_is_refused(data):
    text = (data / "vocab.txt").read_text()
    for other in (text.replace("mill\nbridge", "bridge\nmill"), text + "more\n", text.replace("stone", "stones")):
        (data / "vocab.txt").write_text(other)
        with pytest.raises(CorruptFile, match=r"its vocabulary is not the one in manifest\.json"):
            Dataset(data)


def test_other_tokenizer_settings_are_refused(data, tokenizer):
    Tokenizer(tokenizer.pieces, lowercase=False).save(data)
    with pytest.raises(CorruptFile, match="tokenizer settings"):
        Dataset(data)


@pytest.mark.parametrize("value", [None, 3, "", [], {"lowercase": 1}, {"x": 1}])
def test_a_manifest_without_tokenizer_settings_is_refused(data, value):
    for name in ("tokenizer", "vocab_sha256"):
        edit_manifest(data, lambda manifest, name=name: manifest.update({name: value}))
        with pytest.raises(CorruptFile, match=r"manifest.json"):
            Dataset(data)


def test_a_lost_vocabulary_is_named(data):
    for name in ("vocab.txt", "tokenizer.json"):
        (data / name).unlink()
    with pytest.raises(UserError, match=r"vocab\.txt"):
        Dataset(data)


def test_the_smallest_type_holds_every_id():
    assert np.iinfo(token_type(65_536)).max == 65_535
    assert token_type(65_537) is np.uint32
    assert token_type(1) is np.uint16
