"""Every kind of model that there is, as one record each, and the one way in which model folders are read and written.

| kind      | network    | tokens    | pre-trained by         | what it is                                    |
|-----------|------------|-----------|------------------------|-----------------------------------------------|
| bert      | Bert       | wordpiece | mlm+nsp, mlm, ltr, rtl | BERT, and the paper's models of one direction |
| gpt       | Gpt        | gpt-bpe   | ltr                    | GPT-1                                         |
| elmo      | Elmo       | words     | bilm                   | ELMo                                          |
| elmo-task | ElmoTasks  | words     |                        | an ELMo that was fine-tuned, with its readers |
| compound  | Compound   | wordpiece |                        | two BERTs side by side, or one under a BiLSTM |
| features  | Bert       | wordpiece |                        | a BERT whose frozen layers a BiLSTM tags by   |

- A model folder says its kind by `model_type` in config.json, and which heads it has by its tensors.
- Reading checks config.json and the tensors against each other and reports all contradictions together, before memory
  is allocated: the network is made on torch's meta device, and the tensors of the mapped file become its weights.
- Writing gives the same bytes for the same weights. transformers opens a BERT or a GPT-1 that was written here.
"""

import os
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Generic, NamedTuple, TypeVar

import torch
from torch import Tensor, nn

from bertworks.config import OBJECTIVES
from bertworks.data.shards import Dataset
from bertworks.errors import ConfigError, UserError, counted
from bertworks.models.config_json import (
    CLASSIFIERS,
    Source,
    describe_bert,
    describe_compound,
    describe_elmo,
    describe_elmo_task,
    describe_features,
    describe_gpt,
    labels_of,
    read_bert_config,
    read_compound_config,
    read_elmo_config,
    read_elmo_task_config,
    read_feature_config,
    read_gpt_config,
    spelling_problems,
    stated_labels,
    stated_problem,
    write_description,
)
from bertworks.models.folder import (
    BERT_TYPE,
    COMPOUND_TYPE,
    CONFIG_FILE,
    ELMO_TASK_TYPE,
    ELMO_TYPE,
    FEATURES_TYPE,
    GPT_TYPE,
    INT8_TYPE,
    check_about,
    find_encoder,
    find_model,
    int8_source,
    read_about,
    read_json,
)
from bertworks.models.names import (
    COUNTERS,
    EMBEDDING,
    HEADS,
    INTERMEDIATE,
    LAYER_MATRIX,
    OUTPUT,
    QUERY,
    TIED,
    by_modern_names,
    by_published_names,
    from_openai,
    huggingface_names,
    is_weight,
    to_openai,
)
from bertworks.models.weights import dequantized, has_safetensors, no_weights, put_whole, read_tensors, read_weights
from bertworks.nn.bert import Bert
from bertworks.nn.bilstm import Compound, FeatureReader, feature_bert
from bertworks.nn.config import BertConfig, elmo_preset, gpt_preset, preset
from bertworks.nn.elmo import Elmo, ElmoTasks, initialise_elmo
from bertworks.nn.gpt import Gpt
from bertworks.nn.layers import initialise
from bertworks.recipe import ModelSettings, Recipe
from bertworks.text.elmo_words import SpelledTokenizer, WordTokenizer
from bertworks.text.gpt import GptInputs, GptTokenizer
from bertworks.text.tokenizer import Tokenizer

DIRECTIONS = {"ltr": "left_to_right", "rtl": "right_to_left"}  # of objectives; the others read both ways
_TASK_HEADS = ("classify", "choose", "tag", "span")
_OUTPUTS = {head: f"heads.{head}.out.bias" for head in _TASK_HEADS}
_READER, _OUR_READER = "reader.", "heads.tag."  # in a file and in the network, of a tagger on frozen layers
Tensors = Mapping[str, Tensor]
Put = Callable[[Path, Tensors], None]
Net = TypeVar("Net", bound=nn.Module)


class ModelFolder(NamedTuple, Generic[Net]):
    """What a folder holds."""

    net: Net
    labels: list[str]  # of the classes or tags; empty if there are none
    about: dict[str, Any]  # what bertworks.json says
    unused: list[str]  # tensors that no part of the model reads
    # Of a folder in int8, by what the inputs of each layer's `qkv` and `up` are multiplied, see `nn/cpu.py`.
    int8_factors: list[tuple[Tensor, Tensor]] | None = None


@dataclass(frozen=True, eq=False)
class ModelKind:
    """What is particular to a kind of model.

    Attributes:
        name: in settings, and in `find_kind`.
        title: in a sentence, with its article.
        model_type: in config.json.
        network: the class.
        tokenizer: the class that opens the vocabulary of a folder.
        heads: that it can have.
        read_config: returns the sizes that `make` needs.
        make: builds the network, given that, the heads with their numbers of outputs, and the tensors.
        describe: returns config.json and bertworks.json of a network, given the former's entries for labels, and the
            facts about the model.
        to_file: gives a network's weights the names and the form that they have in a folder.
        from_file: gives a folder's weights those that they have in the network, whose names come first.
        canonical: gives tensors of older files the names of today; the second argument is where they are from.
        is_weight: tells by its name whether a tensor of a folder is a weight, and not a copy or a counter.
        find_heads: returns which heads a folder has, with their numbers of outputs.
        problems: names what else is wrong with a folder, given the network and the tensors that it does not read.
        build: draws a new network from the seed of a recipe; None where nothing is pre-trained.
        task_inputs: makes of the network and its tokenizer what encodes the inputs of a task.
        max_length: the most tokens that are read at once; None: as many as there are positions.
        is_plain: computed in float32 without torch.compile: cuDNN's LSTMs need their weights in place, so they work
            neither with copies in half precision nor with torch.compile.
    """

    name: str
    title: str
    model_type: str
    network: type[nn.Module]
    tokenizer: type[Tokenizer] | type[GptTokenizer] | type[WordTokenizer] | type[SpelledTokenizer]
    heads: tuple[str, ...]
    read_config: Callable[[Source], Any]
    make: Callable[[Any, dict[str, int], Tensors], nn.Module]
    describe: Callable[[Any, Mapping[str, Any], Mapping[str, Any]], tuple[dict[str, Any], ...]]
    to_file: Callable[[Tensors], dict[str, Tensor]] = dict
    from_file: Callable[[Iterable[str], Tensors], dict[str, Tensor]] = lambda _, tensors: dict(tensors)
    canonical: Callable[[Tensors, object], dict[str, Tensor]] = lambda tensors, _: dict(tensors)
    is_weight: Callable[[str], bool] = lambda _: True
    find_heads: Callable[[Source], dict[str, int]] = lambda source: _rows_of(source.tensors, _OUTPUTS)
    problems: Callable[[Source, Any, list[str]], list[str]] = lambda *_: []
    build: Callable[[Recipe, Dataset, BertConfig | None], nn.Module] | None = None
    task_inputs: Callable[[Any, Any], Any] = lambda _, tokenizer: tokenizer
    max_length: int | None = None
    is_plain: bool = False

    @property
    def objectives(self) -> Mapping[str, tuple[str, ...]]:
        """By which it is pre-trained, each with its kinds of predictions; none where nothing is pre-trained."""
        return OBJECTIVES[self.tokenizer.kind] if self.build else {}


# The names and the form of each kind's weights in a folder.


def to_ours(names: Iterable[str], tensors: Tensors) -> dict[str, Tensor]:
    """Return our parameters of these names, made of Hugging Face's tensors; a single one is not copied."""
    ours = {}
    for name in names:
        parts = [tensors[part] for part in huggingface_names(name)]
        ours[name] = parts[0] if len(parts) == 1 else torch.cat(parts)
    return ours


def to_theirs(parameters: Tensors) -> dict[str, Tensor]:
    """Return a BERT's tensors under Hugging Face's names, with the prefix that all but a bare encoder have."""
    theirs: dict[str, Tensor] = {}
    for name, parameter in parameters.items():
        parts = huggingface_names(name)
        theirs |= dict(zip(parts, parameter.chunk(len(parts)), strict=True))
    return theirs


def reader_weights(tensors: Tensors) -> dict[str, Tensor]:
    """Return the parameters of the reader of frozen layers alone, by the names that it has for them."""
    return {name.removeprefix(_READER): tensor for name, tensor in tensors.items() if name.startswith(_READER)}


def _features_to_file(parameters: Tensors) -> dict[str, Tensor]:
    encoder = {name: tensor for name, tensor in parameters.items() if not name.startswith(_OUR_READER)}
    reader = {name: tensor for name, tensor in parameters.items() if name.startswith(_OUR_READER)}
    return to_theirs(encoder) | {_READER + name.removeprefix(_OUR_READER): reader[name] for name in reader}


def _features_from_file(names: Iterable[str], tensors: Tensors) -> dict[str, Tensor]:
    encoder = to_ours([name for name in names if not name.startswith(_OUR_READER)], tensors)
    return encoder | {f"{_OUR_READER}{name}": tensor for name, tensor in reader_weights(tensors).items()}


def is_encoders(name: str) -> bool:
    """Tell whether a tensor of a tagger on frozen layers is the frozen encoder's."""
    return not name.startswith(_READER)


def is_elmos(name: str) -> bool:
    """Tell whether a tensor of a fine-tuned ELMo is that of the ELMo below its readers."""
    return name.startswith("elmo.")


# Which heads the tensors of a folder are, and what may be wrong with the rest of them.


def _rows_of(tensors: Tensors, names: Mapping[str, str]) -> dict[str, int]:
    """Return the number of rows of each head whose tensor is there; 1 if it is no matrix, which is refused later."""
    found = {head: tensors[name] for head, name in names.items() if name in tensors}
    return {head: tensor.shape[0] if tensor.ndim and tensor.numel() else 1 for head, tensor in found.items()}


def _bert_heads(source: Source) -> dict[str, int]:
    heads, tensors = {}, source.tensors
    if "cls.predictions.transform.dense.weight" in tensors:
        heads["mlm"] = 0
    if "cls.seq_relationship.weight" in tensors:
        heads["nsp"] = 2
    if "qa_outputs.weight" in tensors:
        heads["span"] = 2
    if "classifier.weight" not in tensors:
        return heads
    # The architecture says what a tensor called classifier is for; without one, the pooler does.
    names = source.raw.get("architectures") or []
    known = [CLASSIFIERS[name] for name in names if isinstance(name, str) and name in CLASSIFIERS]
    if source.about.get("head"):
        known.insert(0, source.about["head"])
    if not known and names:
        raise UserError(f"{source.path.parent}: cannot tell what the classifier of {str(names)[:80]} is for")
    if not known:
        known = ["classify" if "bert.pooler.dense.weight" in tensors else "tag"]
    return heads | _rows_of(tensors, {known[0]: "classifier.weight"})


def _bert_problems(source: Source, net: Any, unused: list[str]) -> list[str]:
    tensors = source.tensors
    # The MLM head has no matrix of its own here.
    problems = [
        f"{name} differs from {original}, to which it is tied in BERT"
        for name, original in TIED.items()
        if name in tensors and original in tensors and not torch.equal(tensors[name], tensors[original])
    ]
    layers = [name for name in unused if name.startswith("bert.encoder.layer.")]
    return problems + [f"{name} is there, and {CONFIG_FILE} has {len(net.blocks)} plain layers" for name in layers]


def _gpt_problems(source: Source, net: Any, unused: list[str]) -> list[str]:
    problems, tensors = [], source.tensors
    if OUTPUT in tensors and not torch.equal(tensors[OUTPUT], tensors[EMBEDDING]):
        problems.append(f"{OUTPUT} differs from {EMBEDDING}, to which it is tied in GPT-1")
    layers = [name for name in unused if name.startswith("transformer.h.")]
    return problems + [f"{name} is there, and {CONFIG_FILE} has {counted(len(net.blocks), 'layer')}" for name in layers]


def _elmo_problems(source: Source, net: Any, _: list[str]) -> list[str]:
    problems = spelling_problems(source.raw)
    if isinstance(net, ElmoTasks) and not net.heads:
        problems.append(f"no head is there; one of {', '.join(_OUTPUTS.values())} should be")
    return problems


def _features_problems(_: Source, net: Any, unused: list[str]) -> list[str]:
    return [
        f"{name} is there, and {CONFIG_FILE} has features {net.heads['tag'].config.features}, which do without"
        for name in unused
        if name.startswith(_READER)
    ]


# What a recipe pre-trains: the network, its weights drawn from the recipe's seed.


def check_recipe(recipe: Recipe, dataset: Dataset) -> None:
    """Refuse, by name, all that does not go with the kind of model."""
    model, data, train, problems = recipe.model, recipe.data, recipe.train, []
    kind, tokens = find_kind(model.kind), dataset.tokenizer.kind
    if tokens != kind.tokenizer.kind:
        other = next(one.name for one in KINDS if one.build and one.tokenizer.kind == tokens)
        problems.append(
            f"it reads {kind.tokenizer.kind} tokens, and {dataset.folder} has {tokens}; prepare data with --tokens "
            f"{kind.tokenizer.kind}, or set model.kind={other}"
        )
    if data.objective not in kind.objectives:
        problems.append(f"data.objective={data.objective}: it learns by {' or '.join(kind.objectives)}")
    if kind is not ELMO and data.max_length > model.max_positions:
        problems.append(f"data.max_length {data.max_length} is more than model.max_positions {model.max_positions}")
    if kind is not BERT and model.positions != "learned":
        problems.append(f"model.positions={model.positions}: only BERT has other positions than learned ones")
    if kind is not BERT and model.segments != "learned":
        problems.append(f"model.segments={model.segments}: only BERT has segments")
    if kind is ELMO and model.hidden_act != ModelSettings().hidden_act:
        problems.append(f"model.hidden_act={model.hidden_act}: LSTMs have no choice of activation; leave it out")
    if kind.is_plain and train.dtype == "bfloat16":
        problems.append("train.dtype=bfloat16: its LSTMs are trained in float32")
    if kind.is_plain and train.compile:
        problems.append("train.compile=true: its LSTMs are cuDNN's, which torch.compile does not see into")
    if problems:
        raise ConfigError(f"model.kind={model.kind}", problems)


def build_model(recipe: Recipe, dataset: Dataset, config: BertConfig | None = None) -> nn.Module:
    """Return the network that a recipe pre-trains on this data; `config` is that of a BERT to start from."""
    check_recipe(recipe, dataset)
    build = find_kind(recipe.model.kind).build
    assert build is not None, "a recipe's kinds are those that are pre-trained"
    return build(recipe, dataset, config)


def _build_bert(recipe: Recipe, dataset: Dataset, config: BertConfig | None) -> Bert:
    model, predictions = recipe.model, BERT.objectives[recipe.data.objective]
    config = config or preset(
        model.preset,
        vocab_size=dataset.vocab_size,
        hidden_act=model.hidden_act,
        hidden_dropout_prob=model.dropout,
        attention_probs_dropout_prob=model.dropout,
        max_position_embeddings=model.max_positions,
        positions=model.positions,
        segments=model.segments,
        direction=DIRECTIONS.get(recipe.data.objective, "both"),
    )
    heads = {"mlm": 0, "nsp": 2} if "nsp" in predictions else {"mlm": 0}
    net = Bert(config, heads, pooler="nsp" in predictions)
    initialise(net, config.initializer_range, recipe.train.seed)
    return net


def _build_gpt(recipe: Recipe, dataset: Dataset, _: BertConfig | None) -> Gpt:
    model = recipe.model
    config = gpt_preset(
        model.preset,
        vocab_size=dataset.vocab_size,
        n_positions=model.max_positions,
        afn="relu" if model.hidden_act == "relu" else "gelu",
        resid_pdrop=model.dropout,
        embd_pdrop=model.dropout,
        attn_pdrop=model.dropout,
    )
    net = Gpt(config)
    initialise(net, config.initializer_range, recipe.train.seed, cut=False)
    return net


def _build_elmo(recipe: Recipe, dataset: Dataset, _: BertConfig | None) -> Elmo:
    config = elmo_preset(recipe.model.preset, vocab_size=dataset.vocab_size, dropout=recipe.model.dropout)
    net = Elmo(config, characters_VK=torch.tensor(dataset.characters()))
    initialise_elmo(net, recipe.train.seed)
    return net


def _elmo_task_inputs(net: Any, tokenizer: Any) -> Any:
    net.read_words(tokenizer.met)
    return tokenizer


BERT = ModelKind(
    name="bert",
    title="a BERT",
    model_type=BERT_TYPE,
    network=Bert,
    tokenizer=Tokenizer,
    heads=("mlm", "nsp", *_TASK_HEADS),
    read_config=read_bert_config,
    make=lambda config, heads, tensors: Bert(config, heads, pooler="bert.pooler.dense.weight" in tensors),
    describe=describe_bert,
    to_file=to_theirs,
    from_file=to_ours,
    canonical=by_modern_names,
    is_weight=lambda name: name not in COUNTERS and name not in TIED,
    find_heads=_bert_heads,
    problems=_bert_problems,
    build=_build_bert,
)
GPT = ModelKind(
    name="gpt",
    title="a GPT-1",
    model_type=GPT_TYPE,
    network=Gpt,
    tokenizer=GptTokenizer,
    heads=_TASK_HEADS,
    read_config=read_gpt_config,
    make=lambda config, heads, _: Gpt(config[0], heads, both_orders=config[1]),
    describe=describe_gpt,
    to_file=to_openai,
    from_file=lambda _, tensors: from_openai(tensors),
    canonical=by_published_names,
    is_weight=is_weight,
    find_heads=lambda source: _rows_of(source.tensors, HEADS),
    problems=_gpt_problems,
    build=_build_gpt,
    task_inputs=lambda _, tokenizer: GptInputs(tokenizer),
)
ELMO = ModelKind(
    name="elmo",
    title="an ELMo",
    model_type=ELMO_TYPE,
    network=Elmo,
    tokenizer=WordTokenizer,
    heads=(),
    read_config=read_elmo_config,
    make=lambda config, _, tensors: Elmo(config, softmax=any(name.startswith("softmax.") for name in tensors)),
    describe=describe_elmo,
    problems=_elmo_problems,
    build=_build_elmo,
    max_length=1 << 30,
    is_plain=True,
)
ELMO_TASK = ModelKind(
    name="elmo-task",
    title="a fine-tuned ELMo",
    model_type=ELMO_TASK_TYPE,
    network=ElmoTasks,
    tokenizer=SpelledTokenizer,
    heads=_TASK_HEADS,
    read_config=read_elmo_task_config,
    make=lambda config, heads, _: ElmoTasks(config[0], config[1], heads),
    describe=describe_elmo_task,
    problems=_elmo_problems,
    task_inputs=_elmo_task_inputs,
    max_length=65_536,  # words, as many as may be learnt with
    is_plain=True,
)
COMPOUND = ModelKind(
    name="compound",
    title="a model of several parts",
    model_type=COMPOUND_TYPE,
    network=Compound,
    tokenizer=Tokenizer,
    heads=_TASK_HEADS,
    read_config=read_compound_config,
    make=lambda config, heads, _: Compound(config, heads),
    describe=describe_compound,
)
FEATURES = ModelKind(
    name="features",
    title="a tagger on frozen layers",
    model_type=FEATURES_TYPE,
    network=Bert,
    tokenizer=Tokenizer,
    heads=("tag",),
    read_config=read_feature_config,
    make=lambda config, heads, _: feature_bert(
        Bert(config[0], pooler=False), FeatureReader(config[1], config[0], heads.get("tag", 1))
    ),
    describe=describe_features,
    to_file=_features_to_file,
    from_file=_features_from_file,
    find_heads=lambda source: _rows_of(source.tensors, {"tag": f"{_READER}out.weight"}),
    problems=_features_problems,
    is_plain=True,
)
KINDS = (BERT, GPT, ELMO, ELMO_TASK, COMPOUND, FEATURES)


def find_kind(name: str) -> ModelKind:
    """Return a kind by its name."""
    return next(kind for kind in KINDS if kind.name == name)


def kind_of_model(folder: Path) -> ModelKind:
    """Return which kind of model a folder holds; BERT by default."""
    model_type = read_json(folder / CONFIG_FILE).get("model_type")
    return next((kind for kind in KINDS if kind.model_type == model_type), BERT)


def kind_of_network(net: nn.Module) -> ModelKind:
    """Return the kind that a network is of."""
    if isinstance(net, Bert) and any(isinstance(head, FeatureReader) for head in net.heads.values()):
        return FEATURES
    return next(kind for kind in KINDS if isinstance(net, kind.network))


def check_model(source: str | os.PathLike[str]) -> None:
    """Refuse a name that leads to no model, by quick checks, before data is read."""
    folder = find_encoder(find_model(source))
    kind_of_model(folder)
    if not has_safetensors(folder):
        raise UserError(no_weights(folder))


def read_model(folder: Path, kind: ModelKind | None = None) -> ModelFolder[Any]:
    """Open a model folder: build what config.json and tensors say, with the weights as they lie in the file.

    Args:
        folder: of a model.
        kind: that it must be of; None: whichever it says.
    """
    kind, where = kind or kind_of_model(folder), folder / CONFIG_FILE
    raw, about = read_json(where), read_about(folder)
    is_int8 = raw.get("model_type") == INT8_TYPE
    if is_int8:
        raw = int8_source(raw)
    if kind is BERT and "task" not in about:
        about |= stated_problem(raw)
    source = Source(where, raw, about)
    config = kind.read_config(source)
    stored = read_tensors(folder, read_weights)
    factors: Tensors = {}
    if is_int8:
        stored, factors = dequantized(stored)
    tensors = kind.canonical(stored, folder)
    source = source._replace(tensors=tensors)
    with torch.device("meta"):  # sizes without memory: the tensors bring it
        net = kind.make(config, kind.find_heads(source), tensors)
    count = num_labels(net)
    labels = labels_of(raw) if kind is BERT or count is not None else []
    state = net.state_dict()
    wanted = {name: tensor for name, tensor in kind.to_file(state).items() if kind.is_weight(name)}
    unused = sorted(name for name in tensors if name not in wanted and kind.is_weight(name))
    problems = kind.problems(source, net, unused) + _contradictions(wanted, tensors)
    if labels and count not in (None, len(labels)):
        problems.append(f"id2label in {CONFIG_FILE} names {counted(len(labels), 'label')}, and the head has {count}")
    if problems:
        raise ConfigError(str(folder), problems)
    net.load_state_dict(kind.from_file(state, {name: tensors[name] for name in wanted}), assign=True)
    return ModelFolder(net, labels, about, unused, _factors_by_layer(factors, config, where) if is_int8 else None)


def _factors_by_layer(factors: Tensors, config: BertConfig, where: Path) -> list[tuple[Tensor, Tensor]]:
    names = {name: LAYER_MATRIX.fullmatch(name) for name in factors}
    found = {(int(match["layer"]), match["part"]): factors[name] for name, match in names.items() if match}
    try:
        return [(found[n, QUERY], found[n, INTERMEDIATE]) for n in range(config.num_hidden_layers)]
    except KeyError as error:
        raise UserError(f"{where.parent} lacks factors of its int8 inputs; convert the model again") from error


def _contradictions(wanted: Tensors, tensors: Tensors) -> list[str]:
    """Name the tensors that are missing, misshapen or not of numbers that a network computes with."""
    problems = []
    for name, expected in wanted.items():
        if name not in tensors:
            problems.append(f"{name} is missing")
        elif tensors[name].shape != expected.shape:
            shapes = tuple(tensors[name].shape), tuple(expected.shape)
            problems.append(f"{name} has the shape {shapes[0]}, and {CONFIG_FILE} wants {shapes[1]}")
        elif not tensors[name].is_floating_point():
            problems.append(f"{name} holds {tensors[name].dtype}, not floating-point numbers")
    return problems


def num_labels(net: Any) -> int | None:
    """Return the number of classes or tags of a network; None without a head for them."""
    heads = getattr(net, "heads", {})
    head = next((heads[name] for name in ("classify", "tag") if name in heads), None)
    return None if head is None else len(getattr(head, "out", head).weight)


def write_model(
    folder: Path,
    net: nn.Module,
    *,
    labels: list[str] | None = None,
    about: Mapping[str, Any] | None = None,
    put: Put = put_whole,
) -> None:
    """Write config.json, weights and bertworks.json into a folder that is there; `put` writes the weights."""
    check_about(about or {})
    kind = kind_of_network(net)
    tensors = kind.to_file(net.state_dict())
    if kind is BERT and not net.heads:  # whose tensors Hugging Face writes without the prefix
        tensors = {name.removeprefix("bert."): tensor for name, tensor in tensors.items()}
    put(folder, tensors)
    write_description(folder, *kind.describe(net, stated_labels(labels or [], num_labels(net)), about or {}))
