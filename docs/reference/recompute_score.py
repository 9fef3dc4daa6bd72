"""Recompute the bits per byte of a causal model on the whole test split, without any code of archbench.

python docs/reference/recompute_score.py EXPORTED data-cache/KEY SEQUENCE_LENGTH
"""

import math
import sys

import numpy as np
import torch
from transformers import AutoModelForCausalLM

exported, cache, length = sys.argv[1], sys.argv[2], int(sys.argv[3])
model = AutoModelForCausalLM.from_pretrained(exported).eval()
text = torch.from_numpy(np.fromfile(f"{cache}/test.bin", dtype="<u2").astype(np.int64))
begins = [*range(0, len(text) - length, length // 2), len(text) - length]
nats, reached = 0.0, 0
with torch.no_grad():
    for begin in begins:
        window = text[begin : begin + length]
        shown = torch.cat([torch.tensor([model.config.bos_token_id]), window[:-1]])
        log_p = model(shown[None]).logits[0].log_softmax(-1)[range(length), window]
        nats -= log_p[reached - begin :].double().sum().item()  # what no window before has scored
        reached = begin + length
num_bytes = int((text < 256).sum())  # all others are special tokens
print(f"{nats / num_bytes / math.log(2):.8f} bits per byte over {num_bytes} bytes")
