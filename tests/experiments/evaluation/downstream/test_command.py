"""Tasks of the lm-evaluation-harness on tiny runs that were really trained, without a network."""

import dataclasses
import json
import math
import sys
from pathlib import Path
from typing import Any

import pytest
import torch
import yaml
from lm_eval.api.instance import Instance

from archbench.architectures.backbones.encoder_decoder import EncoderDecoder, EncoderDecoderConfig
from archbench.experiments.config.schema import DeviceConfig
from archbench.experiments.data.tokenizers.tokenizer import ByteTokenizer, TokenizerConfig
from archbench.experiments.evaluation.downstream.__main__ import (
    DownstreamConfig,
    check_installed,
    downstream,
    evaluate,
)
from archbench.experiments.evaluation.downstream.answer_likelihood import (
    AnswerScore,
    AnswerScorer,
    ScoringRequest,
)
from archbench.experiments.evaluation.downstream.lm_eval_model import HarnessModel
from archbench.experiments.evaluation.downstream.results import Row, below
from archbench.experiments.generate import generate
from archbench.experiments.objectives.language_modelling.span_corruption import (
    SpanCorruption,
    SpanCorruptionConfig,
)
from archbench.experiments.run.load_model import LoadedModel, Prompts, UnmaskingOverrides, load_model
from archbench.experiments.runtime.console import Console
from archbench.experiments.runtime.device import torch_device
from archbench.experiments.runtime.errors import ConfigError, DataError
from tests.experiments import commands

CPU = DeviceConfig(name="cpu")
CLASSES = {"decoder": "exact", "mamba": "exact", "masked_diffusion": "bound"}
QUIZ = [
    (f"{a} and {b} make", [str(a + b), str(a + b + 1), str(a * 10)], 0) for a in range(2, 6) for b in (3, 4)
]


SIDE_BY_SIDE = (*commands.SHORT_TEXT, "task.stride=null")
"""Held-out windows without a context, which are texts of their own."""


@pytest.fixture(scope="module")
def runs(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    words = (*SIDE_BY_SIDE, *commands.TINY, f"runs={tmp_path_factory.mktemp('runs')}")
    return {name: commands.train(f"backbone={name}", *words) for name in CLASSES}


@pytest.fixture(scope="module")
def tasks(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder of three local tasks over one file: choices, bits per byte, written answers."""
    folder = tmp_path_factory.mktemp("tasks")
    write_rows(folder / "test.jsonl", [{"q": q, "c": c, "a": a} for q, c, a in QUIZ[2:]])
    write_rows(folder / "train.jsonl", [{"q": f"a solved example: {q}", "c": c, "a": a} for q, c, a in QUIZ])
    write_task(folder, "choice", output_type="multiple_choice", doc_to_choice="{{c}}", doc_to_target="{{a}}")
    bits = {"metric": "bits_per_byte", "aggregation": "bits_per_byte", "higher_is_better": False}
    whole = {"doc_to_text": "", "doc_to_target": "{{q}} {{c[a]}}"}
    write_task(
        folder, "bits", output_type="loglikelihood_rolling", fewshot_split=None, metric_list=[bits], **whole
    )
    match = {"metric": "exact_match", "aggregation": "mean", "higher_is_better": True}
    settings = {"until": ["\n"], "max_gen_toks": 4}
    write_task(
        folder, "written", output_type="generate_until", generation_kwargs=settings, metric_list=[match]
    )
    return folder


def write_rows(path: Path, rows: list[dict[str, Any]]) -> None:
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))


def write_task(folder: Path, name: str, **changes: Any) -> None:
    accuracy = {"metric": "acc", "aggregation": "mean", "higher_is_better": True}
    files = {split: str(folder / f"{split}.jsonl") for split in ("train", "test")}
    tree = {
        "task": name,
        "dataset_path": "json",
        "dataset_kwargs": {"data_files": files, "cache_dir": str(folder / "cache")},
        "test_split": "test",
        "fewshot_split": "train",
        "doc_to_text": "{{q}}",
        "doc_to_target": "{{c[a]}}",
        "metric_list": [accuracy],
        "metadata": {"version": 2.5},
    }
    (folder / f"{name}.yaml").write_text(yaml.safe_dump({**tree, **changes}))


def settings(run: Path, tasks: Path, *names: str, **changes: Any) -> DownstreamConfig:
    return DownstreamConfig(run=str(run), tasks=list(names), include=str(tasks), device=CPU, **changes)


def rows_of(run: Path, tasks: Path, *names: str, **changes: Any) -> list[Row]:
    return evaluate(load_model(run, torch_device("cpu")), settings(run, tasks, *names, **changes))


@pytest.mark.parametrize("name", CLASSES)
def test_the_three_kinds_of_tasks_with_and_without_solved_examples(
    runs: dict[str, Path], tasks: Path, name: str, capsys: pytest.CaptureFixture[str]
) -> None:
    words = [
        f"run={runs[name]}",
        f"include={tasks}",
        "tasks=[choice,bits,written]",
        "device=cpu",
        "samples=4",
    ]
    for shots in (0, 2):
        downstream(commands.compose(*words, f"shots={shots}", root="downstream"))
    out = capsys.readouterr().out
    assert "acc ↑" in out
    assert "bits_per_byte ↓" in out
    assert CLASSES[name] in out
    found = [json.loads(line) for line in (runs[name] / "downstream.jsonl").read_text().splitlines()]
    assert [(row["task"], row["shots"], row["shots_from"]) for row in found] == [
        ("choice", 0, None),
        ("bits", 0, None),
        ("written", 0, None),
        ("choice", 2, "train"),
        ("bits", 0, None),
        ("written", 2, "train"),
    ]
    for row in found:
        assert (row["items"], row["task_version"], row["harness"]) == (6, "2.5", "0.4.13")
        assert row["likelihood"] == (None if row["task"] == "written" else CLASSES[name])
        assert row["standard_error"] >= 0
        drawn = name == "masked_diffusion" and row["task"] != "written"
        assert row["samples"] == (4 if drawn else 1)
        assert (row["nats_error"] is not None) == drawn
        assert row["requests"] == {"choice": 18, "bits": 6, "written": 6}[row["task"]]
    zero, bits, _, two, again, _ = found
    assert zero["truncated"] == 0
    assert two["truncated"] == two["requests"]  # two solved examples do not fit into 64 bytes
    assert zero["prompts"] != two["prompts"]
    assert bits == again  # nothing is drawn anew
    shares = [row["value"] for row in found if row["task"] == "choice"]
    assert all(0 <= share <= 1 for share in shares)
    assert 4 < bits["value"] < 9  # eight bits are those of a model that knows nothing


def test_solved_examples_are_of_the_training_split_and_follow_from_the_seed(
    runs: dict[str, Path], tasks: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    prompts: list[list[str]] = []
    answer = HarnessModel.loglikelihood

    def record(self: HarnessModel, requests: list[Instance]) -> list[tuple[float, bool]]:
        prompts.append([request.args[0] for request in requests])
        return answer(self, requests)

    monkeypatch.setattr(HarnessModel, "loglikelihood", record)
    for seed in (1, 1, 2):
        rows_of(runs["decoder"], tasks, "choice", shots=2, seed=seed)
    assert prompts[0] == prompts[1] != prompts[2]
    for prompt in prompts[0]:
        solved = prompt.split("\n\n")
        assert len(solved) == 3
        assert all(
            example.startswith("a solved example: ") and example[-1].isdigit() for example in solved[:2]
        )
        assert solved[2].endswith("make")


def test_whole_texts_cost_what_evaluation_says(runs: dict[str, Path], tasks: Path, tmp_path: Path) -> None:
    """The windows of the test split as texts of their own."""
    task = commands.task(*SIDE_BY_SIDE)
    windows = task.batch("test", 0, 0, 8).tokens_BT.tolist()
    texts = [task.tokenizer.decode(window) for window in windows]
    assert [task.tokenizer.encode(text) for text in texts] == windows
    write_rows(tmp_path / "test.jsonl", [{"text": text} for text in texts])
    write_rows(tmp_path / "train.jsonl", [{"text": ""}])
    bits = {"metric": "bits_per_byte", "aggregation": "bits_per_byte", "higher_is_better": False}
    kind = "loglikelihood_rolling"
    write_task(
        tmp_path, "own", output_type=kind, doc_to_text="", doc_to_target="{{text}}", metric_list=[bits]
    )
    for name in ("decoder", "mamba"):
        (row,) = rows_of(runs[name], tmp_path, "own")
        expected = commands.result(runs[name])["metrics"][0]
        assert row.value == pytest.approx(expected["value"], rel=1e-5)
        assert 0 < row.standard_error < 1  # over texts; that of the run is over documents
    (row,) = rows_of(runs["masked_diffusion"], tmp_path, "own", samples=64)
    expected = commands.result(runs["masked_diffusion"])["metrics"][0]  # 8 draws for each window
    draws = math.sqrt(8) * (row.nats_error or 0) * math.sqrt(1 + 64 / 8) / (8 * 64 * math.log(2))
    assert abs(row.value - expected["value"]) < 4 * draws


def test_whole_texts_that_the_tokenizer_loses_are_said(runs: dict[str, Path], tasks: Path) -> None:
    saved = load_model(runs["decoder"], torch_device("cpu"))
    (plain,) = evaluate(saved, settings(runs["decoder"], tasks, "bits"))
    assert plain.lossy == 0
    lowercase = ByteTokenizer(TokenizerConfig(normalization=["lowercase"]), 28)
    changed = dataclasses.replace(saved, task=Prompts(lowercase))
    model = harness(changed)
    texts = [asked("loglikelihood_rolling", text) for text in ("Abc", "abc")]
    model.loglikelihood_rolling(texts)
    assert [model.notes["loglikelihood_rolling", text].lossy for text in ("Abc", "abc")] == [True, False]
    assert any("does not give back 2 of" in line for line in below([dataclasses.replace(plain, lossy=2)]))


def test_a_long_text_is_scored_in_windows_every_token_once(runs: dict[str, Path]) -> None:
    saved = load_model(runs["decoder"], torch_device("cpu"))
    text = "".join(chr(97 + (7 * i * i + i // 3) % 26) for i in range(150))
    tokens, bos = saved.tokenizer.encode(text), saved.task.vocabulary.bos
    expected = 0.0
    for first, begin, end in ((0, 0, 64), (63, 64, 127), (86, 127, 150)):  # given from, scored from, to
        read = torch.tensor([[bos, *tokens[first : end - 1]]])
        p_TV = saved.model(read).logits_BTV[0].detach().double().log_softmax(-1)
        expected += sum(p_TV[place - first, tokens[place]].item() for place in range(begin, end))
    (found,) = harness(saved).loglikelihood_rolling([asked("loglikelihood_rolling", text)])
    assert found == pytest.approx(expected, rel=1e-5)


def test_a_context_is_cut_from_its_left(runs: dict[str, Path]) -> None:
    saved = load_model(runs["decoder"], torch_device("cpu"))
    model = harness(saved)
    tail = "".join(chr(97 + i % 7) for i in range(60))
    requests = [asked("loglikelihood", context, "sum") for context in ("x" * 100 + "y" + tail, "y" + tail)]
    longer, fits = model.loglikelihood(requests)
    assert longer == pytest.approx(fits, rel=1e-6)
    assert [note.truncated for note in model.notes.values()] == [True, False]
    with pytest.raises(DataError, match="have 65 tokens, the model can be given 64"):
        model.loglikelihood([asked("loglikelihood", "a", "x" * 65)])


def asked(method: Any, *arguments: Any) -> Instance:
    return Instance(method, doc={}, arguments=arguments, idx=0, metadata=("task", 0, 1))


def harness(saved: LoadedModel, scorer: Any = None) -> HarnessModel:
    own = AnswerScorer(saved, samples=2, seed=0, batch_size=4, device=CPU)
    return HarnessModel(
        saved, scorer or own, seed=0, batch_size=4, device=CPU, progress=Console("", quiet=True).progress
    )


@dataclasses.dataclass
class Recorder:
    """Keeps what it is asked to score."""

    longest: int = 64
    answers: list[ScoringRequest] = dataclasses.field(default_factory=list)

    def score(self, answers: list[ScoringRequest], on_progress: object) -> list[AnswerScore]:
        self.answers += answers
        return [AnswerScore(nats=1.0, variance=0.0, greedy=False)] * len(answers)


class Pieces:
    """A tokenizer that takes the longest of its pieces; others are single letters."""

    PIECES = ("the", " the", "ab", " ")

    def encode(self, text: str) -> list[int]:
        tokens = []
        while text:
            piece = max((p for p in self.PIECES if text.startswith(p)), key=len, default=text[0])
            tokens.append(1000 + self.PIECES.index(piece) if piece in self.PIECES else ord(piece))
            text = text[len(piece) :]
        return tokens


def test_context_and_continuation_become_tokens_together(runs: dict[str, Path]) -> None:
    saved = load_model(runs["decoder"], torch_device("cpu"))
    saved.task.tokenizer = Pieces()  # type: ignore[assignment]
    recorder = Recorder()
    pairs = [("x ", "the"), ("x", " the"), ("xa", "b"), ("", "the"), ("  ", "x")]
    harness(saved, recorder).loglikelihood([asked("loglikelihood", *pair) for pair in pairs])
    x, the, space = ord("x"), 1000 + 1, 1000 + 3
    assert [(answer.context, answer.tokens) for answer in recorder.answers] == [
        ([x], [the]),  # the space goes with the word
        ([x], [the]),
        ([x], [1000 + 2]),  # a token over the border is the continuation's
        ([], [1000]),
        ([space, space], [x]),
    ]
    with pytest.raises(DataError, match="a continuation of 'x' is empty"):
        harness(saved, recorder).loglikelihood([asked("loglikelihood", "x", "")])


@pytest.mark.parametrize("name", ["decoder", "masked_diffusion"])
def test_texts_are_those_of_greedy_generation(
    runs: dict[str, Path], name: str, capsys: pytest.CaptureFixture[str]
) -> None:
    words = (f"run={runs[name]}", "prompt='The '", "sampling.temperature=0", "max_tokens=12", "device=cpu")
    generate(commands.compose(*words, root="generate"))
    expected = capsys.readouterr().out.removeprefix("The ").removesuffix("\n")
    model = harness(load_model(runs[name], torch_device("cpu")))
    found = model.generate_until(
        [
            asked("generate_until", "The ", {"until": ["§"], "max_gen_toks": 12}),
            asked("generate_until", "The ", {"until": [expected[3:5]], "max_gen_toks": 12}),
            asked("generate_until", "x" * 90 + "The ", {"until": [], "max_gen_toks": 12}),
        ]
    )
    assert found[0] == expected
    assert found[1] == expected[: expected.index(expected[3:5])]
    assert [note.truncated for note in model.notes.values()] == [False, True]
    drawn = {"max_gen_toks": 12, "do_sample": True, "temperature": 1.0, "top_k": 5}
    one, other = model.generate_until([asked("generate_until", "The ", drawn)] * 2)
    assert one != other  # a prompt that is repeated draws anew
    with pytest.raises(DataError, match="up to 64 tokens, and the model is made for 64"):
        model.generate_until([asked("generate_until", "The ", {"max_gen_toks": 64})])
    with pytest.raises(DataError, match=r"generation_kwargs.typical_p of a task is unknown here"):
        model.generate_until([asked("generate_until", "The ", {"max_gen_toks": 4, "typical_p": 0.5})])
    wrong = {"max_gen_toks": 4, "do_sample": True, "top_p": 2.0}
    with pytest.raises(DataError, match=r"top_p=2\.0 must be in"):
        model.generate_until([asked("generate_until", "The ", wrong)])


def test_more_steps_change_what_is_filled_in(runs: dict[str, Path], tasks: Path) -> None:
    (row,) = rows_of(runs["masked_diffusion"], tasks, "written")
    assert row.estimator == "filled in by confidence (low_confidence), 32 steps"
    words = (f"run={runs['masked_diffusion']}", f"include={tasks}", "tasks=[written]", "device=cpu")
    downstream(commands.compose(*words, "filling.method=first_hitting", "filling.steps=4", root="downstream"))
    *_, last = (runs["masked_diffusion"] / "downstream.jsonl").read_text().splitlines()
    assert json.loads(last)["estimator"] == "filled in by first_hitting, 4 steps"


def test_an_encoder_decoder_answers_but_is_not_asked_about_whole_texts(tasks: Path) -> None:
    task = Prompts(ByteTokenizer(TokenizerConfig(), 28))
    model = EncoderDecoder(EncoderDecoderConfig(d_model=16), vocab_size=task.vocabulary.size, max_length=64)
    objective = SpanCorruption(SpanCorruptionConfig(), task)
    saved = LoadedModel(
        model=model,
        objective=objective,
        task=task,
        run=None,
        folder=Path("toy"),
        step=None,
        description="toy",
    )
    choice, written = evaluate(saved, settings(tasks, tasks, "choice", "written"))
    assert (choice.likelihood, written.likelihood) == ("exact", None)
    with pytest.raises(ConfigError, match="tasks: bits needs the likelihood of complete texts"):
        evaluate(saved, settings(tasks, tasks, "bits"))


def test_errors_are_those_of_the_harness_where_it_has_one(runs: dict[str, Path], tasks: Path) -> None:
    from lm_eval import evaluator

    from archbench.experiments.evaluation.downstream.__main__ import load_tasks

    config = settings(runs["decoder"], tasks, "choice")
    (row,) = evaluate(load_model(runs["decoder"], torch_device("cpu")), config)
    model = harness(load_model(runs["decoder"], torch_device("cpu")))
    theirs = evaluator.evaluate(model, load_tasks(config), bootstrap_iters=1)["results"]["choice"]
    assert (row.value, row.standard_error) == (theirs["acc,none"], theirs["acc_stderr,none"])


@pytest.mark.parametrize(
    ("names", "changes", "error", "message"),
    [
        (["chioce"], {}, ConfigError, r"tasks=\[chioce\]: there is no task 'chioce'; did you mean 'choice'"),
        (["leaks"], {"shots": 1}, DataError, "leaks takes its solved examples from its test split"),
        (
            ["choice"],
            {"shots": 2},
            DataError,
            r"choice has only 1 solved examples \(train\): set shots=1 or less",
        ),
        (["code"], {}, ConfigError, "code runs code that models write"),
        (["nowhere"], {}, DataError, r"tasks=\[nowhere\]: FileNotFoundError: .*missing.jsonl"),
        (["broken"], {}, DataError, r"tasks=\[broken\]: UndefinedError"),
        (["choice"], {"include": "no/such/folder"}, ConfigError, "include=no/such/folder: there is no such"),
    ],
)
def test_tasks_that_cannot_be_used_are_refused(
    runs: dict[str, Path],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    names: list[str],
    changes: dict[str, Any],
    error: type[Exception],
    message: str,
) -> None:
    import lm_eval.tasks.manager

    monkeypatch.setattr(lm_eval.tasks.manager, "__file__", str(tmp_path / "manager.py"))  # it has thousands
    write_rows(tmp_path / "test.jsonl", [{"q": q, "c": c, "a": a} for q, c, a in QUIZ])
    write_rows(tmp_path / "train.jsonl", [{"q": "", "c": [], "a": 0}])
    for name, target in (("choice", "train"), ("leaks", None)):
        kind = {"output_type": "multiple_choice", "doc_to_choice": "{{c}}", "doc_to_target": "{{a}}"}
        write_task(tmp_path, name, fewshot_split=target, **kind)
    files = {"test": str(tmp_path / "missing.jsonl")}
    write_task(tmp_path, "nowhere", dataset_kwargs={"data_files": files}, output_type="loglikelihood")
    write_task(tmp_path, "code", output_type="loglikelihood", unsafe_code=True)
    write_task(tmp_path, "broken", doc_to_text="{{q.x.y}}", output_type="loglikelihood")
    with pytest.raises(error, match=message):
        rows_of(runs["decoder"], changes.pop("include", tmp_path), *names, **changes)


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["tasks=[]"], r"tasks=\[\] names no task"),
        (["shots=-1"], "shots=-1 must be 0 or more"),
        (["limit=1"], "limit=1 must be 2 or more"),
        (["samples=1"], "samples=1 must be 2 or more"),
        (["filling.steps=4"], "writes from left to right: leave it out"),
        (["output=/nowhere/at/all.jsonl"], "output=/nowhere/at/all.jsonl: cannot be written"),
    ],
)
def test_what_cannot_be_is_refused(
    runs: dict[str, Path], tasks: Path, words: list[str], message: str
) -> None:
    given = [f"run={runs['decoder']}", f"include={tasks}", "device=cpu", *words]
    named = [] if any(word.startswith("tasks=") for word in words) else ["tasks=[choice]"]
    with pytest.raises(ConfigError, match=message):
        downstream(commands.compose(*given, *named, root="downstream"))


def test_without_the_harness_it_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "lm_eval", None)
    with pytest.raises(ConfigError, match=r"not installed: pip install 'archbench\[eval\]'"):
        check_installed()


def test_the_yaml_lists_all_that_can_be_set() -> None:
    cfg = commands.compose("run=x", "tasks=[y]", root="downstream")
    assert set(cfg) == {f.name for f in dataclasses.fields(DownstreamConfig)}
    assert set(cfg.filling) == {f.name for f in dataclasses.fields(UnmaskingOverrides)}
