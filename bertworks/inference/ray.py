"""Predictions and features computed on a Ray cluster, the same as here and in the same order.

Rows are read here, thousands at once are sent to a task on any node (`cluster.py`), and what comes back is written
here. So the nodes need not see the input and the result; only the models, under the same names or paths, and each
worker process opens them once. Rows whose worker or node was lost are computed again.

A chunk of rows is computed as it would be here, in the same batches. So in float32 the results are the same to the last
bit, on a processor of the same kind with the same number of threads; with another number the last digits may differ.

Why not Ray Data: its sources are read by tasks, so all nodes would have to see the input, and our files have forms that
it does not know. What is left is a list of chunks, a function and their order, which are tasks.
"""

from collections import deque
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from bertworks.cluster import anywhere, compute_on_ray
from bertworks.inference.heads import results_of
from bertworks.inference.model import load
from bertworks.inference.predict import Chunk, Compute, Computed, Ensemble
from bertworks.tasks.task import Task


def compute_on_cluster(device: str, threads: int | None) -> Compute:
    """Return what computes chunks of examples on a cluster.

    Args:
        device: of the workers; auto: a GPU where the cluster has any.
        threads: of a worker; 1 if not given.
    """

    def compute(
        ensemble: Ensemble, _: Task, chunks: Iterator[Chunk], done: Callable[[float], None]
    ) -> Iterator[Computed]:
        models = [(anywhere(name), model.dtype) for name, model in zip(ensemble.names, ensemble.models, strict=True)]
        takes = "cpu" if any(model.is_exported for model in ensemble.models) else device
        begin, sent = partial(_begin_predicting, models, device, threads or 1), deque[Chunk]()

        def pieces() -> Iterator[Chunk]:
            for some in chunks:
                sent.append(some)
                yield some

        for results, ids in compute_on_ray(pieces(), begin, threads=threads or 1, device=takes):
            some = sent.popleft()
            done(len(some))
            yield some, results, ids

    return compute


def features_on_cluster(
    source: str, dtype: str, device: str, threads: int | None, layers: Sequence[int], truncate: bool
) -> Callable[[Iterator[list[str]]], Iterator[list[NDArray[np.float32]]]]:
    """Return what computes the features of chunks of texts on a cluster, [layers, tokens, width] of each text."""
    takes = "cpu" if source.endswith(".onnx") else device
    begin = partial(_begin_features, anywhere(source), dtype, device, threads or 1, layers, truncate)
    return partial(compute_on_ray, begin=begin, threads=threads or 1, device=takes)


def _begin_predicting(
    models: Sequence[tuple[str, str]], device: str, threads: int
) -> Callable[[Chunk], tuple[list[Any], NDArray[Any]]]:
    torch.set_num_threads(threads)
    opened = [load(source, device=device, dtype=dtype) for source, dtype in models]
    ensemble = Ensemble(opened, [source for source, _ in models])

    def compute(some: Chunk) -> tuple[list[Any], NDArray[Any]]:
        items = ensemble.read(some, ensemble.task)
        scores, _ = ensemble.score(ensemble.task, items)
        return results_of(ensemble.task, some, items[0], scores), items[0].ids

    return compute


def _begin_features(
    source: str, dtype: str, device: str, threads: int, layers: Sequence[int], truncate: bool
) -> Callable[[list[str]], list[NDArray[np.float32]]]:
    torch.set_num_threads(threads)
    model = load(source, device=device, dtype=dtype)
    return lambda texts: [one.hidden for one in model.features(texts, layers=layers, truncate=truncate)]
