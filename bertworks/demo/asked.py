"""What the demo asks of its models, and how it trains them: every text and setting that one may want to change.

The pre-training's settings are those of the recipe `demo`. The sentences to fine-tune with are in `demo_data`.
"""

SHIPPED, KOREAN = "mini", "mini-ko"  # the models that come with the package
HOLDOUT = 0.05  # of Python's help, to measure the tiny BERT on

# Two that Python's help might have, and one with words that it lacks.
TO_SPLIT = (
    "A class definition is an executable statement.",
    "Unpacking iterables wasn't always this pleasant!",
    "Pretraining needs patience.",
)
# What a BERT can have learnt in a minute from Python's help.
HELP_MASKS = (
    "Changed in [MASK] 3.8.",
    "The value of the [MASK] is returned.",
    "A class [MASK] is an executable statement.",
)
# What one can know that has read more.
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

# Small batches, for there are 260 sentences. Three seeds: 83, 88 and 88 % of the dev set; with 2e-4 83, 87 and 85 %.
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
