"""The models that a server has: opened by name, warmed up, and found by what a request asks for.

A route asks for `service.find(name, method)` and lets the model that it gets `run` a reading. Everything else, such as
threads, batches, limits and what is measured, is done here and in `batching.py`.
"""

import os
import time
from collections.abc import Callable, Sequence
from typing import Any, Literal

from bertworks.errors import UserError, did_you_mean, shown, shown_names
from bertworks.inference.model import Model, load
from bertworks.inference.readings import (
    Reading,
    choice_examples,
    read_answering,
    read_embed,
    read_examples,
    read_fill,
    read_nsp,
    read_tagging,
    text_examples,
)
from bertworks.serving.batching import Answer, Batcher, Readers, Refused, Watch
from bertworks.serving.settings import Limits, check_names
from bertworks.text.tokenizer import Encoding, ListColumns, Tokenizer
from bertworks.text.vocabulary import CLS, SEP

CHARS_PER_TOKEN = 250  # of a text so many are read for each token that a model reads; few have so few tokens
_ALL_CHARS = 4  # times the characters of a text that is read in windows, those of all such texts of a request
_COMPILED_FROM_CHARS = 50_000
_KERNELS_KEPT = "64"  # by oneDNN, which makes one for each number of rows: for texts of all lengths, a gigabyte of them
How = Literal["whole", "cut", "windows"]


class Served:
    """A model that is served.

    Attributes:
        name: what requests call it.
        about: what it is and can do, as `Model.describe()` says.
    """

    def __init__(self, name: str, model: Model, limits: Limits, readers: Readers, watch: Watch) -> None:
        self.name, self.model, self.limits = name, model, limits
        self.about = model.describe()
        self.batcher = Batcher(name, model, limits, readers, watch)

    async def run(
        self,
        read: Callable[..., Reading[Any]],
        finish: Callable[[Any], Answer],
        *lists: Sequence[Any] | None,
        how: How = "whole",
    ) -> Answer:
        """Compute a reading together with those of other callers, and return what `finish` makes of its result.

        Args:
            read: makes the reading of the model and the lists; called in a thread.
            finish: makes the answer of the result, such as its JSON; called in a thread.
            lists: of texts that a caller sent. Their number and lengths are checked first.
            how: `whole`: texts that are much too long are refused; `cut`: they are cut, far beyond what the model
                reads; `windows`: texts are read in windows, and have a limit of their own.
        """
        checked = [None if texts is None else self._checked(texts, how) for texts in lists]
        # One text for all of a list counts as often as it is read.
        total = sum(len(text) for texts in checked for text in texts or () if isinstance(text, str))
        most, limit = (_ALL_CHARS * self.limits.chars, "chars") if how == "windows" else (self.limits.body, "body")
        if total > most:
            raise UserError(f"the texts have {total:,} characters together; at most {most:,} (limit `{limit}`)")

        def read_them(model: Model) -> Reading[Any]:
            if total > _COMPILED_FROM_CHARS and isinstance(model.tokenizer, Tokenizer):
                # By compiled code, which is loaded once; without it a text of nothing but punctuation takes seconds.
                flat = [text for texts in checked for text in texts or () if isinstance(text, str)]
                count = int(model.tokenizer.ids_of(flat if how == "windows" else [""])[1].sum())
                if count > self.limits.tokens:
                    raise self.batcher.too_many_tokens(count)
            return read(model, *checked)

        return await self.batcher.run(read_them, finish, len(checked[0] or ()))

    def _checked(self, texts: Sequence[Any], how: How) -> list[Any]:
        """Return texts that take a bounded time to be split into pieces, or refuse them."""
        if len(texts) > self.limits.inputs:
            raise UserError(f"{len(texts):,} inputs; at most {self.limits.inputs:,} in a request (limit `inputs`)")
        reads = self.model.max_length
        is_any = how == "windows" or reads > self.limits.chars
        most = self.limits.chars if is_any else CHARS_PER_TOKEN * reads
        if how == "cut" and not is_any:
            return [text[:most] if isinstance(text, str) else text for text in texts]
        for number, text in enumerate(texts, 1):
            if isinstance(text, str) and len(text) > most:
                which = f"text {number} of {len(texts)} has {len(text):,} characters; at most {most:,}"
                if is_any:
                    raise UserError(f"{which} (limit `chars`)")
                raise UserError(f"{which}, as the model reads {reads:,} tokens; shorten it, or have it cut (truncate)")
        return list(texts)

    def encoded(self, ids: Sequence[int]) -> Encoding:
        """Return ids that a caller has computed as the model reads them: with [CLS] and [SEP], which may be there."""
        tokenizer = self.model.tokenizer
        if not isinstance(tokenizer, Tokenizer):
            raise UserError(f"the model {self.name} takes texts, not token ids")
        num_pieces = len(tokenizer)
        for id in ids:
            if not 0 <= id < num_pieces:
                raise UserError(
                    f"token id {id} is not in the vocabulary of the model {self.name}, ids 0 to {num_pieces - 1:,}; "
                    "the ids are probably of another tokenizer. Send texts: LangChain's OpenAIEmbeddings does with "
                    "check_embedding_ctx_length=False"
                )
        first, last = tokenizer.id_of(CLS), tokenizer.id_of(SEP)
        whole = list(ids) if len(ids) > 1 and ids[0] == first and ids[-1] == last else [first, *ids, last]
        if len(whole) > self.model.max_length:
            raise self.model.too_long(len(whole), "a list of token ids")
        nothing = [0] * len(whole)
        columns = ListColumns(whole, nothing, nothing, nothing, nothing)
        return Encoding(columns, 0, len(whole), tokenizer.pieces)

    async def warm_up(self) -> None:
        """Compute something with every method, so that no caller waits for what is done only once."""
        text, methods = "a b", self.about["methods"]
        runs: dict[str, Callable[[Model], Reading[Any]]] = {
            "fill": lambda model: read_fill(model, ["a [MASK]"], 1, None, truncate=True),
            "nsp": lambda model: read_nsp(model, [text], [text], truncate=True),
            "classify": lambda model: read_classify(model, [text], [text] if model.task.is_pair else None),
            "tag": lambda model: read_tagging(model, [text], None),
            "answer": lambda model: read_answering(model, [text], [text]),
            "choose": lambda model: read_choose(model, [text], [[text, text]]),
            "embed": lambda model: read_embed(model, [text], truncate=True),
        }
        for method, read in runs.items():
            if method in methods:
                await self.batcher.run(read, len)


def read_classify(model: Model, texts: Sequence[str], pairs: Sequence[str] | None) -> Reading[Any]:
    """Read texts, or pairs of them, to classify."""
    return read_examples(model, *text_examples(model, texts, pairs))


def read_choose(model: Model, contexts: Sequence[str], endings: Sequence[Sequence[str]]) -> Reading[Any]:
    """Read contexts, each with endings to choose from."""
    return read_examples(model, *choice_examples(model, contexts, endings))


class Service:
    """All models of a server.

    Attributes:
        models: by name, in the order in which they were given; none until they are open.
        is_ready: whether all are open and warmed up.
        is_draining: whether the server is about to end and takes no more requests.
    """

    def __init__(self, sources: Sequence[str], limits: Limits, watch: Watch, **options: Any) -> None:
        self.sources, self.limits, self._watch, self._options = check_names(sources), limits, watch, options
        self.models: dict[str, Served] = {}
        self.is_ready = self.is_draining = False
        self.started = time.time()

    def open(self) -> None:
        """Open all models; this takes a while and may raise UserError."""
        for variable in ("ONEDNN_PRIMITIVE_CACHE_CAPACITY", "LRU_CACHE_CAPACITY"):
            os.environ.setdefault(variable, _KERNELS_KEPT)
        readers = Readers()
        found = {name: load(source, **self._options) for name, source in self.sources.items()}
        self.models = {name: Served(name, model, self.limits, readers, self._watch) for name, model in found.items()}

    async def warm_up(self) -> None:
        """Warm all models up; the server is ready then."""
        for served in self.models.values():
            await served.warm_up()
        self.is_ready = True

    def problem(self) -> str:
        """Return why the process had better be started again, "" if all is well."""
        now = time.monotonic()
        for served in self.models.values():
            if served.batcher.is_dead:
                return f"the model {served.name} has failed"
            since = served.batcher.busy_since
            if since is not None and now - since > self.limits.seconds:
                return f"the model {served.name} has computed for {now - since:.0f} s"
        return ""

    def find(self, name: str | None, method: str = "") -> Served:
        """Return the model that a request is for.

        Args:
            name: as the request says; None: the only model, or the only one that can do it.
            method: of `Model`, which the model must be able to do; "": any model will do.
        """
        if not self.is_ready:
            raise Refused(503, "the models are still being opened; see /readyz", retry_after=1)
        if name is None:
            able = [one for one in self.models.values() if not method or method in one.about["methods"]]
            if len(able) == 1:
                return able[0]
            if len(self.models) > 1:
                what = f"{len(able)} of the served models can do this" if able else "no served model can do this"
                raise Refused(422, f"{what}; say which with `model`: {shown_names(self.models)}")
            [served] = self.models.values()
        elif name in self.models:
            served = self.models[name]
        else:
            raise Refused(404, f"no model {shown(name)} is served{did_you_mean(name, list(self.models))}")
        if method:
            served.model.check_can(method)
        return served
