"""Hugging Face folders scored by our model of the harness, and by the harness's own."""

from pathlib import Path

import torch
import transformers as hf
from lm_eval import evaluator
from lm_eval.models.huggingface import HFLM

from archbench.experiments.config.schema import DeviceConfig
from archbench.experiments.evaluation.downstream.__main__ import DownstreamConfig, evaluate, load_tasks
from archbench.experiments.evaluation.downstream.answer_likelihood import AnswerScorer
from archbench.experiments.evaluation.downstream.lm_eval_model import HarnessModel
from archbench.experiments.run.load_model import load_model
from archbench.experiments.runtime.console import Console
from tests import ROOT
from tests.architectures.pretrained.folders import EAGER

FAMILIES = ["gpt2", "llama", "mixtral", "jamba", "t5"]
CPU = DeviceConfig(name="cpu")


def both(folder: Path, seq2seq: bool) -> tuple[HarnessModel, HFLM]:
    """Our model of the harness, and theirs."""
    saved = load_model(folder, torch.device("cpu"))
    scorer = AnswerScorer(saved, samples=2, seed=0, batch_size=4, device=CPU)
    ours = HarnessModel(
        saved, scorer, seed=0, batch_size=4, device=CPU, progress=Console("downstream").progress
    )
    kind = hf.AutoModelForSeq2SeqLM if seq2seq else hf.AutoModelForCausalLM
    model = kind.from_pretrained(folder, **EAGER).eval()
    tokenizer = hf.AutoTokenizer.from_pretrained(folder)
    backend = "seq2seq" if seq2seq else "causal"
    longest = saved.model.max_length
    theirs = HFLM(
        pretrained=model, tokenizer=tokenizer, device="cpu", backend=backend, max_length=longest, batch_size=4
    )
    return ours, theirs


def scores(folder: Path) -> dict[tuple[str, str], tuple[float, float]]:
    """Ours and theirs by task and metric, of all tasks in docs/downstream that a model can be asked."""
    seq2seq = bool(hf.AutoConfig.from_pretrained(folder).is_encoder_decoder)
    tasks = ["words_choice", "words_written"] + ["words_bits"] * (not seq2seq)
    include = str(ROOT / "docs" / "downstream")
    config = DownstreamConfig(run=str(folder), include=include, tasks=tasks, shots=2, device=CPU)
    theirs = both(folder, seq2seq)[1]
    results = evaluator.evaluate(theirs, load_tasks(config), bootstrap_iters=0)["results"]
    rows = evaluate(load_model(folder, torch.device("cpu")), config)
    return {
        (row.task, row.metric): (row.value, results[row.task][f"{row.metric},{row.filter}"]) for row in rows
    }
