"""The loop of a contender: requests are lines of stdin, answers lines of stdout, both JSON.

A peer's Python runs this file, so it imports nothing of ours, and nothing of anybody's.
"""

import json
import os
import resource
import sys
import time
from collections.abc import Callable


def answer_requests(make: Callable) -> None:
    """Serve until stdin ends.

    The first line out is {"peer": name and versions, "python": version, "setup_s": seconds}. Every answer has "seconds"
    (the wall time of the request, unless the contender measures itself) and "peak_mb" (of the process so far). What
    fails is answered with {"error": text}.

    Args:
      make: (kind, model directory, settings), from the command line -> an object with `name` and `ask(request)`.
    """
    answers = os.fdopen(os.dup(1), "w")  # what libraries print must not mix with the answers
    os.dup2(2, 1)

    def answer(row: dict) -> None:
        print(json.dumps(row), file=answers, flush=True)

    def failed(error: Exception) -> dict:
        return {"error": f"{type(error).__name__}: {error}"[:400]}

    start = time.perf_counter()
    try:
        contender = make(*sys.argv[1:])
    except Exception as error:  # told to the other end in one line
        answer(failed(error))
        return
    answer({"peer": contender.name, "python": sys.version.split()[0], "setup_s": time.perf_counter() - start})
    for line in sys.stdin:
        start = time.perf_counter()
        try:
            row = {"seconds": 0.0, **contender.ask(json.loads(line))}
        except Exception as error:  # out of memory, most likely: the other contenders go on
            answer(failed(error))
            continue
        row["seconds"] = row["seconds"] or time.perf_counter() - start
        row["peak_mb"] = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
        answer(row)
