"""What ``experiments.cost`` prints, against arithmetic by hand and against models that exist."""

import functools
import json
from pathlib import Path
from typing import Any

import hydra
import pytest
import torch
from hydra.core.global_hydra import GlobalHydra
from hydra.core.hydra_config import HydraConfig
from omegaconf import OmegaConf

from archbench.architectures.backbone import Backbone
from archbench.experiments.config import CONF
from archbench.experiments.config.structured import component
from archbench.experiments.cost.__main__ import price
from archbench.experiments.cost.attention_variants import variants
from archbench.experiments.cost.model_cost import longest
from archbench.experiments.cost.tables import size
from archbench.experiments.runtime.console import count
from archbench.experiments.runtime.errors import ConfigError
from tests.backbones import CLASSES, class_of
from tests.experiments import commands

KIB, MIB, GIB = 2**10, 2**20, 2**30


def compose(*words: str) -> Any:
    GlobalHydra.instance().clear()
    with hydra.initialize_config_dir(str(CONF), version_base="1.3"):
        cfg = hydra.compose("cost", overrides=list(words), return_hydra_config=True)
    HydraConfig.instance().set_config(cfg)
    return OmegaConf.masked_copy(cfg, [str(key) for key in cfg if key != "hydra"])


@functools.cache
def priced(*words: str) -> dict[str, Any]:
    return price(compose(*words)).tree()


def states(report: dict[str, Any]) -> dict[str, dict[str, Any]]:
    """The rows of the cache by kind: multi-head, grouped-query, multi-query, latent."""
    return {row["variant"].split(",")[0]: row for row in report["states"]}


def test_the_cache_of_80_layers_of_8192() -> None:
    """All heads kept: 2.5 MiB for each token and 10 GiB at 4096 of them; with 8 of 64 heads, an eighth."""
    rows = states(priced("backbone=llama2_70b", "sequence_length=4096", "batch_size=1", "precision=fp16"))
    assert rows["multi-head"]["bytes_per_token"] == 2.5 * MIB == 2 * 80 * 8192 * 2
    assert rows["multi-head"]["bytes"] == 10 * GIB
    assert rows["grouped-query"]["bytes"] == 10 * GIB / 8
    assert rows["multi-query"]["bytes"] == 10 * GIB / 64
    assert rows["latent"]["bytes_per_token"] == 80 * (512 + 64) * 2
    assert [name for name, row in rows.items() if row["own"]] == ["grouped-query"]


def test_variants_have_the_weights_of_their_own_projections() -> None:
    found = {name: row["parameters"] for name, row in states(priced("backbone=llama2_70b")).items()}
    own, head = 68_976_648_192, 2 * 80 * 8192 * 128  # keys and values of one head in all layers
    assert found["grouped-query"] == own
    assert found["multi-head"] == own + 56 * head
    assert found["multi-query"] == own - 7 * head


def test_parts_of_32_layers_of_4096() -> None:
    parts = priced("backbone=llama2_7b", "batch_size=1", "sequence_length=4096")["parameters"]["by_part"]
    assert parts["attention"]["total"] == 32 * 4 * 4096**2 == 2_147_483_648
    assert parts["feed-forward"]["total"] == 32 * 3 * 4096 * 11008 == 4_328_521_728
    assert parts["embedding"]["total"] == parts["head"]["total"] == 32000 * 4096
    assert parts["norms"]["total"] == 65 * 4096
    assert "other" not in parts


@pytest.mark.parametrize(("batch", "length"), [(1, 4096), (3, 1000)])
def test_flops_of_llama2_7b_by_hand(batch: int, length: int) -> None:
    flops = priced("backbone=llama2_7b", f"batch_size={batch}", f"sequence_length={length}")["flops"]
    weights = 32 * (4 * 4096**2 + 3 * 4096 * 11008) + 32000 * 4096
    pairs = length * (length + 1) // 2
    assert flops["forward"]["linear"] == 2 * weights * length
    assert flops["forward"]["attention"] == 32 * pairs * 4 * 4096
    forward = 2 * weights * length + 32 * pairs * 4 * 4096
    assert flops["forward"]["total"] == forward
    assert flops["training_step"]["total"] == 3 * batch * forward
    assert flops["decoding_one_token"]["total"] == 2 * weights + 32 * (length + 1) * 4 * 4096


def test_deepseek_v3_by_hand() -> None:
    report = priced("backbone=deepseek_v3", "sequence_length=1024", "batch_size=2", "precision=fp32")
    assert report["parameters"]["by_part"]["feed-forward"]["active"] == (
        3 * 3 * 7168 * 18432 + 58 * (9 * 3 * 7168 * 2048 + 256 * 7168)  # dense; experts and router
    )
    rows = states(report)
    assert rows["latent"]["own"]
    assert rows["latent"]["bytes"] == 2 * 1024 * 61 * (512 + 64) * 4
    assert rows["multi-head"]["bytes"] == 2 * 1024 * 61 * 2 * 128 * 128 * 4
    absorbed = 2 * 1025 * 128 * (512 + 64 + 512)
    assert report["flops"]["decoding_one_token"]["attention"] == 61 * absorbed


def test_memory_of_weights_and_of_training() -> None:
    report = priced("backbone=gpt2")
    n = 124_439_808
    assert report["weight_bytes"] == {"fp32": 4 * n, "bf16": 2 * n, "int8": n, "int4": n // 2}
    assert report["training_bytes"] == 16 * n
    assert report["parameters"]["by_part"]["head"]["total"] == 0


def test_the_longest_context_is_the_memory_beside_the_weights() -> None:
    report = priced("backbone=llama3_8b", "batch_size=5", "memory_gib=40", "precision=bf16")
    n, token = 8_030_261_248, 32 * 2 * 8 * 128 * 2
    found = states(report)["grouped-query"]["longest_context"]
    room = {"bf16": 40 * GIB - 2 * n, "int8": 40 * GIB - n, "int4": 40 * GIB - n / 2}
    assert found == {name: room[name] // (5 * token) for name in room}


def test_windows_end_the_growth_of_the_cache() -> None:
    rows = states(priced("backbone=mistral_7b", "sequence_length=32768", "memory_gib=40"))
    window = 32 * 4096 * (2 * 8 * 128 * 2 + 4)  # and the position of each slot
    assert rows["grouped-query"]["bytes"] == window
    assert rows["grouped-query"]["bytes_per_token"] == window / 32768
    assert rows["grouped-query"]["longest_context"]["bf16"] is None
    assert rows["latent"]["longest_context"]["bf16"] > 0  # latents have no window here


def test_nothing_fits_where_the_weights_do_not() -> None:
    assert states(priced("backbone=llama2_70b"))["grouped-query"]["longest_context"]["bf16"] == 0


def test_a_position_table_limits_the_context() -> None:
    report = priced("backbone=gpt2")
    assert report["sequence_length"] == 1024
    assert {n for row in report["states"] for n in row["longest_context"].values()} == {1024}


@pytest.mark.parametrize("memory", [0.5, 1, 99, 100, 101, 10**9 + 7])
def test_longest_is_the_last_that_fits(memory: float) -> None:
    def steps(length: int) -> int:
        return 10 * -(-length // 7)

    found = longest(steps, memory, None)
    assert found is not None
    assert found == 0 or steps(found) <= memory
    assert steps(found + 1) > memory
    assert longest(lambda length: 1, memory, None) == (0 if memory < 1 else None)
    assert longest(lambda length: 0, memory, 12) == 12


@pytest.mark.parametrize(
    ("name", "kinds"),
    [
        ("decoder", ["multi-head", "grouped-query", "multi-query", "latent"]),
        ("encoder_decoder", ["multi-head", "grouped-query", "multi-query"]),
        ("moe", ["multi-head", "grouped-query", "multi-query", "latent"]),
        ("mamba", ["its own"]),
        ("s4", ["its own"]),
    ],
)
def test_states_are_those_of_real_models(name: str, kinds: list[str]) -> None:
    words = (f"backbone={name}", "sequence_length=24", "batch_size=3", "precision=fp32", "vocab_size=50")
    report = priced(*words)
    assert [row["variant"].split(",")[0] for row in report["states"]] == kinds
    assert sum(row["own"] for row in report["states"]) == 1
    tree = {"backbone": {"_target_": compose(*words).backbone._target_, **report["config"]}}
    cls, config = component(tree, "backbone", Backbone)  # type: ignore[type-abstract]
    for row, (_, variant) in zip(report["states"], variants(config), strict=True):
        model = cls(variant, vocab_size=50, max_length=24)
        source_BS = torch.zeros(3, 24, dtype=torch.long) if report["source_length"] else None
        state = model.start(3, 24, source_BS=source_BS)
        model.step(torch.zeros(3, 24, dtype=torch.long), state)
        assert row["bytes"] == state.num_bytes()
        assert row["parameters"] == sum(p.numel() for p in model.parameters())


@pytest.mark.parametrize("name", CLASSES)
def test_every_class_has_a_price(name: str) -> None:
    words = [f"backbone={name}", "scale=micro", "sequence_length=300", "vocab_size=70"]
    able = class_of(name).capabilities
    reads = able.encoder_decoder
    if reads:
        words.append("source_length=900")
    report = priced(*words)
    parts = report["parameters"]["by_part"]
    assert sum(row["total"] for row in parts.values()) == report["parameters"]["total"]
    assert sum(row["active"] for row in parts.values()) == report["parameters"]["active"]
    body = report["parameters"]["total"] - parts["embedding"]["total"] - parts["head"]["total"]
    assert abs(body / 3_000_000 - 1) <= 0.01  # scale=micro
    assert report["vocab_size"] == 70
    assert report["flops"]["training_step"]["total"] == 3 * report["flops"]["forward"]["total"]
    assert bool(report["states"]) == ("decoding_one_token" in report["flops"]) == able.decodes
    assert ("reading_the_source" in report["flops"]) == reads


def test_the_vocabulary_is_the_presets_or_gpt2s_or_yours() -> None:
    assert priced("backbone=bert_base")["vocab_size"] == 30522
    assert priced("backbone=decoder")["vocab_size"] == 50257
    larger = priced("backbone=bert_base", "vocab_size=40000")
    assert larger["parameters"]["total"] == 109_514_298 + (40000 - 30522) * (768 + 1)


@pytest.mark.parametrize(
    ("words", "part"),
    [
        (("precision=bf1",), "precision='bf1'; did you mean 'bf16'?"),
        (("batch_size=0",), "batch_size=0 must be positive"),
        (("backbone=gpt2", "sequence_length=1025"), "sequence_length=1025: the model has 1024 positions"),
        (("backbone=mamba", "source_length=9"), "source_length=9: Mamba reads no source"),
        (("scale=given",), "backbone.d_model and scale.targets are both null"),
        (("backbone=llama2_7b", "backbone.d_model=4097"), "d_model=4097 must be a positive multiple of 64"),
        (("backbone=bert_base", "backbone.tie_embeddings=maybe"), "backbone.tie_embeddings"),
        (("output=/nowhere/at/all.json",), "there is no folder /nowhere/at"),
    ],
)
def test_mistakes_are_named(words: tuple[str, ...], part: str) -> None:
    with pytest.raises(ConfigError) as caught:
        priced(*words)
    assert part in str(caught.value)


@pytest.mark.parametrize(
    ("bytes_", "text"),
    [(0, "0 B"), (1023, "1023 B"), (2.5 * MIB, "2.5 MiB"), (320 * KIB, "320 KiB"), (3e15, "2728 TiB")],
)
def test_sizes_in_words(bytes_: float, text: str) -> None:
    assert size(bytes_) == text


def test_the_command_prints_tables_and_writes_the_numbers(tmp_path: Path) -> None:
    words = ("backbone=llama2_70b", "sequence_length=4096", "batch_size=1", "precision=bf16")
    ended = commands.run("cost", *words, f"output={tmp_path}/cost.json")
    assert ended.returncode == 0, ended.stderr
    report = json.loads((tmp_path / "cost.json").read_text())
    assert report == json.loads(json.dumps(priced(*words)))
    lines = [" ".join(line.split()) for line in ended.stdout.splitlines()]
    assert "total 68,976,648,192 100.0% 68,976,648,192" in lines
    assert any(line.startswith("multi-head, 64 of 64 78.4G 2.5 MiB 10 GiB") for line in lines)
    assert any(line.startswith("grouped-query, 8 of 64 * 69G 320 KiB 1.25 GiB") for line in lines)
    assert any("int4 32.12 GiB" in line for line in lines)
    assert any(count(report["flops"]["decoding_one_token"]["total"]) in line for line in lines)


def test_an_encoder_is_said_to_keep_no_state() -> None:
    ended = commands.run("cost", "backbone=bert_base")
    assert ended.returncode == 0, ended.stderr
    assert "109,514,298" in ended.stdout
    assert "Keeps no decoding state" in ended.stdout


def test_a_bad_name_ends_with_one_line() -> None:
    ended = commands.run("cost", "backbone=llama2_70")
    assert ended.returncode == 2
    assert ended.stderr.splitlines() == [
        "error: backbone=llama2_70: there is no conf/backbone/llama2_70.yaml; did you mean 'llama2_70b'?"
    ]
    assert ended.stdout == ""
