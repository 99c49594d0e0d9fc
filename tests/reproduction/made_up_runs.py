"""Results of tables without their runs: the files that jobs would have written, with scores that are chosen."""

import json
import random
import zlib

import numpy as np
from small_benchmarks import write_all

from bertworks.models.weights import write_arrays
from bertworks.reproduction.jobs import SUMS_ENDING, result_path
from bertworks.reproduction.plan import Setup
from bertworks.reproduction.results import results_of
from bertworks.reproduction.run import write_results
from bertworks.reproduction.tables import TABLES, find_scale

NUM_EXAMPLES = 300


def setup_for(data, out, *, seeds=3, tunings=2, scale="tiny"):
    if not data.exists():
        write_all(data)
    return Setup(find_scale(scale), data, out, (), {}, seeds, tunings, (), "cpu", 1)


def share_of(job_id, shares):
    """The score of a job: that of the longest key which its name has, a little different for every seed."""
    keys = [key for key in shares if key in job_id]
    rng = random.Random(job_id)
    return min(0.99, max(0.01, shares[max(keys, key=len)] if keys else 0.7) + rng.gauss(0, 0.01))


def write_made_up(setup, name, shares):
    """Write the results of all jobs of a table, and its page; returns what its results.json holds."""
    table = TABLES[name]
    plan = setup.plan(table)
    for job in plan.jobs:
        path = result_path(setup.out, job.id)
        path.parent.mkdir(parents=True, exist_ok=True)
        result = {"config": job.config, "commands": job.commands, "minutes": 1.5, "device": "made up"}
        if job.kind == "pretrain":
            result |= {"tokens": 10**6, "steps": 60, "parameters": 123_456, "metrics": {}}
        else:
            share, sums, splits = share_of(job.id, shares), {}, {}
            for column in table.columns:
                task = job.id.split("/")[1].rpartition("-t")[0] or job.id.split("/")[1]
                if column.task == task:
                    sums[f"{column.split}/{column.metric}"] = sums_with(column, share, job.id)
                    about = splits.setdefault(column.split, {"examples": NUM_EXAMPLES, "metrics": {}, "majority": {}})
                    if column.metric != "perplexity":
                        about["majority"][column.metric] = 33.3
            result |= {"splits": splits, "parameters": 123_456, "examples": 100, "notes": []}
            write_arrays(path.with_suffix(SUMS_ENDING), {name: each.astype(np.float32) for name, each in sums.items()})
        path.write_text(json.dumps(result))
    return write_results(setup.out, results_of(setup, setup.plan(table)))


def sums_with(column, share, seed):
    """What examples add to a metric so that it is about `share`."""
    if column.metric == "perplexity":
        hardness = np.random.default_rng(0).uniform(0.9, 1.1, 40)  # of 40 batches, the same for all
        return np.stack([1_000 * (3 - share) * hardness, np.full(40, 1_000)], axis=1)
    rng = np.random.default_rng(zlib.crc32(seed.encode()))
    right = (rng.permutation(NUM_EXAMPLES)[:, None] < share * NUM_EXAMPLES).astype(np.float32)
    if column.metric == "f1" and column.task != "squad1":
        return np.concatenate([right, np.ones_like(right), np.ones_like(right)], axis=1)
    if column.metric == "matthews":
        is_gold = np.arange(NUM_EXAMPLES)[:, None] % 2
        wrong = 1 - right
        return np.concatenate([right * is_gold, right * (1 - is_gold), wrong * (1 - is_gold), wrong * is_gold], axis=1)
    if column.metric == "spearman":
        x, noise = rng.normal(size=(2, NUM_EXAMPLES))
        y = share * x + (1 - share) * noise
        return np.stack([np.ones_like(x), x, y, x * x, y * y, x * y], axis=1).astype(np.float32)
    return right
