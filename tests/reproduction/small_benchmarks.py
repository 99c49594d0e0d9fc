"""All benchmarks of the paper's tables in their own forms with a few made-up lines each, and a text to pre-train on."""

import csv
import json
import random

from conll_files import write_conll
from small_glue import write_mnli, write_rte, write_sst2, write_stsb
from toy_tasks import text_with

ANIMALS = ("cat", "dog")


def write_text(root, num_documents=60):
    """Documents in which a sentence about an animal is followed by another about the same one."""
    rng, documents = random.Random(0), []
    for _ in range(num_documents):
        animal = rng.choice(ANIMALS)
        documents.append("\n".join(text_with(animal, rng).capitalize() + "." for _ in range(rng.randint(4, 9))))
    (root / "text").mkdir(parents=True)
    (root / "text/text.txt").write_text("\n\n".join(documents) + "\n")


def _table(path, head, rows):
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text("\n".join("\t".join(map(str, row)) for row in [head, *rows]) + "\n")


def write_mrpc(root, num_train=48, num_dev=20):
    head = ("Quality", "#1 ID", "#2 ID", "#1 String", "#2 String")
    for name, count, seed in (("train", num_train, 1), ("dev", num_dev, 2)):
        rng, rows = random.Random(seed), []
        for number in range(count):
            animal = ANIMALS[number % 2]
            rows.append((int(animal == "cat"), number, number, text_with("big", rng, 3), text_with(animal, rng, 3)))
        _table(root / f"MRPC/{name}.tsv", head, rows)


def _write_pairs(folder, names, labels, label_name="label"):
    for name, count, seed in (("train", 32, 1), ("dev", 12, 2)):
        rng = random.Random(seed)
        rows = [(number, text_with("big", rng, 3), text_with(ANIMALS[number % 2], rng, 3), labels[number % 2])
                for number in range(count)]  # fmt: skip
        _table(folder / f"{name}.tsv", ("index", *names, label_name), rows)


def write_squad(root, second=False):
    """The answer is the animal; of the second kind some questions have none."""
    for name, count, seed in (("train", 24, 1), ("dev", 8, 2)):
        rng, paragraphs = random.Random(seed), []
        for number in range(count):
            animal = "" if second and number % 3 == 0 else rng.choice(ANIMALS)
            context = text_with(animal or "far", rng, 12)
            answers = [{"text": animal, "answer_start": context.index(animal)}] if animal else []
            question = {"id": f"{name}{number}", "question": "which animal", "answers": answers}
            question |= {"is_impossible": not animal} if second else {}
            paragraphs.append({"context": context, "qas": [question]})
        version = "v2.0" if second else "1.1"
        path = root / f"{name}-{'v2.0' if second else 'v1.1'}.json"
        path.write_text(json.dumps({"version": version, "data": [{"title": "t", "paragraphs": paragraphs}]}))


def write_swag(root):
    (root / "swag").mkdir()
    for name, count, seed in (("train", 24, 1), ("val", 8, 2)):
        rng = random.Random(seed)
        with open(root / f"swag/{name}.csv", "w", newline="") as stream:
            writer = csv.writer(stream)
            writer.writerow(["sent1", "sent2", "ending0", "ending1", "ending2", "ending3", "label"])
            for _ in range(count):
                place = rng.randrange(4)
                endings = [text_with("cat" if number == place else "dog", rng, 3) for number in range(4)]
                writer.writerow([text_with("big", rng, 3), "the", *endings, place])


def write_blimp(root):
    (root / "blimp").mkdir()
    for name, seed in (("animals", 1), ("sizes", 2)):
        rng, lines = random.Random(seed), []
        for _ in range(6):
            good = text_with("cat", rng, 4)
            bad = " ".join(reversed(good.split()))
            lines.append(json.dumps({"sentence_good": good, "sentence_bad": bad, "linguistics_term": name}))
        (root / f"blimp/{name}.jsonl").write_text("\n".join(lines) + "\n")


def write_all(root):
    """Write everything that the tables read."""
    root.mkdir(parents=True, exist_ok=True)
    write_text(root)
    write_mnli(root)
    write_sst2(root)
    write_rte(root)
    write_stsb(root)
    write_mrpc(root)
    _write_pairs(root / "QNLI", ("question", "sentence"), ("entailment", "not_entailment"))
    head = ("id", "qid1", "qid2", "question1", "question2", "is_duplicate")
    for name, count, seed in (("train", 32, 1), ("dev", 12, 2)):
        rng = random.Random(seed)
        rows = [(n, n, n, text_with("big", rng, 3), text_with(ANIMALS[n % 2], rng, 3), n % 2) for n in range(count)]
        _table(root / f"QQP/{name}.tsv", head, rows)
        rows = [("x", n % 2, "", text_with(ANIMALS[n % 2], rng)) for n in range(count)]
        path = root / f"CoLA/{name}.tsv"
        path.parent.mkdir(exist_ok=True)
        path.write_text("\n".join("\t".join(map(str, row)) for row in rows) + "\n")
    write_squad(root)
    write_squad(root, second=True)
    write_swag(root)
    write_conll(root)
    (root / "test.txt").write_text((root / "valid.txt").read_text())
    write_blimp(root)
    return root
