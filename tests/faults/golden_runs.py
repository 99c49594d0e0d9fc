"""Runs whose numbers are kept in tests/golden: what they train, and which machines must find the same to the last bit.

    python tests/faults/golden_runs.py losses        the losses of 100 steps (F17); after a change that is meant
    python tests/faults/golden_runs.py checkpoint    a checkpoint of this version's format (F18); once for each format
    python tests/faults/golden_runs.py next-steps    what comes behind kept checkpoints; after such a change

A sum that is added up in another order rounds otherwise, so bits are the same only for one version of torch on one kind
of processor. Elsewhere numbers must agree to 1e-4, relative.
"""

import json
import shutil
import sys
import tempfile
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

import tiny_runs
import torch
from fault_table import processor
from tiny_runs import lines_of

from bertworks.train.checkpoint import FORMAT
from bertworks.train.pretrain import pretrain

GOLDEN = Path(__file__).resolve().parents[1] / "golden"
LOSSES = GOLDEN / "losses-cpu-fp32.json"
NUM_STEPS, SAVED_STEP, NUM_FURTHER_STEPS = 100, 20, 10
NUMBERS = ("loss", "mlm_loss", "nsp_loss", "mlm_accuracy", "nsp_accuracy", "grad_norm")
TOLERANCE = 1e-4


def machine_class():
    """What decides how sums are rounded."""
    return {
        "torch": torch.__version__,
        "cpu_capability": torch.backends.cpu.get_cpu_capability(),
        "processor": processor(),
    }


def losses_recipe():
    changes = {"model__preset": "2x64x2", "data__max_length": 64, "train__max_steps": NUM_STEPS}
    return tiny_runs.recipe(**changes, train__log_every=1, train__eval_every=50, train__save_every=NUM_STEPS)


def checkpoint_recipe(max_steps):
    """Smaller, for its checkpoint is kept; a constant rate, so that the number of steps does not matter."""
    changes = {"model__preset": "1x16x2", "model__max_positions": 32, "optim__schedule": "constant"}
    limits = {"train__max_steps": max_steps, "train__save_every": SAVED_STEP}
    return tiny_runs.recipe(**changes, **limits, train__log_every=1, train__eval_every=SAVED_STEP)


def numbers_of(run, first=1):
    """The numbers of each step from one on."""
    found = [line for line in lines_of(run) if "lr" in line and line["step"] >= first]
    return [[line[name] for name in NUMBERS] for line in found]


def checkpoint_folder(format):
    return GOLDEN / f"checkpoint-format-{format}"


def train(recipe, data, run):
    torch.set_num_threads(1)
    return pretrain(recipe, data=data, out=run, device="cpu", resume=True)


def write_losses(data, folder):
    train(losses_recipe(), data, folder / "run")
    kept = {"class": machine_class(), "numbers": NUMBERS, "steps": numbers_of(folder / "run")}
    LOSSES.write_text(json.dumps(kept, indent=0) + "\n")


def write_checkpoint(data, folder):
    """Keep a checkpoint, and what comes behind it."""
    train(checkpoint_recipe(SAVED_STEP), data, folder / "run")
    kept = checkpoint_folder(FORMAT)
    shutil.copytree(folder / f"run/checkpoints/step-{SAVED_STEP:08d}", kept / f"step-{SAVED_STEP:08d}")
    write_next_steps(data, folder, FORMAT)


def write_next_steps(data, folder, format):
    """Keep the numbers of the ten steps behind a kept checkpoint."""
    kept, name = checkpoint_folder(format), f"step-{SAVED_STEP:08d}"
    shutil.copytree(kept / name, folder / f"again-{format}/checkpoints" / name)
    train(checkpoint_recipe(SAVED_STEP + NUM_FURTHER_STEPS), data, folder / f"again-{format}")
    numbers = numbers_of(folder / f"again-{format}", SAVED_STEP + 1)
    (kept / "next-steps.json").write_text(
        json.dumps({"class": machine_class(), "numbers": NUMBERS, "steps": numbers}, indent=0) + "\n"
    )


if __name__ == "__main__":
    with tempfile.TemporaryDirectory() as name:
        made = tiny_runs.write_data(Path(name) / "made")
        if sys.argv[1] == "next-steps":
            for known in range(1, FORMAT + 1):
                write_next_steps(made, Path(name), known)
        else:
            {"losses": write_losses, "checkpoint": write_checkpoint}[sys.argv[1]](made, Path(name))
