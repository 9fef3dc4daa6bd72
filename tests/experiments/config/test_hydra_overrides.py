"""A mistake on the command line is answered with what was probably meant, or nothing; paths are quoted."""

import shlex
from pathlib import Path

import hydra
import pytest
from hydra.core.global_hydra import GlobalHydra
from hydra.core.override_parser.overrides_parser import OverridesParser
from hydra.errors import HydraException

import archbench.experiments.config.schema  # noqa: F401
from archbench.analysis.compare import CompareConfig
from archbench.experiments.check import CheckConfig
from archbench.experiments.cli import MODULES
from archbench.experiments.config import CONF
from archbench.experiments.config.hydra_overrides import explain, no_option, path_words, refuse_other_words_of
from archbench.experiments.config.options import typed_words
from archbench.experiments.runtime.errors import ConfigError, nearest
from archbench.experiments.runtime.synonyms import SYNONYMS
from archbench.slurm.status import StatusConfig
from tests.experiments import commands

OPTIONS = {
    # letter case and punctuation
    "backbone=Mamba": "mamba", "backbone=MAMBA2": "mamba2", "backbone=Decoder": "decoder",
    "backbone=GPT2": "gpt2", "backbone=encoder-decoder": "encoder_decoder",
    "backbone=masked-diffusion": "masked_diffusion", "backbone=s4-dplr": "s4_dplr",
    "objective=causal-lm": "causal_lm", "objective=CausalLM": "causal_lm", "objective=maskedlm": "masked_lm",
    "task=Recall": "recall", "task=wikitext2": "wikitext_2", "task=wikitext-103": "wikitext_103",
    "task=pathx": "path_x", "task=fineweb-edu": "fineweb_edu", "optimizer=AdamW": "adamw",
    "optimizer=SGD": "sgd", "scale=125M": "125m", "scale=1.3b": "1_3b", "device=CPU": "cpu",
    "device=H100": "h100", "parallel=FSDP": "fsdp", "study=Compare": "compare",
    "tracking=wandb-offline": "wandb_offline", "schedule=WSD": "wsd",
    # synonyms
    "backbone=transformer": "decoder", "backbone=ssm": "mamba", "backbone=mixture_of_experts": "moe",
    "backbone=linear_attention": "gla", "backbone=seq2seq": "encoder_decoder", "objective=mlm": "masked_lm",
    "objective=lm": "causal_lm", "objective=autoregressive": "causal_lm",
    "objective=mdlm": "masked_diffusion", "task=mqar": "recall", "task=copy": "copying", "task=lm": "text",
    "task=niah": "needle", "task=owt": "openwebtext", "optimizer=adam": "adamw", "optimizer=Adam": "adamw",
    "device=gpu": "cuda", "device=GPU": "cuda", "parallel=dp": "ddp", "parallel=tp": "tensor",
    "parallel=zero": "fsdp", "parallel=no": "none", "tracking=none": "off", "tracking=disabled": "off",
    "tracking=tb": "tensorboard", "tracking=offline": "wandb_offline", "schedule=warmup_stable_decay": "wsd",
    "scale=tiny": "nano", "budget=debug": "smoke",
    # beginnings and words of a name
    "backbone=gpt": "gpt2", "backbone=bert": "bert_base", "backbone=t5": "t5_base",
    "backbone=dplr": "s4_dplr", "backbone=mambaa": "mamba", "backbone=decoder_only": "decoder",
    "task=cifar": "cifar10", "task=pathfind": "pathfinder", "objective=span": "span_corruption",
    "schedule=cos": "cosine", "optimizer=adamw_torch": "adamw", "device=cuda:0": "cuda",
    "parallel=fsdp2": "fsdp", "study=125m": "recipe/125m", "study=shakespeare": "reproduce/shakespeare",
    "budget=chin": "chinchilla",
    # letters
    "backbone=mambo": "mamba", "backbone=deocder": "decoder", "backbone=deltnet": "deltanet",
    "backbone=rwkv": "rwkv7",
    "task=recal": "recall", "task=inducton": "induction", "task=listop": "listops",
    "objective=casual_lm": "causal_lm", "optimizer=adawm": "adamw", "scale=mirco": "micro",
    "scale=smal": "small", "budget=smok": "smoke", "tracking=wanbd": "wandb", "study=compar": "compare",
    "study=varaints": "variants", "schedule=cosin": "cosine",
    # nothing is near
    "backbone=lstm": None, "backbone=hyena": None, "backbone=resnet": None,
    "backbone=nosuch": None, "task=imagenet": None, "optimizer=lion": None, "optimizer=rmsprop": None,
    "device=tpu": None, "device=mps": None, "objective=contrastive": None, "scale=huge": None,
    "study=xyz": None, "parallel=pipeline": None, "tracking=mlflow": None,
}  # fmt: skip
"""For each word that names no YAML file, the one that is suggested; None if the options are listed."""

KEYS = {
    "lr=1": "optimizer.learning_rate", "learning-rate=1": "optimizer.learning_rate",
    "LR=1": "optimizer.learning_rate", "batchsize=4": "budget.batch_size", "epochs=3": "budget.tokens",
    "model=mamba": "backbone", "dataset=text": "task", "seq_len=3": "task.sequence_length",
    "sequence_lenght=3": "task.sequence_length", "precision=bf16": "device.precision",
    "num_layers=3": "scale.depth", "n_heads=4": "backbone.attention.num_heads",
    "optimizer.lr=1": "optimizer.learning_rate", "optimizer.weight_deacy=1": "weight_decay",
    "budget.token=3": "tokens", "device.thread=3": "threads", "scale.Depth=3": "scale.depth",
    "sede=1": "seed", "random_seed=1": "seed", "output_dir=x": "runs", "backbones=mamba": "backbone",
    "optimizer.name=adamw": "optimizer", "backbone.type=mamba": "backbone", "seeds=0,1": "seed",
    "dropout=0.1": "backbone.block.dropout", "qqq=1": None, "qqq=1,2": None,
}  # fmt: skip
"""For each word whose key there is not, the key that is suggested."""


@pytest.mark.parametrize("word", OPTIONS)
def test_the_yaml_file_that_was_meant_is_suggested(word: str) -> None:
    said, meant = _refusal(word), OPTIONS[word]
    assert said.startswith(f"{word}: ")
    assert ("; options: " in said) if meant is None else (f"did you mean '{meant}'?" in said)


@pytest.mark.parametrize("word", KEYS)
def test_the_key_that_was_meant_is_suggested(word: str) -> None:
    said, meant = _refusal(word), KEYS[word]
    assert ("did you mean" not in said) if meant is None else (f"did you mean '{meant}'?" in said)


@pytest.mark.parametrize(
    ("root", "word", "meant"),
    [
        ("evaluate", "model=x", "run"), ("evaluate", "checkpoint=x", "run"), ("export", "out=x", "to"),
        ("generate", "num_return_sequences=3", "num_samples"), ("generate", "model=x", "run"),
    ],
)  # fmt: skip
def test_the_key_of_another_command_is_suggested(root: str, word: str, meant: str) -> None:
    assert f"did you mean '{meant}'?" in _refusal(word, root)


@pytest.mark.parametrize("word", ["study=mine", "study=compar", "study=m"])
def test_a_study_of_ones_own_is_named_by_another_key(word: str) -> None:
    assert f"study.name={word.partition('=')[2]}" in _refusal(word)


def test_a_value_that_names_no_yaml_file_of_a_group() -> None:
    assert "; options: " in str(no_option(["seed=1", "tracking=7"]))
    assert str(no_option(["tracking=null"])).startswith("tracking=null: ")
    assert no_option(["seed=null", "tracking=off"]) is None


OTHER_WORDS = {
    "seed = 0": "write seed=0,", "seed= 0": "write seed=0,", "seed =0": "write seed=0,",
    "task=text backbone = mamba": "write backbone=mamba,", "backbone=mamba seed =": "write seed=,",
    "--seed 0": "write seed=0", "--seed=0": "write seed=0", "--study compare": "write study=compare",
    "--lr 0.1": "write optimizer.learning_rate=0.1", "--learning-rate=1": "write optimizer.learning_rate=1",
    "-seed 3": "write seed=3", "--batch_size 4": "write budget.batch_size=4",
    "--model mamba": "write backbone=mamba", "--optimizer.learning_rate 1": "write optimizer.learning_rate=1",
    "mamba": "did you mean backbone=mamba?", "compare": "did you mean study=compare?",
    "task=text adamw": "did you mean optimizer=adamw?", "help": "did you mean --help?",
    "--mutlirun seed=0": "did you mean --multirun?", "--qqq": "no such option", "qqq": "written KEY=VALUE",
}  # fmt: skip
"""For each command line with a word that is neither KEY=VALUE nor an option, what is said about it."""


@pytest.mark.parametrize("line", OTHER_WORDS)
def test_a_word_that_is_no_setting_is_answered_with_what_to_write(line: str) -> None:
    with pytest.raises(ConfigError) as refused:
        refuse_other_words_of(line.split(), "config")
    assert OTHER_WORDS[line] in str(refused.value)


@pytest.mark.parametrize(
    "line",
    [
        "-m seed=0,1 -c job", "--multirun task=text --cfg job --resolve", "task.dataset_config= seed=0",
        "~device", "--info defaults-tree seed=0", "-cd folder study=mine", "prompt='a = b'", "a/b@c=d",
    ],
)  # fmt: skip
def test_settings_and_options_of_hydra_are_read(line: str) -> None:
    refuse_other_words_of(shlex.split(line), "config")


@pytest.mark.parametrize(
    ("line", "said"),
    [
        ("mine", "did you mean study=mine?"), ("--study mine", "write study=mine"),
        ("--study=mine", "write study=mine"), ("study = mine", "write study=mine,"),
        ("stduy=mine", "did you mean 'study="), ("Study=mine", "did you mean 'study="),
        ("name=mine", "did you mean 'study"),
        ("study=mine other", "'other': settings are written KEY=VALUE"), ("--runs x", "write runs=x"),
    ],
)  # fmt: skip
def test_commands_with_few_keys_answer_alike(line: str, said: str) -> None:
    for options in (CompareConfig, CheckConfig):
        with pytest.raises(ConfigError) as refused:
            typed_words(options, line.split())
        assert said.rstrip("=") in str(refused.value)


@pytest.mark.parametrize(
    ("word", "command"),
    [
        ("Train", "train"), ("traind", "train"), ("run", "train"), ("eval", "evaluate"), ("test", "evaluate"),
        ("sample", "generate"), ("help", "--help"), ("tokenize", "prepare"), ("bench", "benchmark"),
        ("results", "compare"), ("report", "compare"), ("gridsearch", "rates"),
        ("resume", "train"), ("sweep", "train"), ("qqq", None),
    ],
)  # fmt: skip
def test_a_command_is_suggested(word: str, command: str | None) -> None:
    said = nearest(word, [*MODULES, "--help", "--version"])
    assert said.startswith("; options: ") if command is None else said == f"; did you mean '{command}'?"


def test_no_synonym_is_the_name_of_another_option_of_its_group() -> None:
    """Then it would be that option, and no mistake; two options of a group do not share one either."""
    for group in CONF.iterdir():
        options = {path.stem for path in group.glob("*.yaml")} if group.is_dir() else set()
        others = [other for option in options for other in SYNONYMS.get(option, ())]
        assert not options & set(others), group
        assert len(others) == len(set(others)), group


def _refusal(word: str, root: str = "config") -> str:
    GlobalHydra.instance().clear()
    with hydra.initialize_config_dir(str(CONF), version_base="1.3"), pytest.raises(HydraException) as refused:
        hydra.compose(root, overrides=[word])
    GlobalHydra.instance().clear()
    return explain(refused.value, root)


NAMES = ("my runs (1) [a]", "ünïcode/x-1a2b3c4d/s0", "it's", "[x]", "a;b", "plain", "100%", 'say "hi"')


@pytest.mark.parametrize("name", NAMES)
def test_a_path_needs_no_quotes(name: str) -> None:
    for key in ("runs", "run", "to", "init_from", "task.tokenizer.path"):
        [word] = path_words([f"{key}={name}"])
        assert OverridesParser.create().parse_override(word).value() == name
    words = ["study=x", f"runs={name}"]
    assert typed_words(StatusConfig, words).runs == name


def test_a_path_may_be_quoted() -> None:
    word = 'runs="my runs (1) [a]"'
    assert path_words([word]) == [word]
    assert typed_words(StatusConfig, ["study=x", word]).runs == "my runs (1) [a]"


def test_lists_sweeps_and_references_stay() -> None:
    words = ["init_from=a,b", "task.paths=[a.txt,b.txt]", "study.tuned=${runs}/x.yaml", "runs=''", "seed=(1"]
    assert path_words(words) == words
    assert path_words(["task.paths=[ü.txt, b.txt]"]) == ["task.paths=['ü.txt','b.txt']"]


def test_a_leading_tilde_is_the_home(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOME", "/home/me")
    assert path_words(["runs=~/r"]) == ["runs=/home/me/r"]
    assert typed_words(StatusConfig, ["study=x", "runs=~/r"]).runs == "/home/me/r"
    assert path_words(["task.paths=[~/a.txt]"]) == ["task.paths=['/home/me/a.txt']"]
    with pytest.raises(ConfigError, match="HOME"):
        path_words(['runs="~/r"'])
    with pytest.raises(ConfigError, match="HOME"):
        typed_words(StatusConfig, ["study=x", 'runs="~/r"'])


def test_a_command_takes_them(tmp_path: Path) -> None:
    ended = commands.run("train", "--cfg", "job", f"runs={tmp_path}/ünïcode (1)")
    assert (ended.returncode, ended.stderr) == (0, "")
    assert f"runs: {tmp_path}/ünïcode (1)" in " ".join(ended.stdout.split())  # YAML folds a long line
