"""The folder that the demo leaves: its own one may be there already, anybody else's is not touched.

What the demo writes is listed here. When it runs again these files are replaced, and whatever a person has put beside
them stays. A file says whose the folder is; without it a folder that is not empty is refused.
"""

import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from importlib import resources
from pathlib import Path

from bertworks.errors import UserError
from bertworks.files import LOCK_NAME, exclusive, remove_leftovers

OWNER_FILE = ".bertworks-demo"
TOPICS, VOCABULARY, DATA, RUN = "topics.txt", "vocab.txt", "data", "run"
TRAIN, DEV, TUNED, REPORT = "train.tsv", "dev.tsv", "tuned", "report.html"
_OWN = (TOPICS, VOCABULARY, DATA, RUN, TRAIN, DEV, TUNED, REPORT)
_SAID = "Made by `bertworks demo`. When it runs again it replaces what it wrote here; other files stay.\n"


@contextmanager
def demo_folder(out: str | Path) -> Iterator[Path]:
    """Give the demo's folder, with nothing of an earlier demo in it, held for this process alone."""
    folder = Path(out)
    _refuse_what_is_not_ours(folder)
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise UserError(f"cannot make the folder {folder}: {error.strerror}") from error
    with exclusive(folder):
        (folder / OWNER_FILE).write_text(_SAID, encoding="utf-8")
        remove_leftovers(folder)
        for name in _OWN:
            _remove(folder / name)
        for name in (TRAIN, DEV):
            (folder / name).write_bytes(resources.files("bertworks").joinpath("demo_data", name).read_bytes())
        yield folder


def _refuse_what_is_not_ours(folder: Path) -> None:
    try:
        names = {path.name for path in folder.iterdir()} - {LOCK_NAME}
    except FileNotFoundError:
        return
    except (OSError, ValueError) as error:  # the latter for a path with a NUL
        reason = error.strerror if isinstance(error, OSError) else error
        raise UserError(f"cannot write the demo into {str(folder)[:80]!r}: {reason}; choose another --out") from error
    if names and OWNER_FILE not in names:
        raise UserError(f"{folder} holds files that are not the demo's; choose another --out")


def _remove(path: Path) -> None:
    if path.is_dir() and not path.is_symlink():
        shutil.rmtree(path)
    else:
        path.unlink(missing_ok=True)
