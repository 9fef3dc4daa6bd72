import math

import pytest
import torch
from torch.nn import functional as F

from archbench.architectures.backbone import Backbone, BackboneConfig, Flops, Output
from archbench.architectures.layers.readout import SequenceReadout, TokenReadout, VectorReadout, pool


def padded(seed: int = 0):
    """Hidden states of three sequences of 7, 3 and 1 tokens; what stands at padding is infinite."""
    hidden_BTD = torch.randn(3, 7, 5, generator=torch.Generator().manual_seed(seed))
    valid_BT = torch.arange(7) < torch.tensor([[7], [3], [1]])
    return hidden_BTD.masked_fill(~valid_BT[..., None], math.inf), valid_BT


def test_pooling_takes_the_first_the_last_or_the_mean_of_the_real_tokens():
    hidden, valid = padded()
    expected = {
        "first": [hidden[0, 0], hidden[1, 0], hidden[2, 0]],
        "last": [hidden[0, 6], hidden[1, 2], hidden[2, 0]],
        "mean": [hidden[0].mean(0), hidden[1, :3].mean(0), hidden[2, 0]],
    }
    for pooling, rows in expected.items():
        torch.testing.assert_close(pool(hidden, valid, pooling), torch.stack(rows))
        whole = pool(hidden[:1], None, pooling)
        torch.testing.assert_close(whole, pool(hidden[:1], valid[:1], pooling))
        torch.testing.assert_close(VectorReadout(pooling)(hidden, valid), torch.stack(rows))
    with pytest.raises(ValueError, match="pooling='max'"):
        VectorReadout("max")


@pytest.mark.parametrize("pooler", [True, False])
def test_a_sequence_readout_is_bert_s_pooler_and_a_dense_layer(pooler):
    torch.manual_seed(0)
    readout = SequenceReadout(5, 4, pooling="mean", pooler=pooler)
    hidden, valid = padded()
    vector = pool(hidden, valid, "mean")
    if pooler:
        dense = readout.pooler[0]
        vector = torch.tanh(vector @ dense.weight.T + dense.bias)
    expected = vector @ readout.classifier.weight.T + readout.classifier.bias
    torch.testing.assert_close(readout(hidden, valid), expected)
    assert sum(p.numel() for p in readout.parameters()) == (5 * 5 + 5 if pooler else 0) + 5 * 4 + 4


def test_a_token_readout_reads_every_token_alone():
    readout = TokenReadout(5, 3)
    hidden = torch.randn(2, 6, 5)
    scores = readout(hidden, None)
    assert scores.shape == (2, 6, 3)
    hidden[0, 2] += 1
    changed = (readout(hidden, None) != scores).any(-1)
    assert changed.nonzero().tolist() == [[0, 2]]


@pytest.mark.parametrize(
    "readout", [SequenceReadout(50, 2, pooling="first", dropout=0.5), TokenReadout(50, 2, dropout=0.5)]
)
def test_dropout_is_for_training_only(readout):
    hidden = torch.randn(2, 3, 50)
    assert not torch.equal(readout(hidden, None), readout(hidden, None))
    readout.eval()
    assert torch.equal(readout(hidden, None), readout(hidden, None))


class Table(Backbone):
    """An embedding and a head, no more."""

    Config = BackboneConfig

    def __init__(self):
        super().__init__(BackboneConfig(d_model=6), vocab_size=9, max_length=8)
        self.embedding = torch.nn.Embedding(9, 6)
        self.head = torch.nn.Linear(6, 9, bias=False)

    def compute(self, inputs):
        hidden_BTD = self.embedding(inputs.tokens_BT)
        return Output(logits_BTV=self.head(hidden_BTD), hidden_BTD=hidden_BTD)

    def sequence_flops(self, length, source_length=0):
        return Flops()


def test_an_attached_readout_is_called_counted_trained_and_saved():
    model, bare = Table(), Table().parameters_by_part()
    readout = SequenceReadout(6, 3, pooling="last")
    model.attach_readout(readout)
    tokens, valid = torch.randint(9, (2, 4)), torch.arange(4) < torch.tensor([[4], [2]])
    output = model(tokens, valid_BT=valid)
    torch.testing.assert_close(output.readout, readout(model.embedding(tokens), valid))
    F.cross_entropy(output.readout, torch.tensor([0, 2])).backward()
    assert readout.classifier.weight.grad.abs().sum() > 0
    assert model.embedding.weight.grad[tokens[1, 1]].abs().sum() > 0
    assert {"readout.classifier.weight", "readout.pooler.0.bias"} <= set(model.state_dict())
    counted = model.parameters_by_part()
    assert counted.head == bare.head + 6 * 6 + 6 + 6 * 3 + 3
    assert (counted.body, counted.embedding) == (bare.body, bare.embedding)
