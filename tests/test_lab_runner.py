"""Runner, report and command of the lab: atomic results, isolated failures, a self-contained page."""

from __future__ import annotations

import base64
import functools
import hashlib
import json
import multiprocessing
import os
import re
import select
import subprocess
import sys
import time
from collections.abc import Callable
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import pytest
import torch
from commands import Ask

from chumoku.errors import DamagedError, UsageError
from chumoku.lab import processes, report, runner
from chumoku.lab.claims import CLAIMS, SAME_TRANSLATOR, TRAINING_INDEPENDENT, select_claims
from chumoku.lab.experiment import (
    FAILS,
    HOLDS,
    NOT_JUDGED,
    PARTLY,
    Budget,
    Claim,
    Correction,
    Experiment,
    Outcome,
    Words,
    load_claims,
    load_experiment,
)

BUDGET = Budget(scale=0.1, seeds=2)
NASTY = '<script>alert("&")</script>'


def claim(id: str) -> Claim:
    words = [
        Words(f"{name} of {id}.", f"{id} の{name}です。") for name in ("title", "stated", "tried", "refutes", "rule")
    ]
    return Claim(id, ("000",), *words, reading=Words("A line.", "線です。"))


def outcome(verdict: str = HOLDS, **numbers: Any) -> Outcome:
    return Outcome(
        verdict,
        numbers,
        Words(f"Found {NASTY}.", f"{NASTY} でした。"),
        when=Words("it rains", "雨のとき"),
        correction=Correction("1.34", "1.00", Words("a sum", "和")),
    )


@pytest.fixture
def experiments(monkeypatch: pytest.MonkeyPatch) -> dict[str, Experiment]:
    """Replaces the experiments of the claims' files."""
    replaced: dict[str, Experiment] = {}
    monkeypatch.setattr(runner, "load_experiment", lambda id: replaced[id])
    return replaced


def put(experiments: dict[str, Experiment], id: str, run: Callable[[Budget], Outcome], draw: Any = None) -> None:
    experiments[id] = Experiment(claim(id), run, draw)


def line(found: Outcome, figure: Any) -> None:
    figure.subplots().plot([0, 1], [0, 1])


def names(out: Path) -> set[str]:
    return {path.name for path in out.iterdir()}


# The runner


def test_result_is_written_completely(experiments: dict[str, Experiment], tmp_path: Path) -> None:
    put(experiments, "norm", lambda budget: outcome(value=0.5, steps=budget.steps(100)), line)
    (result,) = runner.run(["norm"], BUDGET, tmp_path)
    assert names(tmp_path) == {"norm"}
    assert names(tmp_path / "norm") == {"result.json", "figure.png", "manifest.json"}
    found = runner.read_result(tmp_path, "norm")
    assert found is not None
    kept, figure = found
    assert kept["verdict"] == result.verdict == HOLDS
    assert kept["numbers"] == {"value": 0.5, "steps": 10}
    assert kept["claim"]["stated"] == {"en": "stated of norm.", "ja": "norm のstatedです。"}
    assert kept["reading"] == {"en": "A line.", "ja": "線です。"}
    assert kept["correction"] == {"note": "1.34", "true": "1.00", "computed": {"en": "a sum", "ja": "和"}}
    assert kept["seeds"] == [0], "no training here"
    assert set(kept["versions"]) == {"python", "torch", "chumoku"}
    assert kept["budget"] == {"scale": 0.1, "seeds": 2}
    assert kept["platform"]
    assert figure is not None
    assert figure.startswith(b"\x89PNG")


def test_a_failure_does_not_stop_other_claims(experiments: dict[str, Experiment], tmp_path: Path) -> None:
    def broken(budget: Budget) -> Outcome:
        raise ValueError("The dice were loaded.")

    def broken_run(budget: Budget) -> Outcome:
        raise ValueError("Run `chumoku doctor <model>`.")

    put(experiments, "gram", broken_run)
    runner.run(["gram"], BUDGET, tmp_path)
    html = report.write(tmp_path).read_text("utf-8")
    assert "Run <code>chumoku doctor &lt;model&gt;</code>." in html
    assert "`" not in re.sub("<style>.*</style>", "", html, flags=re.S)
    put(experiments, "norm", lambda budget: outcome(), line)
    put(experiments, "dot", broken, line)
    put(experiments, "matmul", lambda budget: outcome(FAILS))
    seen = []
    runner.run(["norm", "dot"], BUDGET, tmp_path)
    results = runner.run(["norm", "dot", "matmul"], BUDGET, tmp_path, lambda id, result: seen.append((id, result)))
    assert [r.verdict for r in results] == [HOLDS, runner.FAILED, FAILS]
    assert results[1].error == "ValueError: The dice were loaded."
    assert [id for id, _ in seen] == ["norm", "norm", "dot", "dot", "matmul", "matmul"]
    assert [result for _, result in seen][1::2] == results
    kept = runner.read_result(tmp_path, "dot")
    assert kept is not None
    assert kept[0]["failed"] == "ValueError: The dice were loaded."
    assert kept[1] is None


@pytest.mark.parametrize(
    ("found", "draw", "word"),
    [
        (outcome(value=torch.ones(2)), None, "JSON"),
        (outcome("maybe"), None, "maybe"),
        (outcome(), lambda found, figure: found.numbers["missing"], "missing"),
    ],
    ids=["invalid numbers", "invalid verdict", "failing figure"],
)
def test_invalid_outcome_is_a_failure_without_partial_files(
    found: Outcome, draw: Any, word: str, experiments: dict[str, Experiment], tmp_path: Path
) -> None:
    put(experiments, "norm", lambda budget: found, draw)
    (result,) = runner.run(["norm"], BUDGET, tmp_path)
    assert result.verdict == runner.FAILED
    assert word in str(result.error)
    assert names(tmp_path) == {"norm"}
    assert names(tmp_path / "norm") == {"result.json", "manifest.json"}


def test_import_error_is_a_failure(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    def broken(id: str) -> Experiment:
        raise ImportError("no such part")

    monkeypatch.setattr(runner, "load_experiment", broken)
    (result,) = runner.run(["norm"], BUDGET, tmp_path)
    assert result.verdict == runner.FAILED
    assert "norm" in report.render_page(report.read_results(tmp_path))


def test_experiments_are_isolated(experiments: dict[str, Experiment], tmp_path: Path) -> None:
    def rolls(budget: Budget) -> Outcome:
        value = float(torch.rand(()))
        torch.manual_seed(7)
        torch.set_default_dtype(torch.float64)
        return outcome(value=value)

    put(experiments, "norm", rolls)
    put(experiments, "dot", rolls)
    results = []
    for seed, id in ((3, "norm"), (5, "dot")):
        torch.manual_seed(seed)
        before = torch.get_rng_state()
        results += runner.run([id], BUDGET, tmp_path)
        assert torch.equal(torch.get_rng_state(), before)
    assert torch.get_default_dtype() == torch.float32
    first, second = (r.outcome.numbers["value"] for r in results if r.outcome)
    assert first == second


def test_non_finite_numbers_become_strings(experiments: dict[str, Experiment], tmp_path: Path) -> None:
    put(experiments, "norm", lambda budget: outcome(losses=[1.0, float("inf"), float("nan")], seeds=[5, 7]))
    runner.run(["norm"], BUDGET, tmp_path)
    found = runner.read_result(tmp_path, "norm")
    assert found is not None
    assert found[0]["numbers"]["losses"] == [1.0, "inf", "nan"]
    assert found[0]["seeds"] == [5, 7]


def test_damaged_result_is_refused(experiments: dict[str, Experiment], tmp_path: Path) -> None:
    put(experiments, "norm", lambda budget: outcome())
    runner.run(["norm"], BUDGET, tmp_path)
    assert runner.read_result(tmp_path, "dot") is None
    file = tmp_path / "norm" / "result.json"
    file.write_bytes(file.read_bytes().replace(b"stated of norm", b"stated of Norm", 1))
    with pytest.raises(DamagedError, match=r"result\.json"):
        runner.read_result(tmp_path, "norm")
    assert runner.expected_seconds("norm", BUDGET, tmp_path) > 0
    runner.run(["norm"], BUDGET, tmp_path)
    assert runner.read_result(tmp_path, "norm") is not None


def test_expected_seconds_use_the_last_run(experiments: dict[str, Experiment], tmp_path: Path) -> None:
    put(experiments, "norm", lambda budget: outcome())
    runner.run(["norm"], BUDGET, tmp_path)
    found = runner.read_result(tmp_path, "norm")
    assert found is not None
    last = max(0.05, found[0]["seconds"] * 1000)
    assert runner.expected_seconds("norm", Budget(scale=100.0), tmp_path) == pytest.approx(last)
    assert runner.expected_seconds("skip", BUDGET, tmp_path) == pytest.approx(2.5)


def test_ids() -> None:
    assert select_claims(["dot", "norm", "dot"]) == ["norm", "dot"]
    assert select_claims(["all"]) == list(CLAIMS)
    with pytest.raises(UsageError, match=r"'sofmax-1234'\. Did you mean softmax-1234\?"):
        select_claims(["norm", "sofmax-1234"])
    with pytest.raises(UsageError, match="lists all claims"):
        select_claims(["§§§"])


def test_every_claim_has_its_texts() -> None:
    assert tuple(load_claims()) == CLAIMS


@pytest.mark.parametrize("id", CLAIMS)
def test_every_claim_has_its_file(id: str) -> None:
    assert load_experiment(id).claim.id == id


# The page


class Page(HTMLParser):
    """Checks that tags are balanced and collects all tags with their attributes."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.open: list[str] = []
        self.tags: list[tuple[str, dict[str, str | None]]] = []
        self.feed(text)
        assert not self.open

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append((tag, dict(attrs)))
        if tag not in ("meta", "link", "input", "img", "rect"):
            self.open.append(tag)

    def handle_endtag(self, tag: str) -> None:
        if tag != "rect":
            assert self.open.pop() == tag


@pytest.fixture
def page(experiments: dict[str, Experiment], tmp_path: Path) -> str:
    put(experiments, "norm", lambda budget: outcome(value=0.5, curve=list(range(100))), line)
    put(experiments, "dot", lambda budget: outcome(PARTLY))
    put(experiments, "scale", lambda budget: outcome(FAILS, deep={"a": {"b": [1, 2]}}), line)
    runner.run(["norm", "dot", "scale"], BUDGET, tmp_path)
    return report.write(tmp_path).read_text(encoding="utf-8")


def test_page_is_self_contained(page: str) -> None:
    parsed = Page(page)
    policy = next(a["content"] for tag, a in parsed.tags if tag == "meta" and "http-equiv" in a)
    style = re.search("<style>(.*?)</style>", page, re.DOTALL)
    assert style
    digest = base64.b64encode(hashlib.sha256(style[1].encode()).digest()).decode()
    assert policy is not None
    assert policy.startswith("default-src 'none'; ")
    assert f"style-src 'sha256-{digest}'" in policy
    assert "script" not in {tag for tag, _ in parsed.tags}
    for _, attributes in parsed.tags:
        assert not {name for name in attributes if name.startswith("on") or name == "style"}
        for name in ("src", "href"):
            assert (attributes.get(name) or "#").startswith(("data:", "#"))
    assert "http://" not in page
    assert "https://" not in page
    assert "url(" not in page


def test_page_has_everything_in_both_languages(page: str) -> None:
    parsed = Page(page)
    articles = [attributes["id"] for tag, attributes in parsed.tags if tag == "article"]
    assert articles == ["norm", "dot", "scale"]
    for id in articles:
        for name in ("title", "stated", "tried", "refutes", "rule"):
            assert f'<span lang="en">{name} of {id}.</span>' in page
            assert f'<span lang="ja">{id} の{name}です。</span>' in page
    assert page.count("雨のとき") == 1, "the condition is shown only for PARTLY"
    assert page.count("<s>1.34</s>") == page.count("<b>1.00</b>") == 3
    assert sum(tag == "img" for tag, _ in parsed.tags) == 2
    for verdict in ("holds", "partly", "fails"):
        assert f'<li class="{verdict}"><b>1</b>' in page
    assert "seeds 0, 1 · budget 0.1" in page
    assert "91 more" in page
    spans = [attributes.get("lang") for tag, attributes in parsed.tags if tag == "span"]
    assert spans.count("en") == spans.count("ja") > 50


def test_results_are_escaped(page: str) -> None:
    assert "<script" not in page
    assert page.count("&lt;script&gt;") == 6


def test_language_switch_needs_no_script(page: str) -> None:
    pick = [a for tag, a in Page(page).tags if tag == "input"]
    assert [a["id"] for a in pick] == ["l-ja", "l-en", "l-both"]
    assert [("checked" in a) for a in pick] == [True, False, False]
    for id in ("l-ja", "l-en", "l-both"):
        assert f'<label for="{id}">' in page
    assert '#l-ja:checked ~ .page [lang="en"], #l-en:checked ~ .page [lang="ja"] { display: none; }' in page
    assert page.index("<input") < page.index('<div class="page">'), "~ selects later siblings"


def test_report_shows_corrections_of_earlier_versions(
    experiments: dict[str, Experiment], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    put(experiments, "dot", lambda budget: outcome(FAILS))
    runner.run(["dot"], BUDGET, tmp_path)
    found = runner.read_result(tmp_path, "dot")
    assert found is not None
    found[0]["correction"]["said"] = found[0]["correction"].pop("note")
    monkeypatch.setattr(report, "read_result", lambda out, id: found if id == "dot" else None)
    assert "<s>1.34</s>" in report.write(tmp_path).read_text(encoding="utf-8")


def test_report_without_results_is_refused(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="lab run all"):
        report.write(tmp_path)


# The command


@pytest.fixture
def ask(ask: Ask, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Ask:
    monkeypatch.chdir(tmp_path)
    return functools.partial(ask, "lab")


def test_help_and_wrong_ids_do_not_import_torch() -> None:
    code = (
        "import sys, chumoku.cli\n"
        "for words, expected in ((['--help'], 0), (['run', '--help'], 0), (['report', '--help'], 0), (['run', 'nrom'], "
        "2)):\n"
        "    sys.argv = ['chumoku', 'lab', *words]\n"
        "    try: chumoku.cli.main()\n"
        "    except SystemExit as end: found = end.code or 0\n"
        "    if found != expected or 'torch' in sys.modules: sys.exit(f'{words} {found}')\n"
    )
    finished = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert finished.returncode == 0, finished.stderr
    assert "Did you mean norm?" in finished.stderr


def test_run_prints_findings(ask: Ask, tmp_path: Path) -> None:
    ended = ask("run", "softmax-1234", "gram", "--quick")
    assert ended.code == 0, ended.err
    assert "gram: holds only when" in ended.out
    assert "correct is [[50, 110], [110, 250]]" in ended.out
    assert "2 claims: 1 holds, 1 holds only when." in ended.out
    assert "Not judged" not in ended.out, "calculations need no training"
    assert (tmp_path / "runs/lab-quick/report.html").is_file()
    assert not (tmp_path / "runs/lab").exists(), "a short run must not replace results of a full one"
    again = ask("report", "--json")
    assert json.loads(again.out) == {"report": "runs/lab-quick/report.html", "results": 2}, "the only results there are"
    assert "rope-relative: holds" in ask("run", "rope-relative", "--quick").out, "no training here either"


def test_summary_uses_singular_and_plural(ask: Ask, experiments: dict[str, Experiment]) -> None:
    for id, verdict in (("norm", FAILS), ("dot", FAILS), ("matmul", HOLDS), ("gram", PARTLY), ("sgd", PARTLY)):
        put(experiments, id, lambda budget, verdict=verdict: outcome(verdict))
    output = ask("run", "norm", "dot", "matmul", "gram", "sgd").out
    assert "5 claims: 2 do not hold, 1 holds, 2 hold only under a condition." in output
    assert "1 claim: 1 does not hold." in ask("run", "norm").out


def test_short_training_is_not_judged(ask: Ask, experiments: dict[str, Experiment], tmp_path: Path) -> None:
    """A quick run could give another verdict only because the training was too short."""
    for id in ("leak", "scale", "norm"):
        put(experiments, id, lambda budget: outcome(FAILS if budget.scale < 1 else HOLDS), line)
    ended = ask("run", "leak", "norm", "--quick")
    assert "leak: not judged" in ended.out
    assert "2 claims: 1 does not hold, 1 not judged." in ended.out
    assert "scale: does not hold" in ask("run", "scale", "--quick").out, "this claim needs no training"
    assert "trained for less than the full time" in ended.out
    html = (tmp_path / "runs/lab-quick/report.html").read_text("utf-8")
    assert "未判定" in html
    assert "1 claim is not judged" in html
    assert json.loads(ask("run", "leak", "--quick", "--json").out)["verdicts"]["not judged"] == 1
    listed = ask()
    assert listed.out.count("not judged") == 1
    assert "Verdicts: runs/lab-quick, a short run." in listed.out
    full = ask("run", "leak")
    assert "Verdicts: runs/lab." in ask().out, "results of a full run come first"
    assert "leak: holds" in full.out
    assert "未判定" not in (tmp_path / "runs/lab/report.html").read_text("utf-8")
    put(experiments, "leak", lambda budget: outcome(NOT_JUDGED))
    unclear = ask("run", "leak")
    assert "leak: not judged" in unclear.out
    assert "no 95 % interval over the seeds refutes it" in unclear.out
    html = (tmp_path / "runs/lab/report.html").read_text("utf-8")
    assert "no 95 % interval over the seeds refutes them" in html
    assert "less than the full time" not in html


def test_run_as_json(ask: Ask) -> None:
    ended = ask("run", "gram", "--budget", "0.2", "--out", "there", "--json")
    found = json.loads(ended.out)
    assert found["verdicts"] == {
        "holds": 0,
        "holds only when": 1,
        "does not hold": 0,
        "not judged": 0,
        "failed to run": 0,
    }
    assert found["results"][0]["numbers"]["product"] == [[50, 110], [110, 250]]
    assert found["results"][0]["budget"] == {"scale": 0.2, "seeds": 2}


def test_failure_exits_with_1(ask: Ask, experiments: dict[str, Experiment]) -> None:
    put(experiments, "norm", lambda budget: outcome("maybe"))
    ended = ask("run", "norm")
    assert ended.code == 1
    assert "'maybe' is not a verdict" in ended.out


@pytest.mark.parametrize(
    "words",
    [
        ("run",),
        ("run", "norm", "--quick", "--budget", "2"),
        ("run", "norm", "--budget", "0"),
        ("run", "norm", "--budget", "nan"),
    ],
)
def test_wrong_use_exits_with_2(words: tuple[str, ...], ask: Ask) -> None:
    assert ask(*words).code == 2


def test_list_shows_last_verdicts(ask: Ask) -> None:
    ask("run", "gram")
    rows = {row["id"]: row for row in json.loads(ask("--json").out)["claims"]}
    assert list(rows) == list(CLAIMS)
    assert rows["gram"]["verdict"] == PARTLY
    assert rows["norm"]["verdict"] is None
    output = ask()
    assert re.search(r"^gram +000 +holds only when +All inner products at once$", output.out, re.MULTILINE)


@pytest.mark.slow
def test_processes_do_not_change_numbers(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("os.cpu_count", lambda: 2)
    output: list[str] = []
    wanted = ["gram", "rope-relative", "pe-dot"]
    shared = processes.run(wanted, BUDGET, tmp_path / "shared", lambda id, result: output.append(id))
    alone = runner.run(wanted, BUDGET, tmp_path / "alone")
    assert sorted(output) == sorted(wanted)
    assert [result.id for result in shared] == [result.id for result in alone] == [id for id in CLAIMS if id in wanted]
    for one, other in zip(shared, alone, strict=True):
        assert one.as_dict()["numbers"] == other.as_dict()["numbers"]
        assert (tmp_path / "shared" / one.id / "result.json").is_file()


def wait_in_worker(ids: list[str], budget: Budget, out: Path) -> None:
    os.write(int(out.name), b"x")
    time.sleep(20)
    os._exit(1)  # a worker that its pool has lost would wait forever


def test_workers_end_with_the_process_that_started_them(monkeypatch: pytest.MonkeyPatch) -> None:
    """A pipe has ended when no process can write to it."""
    fork = multiprocessing.get_context("fork")  # fast, unlike spawn
    monkeypatch.setattr("os.cpu_count", lambda: 2)
    monkeypatch.setattr(multiprocessing, "get_context", lambda _: fork)
    monkeypatch.setattr(runner, "run", wait_in_worker)
    monkeypatch.setattr(runner, "expected_seconds", lambda *_: 1.0)
    heard, write = os.pipe()
    main = fork.Process(target=processes.run, args=(["skip", "moe"], BUDGET, Path(str(write))))
    main.start()
    os.close(write)
    assert b"".join(os.read(heard, 1) for _ in range(2)) == b"xx", "both workers run"
    main.terminate()
    ended, _, _ = select.select([heard], [], [], 10)
    assert ended
    assert os.read(heard, 1) == b""
    os.close(heard)


def test_groups_contain_every_claim_once() -> None:
    groups = processes.group_claims(CLAIMS)
    assert sorted(id for group in groups for id in group) == sorted(CLAIMS)
    assert list(SAME_TRANSLATOR) == [id for id in CLAIMS if id in SAME_TRANSLATOR] in groups


@pytest.mark.slow
def test_short_run_of_many_claims(ask: Ask, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Each gets a verdict, numbers and an article on the page, with far fewer steps than in a quick run."""
    some = [id for id in [*CLAIMS][::6] if id not in ("covariate", "dropout")]  # the longest; `leak` is trained, too
    monkeypatch.setattr("os.cpu_count", lambda: 1)
    monkeypatch.setattr(Budget, "steps", lambda self, full, minimum=1: min(minimum, 8) if minimum < 500 else minimum)
    ended = ask("run", *some, "--quick", "--json")
    assert ended.code == 0, ended.err
    output = json.loads(ended.out)
    assert [result["id"] for result in output["results"]] == some
    assert output["verdicts"][runner.FAILED] == 0
    judged = {result["id"] for result in output["results"] if result["verdict"] != NOT_JUDGED}
    assert judged == {*TRAINING_INDEPENDENT} & {*some}
    html = (tmp_path / "runs/lab-quick/report.html").read_text("utf-8")
    for id in some:
        assert f'href="#{id}"' in html
        assert f'id="{id}"' in html
        result, figure = runner.read_result(tmp_path / "runs/lab-quick", id)
        assert result["numbers"]
        assert figure is not None or result["claim"]["rule"]
