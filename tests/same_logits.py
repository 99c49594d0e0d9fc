"""Our logits of a model folder beside those of transformers."""

import numpy as np
import torch

import bertworks as bw


def check_logits_of_transformers(folder, atol):
    """Compare what both make of a pair of texts, mask by mask and pair by pair."""
    import transformers

    transformers.utils.logging.set_verbosity_error()
    transformers.utils.logging.disable_progress_bar()
    theirs = transformers.AutoModelForPreTraining.from_pretrained(folder, dtype=torch.float32).eval()
    tokenizer = transformers.AutoTokenizer.from_pretrained(folder)
    ours = bw.load(folder, device="cpu")
    inputs = tokenizer("the cat sat .", "a dog ran", return_tensors="pt")
    encoding = ours.encode(["the cat sat ."], ["a dog ran"])[0]
    assert inputs["input_ids"][0].tolist() == encoding.ids
    with torch.inference_mode():
        output = theirs(**inputs)
        tokens = ours.pack([encoding.ids], [encoding.segment_ids])
        hidden_TD = ours.net(tokens)
        mlm = ours.mlm_logits(hidden_TD)
        nsp = ours.net.heads["nsp"](ours.net.pooled(hidden_TD, tokens.packing))
    np.testing.assert_allclose(mlm, output.prediction_logits[0], atol=atol)
    np.testing.assert_allclose(nsp, output.seq_relationship_logits, atol=atol)
