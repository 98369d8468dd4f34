"""
What is coupled in my model
===========================

A *site* is a set of channels that live in the same layers and have to go together: the filters
that put them out, the norms over them, the input slices that read them. The drawing has a row for
each layer and a column for each site. ``obc show MODEL --html FILE`` draws the same for a browser.
"""

import matplotlib.pyplot as plt
import torch
from torch import Tensor, nn

import obc


class Net(nn.Module):
    """A residual block whose branch passes a squeeze-and-excite gate."""

    def __init__(self) -> None:
        super().__init__()
        self.stem, self.norm = nn.Conv2d(3, 16, 3, padding=1), nn.BatchNorm2d(16)
        self.inner, self.outer = nn.Conv2d(16, 24, 3, padding=1), nn.Conv2d(24, 16, 3, padding=1)
        self.squeeze, self.excite = nn.Conv2d(16, 4, 1), nn.Conv2d(4, 16, 1)
        self.head = nn.Linear(16, 10)

    def forward(self, x: Tensor) -> Tensor:
        x = self.norm(self.stem(x)).relu()
        branch = self.outer(self.inner(x).relu())
        gate = self.excite(self.squeeze(branch.mean((2, 3), keepdim=True)).relu()).sigmoid()
        logits: Tensor = self.head((x + gate * branch).mean((2, 3)))
        return logits


sites = obc.trace(Net().eval(), torch.randn(1, 3, 8, 8))
for site in sites:
    print(site.name, site.size, [(m.name, m.role) for m in site.members])

# %%
# What stays is listed with the reason:
for frozen in sites.frozen:
    print(frozen)

# %%
# The drawing: filled where a layer puts channels out, ringed where it reads them, a dash where it
# acts on each of them.
layers = [name for name, module in Net().named_modules() if list(module.parameters(False))]
marks = {"out": dict(marker="s", s=160), "in": dict(marker="o", s=160, facecolors="none", lw=2)}
figure, axes = plt.subplots(figsize=(6, 4), layout="constrained")
for column, site in enumerate(sites):
    colour = f"C{column}"
    rows = [layers.index(m.layer) for m in site.members]
    axes.plot([column, column], [min(rows), max(rows)], color=colour, lw=2, alpha=0.4)
    for role, layer in dict.fromkeys((m.role, m.layer) for m in site.members):
        style = marks.get(role, dict(marker="_", s=200, lw=3))
        axes.scatter(column, layers.index(layer), color=colour, **style)
axes.set_xticks(range(len(sites)), [f"{s.name}\n{s.size} channels" for s in sites])
axes.set_yticks(range(len(layers)), layers)
axes.set_xlim(-0.5, len(sites) - 0.5)
axes.invert_yaxis()
axes.set_title("■ puts out   ○ reads   — acts on each")
plt.show()
