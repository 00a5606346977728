"""The checker finds planted mistakes and says where; if they change what is computed, the executor agrees.

That keeps the checker from being strict for nothing, and the executor from being blind. Rules of the Plan
alone (ports, rounds, fields) the executor does not know.
"""

from __future__ import annotations

from dataclasses import replace

import pytest

from schedule.plans import Plan, edit, find, plan, verdict, with_steps
from tailcut.schedule import Buffer, Combine, Part, PlanError, Recv, Region, Send, check
from tailcut.types import Collective

ALL = Collective.ALL_REDUCE


def transpose(size: int = 3, count: int = 6) -> Plan:
    return plan("transpose", ALL, size, count)


def combine_of(part: Part) -> Combine:
    return next(step for step in part.steps if isinstance(step, Combine))


def contribution_twice() -> Plan:
    parts = transpose()
    own, second, _ = combine_of(parts[0]).inputs
    return edit(parts, 0, find(parts, 0, Combine), inputs=(own, second, second))


def contribution_missing() -> Plan:
    parts = transpose()
    return edit(parts, 2, find(parts, 2, Combine), inputs=combine_of(parts[2]).inputs[:2])


def wrong_order() -> Plan:
    parts = transpose()
    own, second, third = combine_of(parts[0]).inputs
    return edit(parts, 0, find(parts, 0, Combine), inputs=(own, third, second))


def deadlock() -> Plan:
    """Rank 0 gives its piece only after rank 1's result, which needs that piece."""
    parts = transpose(2, 8)
    result = find(parts, 0, Recv, stage=1)
    return edit(parts, 0, find(parts, 0, Send, stage=0), after=(result,))


def missing_recv() -> Plan:
    parts = transpose()
    return with_steps(parts, 1, parts[1].steps[:-1])


def missing_send() -> Plan:
    parts = transpose()
    index = find(parts, 1, Send, stage=1, peer=0)
    combine = find(parts, 1, Combine)
    assert index > combine
    return with_steps(parts, 1, parts[1].steps[:index] + parts[1].steps[index + 1 :])


def unequal_lengths() -> Plan:
    parts = transpose(2, 8)
    index = find(parts, 1, Send, stage=0)
    return edit(parts, 1, index, source=Region(Buffer.INPUT, 0, 8))


def read_too_early() -> Plan:
    """The owner adds before one of the contributions has come."""
    parts = transpose()
    return edit(parts, 0, find(parts, 0, Combine), after=combine_of(parts[0]).after[:1])


def sent_too_early() -> Plan:
    """A partial sum is passed on around the ring before it is there."""
    parts = plan("ring", ALL, 3, 6)
    return edit(parts, 1, find(parts, 1, Send, round=1), after=())


def never_produced() -> Plan:
    parts = plan("small", ALL, 3, 4)
    return edit(parts, 0, find(parts, 0, Send), after=(), source=Region(Buffer.STAGE, 16, 16))


def overwritten_source() -> Plan:
    """Without the copy in STAGE the result may overwrite a contribution that a peer does not have yet."""
    parts = plan("small", ALL, 3, 4)
    return edit(parts, 0, find(parts, 0, Send), source=Region(Buffer.INPUT, 0, 16))


def overwritten_stage() -> Plan:
    """Two contributions are received into one slot, and read from it one after the other."""
    parts = transpose()
    combine, (first, second) = combine_of(parts[0]), [find(parts, 0, Recv, nth, stage=0) for nth in (0, 1)]
    slot = combine.inputs[1]
    parts = edit(parts, 0, second, target=slot)
    copy = Region(Buffer.STAGE, combine.inputs[2].offset, slot.length)
    saved = Combine(copy, (slot,), (first,), 0, False)
    steps = (*parts[0].steps, saved)
    parts = with_steps(parts, 0, steps)
    index = find(parts, 0, Combine)
    inputs = (combine.inputs[0], copy, slot)
    return edit(parts, 0, index, inputs=inputs, after=(second, len(steps) - 1))


def forgotten_too_early() -> Plan:
    parts = plan("transpose", Collective.REDUCE_SCATTER, 3, 6)
    return edit(parts, 1, find(parts, 1, Send), retain=False)


def out_of_bounds() -> Plan:
    parts = transpose(2, 8)
    return edit(parts, 1, find(parts, 1, Send, stage=0), source=Region(Buffer.INPUT, 24, 16))


def misaligned() -> Plan:
    parts = transpose(2, 8)
    return edit(parts, 1, find(parts, 1, Send, stage=0), source=Region(Buffer.INPUT, 2, 16))


def wrong_place() -> Plan:
    """Rank 1 gives a piece of its own shard to rank 0, which owns another."""
    parts = plan("transpose", Collective.REDUCE_SCATTER, 2, 8)
    return edit(parts, 1, find(parts, 1, Send, stage=0), source=Region(Buffer.INPUT, 16, 16))


def final_forgotten() -> Plan:
    parts = transpose()
    return edit(parts, 0, find(parts, 0, Combine), final=False)


def final_twice() -> Plan:
    parts = plan("ring", ALL, 3, 6)
    index = find(parts, 0, Combine, final=False)
    return edit(parts, 0, index, final=True)


def final_after_final() -> Plan:
    """The finished result is finished again: an average would be divided twice."""
    parts = plan("transpose", Collective.REDUCE_SCATTER, 3, 6)
    result = combine_of(parts[0]).target
    again = Combine(result, (result,), (find(parts, 0, Combine),), 0, True)
    return with_steps(parts, 0, (*parts[0].steps, again))


def input_read_after_output() -> Plan:
    """Where INPUT and OUTPUT are the same memory, the second copy reads the result of the first."""
    parts = plan("small", ALL, 1, 4)
    again = replace(combine_of(parts[0]), after=(0,))
    return with_steps(parts, 0, (*parts[0].steps, again))


def shards_exchanged() -> Plan:
    """Every rank contributes to, and so reduces, the other's shard."""
    parts = plan("transpose", Collective.REDUCE_SCATTER, 2, 8)
    for rank in range(2):
        source = Region(Buffer.INPUT, 16 * rank, 16)
        parts = edit(parts, rank, find(parts, rank, Send), source=source)
        inputs = list(combine_of(parts[rank]).inputs)
        inputs[rank] = Region(Buffer.INPUT, 16 * (1 - rank), 16)
        parts = edit(parts, rank, find(parts, rank, Combine), inputs=tuple(inputs))
    return parts


def gathered_in_the_wrong_place() -> Plan:
    parts = plan("transpose", Collective.ALL_GATHER, 3, 6)
    one, two = (find(parts, 0, Recv, peer=peer) for peer in (1, 2))
    targets = [Region(Buffer.OUTPUT, 8, 8), Region(Buffer.OUTPUT, 16, 8)]
    return edit(edit(parts, 0, one, target=targets[1]), 0, two, target=targets[0])


def transfer_twice() -> Plan:
    parts = transpose(2, 8)
    return edit(parts, 0, find(parts, 0, Send, stage=1), transfer=0)


def orders_differ() -> Plan:
    parts = plan("small", ALL, 3, 4)
    index = find(parts, 1, Combine, final=True)
    inputs = parts[1].steps[index].inputs  # type: ignore[union-attr]
    parts = edit(parts, 1, index, inputs=inputs[::-1])
    return tuple(replace(part, family="nameless") for part in parts)


def result_missing() -> Plan:
    parts = transpose()
    longer = [replace(part, input_bytes=28, output_bytes=28) for part in parts]
    return tuple(longer)


SEEN_BY_EXECUTOR = [
    (contribution_twice, r"rank 0, step 4 \(Combine .*\): the contribution of rank 1 enters twice"),
    (contribution_missing, r"rank 2, step 4 .*the contribution of rank 2 is missing"),
    (wrong_order, r"rank 0, step 4 .*not combined in rank order, but in the order \['0', '2', '1'\]"),
    (
        deadlock,
        r"deadlock: rank 0, step 0 \(Send .*\), which waits for rank 1, step \d \(Send .*\), which waits",
    ),
    (missing_recv, r"rank 0, step 7 \(Send OUTPUT.* to rank 1 .*\): the peer has no Recv"),
    (missing_send, r"rank 0, step \d \(Recv OUTPUT.* from rank 1 .*\): no Send of that peer"),
    (unequal_lengths, r"rank 0, step 1 \(Recv .*\): the peer sends 8 bytes"),
    (read_too_early, r"rank 0, step 4 .*may read STAGE\[64:72\) before step 3 \(Recv .*\) has written it"),
    (
        sent_too_early,
        r"rank 1, step \d \(Send STAGE.*\): may read STAGE\[0:8\) before step \d \(.*\) has written",
    ),
    (never_produced, r"rank 0, step 1 \(Send .*\): reads STAGE\[16:32\) before anything was produced there"),
    (
        overwritten_source,
        r"rank 0, step 5 .*overwrites OUTPUT\[0:16\), which step 1 .*may still need: .*peer has it",
    ),
    (
        overwritten_stage,
        r"rank 0, step \d \(Recv STAGE\[0:8\).*\): overwrites STAGE\[0:8\), which step \d .*sooner or later",
    ),
    (forgotten_too_early, r"rank 1, step 0 .*retain is False, but nothing proves"),
    (out_of_bounds, r"rank 1, step 0 .*INPUT\[24:40\) lies outside its buffer of 32 bytes"),
    (misaligned, r"rank 1, step 0 .*INPUT\[2:18\) splits elements of 4 bytes"),
    (wrong_place, r"rank 0, step 2 .*adds byte 16 of the vector \(from STAGE\[0:16\)\) to byte 0"),
    (final_forgotten, r"rank 0: the result in OUTPUT\[0:8\) was never made final"),
    (final_twice, r"rank 0, step \d .*final, but the contribution of rank 1 is missing"),
    (final_after_final, r"rank 0, step 5 .*final, but its input is final already"),
    (input_read_after_output, r"rank 0, step 1 .*reads INPUT\[0:16\) after OUTPUT, maybe the same memory"),
    (shards_exchanged, r"rank 0: OUTPUT\[0:16\) gets byte 16 of the vector, not byte 0"),
    (gathered_in_the_wrong_place, r"rank 0: OUTPUT\[8:16\) gets byte 0 of rank 2, which belongs to byte 16"),
    (transfer_twice, r"rank 0, step 3 .*already in use towards this peer"),
    (orders_differ, r"rank 1: from byte 0 .*another way than on rank 0: not bit-identical"),
    (result_missing, r"rank 0: nothing is written to OUTPUT\[24:28\)"),
]


@pytest.mark.parametrize(
    ("plant", "text"), SEEN_BY_EXECUTOR, ids=lambda plant: getattr(plant, "__name__", "")
)
def test_planted_mistake_is_found(plant: object, text: str) -> None:
    assert callable(plant)
    broken = plant()
    with pytest.raises(PlanError, match=text):
        check(broken, itemsize=4)
    rank_ordered = broken[0].family in ("transpose", "small")
    assert verdict(broken, itemsize=4, seeds=range(200), rank_ordered=rank_ordered) is not None


def two_sends_on_one_port() -> Plan:
    parts = transpose()
    parts = edit(parts, 0, find(parts, 0, Send, 1), round=0)
    return edit(parts, 1, find(parts, 1, Recv, peer=0, stage=0), round=0)


def round_of_the_peer() -> Plan:
    parts = transpose()
    return edit(parts, 0, find(parts, 0, Send, 1), round=7)


def before_it_came() -> Plan:
    """Passed on in the round in which it arrives."""
    parts = plan("ring", ALL, 3, 6)
    parts = edit(parts, 1, find(parts, 1, Send, round=1), round=0)
    return edit(parts, 2, find(parts, 2, Recv, round=1), round=0)


def rounds_out_of_order() -> Plan:
    parts = transpose()
    first, second = find(parts, 0, Send, 0), find(parts, 0, Send, 1)
    steps = list(parts[0].steps)
    steps[first], steps[second] = steps[second], steps[first]
    return with_steps(parts, 0, steps)


def stage_of_the_peer() -> Plan:
    parts = transpose()
    return edit(parts, 0, find(parts, 0, Send, 0), stage=1)


def late_stage() -> Plan:
    parts = transpose()
    return edit(parts, 0, find(parts, 0, Combine), stage=2)


def waits_for_later_stage() -> Plan:
    """The sum belongs to stage 0, one of its contributions to stage 1."""
    parts = transpose()
    parts = edit(parts, 1, find(parts, 1, Send, peer=0, stage=0), stage=1)
    return edit(parts, 0, find(parts, 0, Recv, peer=1, stage=0), stage=1)


def writes_input() -> Plan:
    parts = transpose()
    return edit(parts, 0, find(parts, 0, Combine), target=Region(Buffer.INPUT, 0, 8))


def waits_for_a_send() -> Plan:
    parts = transpose()
    return edit(parts, 0, find(parts, 0, Combine), after=(0,))


def waits_for_nobody() -> Plan:
    parts = transpose()
    return edit(parts, 0, find(parts, 0, Combine), after=(99,))


def waits_twice() -> Plan:
    parts = transpose()
    return edit(parts, 0, find(parts, 0, Combine), after=combine_of(parts[0]).after * 2)


def waits_for_another_length() -> Plan:
    parts = transpose(3, 7)
    index = find(parts, 1, Recv, stage=1, peer=0)
    return edit(parts, 1, find(parts, 1, Send, stage=1), after=(find(parts, 1, Combine), index))


def empty_region() -> Plan:
    parts = transpose()
    return edit(parts, 0, 0, source=Region(Buffer.INPUT, 8, 0))


def no_such_peer() -> Plan:
    return edit(transpose(), 0, 0, peer=3)


def sends_to_itself() -> Plan:
    return edit(transpose(), 0, 0, peer=0)


def transfer_number_too_large() -> Plan:
    return edit(transpose(), 0, 0, transfer=65535)


def transfer_too_long() -> Plan:
    length = 2**24 * 1024
    return plan("transpose", Collective.ALL_GATHER, 2, 2 * length // 4)


def negative_round() -> Plan:
    return edit(transpose(), 0, 0, round=-1)


def combine_of_nothing() -> Plan:
    parts = transpose()
    return edit(parts, 0, find(parts, 0, Combine), inputs=())


def input_of_another_length() -> Plan:
    parts = transpose()
    _, *others = combine_of(parts[0]).inputs
    inputs = (Region(Buffer.INPUT, 0, 4), *others)
    return edit(parts, 0, find(parts, 0, Combine), inputs=inputs)


def ranks_swapped() -> Plan:
    parts = transpose()
    return (parts[1], parts[0], parts[2])


def collectives_mixed() -> Plan:
    return (*transpose()[:2], plan("transpose", Collective.REDUCE_SCATTER, 3, 6)[2])


def sizes_mixed() -> Plan:
    parts = transpose()
    return (*parts[:2], replace(parts[2], output_bytes=20))


def half_an_element() -> Plan:
    return tuple(replace(part, input_bytes=26, output_bytes=26) for part in transpose())


def gather_combines() -> Plan:
    parts = plan("transpose", Collective.ALL_GATHER, 2, 4)
    return edit(parts, 0, find(parts, 0, Combine), final=True)


def nobody() -> Plan:
    return ()


RULES = [
    (two_sends_on_one_port, r"rank 0, step 2 .*rank 0 sends 2 transfers in round 0"),
    (
        round_of_the_peer,
        r"rank 1, step \d .*the peer sends in round 7 of stage 0, but this is round 1 of stage 0",
    ),
    (before_it_came, r"rank 1, step 3 .*leaves in round 0, but what it sends arrives in round 0"),
    (rounds_out_of_order, r"rank 0, step 2 .*round 0 stands behind a Send of round 1"),
    (stage_of_the_peer, r"rank 2, step \d .*the peer sends in round 0 of stage 1"),
    (late_stage, r"rank 0, step 4 .*stage 2 of 2 stages"),
    (waits_for_later_stage, r"rank 0, step 4 .*of stage 0 waits for a step of a later stage"),
    (writes_input, r"rank 0, step 4 .*writes INPUT, which belongs to the caller"),
    (waits_for_a_send, r"rank 0, step 4 .*after names step 0, a Send"),
    (waits_for_nobody, r"rank 0, step 4 .*after names step 99, which does not exist"),
    (waits_twice, r"rank 0, step 4 .*after names a step twice"),
    (waits_for_another_length, r"rank 1, step 5 .*waits for step \d \(Recv .*\), of another length"),
    (empty_region, r"rank 0, step 0 .*INPUT\[8:8\) is empty"),
    (no_such_peer, r"rank 0, step 0 .*no such peer"),
    (sends_to_itself, r"rank 0, step 0 .*no such peer"),
    (transfer_number_too_large, r"rank 0, step 0 .*transfer numbers go from 0 to 65534"),
    (transfer_too_long, r"rank 0, step 0 .*a transfer has less than 17179869184 bytes"),
    (negative_round, r"rank 0, step 0 .*round -1 is before the first"),
    (combine_of_nothing, r"rank 0, step 4 .*at least one input"),
    (input_of_another_length, r"rank 0, step 4 .*input INPUT\[0:4\) and target differ in length"),
    (ranks_swapped, r"entry 0 of 3 is the Part of rank 1 of 3"),
    (collectives_mixed, r"rank 2: family, collective or number of stages differs from rank 0"),
    (sizes_mixed, r"all_reduce cannot have inputs of \[24, 24, 24\] and outputs of \[24, 24, 20\] bytes"),
    (half_an_element, r"rank 0: input_bytes = 26 is no whole number of 4-byte elements"),
    (gather_combines, r"rank 0, step 2 .*an all_gather copies"),
    (nobody, r"a Plan has at least one Part"),
]


@pytest.mark.parametrize(("plant", "text"), RULES, ids=lambda plant: getattr(plant, "__name__", ""))
def test_broken_rule_is_found(plant: object, text: str) -> None:
    assert callable(plant)
    with pytest.raises(PlanError, match=text):
        check(plant(), itemsize=4, incast=2 if plant is before_it_came else 1)
