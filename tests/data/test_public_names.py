"""The public names that read a corpus take it in every form; those of `bertworks.data` cost nothing to import."""

import subprocess
import sys

import pytest

import bertworks as bw
import bertworks.data

CORPUS = "The river runs to the sea.\nIt is long.\n\nThe mill is old, and the wheel turns.\n"


def test_a_corpus_is_given_as_one_path_or_several(tmp_path):
    path = tmp_path / "corpus.txt"
    path.write_text(CORPUS, encoding="utf-8")
    options = {"size": 100, "min_count": 1, "quiet": True, "workers": 1}
    one, several = bw.learn_vocabulary(path, **options), bw.learn_vocabulary([str(path)], **options)
    assert one == several


def test_the_vocabulary_is_a_file_a_model_or_a_tokenizer(tmp_path):
    """A vocabulary that lies in the folder of the corpus is no text of it."""
    folder = tmp_path / "corpus"
    folder.mkdir()
    (folder / "corpus.txt").write_text(CORPUS, encoding="utf-8")
    bw.learn_vocabulary(folder, size=100, min_count=1, quiet=True, workers=1).save(folder / "pieces.txt")
    manifests = [
        bw.prepare(folder, vocab=vocab, out=tmp_path / f"data{number}", quiet=True, workers=1)
        for number, vocab in enumerate((folder / "pieces.txt", "mini"))
    ]
    assert [manifest["train"]["documents"] for manifest in manifests] == [2, 3]  # for mini, the vocabulary is text
    tokenizer = bw.Tokenizer.from_vocab(folder / "pieces.txt")
    given = bw.prepare(folder / "corpus.txt", vocab=tokenizer, out=tmp_path / "given", quiet=True, workers=1)
    assert given["train"] == manifests[0]["train"]


def test_the_public_names_of_data_load_nothing_before_they_are_used():
    code = (
        "import sys, bertworks.data as data; before = set(sys.modules); assert not before & {'numpy', 'pydantic'}; "
        "data.DataSettings; assert 'numpy' not in sys.modules; [getattr(data, name) for name in data.__all__]"
    )
    assert subprocess.run([sys.executable, "-c", code], timeout=60).returncode == 0
    with pytest.raises(AttributeError, match="has no attribute 'loadr'"):
        bertworks.data.loadr  # noqa: B018
