"""What stands on top of the encoder: one small layer for each kind of task, as in the paper's Figure 4.

T tokens, S sequences, D width, M masked positions, V vocabulary, K outputs.

| head     | reads            | gives                                                      |
|----------|------------------|------------------------------------------------------------|
| mlm      | masked positions | a score for every piece; its matrix is the piece embedding |
| nsp      | pooled [CLS]     | B follows A, B is random                                   |
| classify | pooled [CLS]     | a score for every class; one output: regression            |
| choose   | pooled [CLS]     | one score for each choice, each a sequence of its own      |
| tag      | tokens           | a score for every tag                                      |
| span     | tokens           | start and end scores; [CLS] stands for no answer           |
"""

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from bertworks.nn.config import BertConfig
from bertworks.nn.layers import LayerNorm, Linear, activate

_COLUMN_MULTIPLE = 64  # tensor cores want even columns; 30,522 pieces are three times slower than 30,528


class MlmHead(nn.Module):
    """Guesses the pieces at masked positions."""

    reads_pooled = False

    def __init__(self, config: BertConfig) -> None:
        super().__init__()
        self.dense = Linear(config.hidden_size, config.hidden_size)
        self.norm = LayerNorm(config.hidden_size, config.layer_norm_eps)
        self.bias = nn.Parameter(torch.empty(config.vocab_size))
        self.act = config.hidden_act

    def forward(self, hidden_MD: Tensor, embedding_VD: Tensor) -> Tensor:
        """Return logits [M, V], with the extra columns of `tied_logits`."""
        return tied_logits(self.norm(activate(self.dense(hidden_MD), self.act)), embedding_VD, self.bias)


def tied_logits(x_MD: Tensor, embedding_VD: Tensor, bias_V: Tensor | None = None) -> Tensor:
    """Score rows with each piece's embedding, [M, V]; on CUDA up to 63 columns of -inf follow, unseen by a softmax."""
    embedding_VD = embedding_VD.to(x_MD.dtype)
    missing = -len(embedding_VD) % _COLUMN_MULTIPLE if x_MD.is_cuda else 0
    if not missing:
        return F.linear(x_MD, embedding_VD, bias_V)
    bias_V = embedding_VD.new_zeros(len(embedding_VD)) if bias_V is None else bias_V
    return F.linear(x_MD, F.pad(embedding_VD, (0, 0, 0, missing)), F.pad(bias_V, (0, missing), value=-torch.inf))


class OutputHead(nn.Module):
    """A linear map from each row to K outputs, with dropout before it."""

    def __init__(self, config: BertConfig, num_outputs: int, *, reads_pooled: bool, dropout: bool) -> None:
        super().__init__()
        self.out = Linear(config.hidden_size, num_outputs)
        self.dropout = config.hidden_dropout_prob if dropout else 0.0
        self.reads_pooled, self.num_outputs = reads_pooled, num_outputs

    def forward(self, rows: Tensor) -> Tensor:
        """Map rows of width D to K outputs."""
        return self.out(F.dropout(rows, self.dropout, self.training))


Head = MlmHead | OutputHead


def make_head(name: str, config: BertConfig, num_outputs: int) -> Head:
    """Make a head by its name; `num_outputs` is the number of classes or tags where the task decides it."""
    if name == "mlm":
        return MlmHead(config)
    if name == "nsp":
        return OutputHead(config, 2, reads_pooled=True, dropout=False)
    if name == "classify":
        return OutputHead(config, num_outputs, reads_pooled=True, dropout=True)
    if name == "choose":
        return OutputHead(config, 1, reads_pooled=True, dropout=True)
    if name == "tag":
        return OutputHead(config, num_outputs, reads_pooled=False, dropout=True)
    assert name == "span", f"no head is called {name}"
    return OutputHead(config, 2, reads_pooled=False, dropout=False)
