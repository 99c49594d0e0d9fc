"""Texts to vectors on a CPU: ours in three number types beside what people use, on the same weights and texts.

    python benchmarks/cpu.py [--shapes minilm base] [--threads 1 2] [--json FILE]

The peers: transformers (SDPA) in float32 and bfloat16; sentence-transformers; ONNX Runtime in float32 and int8
(dynamic, from transformers' model by torch's exporter); OpenVINO as it comes (in bfloat16 where the processor is made
for it) and in int8 by NNCF. They are installed into an environment of their own, `build/cpu-peers`. Its models lie in
`build/cpu-models`; what is there is used again.

Every contestant is a process of its own, with the same number of threads. Each is given a case in turn, several rounds
of that; the figures are medians of the ratios to transformers' float32 in the same round, since a machine's speed
changes with its load. Everything is counted from the text to its mean vector, tokenization too. Peers pad batches of 32
to their longest text, as they come; sentence-transformers sorts them by length before. Bars are those of processors
with AMX; without it, ours in int8 is to be twice as fast as ours in float32 on mixed lengths.
"""

import argparse
import contextlib
import json
import os
import statistics
import subprocess
import sys
import time
import venv
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

import numpy as np

ROOT = Path(__file__).resolve().parents[1]
ENVIRONMENT, MODELS = ROOT / "build" / "cpu-peers", ROOT / "build" / "cpu-models"
PEERS = "torch transformers sentence-transformers onnx onnxscript onnxruntime openvino nncf"
SHAPES = {"minilm": "6x384x12", "base": "base"}
OURS = ("ours float32", "ours bfloat16", "ours int8")
BASE = "transformers float32"
CONTESTANTS = (
    *OURS, BASE, "transformers bfloat16", "sentence-transformers float32", "onnxruntime float32", "onnxruntime int8",
    "openvino auto", "openvino int8",
)  # fmt: skip
EXPORTED = ("model-float32.onnx", "model-int8.onnx", "openvino-auto.xml", "openvino-int8.xml")
BATCH = 32
# Of each case: the lengths of its texts, how often it is computed in a round, and the bar with AMX.
CASES: dict[str, tuple[list[int], int, float]] = {
    "1 text of 16 tokens": ([16], 40, 5.0),
    "1 text of 128": ([128], 12, 4.0),
    "16 x 64": ([64] * 16, 2, 5.0),
    "8 x 256": ([256] * 8, 1, 4.0),
    "500 of mixed length": (
        np.exp(np.random.default_rng(0).normal(np.log(40), 0.9, 500)).clip(8, 512).astype(int).tolist(), 1, 14.0,
    ),
}  # fmt: skip
Embed = Callable[[list[str]], Any]


def texts_of(lengths: Iterable[int], words: list[str]) -> list[str]:
    """Return texts of so many tokens, [CLS] and [SEP] among them."""
    rng = np.random.default_rng(1)
    return [" ".join(rng.choice(words, length - 2)) for length in lengths]


def whole_words(folder: Path) -> list[str]:
    pieces = (folder / "vocab.txt").read_text(encoding="utf-8").split("\n")
    return [piece for piece in pieces if piece.isascii() and piece.isalpha() and piece.islower()]


# Contestants, each in a process of its own.


def ours(folder: Path, dtype: str) -> Embed:
    import bertworks as bw

    model = bw.load(folder, device="cpu", dtype=dtype)
    assert model.dtype == dtype, f"this processor is not made for {dtype}"
    return model.embed


def with_transformers(folder: Path, dtype: str) -> Embed:
    import torch
    from transformers import AutoModel, AutoTokenizer

    tokenizer = AutoTokenizer.from_pretrained(folder)
    model = AutoModel.from_pretrained(folder, attn_implementation="sdpa", dtype=getattr(torch, dtype)).eval()

    @torch.inference_mode()
    def embed(texts: list[str]) -> list[Any]:
        found = []
        for first in range(0, len(texts), BATCH):
            inputs = tokenizer(texts[first : first + BATCH], padding=True, truncation=True, return_tensors="pt")
            mask = inputs["attention_mask"][:, :, None]
            found.append((model(**inputs).last_hidden_state * mask).sum(1) / mask.sum(1))
        return found

    return embed


def with_sentence_transformers(folder: Path, _: str) -> Embed:
    from sentence_transformers import SentenceTransformer

    model = SentenceTransformer(str(folder), device="cpu")
    return lambda texts: model.encode(texts, batch_size=BATCH, show_progress_bar=False)


def padded(folder: Path, hidden_of: Callable[[dict[str, Any]], Any]) -> Embed:
    from transformers import AutoTokenizer

    tokenizer = AutoTokenizer.from_pretrained(folder)

    def embed(texts: list[str]) -> list[Any]:
        found = []
        for first in range(0, len(texts), BATCH):
            inputs = tokenizer(texts[first : first + BATCH], padding=True, truncation=True, return_tensors="np")
            mask = inputs["attention_mask"][:, :, None]
            found.append((hidden_of(dict(inputs)) * mask).sum(1) / mask.sum(1))
        return found

    return embed


def with_onnxruntime(folder: Path, dtype: str, threads: int) -> Embed:
    import onnxruntime

    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads, options.inter_op_num_threads = threads, 1
    path = folder / f"model-{dtype}.onnx"
    session = onnxruntime.InferenceSession(path, options, providers=["CPUExecutionProvider"])
    names = [given.name for given in session.get_inputs()]
    return padded(folder, lambda inputs: session.run(None, {name: inputs[name] for name in names})[0])


def with_openvino(folder: Path, dtype: str, threads: int) -> Embed:
    import openvino

    core = openvino.Core()
    settings = {"INFERENCE_NUM_THREADS": threads, "PERFORMANCE_HINT": "LATENCY"}
    compiled = core.compile_model(folder / f"openvino-{dtype}.xml", "CPU", settings)
    names = [given.get_any_name() for given in compiled.inputs]
    return padded(folder, lambda inputs: compiled([inputs[name] for name in names])[0])


def contestant(name: str, folder: Path, threads: int) -> None:
    """Compute the cases whose names come in, and answer how long one took on average."""
    out = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)  # what libraries print is no answer
    library, dtype = name.split(" ")
    if library not in ("onnxruntime", "openvino"):
        import torch

        torch.set_num_threads(threads)
    if library == "ours":
        embed = ours(folder, dtype)
    elif library == "transformers":
        embed = with_transformers(folder, dtype)
    elif library == "sentence-transformers":
        embed = with_sentence_transformers(folder, dtype)
    else:
        embed = (with_onnxruntime if library == "onnxruntime" else with_openvino)(folder, dtype, threads)
    words = whole_words(folder)
    for line in sys.stdin:
        lengths, count, _ = CASES[line.strip()]
        texts = texts_of(lengths, words)
        started = time.perf_counter()
        for _ in range(count):
            embed(texts)
        print((time.perf_counter() - started) / count, file=out, flush=True)


# What the peers compute with.


def make_models(folder: Path) -> None:
    """Export a folder's model for ONNX Runtime and OpenVINO; run in the peers' environment."""
    import nncf
    import openvino
    import torch
    from onnxruntime.quantization import QuantType, quantize_dynamic
    from transformers import AutoModel, AutoTokenizer

    model = AutoModel.from_pretrained(folder, attn_implementation="sdpa", add_pooling_layer=False).eval()
    tokenizer = AutoTokenizer.from_pretrained(folder)
    words = whole_words(folder)
    some = texts_of(np.random.default_rng(2).integers(8, 128, 64), words)

    def inputs_of(texts: list[str]) -> dict[str, Any]:
        return dict(tokenizer(texts, padding=True, return_tensors="pt"))

    class Hidden(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.model = model

        def forward(self, input_ids: Any, attention_mask: Any, token_type_ids: Any) -> Any:
            return self.model(
                input_ids=input_ids, attention_mask=attention_mask, token_type_ids=token_type_ids
            ).last_hidden_state

    example = inputs_of(some[:3])
    names = ("input_ids", "attention_mask", "token_type_ids")
    given = tuple(example[name] for name in names)
    sizes = {name: {0: torch.export.Dim("texts", max=4096), 1: torch.export.Dim("tokens", max=512)} for name in names}
    exact = folder / "model-float32.onnx"
    torch.onnx.export(Hidden(), given, exact, dynamo=True, dynamic_shapes=sizes, input_names=names, external_data=False)
    quantize_dynamic(exact, folder / "model-int8.onnx", weight_type=QuantType.QInt8)
    converted = openvino.convert_model(exact)
    openvino.save_model(converted, folder / "openvino-auto.xml", compress_to_fp16=False)
    shown = nncf.Dataset([{name: value.numpy() for name, value in inputs_of([text]).items()} for text in some])
    quantized = nncf.quantize(converted, shown, model_type=nncf.ModelType.TRANSFORMER, subset_size=len(some))
    openvino.save_model(quantized, folder / "openvino-int8.xml", compress_to_fp16=False)


def make_folder(folder: Path, shape: str) -> None:
    """Write a model of random weights with the vocabulary of `mini`, and sentence-transformers' files beside it."""
    import shutil

    from bertworks.models.kinds import write_model
    from bertworks.nn.bert import Bert
    from bertworks.nn.config import preset
    from bertworks.nn.layers import initialise

    mini = ROOT / "bertworks" / "shipped" / "mini"
    count = len((mini / "vocab.txt").read_text(encoding="utf-8").split("\n")) - 1
    net = Bert(preset(SHAPES[shape]).model_copy(update={"vocab_size": count}), {})
    initialise(net, 0.02, seed=0)
    folder.mkdir(parents=True)
    write_model(folder, net)
    for name in ("vocab.txt", "tokenizer.json", "tokenizer_config.json"):
        shutil.copy(mini / name, folder / name)


def peers_python() -> Path:
    """Return the interpreter of the peers' environment, which is made if it is not there."""
    python = ENVIRONMENT / "bin" / "python"
    if not (ENVIRONMENT / "made").exists():
        print(f"installing the peers into {ENVIRONMENT}", flush=True)
        venv.create(ENVIRONMENT, with_pip=True)
        install = [python, "-m", "pip", "install", "--quiet", "--constraint", ROOT / "constraints.txt"]
        subprocess.run([*install, *PEERS.split()], check=True)
        (ENVIRONMENT / "made").touch()
    return python


def processor() -> dict[str, Any]:
    from bertworks.nn.layers import cpu_instructions

    facts = Path("/proc/cpuinfo").read_text(encoding="utf-8").split("\n\n")[0].splitlines()
    name = next((line.partition(":")[2].strip() for line in facts if line.startswith("model name")), "unknown")
    shown = ("amx_bf16", "amx_int8", "avx512_bf16", "avx512_vnni", "avx_vnni", "avx2")
    return {"processor": name, "instructions": [one for one in shown if one in cpu_instructions()]}


def measure(
    shape: str, folder: Path, threads: int, names: list[str], cases: list[str], peers: Path, rounds: int
) -> dict[str, Any]:
    """Return, of every contestant and case, its median time and the median ratio to transformers' float32."""
    environment = os.environ | {"OMP_NUM_THREADS": str(threads), "MKL_NUM_THREADS": str(threads)}
    pythons = {name: sys.executable if name.startswith("ours") else peers for name in names}
    command = [__file__, "--contestant"]
    processes = {
        name: subprocess.Popen(
            [pythons[name], *command, name, str(folder), str(threads)], env=environment, text=True,
            stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=(folder / f"{name}.log").open("w"),
        )
        for name in names
    }  # fmt: skip

    def once(name: str, case: str) -> float:
        process = processes[name]
        assert process.stdin is not None
        assert process.stdout is not None
        with contextlib.suppress(BrokenPipeError):  # its end shows in the answer
            process.stdin.write(case + "\n")
            process.stdin.flush()
        if not (answer := process.stdout.readline()):
            sys.exit(f"{name} failed:\n{(folder / f'{name}.log').read_text()[-2000:]}")
        return float(answer)

    results: dict[str, Any] = {}
    for case in cases:
        lengths, _, bar = CASES[case]
        for name in names:  # the first time is not counted; where lengths are mixed, that is of another case
            once(name, case if len(lengths) <= BATCH else "16 x 64")
        taken = [{name: once(name, case) for name in names} for _ in range(rounds)]
        results[case] = {
            name: {
                "milliseconds": round(1e3 * statistics.median(one[name] for one in taken), 3),
                "times as fast": round(statistics.median(one[BASE] / one[name] for one in taken), 2),
            }
            for name in names
        }
        shown = "   ".join(f"{name} {found['times as fast']:.2f}" for name, found in results[case].items())
        print(f"{shape}, {threads} thread(s), {case} (bar {bar:g}): {shown}", flush=True)
    for process in processes.values():
        process.kill()
    return results


def main() -> None:
    options = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    options.add_argument("--shapes", nargs="+", default=list(SHAPES), choices=SHAPES)
    options.add_argument("--threads", nargs="+", type=int, default=[1, 2])
    options.add_argument("--rounds", type=int, default=5)
    options.add_argument("--cases", nargs="+", default=list(CASES), choices=CASES)
    options.add_argument("--only", nargs="+", default=list(CONTESTANTS), choices=CONTESTANTS)
    options.add_argument(
        "--peers", type=Path, help="an interpreter that has the peers; default: an environment is made"
    )
    options.add_argument("--json", type=Path)
    options.add_argument("--contestant", nargs=3, help=argparse.SUPPRESS)
    options.add_argument("--make-models", type=Path, help=argparse.SUPPRESS)
    given = options.parse_args()
    if given.contestant:
        name, folder, threads = given.contestant
        contestant(name, Path(folder), int(threads))
        return
    if given.make_models:
        make_models(given.make_models)
        return
    from bertworks.nn.layers import is_fast_on_cpu

    names = [name for name in given.only if name not in OURS or name == OURS[0] or is_fast_on_cpu(name.split()[1])]
    names = names if BASE in names else [BASE, *names]
    results: dict[str, Any] = processor() | {"results": {}}
    print(results["processor"], " ".join(results["instructions"]), flush=True)
    peers = given.peers or peers_python()
    for shape in given.shapes:
        folder = MODELS / shape
        if not folder.exists():
            make_folder(folder, shape)
        needs_export = any(name.startswith(("onnx", "openvino")) for name in names)
        if needs_export and not all((folder / name).exists() for name in EXPORTED):
            subprocess.run([peers, __file__, "--make-models", folder], check=True)
        for threads in given.threads:
            found = measure(shape, folder, threads, names, given.cases, peers, given.rounds)
            results["results"][f"{shape}, {threads}"] = found
            if given.json:
                given.json.write_text(json.dumps(results, indent=1) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
