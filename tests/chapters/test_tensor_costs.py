"""What chapter 18's split layers send and hold, and the splits that cannot be."""

import pytest
from on_ranks import on
from split import EVEN, FIRST, numbers, of_shapes, said, text

from ranklab import trace, traffic
from ranklab.taught import layers as whole
from ranklab.taught import tensor as own


def traced_step(group, shape, sequence):
    """A training step: (its trace, the bytes of the replicas' gradients)."""
    model = own.tensor_gpt(shape, group, sequence=sequence)
    x, y = whole.windows(text(), 2, 12, 0)
    with trace() as t:
        own.split_cross_entropy(model(x), y, shape.vocabulary, group).backward()
        if sequence:
            own.sum_replicas(model, group)
    return t, 4 * sum(p.numel() for p in model.parameters() if not own.is_split(p))


LOSS = 4 * 3 * 2 * 12  # bytes: three float32 a token, of 2 rows of 12


@of_shapes
@pytest.mark.parametrize("members", FIRST[1:], ids=str)
def test_a_step_hands_over_as_many_bytes_as_the_formula_says(four, members, shape):
    """Four all-reduces of activations in each block, one each at the ends; the loss is small."""
    table = traffic([t for t, _ in on(four, members, traced_step, shape, False)])
    n, activations = len(members), 4 * 2 * 12 * shape.width
    payload = (4 * shape.blocks + 2) * activations + LOSS
    for row in table:
        assert (row.collectives, row.payload_bytes) == (4 * shape.blocks + 4, payload)
        assert row.payload_bytes == 4 * own.tensor_numbers(shape, 2 * 12)
        assert row.moved_bytes == pytest.approx(2 * (n - 1) / n * payload)
        assert row.sent == row.received == 0


@of_shapes
@pytest.mark.parametrize("members", FIRST[1:], ids=str)
def test_with_the_sequence_split_the_same_bytes_travel_in_halves(four, members, shape):
    """But for the embedding, whose output's gradient is gathered, and the replicas' gradients."""
    results = on(four, members, traced_step, shape, True)
    table, n = traffic([t for t, _ in results]), len(members)
    crossings_, part = 2 * (4 * shape.blocks + 2), 4 * 2 * 12 * shape.width // n
    for row, (_, replicas) in zip(table, results):
        assert row.sent_bytes == row.received_bytes == crossings_ * (n - 1) * part
        assert (row.collectives, row.payload_bytes) == (3, LOSS + replicas)


# Splits that cannot be


def impossible(group):
    """{what: what was said of it} for 4 ranks."""
    shape = whole.Shape(vocabulary=20, context=10, width=6, heads=3, blocks=1)
    few_tokens = whole.Shape(vocabulary=3, context=8, width=8, heads=4, blocks=1)
    odd_context = whole.Shape(vocabulary=20, context=10, width=8, heads=4, blocks=1)
    x = numbers(2, 6, 8)
    builders = {
        "3 heads": lambda: own.tensor_gpt(shape, group),
        "3 tokens": lambda: own.tensor_gpt(few_tokens, group),
        "3 features": lambda: own.ColumnLinear(8, 3, group),
        "2 features": lambda: own.RowLinear(2, 8, group),
        "6 places in time": lambda: own.scattered(x, group),
        "A context of 10": lambda: own.tensor_gpt(odd_context, group, sequence=True),
        "1 heads": lambda: own.SplitAttention(8, 1, 8, group),
    }
    return {what: said(build) for what, build in builders.items()}


def test_who_would_get_nothing_or_more_than_others_in_time_is_told_so(four):
    for found in on(four, range(4), impossible):
        for what, error in found.items():
            assert error.startswith(f"ValueError: {what} cannot be dealt to 4 ranks"), (what, error)


def uneven_heads():
    shape = whole.Shape(width=10, heads=4)
    return said(lambda: own.tensor_gpt(shape)), said(lambda: whole.gpt(shape))


def test_heads_that_cannot_share_the_features_are_refused_as_in_the_whole_model(four):
    wanted = "ValueError: 4 heads cannot share 10 features evenly."
    assert four.run(uneven_heads) == [(wanted, wanted)] * 4


@pytest.mark.parametrize("n", [*range(4, 12), 97])
def test_parts_are_all_there_is_and_differ_by_one_at_most(four, n):
    parts = [range(n)[part] for part in four.run(own.share, n)]
    assert [k for part in parts for k in part] == [*range(n)]
    assert max(map(len, parts)) - min(map(len, parts)) <= 1


def numbers_of(shape):
    """The numbers of this rank's parameters: pieces, replicas."""
    found = [0, 0]
    for p in own.tensor_gpt(shape).parameters():
        found[0 if own.is_split(p) else 1] += p.numel()
    return found


@of_shapes
def test_the_pieces_of_all_ranks_and_one_replica_are_the_whole_model(four, shape):
    found = four.run(numbers_of, shape)
    split, replicas = sum(pieces for pieces, _ in found), found[0][1]
    assert split + replicas == sum(p.numel() for p in whole.gpt(shape).parameters())
    assert max(found)[0] <= (1 if shape is EVEN else 2) * min(found)[0]  # 5 heads: one rank has 2
