"""What a criterion looks at beside the weights: products, gradients, squares, row by row."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils._pytree import tree_leaves, tree_map

from obc.criteria.criterion import Criterion
from obc.criteria.probe import InPlace, Key, Probe, keys_of, positions, streams
from obc.criteria.single import per_sample, squares
from obc.criteria.structure import Part
from obc.errors import ObcError
from obc.running.randomness import forked
from obc.running.snapshot import unchanged
from obc.tracing.sites import Sites

Row = dict[str, list[tuple[Part, Tensor, Tensor]]]
Findings = dict[str, list[str]]
"""How layers are looked at, as text: parts are named by their site and their place in it."""


@contextmanager
def scoring(model: nn.Module) -> Iterator[None]:
    """Eval mode, frozen weights, nothing in place; afterwards the model is as it was."""
    flags = [(p, p.requires_grad) for p in model.parameters()]
    with unchanged(model), forked(model.parameters()), torch.enable_grad():
        try:
            module: Any
            for module in model.modules():
                module.training = False
                if getattr(module, "inplace", False) is True:
                    module.inplace = False  # its input may still be needed
            for p, _ in flags:
                p.requires_grad_(False)
            yield
        finally:
            for p, flag in flags:
                p.requires_grad_(flag)


class Gatherer:
    """Gathers one row of evidence after the other for all structural parameters of a model."""

    def __init__(
        self,
        model: nn.Module,
        sites: Sites,
        parts: Mapping[str, list[Part]],
        loss: Callable[[Any, Any], Tensor],
        criterion: Criterion,
        fast: bool,
        checkpoint: bool = False,
    ) -> None:
        self.model, self.parts, self.loss, self.criterion = model, parts, loss, criterion
        self.count = 0
        self._checkpoint = checkpoint
        self.wiring = sites.wiring
        self.by_sample = criterion.per_sample
        all_parts = [part for of_site in parts.values() for part in of_site]
        product = criterion.evidence == "product"
        # Norms have few weights and their kernels give those gradients along; samples they do not.
        kinds = ("out", "in", "norm") if self.by_sample else ("out", "in")
        candidates = [p for p in all_parts if fast and product and p.role in kinds]
        self.streamed = {p for p in candidates if streams(p, model, sites.wiring)}
        apart = getattr(criterion, "diagonal_norm", False)
        self.probe = Probe(model, self.by_sample, apart)
        self.derived: set[Part] = set()  # products known from another layer's pass
        self._through: dict[Part, Tensor] = {}
        self._outs: dict[str, list[Part]] = {}
        for part in self.streamed:
            if part.role == "out":
                self._outs.setdefault(part.layer, []).append(part)

    def row(self, number: int, batch: Any) -> Row:
        """The evidence of one batch."""
        self.count += 1
        if self.criterion.evidence == "square":
            return self._squares(number, batch)
        if self.criterion.evidence == "gradient":
            return self._rows(self._weight_gradients(number, batch, self._names()))
        products = self._first(number, batch) if self.count == 1 else self._products(number, batch)
        none = torch.empty(0)
        return {n: [(p, none, products[p]) for p in parts] for n, parts in self.parts.items()}

    # -- cuts of the same model ------------------------------------------------------------

    def follow(self, parts: Mapping[str, list[Part]]) -> None:
        """The model was cut in place; these are its parts now, one for each of those before."""
        new = {
            old: now
            for name, olds in self.parts.items()
            for old, now in zip(olds, parts[name], strict=True)
        }
        self.parts, self._through = parts, {}
        self.streamed = {new[p] for p in self.streamed}
        self.derived = {new[p] for p in self.derived}
        self._outs = {layer: [new[p] for p in outs] for layer, outs in self._outs.items()}

    def findings(self) -> Findings:
        """What the first batch has shown."""
        names = {
            p: f"{name}/{i}" for name, parts in self.parts.items() for i, p in enumerate(parts)
        }
        return {
            "streamed": sorted(names[p] for p in self.streamed),
            "derived": sorted(names[p] for p in self.derived),
            "copied": sorted(self.probe.copied),
        }

    def recall(self, findings: Findings) -> None:
        """Go on as a gatherer with these findings would: to the bit the same products."""
        parts = {
            f"{name}/{i}": p for name, of_site in self.parts.items() for i, p in enumerate(of_site)
        }
        self.streamed = {parts[n] for n in findings["streamed"]}
        self.derived = {parts[n] for n in findings["derived"]}
        self.probe.copied = set(findings["copied"])
        self.count = max(self.count, 1)

    # -- gradients and squares -------------------------------------------------------------

    def _names(self, parts: set[Part] | None = None) -> list[str]:
        chosen = [
            p for of_site in self.parts.values() for p in of_site if parts is None or p in parts
        ]
        return list(dict.fromkeys(name for p in chosen for m in p.members for name in m.names))

    def _squares(self, number: int, batch: Any) -> Row:
        self._value(number, batch)
        with _named(number):
            return self._rows(squares(self.model, self.loss, batch, self._names()))

    def _rows(self, tensors: dict[str, Tensor]) -> Row:
        weights = {n: p.detach().to(_wide(p)) for n, p in self.model.named_parameters()}
        return {
            name: [(p, p.rows(weights), p.rows(tensors)) for p in parts]
            for name, parts in self.parts.items()
        }

    def _weight_gradients(self, number: int, batch: Any, names: list[str]) -> dict[str, Tensor]:
        tensors = dict(self.model.named_parameters())
        leaves = [tensors[n].requires_grad_() for n in names]
        value = self._value(number, batch)
        grads = self._differentiated(value, leaves)
        self._check_reached({n for n, g in zip(names, grads, strict=False) if g is not None})
        return {
            n: torch.zeros_like(tensors[n], dtype=_wide(tensors[n]))
            if g is None
            else g.to(_wide(g))
            for n, g in zip(names, grads, strict=False)
        }

    def _differentiated(self, value: Tensor, leaves: list[Tensor]) -> Sequence[Tensor | None]:
        """The gradients of weights; those of activations pass by the probe on the way."""
        if not self._checkpoint:
            return torch.autograd.grad(value, [*leaves, *self.probe.starts], allow_unused=True)
        before = [p.grad for p in leaves]
        try:
            for p in leaves:
                p.grad = None
            value.backward()
            return [p.grad for p in leaves]
        finally:
            for p, grad in zip(leaves, before, strict=True):
                p.grad = grad

    def _check_reached(self, names: set[str]) -> None:
        for site, parts in self.parts.items():
            reached = any(
                any(key in self.probe.sums for key in self._keys(p))
                if p in self.streamed
                else any(name in names for m in p.members for name in m.names)
                for p in parts
            )
            if not reached:
                raise ObcError(f"no gradient reaches site '{site}'; does the loss depend on it?")

    # -- products --------------------------------------------------------------------------

    def _first(self, number: int, batch: Any) -> dict[Part, Tensor]:
        """The first batch also shows whether the loss is the same when run again, which products
        follow from others, and whether rows are samples."""
        with torch.no_grad():
            once = float(self._value(number, batch, needs_grad=False))
        products = self._products(number, batch)
        if abs(self._last - once) > 1e-3 * abs(once):
            raise ObcError(
                f"the loss of batch {number} is {once:.6g} at first and {self._last:.6g} when run "
                "again; scoring needs a deterministic model and loss"
            )
        offered = {p: self._offer(p, products) for p in self.streamed}
        confirmed = {
            p for p, e in offered.items() if e is not None and _close(e, _joined(products[p]))
        }
        if self.by_sample and self._misplaced(number, batch, products):
            products = self._products(number, batch)
        self.derived = confirmed & self.streamed
        return products

    def _misplaced(self, number: int, batch: Any, products: dict[Part, Tensor]) -> bool:
        """The first row must be the first sample's; layers laid out otherwise take gradients."""
        first = tree_map(lambda t: t[:1] if isinstance(t, Tensor) and t.ndim else t, batch)
        alone = self._products(number, first)
        misplaced = {p for p in self.streamed if not _close(alone[p], products[p][:1])}
        self.streamed -= misplaced
        return bool(misplaced)

    def _products(self, number: int, batch: Any) -> dict[Part, Tensor]:
        """w . g of each structural parameter, [rows, size, tensors]."""
        all_parts = [p for of_site in self.parts.values() for p in of_site]
        slow = self._names(set(all_parts) - self.streamed)
        grads = self._stream(number, batch, slow)
        if self.by_sample and slow:
            with _named(number):
                grads = per_sample(self.model, self.loss, batch, slow)
        size = _batch_size(batch) if self.by_sample else 1
        products = {}
        for part in all_parts:
            if part not in self.streamed:
                products[part] = self._from_gradients(part, grads).double()
            elif part not in self.derived:
                products[part] = self._from_sums(part, size)
        self._through = {} if self.by_sample else self._through_norms(grads)
        for part in self.derived:
            known = self._offer(part, products)
            assert known is not None
            products[part] = known
        return products

    def _stream(self, number: int, batch: Any, slow: list[str]) -> dict[str, Tensor]:
        """One forward and backward pass; what is overwritten on the way is copied the next time."""
        while True:
            self.probe.watch({k for p in self.streamed - self.derived for k in self._keys(p)})
            try:
                with _named(number):
                    return self._weight_gradients(number, batch, slow)
            except InPlace as seen:
                self.probe.copied.add(seen.layer)
            finally:
                self.probe.release()
                self.probe.starts.clear()  # or their activations would last into the next row
                for name in slow:
                    self.model.get_parameter(name).requires_grad_(False)

    def _through_norms(self, grads: dict[str, Tensor]) -> dict[Part, Tensor]:
        """Products of layers that only a batch norm reads, from the gradients of that norm.

        In eval mode y = gamma (z - mean) / sigma + beta, so the layer's sum of z dz is
        gamma dgamma + gamma mean / sigma dbeta.
        """
        products = {}
        for norm, layer in self.wiring.before.items():
            module: Any = self.model.get_submodule(norm)
            dgamma, dbeta = grads.get(f"{norm}.weight"), grads.get(f"{norm}.bias")
            if dgamma is None or dbeta is None or getattr(module, "running_mean", None) is None:
                continue
            shift = module.running_mean / (module.running_var + module.eps).sqrt()
            sums = module.weight.detach() * (dgamma + shift * dbeta)
            for part in self._outs.get(layer, ()):
                module_before = self.model.get_submodule(layer)
                products[part] = positions(part, module_before, sums.double()[None, :, None])
        return products

    def _keys(self, part: Part) -> list[Key]:
        return keys_of(part, self.model, self.wiring)

    def _offer(self, part: Part, products: dict[Part, Tensor]) -> Tensor | None:
        """A part's products as another layer's pass gives them, if one does."""
        if part.role != "in":
            return self._through.get(part)
        source = self.wiring.source.get(part.layer)
        maker = [p for p in self.parts[part.site] if p.layer == source and p.role != "in"]
        if len(maker) != 1:
            return None
        known = products.get(maker[0], self._through.get(maker[0]))
        return None if known is None else _joined(known)

    def _from_sums(self, part: Part, size: int) -> Tensor:
        module, total = self.model.get_submodule(part.layer), torch.zeros(size, part.size, 1)
        for key in self._keys(part):
            if key in self.probe.sums:
                sums = self._by_rows(self.probe.sums[key], size)
                total = positions(part, module, sums).double() + total.to(sums.device)
        return total.double()

    def _by_rows(self, sums: Tensor, size: int) -> Tensor:
        """Sums of a whole batch as they are, or one row for each sample."""
        if not self.by_sample:
            return sums
        if len(sums) % size:  # not laid out by sample, and `_misplaced` will see it
            sums = sums.sum(0, keepdim=True).expand(size, -1, -1)
        # The loss is a mean over samples; a row is that of one sample.
        rows: Tensor = sums.unflatten(0, (size, -1)).sum(1) * size
        return rows

    def _from_gradients(self, part: Part, grads: dict[str, Tensor]) -> Tensor:
        columns = []
        for m in part.members:
            g = m.of(grads, at=int(self.by_sample))
            w = m.of({name: self.model.get_parameter(name).detach() for name in m.names})
            product = w.to(g.dtype) * (g if self.by_sample else g[None])
            product = (
                product.movedim(m.dim + 1, 1).flatten(2).sum(2) if product.ndim > 2 else product
            )
            columns.append(product[:, m.index.to(product.device)].sum(2))
        return torch.stack(columns, -1)

    # -- the loss --------------------------------------------------------------------------

    def _value(self, number: int, batch: Any, needs_grad: bool = True) -> Tensor:
        with _named(number):
            value = self.loss(self.model, batch)
        if not isinstance(value, Tensor) or value.numel() != 1:
            what = f"shape {list(value.shape)}" if isinstance(value, Tensor) else f"{value!r}"
            raise ObcError(f"the loss must be a scalar tensor; batch {number} gave {what}")
        if not torch.isfinite(value):
            raise ObcError(f"the loss of batch {number} is {value.item()}")
        if needs_grad and self.criterion.evidence != "square" and not value.requires_grad:
            raise ObcError(f"the loss of batch {number} has no gradient; is it detached?")
        self._last = float(value.detach())
        return value.reshape(())


@contextmanager
def _named(number: int) -> Iterator[None]:
    """Errors of the model or the loss say which batch they came from."""
    try:
        yield
    except (ObcError, InPlace):
        raise
    except Exception as error:
        raise ObcError(f"batch {number} failed: {error}") from error


def _wide(tensor: Tensor) -> torch.dtype:
    return torch.float32 if tensor.dtype in (torch.float16, torch.bfloat16) else tensor.dtype


def _joined(e: Tensor) -> Tensor:
    """The products of a part's tensors as one."""
    return e.sum(2, keepdim=True)


def _close(a: Tensor, b: Tensor) -> bool:
    if a.shape != b.shape:
        return False
    return float((a - b).abs().max()) <= 1e-3 * float(b.abs().max())


def _batch_size(batch: Any) -> int:
    sizes = [t.shape[0] for t in tree_leaves(batch) if isinstance(t, Tensor) and t.ndim]
    if not sizes:
        raise ObcError("per_sample=True needs batches with a tensor in them")
    return int(sizes[0])
