"""What the tests of tasks share: files written as a person would have them, and the words of an error."""

import pytest

from bertworks.errors import UserError


@pytest.fixture
def write(tmp_path):
    """Gives a function that writes a file below the test's folder; text as UTF-8, bytes as they are."""

    def write_file(name, content):
        path = tmp_path / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(content if isinstance(content, bytes) else content.encode())
        return path

    return write_file


@pytest.fixture
def refusal():
    """Gives a function that reads to the end and returns the words of the UserError that ends it: one or two lines."""

    def words_of(examples):
        with pytest.raises(UserError) as refused:
            list(examples() if callable(examples) else examples)
        words = str(refused.value)
        assert len(words.splitlines()) <= 2
        assert len(words) < 1_000
        return words

    return words_of
