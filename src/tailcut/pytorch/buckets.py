"""What is known of each bucket, kept by the parameters in it and not by its place.

DDP fills its buckets in the order of the parameters, sees after the first step in which order gradients
really come, and fills them anew: from then on bucket 0 is another bucket. Whatever belongs to a gradient
(today: how often it was reduced) must follow the parameters.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from tailcut.errors import Misuse

STATE_VERSION = 1
# Tags of one model: bucket i has the i-th of them, more buckets share. Sharing is harmless, because DDP
# reduces buckets in the order of their places on every rank.
TAGS = 1024


@dataclass(slots=True)
class Bucket:
    """One set of parameters that DDP reduces together."""

    tag: int
    parameters: tuple[str, ...]
    elements: int
    steps: int = 0  # how often it was reduced, also before a checkpoint


class Buckets:
    """The buckets of one model. A bucket that holds other parameters than before begins a new epoch.

    Place and tag go together in all epochs, and the numbers within a tag go on, so no packet of an old epoch
    is taken for one of a new. A rank that kept its old buckets would announce another length under the same
    tag, which is a Mismatch at once and not a silence.
    """

    def __init__(self, names: Mapping[int, str], first_tag: int = 0) -> None:
        self._names = names  # id of a parameter -> its name
        self._first_tag = first_tag
        self._at: list[
            tuple[tuple[int, ...], Bucket]
        ] = []  # by place: ids of the parameters, and their bucket
        self._known: dict[tuple[str, ...], Bucket] = {}  # of all epochs
        self.epoch = 0  # how often DDP has filled its buckets anew
        self.step = 0  # how often all of them were reduced

    def enter(self, place: int, parameters: Sequence[Any], elements: int) -> Bucket:
        """The bucket at this place, about to be reduced."""
        ids = tuple(map(id, parameters))
        if place < len(self._at) and self._at[place][0] == ids:
            bucket = self._at[place][1]
        else:
            bucket = self._learn(place, ids, elements)
        bucket.steps += 1
        return bucket

    def __iter__(self) -> Iterator[Bucket]:
        """Those of this epoch, by place."""
        return (bucket for _, bucket in self._at)

    def _learn(self, place: int, ids: tuple[int, ...], elements: int) -> Bucket:
        if place < len(self._at):
            self.epoch += 1
            del self._at[place:]
        names = tuple(self._names.get(each, "?") for each in ids)
        tag = self._first_tag + place % TAGS
        bucket = self._known.setdefault(names, Bucket(tag, names, elements))
        bucket.tag = tag
        self._at.append((ids, bucket))
        return bucket

    # ---- checkpoints

    def state_dict(self) -> dict[str, Any]:
        """Plain numbers, texts and lists, also for torch.load(weights_only=True)."""
        return {
            "version": STATE_VERSION,
            "step": self.step,
            "buckets": [
                {"parameters": list(each.parameters), "elements": each.elements, "steps": each.steps}
                for each in self._known.values()
            ],
        }

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Takes over what state_dict gave; refuses, unchanged, the state of another model."""
        if state.get("version") != STATE_VERSION:
            raise Misuse(
                f"the state has version {state.get('version')!r}; this tailcut reads {STATE_VERSION}"
            )
        saved = [
            Bucket(0, tuple(each["parameters"]), int(each["elements"]), int(each["steps"]))
            for each in state["buckets"]
        ]
        ours = set(self._names.values())
        strange = sorted({name for bucket in saved for name in bucket.parameters} - ours)
        if strange:
            others = f" and {len(strange) - 1} more" if len(strange) > 1 else ""
            raise Misuse(f"the state is of another model: this one has no parameter {strange[0]!r}{others}")
        self.step = int(state["step"])
        for bucket in saved:
            known = self._known.setdefault(bucket.parameters, bucket)
            known.steps = bucket.steps
