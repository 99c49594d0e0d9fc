"""Wrong settings of the data are told by name, all at once."""

import pytest

from bertworks import config
from bertworks.config import DataSettings
from bertworks.errors import ConfigError


@pytest.mark.parametrize(
    ("values", "said"),
    [
        ({"objective": "clm"}, "objective"),
        ({"max_length": 7}, "max_length: 7 is too small; at least 8"),
        ({"max_length": "128"}, "max_length: '128' is not a whole number"),
        ({"mask_rate": 0.0}, "mask_rate: 0.0 is too small; more than 0"),
        ({"mask_rate": 1.0}, "mask_rate: 1.0 is too large; less than 1"),
        ({"max_predictions": 0}, "max_predictions: 0 is too small; at least 1"),
        ({"dupe_factor": -1}, "dupe_factor: -1 is too small; at least 0"),
        ({"mask_share": 0.8, "random_share": 0.3}, "random_share: 0.3 and mask_share 0.8 are more than 1 together"),
        ({"mask_rates": 0.2}, "mask_rate"),
    ],
)
def test_wrong_settings_are_told_by_name_value_and_rule(values, said):
    with pytest.raises(ConfigError) as caught:
        config.validate(DataSettings, values, "data")
    assert said in str(caught.value)


def test_all_wrong_settings_are_told_at_once():
    with pytest.raises(ConfigError) as caught:
        config.validate(DataSettings, {"max_length": 1, "random_share": 0.5, "dupe_factor": -1}, "data")
    assert all(name in str(caught.value) for name in ("max_length", "random_share", "dupe_factor"))
