"""What must have happened before what, in every run of a Plan: the basis of the checker's proofs.

A node is one Combine, or one transfer (a Send with its Recv). A Send has ended when its *receiver* has the
bytes; a Recv may begin to write as soon as its Send may run. So all that is known about time is: a node may
begin only after every node in the `after` of its Send or Combine has ended. This holds for each position
within the steps by itself (see check.py); positions are the same all along a path, for all steps of a path
have one length.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from tailcut.schedule.plan import Part, PlanError, Recv, Region, Send, Step


class Node(NamedTuple):
    """Where a Combine, or the Send of a transfer, stands; for a transfer also its Recv (else -1)."""

    rank: int
    step: int
    to_rank: int
    to_step: int


class Causality:
    """The nodes of a Plan and the order that causality gives them. Raises PlanError if there is none."""

    def __init__(self, parts: Sequence[Part]) -> None:
        self.parts = parts
        self.nodes: list[Node] = []
        self._node_of: list[list[int]] = [[-1] * len(part.steps) for part in parts]  # [rank][step] -> node
        self._pair()
        self.before: list[list[int]] = [self._directly_before(node) for node in self.nodes]
        self.order = self._sort()  # nodes, each behind all that must precede it
        self._bit = [0] * len(self.nodes)
        self._component = self._components()
        self._ancestors = self._close()

    def precedes(self, first: int, then: int) -> bool:
        """Whether `first` has ended before `then` begins, at each position, in every run."""
        if self._component[first] != self._component[then]:
            return False
        return bool(self._ancestors[then] >> self._bit[first] & 1)

    def unproven(self) -> list[int]:
        """Transfers that may still be under way when all Recvs and Combines of the sender have ended."""
        known: dict[tuple[int, int], int] = {}
        for number, node in enumerate(self.nodes):
            here = node.rank if node.to_rank < 0 else node.to_rank
            key = (self._component[number], here)
            known[key] = known.get(key, 0) | self._ancestors[number]
        return [
            number
            for number, node in enumerate(self.nodes)
            if node.to_rank >= 0
            and not known.get((self._component[number], node.rank), 0) >> self._bit[number] & 1
        ]

    def _pair(self) -> None:
        """Makes the nodes; every Send must have exactly one Recv with the same length, round and stage."""
        open_sends: dict[tuple[int, int, int], int] = {}
        for rank, part in enumerate(self.parts):
            for index, step in enumerate(part.steps):
                if isinstance(step, Recv):
                    continue
                if isinstance(step, Send):
                    key = (rank, step.peer, step.transfer)
                    if key in open_sends:
                        raise fault(part, index, "this transfer number is already in use towards this peer")
                    open_sends[key] = len(self.nodes)
                self._node_of[rank][index] = len(self.nodes)
                self.nodes.append(Node(rank, index, -1, -1))
        for rank, part in enumerate(self.parts):
            for index, step in enumerate(part.steps):
                if isinstance(step, Recv):
                    number = open_sends.pop((step.peer, rank, step.transfer), None)
                    if number is None:
                        raise fault(part, index, "no Send of that peer (or no second one) matches")
                    self._match(number, rank, index, step)
        for number in open_sends.values():
            raise fault(self.parts[self.nodes[number].rank], self.nodes[number].step, "the peer has no Recv")

    def _match(self, number: int, rank: int, index: int, recv: Recv) -> None:
        node = self.nodes[number]
        send = self.parts[node.rank].steps[node.step]
        assert isinstance(send, Send)
        if send.source.length != recv.target.length:
            raise fault(self.parts[rank], index, f"the peer sends {send.source.length} bytes")
        if (send.round, send.stage) != (recv.round, recv.stage):
            there, here = (f"round {step.round} of stage {step.stage}" for step in (send, recv))
            raise fault(self.parts[rank], index, f"the peer sends in {there}, but this is {here}")
        self.nodes[number] = Node(node.rank, node.step, rank, index)
        self._node_of[rank][index] = number

    def _directly_before(self, node: Node) -> list[int]:
        """The nodes of the steps in `after`, which must be other Recvs and Combines of the same length."""
        part = self.parts[node.rank]
        step = part.steps[node.step]
        assert not isinstance(step, Recv)
        length, before = region_of(step).length, []
        if len(set(step.after)) != len(step.after):
            raise fault(part, node.step, "after names a step twice")
        for earlier in step.after:
            if not 0 <= earlier < len(part.steps):
                raise fault(part, node.step, f"after names step {earlier}, which does not exist")
            other = part.steps[earlier]
            if isinstance(other, Send):
                raise fault(part, node.step, f"after names step {earlier}, a Send, which produces nothing")
            if other.target.length != length:
                raise fault(part, node.step, f"waits for step {earlier} ({other}), of another length")
            before.append(self._node_of[node.rank][earlier])
        return before

    def _sort(self) -> list[int]:
        """Topological order; what cannot be sorted waits for itself."""
        waits = [len(before) for before in self.before]
        behind: list[list[int]] = [[] for _ in self.nodes]
        for number, before in enumerate(self.before):
            for earlier in before:
                behind[earlier].append(number)
        order = [number for number, count in enumerate(waits) if not count]
        for number in order:
            for later in behind[number]:
                waits[later] -= 1
                if not waits[later]:
                    order.append(later)
        if len(order) < len(self.nodes):
            raise self._deadlock({number for number, count in enumerate(waits) if count})
        return order

    def _deadlock(self, stuck: set[int]) -> PlanError:
        number, path = min(stuck), []
        while number not in path:
            path.append(number)
            number = next(earlier for earlier in self.before[number] if earlier in stuck)
        cycle = [self.nodes[each] for each in path[path.index(number) :]]
        chain = ", which waits for ".join(
            f"rank {rank}, step {step} ({self.parts[rank].steps[step]})" for rank, step, _, _ in cycle
        )
        return PlanError(f"deadlock: {chain}, which waits for the first of these")

    def _components(self) -> list[int]:
        """Per node the number of the connected set it is in: order exists only within one."""
        leader = list(range(len(self.nodes)))

        def find(number: int) -> int:
            while leader[number] != number:
                leader[number] = leader[leader[number]]
                number = leader[number]
            return number

        for number, before in enumerate(self.before):
            for earlier in before:
                leader[find(earlier)] = find(number)
        return [find(number) for number in range(len(self.nodes))]

    def _close(self) -> list[int]:
        """Per node the set of all that precedes it, as bits numbered within its connected set."""
        members: dict[int, int] = {}
        ancestors = [0] * len(self.nodes)
        for number in self.order:
            component = self._component[number]
            self._bit[number] = members.get(component, 0)
            members[component] = self._bit[number] + 1
            found = 0
            for earlier in self.before[number]:
                found |= ancestors[earlier] | 1 << self._bit[earlier]
            ancestors[number] = found
        return ancestors


def region_of(step: Step) -> Region:
    """What a step sends or writes; its length is the length of the step."""
    return step.source if isinstance(step, Send) else step.target


def fault(part: Part, index: int, text: str) -> PlanError:
    """The error for one step, named as a reader finds it."""
    return PlanError(f"rank {part.rank}, step {index} ({part.steps[index]}): {text}")
