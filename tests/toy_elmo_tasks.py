"""Small files of pairs, tags and questions whose words no list has, and a small ELMo that tells words apart."""

import random

from small_models import write_small_elmo
from toy_tasks import write_rows, write_task

WORDS = ("cat", "dog", "zebra", "gnu", "sat", "far")
QUICK = ("task.cells=12", "task.max_length=24", "train.batch_size=16", "train.epochs=4", "train.log_every=5",
         "train.save_every=7")  # fmt: skip
LONGER = ("task.cells=24", "task.max_length=24", "train.batch_size=16", "train.epochs=8", "optim.lr=1e-2",
          "task.dropout=0.0", "train.save_every=1000")  # fmt: skip


def write_elmo(folder, **changes):
    """Wide enough, and its weights far enough apart, that words differ; as if it had been pre-trained."""
    sizes = {"num_filters": (16, 16, 16), "char_embedding_size": 8, "projection_size": 32, "cell_size": 48}
    return write_small_elmo(folder, std=0.5, **(sizes | changes))


def pair_rows(count, seed):
    """Whether two texts are about the same animal: neither text says it alone."""
    rng, rows = random.Random(seed), []
    for number in range(count):
        animal = rng.choice(("zebra", "gnu"))
        other = animal if number % 2 else {"zebra": "gnu", "gnu": "zebra"}[animal]
        texts = [[rng.choice(("sat", "far", "ran")), one] for one in (animal, other)]
        for words in texts:
            rng.shuffle(words)
        label = "same" if other == animal else "other"
        rows.append({"text": " ".join(texts[0]), "text2": " ".join(texts[1]), "label": label})
    return rows


def tag_rows(count, seed):
    rng = random.Random(seed)
    sentences = [[rng.choice(WORDS) for _ in range(rng.randint(2, 7))] for _ in range(count)]
    animals = ("cat", "dog", "zebra", "gnu")
    return [{"words": words, "tags": ["B-X" if word in animals else "O" for word in words]} for words in sentences]


def answer_rows(count, seed):
    rng, rows = random.Random(seed), []
    for _ in range(count):
        animal, words = rng.choice(("zebra", "gnu")), [rng.choice(("sat", "far", "ran")) for _ in range(4)]
        words.insert(rng.randrange(5), animal)
        context = " ".join(words)
        rows.append({"question": "which animal", "context": context, "answer": animal})
    return rows


_ROWS = {"pair": pair_rows, "tag": tag_rows, "answer": answer_rows}


def write_files(folder, kind):
    """Write the train and dev file of a kind."""
    if kind not in _ROWS:
        train, dev = write_task(folder, kind)
    else:
        folder.mkdir(parents=True, exist_ok=True)
        train, dev = (write_rows(folder / f"{n}.jsonl", _ROWS[kind](n, seed=n)) for n in (120, 40))
    return {"train": train, "dev": dev}


def name_of(kind):
    """What `finetune` calls it."""
    return "classify" if kind == "pair" else kind
