"""When attention over whole sequences runs in C++, and that a model is the same with it and without."""

import dataclasses

import pytest
import torch

from archbench.architectures import fast_paths
from archbench.architectures.backbones.decoder import Decoder, DecoderConfig
from archbench.architectures.backbones.encoder import Encoder, EncoderConfig
from archbench.architectures.backbones.encoder_decoder import EncoderDecoder, EncoderDecoderConfig
from archbench.architectures.kernels.attention import LONGEST, blockwise
from archbench.architectures.kernels.cpu import build
from archbench.architectures.kernels.cpu.transformer_ops import _Attention
from archbench.architectures.layers.attention.config import AttentionConfig
from archbench.architectures.layers.positions import PositionsConfig

pytestmark = pytest.mark.skipif(bool(build.problem()), reason=build.problem())
HALF = torch.bfloat16


@pytest.fixture(autouse=True)
def chosen():
    torch.manual_seed(0)
    yield
    fast_paths.choose("auto")


@pytest.fixture(params=["avx512", "avx2"])
def table(request, monkeypatch):
    """The table of an instruction set, whatever the processor has."""
    monkeypatch.setattr(build, "instruction_set", lambda: request.param)
    return request.param


def taken(B=2, H=2, T=128, S=None, E=16, dtype=torch.float32, trained=True, **settings) -> bool:
    q, k, v = (torch.randn(B, H, n, E, dtype=dtype, requires_grad=trained) for n in (T, S or T, S or T))
    y = blockwise(q, k, v, scale=1.0, **settings)
    assert y is None or y.dtype == dtype
    return y is not None


@pytest.mark.parametrize(
    ("settings", "expected"),
    [
        ({"causal": True}, True),
        ({"causal": True, "T": 63}, False),
        ({"causal": True, "trained": False}, True),
        ({"causal": True, "trained": False, "T": 127}, False),
        ({"causal": True, "T": LONGEST + 1, "H": 1}, False),
        ({"causal": True, "B": 1, "H": 1}, False),  # nothing for the second thread
        ({}, False),
        ({"T": 64, "E": 14}, True),  # a width that PyTorch's is slow with
        ({"T": 64, "E": 14, "trained": False}, False),
        ({"softcap": 2.0, "T": 32}, True),
        ({"softcap": 2.0, "T": 31}, False),
        ({"dtype": HALF}, True),
        ({"dtype": HALF, "T": 31}, False),
        ({"dtype": HALF, "T": 256, "E": 64}, True),
        ({"dtype": HALF, "T": 256, "E": 64, "causal": True}, True),
        ({"dtype": torch.float64, "causal": True}, False),
        ({"mask": torch.ones(1, 1, 128, 128, dtype=torch.bool)}, True),
        ({"mask": torch.ones(1, 1, 128, 128, dtype=torch.bool), "trained": False}, False),
        ({"mask": torch.ones(1, 1, 1, 1024, dtype=torch.bool), "T": 1024, "trained": False}, True),
        ({"mask": torch.ones(1, 1, 128, 128, dtype=torch.bool).tril()}, True),
        ({"mask": torch.ones(1, 2, 128, 128, dtype=torch.bool).tril()}, False),  # one for each head
        ({"bias": torch.randn(1, 2, 128, 128)}, False),
        ({"bias": torch.randn(1, 2, 128, 128, requires_grad=True)}, True),
        ({"bias": torch.randn(1, 1, 128, 128, requires_grad=True)}, False),
    ],
)
@pytest.mark.usefixtures("table")
def test_it_runs_where_it_was_measured_to_be_faster(settings, expected):
    threads = torch.get_num_threads()
    try:
        torch.set_num_threads(2)
        assert taken(**settings) == expected
    finally:
        torch.set_num_threads(threads)


@pytest.mark.parametrize(
    ("settings", "expected"),
    [
        ({"dtype": HALF, "trained": False, "causal": True}, {"avx2"}),
        ({"dtype": HALF, "T": 512, "E": 64}, {"avx2"}),
        ({"dtype": HALF, "T": 1024, "E": 64, "causal": True}, {"avx2"}),
        ({"T": 24, "E": 14}, {"avx512"}),
    ],
)
def test_instruction_sets_differ(settings, expected, table):
    assert taken(B=4, **settings) == (table in expected)


def test_the_switch_of_the_kernels_holds_for_it():
    fast_paths.choose("torch")
    assert not taken(causal=True)


@pytest.fixture
def calls(monkeypatch):
    """Counts the calls of the kernel."""
    found, run = [], _Attention.apply
    monkeypatch.setattr(_Attention, "apply", lambda *operands: found.append(1) or run(*operands))
    return found


SMALL = {"d_model": 32, "num_layers": 2}
ROPE = PositionsConfig(kind="rope")
ATTENTION = AttentionConfig(num_heads=4, num_kv_heads=2)
LOCAL = dataclasses.replace(ATTENTION, layers=["local", "global"], window=40)


def decoder(**parts) -> Decoder:
    torch.manual_seed(1)
    return Decoder(DecoderConfig(**SMALL, **parts), vocab_size=19, max_length=150)


MODELS = {
    "causal": lambda: decoder(attention=ATTENTION),
    "window": lambda: decoder(attention=LOCAL),
    "soft cap": lambda: decoder(attention=dataclasses.replace(ATTENTION, softcap=5.0)),
    "alibi": lambda: decoder(positions=PositionsConfig(kind="alibi")),
    "relative": lambda: decoder(positions=PositionsConfig(kind="relative")),
}


def losses(model, tokens_BT, **inputs) -> list[torch.Tensor]:
    logits_BTV = model(tokens_BT, **inputs).logits_BTV
    nats = logits_BTV.float().log_softmax(-1).gather(2, tokens_BT[..., None]).mean()
    return [nats.detach(), *torch.autograd.grad(nats, list(model.parameters()), allow_unused=True)]


def same_on_both_paths(model, calls, tokens_BT, **inputs) -> None:
    found = {}
    for choice in ("torch", "auto"):
        fast_paths.choose(choice)
        assert not calls
        found[choice] = losses(model, tokens_BT, **inputs)
    assert calls
    calls.clear()
    for one, other in zip(found["auto"], found["torch"], strict=True):
        assert (one is None) == (other is None)
        if one is not None:
            torch.testing.assert_close(one, other, rtol=1e-4, atol=2e-6)


@pytest.mark.parametrize("name", MODELS)
def test_a_decoder_is_the_same_on_both_paths(name, calls):
    tokens_BT = torch.randint(19, (3, 150))
    same_on_both_paths(MODELS[name](), calls, tokens_BT)
    same_on_both_paths(MODELS[name](), calls, tokens_BT, documents_BT=torch.arange(150).expand(3, -1) // 40)


def test_an_encoder_is_the_same_with_padding_that_hides_much(calls):
    model = Encoder(EncoderConfig(**SMALL), vocab_size=19, max_length=150)
    valid_BT = torch.arange(150) < torch.tensor([[20], [150], [60]])
    same_on_both_paths(model, calls, torch.randint(19, (3, 150)), valid_BT=valid_BT)


def test_an_encoder_decoder_is_the_same(calls):
    config = EncoderDecoderConfig(d_model=32, num_layers=2, positions=PositionsConfig(kind="relative"))
    model = EncoderDecoder(config, vocab_size=19, max_length=150)
    tokens_BT = torch.randint(19, (3, 150))
    same_on_both_paths(model, calls, tokens_BT, source_BS=tokens_BT)


def test_autocast_computes_in_its_precision(calls):
    model, tokens_BT = decoder(attention=ATTENTION), torch.randint(19, (3, 150))
    with torch.autocast("cpu", HALF):
        found = losses(model, tokens_BT)
        assert calls
        fast_paths.choose("torch")
        expected = losses(model, tokens_BT)
    for one, other in zip(found, expected, strict=True):
        assert (one - other).abs().max() <= 0.05 * max(0.05, other.abs().max().item())


def test_a_model_says_which_it_takes():
    model = decoder(attention=LOCAL)
    assert model.kernels()["attention"] == model.kernels()["local attention"] == "cpp"
    assert decoder(attention=dataclasses.replace(ATTENTION, kernel="sdpa")).kernels()["attention"] == "sdpa"
    assert decoder(attention=dataclasses.replace(ATTENTION, sinks=True)).kernels()["attention"] == "sdpa"
    assert model.double().kernels()["attention"] == "sdpa"
    fast_paths.choose("torch")
    assert decoder(attention=ATTENTION).kernels()["attention"] == "sdpa"
