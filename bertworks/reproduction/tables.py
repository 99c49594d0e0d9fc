"""The paper's tables as data: rows, columns, the published numbers, and the models that each scale pre-trains.

A row is a model and how it is fine-tuned; a column is a task and a metric. Models are named once, in `MODELS`, so that
tables share them: the BERT of Table 5 is the 80/10/10 row of Table 8 and the last point of Figure 5. All of a scale
are pre-trained on the same number of tokens of the same text.

One cased vocabulary serves all tables, because names need capital letters (the paper has an uncased and a cased BERT).
"""

from collections.abc import Mapping, Sequence
from typing import Literal, NamedTuple

from bertworks.errors import UserError, did_you_mean
from bertworks.nn.config import FEATURES

TokensKind = Literal["wordpiece", "gpt-bpe", "words"]
SNAPSHOTS = (10, 20, 30, 50, 70)  # percent of a run's steps at which Figure 5 measures, besides its end
RANDOM = "random"  # the row of BERT's size without pre-training, which every other row should beat
FEW = ("mrpc", "rte", "cola", "stsb")  # tasks with few examples
BLIMP, TEXT = "blimp", "text"  # measured without fine-tuning


class Column(NamedTuple):
    """A task and a metric, as a column of a table."""

    id: str
    title: str
    task: str
    metric: str = "accuracy"
    split: str = "dev"
    overrides: tuple[str, ...] = ()  # of fine-tuning
    lower_is_better: bool = False


class Row(NamedTuple):
    """A model and how it is fine-tuned, as a row of a table; without a model it is there for the paper's numbers."""

    id: str
    title: str
    model: str = ""
    overrides: tuple[str, ...] = ()
    beside: str = ""  # a second model, whose outputs are concatenated
    paper: tuple[float | None, ...] = ()  # by column
    columns: tuple[str, ...] = ()  # measured ones; all without it


class Table(NamedTuple):
    """A table of the paper, or one beside it."""

    name: str
    title: str
    columns: tuple[Column, ...]
    rows: tuple[Row, ...]
    about: str
    published: str = "dev"  # which sets the paper's numbers are of
    reference: str = "bert"  # the row with which the others are compared at a glance

    def paper_of(self, row: str, column: str) -> float | None:
        """Return the paper's number."""
        found = next(one for one in self.rows if one.id == row)
        index = [one.id for one in self.columns].index(column)
        return found.paper[index] if index < len(found.paper) else None


class Pretraining(NamedTuple):
    """How a model is pre-trained: a shipped recipe, and what differs from it."""

    recipe: str
    overrides: tuple[str, ...] = ()
    tokens: TokensKind = "wordpiece"


MASKS = ("100-0-0", "80-0-20", "80-20-0", "0-20-80", "0-0-100")
MODELS: dict[str, Pretraining] = {
    "bert": Pretraining("base"),
    "no-nsp": Pretraining("no-nsp"),
    "ltr": Pretraining("ltr"),
    "rtl": Pretraining("rtl"),
    **{f"mask-{shares}": Pretraining(f"mask-{shares}") for shares in MASKS},
    **{f"size{number}": Pretraining("base") for number in (1, 2, 3, 5, 6)},  # the fourth is BERT itself
    "sinusoidal": Pretraining("base", ("model.positions=sinusoidal",)),
    "relu": Pretraining("base", ("model.hidden_act=relu",)),
    "no-segments": Pretraining("base", ("model.segments=none",)),
    "gpt": Pretraining("gpt", (), "gpt-bpe"),
    "elmo": Pretraining("elmo", (), "words"),
}


class Scale(NamedTuple):
    """How large the models of a scale are, and how they are trained.

    Attributes:
        name: as typed.
        size: of BERT and all models like it.
        sizes: the six of Table 6 by this scale, of which the fourth is `size`.
        elmo: the size of ELMo, by its presets.
        vocabulary: pieces of BERT and GPT-1.
        words: of ELMo's softmax.
        min_count: the smallest count of a letter or word that the vocabularies take.
        pretrain: settings of all models but ELMo's and GPT-1's own.
        pretrain_gpt, pretrain_elmo: their settings, with the same number of tokens.
        finetune: settings of all fine-tuning.
        finetune_by: further ones: by the model's kind (bert, gpt, elmo; features for a BiLSTM on frozen layers), the
            task's kind, whether it has few examples or many, and two of these.
        seeds, tunings: of pre-training, and of fine-tuning for each.
        shipped: models that are there for `base` and `large`, by name.
        max_pairs: of each of BLiMP's sets; 0: all.
        max_dev: of each set to measure on, the first ones; 0: all.
        about: in words.
    """

    name: str
    size: str
    sizes: tuple[str, ...]
    elmo: str
    vocabulary: int
    words: int
    min_count: int
    pretrain: tuple[str, ...]
    pretrain_gpt: tuple[str, ...]
    pretrain_elmo: tuple[str, ...]
    finetune: tuple[str, ...]
    finetune_by: Mapping[str, tuple[str, ...]]
    seeds: int
    tunings: int
    shipped: Mapping[str, str]
    max_pairs: int
    max_dev: int
    about: str


def _in_minutes(steps: int, warmup: int, rate: str, *lengths: str) -> tuple[tuple[str, ...], ...]:
    """Return settings of BERT and of GPT-1 as in the recipes for an hour or less: AdamW, no dropout."""
    optim = ("optim.name=adamw", f"optim.lr={rate}", "optim.beta2=0.98", f"optim.warmup={warmup}")
    transformer = ("model.dropout=0", *optim, *_of_steps(steps), *lengths)
    return transformer, (*transformer, "optim.schedule=linear", "optim.eps=1e-6", "tokenizer.lowercase=false")


def _elmo_in_minutes(steps: int, warmup: int) -> tuple[str, ...]:
    """Return settings of ELMo, whose steps have 131,072 tokens."""
    return (
        *_of_steps(steps),
        "optim.lr=1e-3",
        f"optim.warmup={warmup}",
        "data.max_length=128",
        "train.batch_size=1024",
    )


def _of_steps(steps: int) -> tuple[str, ...]:
    return f"train.max_steps={steps}", "train.log_every=100", f"train.eval_every={steps}", "train.loader_workers=3"


# Small models take more passes over few examples. BiLSTMs, which start from nothing, take even more, but are slow.
_SMALL_TUNING = {
    "bert": ("optim.lr=1e-4",), "gpt": ("optim.lr=1e-4",), "elmo": ("task.cells=256",),
    "few": ("train.epochs=6",), "elmo many": ("train.epochs=4",), "elmo few": ("train.epochs=10",),
    "features": ("task.cells=256", "train.batch_size=32"),
}  # fmt: skip
# Short texts first, as in the paper, but for 70 % of the steps: positions that are first seen when the rate has fallen
# learn nothing. Steps of 32,768 tokens: in as many tokens, larger ones learn less.
_MINI = _in_minutes(
    12_000, 2_000, "1.4e-3", "data.max_length=256", "model.max_positions=256", "data.short_length=128",
    "data.short_share=0.7", "data.short_batch=256", "train.batch_size=128",
)  # fmt: skip
_MINI_TUNING = {
    **_SMALL_TUNING, "answer": ("task.max_length=256",), "tag": ("task.max_length=256",),
    **{f"{kind} answer": ("optim.lr=3e-4",) for kind in ("bert", "gpt")},
    **{f"{kind} tag": ("optim.lr=3e-4", "train.epochs=6") for kind in ("bert", "gpt")},
}  # fmt: skip
_SMALL = _in_minutes(
    30_000, 3_000, "1e-3", "data.max_length=512", "data.short_length=128", "data.short_share=0.7",
    "data.short_batch=1024", "train.batch_size=256",
)  # fmt: skip
_TINY_TRAIN = (
    "data.max_length=64", "train.max_steps=60", "train.batch_size=16", "train.log_every=20", "train.eval_every=60",
    "optim.warmup=10",
)  # fmt: skip
_TINY_SIZE = ("model.max_positions=128", "model.dropout=0", "data.short_length=64", "optim.lr=2e-3")
SCALES: dict[str, Scale] = {
    "tiny": Scale(
        name="tiny", size="4x32x4", sizes=("1x32x4", "2x32x1", "2x32x4", "4x32x4", "4x48x6", "8x48x6"), elmo="mini",
        vocabulary=2_000, words=2_000, min_count=2, pretrain=(*_TINY_TRAIN, *_TINY_SIZE),
        pretrain_gpt=(*_TINY_TRAIN, *_TINY_SIZE, "tokenizer.lowercase=false"),
        pretrain_elmo=(*_TINY_TRAIN, "optim.lr=1e-3"),
        finetune=("train.epochs=1", "train.batch_size=16", "task.max_length=64", "task.max_examples=128"),
        finetune_by={
            "bert": ("optim.lr=1e-3",), "gpt": ("optim.lr=1e-3",), "elmo": ("task.cells=32",),
            "features": ("task.cells=32",), "answer": ("task.doc_stride=16", "task.max_query=16"),
        },
        seeds=2, tunings=1, shipped={}, max_pairs=20, max_dev=100,
        about="shows that everything works together, in minutes on two CPU cores; its scores mean nothing",
    ),
    "mini": Scale(
        name="mini", size="4x256x4", sizes=("1x256x4", "2x256x1", "2x256x4", "4x256x4", "4x384x6", "8x384x6"),
        elmo="mini", vocabulary=16_000, words=40_000, min_count=20,
        pretrain=_MINI[0], pretrain_gpt=_MINI[1], pretrain_elmo=_elmo_in_minutes(3_000, 750),
        finetune=("task.max_examples=20000",), finetune_by=_MINI_TUNING,
        seeds=3, tunings=5, shipped={"base": "mini", "large": "small"}, max_pairs=0, max_dev=0,
        about="4 layers of width 256, 393 million tokens each: a minute a model on one H200",
    ),
    "small": Scale(
        name="small", size="4x512x8", sizes=("1x512x8", "2x512x2", "2x512x8", "4x512x8", "4x768x12", "8x768x12"),
        elmo="small", vocabulary=30_522, words=100_000, min_count=20,
        pretrain=_SMALL[0], pretrain_gpt=_SMALL[1], pretrain_elmo=_elmo_in_minutes(30_000, 3_000),
        finetune=("task.max_examples=60000",), finetune_by=_SMALL_TUNING,
        seeds=3, tunings=5, shipped={}, max_pairs=0, max_dev=0,
        about="4 layers of width 512, 3.9 billion tokens each",
    ),
    "base": Scale(
        name="base", size="12x768x12", sizes=("3x768x12", "6x768x3", "6x768x12", "12x768x12", "12x1024x16",
        "24x1024x16"), elmo="original", vocabulary=28_996, words=793_471, min_count=20,
        pretrain=(), pretrain_gpt=("train.max_steps=1300000", "tokenizer.lowercase=false"),
        pretrain_elmo=("train.max_steps=5546667",), finetune=(),
        finetune_by={"gpt": ("optim.lr=6.25e-5", "optim.warmup=0.002")},
        seeds=1, tunings=5, shipped={}, max_pairs=0, max_dev=0,
        about="the paper's own sizes and settings, 42.6 billion tokens each",
    ),
}  # fmt: skip


_GLUE = (
    Column("mnli", "MNLI-m", "mnli"),
    Column("mnli-mm", "MNLI-mm", "mnli", split="dev-mismatched"),
    Column("qqp", "QQP", "qqp", "f1"),
    Column("qnli", "QNLI", "qnli"),
    Column("sst2", "SST-2", "sst2"),
    Column("cola", "CoLA", "cola", "matthews"),
    Column("stsb", "STS-B", "stsb", "spearman"),
    Column("mrpc", "MRPC", "mrpc", "f1"),
    Column("rte", "RTE", "rte"),
)
_SQUAD1 = (Column("em", "SQuAD 1.1 EM", "squad1", "exact_match"), Column("f1", "SQuAD 1.1 F1", "squad1", "f1"))
_SQUAD2 = (Column("em", "SQuAD 2.0 EM", "squad2", "exact_match"), Column("f1", "SQuAD 2.0 F1", "squad2", "f1"))
_ABLATION = (
    Column("mnli", "MNLI-m", "mnli"),
    Column("qnli", "QNLI", "qnli"),
    Column("mrpc", "MRPC", "mrpc"),
    Column("sst2", "SST-2", "sst2"),
    Column("squad", "SQuAD F1", "squad1", "f1"),
)
_NER = Column("ner", "NER F1", "conll2003", "f1")
_NER_FEATURES = Column("ner-features", "NER F1, features", "conll2003", "f1",
                       overrides=("task.features=concat-last-four",))  # fmt: skip
_BILSTM = ("task.bilstm=true",)
_FEATURES = {  # titles as in the paper; dev F1 of BERT base, the mean of five restarts
    "embeddings": ("Embeddings", 91.0), "second-to-last": ("Second-to-Last Hidden", 95.6),
    "last": ("Last Hidden", 94.9), "sum-last-four": ("Weighted Sum Last Four Hidden", 95.9),
    "concat-last-four": ("Concat Last Four Hidden", 96.1), "sum-all": ("Weighted Sum All Layers", 95.5),
}  # fmt: skip
_SYSTEMS = (
    *(column for column in _GLUE if column.id in ("mnli", "qnli", "sst2", "cola", "stsb", "mrpc", "rte")),
    Column("squad", "SQuAD F1", "squad1", "f1"),
    _NER,
)

TABLES: dict[str, Table] = {
    table.name: table
    for table in (
        Table(
            "table1", "Table 1: GLUE", _GLUE,
            (
                Row("before", "Pre-OpenAI SOTA", paper=(80.6, 80.1, 66.1, 82.3, 93.2, 35.0, 81.0, 86.0, 61.7)),
                Row("elmo", "BiLSTM+ELMo+Attn", "elmo", paper=(76.4, 76.1, 64.8, 79.8, 90.4, 36.0, 73.3, 84.9, 56.8)),
                Row("gpt", "OpenAI GPT", "gpt", paper=(82.1, 81.4, 70.3, 87.4, 91.3, 45.4, 80.0, 82.3, 56.0)),
                Row("base", "BERT base", "base", paper=(84.6, 83.4, 71.2, 90.5, 93.5, 52.1, 85.8, 88.9, 66.4)),
                Row("large", "BERT large", "large", paper=(86.7, 85.9, 72.1, 92.7, 94.9, 60.5, 86.5, 89.3, 70.1)),
            ),
            "Fine-tuned on each task of GLUE. The paper's numbers are of the test sets, ours of the dev sets.",
            "test, by GLUE's server", "base",
        ),
        Table(
            "table2", "Table 2: SQuAD 1.1", _SQUAD1,
            (
                Row("human", "Human (test)", paper=(82.3, 91.2)),
                Row("nlnet", "nlnet, ensemble (test)", paper=(86.0, 91.7)),
                Row("qanet", "QANet, ensemble (test)", paper=(84.5, 90.5)),
                Row("bidaf", "BiDAF+ELMo (single)", paper=(None, 85.6)),
                Row("reader", "R.M. Reader (ensemble)", paper=(81.2, 87.9)),
                Row("base", "BERT base (single)", "base", paper=(80.8, 88.5)),
                Row("large", "BERT large (single)", "large", paper=(84.1, 90.9)),
                Row("ensemble", "BERT large (ensemble)", paper=(85.8, 91.8)),
                Row("trivia", "BERT large (single + TriviaQA)", paper=(84.2, 91.1)),
                Row("trivia-ensemble", "BERT large (ensemble + TriviaQA)", paper=(86.2, 92.2)),
            ),
            "Questions about paragraphs. Ensembles and TriviaQA are not measured here.", reference="base",
        ),
        Table(
            "table3", "Table 3: SQuAD 2.0", _SQUAD2,
            (
                Row("human", "Human", paper=(86.3, 89.0)),
                Row("mir", "MIR-MRC, single (test)", paper=(74.8, 78.0)),
                Row("nlnet", "nlnet, single (test)", paper=(74.2, 77.1)),
                Row("unet", "unet, ensemble (test)", paper=(71.4, 74.9)),
                Row("slqa", "SLQA+, single (test)", paper=(71.4, 74.4)),
                Row("base", "BERT base", "base"),
                Row("large", "BERT large (single)", "large", paper=(78.7, 81.9)),
            ),
            "As SQuAD 1.1, with questions that have no answer.", reference="base",
        ),
        Table(
            "table4", "Table 4: SWAG", (Column("swag", "SWAG", "swag"), Column("like", "SWAG-like", "swag-like")),
            (
                Row("glove", "ESIM+GloVe", paper=(51.9,)),
                Row("elmo", "ESIM+ELMo", "elmo", paper=(59.1,)),
                Row("gpt", "OpenAI GPT (test)", "gpt", paper=(78.0,)),
                Row("base", "BERT base", "base", paper=(81.6,)),
                Row("large", "BERT large", "large", paper=(86.6,)),
                Row("human", "Human (expert)", paper=(85.0,)),
                Row("humans", "Human (5 annotations)", paper=(88.0,)),
            ),
            "Which of four endings continues a text. Where SWAG is missing, choice among sentences of novels stands "
            "beside it: derived, not SWAG.", reference="base",
        ),
        Table(
            "table5", "Table 5: pre-training tasks", _ABLATION,
            (
                Row("bert", "BERT base", "bert", paper=(84.4, 88.4, 86.7, 92.7, 88.5)),
                Row("no-nsp", "No NSP", "no-nsp", paper=(83.9, 84.9, 86.5, 92.6, 87.9)),
                Row("ltr", "LTR & No NSP", "ltr", paper=(82.1, 84.3, 77.5, 92.1, 77.8)),
                Row("ltr-bilstm", "+ BiLSTM", "ltr", _BILSTM, paper=(82.1, 84.1, 75.7, 91.6, 84.9)),
                Row("ltr-rtl", "LTR and RTL, concatenated", "ltr", beside="rtl"),
            ),
            "What each pre-training task contributes. The last row is argued about in section 5.1, and not trained in "
            "the paper; it has twice the encoders.",
        ),
        Table(
            "table6", "Table 6: model size",
            (
                Column("ppl", "LM (ppl)", TEXT, "perplexity", "holdout", lower_is_better=True),
                Column("mnli", "MNLI-m", "mnli"),
                Column("mrpc", "MRPC", "mrpc"),
                Column("sst2", "SST-2", "sst2"),
            ),
            tuple(
                Row(f"size{number}", title, "bert" if number == 4 else f"size{number}", paper=paper)
                for number, (title, paper) in enumerate(
                    (
                        ("L=3, H=768, A=12", (5.84, 77.9, 79.8, 88.4)),
                        ("L=6, H=768, A=3", (5.24, 80.6, 82.2, 90.7)),
                        ("L=6, H=768, A=12", (4.68, 81.9, 84.8, 91.3)),
                        ("L=12, H=768, A=12", (3.99, 84.4, 86.7, 92.9)),
                        ("L=12, H=1024, A=16", (3.54, 85.7, 86.9, 93.3)),
                        ("L=24, H=1024, A=16", (3.23, 86.6, 87.8, 93.7)),
                    ),
                    1,
                )
            ),
            "Layers, width and heads, each row scaled down alike. Perplexity is of masked pieces of held-out text.",
            reference="size4",
        ),
        Table(
            "table7", "Table 7: CoNLL-2003 NER",
            (Column("dev", "Dev F1", "conll2003", "f1"), Column("test", "Test F1", "conll2003", "f1", "test")),
            (
                Row("elmo", "ELMo", "elmo", paper=(95.7, 92.2)),
                Row("cvt", "CVT", paper=(None, 92.6)),
                Row("cse", "CSE", paper=(None, 93.1)),
                Row("ft-large", "Fine-tuning, BERT large", "size6", paper=(96.6, 92.8)),
                Row("ft-base", "Fine-tuning, BERT base", "bert", paper=(96.4, 92.4)),
                *(
                    Row(name, f"Features: {title}", "bert", (f"task.features={name}",), paper=(score,))
                    for name, (title, score) in ((name, _FEATURES[name]) for name in FEATURES)
                ),
            ),
            "Fine-tuning, and a 2-layer BiLSTM on frozen features; ELMo's row is our ELMo's features under BiLSTMs.",
            reference="ft-base",
        ),
        Table(
            "table8", "Table 8: masking strategies",
            (Column("mnli", "MNLI", "mnli"), _NER, _NER_FEATURES),
            tuple(
                Row(shares, f"{shares.replace('-', ' / ')}", "bert" if shares == "80-10-10" else f"mask-{shares}",
                    paper=paper)
                for shares, paper in {
                    "80-10-10": (84.2, 95.4, 94.9),
                    "100-0-0": (84.3, 94.9, 94.0),
                    "80-0-20": (84.1, 95.2, 94.6),
                    "80-20-0": (84.4, 95.2, 94.7),
                    "0-20-80": (83.7, 94.8, 94.6),
                    "0-0-100": (83.6, 94.9, 94.6),
                }.items()
            ),
            "Percent of the chosen pieces that become [MASK] / stay the same / become a random piece.",
            reference="80-10-10",
        ),
        Table(
            "figure5", "Figure 5: training steps",
            (Column("mnli", "MNLI-m", "mnli"),),
            tuple(
                Row(f"{name}-{share}", f"{title}, {share} % of the steps",
                    name if share == 100 else f"{name}@{share}")
                for name, title in (("bert", "MLM"), ("ltr", "LTR"))
                for share in (*SNAPSHOTS, 100)
            ),
            "MNLI accuracy after fine-tuning from checkpoints on the way. The paper's figure has no numbers but those "
            "in its text.", reference="bert-100",
        ),
        Table(
            "systems", "ELMo, GPT-1 and BERT on the same text", _SYSTEMS,
            (
                Row("elmo", "ELMo, under BiLSTMs", "elmo"),
                Row("gpt", "GPT-1", "gpt"),
                Row("bert", "BERT", "bert"),
            ),
            "The three systems of the paper's Figure 3, with as many parameters as their forms allow, pre-trained on "
            "as many tokens. Numbers in the paper are of systems of different sizes, texts and times: see Table 1.",
            "other (mostly test)",
        ),
        Table(
            "transformer", "What BERT changed in the Transformer's encoder", _ABLATION,
            (
                Row("bert", "BERT", "bert"),
                Row("sinusoidal", "sin/cos positions", "sinusoidal"),
                Row("relu", "relu for gelu", "relu"),
                Row("no-segments", "without segments", "no-segments"),
            ),
            "Learned positions, gelu and segment embeddings, each taken back. The paper has no such table.",
        ),
        Table(
            "blimp", "BLiMP: minimal pairs", (Column("blimp", "BLiMP", BLIMP),),
            (
                Row("bert", "BERT", "bert"),
                Row("no-nsp", "No NSP", "no-nsp"),
                Row("ltr", "LTR & No NSP", "ltr"),
                Row("gpt", "GPT-1", "gpt"),
            ),
            "The share of pairs of which the grammatical sentence is more likely: by pseudo-log-likelihood for masked "
            "models, by likelihood for the others; a tie counts half. The paper has no such table.",
        ),
    )
}  # fmt: skip


def find_table(name: str) -> Table:
    """Return a table by its name; the error names the nearest."""
    plain = name.lower().replace(" ", "").replace("-", "").replace("_", "")
    plain = f"table{plain}" if plain.isdigit() else plain
    if plain not in TABLES:
        raise UserError(f"no table is called {name[:40]!r}{did_you_mean(plain[:40], list(TABLES))}")
    return TABLES[plain]


def find_scale(name: str) -> Scale:
    """Return a scale by its name; the error names the nearest."""
    if name not in SCALES:
        raise UserError(f"no scale is called {name[:40]!r}{did_you_mean(name[:40], list(SCALES))}")
    return SCALES[name]


def pretraining_of(key: str, scale: Scale, more: Sequence[str] = ()) -> tuple[str, list[str]]:
    """Return the recipe of a model at a scale and its overrides; `more` are the user's."""
    made = MODELS[key]
    if made.tokens == "words":
        return made.recipe, [f"model.preset={scale.elmo}", *scale.pretrain_elmo, *more]
    size = scale.sizes[int(key[4:]) - 1] if key.startswith("size") else scale.size
    own = scale.pretrain_gpt if made.tokens == "gpt-bpe" else scale.pretrain
    return made.recipe, [f"model.preset={size}", *own, *made.overrides, *more]
