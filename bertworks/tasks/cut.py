"""`Cut`: how much of an example is read at once. Its fields are keys of the `[task]` section and of a model folder."""

from typing import Literal, NamedTuple

Context = Literal["document", "sentence"]


class Cut(NamedTuple):
    """How much of an example is read at once, in tokens.

    Attributes:
        max_length: of a sequence, special tokens included.
        context: of tagging: whether a sentence is read with its document, or alone.
        stride: of tagging: how far apart windows start; half a window without it.
        doc_stride: of answering: the same.
        max_query: of answering: longer questions are cut.
    """

    max_length: int
    context: Context = "document"
    stride: int | None = None
    doc_stride: int = 128
    max_query: int = 64
