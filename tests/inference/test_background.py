"""Work in the background: order, bounds, errors, and no thread that stays."""

import threading
import time

import pytest

from simcse_hf.inference.background import prefetched


def background_threads():
    return [thread.name for thread in threading.enumerate() if thread.name.startswith("simcse-")]


def test_items_keep_their_order_and_no_thread_stays():
    with prefetched(iter(range(100)), ahead=3) as items:
        assert list(items) == list(range(100))
        assert background_threads()
    assert not background_threads()


@pytest.mark.parametrize("ahead", [1, 3])
def test_no_more_items_than_allowed_are_produced_ahead(ahead):
    produced = []

    def produce():
        for number in range(20):
            produced.append(number)
            yield number

    with prefetched(produce(), ahead) as items:
        time.sleep(0.05)
        assert len(produced) == ahead
        for item in items:
            time.sleep(0.01)
            assert len(produced) <= item + 1 + ahead
    assert len(produced) == 20


def test_an_error_is_raised_in_the_place_of_its_item():
    def produce():
        yield 1
        yield 2
        raise ValueError("row 3 is broken")

    taken = []
    with pytest.raises(ValueError, match="row 3 is broken"), prefetched(produce(), 4) as items:
        for item in items:
            taken.append(item)
    assert taken == [1, 2] and not background_threads()


@pytest.mark.parametrize("error", [KeyboardInterrupt, RuntimeError])
def test_an_interrupt_of_the_caller_closes_what_is_produced_and_ends_the_thread(error):
    closed = threading.Event()

    def produce():
        try:
            for number in range(1000):
                time.sleep(0.001)
                yield number
        finally:
            closed.set()

    with pytest.raises(error), prefetched(produce(), 2) as items:
        next(items)
        raise error
    assert closed.is_set() and not background_threads()


def test_without_items_ahead_there_is_no_thread():
    with prefetched(iter([1, 2]), 0) as items:
        assert not background_threads()
        assert list(items) == [1, 2]
