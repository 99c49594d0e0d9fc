"""F10: worker processes change who makes a batch, and nothing else; none is waited for in vain or left behind."""

import gc
import itertools
import multiprocessing
import os
import pickle
import shutil
import signal
import subprocess
import sys
import time
from multiprocessing.connection import wait
from pathlib import Path

import numpy as np
import pytest
from numbered_corpus import make_loader, ordinary_lengths, write_corpus
from patience import is_alive, wait_until
from sweeps import some_of

from bertworks.data import kernel
from bertworks.data import workers as workers_module
from bertworks.data.loader import State
from bertworks.data.shards import Dataset
from bertworks.data.workers import batches
from bertworks.errors import CorruptFile, UserError

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="reads /proc")


@pytest.fixture(scope="module")
def numbered(tmp_path_factory):
    return write_corpus(tmp_path_factory.mktemp("corpus"), ordinary_lengths(48), num_shards=4)


@pytest.fixture(autouse=True)
def nobody_is_left():
    yield
    gc.collect()
    wait_until(lambda: not children())


def children(pid=None):
    pid = pid or os.getpid()
    try:
        tasks = list(Path(f"/proc/{pid}/task").iterdir())
        found = [int(child) for task in tasks for child in (task / "children").read_text().split()]
    except OSError:
        return []
    return [child for child in found if is_alive(child) and not is_tracker(child)]


def is_tracker(pid):
    """Python's own, which stays with a process that once started another without forking."""
    return b"resource_tracker" in Path(f"/proc/{pid}/cmdline").read_bytes()


def take(items, count):
    found = list(itertools.islice(items, count))
    items.close()
    return found


def assert_equal(some, other):
    assert len(some) == len(other)
    for (some_slices, some_state), (other_slices, other_state) in zip(some, other, strict=True):
        assert some_state == other_state
        for some_slice, other_slice in zip(some_slices, other_slices, strict=True):
            for one, another in zip(some_slice, other_slice, strict=True):
                assert one.dtype == another.dtype
                assert np.array_equal(one, another)


# The same batches


@pytest.mark.parametrize(("workers", "prefetch"), some_of(itertools.product([0, 1, 4], [1, 8])))
def test_any_number_of_workers_gives_the_same_batches_over_epochs(numbered, workers, prefetch):
    """P2: and they are the caller's own, whatever is made after them."""
    loader = make_loader(numbered, slices=2)
    expected = take(loader.batches(), 150)
    assert expected[-1][1].epoch >= 2
    assert_equal(take(batches(loader, workers=workers, prefetch=prefetch), 150), expected)


@pytest.mark.parametrize(
    "settings", [{"objective": "mlm"}, {"objective": "ltr"}, {"dupe_factor": 2, "whole_word": True}]
)
def test_the_objective_does_not_matter(numbered, settings):
    loader = make_loader(numbered, **settings)
    assert_equal(take(batches(loader, workers=2), 40), take(loader.batches(), 40))


@pytest.mark.parametrize("world_size", some_of([1, 2, 3, 4, 6]))
def test_any_number_of_ranks_with_any_number_of_workers_gives_the_same_global_batches(numbered, world_size):
    """P2, F9."""
    alone = take(make_loader(numbered, slices=12, tokens=64).batches(), 16)
    for workers in (0, 1, 4):
        shares = [
            take(
                batches(make_loader(numbered, slices=12, tokens=64, rank=rank, world_size=world_size), workers=workers),
                16,
            )
            for rank in range(world_size)
        ]
        together = []
        for number, (_, state) in enumerate(alone):
            slices = [None] * 12
            for rank in range(world_size):
                slices[rank::world_size] = shares[rank][number][0]
                assert shares[rank][number][1] == state
            together.append((slices, state))
        assert_equal(together, alone)


@pytest.mark.parametrize("workers", [0, 1, 3])
def test_another_number_of_workers_goes_on_from_any_state(numbered, workers):
    behind = take(make_loader(numbered).batches(), 100)
    for index in (0, 17, 61, 90):
        found = take(batches(make_loader(numbered), behind[index][1], workers=workers, prefetch=2), 9)
        assert_equal(found, behind[index + 1 : index + 10])


def test_more_workers_than_batches_are_fine(numbered):
    assert_equal(
        take(batches(make_loader(numbered), workers=7, prefetch=3), 2), take(make_loader(numbered).batches(), 2)
    )


def test_workers_that_are_not_forked_give_the_same(numbered, monkeypatch):
    """Where processes cannot be forked, a loader travels as what it was made of."""
    for module in ("processes", "data.workers"):
        monkeypatch.setattr(f"bertworks.{module}.process_context", lambda: multiprocessing.get_context("spawn"))
    loader = make_loader(numbered, slices=2, world_size=2, rank=1)
    assert_equal(take(batches(loader, workers=1), 5), take(loader.batches(), 5))
    assert len(pickle.dumps(loader)) < 4_000


def test_no_more_than_the_depth_is_made_ahead(numbered, monkeypatch):
    made = multiprocessing.get_context("fork").Value("i", 0)
    work = kernel.fill_batch

    def counted(*arguments):
        made.value += 1
        return work(*arguments)

    monkeypatch.setattr(kernel, "fill_batch", counted)
    found = batches(make_loader(numbered), workers=1, prefetch=3)
    next(found)
    wait_until(lambda: made.value >= 4)
    time.sleep(0.05)
    assert made.value == 4
    found.close()


# Errors


@pytest.mark.parametrize("prefetch", [1, 8])
@pytest.mark.parametrize("workers", [1, 4])
def test_a_worker_that_is_killed_is_an_error_that_names_it(numbered, workers, prefetch):
    found = batches(make_loader(numbered), workers=workers, prefetch=prefetch)
    assert_equal(list(itertools.islice(found, 3)), take(make_loader(numbered).batches(), 3))
    process = multiprocessing.active_children()[-1]
    victim = process.pid
    os.kill(victim, signal.SIGKILL)
    assert wait([process.sentinel], timeout=10)
    started = time.monotonic()
    with pytest.raises(UserError, match=rf"loader worker \d \(process {victim}\) was killed, exit code -9"):
        next(found)  # whichever worker's turn it is, and although there are batches of it in its slots
    assert time.monotonic() - started < 10
    assert not children()


def test_a_worker_that_was_killed_while_it_was_waited_for_is_no_hang(numbered, monkeypatch):
    monkeypatch.setattr("bertworks.data.loader.kernel.fill_batch", lambda *_: time.sleep(60))
    found = batches(make_loader(numbered), workers=2)
    killer = multiprocessing.get_context("fork").Process(target=kill_a_worker_of, args=(os.getpid(),))
    killer.start()
    started = time.monotonic()
    with pytest.raises(UserError, match=r"loader worker \d \(process \d+\) was killed"):
        next(found)
    assert time.monotonic() - started < 10
    killer.join()


def kill_a_worker_of(pid):
    wait_until(lambda: len(children(pid)) == 3)
    time.sleep(0.2)
    os.kill(next(child for child in children(pid) if child != os.getpid()), signal.SIGKILL)


@pytest.mark.parametrize("workers", [0, 1, 4])
@pytest.mark.parametrize("prefetch", [1, 8])
def test_a_corrupt_shard_reaches_the_caller_behind_the_same_batches(numbered, tmp_path, workers, prefetch):
    """F7, F10."""
    folder = shutil.copytree(numbered.dataset.folder, tmp_path / "data")
    path = sorted(folder.glob("train-*.tokens.npy"))[1]
    array = np.load(path)
    array[:2] = array[1::-1]
    np.save(path, array)
    bad = numbered._replace(dataset=Dataset(folder))
    plain, ahead = [], []
    for found, items in (
        (plain, make_loader(bad, objective="mlm").batches()),
        (ahead, batches(make_loader(bad, objective="mlm"), workers=workers, prefetch=prefetch)),
    ):
        with pytest.raises(CorruptFile, match=rf"{path.name} was altered"):
            found.extend(items)
    assert plain
    assert_equal(ahead, plain)


def test_any_other_error_comes_with_where_it_arose(numbered, monkeypatch):
    monkeypatch.setattr("bertworks.data.loader.Loader._enter", lambda *_: 1 // 0)
    with pytest.raises(RuntimeError, match=r"(?s)Traceback.*ZeroDivisionError"):
        next(batches(make_loader(numbered), workers=2))


def test_a_state_of_other_data_is_a_user_error(numbered):
    with pytest.raises(UserError, match="does not belong to this data, which has 4 blocks"):
        next(batches(make_loader(numbered), State(0, 4, 0), workers=2))


@pytest.mark.parametrize("wrong", [{"workers": -1}, {"prefetch": 0}, {"workers": 2, "prefetch": -3}])
def test_impossible_numbers_are_refused_at_once(numbered, wrong):
    with pytest.raises(UserError, match="workers must be 0 or more, prefetch 1 or more"):
        batches(make_loader(numbered), **wrong)


# The end


@pytest.mark.parametrize("way", ["closed", "forgotten", "error"])
def test_workers_end_with_the_iterator(numbered, way):
    found = batches(make_loader(numbered), workers=2)
    next(found)
    assert len(children()) == 2
    if way == "closed":
        found.close()
    elif way == "error":
        with pytest.raises(KeyboardInterrupt):
            found.throw(KeyboardInterrupt)
    del found
    gc.collect()
    assert not children()


def test_iterators_beside_each_other_do_not_disturb(numbered):
    train, other = (batches(make_loader(numbered, seed=seed), workers=2, prefetch=1) for seed in (1, 2))
    pairs = [(next(train), next(other)) for _ in range(9)]
    train.close()
    pairs_after = [next(other) for _ in range(9)]
    other.close()
    assert_equal([mine for mine, _ in pairs], take(make_loader(numbered, seed=1).batches(), 9))
    assert_equal([its for _, its in pairs] + pairs_after, take(make_loader(numbered, seed=2).batches(), 18))


def hold(numbered, path):
    found = batches(make_loader(numbered), workers=3, prefetch=2)
    next(found)
    path.touch()
    time.sleep(60)


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGTERM])
def test_workers_end_with_a_consumer_that_is_killed(numbered, tmp_path, number):
    consumer = multiprocessing.get_context("fork").Process(target=hold, args=(numbered, tmp_path / "ready"))
    consumer.start()
    wait_until((tmp_path / "ready").exists)
    pids = children(consumer.pid)
    assert len(pids) == 3
    os.kill(consumer.pid, number)
    consumer.join()
    wait_until(lambda: not any(map(is_alive, pids)))


def test_signals_to_the_whole_group_are_left_to_the_consumer(numbered):
    """A run that is told to end must be able to finish its step."""
    found = batches(make_loader(numbered), workers=2, prefetch=1)
    first = next(found)
    for pid in children():
        for number in (signal.SIGINT, signal.SIGTERM, signal.SIGUSR1):
            os.kill(pid, number)
    time.sleep(0.1)
    assert_equal([first, *itertools.islice(found, 5)], take(make_loader(numbered).batches(), 6))
    found.close()


SCRIPT = """
import sys
from bertworks.data.loader import Loader, shape_for
from bertworks.config import DataSettings
from bertworks.data.shards import Dataset
from bertworks.data.workers import batches

settings = DataSettings(max_length=32)
found = batches(Loader(Dataset(sys.argv[1]), settings, shape_for(settings, tokens=256)), workers=2)
next(found)
"""


def test_a_program_ends_though_it_still_holds_the_iterator(numbered):
    command = [sys.executable, "-c", SCRIPT, str(numbered.dataset.folder)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=30)
    assert (done.returncode, done.stderr) == (0, "")


# Pinned memory


@pytest.mark.parametrize("workers", [0, 2])
def test_without_cuda_pinning_is_ignored(numbered, workers, monkeypatch):
    import torch

    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    found = take(batches(make_loader(numbered), workers=workers, pin=True), 5)
    assert_equal(found, take(make_loader(numbered).batches(), 5))


@pytest.mark.gpu
@pytest.mark.parametrize("workers", [0, 2])
def test_arrays_are_made_in_pinned_memory(numbered, workers):
    import torch

    if not torch.cuda.is_available():
        pytest.skip("no CUDA here")
    found = take(batches(make_loader(numbered), workers=workers, pin=True), 5)
    assert_equal(found, take(make_loader(numbered).batches(), 5))
    assert all(torch.from_numpy(array).is_pinned() for (packed,), _ in found for array in packed if len(array))


def test_torch_is_not_loaded_unless_asked():
    code = "import sys; import bertworks.data.workers as w; w._new_array(False); sys.exit('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], timeout=60).returncode == 0


def test_every_slot_has_its_own_place_in_shared_memory(numbered):
    loader = make_loader(numbered, slices=2)
    num_bytes = sum(array.nbytes for array in loader.new_slice())
    memory = multiprocessing.get_context("fork").RawArray("b", 3 * 2 * num_bytes)
    slots = workers_module.slots_in(memory, loader, 3)
    arrays = [array for slot in slots for packed in slot for array in packed]
    for number, array in enumerate(arrays):
        array[:] = number
    assert all(set(array.tolist()) == {number} for number, array in enumerate(arrays))
    assert sum(array.nbytes for array in arrays) == 6 * num_bytes
