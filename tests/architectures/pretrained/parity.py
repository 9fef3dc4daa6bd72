"""Our models against those of the Hugging Face library, through a folder, in both directions.

The oracles are tiny and have redrawn weights: at the usual standard deviation of
0.02 such a model is almost linear, and mistakes stay below every tolerance.
"""

from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from torch.overrides import TorchFunctionMode

from archbench.architectures.backbone import Backbone
from archbench.architectures.pretrained import load_folder, save_folder

FLOAT32, FLOAT64 = 1e-5, 1e-10
"""Largest difference of logits allowed, as a share of the largest logit."""


class KeepFloat64(TorchFunctionMode):
    """Their models cast norms and softmax to float32 whatever the weights are; in here float64 stays."""

    def __torch_function__(self, function: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = dict(kwargs or {})
        wide = bool(args) and isinstance(args[0], Tensor) and args[0].dtype == torch.float64
        if wide and (function is Tensor.float or (function is Tensor.to and torch.float32 in args[1:])):
            return args[0]
        if wide and kwargs.get("dtype") == torch.float32:
            kwargs["dtype"] = torch.float64
        return function(*args, **kwargs)


@torch.no_grad()
def redraw(model: nn.Module) -> None:
    """Weights with standard deviation 0.3; norms and biases a little off what they begin with."""
    for parameter in model.parameters():
        if parameter.ndim >= 2:
            parameter.normal_(0.0, 0.3)
        else:
            parameter.add_(torch.randn_like(parameter), alpha=0.2)


def error(ours: Tensor, theirs: Tensor) -> float:
    """The largest difference as a share of the largest value."""
    return float((ours - theirs).abs().max() / theirs.abs().max())


def save_theirs(theirs: nn.Module, folder: Path, **options: Any) -> Path:
    """Their model, redrawn, written by their library."""
    theirs.eval()
    redraw(theirs)
    theirs.save_pretrained(folder, **options)
    return folder


def open_theirs(cls: Any, folder: Path, dtype: torch.dtype, **options: Any) -> nn.Module:
    """A folder of ours, opened by their library, which must find exactly the tensors it wants."""
    theirs, info = cls.from_pretrained(folder, output_loading_info=True, dtype=dtype, **options)
    for problem in ("missing_keys", "unexpected_keys", "mismatched_keys", "error_msgs"):
        assert not info[problem], (problem, info[problem])
    return theirs.eval()


@torch.no_grad()
def check_read(
    theirs: nn.Module, folder: Path, dtype: torch.dtype, length: int, tolerance: float
) -> Backbone:
    """Ours from their folder gives the logits of theirs, padded on the right or not."""
    save_theirs(theirs.to(dtype), folder)
    ours = load_folder(folder, dtype=dtype).eval()
    assert next(ours.parameters()).dtype == dtype
    check_logits(ours, theirs, length, tolerance)
    return ours


@torch.no_grad()
def check_write(
    ours: Backbone, cls: Any, folder: Path, length: int, tolerance: float, **options: Any
) -> None:
    """Their library opens our folder and gives the logits of ours."""
    redraw(ours.eval())
    save_folder(ours, folder)
    theirs = open_theirs(cls, folder, next(ours.parameters()).dtype, **options)
    check_logits(ours, theirs, length, tolerance)


@torch.no_grad()
def check_logits(ours: Backbone, theirs: nn.Module, length: int, tolerance: float) -> None:
    """The same logits at every token that is not padding."""
    tokens_BT = torch.randint(3, ours.vocab_size, (3, length))
    # In float64 theirs gives NaN to padding that sees nothing in its window, and it spreads.
    short = length // 2 if next(ours.parameters()).dtype == torch.float32 else length - 2
    valid_BT = torch.arange(length) < torch.tensor([length, length - 1, short])[:, None]
    for name, buffer in theirs.named_buffers():
        if name.endswith("inv_freq"):  # angles are of float32 on both sides; double() has changed theirs
            buffer.data = buffer.data.float()
    with KeepFloat64():
        expected_BTV = theirs(input_ids=tokens_BT).logits
        if rotates_by_length(theirs):
            rows = [
                theirs_alone(theirs, row_T[valid_T])
                for row_T, valid_T in zip(tokens_BT, valid_BT, strict=True)
            ]
            padded = torch.cat(rows)
        else:
            padded = theirs(input_ids=tokens_BT, attention_mask=valid_BT.long()).logits[valid_BT]
    whole = error(ours(tokens_BT).logits_BTV, expected_BTV)
    assert whole < tolerance, whole
    part = error(ours(tokens_BT, valid_BT=valid_BT).logits_BTV[valid_BT], padded)
    assert part < tolerance, part


def rotates_by_length(theirs: nn.Module) -> bool:
    """True where their rotary frequencies follow the longest row of a batch; ours follow each row."""
    rope = getattr(theirs.config, "rope_parameters", None) or {}
    return rope.get("rope_type") in ("dynamic", "longrope")


def theirs_alone(theirs: nn.Module, tokens_T: Tensor) -> Tensor:
    """Their logits (T, V) of one sequence. Those of a longer one leave their frequencies behind."""
    theirs(input_ids=tokens_T[None, :1])
    return theirs(input_ids=tokens_T[None]).logits[0]


@torch.no_grad()
def check_generate(ours: Backbone, theirs: Any, length: int, new: int) -> None:
    """Greedy decoding writes the same tokens, each side with its own cache."""
    tokens_BT = torch.randint(3, ours.vocab_size, (2, length))
    expected_BT = theirs.generate(
        tokens_BT,
        attention_mask=torch.ones_like(tokens_BT),
        do_sample=False,
        max_new_tokens=new,
        min_new_tokens=new,
        use_cache=True,
        pad_token_id=0,
        eos_token_id=None,
    )
    state = ours.start(2, length + new)
    next_B1 = ours.step(tokens_BT, state)[:, -1:].argmax(-1)
    written = [tokens_BT, next_B1]
    for _ in range(new - 1):
        next_B1 = ours.step(next_B1, state).argmax(-1)
        written.append(next_B1)
    assert torch.equal(torch.cat(written, dim=1), expected_BT)
