"""A pruned model in lm-evaluation-harness, as it is; skipped where the package is missing."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest
import torch

import obc
from tests import vision
from tests.hugging import decoder, tokenizer


@pytest.mark.skipif(not vision.installed("transformers"), reason="transformers is not installed")
def test_log_likelihoods_are_the_models() -> None:
    pytest.importorskip("lm_eval")
    from lm_eval.models.huggingface import HFLM

    torch.manual_seed(0)
    model: Any = decoder("Llama").eval()
    sites = obc.trace(model, torch.randint(53, (1, 8)))
    kept = {s.name: range(s.size - 2) for s in sites if "mlp" in s.name}
    obc.apply(model, obc.Plan.from_kept(sites, kept))
    letters = tokenizer()
    harness = HFLM(pretrained=model, tokenizer=letters, batch_size=1, max_length=40)
    requests = [SimpleNamespace(args=("a whale ", "and names"))]
    ((found, _),) = harness.loglikelihood(requests)
    before, after = (torch.tensor(letters(t)["input_ids"]) for t in ("a whale", " and names"))
    with torch.no_grad():
        logits = model(torch.cat([before, after])[None]).logits[0].log_softmax(-1)
    places = range(len(before) - 1, len(before) + len(after) - 1)
    expected = sum(float(logits[p, t]) for p, t in zip(places, after.tolist(), strict=True))
    assert found == pytest.approx(expected, rel=1e-4)
