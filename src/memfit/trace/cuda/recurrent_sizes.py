"""What cuDNN's recurrent layers keep for backward, and take while they run.

Formulas fit two prints by maintainers, to the byte in the reserve: pytorch#2895 (4 layers of 320, LSTM 736,000,000 and GRU
864,000,000 bytes, workspaces 17.7 and 13.2 MB beside weights of 12.1 and 9.1 MB) and deepspeech.pytorch#172 (a bidirectional
GRU of 800, 801,177,600 bytes). Both are older than cuDNN 8; a newer one cannot be asked without a card.
"""

from __future__ import annotations

from dataclasses import dataclass

from memfit.trace.cuda.sizes import Elastic

_LSTM, _GRU = 2, 3
_KEPT = {_LSTM: 5, _GRU: 6}  # numbers kept for each hidden unit, row and direction: gates and cell, gates and their parts
_KEPT_BY_OTHERS = 2
_USUAL_OVER_WEIGHTS = 1.5


@dataclass(frozen=True)
class Layers:
    """A stack of layers and one batch. `rows` are time steps times samples; `projected` the side of an output."""

    mode: int
    rows: int
    batch: int
    hidden: int
    projected: int
    count: int
    directions: int
    itemsize: int
    train: bool
    dropout: float
    weight_bytes: int


def reserve_bytes(layers: Layers) -> int:
    """Kept from forward to backward; nothing in inference."""
    if not layers.train:
        return 0
    places = layers.rows * layers.directions
    kept = places * layers.hidden * _KEPT.get(layers.mode, _KEPT_BY_OTHERS) * layers.count
    between = places * layers.projected * (layers.count - 1)  # outputs of one layer are the next one's inputs
    masks = between if layers.train and layers.dropout > 0 else 0  # at most a byte an element
    return (kept + between) * layers.itemsize + masks


def workspace(layers: Layers) -> Elastic:
    """Taken during each of the three calls: about the weights once more and a half, seldom half of the reserve on top."""
    return Elastic(layers.weight_bytes // 2, round(_USUAL_OVER_WEIGHTS * layers.weight_bytes),
                   2 * layers.weight_bytes + reserve_bytes(layers) // 2)
