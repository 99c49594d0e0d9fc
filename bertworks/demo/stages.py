"""The stages of the demo, one function each, which prints a title and results and adds them to the report."""

import os
import shlex
import shutil
import time
from collections.abc import Callable, Iterable, Sequence
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING, Any

from bertworks.config import VocabSettings
from bertworks.demo.page import cards, paragraph, pieces, shares, text
from bertworks.demo.run import (
    DATA,
    DEV,
    RUN,
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
from bertworks.models.folder import describe_shipped, find_shipped
from bertworks.processes import progress_bar
from bertworks.recipe import Recipe
from bertworks.report.charts import escaped
from bertworks.report.logs import CHECKPOINTS
from bertworks.report.page import learning_charts, read_run, tile
from bertworks.report.terminal import training_view
from bertworks.text.corpus import Corpus
from bertworks.text.normalize import Rules, is_punctuation
from bertworks.text.tokenizer import Tokenizer
from bertworks.text.vocabulary import CLS, SEP, write_vocabulary

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

    from bertworks.finetuning.session import Finetuned
    from bertworks.train.trainer import Result


# The inputs of the demo's models, and the settings of fine-tuning; those of pre-training are in the recipe `demo`.
SHIPPED, KOREAN = "mini", "mini-ko"  # the models that come with the package
HOLDOUT = 0.05  # the share of Python's help on which the tiny BERT is measured

# Two sentences that could be in Python's help, and one with words that are not in it.
TO_SPLIT = (
    "A class definition is an executable statement.",
    "Unpacking iterables wasn't always this pleasant!",
    "Pretraining needs patience.",
)
# What a BERT can learn from Python's help in a minute.
HELP_MASKS = (
    "Changed in [MASK] 3.8.",
    "The value of the [MASK] is returned.",
    "A class [MASK] is an executable statement.",
)
# What a BERT can know that was trained on more text.
MASKS = (
    "Paris is the [MASK] of France.",
    "He was born in London in the [MASK] 1867.",
    "She opened the [MASK] and looked out into the garden.",
    "The doctor said that the [MASK] would soon be well again.",
)
KOREAN_MASKS = (
    "그는 대학교에서 물리학을 [MASK].",
    "그는 미국의 [MASK]이다.",
)
PAIRS = (
    ("The river rises in the mountains of the north.", "It flows through two lakes before it reaches the sea."),
    ("The river rises in the mountains of the north.", "The band released its second album in the same year."),
)
NUM_GUESSES = 5

# Small batches, because there are only 260 sentences. Results of three seeds: 83, 88 and 88 % of the dev set; with 2e-4
# 83, 87 and 85 %.
FINETUNING = ("optim.lr=1e-4", "train.epochs=8", "train.batch_size=16")
TO_CLASSIFY = (
    "The room was spotless, and everyone at the desk was kind.",
    "Two hours on hold, and then they hung up on me.",
    "The library opens at nine and closes at six.",
    "I expected little, and it turned out to be a wonderful evening.",
    "The bus to the harbour leaves from the other side of the square.",
    "Never again: the seats were filthy and the heating broken.",
)
TO_ATTEND = "The soup was cold, but the waiter who brought it was very kind."

_COPIES = 4  # the help has half a megabyte, too little for a measurement
_ROUNDS = 3  # of a measurement; the fastest counts, because the first one also loads the compiled code
_LOOKED_AT = 50  # instances; the one with the most different pieces is shown: the help has tables of dashes
_LONGEST = 12  # letters of a word in the drawing of a head


def learn_vocabulary(show: Show) -> Tokenizer:
    """First: a vocabulary from Python's own help, how it splits sentences, and how fast it tokenizes the help."""
    from bertworks.text.learn import learn_vocabulary

    title = "A vocabulary, from the help that comes with Python"
    with show.stage(title, vocabulary_command(show.recipe)) as stage:
        write_topics(show.folder / TOPICS)
        with progress_bar(quiet=show.quiet) as progress:
            rules, corpus = rules_of(show.recipe), Corpus([show.folder / TOPICS])
            learned = learn_vocabulary(corpus, progress=progress, **rules._asdict(), **dict(show.recipe.vocab))
        write_vocabulary(show.folder / VOCABULARY, learned.pieces)
        tokenizer = Tokenizer(learned.pieces, **rules._asdict())
        ours, theirs = _compare_speeds(tokenizer, show.folder)
        message = f"{len(tokenizer):,} pieces, learned from {learned.num_word_tokens:,} words"
        speed = (
            f"It tokenizes {ours:.0f} MB of text per second on one core, {ours / theirs:.1f} times as much as "
            f"the tokenizers library ({theirs:.1f} MB)"
        )
        splits = [(sentence, tokenizer.encode(sentence).tokens) for sentence in TO_SPLIT]
        tell("\n".join([message, *(f"  {' '.join(tokens)}" for _, tokens in splits), speed]))
        stage.html = paragraph(f"{message}.") + "".join(text(sentence) + pieces(tokens) for sentence, tokens in splits)
        stage.html += paragraph(f"{speed}.")
    show.tiles.append(tile("Vocabulary", f"{len(tokenizer):,}", "pieces, learned"))
    return tokenizer


def vocabulary_command(recipe: Recipe) -> str:
    """Return the command that learns this vocabulary."""
    usual = VocabSettings()
    options = [f"--{name.replace('_', '-')} {value}" for name, value in recipe.vocab if value != getattr(usual, name)]
    return " ".join(["bertworks vocab", TOPICS, *options, *flags_of(recipe), "--out my-vocab.txt"])


def flags_of(recipe: Recipe) -> list[str]:
    """Return the command-line options for the recipe's text normalisation."""
    rules = rules_of(recipe)
    cased = [] if rules.strip_accents else ["--keep-accents" if rules.lowercase else "--cased"]
    return cased + ([] if rules.split_cjk else ["--join-cjk"])


def rules_of(recipe: Recipe) -> Rules:
    """Return the recipe's rules for text normalisation."""
    settings = recipe.tokenizer
    accents = settings.lowercase if settings.strip_accents is None else settings.strip_accents
    return Rules(settings.lowercase, accents, settings.split_cjk)


def write_topics(path: Path) -> None:
    """Write Python's help as a corpus, with a document for every topic."""
    from pydoc_data import topics

    # Blank lines are removed, because they would start new documents.
    documents = (
        "\n".join(line for line in topics.topics[name].splitlines() if line.strip()) for name in sorted(topics.topics)
    )
    with atomic_write(path) as stream:
        stream.write("\n\n".join(documents) + "\n")


def _compare_speeds(tokenizer: Tokenizer, folder: Path) -> tuple[float, float]:
    """Return the megabytes of text per second of our tokenizer and of the tokenizers library, including reading ids."""
    os.environ["TOKENIZERS_PARALLELISM"] = "false"
    from tempfile import TemporaryDirectory

    from tokenizers import Tokenizer as PeerTokenizer

    lines = _COPIES * (folder / TOPICS).read_text(encoding="utf-8").splitlines()
    with TemporaryDirectory() as files:
        tokenizer.save(files)
        peer = PeerTokenizer.from_file(str(Path(files, "tokenizer.json")))

    def speed(encode: Callable[[Sequence[str]], Iterable[Any]]) -> float:
        seconds = []
        for _ in range(_ROUNDS):
            started = time.perf_counter()
            _ = [encoding.ids for encoding in encode(lines)]
            seconds.append(time.perf_counter() - started)
        return sum(len(line.encode()) for line in lines) / 1e6 / min(seconds)

    return speed(tokenizer.encode_batch), speed(peer.encode_batch_fast)


def make_shards(show: Show, tokenizer: Tokenizer) -> None:
    """Second: the text as shards, and one training instance from it."""
    from bertworks.data.inspect import instances
    from bertworks.data.prepare import prepare
    from bertworks.data.shards import Dataset

    flags = "".join(f" {flag}" for flag in flags_of(show.recipe))
    command = f"bertworks prepare {TOPICS} --vocab {VOCABULARY}{flags} --holdout {HOLDOUT} --out my-data"
    with show.stage("Training data: sentence pairs with masks, from the same text", command) as stage:
        corpus, data = Corpus([show.folder / TOPICS]), show.folder / DATA
        with progress_bar(quiet=show.quiet) as progress:
            manifest = prepare(corpus, tokenizer, data, holdout=HOLDOUT, progress=progress)
        train, held_out = manifest["train"], manifest["holdout"]
        counts = (
            f"{train['documents']:,} documents, {train['sentences']:,} sentences, {train['tokens']:,} tokens for "
            f"training; {held_out['documents']:,} documents, {held_out['tokens']:,} tokens held out"
        )
        first_ones = islice(instances(Dataset(data), show.recipe.data, seed=show.recipe.train.seed), _LOOKED_AT)
        instance = max(first_ones, key=lambda one: len(set(one["tokens"])))
        answers = f"To predict: {' '.join(instance['masked_tokens'])}"
        if "is_random_next" in instance:
            origin = "is from elsewhere" if instance["is_random_next"] else "follows the first"
            answers += f"; the second part {origin}"
        tell(f"{counts}. One pair:\n  {' '.join(instance['tokens'])}\n{answers}")
        stage.html = paragraph(f"{counts}. One pair, with the tokens to predict marked:")
        stage.html += pieces(instance["tokens"], instance["masked_positions"]) + paragraph(f"{answers}.")


def pretrain_tiny(show: Show) -> None:
    """Third: a tiny BERT pre-trained on the shards, with a live view, and its predictions."""
    from bertworks.inference.model import load

    title = f"Pre-training: a BERT of size {show.recipe.model.preset} learns from them"
    with show.stage(title, pretraining_command(show.overrides), f'bertworks fill {RUN} "{HELP_MASKS[0]}"') as stage:
        outcome = pretrained(show)
        message = f"{counted(outcome.progress.step, 'step')}, {counted(outcome.progress.tokens, 'token')}"
        accuracy = outcome.metrics.get("holdout_mlm_accuracy")
        if accuracy is not None:
            message += f"; it fills {accuracy:.0%} of the masks of held-out documents correctly"
        tell(message)
        charts = "".join(learning_charts(read_run(show.folder / RUN)))
        stage.html = f'{paragraph(f"{message}.")}<div class="charts">{charts}</div>'
        stage.html += fill_masks(load(show.folder / RUN, device="cpu"), HELP_MASKS)
    show.tiles.append(tile("Pre-trained", f"{outcome.progress.tokens:,}", f"tokens, {outcome.progress.step:,} steps"))


def pretraining_command(overrides: Sequence[str]) -> str:
    """Return the command for this pre-training; overrides of text settings no longer matter for prepared shards."""
    changed = [shlex.quote(one) for one in overrides if not one.strip().startswith(("vocab.", "tokenizer."))]
    return " ".join(["bertworks pretrain demo --data", DATA, "--out my-run", *changed])


def pretrained(show: Show) -> "Result":
    """Pre-train, and exit if a signal stopped it."""
    from bertworks.report.terminal import training_view
    from bertworks.train.pretrain import pretrain

    with training_view(quiet=show.quiet) as view, one_thread():
        outcome = pretrain(show.recipe, data=show.folder / DATA, out=show.folder / RUN, device="cpu", view=view)
    end_if_signalled(outcome.signal)
    return outcome


def fill_masks(model: Any, texts: Sequence[str]) -> str:
    """Let a model fill the mask of each text; prints its predictions, and returns cards with them as bars."""
    filled = []
    for one in texts:
        guesses = [(guess["token"], guess["score"]) for guess in model.fill(one, top_k=NUM_GUESSES)[0]]
        tell(f"{one}\n  {'   '.join(f'{piece} {percent(share)}' for piece, share in guesses)}")
        filled.append(text(one) + shares(guesses))
    return cards(filled)


def ask_shipped(show: Show, shipped: Path) -> None:
    """Fourth: the shipped model fills masks and judges pairs; the Korean model, if there is one, fills masks."""
    from bertworks.inference.model import load

    (first, second), korean = PAIRS[0], find_shipped(KOREAN)
    commands = [f'bertworks fill {SHIPPED} "{MASKS[0]}"', f'bertworks nsp {SHIPPED} "{first}" "{second}"']
    if korean:
        commands.append(f'bertworks fill {KOREAN} "{KOREAN_MASKS[0]}"')
    with show.stage(f"A model trained on more text: {SHIPPED}, which comes with the package", *commands) as stage:
        model, question = load(shipped, device="cpu"), "Does the second sentence follow the first?"
        message = describe(SHIPPED)
        tell(message)
        stage.html = paragraph(f"{message}.") + fill_masks(model, MASKS)
        tell(question)
        judged = []
        for first, second in PAIRS:
            share = model.nsp(first, second)
            drawn = f"{bar(share)} {share:4.0%}  "
            tell(f"{drawn}{first}\n{' ' * len(drawn)}{second}")
            judged.append(text(first) + text(second) + shares([("follows", share)], is_first_best=False))
        stage.html += paragraph(question) + cards(judged)
        if korean:
            message = f"{KOREAN} reads Korean: {describe(KOREAN)}"
            tell(message)
            stage.html += paragraph(f"{message}.") + fill_masks(load(korean, device="cpu"), KOREAN_MASKS)


def describe(name: str) -> str:
    """Describe a shipped model: its size, what it was trained on and how well it fills masks."""
    about = describe_shipped(name)
    accuracy = about["mlm_accuracy"]
    facts = f"{counted(about['layers'], 'layer')} of width {about['width']}"
    facts += f", {about['parameters'] / 1e6:.1f} million parameters"
    facts += f", trained on {about['trained_on']}" if about["trained_on"] else ""
    return facts + (f"; it fills {accuracy:.0%} of masks correctly" if accuracy is not None else "")


def finetune_shipped(show: Show, shipped: Path) -> Any:
    """Fifth: the shipped model fine-tuned on the labelled sentences in the folder, with the live view; returns it."""
    from bertworks.finetuning import report
    from bertworks.inference.model import load

    folder, command = show.folder, f"bertworks finetune classify --model {SHIPPED} --train {TRAIN} --dev {DEV}"
    command += f" --out my-tuned {' '.join(FINETUNING)}"
    with show.stage("Fine-tuning: from labelled sentences it learns to recognise positive opinions", command) as stage:
        outcome = finetuned(show, shipped)
        shutil.rmtree(folder / TUNED / CHECKPOINTS)  # twice as large as the model, and not needed to resume
        message = (
            f"{outcome.score:.0%} of {DEV} is classified correctly, by the model of step {outcome.step:,} of "
            f"{outcome.progress.step:,}: the best one is kept"
        )
        tell(message)
        found = report.read_finetune_run(folder / TUNED)
        assert found.dev, "the dev set was measured"
        charts = f'<div class="charts">{"".join(report.learning_charts(found))}</div>'
        stage.html = paragraph(f"{message}.") + charts + report.class_tables(found.dev)
    show.tiles.append(tile("Sentences classified correctly", f"{outcome.score:.0%}", f"of {DEV}, once fine-tuned"))
    return load(folder / TUNED, device="cpu")


def finetuned(show: Show, shipped: Path) -> "Finetuned":
    """Fine-tune, and exit if a signal stopped it."""
    from bertworks.finetuning.finetune import finetune

    folder = show.folder
    with training_view(quiet=show.quiet) as view, one_thread():
        outcome = finetune(
            "classify", model=shipped, train=folder / TRAIN, dev=folder / DEV, out=folder / TUNED,
            overrides=FINETUNING, device="cpu", view=view,
        )  # fmt: skip
    end_if_signalled(outcome.signal)
    return outcome


def judge_sentences(show: Show, model: Any) -> None:
    """Sixth: the fine-tuned model classifies new sentences."""
    with show.stage("New sentences, classified", f'bertworks classify {TUNED} "{TO_CLASSIFY[0]}"') as stage:
        judged = []
        for one, result in zip(TO_CLASSIFY, model.classify(TO_CLASSIFY), strict=True):
            scores = sorted(result["scores"].items(), key=lambda item: -item[1])
            label, share = scores[0]
            tell(f"{label:<10}  {bar(share)} {share:4.0%}  {one}")
            judged.append(text(one) + shares(scores))
        stage.html = cards(judged)


def look_into(show: Show, model: Any) -> None:
    """Last: which words of a sentence attend to which; one head as text, and all heads in the report.

    The head whose words attend most to words further away is drawn: most heads attend to neighbours or to punctuation,
    which is less interesting.
    """
    from bertworks.report.attention import attention_page

    command = f'bertworks attend {TUNED} "{TO_ATTEND}"'
    with show.stage("Attention: which word attends to which", command) as stage:
        encoding, weights = model.attention(TO_ATTEND)
        words = words_of(encoding.tokens)
        layer, head = most_telling_head(weights, words)
        tell(f"Layer {layer + 1}, head {head + 1} of {len(weights)} x {len(weights[0])}, the words in order;")
        tell("to the right of each is the other word that it attends to most")
        tell("\n".join(picture(encoding.tokens, words, weights[layer, head])))
        page = attention_page(encoding.tokens, encoding.segment_ids, weights, f"fine-tuned: {TO_ATTEND}")
        stage.html = (
            f'<iframe class="attention" title="Attention" sandbox="allow-scripts" srcdoc="{escaped(page)}"></iframe>'
        )


def words_of(tokens: Sequence[str]) -> list[int]:
    """Return the positions of tokens that are neither special nor punctuation."""
    return [
        index for index, token in enumerate(tokens) if token not in (CLS, SEP) and not all(map(is_punctuation, token))
    ]


def most_telling_head(weights: "NDArray[np.float32]", words: Sequence[int]) -> tuple[int, int]:
    """Return (layer, head), counted from 0, of the head whose words attend most to words that are not neighbours."""
    import numpy as np

    positions = np.array(words)
    is_far = np.abs(positions[:, None] - positions[None, :]) > 1
    among_words = weights[:, :, positions][..., positions] * is_far
    telling = among_words.max(-1).mean(-1)
    layer, head = np.unravel_index(telling.argmax(), telling.shape)
    return int(layer), int(head)


def picture(tokens: Sequence[str], words: Sequence[int], weights: "NDArray[np.float32]") -> list[str]:
    """Draw a head: a row per word, darker where it attends more, and the other word that it attends to most.

    Args:
        tokens: the tokens of the sentence.
        words: the positions of the words to draw, at least two.
        weights: [from token, to token].
    """
    darkest = float(weights[:, words][words].max())
    rows = []
    for index in words:
        cells = "".join(2 * shade(float(weights[index, other]) / darkest) for other in words)
        nearest = max((other for other in words if other != index), key=lambda other: float(weights[index, other]))
        looks = f"attends to {tokens[nearest][:_LONGEST]}, {float(weights[index, nearest]):.0%}"
        rows.append(f"{tokens[index][:_LONGEST]:>{_LONGEST}} {cells} {looks}")
    return rows
