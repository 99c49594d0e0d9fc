"""Small files of examples that a small model can learn without a mistake."""

import json
import random

FILLERS = ("the", "a", "sat", "on", "mat", "far", "away", ".", ",")


def text_with(word, rng, most=8):
    """A text of fillers in which one word says everything."""
    words = [rng.choice(FILLERS) for _ in range(rng.randint(2, most))]
    words.insert(rng.randrange(len(words) + 1), word)
    return " ".join(words)


def write_rows(path, rows):
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return path


def classify_rows(count, seed=0):
    rng = random.Random(seed)
    animals = [rng.choice(("cat", "dog")) for _ in range(count)]
    return [{"text": text_with(animal, rng), "label": f"about {animal}s"} for animal in animals]


def regress_rows(count, seed=0):
    rng = random.Random(seed)
    sizes = {"big": 2.0, "small": -1.0}
    words = [rng.choice(list(sizes)) for _ in range(count)]
    return [{"text": text_with(word, rng), "score": sizes[word]} for word in words]


def multilabel_rows(count, seed=0):
    rng = random.Random(seed)
    rows = []
    for _ in range(count):
        there = [word for word in ("cat", "dog") if rng.random() < 0.5]
        words = [*there, *(rng.choice(FILLERS) for _ in range(3))]
        rng.shuffle(words)
        rows.append({"text": " ".join(words), "labels": there})
    return rows


def choose_rows(count, seed=0):
    rng = random.Random(seed)
    rows = []
    for _ in range(count):
        place, num_endings = rng.randrange(2), rng.randint(2, 4)
        endings = [text_with("cat" if number == place else "dog", rng, 4) for number in range(num_endings)]
        rows.append({"context": text_with("big", rng, 3), "endings": endings, "label": place})
    return rows


def tag_rows(count, seed=0):
    """Animals and sizes are entities."""
    rng = random.Random(seed)
    kinds = {"cats": "B-ANIMAL", "dog": "B-ANIMAL", "big": "B-SIZE", "small": "B-SIZE"}
    rows = []
    for _ in range(count):
        words = [rng.choice((*FILLERS, *kinds)) for _ in range(rng.randint(3, 20))]
        rows.append({"words": words, "tags": [kinds.get(word, "O") for word in words]})
    return rows


def answer_rows(count, seed=0):
    """The answer is the animal; where there is none, there is no answer."""
    rng = random.Random(seed)
    rows = []
    for number in range(count):
        animal = rng.choice(("cats", "dog", ""))
        context = text_with(animal or "far", rng, 20)
        start = context.index(animal) if animal else -1
        rows.append({"id": str(number), "question": "big", "context": context, "answer": animal, "answer_start": start})
    return rows


ROWS = {
    "classify": classify_rows,
    "regress": regress_rows,
    "multilabel": multilabel_rows,
    "choose": choose_rows,
    "tag": tag_rows,
    "answer": answer_rows,
}


def write_task(folder, kind, num_train=96, num_dev=40):
    """Write train.jsonl and dev.jsonl of a kind."""
    folder.mkdir(parents=True, exist_ok=True)
    rows = ROWS[kind]
    return write_rows(folder / "train.jsonl", rows(num_train, 1)), write_rows(folder / "dev.jsonl", rows(num_dev, 2))


QUICK = ("optim.lr=3e-3", "task.max_length=16", "train.batch_size=16", "train.epochs=6", "train.log_every=5",
         "train.save_every=7", "task.dropout=0.1")  # fmt: skip
# A network that learns them in a second.
SIZES = {"num_hidden_layers": 1, "hidden_size": 32, "intermediate_size": 64}
