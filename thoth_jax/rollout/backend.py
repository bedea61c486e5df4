"""Who answers: the interface of generation and evaluation, and any server that speaks OpenAI's chat protocol.

Stage rl does not use it: it trains on the exact tokens and logprobs of the engine, which no such server gives.
"""

import concurrent.futures
import dataclasses
import http.client
import json
import os
import random
import threading
import time
import urllib.error
import urllib.parse
import urllib.request
from collections.abc import Callable, Iterator, Sequence
from typing import Any, NamedTuple, Protocol

from thoth_jax.errors import InputError

KEY_VARIABLE = "OPENAI_API_KEY"
_MOST_BYTES = 64 * 2**20  # of a response
_LONGEST_WAIT = 60.0  # seconds between two tries


class Answer(NamedTuple):
    """finish_reason: "stop", or "length" where the answer was cut off at its largest length."""

    text: str
    finish_reason: str


class RolloutBackend(Protocol):
    """Answers chats."""

    def prepare(self, messages: Sequence[dict], where: str) -> Any:
        """What `answers` takes for a chat of {"role", "content"}; `where` (file:line) names it in messages.

        Raises:
          InputError: the chat is too long.
        """
        ...

    def answers(
        self, prepared: Sequence[Any], numbers: Sequence[int], watch: Callable[[int, str], None] | None = None
    ) -> Iterator[tuple[int, Answer]]:
        """(index, answer) of each chat, as soon as it is there.

        Args:
          numbers: of each chat, what its noise is keyed by.
          watch: called now and then with (index, text so far) of answers that are under way.
        """
        ...


@dataclasses.dataclass(frozen=True)
class EndpointOptions:
    """How to ask.

    temperature, top_p, top_k, max_tokens, seed: as in `Sampling`; the seed of a chat is seed + its number, and what
    is off is not sent. timeout: seconds of a try. tries: of a chat, with growing pauses between them. parallel: chats
    asked at the same time. enable_thinking: False is passed on to the chat template.
    """

    temperature: float = 0.0
    top_p: float = 1.0
    top_k: int = 0
    max_tokens: int = 512
    seed: int = 0
    timeout: float = 600.0
    tries: int = 6
    parallel: int = 8
    enable_thinking: bool = True


class EndpointError(InputError):
    """The server refuses, or has not answered after all tries."""


class _Retry(Exception):
    """A try that failed and may succeed later; wait: seconds the server asks for, or None."""

    def __init__(self, why: str, wait: float | None = None):
        super().__init__(why)
        self.wait = wait


class _NoRedirect(urllib.request.HTTPRedirectHandler):
    """A redirect would carry the key to another host."""

    def redirect_request(self, *args, **kwargs):
        return None


class Endpoint:
    """An OpenAI-compatible server: POST URL/chat/completions.

    The key, where one is needed, comes from the variable OPENAI_API_KEY of the environment, is sent to this host only
    and is never printed.
    """

    def __init__(self, url: str, model: str | None, options: EndpointOptions):
        """Set up.

        Args:
          url: like http://host:8000/v1.
          model: the served model's name; None: the first that the server lists.

        Raises:
          EndpointError: no such server, or it serves no model. InputError: not a URL.
        """
        parts = urllib.parse.urlsplit(url)
        if parts.scheme not in ("http", "https") or not parts.hostname:
            raise InputError(f"--endpoint {url!r}: must be a URL like http://localhost:8000/v1")
        if parts.username or parts.password:
            raise InputError(f"--endpoint: a URL must not carry a password; set {KEY_VARIABLE}")
        self._url, self._options = url.rstrip("/"), options
        self._opener = urllib.request.build_opener(_NoRedirect)
        self._sleep: Callable[[float], Any] = time.sleep
        self.model = model or self._first_model()

    def prepare(self, messages: Sequence[dict], where: str) -> list[dict]:
        """The chat itself; the server counts its tokens."""
        return [{"role": turn["role"], "content": turn["content"]} for turn in messages]

    def answers(self, prepared, numbers, watch=None) -> Iterator[tuple[int, Answer]]:
        """See `RolloutBackend`. Chats are asked in parallel.

        Raises:
          EndpointError: of the first chat that gets no answer, after those that were under way have been yielded.
        """
        stop, failure = threading.Event(), None

        def ask(index: int) -> Answer | None:
            if stop.is_set():
                return None
            try:
                return self._ask(prepared[index], numbers[index])
            except EndpointError:
                stop.set()  # here, before this thread takes the next chat
                raise

        with concurrent.futures.ThreadPoolExecutor(self._options.parallel) as pool:
            try:
                futures = {pool.submit(ask, index): index for index in range(len(prepared))}
                for future in concurrent.futures.as_completed(futures):
                    try:
                        answer = future.result()
                    except EndpointError as error:
                        failure = failure or error
                        continue
                    if answer is not None:
                        yield futures[future], answer
            finally:
                stop.set()  # the caller may have stopped early
        if failure is not None:
            raise failure

    def _ask(self, messages: list[dict], number: int) -> Answer:
        options = self._options
        body: dict[str, Any] = {
            "model": self.model,
            "messages": messages,
            "temperature": options.temperature,
            "top_p": options.top_p,
            "max_tokens": options.max_tokens,
            "seed": options.seed + number,
            "stream": False,
        }
        if options.top_k:
            body["top_k"] = options.top_k  # not of the standard: servers of open models know it
        if not options.enable_thinking:
            body["chat_template_kwargs"] = {"enable_thinking": False}
        return self._patiently(lambda: _answer_of(self._request("/chat/completions", body)))

    def _first_model(self) -> str:
        def first():
            data = self._request("/models", None).get("data")
            names = [row.get("id") for row in data if isinstance(row, dict)] if isinstance(data, list) else []
            if not names or not isinstance(names[0], str):
                raise EndpointError(f"{self._url}/models lists no model; name one with --model")
            return names[0]

        return self._patiently(first)

    def _patiently(self, attempt: Callable[[], Any]):
        for number in range(1, self._options.tries + 1):
            try:
                return attempt()
            except _Retry as retry:
                if number == self._options.tries:
                    raise EndpointError(f"{self._url}: {retry} (after {number} tries)") from None
                pause = 0.5 * 2 ** (number - 1) * random.uniform(0.75, 1.25)  # so that not all come back at once
                self._sleep(min(_LONGEST_WAIT, max(pause, retry.wait or 0.0)))

    def _request(self, path: str, body: dict | None) -> dict:
        headers = {"Content-Type": "application/json", "Accept": "application/json"}
        key = os.environ.get(KEY_VARIABLE)
        if key:
            headers["Authorization"] = f"Bearer {key}"
        data = None if body is None else json.dumps(body).encode()  # ASCII: a lone surrogate stays an escape
        request = urllib.request.Request(self._url + path, data, headers)
        try:
            with self._opener.open(request, timeout=self._options.timeout) as response:
                content = response.read(_MOST_BYTES + 1)
        except urllib.error.HTTPError as error:
            raise self._refusal(error) from None
        except (urllib.error.URLError, http.client.HTTPException, OSError, ValueError) as error:
            reason = getattr(error, "reason", error)
            raise _Retry(f"no answer: {type(reason).__name__ if not str(reason) else reason}") from None
        if len(content) > _MOST_BYTES:
            raise EndpointError(f"{self._url}: a response of more than {_MOST_BYTES >> 20} MB")
        try:
            found = json.loads(content)
        except (ValueError, RecursionError):
            raise _Retry("the response is not JSON, or was cut off") from None
        if not isinstance(found, dict):
            raise _Retry("the response is not a JSON object")
        return found

    def _refusal(self, error: urllib.error.HTTPError) -> Exception:
        """What an HTTP status means: come back later, or never."""
        with error:
            try:
                detail = " ".join(error.read(2000).decode("utf-8", "replace").split())[:300]
            except (OSError, http.client.HTTPException):
                detail = ""
        key = os.environ.get(KEY_VARIABLE)
        if key:
            detail = detail.replace(key, "***")
        text = f"HTTP {error.code} {error.reason}" + (f": {detail}" if detail else "")
        if error.code in (408, 409, 425, 429) or error.code >= 500:
            wait = error.headers.get("Retry-After", "") if error.headers else ""
            return _Retry(text, float(wait) if wait.isascii() and wait.isdigit() else None)
        if error.code in (401, 403):
            text += f" (the key comes from {KEY_VARIABLE})"
        return EndpointError(f"{self._url}: {text}")


def _answer_of(response: dict) -> Answer:
    """The answer in a chat completion. Where the server took the thinking out of the text it is put back."""
    try:
        choice = response["choices"][0]
        message = choice["message"]
        text, thought = message.get("content") or "", message.get("reasoning_content") or message.get("reasoning")
        reason = choice.get("finish_reason")
    except (KeyError, IndexError, TypeError, AttributeError):
        raise _Retry("the response holds no choices[0].message") from None
    if not isinstance(text, str) or not (thought is None or isinstance(thought, str)):
        raise _Retry("the response's content is not a text")
    if thought:
        text = f"<think>{thought}</think>{text}"
    return Answer(text, "length" if reason == "length" else "stop")
