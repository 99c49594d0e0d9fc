import contextlib
import errno
import json
import os
import random
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

import bertworks as bw
from bertworks import files
from bertworks.data.prepare import prepare
from bertworks.data.shards import Dataset
from bertworks.errors import CorruptFile, UserError
from bertworks.files import (
    atomic_folder,
    atomic_write,
    check_can_write,
    make_folder,
    safe_join,
    sync_folder,
    usable_path,
    verify_manifest,
    write_manifest,
)
from bertworks.models.convert import convert
from bertworks.recipe import load_recipe
from bertworks.report.page import write_report
from bertworks.text.corpus import Corpus
from bertworks.text.kinds import open_tokenizer
from bertworks.train.run_folder import check_out

REPOSITORY = Path(__file__).parent.parent


def names_in(folder):
    return sorted(os.listdir(folder))


def stop_after(_, raised):
    raise raised


def inode(path):
    return os.stat(path).st_ino


def run_python(code, *arguments):
    """Run code in a fresh process, which may be killed or limited without harm to this one."""
    command = [sys.executable, "-c", code, *map(str, arguments)]
    return subprocess.run(command, cwd=REPOSITORY, capture_output=True, text=True, timeout=60)


# -- atomic_write


def test_text_is_utf8_with_plain_line_ends_on_every_system(tmp_path):
    with atomic_write(tmp_path / "a.txt") as stream:
        stream.write("가\né\n")
    assert (tmp_path / "a.txt").read_bytes() == "가\né\n".encode()


def test_bytes_replace_the_old_file_and_leave_nothing_beside_it(tmp_path):
    (tmp_path / "a").write_text("old")
    with atomic_write(tmp_path / "a", "wb") as stream:
        stream.write(b"\x00\r\n\xff")
        assert (tmp_path / "a").read_text() == "old"
    assert (tmp_path / "a").read_bytes() == b"\x00\r\n\xff"
    assert names_in(tmp_path) == ["a"]


@pytest.mark.parametrize("raised", [RuntimeError, KeyboardInterrupt, UserError])
def test_a_block_that_fails_leaves_the_old_file_and_its_own_error(tmp_path, raised):
    (tmp_path / "a").write_text("old")
    with pytest.raises(raised), atomic_write(tmp_path / "a") as stream:
        stop_after(stream.write("new"), raised)
    assert (tmp_path / "a").read_text() == "old"
    assert names_in(tmp_path) == ["a"]


def test_the_data_is_on_disk_before_the_name_and_the_name_before_the_return(tmp_path, monkeypatch):
    calls = []
    real_fsync, real_replace = os.fsync, os.replace

    def fsync(descriptor):
        calls.append("folder" if os.fstat(descriptor).st_ino == inode(tmp_path) else "file")
        real_fsync(descriptor)

    monkeypatch.setattr(os, "fsync", fsync)
    monkeypatch.setattr(os, "replace", lambda *names: (calls.append("rename"), real_replace(*names)))
    with atomic_write(tmp_path / "a") as stream:
        stream.write("new")
    assert calls == ["file", "rename", "folder"]


@pytest.mark.parametrize("code", [errno.ENOSPC, errno.EDQUOT, errno.EIO, errno.EROFS, errno.EACCES])
@pytest.mark.parametrize("call", ["fsync", "replace"])
def test_a_refusal_of_the_disk_is_a_user_error_and_keeps_the_old_file(tmp_path, monkeypatch, call, code):
    """F4, F5: full, failing, read-only and forbidden disks."""
    (tmp_path / "a").write_text("old")

    def refuse(*_):
        raise OSError(code, os.strerror(code))

    monkeypatch.setattr(os, call, refuse)
    with pytest.raises(UserError, match=f"^cannot write .*a: {os.strerror(code)}"), atomic_write(tmp_path / "a") as s:
        s.write("new")
    assert (tmp_path / "a").read_text() == "old"
    assert names_in(tmp_path) == ["a"]


def test_a_full_disk_is_told_with_the_bytes_that_are_free(tmp_path, monkeypatch):
    def refuse(_):
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(os, "fsync", refuse)
    with (
        pytest.raises(UserError, match=r"No space left on device \([\d,]+ bytes are free\)"),
        atomic_write(tmp_path / "a"),
    ):
        pass


SHORT_WRITES = """
import resource, sys
from pathlib import Path
from bertworks.errors import UserError
from bertworks.files import atomic_write
target, size = Path(sys.argv[1]), 200_000
for limit in [1, 4095, *range(4096, size, 10_000), size - 1]:
    resource.setrlimit(resource.RLIMIT_FSIZE, (limit, resource.RLIM_INFINITY))
    for pieces in (1, 1000):
        try:
            with atomic_write(target, "wb") as stream:
                for _ in range(pieces):
                    stream.write(b"n" * (size // pieces))
        except UserError as error:
            assert "File too large" in str(error), error
        else:
            raise SystemExit(f"limit {limit} was not noticed")
        assert target.read_bytes() == b"old", limit
        assert [p.name for p in target.parent.iterdir()] == [target.name], limit
resource.setrlimit(resource.RLIMIT_FSIZE, (size, resource.RLIM_INFINITY))
with atomic_write(target, "wb") as stream:
    stream.write(b"n" * size)
print(target.stat().st_size)
"""


def test_short_writes_at_22_limits_leave_the_old_file(tmp_path):
    """F4(a): the kernel takes a part of the bytes and then refuses with EFBIG; at exactly the limit it all fits."""
    (tmp_path / "a").write_bytes(b"old")
    done = run_python(SHORT_WRITES, tmp_path / "a")
    assert (done.returncode, done.stdout.strip()) == (0, "200000"), done.stderr


KILLED = """
import os, signal, sys
from bertworks import files
def die(*_):
    os.kill(os.getpid(), signal.SIGKILL)
target, moment = sys.argv[1:]
if moment == "before the rename":
    os.replace = die
if moment == "after the rename":
    files.sync_folder = die
with files.atomic_write(target) as stream:
    stream.write("new" * 100_000)
    if moment == "in the block":
        stream.flush()
        die()
"""


@pytest.mark.parametrize(
    ("moment", "content"),
    [("in the block", "old"), ("before the rename", "old"), ("after the rename", "new" * 100_000)],
)
def test_kill_9_leaves_the_old_file_or_the_new_one_and_never_a_part(tmp_path, moment, content):
    (tmp_path / "a").write_text("old")
    done = run_python(KILLED, tmp_path / "a", moment)
    assert done.returncode == -9, done.stderr
    assert (tmp_path / "a").read_text() == content
    leftovers = [name for name in names_in(tmp_path) if name != "a"]
    assert all(name.startswith(files.TEMPORARY_PREFIX) for name in leftovers)


def test_a_folder_that_vanishes_under_the_block_is_a_user_error(tmp_path):
    """F5."""
    (tmp_path / "run").mkdir()
    with pytest.raises(UserError, match=r"the folder .*run does not exist"), atomic_write(tmp_path / "run" / "a"):
        shutil.rmtree(tmp_path / "run")


@pytest.mark.parametrize(
    ("name", "reason"),
    [
        ("missing/a", r"the folder .*missing does not exist"),
        ("file/a", "Not a directory"),
        ("folder", "not a regular file"),
        (".", "not a regular file"),
        ("x" * 300, "File name too long"),
        ("a\0b", "it has a NUL character"),
        ("a\ud800b", "it is not Unicode text"),
    ],
)
def test_a_name_that_cannot_be_written_is_a_user_error(tmp_path, monkeypatch, name, reason):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "file").write_text("old")
    (tmp_path / "folder").mkdir()
    with pytest.raises(UserError, match=rf"^cannot write .*: .*{reason}"), atomic_write(name):
        pass
    assert names_in(tmp_path) == ["file", "folder"]


def test_a_device_is_not_replaced_by_a_file(tmp_path):
    # A rename over /dev/null, as root, would break the machine; a named pipe stands for it here.
    os.mkfifo(tmp_path / "pipe")
    with pytest.raises(UserError, match="not a regular file"), atomic_write(tmp_path / "pipe"):
        pass
    assert (tmp_path / "pipe").is_fifo()


def test_a_name_of_the_full_255_bytes_can_be_written(tmp_path):
    for name in ["가" * 85, "x" * 255]:
        with atomic_write(tmp_path / name) as stream:
            stream.write("new")
        assert (tmp_path / name).read_text() == "new"


def test_a_link_stays_a_link_and_its_file_is_written(tmp_path):
    (tmp_path / "disk").mkdir()
    (tmp_path / "a").symlink_to(tmp_path / "disk" / "real")
    for content in ["first", "second"]:
        with atomic_write(tmp_path / "a") as stream:
            stream.write(content)
        assert (tmp_path / "a").is_symlink()
        assert (tmp_path / "disk" / "real").read_text() == content
    assert names_in(tmp_path / "disk") == ["real"]


@pytest.mark.parametrize("writer", [atomic_write, atomic_folder])
def test_an_error_about_another_file_is_not_blamed_on_this_one(tmp_path, writer):
    with pytest.raises(FileNotFoundError, match="corpus"), writer(tmp_path / "a"):
        (tmp_path / "corpus.txt").read_text()
    assert names_in(tmp_path) == []


def test_a_file_system_that_cannot_sync_folders_is_no_error_but_a_failing_one_is(tmp_path, monkeypatch):
    def refuse_with(code):
        def refuse(_):
            raise OSError(code, os.strerror(code))

        monkeypatch.setattr(os, "fsync", refuse)

    refuse_with(errno.EINVAL)
    sync_folder(tmp_path)
    refuse_with(errno.EIO)
    with pytest.raises(OSError, match="Input/output error"):
        sync_folder(tmp_path)


# -- atomic_folder


def fill(folder):
    (folder / "weights.bin").write_bytes(bytes(range(256)))
    (folder / "deep" / "er").mkdir(parents=True)
    (folder / "deep" / "er" / "empty.txt").write_bytes(b"")
    (folder / "deep" / "manifest.json").write_text("{}")


@pytest.fixture
def written(tmp_path):
    with atomic_folder(tmp_path / "step-1") as folder:
        fill(folder)
    return tmp_path / "step-1"


def test_a_folder_appears_whole_with_a_manifest_of_every_file(tmp_path):
    with atomic_folder(tmp_path / "new" / "step-1") as folder:
        fill(folder)
        assert not (tmp_path / "new" / "step-1").exists()
    assert names_in(tmp_path / "new") == ["step-1"]
    entries = verify_manifest(tmp_path / "new" / "step-1")
    assert list(entries) == ["deep/er/empty.txt", "deep/manifest.json", "weights.bin"]
    assert entries["weights.bin"]["bytes"] == 256


def test_everything_in_a_folder_is_synced_before_it_gets_its_name(tmp_path, monkeypatch):
    calls = []
    real_fsync, real_rename = os.fsync, os.rename

    def fsync(descriptor):
        calls.append(os.fstat(descriptor).st_ino)
        real_fsync(descriptor)

    monkeypatch.setattr(os, "fsync", fsync)
    monkeypatch.setattr(os, "rename", lambda *names: (calls.append("rename"), real_rename(*names)))
    with atomic_folder(tmp_path / "step-1") as folder:
        fill(folder)
    before, after = calls[: calls.index("rename")], calls[calls.index("rename") + 1 :]
    assert {inode(path) for path in (tmp_path / "step-1").rglob("*")} <= set(before)
    assert before[-1] == inode(tmp_path / "step-1")
    assert after == [inode(tmp_path)]


def test_an_existing_folder_is_refused_untouched(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "run").mkdir()
    for name in ["run", ".", "/"]:
        with pytest.raises(UserError, match="exists already; choose another name or remove it"), atomic_folder(name):
            pass
    assert names_in(tmp_path) == ["run"]


@pytest.mark.parametrize("raised", [RuntimeError, KeyboardInterrupt])
def test_a_failed_block_leaves_no_folder(tmp_path, raised):
    with pytest.raises(raised), atomic_folder(tmp_path / "step-1") as folder:
        stop_after(fill(folder), raised)
    assert names_in(tmp_path) == []


@pytest.mark.parametrize("call", ["fsync", "rename"])
def test_a_full_disk_leaves_no_partial_folder(tmp_path, monkeypatch, call):
    """F4: no partial folder left."""

    def refuse(*_):
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(os, call, refuse)
    with pytest.raises(UserError, match="No space left"), atomic_folder(tmp_path / "step-1") as folder:
        fill(folder)
    assert names_in(tmp_path) == []


def test_a_folder_under_a_file_is_a_user_error(tmp_path):
    (tmp_path / "file").write_text("old")
    with pytest.raises(UserError, match=r"cannot write .*Not a directory"), atomic_folder(tmp_path / "file" / "run"):
        pass


def test_a_file_that_could_not_be_verified_later_is_refused_while_writing(tmp_path):
    with (
        pytest.raises(UserError, match=r"'\.hidden' is not a usable name"),
        atomic_folder(tmp_path / "step-1") as folder,
    ):
        (folder / ".hidden").write_text("x")
    assert names_in(tmp_path) == []


# -- manifests


def test_the_same_files_give_the_same_manifest_bytes(tmp_path):
    for name in ["one", "two"]:
        with atomic_folder(tmp_path / name) as folder:
            fill(folder)
    assert (tmp_path / "one" / "manifest.json").read_bytes() == (tmp_path / "two" / "manifest.json").read_bytes()


def test_any_flipped_bit_of_a_listed_file_is_found(written):
    """F6: 100 positions."""
    generator = random.Random(0)
    whole = (written / "weights.bin").read_bytes()
    for _ in range(100):
        broken = bytearray(whole)
        broken[generator.randrange(256)] ^= 1 << generator.randrange(8)
        (written / "weights.bin").write_bytes(broken)
        with pytest.raises(CorruptFile, match=r"weights\.bin was altered"):
            verify_manifest(written)


@pytest.mark.parametrize("length", [0, 1, 7, 8, 128, 255])
def test_any_truncation_is_found(written, length):
    """F6."""
    os.truncate(written / "weights.bin", length)
    with pytest.raises(CorruptFile, match=rf"weights\.bin has {length} bytes where manifest\.json says 256"):
        verify_manifest(written)


@pytest.mark.parametrize("name", ["weights.bin", "deep/er/empty.txt", "deep/manifest.json"])
def test_any_deleted_file_is_found(written, name):
    """F6: also a manifest of a folder inside, which is a file like others."""
    (written / name).unlink()
    with pytest.raises(CorruptFile, match=r"is missing, but manifest\.json lists it"):
        verify_manifest(written)


def test_a_folder_without_a_manifest_was_not_finished(written):
    (written / "manifest.json").unlink()
    with pytest.raises(CorruptFile, match=r"has no manifest\.json: writing it was not completed"):
        verify_manifest(written)


def test_any_flipped_bit_or_cut_of_a_manifest_is_found_or_harmless(written):
    """F6: an error is a CorruptFile; otherwise the change did not touch what the manifest says."""
    manifest = written / "manifest.json"
    whole = manifest.read_bytes()
    said = verify_manifest(written)
    generator = random.Random(0)
    flips = [(generator.randrange(len(whole)), generator.randrange(8)) for _ in range(200)]
    broken = [whole[:at] + bytes([whole[at] ^ 1 << bit]) + whole[at + 1 :] for at, bit in flips]
    for content in [*broken, *(whole[:length] for length in (0, 1, 7, 8, len(whole) // 2, len(whole) - 1))]:
        manifest.write_bytes(content)
        with contextlib.suppress(CorruptFile):
            assert verify_manifest(written) == said


@pytest.mark.parametrize(
    "content",
    [
        "null",
        "[]",
        "{}",
        '{"files": []}',
        '{"files": {"weights.bin": 3}}',
        '{"files": {"weights.bin": {"bytes": Infinity, "sha256": ""}}}',
        '{"files": {"weights.bin": {"bytes": true, "sha256": ""}}}',
        '{"files": {"weights.bin": {"bytes": "256", "sha256": ""}}}',
        '{"files": {"weights.bin": {"bytes": 256}}}',
        '{"files": {"../secret": {"bytes": 0, "sha256": ""}}}',
        '{"files": {"\\ud800": {"bytes": 0, "sha256": ""}}}',
        '{"files": {"a": {"bytes": 0, "sha256": ""}, "a": {"bytes": 0, "sha256": ""}}}',
        '{"files": {"weights.bin": {"bytes": ' + "9" * 5000 + ', "sha256": ""}}}',
        "[" * 100_000,
        "\udcff",
    ],
    ids=lambda content: content[:70],
)
def test_a_manifest_of_another_shape_is_corrupt(written, content):
    (written / "manifest.json").write_bytes(content.encode(errors="surrogateescape"))
    with pytest.raises(CorruptFile, match=r"manifest\.json is not a manifest: "):
        verify_manifest(written)


def test_a_manifest_that_cannot_be_read_is_a_user_error(written, tmp_path):
    (written / "manifest.json").unlink()
    (written / "manifest.json").mkdir()
    with pytest.raises(UserError, match=r"cannot read .*manifest\.json: Is a directory"):
        verify_manifest(written)
    (tmp_path / "file").write_text("")
    with pytest.raises(UserError, match=r"cannot read .*manifest\.json: Not a directory"):
        verify_manifest(tmp_path / "file")


def test_a_listed_file_that_cannot_be_read_is_a_user_error(written, monkeypatch):
    def refuse(_):
        raise PermissionError(errno.EACCES, "Permission denied")

    monkeypatch.setattr(files, "sha256_of", refuse)
    with pytest.raises(UserError, match=r"cannot read .*: Permission denied"):
        verify_manifest(written)


def test_a_manifest_written_again_lists_what_is_there_now(written):
    (written / "weights.bin").unlink()
    write_manifest(written)
    assert "weights.bin" not in verify_manifest(written)
    assert json.loads((written / "manifest.json").read_text())["files"].keys() == verify_manifest(written).keys()


# -- safe_join

OUTSIDE = [
    "../x",
    "..",
    ".",
    "",
    "a/../../x",
    "a/..",
    "/etc/passwd",
    "//etc",
    "a//b",
    "a/",
    "..%2fx",
    "a\0b",
    "C:\\x",
    "a\\..\\x",
    "-rf",
    "~/x",
    "\uff0e\uff0e/x",
    "\u2025/x",
    "a\nb",
    "x" * 300,
    "가" * 100,
    "a\u202eb",
    "a\ud800",
    ".tmp-x",
]


@pytest.mark.parametrize("name", OUTSIDE, ids=ascii)
def test_a_name_that_is_not_plain_is_refused(tmp_path, name):
    """S7: 24 names, and the links below."""
    with pytest.raises(UserError, match="is not a usable name: relative, at most 200 bytes"):
        safe_join(tmp_path, name)


def test_links_that_lead_out_are_refused_and_links_inside_are_not(tmp_path):
    """S7."""
    (tmp_path / "models").mkdir()
    (tmp_path / "models-secret").mkdir()
    for name, target in [("up", ".."), ("etc", "/etc"), ("twin", "../models-secret"), ("chain", "up")]:
        (tmp_path / "models" / name).symlink_to(target)
        for inside in [name, f"{name}/x"]:
            with pytest.raises(UserError, match=f"'{inside}' leads out of "):
                safe_join(tmp_path / "models", inside)
    (tmp_path / "models" / "same").symlink_to("a")
    assert safe_join(tmp_path / "models", "same").name == "same"


def test_a_link_to_itself_ends_in_a_path_that_is_no_file(tmp_path):
    (tmp_path / "loop").symlink_to("loop")
    assert not safe_join(tmp_path, "loop").is_file()


@pytest.mark.parametrize("name", ["sst2", "bert-base_v1.0", "한국어", "runs/a/step-00001000", "a b+c", "_x", "가" * 66])
def test_plain_names_of_any_script_are_joined(tmp_path, name):
    assert safe_join(tmp_path, name) == tmp_path.resolve() / name


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture], max_examples=300, deadline=None)
@given(name=st.text(st.sampled_from("a.-/\\:%~ \0\n가\uff0e\ud800"), max_size=12) | st.text())
def test_no_name_at_all_leaves_the_folder(tmp_path, name):
    """S7 over all strings: the way out is a UserError, or a path inside."""
    try:
        joined = safe_join(tmp_path, name)
    except UserError:
        return
    assert os.path.normpath(joined).startswith(f"{tmp_path.resolve()}/")
    joined.exists()


@pytest.mark.parametrize(
    ("path", "reason"),
    [
        ("a\0b", "it has a NUL character"),
        ("\ud800", "it is not Unicode text"),
        ("x" * 300, "File name too long"),
        ("a/" * 3000 + "b", "File name too long"),
        ("loop/x", "Too many levels of symbolic links"),
    ],
)  # fmt: skip
def test_a_path_that_no_file_can_have_is_a_user_error_wherever_it_comes_in(tmp_path, monkeypatch, path, reason):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "loop").symlink_to("loop")
    (tmp_path / "v.txt").write_text("[UNK]\na\n")
    tokenizer, corpus = bw.Tokenizer.from_vocab("v.txt"), Corpus(["v.txt"])
    table = {"model": "mini", "train": "t.csv"}
    (tmp_path / "t.csv").write_text("text,label\na,b\n")
    uses = [
        lambda: usable_path(path),
        lambda: make_folder(path),
        lambda: check_can_write(path),
        lambda: bw.load(path),
        lambda: bw.Tokenizer.from_vocab(path),
        lambda: bw.Tokenizer.from_folder(path),
        lambda: tokenizer.save(path),
        lambda: open_tokenizer(path, tokenizer.rules),
        lambda: Corpus([path]).files,
        lambda: prepare(corpus, tokenizer, path),
        lambda: Dataset(path),
        lambda: load_recipe(path, []),
        lambda: bw.pretrain("tiny-cpu", data=path, out="o"),
        lambda: check_out(Path(path), "recipe.toml", resume=False),
        lambda: bw.finetune("classify", out=path, **table),
        lambda: bw.finetune("classify", out="o", **table | {"model": path}),
        lambda: bw.finetune("classify", out="o", **table | {"train": path}),
        lambda: bw.finetune("classify", out="o", **table, dev=path),
        lambda: bw.finetune("cola", model="mini", data=path, out="o"),
        lambda: convert(path, "o"),
        lambda: convert("mini", path),
        lambda: write_report(path),
    ]
    for number, use in enumerate(uses):
        with pytest.raises(UserError) as refused:
            use()
        assert len(str(refused.value)) <= 1500, number
    with pytest.raises(UserError, match=re.escape(reason)):
        usable_path(path)
    assert usable_path("missing/too") == Path("missing/too")


def test_a_full_disk_is_named_by_the_file_that_was_to_be_written(tmp_path, monkeypatch):
    (tmp_path / "source").write_bytes(b"x")

    def full(source, target, *_, **__):
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), str(source), None, str(target))

    monkeypatch.setattr(shutil, "copyfile", full)
    with pytest.raises(UserError) as refused, atomic_folder(tmp_path / "new") as folder:
        shutil.copyfile(tmp_path / "source", folder / "x")
    assert str(refused.value).startswith(f"cannot write {tmp_path / 'new'}: No space left on device (")
    monkeypatch.undo()
    with pytest.raises(UserError) as refused, atomic_folder(tmp_path / "new") as folder, atomic_write(folder / "y"):
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
    assert str(refused.value).startswith(f"cannot write {tmp_path / 'new' / 'y'}: No space left on device (")
    assert names_in(tmp_path) == ["source"]
