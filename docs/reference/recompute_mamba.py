"""Recompute the bits per byte of a Mamba on the whole test split, in plain PyTorch, from the weights alone.

python docs/reference/recompute_mamba.py RUN/checkpoints/step-N data-cache/KEY SEQUENCE_LENGTH
"""

import math
import sys

import numpy as np
import torch
from safetensors.torch import load_file
from torch.nn.functional import conv1d, linear, pad, rms_norm, silu, softplus

checkpoint, cache, length = sys.argv[1], sys.argv[2], int(sys.argv[3])
weights = {name: value.double() for name, value in load_file(f"{checkpoint}/model.safetensors").items()}
text = torch.from_numpy(np.fromfile(f"{cache}/test.bin", dtype="<u2").astype(np.int64))
begins = torch.tensor([*range(0, len(text) - length, length // 2), len(text) - length])[:, None]
windows = text[begins + torch.arange(length)]
x = weights["embedding.weight"][torch.cat([torch.full_like(begins, 257), windows[:, :-1]], 1)]  # 257: bos
for i in range(len({name.split(".")[1] for name in weights if name.startswith("blocks.")})):
    w = {name.removeprefix(f"blocks.{i}.mixer"): value for name, value in weights.items()}
    h = rms_norm(x, x.shape[-1:], w["_residual.before.weight"], 1e-5)
    u, gate = linear(h, w[".input.weight"]).chunk(2, -1)
    kernel, bias = w[".convolution.weight_CK"], w[".convolution.bias_C"]
    before = pad(u.transpose(1, 2), (kernel.shape[1] - 1, 0))
    u = silu(conv1d(before, kernel[:, None], bias, groups=len(kernel)).transpose(1, 2))
    rank, size = w[".dt.weight"].shape[1], w[".A_log_CN"].shape[1]
    dt, B, C = linear(u, w[".select.weight"]).split([rank, size, size], -1)
    dt, A = softplus(linear(dt, w[".dt.weight"], w[".dt.bias"])), -w[".A_log_CN"].exp()
    state, y = torch.zeros(1, dtype=x.dtype), torch.empty_like(u)
    for t in range(length):
        state = (dt[:, t, :, None] * A).exp() * state + (dt[:, t] * u[:, t])[..., None] * B[:, t, None]
        y[:, t] = (state * C[:, t, None]).sum(-1)
    x = x + linear((y + w[".D_C"] * u) * silu(gate), w[".out.weight"])
logits = linear(rms_norm(x, x.shape[-1:], weights["final.weight"], 1e-5), weights["head.weight"])
nats = -logits.log_softmax(-1).gather(-1, windows[..., None])[..., 0]
reached = torch.cat([torch.zeros_like(begins[:1]), begins[:-1] + length])  # by the window before
scored = begins + torch.arange(length) >= reached
num_bytes = int((text < 256).sum())  # all others are special tokens
print(f"{nats[scored].sum().item() / num_bytes / math.log(2):.8f} bits per byte over {num_bytes} bytes")
