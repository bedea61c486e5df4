"""A served model: a local HTTP server of our own that answers, refuses, stalls and breaks off."""

import contextlib
import http.server
import json
import re
import threading
import time

import pytest

from thoth_jax.cli import main
from thoth_jax.errors import InputError
from thoth_jax.rollout import Endpoint, EndpointOptions
from thoth_jax.rollout.backend import EndpointError

SECRET = "sk-very-secret"


def completion(text, reason="stop", **message):
    return {"choices": [{"message": {"role": "assistant", "content": text} | message, "finish_reason": reason}]}


class Server:
    """Answers the nth request for a path with `script(n, path, body)`: (status, headers, bytes) or a JSON object."""

    def __init__(self, script):
        self.script, self.requests, lock = script, [], threading.Lock()
        outer = self

        class Handler(http.server.BaseHTTPRequestHandler):
            def do_GET(self):
                self.serve()

            def do_POST(self):
                self.serve()

            def serve(self):
                body = json.loads(self.rfile.read(int(self.headers.get("Content-Length", 0))) or "null")
                with lock:
                    number = len(outer.requests)
                    outer.requests.append((self.path, body, dict(self.headers)))
                found = outer.script(number, self.path, body)
                status, headers, content = found if isinstance(found, tuple) else (200, {}, json.dumps(found).encode())
                with contextlib.suppress(OSError):  # a client that has given up
                    self.send_response(status)
                    for name, value in ({"Content-Length": str(len(content))} | headers).items():
                        self.send_header(name, value)
                    self.end_headers()
                    self.wfile.write(content)

            def log_message(self, *_):
                pass

        self.http = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.url = f"http://127.0.0.1:{self.http.server_port}/v1"
        threading.Thread(target=self.http.serve_forever, daemon=True).start()


@pytest.fixture
def serve():
    servers = []

    def start(script):
        servers.append(Server(script))
        return servers[-1]

    yield start
    for server in servers:
        server.http.shutdown()
        server.http.server_close()


def ask(server, chats=1, model="m", **options):
    """Answers of `chats` chats, and the pauses that were made between tries."""
    endpoint, pauses = Endpoint(server.url, model, EndpointOptions(**options)), []
    endpoint._sleep = pauses.append
    prepared = [endpoint.prepare([{"role": "user", "content": f"q{n}"}], "x:1") for n in range(chats)]
    return dict(endpoint.answers(prepared, list(range(chats)))), pauses


def test_what_is_sent_and_what_comes_back(serve, monkeypatch):
    monkeypatch.setenv("OPENAI_API_KEY", SECRET)
    server = serve(lambda n, path, body: completion(f"to {body['messages'][0]['content']}"))
    answers, pauses = ask(server, 20, temperature=0.7, top_p=0.9, top_k=5, max_tokens=33, seed=100, parallel=4)
    assert [answers[n] for n in range(20)] == [(f"to q{n}", "stop") for n in range(20)] and not pauses
    for path, body, headers in server.requests:
        number = int(body["messages"][0]["content"][1:])
        assert path == "/v1/chat/completions" and headers["Authorization"] == f"Bearer {SECRET}"
        assert body == {
            "model": "m",
            "messages": [{"role": "user", "content": f"q{number}"}],
            "temperature": 0.7,
            "top_p": 0.9,
            "top_k": 5,
            "max_tokens": 33,
            "seed": 100 + number,
            "stream": False,
        }


def test_what_is_off_is_not_sent_and_no_key_is_made_up(serve, monkeypatch):
    monkeypatch.delenv("OPENAI_API_KEY", raising=False)
    server = serve(lambda n, path, body: completion("a"))
    ask(server)
    ask(server, enable_thinking=False)
    (_, plain, headers), (_, without, _) = server.requests
    assert "top_k" not in plain and "chat_template_kwargs" not in plain and "Authorization" not in headers
    assert without["chat_template_kwargs"] == {"enable_thinking": False}


def test_an_answer_that_was_cut_off_says_so_and_thinking_is_put_back(serve):
    server = serve(lambda n, path, body: completion("half", "length", reasoning_content="why"))
    assert ask(server)[0] == {0: ("<think>why</think>half", "length")}
    assert ask(serve(lambda n, path, body: completion(None)))[0] == {0: ("", "stop")}


@pytest.mark.parametrize(
    "trouble",
    [
        (429, {"Retry-After": "7"}, b"slow down"),
        (500, {}, b"oops"),
        (503, {}, b""),
        (200, {}, b'{"choices": [{"mess'),
        (200, {"Content-Length": "1000"}, b'{"choices"'),
        (200, {}, b"[]"),
        (200, {}, b'{"choices": []}'),
        (200, {}, b'{"choices": [{"message": {"content": 5}}]}'),
        (200, {}, b'{"choices": [null]}'),
        (200, {}, b"[" * 100_000),
    ],
    ids=["429", "500", "503", "cut JSON", "cut body", "list", "no choice", "number", "null", "deep"],
)
def test_trouble_that_passes_is_waited_for(serve, trouble):
    server = serve(lambda n, path, body: trouble if n < 2 else completion("at last"))
    answers, pauses = ask(server, timeout=5)
    assert answers == {0: ("at last", "stop")} and len(pauses) == 2
    if trouble[0] == 429:
        assert pauses == [7.0, 7.0]
    else:
        assert 0.3 < pauses[0] < 0.7 and 0.7 < pauses[1] < 1.3


def test_trouble_that_stays_is_told_in_one_line(serve):
    answers = []
    with pytest.raises(EndpointError, match=r"HTTP 500 .*: oops \(after 3 tries\)"):
        ask(serve(lambda n, path, body: (500, {}, b"oops\n")), tries=3)
    with pytest.raises(EndpointError, match="not JSON") as caught:
        answers = ask(serve(lambda n, path, body: (200, {}, b"<html>")), tries=2)
    assert not answers and "\n" not in str(caught.value)


def test_a_server_that_stalls_is_given_up(serve):
    start = time.monotonic()
    with pytest.raises(EndpointError, match=r"no answer: .*timed out.*\(after 2 tries\)"):
        ask(serve(lambda n, path, body: time.sleep(2) or completion("late")), timeout=0.2, tries=2)
    assert time.monotonic() - start < 2


def test_no_server():
    server = Server(lambda *_: None)
    server.http.shutdown()
    server.http.server_close()
    with pytest.raises(EndpointError, match="no answer: .*refused"):
        ask(server, tries=2)


@pytest.mark.parametrize("status", [400, 401, 404, 302])
def test_a_refusal_is_final_and_never_shows_the_key(serve, monkeypatch, status):
    monkeypatch.setenv("OPENAI_API_KEY", SECRET)
    other = serve(lambda n, path, body: completion("stolen"))
    headers = {"Location": other.url} if status == 302 else {}
    server = serve(lambda n, path, body: (status, headers, f"bad key {SECRET}".encode()))
    with pytest.raises(EndpointError) as caught:
        ask(server, 9, parallel=1)
    assert f"HTTP {status}" in str(caught.value) and SECRET not in str(caught.value)
    assert ("OPENAI_API_KEY" in str(caught.value)) == (status == 401)
    assert len(server.requests) == 1 and not other.requests  # the other eight are not asked any more


def test_the_first_served_model_is_taken(serve):
    def script(n, path, body):
        return {"data": [{"id": "first"}, {"id": "second"}]} if path.endswith("/models") else completion(body["model"])

    assert ask(serve(script), model=None)[0] == {0: ("first", "stop")}
    with pytest.raises(EndpointError, match="lists no model; name one with --model"):
        ask(serve(lambda n, path, body: {"data": []}), model=None)


@pytest.mark.parametrize("url", ["localhost:8000", "ftp://host/v1", "http://", "https://me:pw@host/v1", "file:///etc"])
def test_odd_urls(url):
    with pytest.raises(InputError, match="--endpoint") as caught:
        Endpoint(url, "m", EndpointOptions())
    assert "pw" not in str(caught.value)


def rows_in(file):
    return [json.loads(line) for line in file.read_text().splitlines()]


def test_generate_goes_on_where_the_server_left_off(serve, tmp_path, capsys):
    source, output = tmp_path / "in.jsonl", tmp_path / "out.jsonl"
    source.write_text("".join(json.dumps({"id": n, "prompt": f"q{n}"}) + "\n" for n in range(6)))
    down = True

    def script(n, path, body):
        question = re.search(r"q\d", body["messages"][-1]["content"])[0]
        return (400, {}, b"full") if down and question == "q4" else completion(f"to {question}")

    server = serve(script)
    command = ["generate", "--endpoint", server.url, "--model", "m", "--input", str(source), "--output", str(output)]
    command += ["--slots", "1", "--system-prompt", ""]
    assert main(command) == 2 and "HTTP 400" in capsys.readouterr().err
    assert [row["id"] for row in rows_in(output)] == ["0", "1", "2", "3"]
    down, before = False, len(server.requests)
    assert main(command) == 0 and len(server.requests) == before + 2
    assert {row["id"]: row["output"] for row in rows_in(output)} == {str(n): f"to q{n}" for n in range(6)}


def test_evaluate_and_score_a_served_model(serve, tmp_path, capsys):
    key = 'Step 1: {"action": "add", "objects": ["buffer"], "parameters": ["5 min"]}'
    answer = f"<think>t</think><key>{key}</key><orc>Step 1: Add buffer for 5 min.</orc><note>None</note>"
    gold = tmp_path / "gold.jsonl"
    gold.write_text("".join(json.dumps({"query": f"How {n}?", "response": answer}) + "\n" for n in range(3)))
    server = serve(lambda n, path, body: completion(answer if n else "no idea"))
    kept = tmp_path / "answers.jsonl"
    command = ["--gold", str(gold), "--endpoint", server.url, "--model", "m", "--slots", "1", "--answers", str(kept)]
    assert main(["evaluate", *command, "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert found["count"] == 3 and abs(found["overall"]["order_lcs"] - 2 / 3) < 1e-6
    assert main(["score", *command, "--json"]) == 0  # of the answers that are there
    assert json.loads(capsys.readouterr().out)["mean"]["total"] == pytest.approx(2.5 * 2 / 3)
    assert len(rows_in(kept)) == 3 and len(server.requests) == 3
    assert main(["evaluate", *command[:-2], "--json"]) == 0 and len(server.requests) == 6


def test_arguments_that_exclude_each_other(tmp_path, capsys):
    rows = tmp_path / "rows.jsonl"
    rows.write_text('{"id": 1, "prompt": "x"}\n')
    for command, message in (
        (["generate", "--prompt", "x"], "needs --model DIR, or --endpoint URL"),
        (["evaluate", "--gold", "bundled", "--input", str(rows), "--model", "m"], "--input holds answers already"),
        (["evaluate", "--gold", "bundled", "--answers", str(rows)], "--answers is for the answers of"),
    ):
        assert main(command) == 2 and message in capsys.readouterr().err
