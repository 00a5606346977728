"""What Gloo serves, for tensors in the memory of a GPU: on copies in host memory.

The simple way: the caller waits for the copy to the host, and for the copy back when it waits for the work.
"""

from __future__ import annotations

from collections.abc import Sequence
from datetime import timedelta
from typing import Any

import torch
import torch.distributed as dist

_NO_LIMIT = timedelta(0)


class HostedWork(dist.Work):
    """A collective of Gloo on copies in host memory; waiting brings the results back to the GPU."""

    def __init__(self, work: Any, pairs: Sequence[tuple[torch.Tensor, torch.Tensor]]) -> None:
        super().__init__()
        self._work, self._pairs = work, pairs
        self._results = [device for device, _ in pairs]
        self._future: torch.futures.Future[list[torch.Tensor]] | None = None

    def wait(self, timeout: timedelta = _NO_LIMIT) -> bool:
        done = bool(self._work.wait(timeout) if timeout > _NO_LIMIT else self._work.wait())
        self._bring_back()
        return done

    def is_completed(self) -> bool:
        done = bool(self._work.is_completed())
        if done:
            self._bring_back()
        return done

    def is_success(self) -> bool:
        return bool(self._work.is_success())

    def synchronize(self) -> None:
        self.wait()

    def source_rank(self) -> int:
        return int(self._work._source_rank())

    def result(self) -> list[torch.Tensor]:
        return self._results

    def get_future(self) -> torch.futures.Future[list[torch.Tensor]]:
        """Complete when returned: nothing runs beside the caller here."""
        self.wait()
        if self._future is None:
            self._future = torch.futures.Future(devices=[self._results[0].device])
            self._future.set_result(self.result())
        return self._future

    def _bring_back(self) -> None:
        pairs, self._pairs = self._pairs, ()
        for device, host in pairs:
            device.detach().copy_(host)


def through_host(call: Any, args: Sequence[Any], named: dict[str, Any]) -> Any:
    """Calls with copies of all GPU tensors among the arguments; the results come back on waiting."""
    pairs: dict[int, tuple[torch.Tensor, torch.Tensor]] = {}

    def swapped(value: Any) -> Any:
        if isinstance(value, torch.Tensor):
            if not value.is_cuda:
                return value
            if id(value) not in pairs:
                pairs[id(value)] = (value, value.detach().cpu())
            return pairs[id(value)][1]
        if isinstance(value, (list, tuple)):
            return [swapped(each) for each in value]
        return value

    work = call(*[swapped(each) for each in args], **{name: swapped(each) for name, each in named.items()})
    return HostedWork(work, list(pairs.values())) if pairs and work is not None else work
