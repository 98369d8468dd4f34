"""The way through the network: both run on the same inputs, and each weight is fitted in turn."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor, nn

from obc.recalibration.account import Fit, Recalibration
from obc.recalibration.alignment import Alignment, align, constants_of, intact
from obc.recalibration.draft import Draft, Written, commit
from obc.recalibration.fitting import Fitting, Pair, name_of
from obc.recalibration.forms import Scaling
from obc.recalibration.lockstep import Call, Run, Stop, Watch, running, twin
from obc.recalibration.logits import Following, candidates
from obc.recalibration.operators import Key, Parameters, called
from obc.recalibration.origins import Origins
from obc.recalibration.outcome import Outcome, held_batch, held_outputs
from obc.recalibration.parking import Parking, can_fill, crowded
from obc.recalibration.recording import Reader, Recording
from obc.recalibration.regression import RIDGES, SAFE
from obc.recalibration.rows import Portion, enough_to_try, portions
from obc.running.difference import difference
from obc.running.forward import evaluating
from obc.running.keys import without_keys
from obc.running.modules import named_tensors
from obc.running.processes import Group
from obc.running.randomness import forked
from obc.running.snapshot import unchanged
from obc.tracing.attention import multihead_attention

_NUMBERS = 1 << 24  # that are compared to judge the whole network


@dataclass(frozen=True)
class Layer:
    """A weight that can be fitted, in the order in which they run.

    `intact` tells that it reads all inputs that the original's does, with the same values.
    """

    reader: Reader
    alignment: Alignment
    weight: Tensor
    bias: Tensor | None
    number: int
    intact: bool


class Procedure:
    """One call of `obc.recalibrate`."""

    def __init__(
        self,
        pruned: nn.Module,
        original: nn.Module,
        batches: Sequence[Any],
        call: Call,
        example: Any,
        seed: int,
    ) -> None:
        self._pruned, self._original, self._call, self._seed = pruned, original, call, seed
        self._origins = Origins(pruned, original, example)
        self._batches, self._group = batches, Group()
        self._portions = portions(batches)
        self._mine = [p for p in self._portions if self._group.mine(p.number)]
        self._first = next((p for p in self._portions if p.holds_any), self._portions[0])
        self._draft = Draft()
        self._twins: dict[tuple[str, int], nn.Module] = {}

    def run(self, source: str, residual: bool | None) -> Recalibration:
        """Fit all that can be, with or without residual sums, or what does better if not told."""
        best: Recalibration | None = None
        values: Written = []
        # What a decoder lost is hard to tell from noise: each row counts.
        self._every = source == "sums"
        with self._aside():
            with self._group.together("recalibration"):
                whole, _ = self._recorded(self._original, self._origins.names)
                part, outputs = self._recorded(self._pruned)
                self._layers, self._alone = self._matched(whole, part)
                self._shortcuts = {
                    network: {key: r.shortcut for key, r in record.readers.items() if r.shortcut}
                    for network, record in (("original", whole), ("pruned", part))
                }
                self._naive = self._outputs(held_outputs(outputs, self._first))
            for account in self._attempts(source, residual):
                if best is None or account.after < best.after:
                    best, values = account, self._draft.written()
        assert best is not None
        if best.kept:
            commit(values)
        return best

    @contextmanager
    def _aside(self) -> Iterator[None]:
        """Both models in eval mode; whatever happens, they are afterwards as they were."""
        parameters = (*self._pruned.parameters(), *self._original.parameters())
        fast = torch.backends.mha.get_fastpath_enabled()
        with ExitStack() as stack:
            for model in (self._pruned, self._original):
                stack.enter_context(unchanged(model))
                stack.enter_context(evaluating(model))
                stack.enter_context(without_keys(model))  # all batches wait with what they keep
            stack.enter_context(forked(parameters))
            stack.enter_context(torch.no_grad())
            stack.callback(torch.backends.mha.set_fastpath_enabled, fast)
            stack.callback(self._draft.take_back)
            torch.backends.mha.set_fastpath_enabled(False)
            for name, module in self._pruned.named_modules():
                # Once cut, it computes in another order: the original is to compute in the same.
                if isinstance(module, nn.MultiheadAttention) and "forward" in vars(module):
                    multihead_attention(self._original.get_submodule(name), {})
            yield

    def _recorded(
        self, model: nn.Module, names: Mapping[str, str] | None = None
    ) -> tuple[Recording, Any]:
        """A run on the first batch of which anything is held out, and what it put out."""
        recording = Recording(model, names)
        with recording:
            outputs = self._call(model, self._batches[self._first.number])
        recording.finish()
        keys = candidates(recording.nodes)
        if keys:
            with (following := Following(Parameters(model, names), keys)):
                self._call(model, self._batches[self._first.number])
            for key in following.logits:
                recording.readers[key].logits = True
        return recording, outputs

    def _outputs(self, first: list[Tensor]) -> dict[int, list[Tensor]]:
        """The held-out outputs of the pruned model as it is, `first` those of one batch."""
        self._alone_too = self._separable(first)
        judged = [p for p in self._portions if p.is_judged]
        size = sum(t.numel() for t in first)
        judged = judged[: max(1, _NUMBERS // max(size, 1))]
        return {
            p.number: self._held(self._pruned, p, self._alone_too)
            for p in judged
            if p in self._mine
        }

    def _separable(self, first: list[Tensor]) -> bool:
        """Whether held-out samples put out the same without the others, by one batch.

        A model may know the size of its batches, or compute across them.
        """
        portion = self._first
        if not portion.holds_samples or not portion.holds_any:
            return False
        try:
            difference(first, self._held(self._pruned, portion, alone=True))
        except Exception:
            return False
        return True

    def _held(self, model: nn.Module, portion: Portion, alone: bool) -> list[Tensor]:
        batch = self._batches[portion.number]
        batch = held_batch(batch, portion) if alone else batch
        return held_outputs(self._call(model, batch), portion, alone)

    def _matched(self, whole: Recording, part: Recording) -> tuple[list[Layer], list[Fit]]:
        """The weights that can be fitted, and those that are left alone."""
        tensors = named_tensors(self._pruned)
        layers: list[Layer] = []
        alone: list[Fit] = []
        shared = whole.shared | part.shared
        constants = constants_of(
            tensors, called(named_tensors(self._original), self._origins.names)
        )
        biases = Counter(r.bias.name for r in part.readers.values() if r.bias is not None)
        means = Counter(id(r.norm.mean) for r in part.readers.values() if r.norm is not None)
        for key, reader in part.readers.items():
            note = shared.get(key, "") or constants.get(key[0], "")
            alignment = None
            if not note and key in whole.readers:
                alignment = align(whole.readers[key], reader, self._origins)
            if alignment is None:
                note = note or "the original does not use it in the same way"
                alone.append(Fit(name_of(reader), reader.form.inputs, note=note))
                continue
            bias, norm = reader.bias, reader.norm
            if bias is not None and (biases[bias.name] > 1 or bias.name in part.others):
                bias = norm = None
            elif bias is None and norm is not None and means[id(norm.mean)] > 1:
                norm = None
            other = whole.readers[key]
            routed = reader.routed or other.routed
            normed = reader.normed and other.normed and reader.norm is None
            logits = reader.logits and other.logits and reader.statistics is None
            layers.append(
                Layer(
                    replace(reader, norm=norm, routed=routed, normed=normed, logits=logits),
                    alignment,
                    tensors[key[0]],
                    tensors[bias.name] if bias is not None else None,
                    len(layers),
                    intact(other, reader, alignment),
                )
            )
        used = {key[0] for key in part.readers}
        for name, parameter in self._pruned.named_parameters():
            if parameter.ndim > 1 and name not in used:
                alone.append(Fit(name, note="no operator reads it as the weight of a linear map"))
        return layers, alone

    def _attempts(self, source: str, residual: bool | None) -> Iterator[Recalibration]:
        """Ways to fit, one after the other; the model holds what the last one led to."""
        if source == "original":
            exact = [
                Fit(name_of(y.reader), y.reader.form.inputs, note="already exact")
                for y in self._layers
                if y.intact
            ]
            layers = [y for y in self._layers if not y.intact]
            norms = [y for y in layers if y.reader.statistics is not None]
            layers = [y for y in layers if y.reader.statistics is None]
            fits, before, after = self._front_to_back(layers, self._mine, False, follow=False)
            yield self._account([*exact, *fits], [], before, after)
            if norms:
                # Layers that were not fitted on each other leave norms other variances.
                yield self._account(
                    [*exact, *fits], *self._front_to_back(norms, self._mine, False, measure=True)
                )
            return
        sums = self._shortcuts["original"].keys() & self._shortcuts["pruned"].keys()
        wishes = [False] if not sums else [True, False] if residual is None else [residual]
        # Behind a fitted layer, statistics measured again gain nothing, and cost as much as a fit.
        behind = {id(y.reader.norm.mean) for y in self._layers if y.reader.norm is not None}
        layers = [
            layer
            for layer in self._layers
            if layer.reader.statistics is None or id(layer.reader.statistics.mean) not in behind
        ]
        left: list[Fit] = []
        if source == "sums":
            wishes = [residual is not False]
            note = "lost no inputs and adds to no residual sum"
            alone = {
                y.number
                for y in layers
                if y.intact and y.reader.key not in sums and not isinstance(y.reader.form, Scaling)
            }
            left = [
                Fit(name_of(y.reader), y.reader.form.inputs, note=note)
                for y in layers
                if y.number in alone
            ]
            layers = [y for y in layers if y.number not in alone]
        first = enough_to_try(self._portions)
        if len(wishes) > 1 and first:
            wishes = [self._tried(layers, [p for p in self._mine if p.number < first])]
        for wish in wishes:
            yield self._account(left, *self._front_to_back(layers, self._mine, wish), wish)
            self._draft.take_back()

    def _tried(self, layers: Sequence[Layer], mine: Sequence[Portion]) -> bool:
        """Whether residual sums do better as targets, by some of the batches alone."""
        errors = []
        for wish in (True, False):
            errors.append(self._front_to_back(layers, mine, wish, SAFE)[2])
            self._draft.take_back()
        return errors[0] <= errors[1]

    def _account(
        self, first: list[Fit], fits: list[Fit], before: float, after: float, residual: bool = False
    ) -> Recalibration:
        every = (*first, *fits, *self._alone)
        kept = after < before and any(fit.kept for fit in every)
        return Recalibration(every, before, after, residual, kept, self._portions[0].total)

    def _front_to_back(
        self,
        layers: Sequence[Layer],
        mine: Sequence[Portion],
        residual: bool,
        ridges: Sequence[float] = RIDGES,
        measure: bool = False,
        follow: bool = True,
    ) -> tuple[list[Fit], float, float]:
        """Fit these weights in order, each on what the ones before it now lead to.

        Args:
            layers: The weights.
            mine: The batches that this process runs.
            residual: Whether residual sums are targets.
            ridges: What ρ is chosen from.
            measure: Whether norms take their statistics anew in any case.
            follow: Whether the pruned network runs along; else weights are fitted on what the
                original reads.

        Returns:
            The fits, and the errors of the outputs before and after.
        """
        keys = self._begin(layers)
        wholes = [self._started(self._original, p, keys, "original") for p in mine]
        parts = [self._started(self._pruned, p, keys, "pruned") for p in mine]
        fits, before, after = [], Outcome(), Outcome()
        with running([*wholes, *parts]):
            for layer in layers:
                with self._group.together("recalibration"):
                    fitting = Fitting(
                        layer.reader, layer.alignment, layer.weight, layer.bias, self._every
                    )
                    for portion, whole, part in zip(mine, wholes, parts, strict=True):
                        stop = self._at(layer, whole, keys)
                        other = self._at(layer, part, keys) if follow else None
                        if stop is not None:
                            pair = Pair(portion, stop, other)
                            fitting.gather(pair, self._seed + layer.number, residual)
                        if crowded(layer.weight.device):
                            whole.park()
                            part.park()
                runs = parts if follow else ()
                fits.append(self._solved(layer, fitting, runs, ridges, measure))
            with self._group.together("recalibration"):
                for portion, whole, part in zip(mine, wholes, parts, strict=True):
                    if portion.number not in self._naive:
                        continue  # nobody looks at what these put out
                    if self._alone_too and not follow:
                        original = self._held(self._original, portion, alone=True)
                        pruned = self._held(self._pruned, portion, alone=True)
                    else:
                        original = held_outputs(whole.finish(), portion)
                        pruned = held_outputs(part.finish(), portion)
                    before.add(self._naive[portion.number], original)
                    after.add(pruned, original)
        return fits, before.error(self._group), after.error(self._group)

    def _solved(
        self,
        layer: Layer,
        fitting: Fitting,
        runs: Sequence[Run],
        ridges: Sequence[float],
        measure: bool,
    ) -> Fit:
        change, fit = fitting.solve(self._group, ridges, measure)
        if change is not None:
            fitting.write(change, layer.weight, layer.bias, self._draft.write)
            for run in runs:
                if run.stop is not None and run.stop.key == layer.reader.key:
                    _renew(run.stop, layer)
        return fit

    def _begin(self, layers: Sequence[Layer]) -> dict[Key, int]:
        """Where runs are to stop.

        Those of one network know the same tensors, since autocast's copies serve all of them.
        """
        whole = Parameters(self._original, self._origins.names)
        self._known = {"original": whole, "pruned": Parameters(self._pruned)}
        return {layer.reader.key: layer.number for layer in layers}

    def _started(
        self, model: nn.Module, portion: Portion, keys: dict[Key, int], network: str
    ) -> Run:
        known, shortcuts = self._known[network], self._shortcuts[network]
        parking = Parking(model, known) if can_fill(model) else None
        watch = Watch(known, keys, shortcuts, network == "original", parking)
        place = (network, portion.number)
        if place not in self._twins:
            self._twins[place] = twin(model)
        return Run(self._twins[place], self._batches[portion.number], self._call, watch)

    @staticmethod
    def _at(layer: Layer, run: Run, keys: dict[Key, int]) -> Stop | None:
        """The run at this layer, if it gets there."""
        if not run.begun:
            run.advance()
        while run.stop is not None and keys[run.stop.key] < layer.number:
            run.advance()
        if run.stop is None or run.stop.key != layer.reader.key:
            return None
        run.fetch()
        return run.stop


def _renew(stop: Stop, layer: Layer) -> None:
    """A run that computes with a copy in another type has made it already."""
    for operand, tensor in ((stop.use.weight, layer.weight), (stop.use.bias, layer.bias)):
        if operand is not None and tensor is not None:
            real, *copies = operand.inside(tensor)
            for view in copies:
                view.copy_(real)
