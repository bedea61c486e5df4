"""Calls with a time limit: what is slow is given up, what follows goes on, what raises raises."""

import threading
import time

import pytest

from thoth_jax.rewards.scorer import Scorer


def test_values_and_errors_come_back_in_any_order():
    scorer = Scorer(0)
    jobs = [scorer.submit(lambda n: 10 // n, n) for n in (1, 0, 5)]
    assert scorer.result(jobs[2]) == 2 and scorer.result(jobs[0]) == 10
    with pytest.raises(ZeroDivisionError):
        scorer.result(jobs[1])
    scorer.close()


def test_a_call_that_is_stuck_is_given_up_and_the_others_go_on():
    release, scorer = threading.Event(), Scorer(0.2)
    stuck, after = scorer.submit(release.wait), scorer.submit(lambda: "after")
    began = time.monotonic()
    with pytest.raises(TimeoutError):
        scorer.result(stuck)
    assert scorer.result(after) == "after" and 0.1 < time.monotonic() - began < 5
    release.set()
    assert scorer.result(scorer.submit(lambda: "still there")) == "still there"
    scorer.close()


def test_waiting_for_ones_turn_is_no_delay_of_ones_own():
    scorer = Scorer(0.5)
    jobs = [scorer.submit(time.sleep, 0.2) for _ in range(4)] + [scorer.submit(lambda: "last")]
    assert scorer.result(jobs[-1]) == "last"
    scorer.close()


def test_a_larger_call_may_take_longer():
    scorer = Scorer(0.1)
    assert scorer.result(scorer.submit(lambda: time.sleep(0.3) or 1, times=20)) == 1
    with pytest.raises(TimeoutError):
        scorer.result(scorer.submit(time.sleep, 3))
    scorer.close()
