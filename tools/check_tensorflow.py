"""Compare our checkpoint reader and writer with a real TensorFlow. Run by hand, where tensorflow is installed as well.

TensorFlow writes checkpoints in every form that we claim to read (several data files, partitioned variables, every
type), we read them; we write one, TensorFlow lists, reads and restores it. Usage: check_tensorflow.py [PREFIX...],
where each PREFIX is a further checkpoint that both read. The log of a run is docs/results/tensorflow.txt.
"""

import os
import sys
import tempfile
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")

import numpy as np
import tensorflow as tf

from bertworks.models.tf_bundle import Bundle, write_bundle

v1 = tf.compat.v1
v1.disable_eager_execution()

TYPES = ("float32", "float64", "float16", "bfloat16", "int32", "int64", "uint8", "bool")


def same(ours: np.ndarray, theirs: Any) -> bool:
    """Tell whether values, shape and type are equal; bfloat16 is float32 with us."""
    theirs = np.asarray(theirs)
    if theirs.dtype.name == "bfloat16":
        theirs = theirs.astype(np.float32)
    return ours.dtype == theirs.dtype and ours.shape == theirs.shape and ours.tobytes() == theirs.tobytes()


def check(what: str, prefix: Path, expected: Mapping[str, Any] | None = None) -> None:
    """Read a checkpoint with both, and compare with what went in where that is known."""
    bundle, reader = Bundle(prefix), tf.train.load_checkpoint(str(prefix))
    theirs = {name: reader.get_tensor(name) for name in reader.get_variable_to_shape_map()}
    numbers = {name: value for name, value in theirs.items() if np.asarray(value).dtype.kind not in "OSU"}
    assert sorted(numbers) == bundle.names(), (sorted(numbers), bundle.names())
    for name, value in numbers.items():
        assert same(bundle.read(name), value), name
        assert expected is None or same(bundle.read(name), expected[name]), name
    num_shards = len(bundle.files()) - 1
    skipped = f", {len(theirs) - len(numbers)} of text left out" if len(theirs) > len(numbers) else ""
    print(f"{what}: {len(numbers)} tensors in {num_shards} data file(s) equal{skipped}")


def values(seed: int) -> dict[str, np.ndarray]:
    """Make a tensor of every type, a scalar, an empty one, and one larger than the pieces that are read at a time."""
    random = np.random.default_rng(seed)
    made = {f"types/{name}": random.normal(0, 50, (7, 5)).astype(tf.as_dtype(name).as_numpy_dtype) for name in TYPES}
    return made | {
        "global_step": np.int64(123_456_789_012),
        "empty": np.zeros((0, 3), np.float32),
        "large": random.normal(size=(1_003, 517)).astype(np.float32),
        "name with ä and 한": np.float32(1.5),
    }


def saved(folder: Path, build: Callable[[], dict[str, Any]], **options: Any) -> tuple[Path, dict[str, Any]]:
    """Let TensorFlow build variables and save them; returns the checkpoint's prefix and the values."""
    two_devices = v1.ConfigProto(device_count={"CPU": 2})
    with tf.Graph().as_default(), v1.Session(config=two_devices) as session:
        variables = build()
        session.run(v1.global_variables_initializer())
        expected = session.run(variables)
        prefix = v1.train.Saver(**options).save(session, str(folder / "made.ckpt"), write_meta_graph=False)
    return Path(prefix), expected


def plain_variables() -> dict[str, Any]:
    """Make one variable of each value whose name TensorFlow allows for a variable."""
    return {
        name: v1.get_variable(name, initializer=tf.constant(value), use_resource=False)
        for name, value in values(0).items()
        if " " not in name
    }


def variables_on_two_devices() -> dict[str, Any]:
    """Put variables on two devices, for each of which a sharded save writes a file."""
    made = {}
    for device in range(2):
        with tf.device(f"/device:CPU:{device}"):
            start = tf.range(9.0) + device
            made[f"on/{device}"] = v1.get_variable(f"on/{device}", initializer=start, use_resource=False)
    return made


def partitioned_variables() -> dict[str, Any]:
    """Split variables along their first and their second axis, into even and uneven parts, beside a whole one."""
    cases = {"first": (3, 0, (10, 4)), "second": (4, 1, (3, 1_000)), "many": (200, 0, (20_000, 2)), "a/b": (2, 0, (5,))}
    made = {}
    for name, (num_parts, axis, shape) in cases.items():
        partitioner = v1.fixed_size_partitioner(num_parts, axis)
        start = v1.random_normal_initializer(seed=axis)
        variable = v1.get_variable(name, shape, initializer=start, use_resource=False, partitioner=partitioner)
        made[name] = variable.as_tensor()
    made["whole"] = v1.get_variable("whole", initializer=tf.range(6.0), use_resource=False)
    return made


def save_by_operations(folder: Path, tensors: Mapping[str, Any], num_parts: int) -> Path:
    """Write bundles by the raw operations and merge them, as a run on several machines does."""
    names, parts = sorted(tensors), [str(folder / f"part-{part}") for part in range(num_parts)]
    with tf.Graph().as_default(), v1.Session() as session:
        for part, prefix in enumerate(parts):
            own = names[part::num_parts]
            constants = [tf.constant(tensors[name]) for name in own]
            session.run(
                tf.raw_ops.SaveV2(prefix=prefix, tensor_names=own, shape_and_slices=[""] * len(own), tensors=constants)
            )
        session.run(tf.raw_ops.MergeV2Checkpoints(checkpoint_prefixes=parts, destination_prefix=str(folder / "merged")))
    return folder / "merged"


def restores(prefix: Path, expected: Mapping[str, np.ndarray]) -> None:
    """Let a Saver restore variables of our checkpoint."""
    with tf.Graph().as_default(), v1.Session() as session:
        variables = {
            name: v1.get_variable(f"v{number}", value.shape, value.dtype, use_resource=False)
            for number, (name, value) in enumerate(expected.items())
        }
        v1.train.Saver(variables).restore(session, str(prefix))
        for name, value in session.run(variables).items():
            assert same(expected[name], value), name
    print(f"ours, restored by Saver: {len(expected)} variables equal")


def main() -> None:
    """Run every comparison; the first that fails ends it."""
    print(f"tensorflow {tf.__version__}, numpy {np.__version__}")
    with tempfile.TemporaryDirectory() as name:
        folders = [Path(name) / str(number) for number in range(6)]
        for folder in folders:
            folder.mkdir()
        check("TensorFlow's, every type", *saved(folders[0], plain_variables))
        check("TensorFlow's, sharded=True", *saved(folders[1], variables_on_two_devices, sharded=True))
        check("TensorFlow's, partitioned variables", *saved(folders[2], partitioned_variables))
        made = {key: value for key, value in values(2).items() if np.asarray(value).size} | {"text": "words"}
        check("TensorFlow's, three bundles merged", save_by_operations(folders[3], made, num_parts=3), made)
        many = {f"a/rather/long/name/of/a/variable/{number}": np.float32(number) for number in range(9_000)}
        check("TensorFlow's, index of several blocks", save_by_operations(folders[5], many, num_parts=2), many)
        ours = {key: np.asarray(value) for key, value in values(3).items() if key != "types/bfloat16"}
        write_bundle(folders[4] / "ours.ckpt", ours)
        check("ours", folders[4] / "ours.ckpt", ours)
        restores(folders[4] / "ours.ckpt", ours)
    for prefix in sys.argv[1:]:
        check(Path(prefix).parent.name, Path(prefix))


if __name__ == "__main__":
    main()
