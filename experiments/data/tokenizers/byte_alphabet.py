"""The printable characters that represent bytes in byte-level BPE."""

from __future__ import annotations


def byte_level_alphabet() -> dict[str, int]:
    """The byte that each printable character represents in byte-level BPE (Radford et al. 2019).

    Printable Latin-1 characters represent themselves; the other bytes are represented
    by characters from U+0100 on, in order.
    """
    printable = [*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)]
    others = [b for b in range(256) if b not in printable]
    return {chr(b): b for b in printable} | {chr(256 + i): b for i, b in enumerate(others)}
