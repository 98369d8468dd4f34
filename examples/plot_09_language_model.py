"""
A language model
================

A Llama of toy size, with grouped queries and a gated MLP, taught to recite a text of letters.
Attention loses whole groups of heads, the MLP loses gate, up and down slices together, and the
residual stream narrows in every layer at once.
"""

import matplotlib.pyplot as plt
import torch
from torch import Tensor, nn
from transformers import LlamaConfig, LlamaForCausalLM

import obc

torch.manual_seed(0)
config = LlamaConfig(
    vocab_size=32, hidden_size=48, intermediate_size=96, num_hidden_layers=3,
    num_attention_heads=6, num_key_value_heads=3, max_position_embeddings=64,
    bos_token_id=0, eos_token_id=0, use_cache=False,
)  # fmt: skip
model = LlamaForCausalLM(config)
text = "what stays takes over from what went, layer by layer, in closed form. " * 40
tokens = torch.tensor([ord(letter) % 32 for letter in text])
batches = [{"input_ids": t} for t in tokens[: 64 * 32].view(-1, 8, 32)]


def loss(model: nn.Module, batch: dict[str, Tensor]) -> Tensor:
    result: Tensor = model(**batch, labels=batch["input_ids"]).loss
    return result


optimizer = torch.optim.AdamW(model.parameters(), lr=3e-3)
for _ in range(8):
    for batch in batches:
        optimizer.zero_grad()
        loss(model, batch).backward()
        optimizer.step()
model.eval()

# %%
# What belongs together; `heads` are units of attention with all their features.
example = {"input_ids": batches[0]["input_ids"][:2]}
sites = obc.trace(model, example)
for site in sites:
    layers = list(dict.fromkeys(m.layer.removeprefix("model.layers.") for m in site.members))
    print(f"{site.name:<34} {site.size:>3} {'heads' if site.heads else 'channels':<9}", *layers[:4])

# %%
# Two thirds of the MACs; ``ignore`` lets the residual stream keep its width.
small, plan, account = obc.prune(
    model, example, batches, loss, target="macs=1.5x", rows=8, step=0.05,
    ignore=["model.embed_tokens"], details=True,
)  # fmt: skip
print(account.summary())
with torch.no_grad():
    for name, net in {"original": model, "pruned": small}.items():
        perplexity = torch.stack([loss(net, b) for b in batches]).mean().exp()
        print(f"{name:<9} {obc.cost(net, example).macs:>9,} MACs, perplexity {perplexity:.3f}")

# %%
figure, axes = plt.subplots(figsize=(7, 3.5), layout="constrained")
names = [site.name.removeprefix("model.") for site in sites]
axes.barh(names, [100] * len(names), color="#d9dce1")
shares = [100 * len(plan.kept.get(s.name, range(s.size))) / s.size for s in sites]
axes.barh(names, shares, color="#2a78d6", height=0.5)
axes.invert_yaxis()
axes.set(xlabel="kept in %", title="Heads and channels that stay")
plt.show()
