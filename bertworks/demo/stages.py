"""The first stage: a vocabulary from Python's own help, how it splits sentences, and how fast the help is cut by it."""

import os
import shlex
import shutil
import time
from collections.abc import Callable, Sequence
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from bertworks.config import VocabSettings
from bertworks.demo.page import cards, paragraph, pieces, shares, text
from bertworks.demo.run import (
    DATA,
    DEV,
    FINETUNING,
    HELP_MASKS,
    HOLDOUT,
    KOREAN,
    KOREAN_MASKS,
    MASKS,
    NUM_GUESSES,
    PAIRS,
    RUN,
    SHIPPED,
    TO_ATTEND,
    TO_CLASSIFY,
    TO_SPLIT,
    TOPICS,
    TRAIN,
    TUNED,
    VOCABULARY,
    Show,
    bar,
    end_if_signalled,
    one_thread,
    percent,
    shade,
    tell,
)
from bertworks.errors import counted
from bertworks.files import atomic_write
from bertworks.models.find import describe_shipped, find_shipped
from bertworks.processes import progress_bar
from bertworks.recipe import Recipe
from bertworks.report.charts import escaped
from bertworks.report.page import tile
from bertworks.text.normalize import Rules, is_punctuation
from bertworks.text.tokenizer import Tokenizer
from bertworks.text.vocabulary import CLS, SEP

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

    from bertworks.finetuning.session import Finetuned
    from bertworks.train.run import Outcome


_COPIES = 4  # the help has half a megabyte, and a measurement wants some more
_ROUNDS = 3  # of a measurement, of which the best counts: the first one also loads what is compiled


class Speeds(NamedTuple):
    """Megabytes of text a second on one core, every id read out."""

    ours: float
    theirs: float

    def sentence(self) -> str:
        """Say both."""
        return (
            f"It cuts {self.ours:.0f} MB of text a second on one core, {self.ours / self.theirs:.1f} times as much as "
            f"the tokenizers library ({self.theirs:.1f} MB)"
        )


def learn_vocabulary(show: Show) -> Tokenizer:
    """Learn the vocabulary and show what it does."""
    with show.stage("A vocabulary, from the help that comes with Python", _command(show.recipe)) as stage:
        write_topics(show.folder / TOPICS)
        tokenizer, num_words = _learn(show)
        speeds = _compare_speeds(tokenizer, show.folder)
        told = f"{len(tokenizer):,} pieces, learned from {num_words:,} words"
        splits = [(sentence, tokenizer.encode(sentence).tokens) for sentence in TO_SPLIT]
        tell("\n".join([told, *(f"  {' '.join(tokens)}" for _, tokens in splits), speeds.sentence()]))
        stage.html = paragraph(f"{told}.") + "".join(text(sentence) + pieces(tokens) for sentence, tokens in splits)
        stage.html += paragraph(f"{speeds.sentence()}.")
    show.tiles.append(tile("Vocabulary", f"{len(tokenizer):,}", "pieces, learned"))
    return tokenizer


def _command(recipe: Recipe) -> str:
    """Return the command that learns the same vocabulary."""
    usual = VocabSettings()
    options = [f"--{name.replace('_', '-')} {value}" for name, value in recipe.vocab if value != getattr(usual, name)]
    return " ".join(["bertworks vocab", TOPICS, *options, *flags_of(recipe), "--out my-vocab.txt"])


def flags_of(recipe: Recipe) -> list[str]:
    """Return the options of commands that clean text as the recipe wants it."""
    rules = rules_of(recipe)
    cased = [] if rules.strip_accents else ["--keep-accents" if rules.lowercase else "--cased"]
    return cased + ([] if rules.split_cjk else ["--join-cjk"])


def rules_of(recipe: Recipe) -> Rules:
    """Return how the recipe wants text to be cleaned."""
    settings = recipe.tokenizer
    accents = settings.lowercase if settings.strip_accents is None else settings.strip_accents
    return Rules(settings.lowercase, accents, settings.split_cjk)


def write_topics(path: Path) -> None:
    """Write Python's help as a corpus: a document for every topic, a line for every line of it."""
    from pydoc_data import topics

    # Paragraphs of a topic stay together: a blank line would start a new document.
    documents = (
        "\n".join(line for line in topics.topics[name].splitlines() if line.strip()) for name in sorted(topics.topics)
    )
    with atomic_write(path) as stream:
        stream.write("\n\n".join(documents) + "\n")


def _learn(show: Show) -> tuple[Tokenizer, int]:
    """Learn pieces from the text in the folder and write them there; return also the number of words in the text."""
    from bertworks.text.corpus import Corpus
    from bertworks.text.learn import learn_vocabulary
    from bertworks.text.vocabulary import write_vocabulary

    rules, corpus = rules_of(show.recipe), Corpus([show.folder / TOPICS])
    with progress_bar(quiet=show.quiet) as progress:
        learned = learn_vocabulary(corpus, rules=rules, progress=progress, **dict(show.recipe.vocab))
    write_vocabulary(show.folder / VOCABULARY, learned.pieces)
    return Tokenizer(learned.pieces, **rules._asdict()), learned.num_word_tokens


def _compare_speeds(tokenizer: Tokenizer, folder: Path) -> Speeds:
    """Cut the text into pieces with our tokenizer and with that of the tokenizers library, from the same files."""
    os.environ["TOKENIZERS_PARALLELISM"] = "false"
    from tempfile import TemporaryDirectory

    from tokenizers import Tokenizer as PeerTokenizer

    lines = _COPIES * (folder / TOPICS).read_text(encoding="utf-8").splitlines()
    with TemporaryDirectory() as files:
        tokenizer.save(files)
        peer = PeerTokenizer.from_file(str(Path(files, "tokenizer.json")))
    return Speeds(
        _megabytes_per_second(lambda: [encoding.ids for encoding in tokenizer.encode_batch(lines)], lines),
        _megabytes_per_second(lambda: [encoding.ids for encoding in peer.encode_batch_fast(lines)], lines),
    )


def _megabytes_per_second(work: Callable[[], object], lines: Sequence[str]) -> float:
    num_bytes, seconds = sum(len(line.encode()) for line in lines), []
    for _ in range(_ROUNDS):
        started = time.perf_counter()
        work()
        seconds.append(time.perf_counter() - started)
    return num_bytes / 1e6 / min(seconds)


# The second stage: the text as shards, and an instance that a model will see of it.


_LOOKED_AT = 50  # instances, of which the one with the most different pieces is shown: the help has tables of dashes


def make_shards(show: Show, tokenizer: Tokenizer) -> None:
    """Make the shards and show one instance."""
    from bertworks.data.inspect import instances
    from bertworks.data.prepare import Options, prepare
    from bertworks.data.shards import Dataset
    from bertworks.text.corpus import Corpus

    with show.stage("Training data: sentence pairs with masks, from the same text", _command_of_shards(show)) as stage:
        corpus, data = Corpus([show.folder / TOPICS]), show.folder / DATA
        with progress_bar(quiet=show.quiet) as progress:
            manifest = prepare(corpus, tokenizer, data, Options(holdout=HOLDOUT), progress=progress)
        counts = _counts(manifest)
        first_ones = islice(instances(Dataset(data), show.recipe.data, seed=show.recipe.train.seed), _LOOKED_AT)
        instance = max(first_ones, key=lambda one: len(set(one["tokens"])))
        tell(f"{counts}. One pair:\n  {' '.join(instance['tokens'])}\n{_answers(instance)}")
        marked = instance["masked_positions"]
        stage.html = paragraph(f"{counts}. One pair, what is to be guessed marked:")
        stage.html += pieces(instance["tokens"], marked) + paragraph(f"{_answers(instance)}.")


def _command_of_shards(show: Show) -> str:
    flags = "".join(f" {flag}" for flag in flags_of(show.recipe))
    return f"bertworks prepare {TOPICS} --vocab {VOCABULARY}{flags} --holdout {HOLDOUT} --out my-data"


def _counts(manifest: dict[str, Any]) -> str:
    train, kept = manifest["train"], manifest["holdout"]
    return (
        f"{train['documents']:,} documents, {train['sentences']:,} sentences, {train['tokens']:,} tokens to learn from"
        f"; {kept['documents']:,} documents, {kept['tokens']:,} tokens kept aside"
    )


def _answers(instance: dict[str, Any]) -> str:
    """Say what the model is to find out about an instance."""
    asked = f"To be guessed: {' '.join(instance['masked_tokens'])}"
    if "is_random_next" not in instance:
        return asked
    return f"{asked}; the second part {'is from elsewhere' if instance['is_random_next'] else 'follows the first'}"


# Masks that a model fills, and pairs that it judges: asked, told, and as parts of the report.


class Filled(NamedTuple):
    """A text with a mask, and the likeliest pieces there with their probabilities."""

    text: str
    guesses: list[tuple[str, float]]


class Judged(NamedTuple):
    """Two sentences, and how likely the model finds that the second follows."""

    first: str
    second: str
    probability: float


def fill_all(model: Any, texts: Sequence[str]) -> list[Filled]:
    """Have a model fill the mask of each text."""
    return [
        Filled(one, [(guess["token"], guess["score"]) for guess in model.fill(one, top_k=NUM_GUESSES)[0]])
        for one in texts
    ]


def judge_pairs(model: Any) -> list[Judged]:
    """Ask a model which sentences follow each other."""
    return [Judged(first, second, model.nsp(first, second)) for first, second in PAIRS]


def tell_filled(filled: Sequence[Filled]) -> None:
    """Write what was guessed, two lines a text."""
    for one in filled:
        tell(f"{one.text}\n  {'   '.join(f'{piece} {percent(share)}' for piece, share in one.guesses)}")


def tell_judged(judged: Sequence[Judged]) -> None:
    """Write how likely each pair is one, two lines a pair."""
    for one in judged:
        drawn = f"{bar(one.probability)} {one.probability:4.0%}  "
        tell(f"{drawn}{one.first}\n{' ' * len(drawn)}{one.second}")


def filled_html(filled: Sequence[Filled]) -> str:
    """Return cards with the guesses as bars."""
    return cards(text(one.text) + shares(one.guesses) for one in filled)


def judged_html(judged: Sequence[Judged]) -> str:
    """Return cards with both sentences and the judgement as a bar."""
    return cards(
        text(one.first) + text(one.second) + shares([("follows", one.probability)], is_first_best=False)
        for one in judged
    )


# The third stage: pre-training from nothing, and what the tiny BERT guesses then.


_OF_TEXT = ("vocab.", "tokenizer.")  # sections of a recipe that are over when the shards are there


def pretrain_tiny(show: Show) -> None:
    """Pre-train on the shards, with the live view, and have the model fill masks."""
    from bertworks.inference.model import load

    title = f"Pre-training: a BERT of size {show.recipe.model.preset} reads them, masks and all"
    with show.stage(title, _command_of_pretraining(show.overrides), f'bertworks fill {RUN} "{HELP_MASKS[0]}"') as stage:
        outcome = _trained(show)
        filled = fill_all(load(show.folder / RUN, device="cpu"), HELP_MASKS)
        told = _told(outcome)
        tell(told)
        tell_filled(filled)
        stage.html = paragraph(f"{told}.") + _charts(show.folder / RUN) + filled_html(filled)
    show.tiles.append(tile("Pre-trained", f"{outcome.place.tokens:,}", f"tokens, {outcome.place.step:,} steps"))


def _command_of_pretraining(overrides: Sequence[str]) -> str:
    changed = [shlex.quote(one) for one in overrides if not one.strip().startswith(_OF_TEXT)]
    return " ".join(["bertworks pretrain demo --data", DATA, "--out my-run", *changed])


def _trained(show: Show) -> "Outcome":
    from bertworks.report.terminal import training_view
    from bertworks.train.pretrain import pretrain

    with training_view(quiet=show.quiet) as view, one_thread():
        outcome = pretrain(show.recipe, data=show.folder / DATA, out=show.folder / RUN, device="cpu", view=view)
    end_if_signalled(outcome.signal)
    return outcome


def _told(outcome: "Outcome") -> str:
    told = f"{counted(outcome.place.step, 'step')}, {counted(outcome.place.tokens, 'token')}"
    accuracy = outcome.metrics.get("holdout_mlm_accuracy")
    return told if accuracy is None else f"{told}; it fills {accuracy:.0%} of the masks of documents kept aside rightly"


def _charts(run: Path) -> str:
    from bertworks.report.page import learning_charts, read_run

    return f'<div class="charts">{"".join(learning_charts(read_run(run)))}</div>'


# The fourth stage: the models that come with the package fill masks, and one of them judges pairs.


def ask_shipped(show: Show, shipped: Path) -> None:
    """Ask the shipped model what it has learned, and the Korean one if it is there too."""
    from bertworks.inference.model import load

    (first, second), korean = PAIRS[0], find_shipped(KOREAN)
    commands = [f'bertworks fill {SHIPPED} "{MASKS[0]}"', f'bertworks nsp {SHIPPED} "{first}" "{second}"']
    if korean:
        commands.append(f'bertworks fill {KOREAN} "{KOREAN_MASKS[0]}"')
    with show.stage(f"A model that has read more: {SHIPPED}, which comes with the package", *commands) as stage:
        model = load(shipped, device="cpu")
        filled, judged = fill_all(model, MASKS), judge_pairs(model)
        told = _told_of_shipped(SHIPPED)
        tell(told)
        tell_filled(filled)
        tell("Does the second sentence follow the first?")
        tell_judged(judged)
        stage.html = paragraph(f"{told}.") + filled_html(filled)
        stage.html += paragraph("Does the second sentence follow the first?") + judged_html(judged)
        if korean:
            filled = fill_all(load(korean, device="cpu"), KOREAN_MASKS)
            told = f"{KOREAN} reads Korean: {_told_of_shipped(KOREAN)}"
            tell(told)
            tell_filled(filled)
            stage.html += paragraph(f"{told}.") + filled_html(filled)


def _told_of_shipped(name: str) -> str:
    about = describe_shipped(name)
    told = f"{counted(about.layers, 'layer')} of width {about.width}, {about.parameters / 1e6:.1f} million parameters"
    told += f", trained on {about.trained_on}" if about.trained_on else ""
    return told + (f"; it fills {about.mlm_accuracy:.0%} of masks rightly" if about.mlm_accuracy is not None else "")


# The fifth and the sixth stage: the shipped model is fine-tuned on labelled sentences, and judges new ones.


_FINETUNE = (
    f"bertworks finetune classify --model {SHIPPED} --train {TRAIN} --dev {DEV} --out my-tuned {' '.join(FINETUNING)}"
)


class Predicted(NamedTuple):
    """A sentence and what the model finds of it: the labels with their shares, the likeliest first."""

    text: str
    scores: list[tuple[str, float]]


def finetune_shipped(show: Show, shipped: Path) -> Any:
    """Fine-tune on the sentences in the folder, with the live view, and return the model."""
    from bertworks.inference.model import load

    with show.stage("Fine-tuning: labelled sentences teach it who is pleased and who is not", _FINETUNE) as stage:
        outcome = _tuned(show, shipped)
        told = (
            f"{outcome.score:.0%} of {DEV} is judged rightly, by the model of step {outcome.step:,} of "
            f"{outcome.place.step:,}: the best one is kept"
        )
        tell(told)
        stage.html = paragraph(f"{told}.") + _tables(show.folder / TUNED)
    show.tiles.append(tile("Sentences judged rightly", f"{outcome.score:.0%}", f"of {DEV}, once fine-tuned"))
    return load(show.folder / TUNED, device="cpu")


def _tuned(show: Show, shipped: Path) -> "Finetuned":
    from bertworks.finetuning.finetune import finetune
    from bertworks.report.logs import CHECKPOINTS
    from bertworks.report.terminal import training_view

    folder = show.folder
    with training_view(quiet=show.quiet) as view, one_thread():
        outcome = finetune(
            "classify", model=shipped, train=folder / TRAIN, dev=folder / DEV, out=folder / TUNED,
            overrides=FINETUNING, device="cpu", view=view,
        )  # fmt: skip
    end_if_signalled(outcome.signal)
    shutil.rmtree(folder / TUNED / CHECKPOINTS)  # twice as large as the model, and nobody goes on from there
    return outcome


def _tables(run: Path) -> str:
    """Return the curves of a run, and how its model did by classes."""
    from bertworks.finetuning.report import class_tables, learning_charts, read_finetune_run

    found = read_finetune_run(run)
    assert found.dev, "the dev set was measured"
    return f'<div class="charts">{"".join(learning_charts(found))}</div>{class_tables(found.dev)}'


def judge_sentences(show: Show, model: Any) -> None:
    """Have the fine-tuned model judge sentences that nobody has labelled."""
    with show.stage("New sentences, judged", f'bertworks classify {TUNED} "{TO_CLASSIFY[0]}"') as stage:
        predicted = [
            Predicted(one, sorted(result["scores"].items(), key=lambda item: -item[1]))
            for one, result in zip(TO_CLASSIFY, model.classify(TO_CLASSIFY), strict=True)
        ]
        _tell(predicted)
        stage.html = cards(text(one.text) + shares(one.scores) for one in predicted)


def _tell(predicted: Sequence[Predicted]) -> None:
    for one in predicted:
        label, share = one.scores[0]
        tell(f"{label:<10}  {bar(share)} {share:4.0%}  {one.text}")


# The last stage: what the words of a sentence attend to, one head in characters and all of them in the report.
#
# Of the many heads the one is drawn whose words look most at words that are not beside them: most heads look at
# their neighbours or at punctuation, which is no news.


_LONGEST = 12  # letters of a word


def look_into(show: Show, model: Any) -> None:
    """Draw what attends to what in the fine-tuned model."""
    from bertworks.report.page import attention_page

    command = f'bertworks attend {TUNED} "{TO_ATTEND}"'
    with show.stage("Attention: which word looks at which", command) as stage:
        encoding, weights = model.attention(TO_ATTEND)
        words = words_of(encoding.tokens)
        layer, head = most_telling_head(weights, words)
        tell(f"Layer {layer + 1}, head {head + 1} of {len(weights)} x {len(weights[0])}, the words in their order;")
        tell("behind each what it looks at most, besides itself")
        tell("\n".join(picture(encoding.tokens, words, weights[layer, head])))
        page = attention_page(encoding.tokens, encoding.segment_ids, weights, f"fine-tuned: {TO_ATTEND}")
        stage.html = (
            f'<iframe class="attention" title="Attention" sandbox="allow-scripts" srcdoc="{escaped(page)}"></iframe>'
        )


def words_of(tokens: Sequence[str]) -> list[int]:
    """Return the places of tokens that are neither special nor punctuation."""
    return [
        place for place, token in enumerate(tokens) if token not in (CLS, SEP) and not all(map(is_punctuation, token))
    ]


def most_telling_head(weights: "NDArray[np.float32]", words: Sequence[int]) -> tuple[int, int]:
    """Return (layer, head), counted from 0, of the head whose words look most at words that are not beside them."""
    import numpy as np

    places = np.array(words)
    is_far = np.abs(places[:, None] - places[None, :]) > 1
    among_words = weights[:, :, places][..., places] * is_far
    telling = among_words.max(-1).mean(-1)
    layer, head = np.unravel_index(telling.argmax(), telling.shape)
    return int(layer), int(head)


def picture(tokens: Sequence[str], words: Sequence[int], weights: "NDArray[np.float32]") -> list[str]:
    """Draw a head: a row for every word, darker where it looks more, and the other word that it looks at most.

    Args:
        tokens: of the sentence.
        words: the places of those that are drawn, two or more.
        weights: [from token, to token].
    """
    darkest = float(weights[:, words][words].max())
    rows = []
    for place in words:
        cells = "".join(2 * shade(float(weights[place, other]) / darkest) for other in words)
        nearest = max((other for other in words if other != place), key=lambda other: float(weights[place, other]))
        looks = f"looks at {tokens[nearest][:_LONGEST]}, {float(weights[place, nearest]):.0%}"
        rows.append(f"{tokens[place][:_LONGEST]:>{_LONGEST}} {cells} {looks}")
    return rows
