"""Rows of tokens for three tasks: classification, masked and causal language models. Short rows are padded."""

from __future__ import annotations

import numpy as np
import torch

from memfit.recipes.corpus import Corpus
from memfit.recipes.sampling import Batch
from memfit.recipes.tokens import CLS, MASK, PAD, SEP, SPECIAL, Tokenizer

IGNORED = -100
MASKED_SHARE = 0.15


class _Rows:
    """Pieces of a corpus as rows of `seq` tokens, with `edges` places kept for marks around the text."""

    edges = 0

    def __init__(self, corpus: Corpus, tokenizer: Tokenizer, seq: int) -> None:
        self._corpus = corpus
        self._tokenizer = tokenizer
        self._seq = seq

    def __len__(self) -> int:
        return len(self._corpus)

    def _rows(self, indices: np.ndarray) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """Ids [n, seq] padded with PAD, lengths [n], classes [n], all int64."""
        ids = np.full((len(indices), self._seq), PAD, dtype=np.int64)
        lengths, labels = np.zeros(len(indices), dtype=np.int64), np.zeros(len(indices), dtype=np.int64)
        for row, index in enumerate(indices):
            text, labels[row] = self._corpus.piece(int(index))
            tokens = self._tokenizer(text, self._seq - self.edges)
            if self.edges:
                tokens = np.concatenate(([CLS], tokens, [SEP]))
            ids[row, :len(tokens)] = tokens
            lengths[row] = len(tokens)
        return ids, lengths, labels

    def _inside(self, lengths: np.ndarray) -> np.ndarray:
        """Bool [n, seq]: not padding."""
        return np.arange(self._seq)[None, :] < lengths[:, None]


class Labelled(_Rows):
    """Which class a passage is from: input_ids and attention_mask int64 [n, seq], labels int64 [n]."""

    edges = 2

    def batch(self, indices: np.ndarray, draws: np.random.Generator) -> Batch:
        ids, lengths, labels = self._rows(indices)
        return _tensors(input_ids=ids, attention_mask=self._inside(lengths).astype(np.int64), labels=labels)


class Masked(_Rows):
    """Hidden tokens: of 15 % of a passage's tokens 80 % are masked, 10 % another token, 10 % as they were.

    input_ids, attention_mask and labels int64 [n, seq]; labels are -100 where nothing is asked.
    """

    edges = 2

    def batch(self, indices: np.ndarray, draws: np.random.Generator) -> Batch:
        ids, lengths, _ = self._rows(indices)
        inside = self._inside(lengths)
        score = np.where(ids >= SPECIAL, draws.random(ids.shape), 2.0)
        asked = (score < MASKED_SHARE) | ((score == score.min(axis=1, keepdims=True)) & (score < 2.0))  # one at least
        labels = np.where(asked, ids, IGNORED)
        how = draws.random(ids.shape)
        others = draws.choice(ids[ids >= SPECIAL], ids.shape)  # as frequent as in the text
        hidden = np.where(how < 0.8, MASK, np.where(how < 0.9, others, ids))
        return _tensors(input_ids=np.where(asked, hidden, ids), attention_mask=inside.astype(np.int64), labels=labels)


class Causal(_Rows):
    """The next token: input_ids and labels int64 [n, seq], labels -100 on padding.

    Padding stands at the end and asks nothing, so that no attention mask is needed.
    """

    def batch(self, indices: np.ndarray, draws: np.random.Generator) -> Batch:
        ids, lengths, _ = self._rows(indices)
        return _tensors(input_ids=ids, labels=np.where(self._inside(lengths), ids, IGNORED))


def _tensors(**arrays: np.ndarray) -> Batch:
    return {name: torch.from_numpy(array) for name, array in arrays.items()}
