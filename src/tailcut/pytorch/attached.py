"""A model whose gradients tailcut averages: what happens to its buckets within one step.

backward -> reduce, for each bucket: starts the operation, returns a future
         -> at the end of backward: waits for all of them and completes their futures
         -> DDP takes the results over
         -> raises what went wrong
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from types import TracebackType
from typing import Any

import torch
from torch._C._distributed_c10d import GradBucket
from torch.nn.parallel import DistributedDataParallel

from tailcut.errors import Misuse
from tailcut.group import Group
from tailcut.outcome import Outcome
from tailcut.pytorch.agreement import agree, give_tags, take_tags
from tailcut.pytorch.buckets import Buckets
from tailcut.pytorch.pending import Reduction
from tailcut.pytorch.profiler import span


class Attached:
    """A model whose gradients tailcut averages, made by `tailcut.attach`."""

    def __init__(
        self, ddp_model: DistributedDataParallel, group: Group, *, own: Group | None, timeout: float | None
    ) -> None:
        self.group = group
        self.outcomes: tuple[
            Outcome, ...
        ] = ()  # of the last step, a bucket each; those that failed are left out
        names = {id(parameter): name for name, parameter in ddp_model.module.named_parameters()}
        self._own = own
        self._timeout = timeout
        self._first_tag = take_tags(group)
        self._buckets = Buckets(names, self._first_tag)
        self._leave: Callable[[], None] | None = None  # takes the hook away from us
        # Its first step reduces everything in a callback of its own and wants the results at once.
        self._static_graph = bool(ddp_model.static_graph)
        self._reductions: list[Reduction] = []
        self._outcomes: list[Outcome] = []
        self._error: BaseException | None = None
        try:
            agree(group, ddp_model, self._first_tag)
        except BaseException:
            give_tags(group, self._first_tag)
            raise

    # ---- for the user

    @property
    def step(self) -> int:
        """How many backward passes have been reduced, those before a checkpoint included."""
        return self._buckets.step

    @property
    def epoch(self) -> int:
        """How often DDP has filled its buckets anew."""
        return self._buckets.epoch

    @property
    def layout(self) -> list[tuple[str, ...]]:
        """The parameters in each bucket, as the last step had them."""
        return [bucket.parameters for bucket in self._buckets]

    def state_dict(self) -> dict[str, Any]:
        """What a checkpoint must hold for training to go on as if it had not stopped; plain values."""
        return self._buckets.state_dict()

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Takes over what state_dict gave, in this process or in another one. The same on all ranks."""
        self._buckets.load_state_dict(state)

    def detach(self) -> None:
        """From now on DDP averages by its process group again. Closes the group, if attach had formed it."""
        leave, self._leave = self._leave, None
        if leave is None:
            return
        leave()
        self._settle()
        self._error = None
        give_tags(self.group, self._first_tag)
        if self._own is not None:
            self._own.close()

    def __enter__(self) -> Attached:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.detach()

    # ---- for the hook

    def enter(self, leave: Callable[[], None]) -> None:
        """The hook leads here from now on, until `leave` is called."""
        self._leave = leave

    def reduce(self, bucket: GradBucket) -> torch.futures.Future[torch.Tensor]:
        """Starts averaging a bucket in place. Called by DDP within backward, where nothing may be raised."""
        if bucket.index() == 0 and self._reductions:  # of a backward that an error of the user's cut short
            self._settle()
            self._error = None
        buffer = bucket.buffer()
        reduction = Reduction(buffer, self._begin(bucket, buffer))
        self._reductions.append(reduction)
        if bucket.is_last():
            self._end_with_backward()
        return reduction.future

    def _begin(self, bucket: GradBucket, buffer: torch.Tensor) -> Callable[[], None]:
        """Starts the operation; returns what waits for it. Neither raises: errors come at the end."""
        try:
            if buffer.is_sparse:
                what = "the gradient is sparse; only dense ones can be averaged (Embedding(sparse=False))"
                raise Misuse(what, reason="layout")
            with span("all_reduce"):
                place = self._buckets.enter(bucket.index(), bucket.parameters(), buffer.numel())
                work = self.group.all_reduce_async(buffer, "avg", tag=place.tag, timeout=self._timeout)
        except BaseException as error:
            self._error = self._error or error
            return _nothing

        def finish() -> None:
            try:
                self._outcomes.append(work.wait())
            except BaseException as error:  # Ctrl-C too: DDP must end its step first
                self._error = self._error or error

        return finish

    def _end_with_backward(self) -> None:
        """All buckets of the step are on their way: they complete before DDP asks for the results."""
        if self._static_graph:
            self._end_backward()
        elif not _queue(self._end_backward):  # DDP queues its own end behind it
            error = self._end_step()  # not in a backward: this rank is out of data and shadows the others
            if error is not None:
                raise error

    def _end_backward(self) -> None:
        self._raise_behind_ddp(self._end_step())

    def _end_step(self) -> BaseException | None:
        """Waits for all buckets; returns the first thing that went wrong."""
        self._settle()
        self._buckets.step += 1
        self.outcomes, self._outcomes = tuple(self._outcomes), []
        error, self._error = self._error, None
        return error

    def _raise_behind_ddp(self, error: BaseException | None) -> None:
        """Raises at the very end of this backward: DDP ends its step first and can go on afterwards."""
        if error is not None:

            def raise_it() -> None:
                raise error

            def behind_ddp() -> None:
                _queue(raise_it)

            _queue(behind_ddp)  # twice, because DDP may queue its end only after this call

    def _settle(self) -> None:
        reductions, self._reductions = self._reductions, []
        if reductions:
            with span("wait"):
                for reduction in reductions:
                    reduction.settle()


def _nothing() -> None:
    """There is no operation to wait for."""


def _queue(callback: Callable[[], None]) -> bool:
    """Has it called at the end of the backward that runs; False if none does."""
    try:
        torch.autograd.Variable._execution_engine.queue_callback(callback)
    except RuntimeError:
        return False
    return True
