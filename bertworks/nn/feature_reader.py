"""A tagger on frozen layers: the paper's feature-based approach (section 5.3, Table 7).

T words, D width of the encoder, H width of the BiLSTM's output, K labels.

One or several layers of a frozen encoder, side by side or summed with learned weights, go into a BiLSTM and from there
into a classification layer. The BiLSTM reads words, each as its first piece, and a sentence at a time: what a document
adds is in the features already. (The code of the paper's tagger was never published; the paper says that the first
piece stands for a word, and the taggers it compares itself with read words of a sentence.)
"""

from collections.abc import Sequence

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from bertworks.nn.bert import Bert
from bertworks.nn.bilstm import BiLstm, ScalarMix
from bertworks.nn.config import BertConfig
from bertworks.nn.feature_config import FeatureConfig, layers_of
from bertworks.nn.layers import Linear
from bertworks.nn.packing import Packing

HEAD = "tag"


class FeatureReader(nn.Module):
    """Scores the labels of words by some layers of theirs.

    Args:
        config: which layers, and how large a BiLSTM.
        encoder: the sizes of what makes the layers.
        num_outputs: the number of labels.

    Attributes:
        layers: which layers are read, 0 being the embeddings.
    """

    reads_pooled = False  # it is a head, if an unusual one: see `reader_of`

    def __init__(self, config: FeatureConfig, encoder: BertConfig, num_outputs: int) -> None:
        super().__init__()
        self.config = config
        self.layers = layers_of(config.features, encoder.num_hidden_layers)
        self.mix = ScalarMix(len(self.layers)) if config.is_mixed else None
        num_in = encoder.hidden_size * (1 if config.is_mixed else len(self.layers))
        self.lstm = BiLstm(num_in, config.lstm_cells, config.lstm_layers, config.lstm_dropout)
        self.out = Linear(self.lstm.width, num_outputs)

    def forward(self, layers: Sequence[Tensor], packing: Packing) -> Tensor:
        """Return scores [T, K] of words, given [T, D] of each layer and which words belong to one sentence."""
        # To the network's own type: features may be kept in half precision, and are learnt from in full.
        own = [layer.to(self.out.weight.dtype) for layer in layers]
        x_TD = self.mix(own) if self.mix is not None else own[0] if len(own) == 1 else torch.cat(own, 1)
        return self.out(F.dropout(self.lstm(x_TD, packing), self.config.lstm_dropout, self.training))


def feature_bert(encoder: Bert, reader: FeatureReader) -> Bert:
    """Make a reader of its layers the tag head of an encoder that has none."""
    encoder.heads[HEAD] = reader
    return encoder


def reader_of(net: Bert) -> FeatureReader | None:
    """Return the reader of a network that tags by frozen layers, or None."""
    heads = [head for head in net.heads.values() if isinstance(head, FeatureReader)]
    return heads[0] if heads else None
