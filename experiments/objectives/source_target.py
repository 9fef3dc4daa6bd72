"""From one sequence to two: the source of an encoder and the target of a decoder.

Span corruption, prefix LM and pairs all cut tokens out of a sequence. The rest
is the source; the cut tokens, in order, are the target. Rows may lose unequally
many tokens: sources and targets are padded on the right.

Shapes: B batch, T raw length, S source length, Y target length, J any length.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
import torch.nn.functional as F
from torch import Tensor

from archbench.architectures.backbone import Backbone
from archbench.experiments.data.tokenizers.vocabulary import Vocabulary
from archbench.experiments.objectives.decoding.prefill import PrefillState, pad_right
from archbench.experiments.objectives.objective import View
from archbench.experiments.runtime.errors import DataError
from archbench.experiments.tasks.task import Batch


def cut_out(
    batch: Batch,
    cut_BT: Tensor,
    vocabulary: Vocabulary,
    *,
    marked_B: Tensor | None = None,
    modes_B: Tensor | None = None,
    ends: bool = True,
    score_all: bool = False,
    num_marks: int | None = None,
) -> View:
    """Return the view whose decoder predicts the cut tokens; it begins with the padding token, as in T5.

    Args:
        batch: its ``tokens_BT`` are to be predicted, its ``context_BT`` are visible. Padding is left out.
        cut_BT: True at the tokens that move to the target.
        marked_B: rows in which each run of cut tokens leaves a sentinel in the source and begins with
            the same one in the target; None for no row.
        modes_B: a token to begin each source with.
        ends: whether source and target end with ``eos``.
        score_all: score sentinels and ends too, and all cut tokens; otherwise cut answers only.
        num_marks: sentinels that may be used; None for all of the vocabulary.

    Raises:
        DataError: a row has more runs than there are sentinels, or its source is empty.
    """
    cut_BT = cut_BT & batch.valid_BT
    marked_B = torch.zeros(len(cut_BT), dtype=torch.bool) if marked_B is None else marked_B
    starts_BT = cut_BT & ~F.pad(cut_BT[:, :-1], (1, 0)) & marked_B[:, None]
    runs = int(starts_BT.sum(1).max())
    check_marks(runs, vocabulary.num_sentinels if num_marks is None else num_marks, vocabulary)
    marks = torch.tensor([vocabulary.sentinel(i) for i in range(runs)] or [vocabulary.pad])
    sentinel_BT = marks[(starts_BT.cumsum(1) - 1).clamp_min(0)]

    source_BT = torch.where(starts_BT, sentinel_BT, batch.context_BT)
    in_source_BT = (batch.valid_BT & ~cut_BT) | starts_BT
    if modes_B is not None:
        source_BT = torch.cat([modes_B[:, None], source_BT], dim=1)
        in_source_BT = F.pad(in_source_BT, (1, 0), value=True)
    in_target_BJ = torch.stack([starts_BT, cut_BT], dim=2).flatten(1)
    scored_BT = cut_BT if score_all else cut_BT & batch.answer_BT
    scored_BJ = torch.stack([starts_BT & score_all, scored_BT], dim=2).flatten(1)
    if ends:
        source_BT = F.pad(source_BT, (0, 1), value=vocabulary.eos)
        in_source_BT = F.pad(in_source_BT, (0, 1), value=True)
        in_target_BJ = F.pad(in_target_BJ, (0, 1), value=True)
        scored_BJ = F.pad(scored_BJ, (0, 1), value=score_all)
    if not in_source_BT.any(1).all():
        raise DataError("an example has no tokens before its first answer: there is no source to read")

    def target(tokens_BT: Tensor) -> Tensor:
        pairs_BJ = torch.stack([sentinel_BT, tokens_BT], dim=2).flatten(1)
        pairs_BJ = F.pad(pairs_BJ, (0, int(ends)), value=vocabulary.eos)
        return keep(pairs_BJ, in_target_BJ, vocabulary.pad)

    return source_target_view(
        source_BS=keep(source_BT, in_source_BT, vocabulary.pad),
        source_lengths_B=in_source_BT.sum(1),
        shown_BY=target(batch.context_BT),
        target_BY=target(batch.tokens_BT),
        target_lengths_B=in_target_BJ.sum(1),
        scored_BY=keep(scored_BJ, in_target_BJ, False),
        begin=vocabulary.decoder_start,
    )


def source_target_view(
    *,
    source_BS: Tensor,
    source_lengths_B: Tensor,
    shown_BY: Tensor,
    target_BY: Tensor,
    target_lengths_B: Tensor,
    scored_BY: Tensor,
    begin: int,
) -> View:
    """A view of right-padded sources and targets; the decoder reads ``begin`` and its target one step late.

    ``shown_BY`` is the target that later positions may read. Masks are left out if there is no padding.
    """
    return View(
        tokens_BT=F.pad(shown_BY[:, :-1], (1, 0), value=begin),
        valid_BT=_valid(target_lengths_B, target_BY.shape[1]),
        target_BT=target_BY,
        weight_BT=scored_BY.float(),
        count_B=scored_BY.sum(1).float(),
        source_BS=source_BS,
        source_valid_BS=_valid(source_lengths_B, source_BS.shape[1]),
    )


def keep(x_BJ: Tensor, keep_BJ: Tensor, padding: int | bool) -> Tensor:
    """The selected entries of each row in order, padded on the right to the longest row."""
    counts_B = keep_BJ.sum(1)
    length = int(counts_B.max())
    order_BJ = (~keep_BJ).byte().argsort(dim=1, stable=True)[:, :length]
    beyond_BJ = torch.arange(length) >= counts_B[:, None]
    return x_BJ.gather(1, order_BJ).masked_fill(beyond_BJ, padding)


def prefill_target(
    model: Backbone,
    sources: Sequence[Sequence[int]],
    begun: Sequence[Sequence[int]],
    vocabulary: Vocabulary,
    max_tokens: int,
) -> PrefillState:
    """Return the prefill of an encoder-decoder: each source, and the part of its target there is so far."""
    device = next(model.parameters()).device
    source_BS, source_valid_BS = pad_right(sources, vocabulary.pad, device)
    unread_BT, valid_BT = pad_right(begun, vocabulary.pad, device)
    state = model.start(
        len(sources),
        unread_BT.shape[1] + max_tokens,
        source_BS=source_BS,
        source_valid_BS=source_valid_BS,
    )
    return PrefillState(state=state, unread_BT=unread_BT, valid_BT=valid_BT)


def check_marks(runs: int, num_marks: int, vocabulary: Vocabulary) -> None:
    """Raise DataError for more spans than there are sentinels to mark them with."""
    if runs > num_marks:
        missing = vocabulary.num_sentinels + runs - num_marks
        raise DataError(
            f"{runs} spans in one sequence, but the task's vocabulary has {num_marks} sentinels for them: "
            f"raise task.num_sentinels to {missing}, or lower the objective's density"
        )


def _valid(lengths_B: Tensor, length: int) -> Tensor | None:
    valid_BJ = torch.arange(length) < lengths_B[:, None]
    return None if valid_BJ.all() else valid_BJ
