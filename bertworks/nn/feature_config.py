"""Which frozen layers a tagger reads, by the names of the paper's Table 7. Nothing here needs torch."""

from typing import Literal

from pydantic import Field

from bertworks.config import Settings
from bertworks.errors import UserError

FeatureName = Literal["embeddings", "second-to-last", "last", "sum-last-four", "concat-last-four", "sum-all"]
FEATURES: tuple[FeatureName, ...] = (
    "embeddings", "second-to-last", "last", "sum-last-four", "concat-last-four", "sum-all",
)  # fmt: skip


class FeatureConfig(Settings):
    """What it takes to build a tagger on frozen layers, besides their width; the paper's unless said otherwise."""

    features: FeatureName = "concat-last-four"
    lstm_cells: int = Field(default=768, ge=1, le=65_536)  # of each direction
    lstm_layers: int = Field(default=2, ge=1, le=512)
    lstm_dropout: float = Field(default=0.1, ge=0, lt=1)

    @property
    def is_mixed(self) -> bool:
        """Whether layers become one by learned weights, or lie side by side."""
        return self.features.startswith("sum-")


def layers_of(features: FeatureName, num_layers: int) -> tuple[int, ...]:
    """Return which layers of an encoder are read, 0 being the embeddings; "all" are the layers without them."""
    wanted = {
        "embeddings": range(1),
        "second-to-last": range(num_layers - 1, num_layers),
        "last": range(num_layers, num_layers + 1),
        "sum-all": range(1, num_layers + 1),
    }.get(features, range(num_layers - 3, num_layers + 1))
    least = {"embeddings": 0, "second-to-last": 2, "last": 1, "sum-all": 1}.get(features, 4)
    if num_layers < least:
        raise UserError(
            f"task.features={features} needs a model of at least {least} layers, and this one has {num_layers}"
        )
    return tuple(wanted)
