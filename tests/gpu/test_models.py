"""Every family on a GPU is the family on a CPU in float64: logits, gradients, decoding, compiled blocks.

Shapes: B batch, T length, V vocabulary.
"""

from __future__ import annotations

import copy
from collections.abc import Iterator

import pytest
import torch
import torch.distributed as dist
from torch import Tensor
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.distributed.tensor import DTensor

from archbench.architectures.backbone import Backbone
from archbench.architectures.backbones.stack import Stack
from archbench.experiments.data.tokenizers.vocabulary import Vocabulary
from archbench.experiments.objectives.decoding import steps as decoding_steps
from archbench.experiments.objectives.decoding.prefill import PrefillState
from archbench.experiments.objectives.decoding.sampling import GREEDY, SamplingConfig, generate
from archbench.experiments.objectives.decoding.steps import StaticDecoder
from archbench.experiments.training.parallel.block_wrapping import check_compiler, compile_block
from tests.architectures.conformance import Inputs, random_inputs
from tests.architectures.models import lively
from tests.backbones import FAMILIES, class_of

pytestmark = pytest.mark.gpu

LENGTH = 24
LIMITS = {torch.float32: 1e-4, torch.bfloat16: 5e-2}
"""Largest norm of a difference, as a share of the norm. Bfloat16 has 8 bits."""
DECODED = ("decoder", "mamba", "mamba2", "gated_deltanet", "hybrid", "encoder_decoder")
"""Families whose steps are captured as a CUDA graph, whatever the precision."""
ROUTED = 0.3
"""The same of models with experts in bfloat16: a token between two experts may go to the other one."""


def share(found: Tensor, expected: Tensor) -> float:
    """The norm of a difference as a share of the norm."""
    expected = expected.double()
    return ((found.detach().cpu().double() - expected).norm() / expected.norm()).item()


def moved(inputs: Inputs, device: torch.device) -> Inputs:
    source = None if inputs.source_BS is None else inputs.source_BS.to(device)
    return Inputs(tokens_BT=inputs.tokens_BT.to(device), source_BS=source)


def limit(name: str, dtype: torch.dtype) -> float:
    routed = class_of(name).__name__ == "MoE" or "moe" in name or name == "switch"
    return ROUTED if routed and dtype == torch.bfloat16 else LIMITS[dtype]


def loss_of(model: Backbone, inputs: Inputs, dtype: torch.dtype) -> Tensor:
    """A loss that weighs every logit, under autocast for bfloat16."""
    device = inputs.tokens_BT.device.type
    with torch.autocast(device, torch.bfloat16, enabled=dtype == torch.bfloat16):
        logits_BTV = inputs.run(model).logits_BTV
    weight_BTV = torch.randn(
        logits_BTV.shape, generator=torch.Generator().manual_seed(1), dtype=torch.float64
    )
    return (logits_BTV.float() * weight_BTV.to(device, torch.float32)).sum()


@pytest.fixture(params=FAMILIES)
def family(request: pytest.FixtureRequest) -> Iterator[str]:
    yield request.param
    torch._dynamo.reset()


@pytest.mark.parametrize("dtype", LIMITS, ids=["float32", "bf16"])
def test_logits_and_gradients_are_those_of_a_cpu(
    family: str, dtype: torch.dtype, device: torch.device
) -> None:
    oracle = copy.deepcopy(lively(family)).eval()
    inputs = random_inputs(oracle, 3, LENGTH)
    model = copy.deepcopy(oracle).float().to(device)
    expected_BTV = inputs.run(oracle).logits_BTV.detach()
    with torch.no_grad(), torch.autocast(device.type, torch.bfloat16, enabled=dtype == torch.bfloat16):
        found_BTV = moved(inputs, device).run(model).logits_BTV
    assert share(found_BTV, expected_BTV) < limit(family, dtype)

    loss_of(oracle, inputs, torch.float64).backward()
    loss_of(model, moved(inputs, device), dtype).backward()
    for (name, own), other in zip(model.named_parameters(), oracle.parameters(), strict=True):
        assert (own.grad is None) == (other.grad is None), name
    gradients = [
        torch.cat([p.grad.detach().cpu().double().flatten() for p in each.parameters() if p.grad is not None])
        for each in (model, oracle)
    ]
    assert share(gradients[0], gradients[1]) < 3 * limit(family, dtype)


def test_decoding_gives_the_logits_of_the_whole_sequence(family: str, device: torch.device) -> None:
    model = copy.deepcopy(lively(family)).float().eval().to(device)
    if not model.capabilities.causal:
        pytest.skip("does not decode token by token")
    inputs = moved(random_inputs(model, 2, LENGTH), device)
    with torch.no_grad():
        expected_BTV = inputs.run(model).logits_BTV.cpu()
        for sizes in ([LENGTH - 3, 1, 1, 1], [1] * LENGTH, [5, 7, LENGTH - 12]):
            state = model.start(2, LENGTH, source_BS=inputs.source_BS)
            pieces = [model.step(piece, state) for piece in inputs.tokens_BT.split(sizes, dim=1)]
            assert share(torch.cat(pieces, dim=1), expected_BTV) < 1e-4


def test_compiled_blocks_are_the_blocks(family: str, device: torch.device) -> None:
    check_compiler(device)
    eager = copy.deepcopy(lively(family)).float().to(device)
    if not isinstance(eager, Stack):
        pytest.skip("is no stack of blocks")
    compiled = copy.deepcopy(eager)
    for block in compiled._blocks():
        compile_block(block)
    inputs = moved(random_inputs(eager, 2, LENGTH), device)
    losses = [loss_of(model, inputs, torch.float32) for model in (eager, compiled)]
    for loss in losses:
        loss.backward()
    torch.testing.assert_close(losses[1], losses[0], rtol=1e-3, atol=1e-3)
    for (name, own), other in zip(compiled.named_parameters(), eager.parameters(), strict=True):
        if other.grad is not None:
            scale = other.grad.abs().max().clamp_min(1e-3)
            assert ((own.grad - other.grad).abs().max() / scale).item() < 1e-2, name


@pytest.fixture
def process_group(device: torch.device) -> Iterator[None]:
    """Of this process alone; a run by one process makes none."""
    backend = "nccl" if device.type == "cuda" else "gloo"
    dist.init_process_group(backend, store=dist.HashStore(), rank=0, world_size=1)
    yield
    dist.destroy_process_group()


@pytest.mark.parametrize("name", ["decoder", "mamba2", "moe"])
def test_blocks_sharded_by_fsdp2_on_one_gpu_are_the_blocks(
    name: str, device: torch.device, process_group: None
) -> None:
    plain = copy.deepcopy(lively(name)).float().to(device)
    sharded = copy.deepcopy(plain)
    mesh = init_device_mesh(device.type, (1,))
    assert isinstance(sharded, Stack)
    for block in sharded._blocks():
        fully_shard(block, mesh=mesh)
    fully_shard(sharded, mesh=mesh)
    inputs = moved(random_inputs(plain, 2, LENGTH), device)
    losses = [loss_of(model, inputs, torch.float32) for model in (plain, sharded)]
    for loss in losses:
        loss.backward()
    torch.testing.assert_close(losses[1], losses[0], rtol=1e-5, atol=1e-4)
    for (key, own), other in zip(sharded.named_parameters(), plain.parameters(), strict=True):
        if other.grad is not None:
            assert isinstance(own.grad, DTensor), key
            assert share(own.grad.full_tensor(), other.grad.cpu()) < 1e-4 or other.grad.norm() < 1e-3, key


@pytest.mark.parametrize("name", DECODED)
def test_a_cuda_graph_decodes_what_steps_decode(name: str, cuda: torch.device) -> None:
    model = copy.deepcopy(lively(name)).float().eval().to(cuda)
    inputs = moved(random_inputs(model, 2, LENGTH), cuda)
    with torch.no_grad():
        plain, fixed = (model.start(2, LENGTH, source_BS=inputs.source_BS) for _ in range(2))
        for state in (plain, fixed):
            model.step(inputs.tokens_BT[:, :8], state)
        step = StaticDecoder(model, fixed, LENGTH - 8)
        step.capture()
        for token_B1 in inputs.tokens_BT[:, 8:].split(1, dim=1):
            expected_B1V = model.step(token_B1, plain).cpu()
            assert share(step(token_B1), expected_B1V) < 1e-3


@pytest.mark.parametrize("sampling", [GREEDY, SamplingConfig(top_p=0.9)], ids=["greedy", "sampled"])
@pytest.mark.parametrize("dtype", LIMITS, ids=["float32", "bf16"])
@pytest.mark.parametrize("name", DECODED)
def test_text_is_generated_by_a_cuda_graph(
    name: str,
    dtype: torch.dtype,
    sampling: SamplingConfig,
    cuda: torch.device,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """In float32 the tokens of plain steps. In bfloat16 two tokens may be as likely: it need only run."""
    model = copy.deepcopy(lively(name)).float().eval().to(cuda)
    vocabulary = Vocabulary(
        num_symbols=model.vocab_size - Vocabulary(num_symbols=0, num_sentinels=0).size, num_sentinels=0
    )
    inputs, tokens = moved(random_inputs(model, 3, 8), cuda), LENGTH - 8
    captured = []
    capture = StaticDecoder.capture
    monkeypatch.setattr(StaticDecoder, "capture", lambda self: (captured.append(self), capture(self)))

    def texts(fewest: int) -> list[list[int]]:
        monkeypatch.setattr(decoding_steps, "FEWEST", fewest)
        start = PrefillState(
            state=model.start(3, LENGTH, source_BS=inputs.source_BS), unread_BT=inputs.tokens_BT
        )
        generators = [torch.Generator().manual_seed(row) for row in range(3)]
        with torch.no_grad(), torch.autocast(cuda.type, torch.bfloat16, enabled=dtype == torch.bfloat16):
            return generate(
                model,
                start,
                vocabulary,
                max_tokens=tokens,
                generators=generators,
                sampling=sampling,
                ended=lambda row, generated: len(generated) == 5 * (row + 1),
            )

    plain = texts(tokens)
    assert not captured
    found = texts(2)
    assert len(captured) == 1
    assert [len(text) for text in found] == [5, 10, 15]
    assert found == plain or dtype == torch.bfloat16
