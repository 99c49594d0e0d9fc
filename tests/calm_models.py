"""A small encoder whose upper layers still tell the words apart, as those of a trained one do."""

from small_models import PIECES

from bertworks.models.kinds import write_model
from bertworks.nn.bert import Bert
from bertworks.nn.config import BertConfig
from bertworks.nn.layers import initialise
from bertworks.text.tokenizer import Tokenizer


def write_calm_model(folder, seed=0, **changes):
    sizes = {"vocab_size": len(PIECES), "hidden_size": 16, "num_hidden_layers": 4, "num_attention_heads": 2,
             "intermediate_size": 24, "max_position_embeddings": 20}  # fmt: skip
    net = Bert(BertConfig(**(sizes | changes)), {})
    initialise(net, 0.1, seed)
    folder.mkdir(parents=True, exist_ok=True)
    write_model(folder, net)
    Tokenizer(PIECES).save(folder)
    return folder
