"""Reward calls on a thread beside sampling, with a time limit."""

import logging
import queue
import threading
import time
from collections.abc import Callable
from typing import Any

logger = logging.getLogger(__name__)


class Job:
    """A call that has been asked for."""

    def __init__(self, call: Callable[[], Any], limit: float):
        self._call, self._limit = call, limit
        self.done = threading.Event()
        self.started: float | None = None
        self.given_up = False
        self._value: Any = None
        self._error: BaseException | None = None

    def run(self) -> None:
        """Make the call, on the scorer's thread."""
        self.started = time.monotonic()
        try:
            self._value = self._call()
        except BaseException as error:  # it is raised where the result is asked for
            self._error = error
        self.done.set()

    def left(self) -> float | None:
        """Seconds until the limit; None: no limit, or it has not begun."""
        if not self._limit or self.started is None:
            return None
        return self.started + self._limit - time.monotonic()

    def value(self) -> Any:
        """What the call returned; raises what it raised."""
        if self._error is not None:
            raise self._error
        return self._value


class Scorer:
    """Makes calls one after another. One that takes longer than its limit is given up, and the others go on.

    A thread cannot be killed: the call that was given up keeps its thread until it returns. Its result is dropped, and
    the process can end without it. Code that never lets another thread run (one endless regular expression, say) cannot
    be given up either.
    """

    def __init__(self, limit: float):
        """Set up; limit: seconds of a call, 0 for none."""
        self._limit = limit
        self._jobs: queue.SimpleQueue[Job | None] = queue.SimpleQueue()
        self._start()

    def _start(self) -> None:
        threading.Thread(target=self._work, args=(self._jobs,), name="rewards", daemon=True).start()

    @staticmethod
    def _work(jobs: "queue.SimpleQueue[Job | None]") -> None:
        while (job := jobs.get()) is not None:
            job.run()
            if job.given_up:
                return  # another thread has taken over

    def submit(self, function: Callable, *args, times: int = 1) -> Job:
        """Ask for function(*args), within `times` the limit."""
        job = Job(lambda: function(*args), self._limit * times)
        self._jobs.put(job)
        return job

    def result(self, job: Job) -> Any:
        """Wait for a job's value; raises what it raised.

        Raises:
          TimeoutError: it took too long and was given up.
        """
        while not job.done.wait(0.05 if job.started is None else job.left()):
            left = job.left()
            if left is not None and left <= 0:
                job.given_up = True
                if job.done.is_set():
                    break  # at the last moment
                self._start()
                raise TimeoutError
        return job.value()

    def close(self) -> None:
        """Let the thread end after what has been asked for."""
        self._jobs.put(None)
