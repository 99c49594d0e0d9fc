"""Small files in CoNLL-2003's form, with documents, that a small model can learn."""

import random

from toy_tasks import FILLERS


def conll_documents(count, seed=0):
    """Documents of sentences in which cats are people, dogs organisations, and a big one is a place of two words."""
    rng, documents = random.Random(seed), []
    for _ in range(count):
        sentences = []
        for _ in range(rng.randint(1, 4)):
            words = [(word, "O") for word in rng.choices(FILLERS, k=rng.randint(2, 6))]
            named = rng.choice(([("cat", "B-PER")], [("dog", "B-ORG")], [("big", "B-LOC"), ("mat", "I-LOC")]))
            place = rng.randrange(len(words) + 1)
            sentences.append([*words[:place], *named, *words[place:]])
        documents.append(sentences)
    return documents


def write_conll(folder, num_train=60, num_dev=20):
    """Write train.txt and valid.txt in CoNLL-2003's form."""
    for name, count, seed in (("train.txt", num_train, 1), ("valid.txt", num_dev, 2)):
        text = ""
        for sentences in conll_documents(count, seed):
            text += "-DOCSTART- -X- -X- O\n\n"
            text += "".join("".join(f"{word} X X {tag}\n" for word, tag in words) + "\n" for words in sentences)
        (folder / name).write_text(text)
    return folder
