"""Folders of sentence-transformers: a BERT, possibly in a folder of its own, and how its tokens become one vector.

`modules.json` lists the steps. Those that follow the BERT are read as sentence-transformers 2 to 6 write them: Pooling,
then any of Dense, LayerNorm, Normalize and Dropout. What is not computed here is refused by its name. `do_lower_case`
of sentence_bert_config.json is read with the tokenizer's other settings, in `text/vocabulary.py`.
"""

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from bertworks.errors import CorruptFile, UserError
from bertworks.files import atomic_write, safe_join
from bertworks.models.folder import MODULES_FILE, find_encoder, read_json, read_modules
from bertworks.models.weights import WEIGHTS_FILE, read_arrays, write_arrays
from bertworks.text.vocabulary import CONFIG_FILE as TOKENIZER_CONFIG_FILE
from bertworks.text.vocabulary import SENTENCE_FILE

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray


_OWN_CONFIG_FILE = "config_sentence_transformers.json"
# Ways of pooling: ours, the name of sentence-transformers 6, and the key that says it in older folders.
_MODES = (
    ("cls", "cls", "pooling_mode_cls_token"),
    ("mean", "mean", "pooling_mode_mean_tokens"),
    ("max", "max", "pooling_mode_max_tokens"),
    ("mean_sqrt_len_tokens", "mean_sqrt_len_tokens", "pooling_mode_mean_sqrt_len_tokens"),
    ("weightedmean", "weightedmean", "pooling_mode_weightedmean_tokens"),
    ("last", "lasttoken", "pooling_mode_lasttoken"),
)
_ACTIVATIONS = ("Identity", "Tanh", "ReLU", "Sigmoid")  # of torch.nn, after a Dense
_NORM_EPS = 1e-5  # torch's default, which is in no file
# What sentence_bert_config.json may say of the BERT itself, and the value that is computed here.
_TRANSFORMER = {"transformer_task": "feature-extraction", "module_output_name": "token_embeddings"}
_UNKNOWN_IF_SET = (
    "processing_kwargs", "query_length", "document_length", "query_expansion",
    "model_args", "config_args", "tokenizer_args", "model_kwargs", "config_kwargs", "processor_kwargs",
)  # fmt: skip


class Layer(NamedTuple):
    """A Dense or a LayerNorm: the matrix or the scale, and what is added."""

    kind: str
    weight: "NDArray[np.float32]"
    bias: "NDArray[np.float32] | None"
    activation: str = "Identity"

    def __call__(self, vectors: "NDArray[np.float32]") -> "NDArray[np.float32]":
        """Map vectors, [N, width]."""
        import numpy as np

        bias = np.float32(0) if self.bias is None else self.bias
        if self.kind == "LayerNorm":
            centred = vectors - vectors.mean(1, keepdims=True)
            scale = np.sqrt((centred**2).mean(1, keepdims=True) + _NORM_EPS)
            return np.asarray(centred / scale * self.weight + bias, np.float32)
        mapped = vectors @ self.weight.T + bias
        if self.activation == "Tanh":
            return np.asarray(np.tanh(mapped))
        if self.activation == "ReLU":
            return np.asarray(np.maximum(mapped, 0))
        return np.asarray(1 / (1 + np.exp(-mapped))) if self.activation == "Sigmoid" else mapped


@dataclass(frozen=True)
class Pooling:
    """How a folder wants its texts embedded; the mean where it does not say.

    Attributes:
        modes: ways of pooling, whose vectors are joined.
        steps: what follows, in order: layers, and "Normalize".
        max_length: the most tokens of a text; None: as many as the model has positions.
        prompts: texts that are put before a text, by name.
        default_prompt: the name of the one that is used by default.
        include_prompt: whether a prompt's tokens are pooled too.
        truncate_dim: how many numbers of a vector are kept, from its beginning.
        is_stated: whether the folder names it; false also without sentence-transformers' files.
    """

    modes: tuple[str, ...] = ("mean",)
    steps: tuple[Layer | str, ...] = ()
    max_length: int | None = None
    prompts: Mapping[str, str] = field(default_factory=dict)
    default_prompt: str | None = None
    include_prompt: bool = True
    truncate_dim: int | None = None
    is_stated: bool = False

    def as_json(self) -> dict[str, Any]:
        """Return it as plain JSON values."""
        return {
            "mode": "+".join(self.modes),
            "normalize": "Normalize" in self.steps,
            "max_length": self.max_length,
            "layers": [
                f"{step.kind} {' x '.join(map(str, step.weight.shape))} {step.activation}"
                for step in self.steps
                if isinstance(step, Layer)
            ],
            "prompts": dict(self.prompts),
            "default_prompt": self.default_prompt,
            "include_prompt": self.include_prompt,
            "truncate_dim": self.truncate_dim,
        }

    def text_of(self, prompt: str | None) -> str:
        """Return what is put before each text, given the name of a prompt; "" is none, None the default."""
        name = self.default_prompt if prompt is None else prompt
        if not name:
            return ""
        if name not in self.prompts:
            known = ", ".join(self.prompts) or "none"
            raise UserError(f'the model has no prompt {str(name)[:40]!r} (its prompts: {known[:200]}); "" is for none')
        return self.prompts[name]


def read_pooling(folder: Path) -> Pooling:
    """Return how a folder of sentence-transformers makes vectors, or the default for other folders."""
    modules = read_modules(folder)
    if not modules:
        return Pooling()
    where = folder / MODULES_FILE
    (first, _), *rest = modules
    if first != "Transformer":
        raise UserError(
            f"{where}: the first module is {first[:40]!r}; only a Transformer, which is a BERT, is read here"
        )
    _check_transformer(find_encoder(folder))
    modes, steps, include_prompt = ("mean",), [], True  # type: tuple[tuple[str, ...], list[Layer | str], bool]
    for index, (kind, name) in enumerate(rest):
        module = safe_join(folder, name)
        if kind == "Pooling" and index == 0:
            raw = read_json(module / "config.json")
            modes, include_prompt = _modes(raw, module / "config.json"), raw.get("include_prompt", True) is not False
        elif kind in ("Dense", "LayerNorm"):
            steps.append(_layer(kind, module))
        elif kind == "Normalize":
            if (module / "config.json").exists():
                _check_names(read_json(module / "config.json"), module / "config.json")
            steps.append(kind)
        elif kind != "Dropout":  # which is for training
            raise UserError(f"{where}: a module {kind[:40]!r}, number {index + 2} of {len(modules)}, is not read here")
    path = folder / _OWN_CONFIG_FILE
    own = read_json(path) if path.exists() else {}
    prompts, default, kept = own.get("prompts") or {}, own.get("default_prompt_name"), own.get("truncate_dim")
    if not isinstance(prompts, dict) or not all(isinstance(text, str | None) for text in prompts.values()):
        raise UserError(f"{path}: prompts is not an object of texts")
    if default is not None and default not in prompts:
        raise UserError(f"{path}: default_prompt_name {str(default)[:40]!r} is not among its prompts")
    if kept is not None and (type(kept) is not int or kept < 1):
        raise UserError(f"{path}: truncate_dim {str(kept)[:40]!r} is not a number of dimensions")
    return Pooling(
        modes=modes,
        steps=tuple(steps),
        max_length=_max_length(find_encoder(folder)),
        prompts={name: text or "" for name, text in prompts.items()},
        default_prompt=default,
        include_prompt=include_prompt,
        truncate_dim=kept,
        is_stated=True,
    )


def _modes(raw: Mapping[str, Any], path: Path) -> tuple[str, ...]:
    """Return the ways of pooling: named by `pooling_mode`, or each by a key of its own that is true."""
    stated = raw.get("pooling_mode")
    if stated is None:
        stated = [theirs for _, theirs, key in _MODES if raw.get(key) is True]
        others = {name for name, value in raw.items() if name.startswith("pooling_mode_") and value is True}
        stated = [*stated, *sorted(others - {key for _, _, key in _MODES})] or ["mean"]
    known = {theirs: ours for ours, theirs, _ in _MODES}
    named = [stated] if isinstance(stated, str) else stated
    if not isinstance(named, list) or not named or not all(isinstance(name, str) for name in named):
        raise UserError(f"{path}: no pooling_mode is named; {', '.join(known)} are read here")
    if unknown := [name for name in named if name not in known]:
        raise UserError(f"{path}: pooling {unknown[0][:60]!r} is not read here; {', '.join(known)} are")
    return tuple(known[name] for name in named)


def _layer(kind: str, folder: Path) -> Layer:
    """Read a Dense or a LayerNorm with its weights."""
    path = folder / "config.json"
    raw, prefix = read_json(path), "linear" if kind == "Dense" else "norm"
    _check_names(raw, path)
    if raw.get("use_residual"):
        raise UserError(f"{path}: use_residual is not computed here")
    activation = str(
        raw.get("activation_function", "torch.nn.modules.activation.Tanh" if kind == "Dense" else "Identity")
    )
    name = activation.rpartition(".")[2]
    if name not in _ACTIVATIONS:
        raise UserError(
            f"{path}: activation_function {activation[:60]!r} is not read here; {', '.join(_ACTIVATIONS)} are"
        )
    if not (folder / WEIGHTS_FILE).exists():
        raise UserError(
            f"{folder} has no {WEIGHTS_FILE}; sentence-transformers 3 and newer write one when they save the model, "
            "and a pickle is not opened here"
        )
    import numpy as np

    arrays = read_arrays(folder / WEIGHTS_FILE)
    weight, bias = arrays.get(f"{prefix}.weight"), arrays.get(f"{prefix}.bias")
    if weight is None or weight.ndim != (2 if kind == "Dense" else 1) or weight.dtype.kind != "f":
        raise CorruptFile(f"{folder / WEIGHTS_FILE} has no {prefix}.weight of the right shape")
    if bias is not None and (bias.shape != weight.shape[:1] or bias.dtype.kind != "f"):
        raise CorruptFile(f"{folder / WEIGHTS_FILE}: {prefix}.bias does not fit {prefix}.weight")
    if (bias is None) == (kind == "LayerNorm" or raw.get("bias", True) is True):
        raise CorruptFile(
            f"{folder / WEIGHTS_FILE}: {prefix}.bias is {'missing' if bias is None else 'there'}, against {path}"
        )
    as_float = [None if array is None else array.astype(np.float32) for array in (weight, bias)]
    return Layer(kind, weight.astype(np.float32), as_float[1], name)


def _check_names(raw: Mapping[str, Any], path: Path) -> None:
    """Refuse a module that reads or writes anything but the vector."""
    for key in ("module_input_name", "module_output_name"):
        if raw.get(key, "sentence_embedding") != "sentence_embedding":
            raise UserError(f"{path}: {key} {str(raw[key])[:40]!r} is not read here; only sentence_embedding is")


def _check_transformer(folder: Path) -> None:
    """Refuse settings of the first module by which something else than the last layer would be pooled."""
    path = folder / SENTENCE_FILE
    raw = read_json(path) if path.exists() else {}
    for key, known in _TRANSFORMER.items():
        if raw.get(key, known) != known:
            raise UserError(f"{path}: {key} {str(raw[key])[:60]!r} is not computed here; only {known}")
    if extra := [key for key in _UNKNOWN_IF_SET if raw.get(key)]:
        raise UserError(f"{path}: {extra[0]} is not applied here; remove it, or convert the texts yourself")
    text = raw.get("modality_config", {}) if isinstance(raw.get("modality_config", {}), dict) else {}
    text = text.get("text", {}) if isinstance(text.get("text", {}), dict) else {}
    for key, known in (("method", "forward"), ("method_output_name", "last_hidden_state")):
        if text.get(key, known) != known:
            raise UserError(f"{path}: {key} {str(text[key])[:60]!r} of text is not computed here; only {known}")


def _max_length(folder: Path) -> int | None:
    """Return the most tokens of a text: version 6 says it in the tokenizer's file, where an older one is silent."""
    for name, key in ((SENTENCE_FILE, "max_seq_length"), (TOKENIZER_CONFIG_FILE, "model_max_length")):
        length = read_json(folder / name).get(key) if (folder / name).exists() else None
        if isinstance(length, float) and length >= 1e9:  # "no limit", as some versions write it
            continue
        if length is not None and (type(length) is not int or length < 1):
            raise UserError(f"{folder / name}: {key} {str(length)[:40]!r} is not a number of tokens")
        if length is not None:
            return length
    return None


def write_pooling(folder: Path, pooling: Pooling, width: int) -> None:
    """Write how a folder's texts are embedded, so that sentence-transformers does it too."""
    kinds = ["Transformer", "Pooling", *(step if isinstance(step, str) else step.kind for step in pooling.steps)]
    paths = ["", *(f"{number}_{kind}" for number, kind in enumerate(kinds) if number)]
    modules = [
        {"idx": number, "name": str(number), "path": path, "type": f"sentence_transformers.models.{kind}"}
        for number, (kind, path) in enumerate(zip(kinds, paths, strict=True))
    ]
    # Versions before 5.2 know the keys alone, which have one order; newer ones know both forms.
    modes: dict[str, Any] = {key: ours in pooling.modes for ours, _, key in _MODES}
    if pooling.modes != tuple(ours for ours, _, _ in _MODES if ours in pooling.modes):
        modes = {"pooling_mode": [theirs for mode in pooling.modes for ours, theirs, _ in _MODES if ours == mode]}
    contents: dict[str, Any] = {
        MODULES_FILE: modules,
        "1_Pooling/config.json": {
            "word_embedding_dimension": width, **modes, "include_prompt": pooling.include_prompt
        },
        SENTENCE_FILE: {"max_seq_length": pooling.max_length, "do_lower_case": False},
        _OWN_CONFIG_FILE: {"prompts": dict(pooling.prompts), "default_prompt_name": pooling.default_prompt},
    }  # fmt: skip
    if pooling.truncate_dim is not None:
        contents[_OWN_CONFIG_FILE]["truncate_dim"] = pooling.truncate_dim
    for path in paths[1:]:
        (folder / path).mkdir()
    for path, step in zip(paths[2:], pooling.steps, strict=True):
        if isinstance(step, Layer):
            prefix = "linear" if step.kind == "Dense" else "norm"
            arrays = {f"{prefix}.weight": step.weight}
            contents[f"{path}/config.json"] = {"dimension": len(step.weight)}
            if step.kind == "Dense":
                num_out, num_in = step.weight.shape
                linear = "linear.Identity" if step.activation == "Identity" else f"activation.{step.activation}"
                contents[f"{path}/config.json"] = {
                    "in_features": num_in, "out_features": num_out, "bias": step.bias is not None,
                    "activation_function": f"torch.nn.modules.{linear}",
                }  # fmt: skip
            if step.bias is not None:
                arrays[f"{prefix}.bias"] = step.bias
            write_arrays(folder / path / WEIGHTS_FILE, arrays)
    for name, content in contents.items():
        with atomic_write(folder / name) as stream:
            json.dump(content, stream, indent=2)


def check_widths(pooling: Pooling, width: int, where: object) -> None:
    """Refuse layers that do not fit the vectors that they are given."""
    width *= len(pooling.modes)
    for step in pooling.steps:
        if isinstance(step, Layer):
            if step.weight.shape[-1] != width:
                raise UserError(
                    f"{where}: a {step.kind} takes {step.weight.shape[-1]:,} numbers and is given {width:,}"
                )
            width = step.weight.shape[0]
