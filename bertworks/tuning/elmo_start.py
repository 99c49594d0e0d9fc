"""What fine-tuning starts with where the model is an ELMo: the network that reads its layers, and what that allows.

The ELMo is taken over and stays as it is; the mix of its layers, the BiLSTMs and the head are drawn from the seed and
learn. A model that is fine-tuned already gives its BiLSTMs too, where they fit. With `--init random` there was no
pre-training: the ELMo is drawn as well, and all of it learns, as of a BERT.

What is usual for a BERT is far too slow for BiLSTMs that begin with nothing, so ELMo has rates and epochs of its own.
"""

import os
from pathlib import Path

from bertworks.errors import ConfigError, UserError
from bertworks.interop.divided_weights import put_whole
from bertworks.interop.elmo_task_folder import is_elmos, write_elmo_task
from bertworks.interop.folder import CONFIG_FILE
from bertworks.interop.locate import find_model
from bertworks.interop.models import kind_of_model, read_model
from bertworks.nn.baseline_config import ElmoReaderConfig
from bertworks.nn.elmo import Elmo
from bertworks.nn.elmo_tasks import ElmoTasks, initialise_elmo_tasks
from bertworks.text.spelt_words import SpeltTokenizer
from bertworks.train.checkpoint import checkpoint_folders
from bertworks.tuning.settings import FinetuneSettings
from bertworks.tuning.task_start import TaskStart, Wanted, check_sizes, refuse_lm_weight, take_over

_DROPOUT = 0.2
USUAL = ("optim.lr=1e-3", "optim.clip=5.0", "train.epochs=10", f"task.dropout={_DROPOUT}")
# In each direction, by head: GLUE's baselines have 1,500, ELMo's own tagger 200.
_CELLS = {"classify": 1_500, "choose": 1_500, "tag": 200, "span": 200}


def starts_with_elmo(source: str | os.PathLike[str], run: Path) -> bool:
    """Tell whether a run is, or will be, one of an ELMo; one that goes on may have lost the model it came from."""
    begun = checkpoint_folders(run)
    folder = begun[0] if begun else find_model(source)
    return (folder / CONFIG_FILE).exists() and kind_of_model(folder).startswith("elmo")


def check_elmo_settings(settings: FinetuneSettings, *, is_random: bool) -> None:
    """Refuse settings that mean nothing for an ELMo, all at once."""
    task, train, problems = settings.task, settings.train, []
    if is_random and task.freeze != 0:
        problems.append(f"task.freeze={task.freeze}: a random start has nothing to keep; leave it out")
    elif task.freeze not in (0, "all"):
        problems.append(f"task.freeze={task.freeze}: the ELMo stays as it is anyway, and all above it learns")
    if task.layer_decay != 1:
        problems.append(f"task.layer_decay={task.layer_decay}: its layers do not learn at rates of their own")
    if train.dtype == "bfloat16":
        problems.append("train.dtype=bfloat16: its LSTMs are trained in float32")
    if train.compile:
        problems.append("train.compile=true: its LSTMs are cuDNN's, which torch.compile does not see into")
    if problems:
        raise ConfigError("fine-tuning an ELMo", problems)


def open_elmo(wanted: Wanted) -> TaskStart:
    """Make the network of an ELMo's folder, fine-tuned or not."""
    refuse_lm_weight(wanted)
    if wanted.beside or wanted.settings.bilstm:
        what = "--with" if wanted.beside else "task.bilstm"
        raise UserError(f"{wanted.folder} is an ELMo, and {what} is for BERTs; leave it out")
    opened, tokenizer = read_model(wanted.folder), SpeltTokenizer.from_folder(wanted.folder)
    check_sizes(wanted, wanted.settings.max_length, opened.net.config.vocab_size, len(tokenizer))
    config, (head,) = opened.net.config, wanted.heads
    if wanted.is_random:
        config = config.model_copy(update={"dropout": _dropout(wanted)})
    net = ElmoTasks(config, _reader(wanted, head), wanted.heads)
    initialise_elmo_tasks(net, wanted.seed)
    net.read_words(tokenizer.met)
    place = "elmo." if isinstance(opened.net, Elmo) else ""
    weights = {place + name: parameter for name, parameter in opened.net.named_parameters()}
    return TaskStart(
        net=net,
        tokenizer=tokenizer,
        about=take_over(net, weights, wanted, opened.labels),
        write=lambda folder, about, put=put_whole: write_elmo_task(
            folder, net, labels=list(wanted.task.labels), about=about, put=put
        ),
        from_file=dict,
        is_plain=True,
        is_frozen=None if net.reader.trains_elmo else is_elmos,
    )


def _dropout(wanted: Wanted) -> float:
    return _DROPOUT if wanted.settings.dropout is None else wanted.settings.dropout


def _reader(wanted: Wanted, head: str) -> ElmoReaderConfig:
    return ElmoReaderConfig(
        pairs=wanted.task.is_pair or head in ("choose", "span"),
        num_cells=wanted.settings.cells or _CELLS[head],
        dropout=_dropout(wanted),
        trains_elmo=wanted.is_random,
    )
