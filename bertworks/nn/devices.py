"""Where to compute: the device that a person names, or the best one there is."""

import torch

from bertworks.errors import UserError


def find_device(name: str) -> torch.device:
    """Return the device of that name; `auto` is a GPU where there is one."""
    if name == "auto":
        if torch.cuda.is_available():
            return torch.device("cuda")
        return torch.device("mps" if torch.backends.mps.is_available() else "cpu")
    try:
        device = torch.device(name)
        torch.empty(1, device=device).cpu()  # refused by `meta` too, a device without memory
    except (RuntimeError, AssertionError, NotImplementedError) as error:
        raise UserError(f"the device {name[:40]!r} is not there; choose auto or cpu") from error
    return device
