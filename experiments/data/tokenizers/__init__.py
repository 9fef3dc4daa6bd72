"""Text as tokens: bytes, words, byte-pair encoding, the tokenizer of a folder, chat templates."""
