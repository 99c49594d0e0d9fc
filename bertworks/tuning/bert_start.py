"""A BERT to fine-tune: by itself, beside another one, or under a BiLSTM.

One that looks to the left alone is summed up by its last token, for [CLS] at its front has seen nothing.
"""

from collections.abc import Mapping
from functools import partial
from pathlib import Path

from torch import Tensor

from bertworks.errors import UserError
from bertworks.interop.compound_folder import read_compound, write_compound
from bertworks.interop.folder import CONFIG_FILE, read_json
from bertworks.interop.huggingface import read_folder, to_ours, write_folder
from bertworks.interop.model_folder import ModelFolder
from bertworks.interop.models import kind_of_model
from bertworks.nn.baseline_config import CompoundConfig
from bertworks.nn.bert import Bert
from bertworks.nn.compound import Compound, initialise_compound
from bertworks.nn.config import BertConfig
from bertworks.nn.heads import OutputHead
from bertworks.nn.layers import initialise
from bertworks.text.tokenizer import Tokenizer
from bertworks.tuning.settings import TaskSettings
from bertworks.tuning.task_start import TaskStart, Wanted, check_sizes, refuse_lm_weight, take_over

_LSTM_LAYERS = 2  # as in the paper's other BiLSTM, that of section 5.3, whose cells are as many as BERT base is wide


def open_bert(wanted: Wanted) -> TaskStart:
    """Make the network of a BERT's folder, with whatever is to stand beside it or on top."""
    opened, tokenizer = read_folder(wanted.folder), Tokenizer.from_folder(wanted.folder)
    others = [_open_beside(wanted.beside, tokenizer, wanted.folder)] if wanted.beside else []
    if not others and not wanted.settings.bilstm:
        return _single(wanted, opened, tokenizer)
    nets = [opened.net, *(other.net for other in others)]
    config = CompoundConfig(
        encoders=tuple(_config(net.config, wanted.settings) for net in nets),
        num_lstm_layers=_LSTM_LAYERS if wanted.settings.bilstm else 0,
        num_cells=opened.net.config.hidden_size,
    )
    weights = {
        f"encoders.{number}.{name}": weight
        for number, net in enumerate(nets)
        for name, weight in net.named_parameters()
    }
    return _compound(wanted, config, tokenizer, weights, [])


def open_compound(wanted: Wanted) -> TaskStart:
    """Make the network of a folder that has encoders side by side, or a BiLSTM on top, already."""
    if wanted.beside:
        raise UserError(f"{wanted.folder} is made of encoders already; --with is for two BERTs")
    opened, tokenizer = read_compound(wanted.folder), Tokenizer.from_folder(wanted.folder)
    if wanted.settings.bilstm and not opened.net.config.num_lstm_layers:
        raise UserError(f"{wanted.folder} has two encoders and no BiLSTM; start from those with task.bilstm=true")
    encoders = tuple(_config(encoder, wanted.settings) for encoder in opened.net.config.encoders)
    config = opened.net.config.model_copy(update={"encoders": encoders})
    return _compound(wanted, config, tokenizer, dict(opened.net.named_parameters()), opened.labels)


def _single(wanted: Wanted, opened: ModelFolder[Bert], tokenizer: Tokenizer) -> TaskStart:
    config = _config(opened.net.config, wanted.settings)
    _check(wanted, config, tokenizer)
    net = Bert(config, wanted.heads, pooler=False)
    own_dropout = read_json(wanted.folder / CONFIG_FILE).get(
        "classifier_dropout"
    )  # of the head, as transformers has it
    if own_dropout is not None and wanted.settings.dropout is None:
        for head in net.all_heads():
            if isinstance(head, OutputHead) and head.dropout:
                head.dropout = float(own_dropout)
    initialise(net, config.initializer_range, wanted.seed)
    about = take_over(net, dict(opened.net.named_parameters()), wanted, opened.labels)
    return TaskStart(
        net=net,
        tokenizer=tokenizer,
        about=about,
        notes=_new_head(wanted, opened) if any(name.startswith("heads.") for name in about["drawn"]) else (),
        write=lambda folder, about: write_folder(folder, net, labels=list(wanted.task.labels), about=about),
        from_file=partial(to_ours, list(net.state_dict())),
    )


def _new_head(wanted: Wanted, opened: ModelFolder[Bert]) -> tuple[str, ...]:
    """Say that a head is drawn though the model has one of that kind."""
    if wanted.is_random or not wanted.heads.keys() & opened.net.heads.keys():
        return ()
    theirs, ours = (", ".join(names)[:80] or "scores" for names in (opened.labels, wanted.task.labels))
    told = f"was fine-tuned for other labels ({theirs}): its encoder is taken, the head is new ({ours})"
    return (f"{wanted.folder} {told}",)


def _compound(
    wanted: Wanted, config: CompoundConfig, tokenizer: Tokenizer, weights: Mapping[str, Tensor], labels: list[str]
) -> TaskStart:
    _check(wanted, config, tokenizer)
    net = Compound(config, wanted.heads)
    initialise_compound(net, wanted.seed)
    return TaskStart(
        net=net,
        tokenizer=tokenizer,
        about=take_over(net, weights, wanted, labels),
        write=lambda folder, about: write_compound(folder, net, labels=list(wanted.task.labels), about=about),
        from_file=dict,
    )


def _config(config: BertConfig, settings: TaskSettings) -> BertConfig:
    dropout = dict.fromkeys(("hidden_dropout_prob", "attention_probs_dropout_prob"), settings.dropout)
    summary = {"summary": "last"} if config.direction == "left_to_right" else {}
    return config.model_copy(update=summary if settings.dropout is None else dropout | summary)


def _check(wanted: Wanted, config: BertConfig | CompoundConfig, tokenizer: Tokenizer) -> None:
    refuse_lm_weight(wanted)
    check_sizes(wanted, config.max_position_embeddings, config.vocab_size, len(tokenizer))
    if wanted.task.is_pair and config.type_vocab_size < 2:
        raise UserError(
            f"{wanted.task.title} has pairs of texts, and {wanted.folder} knows one segment (type_vocab_size 1)"
        )


def _open_beside(folder: Path, tokenizer: Tokenizer, first: Path) -> ModelFolder[Bert]:
    if kind_of_model(folder) != "bert":
        raise UserError(f"{folder} is no BERT; --with takes one that reads the other way, with the same vocabulary")
    other = Tokenizer.from_folder(folder)
    if other.pieces != tokenizer.pieces or other.rules != tokenizer.rules:
        what = f"{len(tokenizer):,} and {len(other):,} pieces"
        if len(tokenizer) == len(other):
            what = "the same number of pieces, but not the same ones or not the same rules for words"
        raise UserError(f"{first} and {folder} must have the same vocabulary; they have {what}")
    return read_folder(folder)
