"""Products of PyTorch beside linear layers: each is counted, or is an error."""

import pytest
import torch
from torch import nn

from tests.experiments.run.flop_layers import D, Layer, T, problem


def dense(name, product):
    """Return a layer with a product beside its linear layer, which it does not state."""

    def forward(self, x_BTD, context):
        return self.out(x_BTD) + product(self, x_BTD)

    def init(self):
        Layer.__init__(self)
        self.tensor_DDD = nn.Parameter(torch.randn(D, D, D) / D)

    return type(name, (Layer,), {"__init__": init, "forward": forward})


def rows_of(x_BTD, function):
    return torch.stack([function(x_D) for x_D in x_BTD.flatten(0, 1)]).view_as(x_BTD)


def of_identity(layer):
    return torch.eye(D) + layer.out.weight / 100


def as_int8(x):
    return (10 * x.detach()).to(torch.int8)


def nested(x_BTD, layout):
    return torch.nested.as_nested_tensor(list(x_BTD.unbind(0)), layout=layout)


UNSEEN = {
    "bilinear": lambda m, x: nn.functional.bilinear(x, x, m.tensor_DDD),
    "mv": lambda m, x: rows_of(x, lambda x_D: torch.mv(m.out.weight, x_D)),
    "dot": lambda m, x: rows_of(x, lambda x_D: torch.stack([x_D.dot(w_D) for w_D in m.out.weight])),
    "addbmm": lambda m, x: torch.addbmm(x[0], x, m.out.weight.expand(len(x), D, D)),
    "cdist": lambda m, x: torch.cdist(x, m.tensor_DDD[0]),
    "addmm_": lambda m, x: x.flatten(0, 1).clone().addmm_(x.flatten(0, 1), m.out.weight).view_as(x),
    "solve": lambda m, x: torch.linalg.solve(of_identity(m), x.mT).mT,
    "inverse": lambda m, x: torch.linalg.inv(torch.eye(D) + x[:, :D].mT @ x[:, :D]).sum(1, keepdim=True),
    "mkldnn": lambda m, x: torch.ops.mkldnn._linear_pointwise(
        x.detach(), m.out.weight.detach(), None, "none", [], ""
    ),
    "sparse": lambda m, x: torch.sparse.mm(m.out.weight.detach().to_sparse(), x[0].mT).mT[None],
    "complex": lambda m, x: (x.to(torch.cfloat) @ m.out.weight.to(torch.cfloat)).real,
    "int8": lambda m, x: torch._int_mm(as_int8(x[0]), as_int8(m.out.weight))[None].to(x.dtype),
    "int8_pack": lambda m, x: torch._weight_int8pack_mm(
        x[0].detach().bfloat16(), as_int8(m.out.weight), torch.ones(D, dtype=torch.bfloat16)
    )[None].to(x.dtype),
    "quantized": lambda m, x: torch.ao.nn.quantized.dynamic.Linear(D, D)(x.detach()),
    "embedding_bag": lambda m, x: nn.functional.embedding_bag(
        torch.arange(D).expand(T, D), m.out.weight, per_sample_weights=x[0], mode="sum"
    )[None],
    "nested": lambda m, x: torch.stack(m.out(nested(x, torch.jagged)).unbind()),
}


class OldNested(Layer):
    def forward(self, x_BTD, context):
        return torch.stack(self.out(nested(x_BTD, torch.strided)).unbind())


@pytest.mark.parametrize("name", UNSEEN)
def test_every_product_of_pytorch_is_counted(name):
    assert f"blocks.0.mixer ({name}) takes" in str(problem(dense(name, UNSEEN[name])))


def test_a_nested_tensor_that_cannot_be_counted_is_an_error():
    with pytest.raises(ValueError, match=r"layout=torch\.jagged"):
        problem(OldNested)
