"""The report: one page from what runs left behind, finished or not; no text of a run gets out of its box."""

import html.parser
import json

import pytest

from thoth_jax import cli
from thoth_jax.errors import InputError
from thoth_jax.report import write_report
from thoth_jax.report.runs import read_runs

STEPS = (
    {"status": "matched", "text": 'Step 1: {"action": "add"}', "gold": 'Step 1: {"action": "add"}', "note": ""},
    {"status": "mismatched", "text": "Step 2: mine", "gold": "Step 2: theirs", "note": "objects 0.5"},
    {"status": "missing", "text": "", "gold": "Step 3: left out", "note": ""},
)


class Page(html.parser.HTMLParser):
    """Tags with their attributes, and the text that a reader sees."""

    def __init__(self, text):
        super().__init__()
        self.tags, self.seen, self._open = [], "", []
        self.feed(text)

    def handle_starttag(self, tag, attrs):
        self.tags.append((tag, dict(attrs)))
        if tag not in ("meta", "path", "circle", "polyline"):
            self._open.append(tag)

    def handle_endtag(self, tag):
        assert tag in ("path", "circle", "polyline") or self._open.pop() == tag

    def handle_data(self, data):
        if "style" not in self._open:
            self.seen += data


def page_of(*paths, out=""):
    with open(write_report([str(path) for path in paths], str(out))) as file:
        text = file.read()
    page = Page(text)
    assert not page._open, "every tag is closed"
    names = {tag for tag, _ in page.tags}
    assert not names & {"script", "img", "link", "iframe", "object", "form", "base", "video"}
    for _, attributes in page.tags:
        assert not any(name.startswith("on") or name == "src" for name in attributes)
        assert attributes.get("href", "#").startswith("#")
    assert "url(" not in text and "@import" not in text and "default-src 'none'" in text
    return page


def test_a_run(make_run, answer):
    run = make_run(samples=[answer(steps=STEPS)])
    page = page_of(run)
    for text in ("Reward: format_gate", "KL to the reference", "between sampler and trainer", "step 5 of 8, finished"):
        assert text in page.seen
    assert "SCORE 1.25 = all of it" in page.seen and "How?" in page.seen and "hidden_size = 32" in page.seen
    classes = [attributes.get("class", "") for tag, attributes in page.tags if tag == "div"]
    assert [name for name in classes if name.startswith("step ")] == ["step matched", "step mismatched", "step missing"]
    assert "gold: Step 2: theirs" in page.seen and "Step 3: left out" in page.seen


def test_stages_with_their_table(make_run, answer):
    for stage in ("rl", "pretrain", "sft"):
        make_run(f"quick/{stage}", stage, loss=2.0)
    quick = make_run("quick/notes", "sft").parent
    (quick / "notes" / "metrics.jsonl").unlink()
    (quick / "notes" / "config.json").unlink()
    cells = {"score": [0.5, 0.4, 0.6], "steps": 3.0}
    summary = {"stages": {"sft": cells, "rl": {"score": [1.25, 1.0, None]}}, "differences": {"rl - sft": cells}}
    (quick / "summary.json").write_text(json.dumps(summary))
    page = page_of(quick)
    headings = [text for text in ("pretrain", "sft", "rl") if f"{text}: {text}, step 5" in page.seen]
    assert headings == ["pretrain", "sft", "rl"] and "notes" not in page.seen
    assert [attributes["id"] for tag, attributes in page.tags if tag == "h2" and "id" in attributes] == headings
    assert "0.500" in page.seen and "0.400 to 0.600" in page.seen and "rl - sft" in page.seen
    assert "95 % interval" in page.seen and "1.000 to nan" in page.seen


def test_runs_of_one_stage_share_their_charts(make_run, tmp_path):
    one, other = make_run("a/rl"), make_run("b/rl", finished=False)
    page = page_of(one, other, out=tmp_path / "both.html")
    assert page.seen.count("KL to the reference") == 1 and "a/rl: rl" in page.seen and "b/rl: rl" in page.seen
    assert "unfinished" in page.seen
    assert [table.title for table in read_runs([str(one), str(other)]).tables] == ["a/rl: results"]


def test_what_is_unfinished_or_broken_is_left_out(make_run, answer):
    run = make_run(finished=False, samples=[answer()])
    with (run / "metrics.jsonl").open("ab") as file:
        file.write(b'3\n[1]\n{"kind": "train"}\n{"step": "x"}\n{"step": null, "loss": 1}\n\xff\xfe\n')
        file.write(b'{"step": 6, "kind": "train", "rewards/mean": null, "kl": NaN, "loss": Infinity, "lr": 1e-4}\n')
        file.write(b'{"step": 7, "kind": "tr')
    with (run / "samples" / "5.jsonl").open("ab") as file:
        file.write(
            b'7\n{"explained": {"steps": [3, {"status": "odd", "text": 5}, {}]}, "parts": {"a": null}}\n{"id": [1]}\n{'
        )
    (run / "samples" / "x.jsonl").write_text("{}")
    (run / "samples" / "6.jsonl.tmp").write_text("{}")
    (run / "summary.json").write_text("[" * 5000)
    page = page_of(run)
    assert "step 6 of 8" in page.seen and "Answers at step 5" in page.seen and "item-1" in page.seen
    (run / "config.json").write_bytes(b"\xff")
    (run / "samples" / "5.jsonl").unlink()
    assert "Reward" in page_of(run).seen
    (run / "metrics.jsonl").write_text("")
    page_of(run)


HOSTILE = "</pre></style><script>alert(1)</script><img src=x onerror=alert(1)>\"'&amp;\u202e\x00\x1b[31m\ud800<!--"


def test_hostile_text_stays_text(make_run, answer):
    steps = [{"status": HOSTILE, "text": HOSTILE, "gold": HOSTILE, "note": HOSTILE}, *STEPS]
    rows = [answer(HOSTILE, 1.0, HOSTILE * 3, steps, HOSTILE), answer(output="y" * 10**6), {HOSTILE: HOSTILE}]
    rows[0]["parts"] = {HOSTILE: HOSTILE}
    run = make_run(samples=rows, **{HOSTILE: 1.0, f"rewards/{HOSTILE}": 0.5})
    config = {"stage": "rl", HOSTILE: HOSTILE, "long": "z" * 10**6}
    (run / "config.json").write_text(json.dumps(config))
    (run / "summary.json").write_text(json.dumps({HOSTILE: {HOSTILE: {HOSTILE: 1.0}}}))
    page = page_of(run)
    assert page.seen.count("alert(1)") > 8 and "yyyy" in page.seen and len(page.seen) < 200_000
    assert not any(letter in page.seen for letter in "\u202e\x00\x1b\ud800")


def test_long_runs_make_small_pages(make_run):
    run = make_run(steps=20_000)
    page_of(run)
    assert (run / "report.html").stat().st_size < 200_000


def test_no_run_is_one_line(tmp_path, make_run, capsys):
    with pytest.raises(InputError, match="no such directory"):
        write_report([str(tmp_path / "nowhere")])
    with pytest.raises(InputError, match="no run"):
        write_report([str(tmp_path)])
    (tmp_path / "config.json").write_text('{"model_type": "qwen3"}')  # a model, not a run
    assert cli.main(["report", str(tmp_path)]) == 2
    assert capsys.readouterr().err.count("\n") == 1


def test_command(make_run, tmp_path, capsys, monkeypatch):
    run, other = make_run("one"), make_run("two")
    assert cli.main(["report", str(run)]) == 0 and (run / "report.html").exists()
    assert capsys.readouterr().out.strip() == str(run / "report.html")
    assert cli.main(["report", str(run), "--out", str(tmp_path / "deep" / "page.html")]) == 0
    assert (tmp_path / "deep" / "page.html").exists()
    monkeypatch.chdir(tmp_path)
    assert cli.main(["report", str(run), str(other)]) == 0 and (tmp_path / "report.html").exists()


def test_training_ends_with_a_report(tmp_path, monkeypatch, caplog):
    words = [
        "stage=pretrain",
        "num_steps=1",
        "model.hidden_size=32",
        "model.num_layers=1",
        "model.intermediate_size=48",
    ]
    words += ["max_length=32", "batch_size=2", "eval_at_start=false", "eval_examples=2", "max_completion_length=4"]
    words += ["task_args.drills=4"]
    train = ["train", *[f"--config.{word}" for word in words], f"--config.run_dir={tmp_path}/run"]
    assert cli.main(train) == 0
    text = (tmp_path / "run" / "report.html").read_text()
    assert "Loss" in text and "finished" in text and "Answers at step 1" in text
    (tmp_path / "run" / "report.html").unlink()
    (tmp_path / "run" / "report.html.tmp").mkdir()  # in the way
    assert cli.main(train) == 0 and "no report" in caplog.text
