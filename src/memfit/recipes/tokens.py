"""Tokenizers that need no files: bytes for small vocabularies, hashed words for large ones."""

from __future__ import annotations

import re
import zlib

import numpy as np

from memfit.core.errors import UsageError

PAD, CLS, SEP, MASK = range(4)
SPECIAL = 4
BYTES_VOCABULARY = SPECIAL + 256
WORDS_FROM = 1024
_WORD = re.compile(rb" ?[A-Za-z_\x80-\xff]+| ?[0-9]+| ?[^\sA-Za-z0-9_\x80-\xff]|\s+")


class Tokenizer:
    """Ids from `SPECIAL` up to below `vocab`.

    Below 1,024 a token is a byte. From there on it is a word with the space before it, a number, a sign or a run of
    white space, and its id is its CRC-32 modulo the vocabulary: two words may share an id, as nothing is learned or
    stored. That exercises a large vocabulary's memory and learns; its perplexity compares with itself only.
    """

    def __init__(self, vocab: int) -> None:
        if vocab < BYTES_VOCABULARY:
            raise UsageError(f"vocab is {vocab}", f"give at least {BYTES_VOCABULARY}: 256 bytes and {SPECIAL} marks")
        self._words = vocab >= WORDS_FROM
        self._ids = vocab - SPECIAL
        self.bytes_per_token = 5 if self._words else 1
        """How much text to read for a token, so that most rows are nearly full and the longest are cut."""

    def __call__(self, text: bytes, most: int) -> np.ndarray:
        """At most `most` token ids, int64."""
        if not self._words:
            return np.frombuffer(text[:most], dtype=np.uint8).astype(np.int64) + SPECIAL
        words = (match.group() for match, _ in zip(_WORD.finditer(text), range(most)))
        return np.fromiter((zlib.crc32(word) % self._ids + SPECIAL for word in words), dtype=np.int64)
