"""GPUs by the names of their drivers."""

import pytest

from bertworks.planning.costs import GPUS, named_by_driver


@pytest.mark.parametrize(
    ("device_name", "name"),
    [
        ("NVIDIA H200", "h200"),
        ("NVIDIA H100 80GB HBM3", "h100"),
        ("NVIDIA A100-SXM4-80GB", "a100-80"),
        ("NVIDIA A100-PCIE-40GB", "a100-40"),
        ("NVIDIA L40S", "l40s"),
        ("NVIDIA L4", "l4"),
        ("NVIDIA GeForce RTX 4090", "rtx-4090"),
        ("Tesla V100-SXM2-32GB", "v100-32"),
        ("Tesla T4", "t4"),
        ("NVIDIA L40", None),
        ("NVIDIA GeForce RTX 4080", None),
        ("", None),
    ],
)
def test_a_driver_s_name_is_understood(device_name, name):
    assert named_by_driver(device_name) == name
    assert name is None or name in GPUS
