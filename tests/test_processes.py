"""Work in several processes: bounded, every error is raised, nobody waits for the dead, nobody outlives the parent."""

import gc
import multiprocessing
import os
import signal
import sys
import threading
import time
from concurrent.futures import Future

import pytest
from patience import is_alive, wait_until

from bertworks.errors import ConfigError, UserError
from bertworks.processes import num_workers, wait_for, worker_pool

prepared = []


def prepare(*values):
    prepared.extend(values)


def what_was_prepared():
    return list(prepared)


def die():
    os.kill(os.getpid(), signal.SIGKILL)


def fail(error):
    raise error


def touch_after(path, seconds):
    time.sleep(seconds)
    path.touch()


def ignores_interrupts():
    return signal.getsignal(signal.SIGINT) is signal.SIG_IGN


def test_every_worker_is_prepared_and_leaves_interrupts_to_the_parent():
    with worker_pool(2, prepare, 1, 2) as pool:
        assert pool.submit(what_was_prepared).result() == [1, 2]
        assert pool.submit(ignores_interrupts).result()
    assert prepared == []


def test_a_worker_that_dies_is_a_user_error_and_no_hang():
    """F10."""
    started = time.monotonic()
    with pytest.raises(UserError, match=r"worker process was killed.*lower --workers, now 2"), worker_pool(2) as pool:
        wait_for({pool.submit(die), pool.submit(time.sleep, 0.01)}, 0)
    assert time.monotonic() - started < 10


def test_a_worker_that_dies_while_it_is_prepared_is_a_user_error():
    with pytest.raises(UserError, match="worker process was killed"), worker_pool(1, die) as pool:
        wait_for({pool.submit(what_was_prepared)}, 0)


@pytest.mark.parametrize(
    "error", [UserError("what was given"), ConfigError("a file", ["one", "two"]), ZeroDivisionError("none")]
)
def test_errors_of_workers_are_raised_as_they_are(error):
    with pytest.raises(type(error)) as caught, worker_pool(1) as pool:
        wait_for({pool.submit(fail, error)}, 0)
    assert str(caught.value) == str(error)


def compile_something():
    import numba

    return numba.njit(lambda number: number + 1)(1)


def test_a_worker_forked_while_a_thread_compiles_can_compile_too():
    """Else it would wait for the compiler's lock for ever."""
    from numba.core.compiler_lock import global_compiler_lock

    import bertworks.text.fast  # noqa: F401 -- sees to it

    is_held = threading.Event()

    def compile_long():
        with global_compiler_lock:
            is_held.set()
            time.sleep(0.5)

    thread = threading.Thread(target=compile_long)
    thread.start()
    is_held.wait()
    with worker_pool(1) as pool:
        assert pool.submit(compile_something).result(timeout=60) == 2
    thread.join()


class DiesInAnotherProcess:
    """What a library with threads of its own leaves: it can only be cleared up where it was made."""

    def __init__(self):
        self.itself, self.home = self, os.getpid()

    def __del__(self):
        if os.getpid() != self.home:
            os._exit(9)


def collect_garbage():
    return gc.collect()


def test_a_worker_does_not_clear_up_what_it_inherited():
    gc.collect()
    DiesInAnotherProcess()
    with worker_pool(1) as pool:
        pool.submit(collect_garbage).result(timeout=60)
    gc.collect()


def test_an_error_does_not_wait_for_the_other_workers(tmp_path):
    started = time.monotonic()
    with pytest.raises(UserError, match="at once"), worker_pool(2) as pool:
        wait_for({pool.submit(touch_after, tmp_path / "late", 30), pool.submit(fail, UserError("at once"))}, 0)
    assert time.monotonic() - started < 10
    assert not (tmp_path / "late").exists()


def test_leaving_the_pool_ends_its_processes():
    with worker_pool(2) as pool:
        pids = {pool.submit(os.getpid).result() for _ in range(8)}
    assert not any(map(is_alive, pids))


def hold_a_pool(path):
    with worker_pool(2) as pool:
        pids = {future.result() for future in [pool.submit(os.getpid) for _ in range(20)]}
        path.with_suffix(".part").write_text(" ".join(map(str, pids)))
        path.with_suffix(".part").rename(path)
        time.sleep(60)


@pytest.mark.skipif(sys.platform != "linux", reason="reads /proc")
@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGTERM])
def test_workers_end_with_a_parent_that_was_killed(tmp_path, number):
    parent = multiprocessing.get_context("fork").Process(target=hold_a_pool, args=(tmp_path / "pids",))
    parent.start()
    wait_until((tmp_path / "pids").exists)
    pids = [int(pid) for pid in (tmp_path / "pids").read_text().split()]
    assert all(map(is_alive, pids))
    os.kill(parent.pid, number)
    parent.join()
    try:
        wait_until(lambda: not any(map(is_alive, pids)))
    finally:
        for pid in filter(is_alive, pids):
            os.kill(pid, signal.SIGKILL)


def test_wait_for_waits_for_no_more_than_it_must():
    done, waiting = [Future() for _ in range(3)], [Future() for _ in range(2)]
    for future in done:
        future.set_result(None)
    assert wait_for(set(), 0) == set()
    assert wait_for(set(waiting), 2) == set(waiting)
    assert wait_for({*done, *waiting}, 2) == set(waiting)
    assert len(wait_for({*done, *waiting}, 5)) == 5


def test_wait_for_bounds_what_is_under_way(tmp_path):
    with worker_pool(2) as pool:
        pending, most = set(), 0
        for number in range(12):
            pending.add(pool.submit(touch_after, tmp_path / str(number), 0.005))
            pending = wait_for(pending, 3)
            most = max(most, len(pending))
        assert wait_for(pending, 0) == set()
    assert most <= 3
    assert len(list(tmp_path.iterdir())) == 12


def test_results_are_given_to_whoever_asked_for_them():
    found = []
    with worker_pool(2) as pool:
        pending = {pool.submit(abs, -number) for number in range(5)}
        pending = wait_for(pending, 2, found.append)
        assert len(found) == 5 - len(pending) >= 3
        wait_for(pending, 0, found.append)
    assert sorted(found) == list(range(5))


def test_the_number_of_workers_is_what_was_asked_for():
    assert num_workers(3) == 3
    assert num_workers(None) == os.cpu_count()
    for wrong in (0, -1):
        with pytest.raises(UserError, match=f"{wrong} worker processes are not possible"):
            num_workers(wrong)
