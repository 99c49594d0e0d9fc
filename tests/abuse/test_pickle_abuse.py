"""S1-S3, P4: no file that we read runs code: pickles are refused by default, and on request they are read as data."""

import ast
import builtins
import collections
import io
import json
import os
import pickle
import pickletools
import shutil
import struct
import subprocess
import sys
import tarfile
import zipfile
from pathlib import Path

import numpy as np
import pytest
import torch

import bertworks
from bertworks.errors import CorruptFile, UserError
from bertworks.models.convert import convert
from bertworks.models.kinds import read_model, write_model
from bertworks.models.pickles import Machine, describe, read_pickle_weights
from bertworks.nn.bert import Bert
from bertworks.nn.config import BertConfig
from bertworks.nn.layers import initialise

CONFIG = BertConfig(
    vocab_size=20, hidden_size=8, num_hidden_layers=1, num_attention_heads=2, intermediate_size=8,
    max_position_embeddings=8,
)  # fmt: skip


class Calls:
    """Pickles as a call of a function."""

    def __init__(self, function, *arguments):
        self.call = function, arguments

    def __reduce__(self):
        return self.call


@pytest.fixture
def net():
    net = Bert(CONFIG, {"mlm": 0})
    initialise(net, 0.5, seed=0)
    return net


@pytest.fixture
def folder(tmp_path, net):
    folder = tmp_path / "folder"
    folder.mkdir()
    write_model(folder, net)
    (folder / "vocab.txt").write_text("[UNK]\n")
    return folder


@pytest.fixture
def tensors(folder):
    from safetensors.torch import load_file

    return load_file(folder / "model.safetensors")


def torch_bytes(value, **options):
    stream = io.BytesIO()
    torch.save(value, stream, **options)
    return stream.getvalue()


def legacy_bytes(value):
    return torch_bytes(value, _use_new_zipfile_serialization=False)


def archive_of(program, **entries):
    stream = io.BytesIO()
    with zipfile.ZipFile(stream, "w") as archive:
        archive.writestr("archive/data.pkl", program)
        for name, data in entries.items():
            archive.writestr(f"archive/{name}", data)
    return stream.getvalue()


def npy_bytes(evil):
    stream = io.BytesIO()
    np.save(stream, np.array([evil], dtype=object), allow_pickle=True)
    return stream.getvalue()


def npz_bytes(evil):
    stream = io.BytesIO()
    np.savez(stream, a=np.array([evil], dtype=object))
    return stream.getvalue()


def tar_bytes(evil):
    stream = io.BytesIO()
    with tarfile.open(fileobj=stream, mode="w") as archive:
        for name in ("storages", "tensors", "pickle"):
            data = pickle.dumps(evil, protocol=2)
            member = tarfile.TarInfo(name)
            member.size = len(data)
            archive.addfile(member, io.BytesIO(data))
    return stream.getvalue()


def by_stack_global(canary):
    """Protocol 4, with the name put together on the stack, which a search for `os system` does not find."""
    text = f"touch {canary}".encode()
    return b"\x80\x04\x8c\x02os\x8c\x06system\x93" + b"X" + struct.pack("<I", len(text)) + text + b"\x85R."


def by_inst(canary):
    return b"\x80\x02(X" + struct.pack("<I", len(f"touch {canary}")) + f"touch {canary}".encode() + b"ios\nsystem\n."


def nested(canary):
    return {"a": [(1, {"b": Calls(Calls, Calls(os.system, f"touch {canary}"))})], "w": torch.ones(2)}


def by_attribute(canary):
    """Only allowed modules are asked for, and the way to `os` leads through an attribute."""
    return b"\x80\x02ctorch._utils\nos.system\nX" + struct.pack("<I", 5) + b"touch\x85R."


MALICIOUS = {
    "os.system in a zip": lambda c: torch_bytes({"w": Calls(os.system, f"touch {c}")}),
    "os.system in a legacy file": lambda c: legacy_bytes({"w": Calls(os.system, f"touch {c}")}),
    "eval": lambda c: torch_bytes({"w": Calls(builtins.eval, f"open({str(c)!r}, 'w')")}),
    "exec": lambda c: legacy_bytes({"w": Calls(builtins.exec, f"open({str(c)!r}, 'w')")}),
    "nested reduce": lambda c: torch_bytes(nested(c)),
    "before the magic number": lambda c: pickle.dumps(Calls(os.system, f"touch {c}"), 2) + legacy_bytes({}),
    "a bare pickle": lambda c: pickle.dumps({"w": Calls(os.system, f"touch {c}")}),
    "a pickle of protocol 0": lambda c: pickle.dumps({"w": Calls(os.system, f"touch {c}")}, 0),
    "a name from the stack": lambda c: archive_of(by_stack_global(c)),
    "an old class instance": lambda c: archive_of(by_inst(c)),
    "a way through an allowed module": lambda c: archive_of(by_attribute(c)),
    "a tar of the first torch": lambda c: tar_bytes(Calls(os.system, f"touch {c}")),
    ".npy of objects": lambda c: npy_bytes(Calls(os.system, f"touch {c}")),
    ".npz of objects": lambda c: npz_bytes(Calls(os.system, f"touch {c}")),
    "as joblib writes": lambda c: pickle.dumps([Calls(Path(c).touch), Calls(os.system, f"touch {c}")], 3),
}
ENDINGS = ["pytorch_model.bin", "model.pt", "model.pth", "weights.npy", "weights.npz", "model.joblib", "model.pkl"]


@pytest.mark.parametrize("kind", MALICIOUS)
def test_a_malicious_pickle_never_runs(folder, tmp_path, kind):
    """S1: not by default, whatever its name, not as model.safetensors, and not when reading pickles was allowed."""
    canary = tmp_path / "canary"
    data = MALICIOUS[kind](canary)
    assert not canary.exists()
    (folder / "model.safetensors").write_bytes(data)
    with pytest.raises(CorruptFile, match="is not a safetensors file"):
        bertworks.load(folder)
    (folder / "model.safetensors").unlink()
    for name in ENDINGS:
        (folder / name).write_bytes(data)
        with pytest.raises(UserError, match="refused: pickle"):
            bertworks.load(folder)
        if name != "pytorch_model.bin":
            (folder / name).unlink()
    with pytest.raises(UserError, match="refused: pickle"):
        convert(folder, tmp_path / "new", from_pickle=True)
    assert not canary.exists()
    assert not (tmp_path / "new").exists()


def test_the_name_that_a_pickle_asks_for_is_told(tmp_path):
    for kind, name in (("os.system in a zip", r"(posix|nt)\.system"), ("eval", r"(__builtin__|builtins)\.eval")):
        (tmp_path / "w.bin").write_bytes(MALICIOUS[kind](tmp_path / "canary"))
        with pytest.raises(UserError, match=rf"^refused: pickle .*w\.bin asks for {name}$"):
            read_pickle_weights(tmp_path / "w.bin")


def test_the_malicious_pickles_are_malicious(tmp_path):
    """That the canary would appear: plain unpickling of three of them brings it out."""
    for kind in ("a bare pickle", "a pickle of protocol 0", "as joblib writes"):
        canary = tmp_path / kind.replace(" ", "-")
        pickle.loads(MALICIOUS[kind](canary))
        assert canary.exists()


@pytest.mark.parametrize("write", [torch_bytes, legacy_bytes])
def test_pickled_weights_are_the_weights(tmp_path, write):
    """All types, views with offsets and strides, shared storages, scalars, and the attributes of a state_dict."""
    types = (torch.float64, torch.float32, torch.float16, torch.bfloat16, torch.int64, torch.int32, torch.int16,
             torch.int8, torch.uint8, torch.bool)  # fmt: skip
    expected = collections.OrderedDict({str(dtype): torch.arange(-3, 9).to(dtype).view(3, 4) for dtype in types})
    base = torch.randn(6, 5)
    expected |= {
        "t": base.t(),
        "part": base[2:4, 1:3],
        "same": base,
        "scalar": torch.tensor(3.5),
        "none": torch.ones(0, 3),
    }
    expected._metadata = {"": {"version": 1}}
    (tmp_path / "w.bin").write_bytes(write(expected))
    found = read_pickle_weights(tmp_path / "w.bin")
    assert list(found) == list(expected)
    for name, tensor in expected.items():
        assert found[name].dtype == tensor.dtype
        assert torch.equal(found[name], tensor)
    (tmp_path / "w.bin").write_bytes(write({}))
    assert read_pickle_weights(tmp_path / "w.bin") == {}


@pytest.mark.parametrize("write", [torch_bytes, legacy_bytes])
def test_a_pickled_folder_becomes_a_model_folder(folder, tmp_path, net, tensors, write):
    (folder / "model.safetensors").unlink()
    (folder / "pytorch_model.bin").write_bytes(write(tensors))
    with pytest.raises(UserError, match=r"convert .* NEW --allow-pickle"):
        read_model(folder)
    convert(folder, tmp_path / "new", from_pickle=True)
    assert sorted(path.name for path in (tmp_path / "new").iterdir()) == [
        "bertworks.json", "config.json", "manifest.json", "model.safetensors", "vocab.txt"]  # fmt: skip
    opened = dict(read_model(tmp_path / "new").net.named_parameters())
    assert all(torch.equal(opened[name], value) for name, value in net.named_parameters())


def test_a_sharded_pickle_becomes_a_model_folder_and_its_index_cannot_lead_out(folder, tmp_path, tensors):
    (folder / "model.safetensors").unlink()
    names = sorted(tensors)
    parts = {"pytorch_model-1.bin": names[::2], "pytorch_model-2.bin": names[1::2]}
    for file, some in parts.items():
        (folder / file).write_bytes(torch_bytes({name: tensors[name] for name in some}))
    index = folder / "pytorch_model.bin.index.json"
    weight_map = {name: file for file, some in parts.items() for name in some}
    index.write_text(json.dumps({"weight_map": weight_map}))
    convert(folder, tmp_path / "new", from_pickle=True)
    assert read_model(tmp_path / "new").unused == []
    shutil.copy(folder / "pytorch_model-1.bin", tmp_path / "out.bin")
    for wrong, words in ({"x": "../out.bin"}, "not a usable name"), ({"x": "pytorch_model-1.bin"}, "does not hold"):
        index.write_text(json.dumps({"weight_map": weight_map | wrong}))
        with pytest.raises(UserError, match=words):
            convert(folder, tmp_path / "other", from_pickle=True)
    assert not (tmp_path / "other").exists()


def test_a_damaged_safe_file_does_not_make_us_read_the_pickle_beside_it(folder, tensors, tmp_path):
    """S3."""
    (folder / "pytorch_model.bin").write_bytes(torch_bytes(tensors))
    (folder / "model.safetensors").write_bytes(b"\x10\0\0\0\0\0\0\0{broken")
    with pytest.raises(CorruptFile, match="safetensors"):
        read_model(folder)


def test_a_refused_pickle_is_not_read_in_another_way(folder, tmp_path, monkeypatch):
    """S3."""
    monkeypatch.setattr(torch, "load", lambda *_, **__: pytest.fail("torch.load was called"))
    monkeypatch.setattr(pickle, "load", lambda *_, **__: pytest.fail("pickle.load was called"))
    (folder / "model.safetensors").unlink()
    (folder / "pytorch_model.bin").write_bytes(torch_bytes({"w": torch.nn.Linear(2, 2)}))  # a module, not tensors
    with pytest.raises(UserError, match=r"asks for torch\.nn\.modules\.linear\.Linear"):
        convert(folder, tmp_path / "new", from_pickle=True)


def storage_id(kind="FloatStorage", num_items=4, key="0", extra=b""):
    size = b"M" + struct.pack("<H", num_items)
    return (
        b"(X\x07\0\0\0storagectorch\n"
        + kind.encode()
        + b"\nX\x01\0\0\0"
        + key.encode()
        + b"X\x03\0\0\0cpu"
        + size
        + extra
        + b"tQ"
    )


def tensor_program(size=b"K\x04\x85", stride=b"K\x01\x85", offset=b"K\0", storage=None, name=b"X\x01\0\0\0w"):
    rebuild = b"ctorch._utils\n_rebuild_tensor_v2\n("
    return b"\x80\x02}" + name + rebuild + (storage or storage_id()) + offset + size + stride + b"\x89}tRs."


FLOATS = struct.pack("<4f", 1, 2, 3, 4)
HOSTILE = {
    "beyond its storage": tensor_program(size=b"K\x05\x85"),
    "beyond by its offset": tensor_program(offset=b"K\x01"),
    "beyond by its stride": tensor_program(size=b"K\x02\x85", stride=b"K\x09\x85"),
    "a huge tensor of one number": tensor_program(size=b"J\xff\xff\xff\x7f\x85", stride=b"K\0\x85"),
    "a negative size": tensor_program(size=b"J\xff\xff\xff\xff\x85"),
    "more sizes than strides": tensor_program(size=b"K\x02K\x02\x86"),
    "a size that is text": tensor_program(size=b"X\x01\0\0\0a\x85"),
    "storage longer than its file": tensor_program(storage=storage_id(num_items=999)),
    "storage that is not there": tensor_program(storage=storage_id(key="9")),
    "storage with a view": tensor_program(storage=storage_id(extra=b"K\x01")),
    "a name that is no text": tensor_program(name=b"K\x01"),
    "a dictionary as a key": tensor_program(name=b"}"),
    "no dictionary": b"\x80\x02]" + b".",
    "a dictionary of text": b"\x80\x02}X\x01\0\0\0aX\x01\0\0\0bs.",
    "an empty stack": b"\x80\x020.",
    "taking from nothing": b"\x80\x02\x86.",
    "no end": b"\x80\x02}",
    "an unknown memo": b"\x80\x02h\x07.",
    "calling a storage": b"\x80\x02ctorch\nFloatStorage\n)R.",
    "changing a name": b"\x80\x02ctorch\nFloatStorage\n}b.",
    "changing a tuple": b"\x80\x02)}b.",
    "not a pickle": b"hello",
    "empty": b"",
    "a long name": b"\x80\x02c" + b"a" * 100_000 + b"\nb\n.",
    "a new object": b"\x80\x02ccollections\nOrderedDict\n)\x81.",
    "an extension": b"\x80\x02\x82\x01.",
}


@pytest.mark.parametrize("kind", HOSTILE)
def test_a_hostile_pickle_of_tensors_is_refused(tmp_path, kind):
    path = tmp_path / "w.bin"
    path.write_bytes(archive_of(HOSTILE[kind], **{"data/0": FLOATS}))
    with pytest.raises((UserError, ValueError, KeyError, IndexError, TypeError)):
        describe(path)


def test_the_hostile_pickles_differ_from_a_good_one_in_one_thing(tmp_path):
    (tmp_path / "w.bin").write_bytes(archive_of(tensor_program(), **{"data/0": FLOATS}))
    assert read_pickle_weights(tmp_path / "w.bin")["w"].tolist() == [1, 2, 3, 4]


@pytest.mark.parametrize("data", [HOSTILE["beyond its storage"], HOSTILE["an unknown memo"]])
def test_a_damaged_pickle_is_a_corrupt_file(tmp_path, data):
    (tmp_path / "w.bin").write_bytes(archive_of(data, **{"data/0": FLOATS}))
    with pytest.raises(CorruptFile, match=r"refused: pickle .*w\.bin is damaged"):
        read_pickle_weights(tmp_path / "w.bin")


def test_archives_of_other_forms_are_refused(tmp_path):
    path = tmp_path / "w.bin"
    good = tensor_program()
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as archive:
        archive.writestr("archive/data.pkl", good)
    with pytest.raises(UserError, match="is compressed"):
        describe(path)
    path.write_bytes(archive_of(good, **{"data/0": FLOATS, "byteorder": b"big"}))
    with pytest.raises(UserError, match="other order"):
        describe(path)
    path.write_bytes(archive_of(good, **{"data/0": FLOATS, "extra/data.pkl": good}))
    assert list(describe(path)) == ["w"]
    path.write_bytes(archive_of(good, **{"data/0": FLOATS})[:-30])
    with pytest.raises(UserError, match="refused: pickle"):
        read_pickle_weights(path)


@pytest.mark.parametrize("write", [torch_bytes, legacy_bytes])
def test_a_file_cut_off_anywhere_is_refused(tmp_path, write):
    data = write({"weight": torch.arange(6.0)})
    path = tmp_path / "w.bin"
    for length in range(0, len(data) - 1, 7 if write is legacy_bytes else 61):
        path.write_bytes(data[:length])
        with pytest.raises((UserError, ValueError, KeyError, IndexError, EOFError, struct.error, zipfile.BadZipFile)):
            describe(path)


LIMITED = "import sys; from bertworks.models import pickles as m; m.{limit}; m.main()"


@pytest.mark.parametrize(
    ("limit", "answer"), [("_MEMORY_BYTES = 100 << 20", b"MemoryError"), ("_CPU_SECONDS = 1", b"")]
)
def test_a_pickle_that_grows_meets_its_limit(tmp_path, limit, answer):
    """A byte that makes a list of 64: a file within all limits of size takes more memory, or time, than it gets."""
    path = tmp_path / "w.bin"
    path.write_bytes(archive_of(b"\x80\x02" + b"]" * 4_000_000))
    ended = subprocess.run([sys.executable, "-c", LIMITED.format(limit=limit), path], capture_output=True, timeout=60)
    assert answer in ended.stdout
    assert (b"damaged" in ended.stdout) == bool(answer)


@pytest.mark.parametrize("outcome", ["killed", "late"])
def test_a_process_that_ends_without_an_answer_is_a_refusal(tmp_path, monkeypatch, outcome):
    def run(command, **_):
        if outcome == "late":
            raise subprocess.TimeoutExpired(command, 60)
        return subprocess.CompletedProcess(command, -9, b"", b"")

    monkeypatch.setattr(subprocess, "run", run)
    with pytest.raises(UserError, match=r"refused: pickle .*w\.bin takes"):
        read_pickle_weights(tmp_path / "w.bin")


def test_a_missing_file_is_named(tmp_path):
    with pytest.raises(UserError, match=r"nowhere\.bin cannot be read: No such file"):
        read_pickle_weights(tmp_path / "nowhere.bin")


def test_the_machine_agrees_with_pickle_on_plain_values():
    values = {"a": [1, -5, 2**40, True, None, 2.5], "b": ((), (1,), (1, 2), (1, 2, 3), (1, 2, 3, 4)), "한": {"c": {}}}
    for protocol in (2, 3, 4, 5):
        for data in (pickle.dumps(values, protocol), pickletools.optimize(pickle.dumps(values, protocol))):
            assert Machine().run(io.BytesIO(data)) == values


FORBIDDEN_MODULES = {"pickle", "cPickle", "_pickle", "dill", "cloudpickle", "joblib", "marshal", "shelve", "yaml"}
FORBIDDEN_CALLS = {"eval", "exec", "compile", "__import__"}


def forbidden(tree):
    """Name what could run code out of data."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names if alias.name.partition(".")[0] in FORBIDDEN_MODULES)
        elif isinstance(node, ast.ImportFrom) and (node.module or "").partition(".")[0] in FORBIDDEN_MODULES:
            yield node.module
        elif isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id in FORBIDDEN_CALLS:
            yield node.func.id
        elif isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name):
            if (node.value.id, node.attr) in {("torch", "load"), ("os", "system"), ("os", "popen"), ("np", "load")}:
                yield f"{node.value.id}.{node.attr}"
        elif isinstance(node, ast.keyword):
            is_false = isinstance(node.value, ast.Constant) and node.value.value is False
            if node.arg in ("shell", "trust_remote_code", "allow_pickle") and not is_false:
                yield node.arg


def test_nothing_in_the_package_could_run_code_from_a_file():
    """S2: not even in interop/pickles.py, which reads pickles by a machine of its own."""
    package = Path(bertworks.__file__).parent
    files = sorted(package.rglob("*.py"))
    assert len(files) > 50
    found = {str(path.relative_to(package)): list(forbidden(ast.parse(path.read_text("utf-8")))) for path in files}
    assert {name: hits for name, hits in found.items() if hits} == {}


@pytest.mark.parametrize("code", ["import pickle", "from pickle import loads", "torch.load(f)", "eval('1')", "exec(x)",
                                  "run(c, shell=True)", "f(trust_remote_code=x)", "import yaml", "np.load(f)",
                                  "os.system('x')", "read(f, allow_pickle=True)"])  # fmt: skip
def test_the_search_finds_what_it_is_for(code):
    assert list(forbidden(ast.parse(code)))
