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
from bertworks.files import LOCK_NAME, atomic_write, exclusive, make_folder, remove_leftovers, usable_path

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
    make_folder(folder)
    with exclusive(folder):
        with atomic_write(folder / OWNER_FILE) as stream:
            stream.write(_SAID)
        remove_leftovers(folder)
        for name in _OWN:
            _remove(folder / name)
        for name in (TRAIN, DEV):
            with atomic_write(folder / name, "wb") as stream:
                stream.write(resources.files("bertworks").joinpath("demo_data", name).read_bytes())
        yield folder


def _refuse_what_is_not_ours(folder: Path) -> None:
    try:
        names = {path.name for path in usable_path(folder).iterdir()} - {LOCK_NAME}
    except FileNotFoundError:
        return
    except OSError as error:
        raise UserError(f"cannot write the demo into {folder}: {error.strerror}; choose another --out") from error
    if names and OWNER_FILE not in names:
        raise UserError(f"{folder} holds files that are not the demo's; choose another --out")


def _remove(path: Path) -> None:
    if path.is_dir() and not path.is_symlink():
        shutil.rmtree(path)
    else:
        path.unlink(missing_ok=True)
