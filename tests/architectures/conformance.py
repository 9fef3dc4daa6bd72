"""What every backbone must do, as checks that raise AssertionError with a telling message.

Each check takes a model and a length and works in the model's own precision.
Dependence between positions is read off gradients, which an unlucky choice of
tokens cannot hide. What is discrete, such as the choice of an expert, has no
gradient, so tokens are changed as well.

Shapes: B batch, T length, S source length, D d_model, V vocabulary.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from archbench.architectures.backbone import Backbone, Output
from archbench.architectures.layers.context import Context

TOLERANCE = {torch.float32: 1e-5, torch.float64: 1e-10}
"""Relative to the largest value, or absolute where that is below one."""


@dataclass(frozen=True, kw_only=True)
class Inputs:
    """Tokens, and a source where the model reads one."""

    tokens_BT: Tensor
    source_BS: Tensor | None = None

    def run(self, model: Backbone) -> Output:
        return model(self.tokens_BT, source_BS=self.source_BS)

    def row(self, index: int, length: int, source_length: int) -> Inputs:
        """One sequence alone, cut to its lengths."""
        source = None if self.source_BS is None else self.source_BS[index : index + 1, :source_length]
        return Inputs(tokens_BT=self.tokens_BT[index : index + 1, :length], source_BS=source)


def random_inputs(model: Backbone, batch: int, length: int, seed: int = 0) -> Inputs:
    """Random tokens; a source, longer than the target, for encoder-decoders only."""
    generator = torch.Generator().manual_seed(seed)
    tokens = torch.randint(model.vocab_size, (batch, 2 * length + 3), generator=generator)
    source = tokens[:, length:] if model.capabilities.encoder_decoder else None
    return Inputs(tokens_BT=tokens[:, :length], source_BS=source)


@torch.no_grad()
def enliven(model: Backbone, seed: int = 0) -> Backbone:
    """Draws small weights anew with deviation 0.3, and moves vectors off zero and one.

    With small weights tiny models are almost linear, and a wrong position or mask
    hardly shows in the logits.
    """
    generator = torch.Generator().manual_seed(seed)
    for parameter in model.parameters():
        noise = torch.randn(parameter.shape, generator=generator, dtype=parameter.dtype)
        if parameter.dim() == 1:
            parameter.add_(0.1 * noise)
        elif parameter.std() < 0.2:
            parameter.copy_(0.3 * noise)
    return model


def check_close(found: Tensor, expected: Tensor, what: str) -> None:
    """Equal within the tolerance of the precision."""
    assert found.dtype == expected.dtype, f"{what}: {found.dtype}, expected {expected.dtype}"
    scale = max(1.0, expected.abs().max().item())
    difference = (found - expected).abs().max().item() / scale
    limit = TOLERANCE[expected.dtype]
    assert difference <= limit, f"{what}: differs by {difference:.1e}, allowed {limit:.0e}"


def check_no_leak(model: Backbone, length: int) -> None:
    """Logits at i depend on no later token, neither by gradient nor by value, and do depend on token i."""
    inputs = random_inputs(model, 2, length)
    logits_BTV, embeddings = _run_on_leaves(model, inputs)
    # Zero means zero, except that a Fourier transform spreads its rounding over all positions.
    rounding = TOLERANCE[logits_BTV.dtype] if any("FFT" in k for k in model.kernels().values()) else 0.0
    for i in sorted({0, 1, length // 2, length - 2}):
        gradient_BT = _gradient(logits_BTV, i, embeddings[-1])
        assert gradient_BT[:, i].min() > 0, f"the logits at {i} do not depend on the token at {i}"
        leak = gradient_BT[:, i + 1 :].max() / gradient_BT.max()
        assert leak <= rounding, f"the logits at {i} of {length} see the future: relative gradient {leak:.1e}"
        changed_BT = inputs.tokens_BT.clone()
        changed_BT[:, i + 1 :] = (changed_BT[:, i + 1 :] + 1) % model.vocab_size
        changed = Inputs(tokens_BT=changed_BT, source_BS=inputs.source_BS).run(model).logits_BTV
        past = slice(0, i + 1)
        check_close(changed[:, past], logits_BTV[:, past], f"logits up to {i} after later tokens changed")


def check_sees_everything(model: Backbone, length: int) -> None:
    """Every position sees every position; in an encoder-decoder, every position of the source."""
    logits_BTV, embeddings = _run_on_leaves(model, random_inputs(model, 2, length))
    for i in range(length):
        gradient_BS = _gradient(logits_BTV, i, embeddings[0])
        blind = (gradient_BS == 0).nonzero().tolist()
        assert not blind, f"the logits at {i} do not see (row, position) {blind}"


def check_padding(model: Backbone, length: int) -> None:
    """Padding changes nothing at valid positions, in logits, auxiliary losses or parameter gradients."""
    inputs = random_inputs(model, 3, length)
    lengths = torch.tensor([length, length // 2 + 1, 1])
    source_lengths = lengths.flip(0) + 2
    valid_BT = torch.arange(length) < lengths[:, None]
    source_valid = None
    if inputs.source_BS is not None:
        source_valid = torch.arange(inputs.source_BS.shape[1]) < source_lengths[:, None]
    padded = model(
        inputs.tokens_BT, valid_BT=valid_BT, source_BS=inputs.source_BS, source_valid_BS=source_valid
    )
    generator = torch.Generator().manual_seed(2)
    readout_BTV = torch.randn(padded.logits_BTV.shape, generator=generator).to(padded.logits_BTV)
    readout_BTV /= readout_BTV.numel() ** 0.5
    losses = [_loss(padded, readout_BTV * valid_BT[..., None])]
    alone_loss = torch.zeros_like(losses[0])
    for row, (own, read) in enumerate(zip(lengths.tolist(), source_lengths.tolist(), strict=True)):
        alone = inputs.row(row, own, read).run(model)
        check_close(padded.logits_BTV[row, :own], alone.logits_BTV[0], f"logits of row {row}, padded")
        alone_loss = alone_loss + _loss(alone, readout_BTV[row : row + 1, :own])
    losses.append(alone_loss)
    check_close(losses[0], losses[1], "loss and auxiliary losses, padded")
    parameters = dict(model.named_parameters())
    gradients = [torch.autograd.grad(loss, list(parameters.values())) for loss in losses]
    for name, found, expected in zip(parameters, *gradients, strict=True):
        check_close(found, expected, f"gradient of {name}, padded")


def check_batch_invariance(model: Backbone, length: int) -> None:
    """A sequence gives the same logits alone and beside others."""
    inputs = random_inputs(model, 3, length)
    together = inputs.run(model).logits_BTV
    for row in range(3):
        alone = inputs.row(row, length, 2 * length + 3).run(model).logits_BTV
        check_close(together[row], alone[0], f"logits of row {row} in a batch")


def check_scored(model: Backbone, length: int) -> None:
    """Logits asked for at some valid positions are those of all positions, in one row."""
    inputs = random_inputs(model, 3, length)
    valid_BT = torch.arange(length) < torch.tensor([[length], [length // 2], [1]])
    scored_BT = valid_BT & (torch.rand(3, length, generator=torch.Generator().manual_seed(3)) < 0.4)
    whole, some = (
        model(inputs.tokens_BT, valid_BT=valid_BT, source_BS=inputs.source_BS, scored_BT=asked)
        for asked in (None, scored_BT)
    )
    check_close(some.logits_BTV, whole.logits_BTV[scored_BT][None], "logits at the scored positions")
    check_close(some.hidden_BTD, whole.hidden_BTD, "hidden states")
    none = model(inputs.tokens_BT, source_BS=inputs.source_BS, scored_BT=torch.zeros_like(scored_BT))
    assert none.logits_BTV.shape == (1, 0, model.vocab_size)


def check_decoding(model: Backbone, length: int) -> None:
    """``step`` gives the logits of the full forward pass, however the tokens are cut into pieces."""
    inputs = random_inputs(model, 2, length)
    source_valid = None
    if inputs.source_BS is not None:
        source_valid = torch.arange(inputs.source_BS.shape[1]) < torch.tensor([[length], [length + 3]])
    with torch.no_grad():
        full = model(inputs.tokens_BT, source_BS=inputs.source_BS, source_valid_BS=source_valid).logits_BTV
    half = length // 2
    for cut, sizes in {
        "token by token": [1] * length,
        "in pieces": [3, 1, 5, length - 9],
        "prefilled, then token by token": [half] + [1] * (length - half),
        "all at once": [length],
    }.items():
        state = model.start(2, length, source_BS=inputs.source_BS, source_valid_BS=source_valid)
        pieces = [model.step(piece, state) for piece in inputs.tokens_BT.split(sizes, dim=1)]
        assert state.length == length, f"{cut}: the state counts {state.length} tokens, {length} were read"
        check_close(torch.cat(pieces, dim=1), full, f"decoded {cut}")


def check_prompts_together(model: Backbone) -> None:
    """Prompts of different lengths are read and continued together as each would be alone."""
    lengths, more = [6, 1, 9], 8
    inputs = random_inputs(model, 3, 17)
    valid_BT = torch.arange(max(lengths)) < torch.tensor(lengths)[:, None]
    with torch.no_grad():
        full = inputs.run(model).logits_BTV
        state = model.start(3, max(lengths) + more, source_BS=inputs.source_BS)
        read_BTV = model.step(inputs.tokens_BT[:, : max(lengths)], state, valid_BT)
        found = [[read_BTV[b, :length]] for b, length in enumerate(lengths)]
        for step in range(more):
            next_B1 = inputs.tokens_BT[torch.arange(3), torch.tensor(lengths) + step][:, None]
            for b, logits_1V in enumerate(model.step(next_B1, state)):
                found[b].append(logits_1V)
    assert state.lengths == [length + more for length in lengths]
    for b, length in enumerate(lengths):
        check_close(torch.cat(found[b]), full[b, : length + more], f"prompt of {length} tokens among others")


def check_moved_rows(model: Backbone) -> None:
    """Rows of a decoding state can be repeated, dropped and reordered, as beam search does."""
    inputs = random_inputs(model, 3, 16)
    source = inputs.source_BS
    with torch.no_grad():
        state = model.start(3, 16, source_BS=source)
        model.step(inputs.tokens_BT[:, :7], state)
        state.select([2, 2, 0])
        model.step(inputs.tokens_BT[:, 7:11], state)
        state.select([1, 0])
        for t in range(11, 16):
            last_BTV = model.step(inputs.tokens_BT[:2, t : t + 1], state)
        rows = [inputs.tokens_BT[[2, 2], :7], inputs.tokens_BT[[1, 0], 7:11], inputs.tokens_BT[:2, 11:]]
        history = Inputs(
            tokens_BT=torch.cat(rows, dim=1), source_BS=None if source is None else source[[2, 2]]
        )
        check_close(last_BTV[:, 0], history.run(model).logits_BTV[:, -1], "rows moved")


def check_packed(model: Backbone) -> None:
    """Documents in one row give the logits they give alone."""
    sizes = [5, 1, 9, 4]
    tokens_BT = random_inputs(model, 2, sum(sizes)).tokens_BT
    document_T = torch.repeat_interleave(torch.tensor([3, 7, 1, 2]), torch.tensor(sizes))
    with torch.no_grad():
        packed = model(tokens_BT, documents_BT=document_T.expand(2, -1)).logits_BTV
        separate = [model(piece).logits_BTV for piece in tokens_BT.split(sizes, dim=1)]
    check_close(packed, torch.cat(separate, dim=1), "packed documents")


def check_gradients(model: Backbone, length: int, *, autocast: bool) -> None:
    """After a cross-entropy every parameter has a finite gradient, and none is zero throughout."""
    inputs = random_inputs(model, 4, length)
    with torch.autocast("cpu", torch.bfloat16, enabled=autocast):
        output = inputs.run(model)
    loss = F.cross_entropy(output.logits_BTV.flatten(0, 1).float(), inputs.tokens_BT.roll(-1, 1).flatten())
    model.zero_grad()
    (loss + sum(output.auxiliary.values())).backward()
    for name, parameter in model.named_parameters():
        assert parameter.grad is not None, f"{name} has no gradient"
        assert parameter.grad.isfinite().all(), f"{name} has a gradient that is not finite"
        assert parameter.grad.any(), f"the gradient of {name} is zero throughout"


def check_initialisation(build: Callable[[], Backbone]) -> None:
    """The seed decides every parameter, and the untrained loss is that of guessing."""
    models = []
    for seed in (0, 0, 1):
        torch.manual_seed(seed)
        models.append(build())
    first, again, other = (m.state_dict() for m in models)
    different = [name for name in first if not torch.equal(first[name], again[name])]
    assert not different, f"the same seed gives different {different}"
    assert any(not torch.equal(first[name], other[name]) for name in first), "the seed changes nothing"
    inputs = random_inputs(models[0], 4, 32)
    targets_BT = random_inputs(models[0], 4, 32, seed=1).tokens_BT
    loss = F.cross_entropy(inputs.run(models[0]).logits_BTV.flatten(0, 1), targets_BT.flatten())
    guess = torch.tensor(models[0].vocab_size).log()
    assert 0.85 < loss / guess < 1.15, f"untrained loss {loss:.3f}, guessing has {guess:.3f}"


def _run_on_leaves(model: Backbone, inputs: Inputs) -> tuple[Tensor, list[Tensor]]:
    """Logits, and the embeddings they were made from, cut off as leaves: the source's first."""
    leaves: list[Tensor] = []

    def cut(module: object, args: object, output: Tensor) -> Tensor:
        leaves.append(output.detach().requires_grad_())
        return leaves[-1]

    handle = model.embedding.register_forward_hook(cut)
    logits_BTV = inputs.run(model).logits_BTV
    handle.remove()
    read = [inputs.tokens_BT] if inputs.source_BS is None else [inputs.source_BS, inputs.tokens_BT]
    assert [leaf.shape[:2] for leaf in leaves] == [tokens.shape for tokens in read]
    return logits_BTV, leaves


def _gradient(logits_BTV: Tensor, position: int, leaf_BSD: Tensor) -> Tensor:
    """Largest gradient (B, S) of a random readout of the logits at ``position``."""
    readout_V = torch.randn(logits_BTV.shape[-1], generator=torch.Generator().manual_seed(1)).to(logits_BTV)
    readout = (logits_BTV[:, position] @ readout_V).sum()
    (gradient,) = torch.autograd.grad(readout, leaf_BSD, retain_graph=True)
    return gradient.abs().amax(-1)


def _loss(output: Output, readout_BTV: Tensor) -> Tensor:
    auxiliary: Iterable[Tensor] = output.auxiliary.values()
    return (output.logits_BTV * readout_BTV).sum() + sum(auxiliary)


def gradients_of(attention: nn.Module, x_BTD: Tensor, context: Context) -> list[Tensor]:
    """The output of a layer, and the gradients of a function of it, input first."""
    x_BTD = x_BTD.to(next(attention.parameters()).dtype).requires_grad_()
    y_BTD = attention(x_BTD, context)
    loss = (y_BTD * y_BTD.detach().cos()).sum()
    return [y_BTD, *torch.autograd.grad(loss, [x_BTD, *attention.parameters()])]


def check_same(found: list[Tensor], expected: list[Tensor], tolerance: float) -> None:
    """Equal within a tolerance relative to the largest value of each."""
    for value, other in zip(found, expected, strict=True):
        torch.testing.assert_close(value.double(), other, atol=tolerance * other.abs().max().item(), rtol=0)
