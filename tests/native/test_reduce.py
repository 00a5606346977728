"""The reduction kernels against numpy, bit by bit, under every instruction set this machine has."""

from __future__ import annotations

import ctypes
import ctypes.util
import platform
import re
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np
import numpy.typing as npt
import pytest

from tailcut import _native
from tailcut.types import DType, ReduceOp

CPUINFO = Path("/proc/cpuinfo")
Array = npt.NDArray[Any]
Bytes = npt.NDArray[np.uint8]

NUMPY: dict[DType, Any] = {
    DType.FLOAT32: np.float32,
    DType.FLOAT64: np.float64,
    DType.FLOAT16: np.float16,
    DType.BFLOAT16: ml_dtypes.bfloat16,
    DType.INT32: np.int32,
    DType.INT64: np.int64,
    DType.UINT8: np.uint8,
}
CANONICAL_NAN = {
    DType.FLOAT32: 0x7FC00000,
    DType.FLOAT64: 0x7FF8000000000000,
    DType.FLOAT16: 0x7E00,
    DType.BFLOAT16: 0x7FC0,
}
INFINITY = {  # one less is the largest finite number
    DType.FLOAT32: 0x7F800000,
    DType.FLOAT64: 0x7FF0000000000000,
    DType.FLOAT16: 0x7C00,
    DType.BFLOAT16: 0x7F80,
}
# In elements: around the widths of vectors and blocks of every set, and beyond the strip of long lists.
LENGTHS = (0, 1, 2, 3, 7, 8, 9, 17, 31, 33, 63, 65, 127, 129, 255, 257, 1021, 8193 + 64)
LISTS = (1, 2, 3, 4, 5, 8, 16, 17, 33)  # numbers of inputs; above 16 they are taken in groups


@pytest.fixture(params=_native.reduce_isas())
def isa(request: pytest.FixtureRequest) -> Iterator[str]:
    """Every instruction set of this machine in turn."""
    _native.force_reduce_isa(request.param)
    assert _native.reduce_isa() == request.param
    yield request.param
    _native.force_reduce_isa(None)


def raw(array: Array) -> Bytes:
    return array.view(np.uint8)


def bits(array: Array) -> Array:
    """The elements as unsigned integers: NaNs can be compared, and zeros have signs."""
    return array.view(f"u{array.itemsize}")


def unit(dtype: DType) -> float:
    """How far the next number after 1 is."""
    one = bits(np.ones(1, dtype=NUMPY[dtype]))
    return float((one + one.dtype.type(1)).view(NUMPY[dtype])[0]) - 1.0


def reduced(dtype: DType, op: ReduceOp, inputs: Sequence[Array], divisor: int = 0) -> Array:
    output = np.full_like(inputs[0], 1)
    _native.reduce(int(dtype), int(op), [raw(array) for array in inputs], raw(output), divisor)
    return output


def combined(op: ReduceOp, total: Array, array: Array) -> Array:
    if op is ReduceOp.PROD:
        return total * array
    if op is ReduceOp.MIN:
        return np.where((array < total) | (array != array), array, total)
    if op is ReduceOp.MAX:
        return np.where((array > total) | (array != array), array, total)
    return total + array


def truncated(total: Array, divisor: int) -> Array:
    quotients = [abs(int(value)) // divisor * (-1 if value < 0 else 1) for value in total]
    return np.array(quotients, dtype=total.dtype)


def expected(dtype: DType, op: ReduceOp, inputs: Sequence[Array], divisor: int = 0) -> Array:
    """What the kernel promises, written down with numpy."""
    if len(inputs) == 1 and divisor == 0:
        return inputs[0]
    wide = [array.astype(np.float32) if dtype.half else array for array in inputs]
    with np.errstate(all="ignore"):
        total = wide[0]
        for array in wide[1:]:
            total = combined(op, total, array)
        if divisor:
            total = total / total.dtype.type(divisor) if dtype.floating else truncated(total, divisor)
        result: Array = total.astype(NUMPY[dtype])
    if dtype.floating:
        bits(result)[result != result] = CANONICAL_NAN[dtype]
    return result


def anything(dtype: DType, count: int, rng: np.random.Generator) -> Array:
    """A third special values, a third near 1, and a third random bits, NaNs with payloads among them."""
    item = np.dtype(NUMPY[dtype])
    result: Array = rng.integers(0, 256, count * item.itemsize, dtype=np.uint8).view(item)
    if not dtype.floating:
        return result
    # Zero, the smallest subnormals, the largest finite number, Inf.
    edges = [0, 1, 2, 3, INFINITY[dtype] - 1, INFINITY[dtype]]
    special = np.array([*edges, CANONICAL_NAN[dtype]], dtype=f"u{item.itemsize}").view(item)
    kind = rng.integers(0, 3, count)
    result[kind == 0] = np.concatenate([special, -special])[rng.integers(0, 2 * special.size, count)][
        kind == 0
    ]
    result[kind == 1] = rng.normal(1.0, 0.5, count).astype(item)[kind == 1]
    return result


def assert_same(got: Array, want: Array, what: str) -> None:
    different = np.flatnonzero(bits(got) != bits(want))
    if different.size:
        first = different[0]
        pytest.fail(
            f"{what}: {different.size} of {want.size} elements differ, first element {first}: got "
            f"{got[first]} = {bits(got)[first]:#x}, not {want[first]} = {bits(want)[first]:#x}"
        )


@pytest.mark.parametrize("op", ReduceOp)
@pytest.mark.parametrize("dtype", DType)
def test_equals_numpy_bit_by_bit(isa: str, dtype: DType, op: ReduceOp) -> None:
    rng = np.random.default_rng([int(dtype), int(op)])
    for index, count in enumerate(LENGTHS):
        for inputs in LISTS if count < 1000 else LISTS[index % 2 :: 2]:
            arrays = [anything(dtype, count, rng) for _ in range(inputs)]
            for divisor in (0, 1, 3, inputs) if op is ReduceOp.AVG else (0,):
                got = reduced(dtype, op, arrays, divisor)
                what = f"{count} elements, {inputs} inputs, divisor {divisor}"
                assert_same(got, expected(dtype, op, arrays, divisor), what)


@pytest.mark.parametrize("op", ReduceOp)
@pytest.mark.parametrize("dtype", DType)
def test_any_alignment_and_nothing_beside_the_output(isa: str, dtype: DType, op: ReduceOp) -> None:
    rng = np.random.default_rng(7)
    item = np.dtype(NUMPY[dtype])
    divisor = 5 if op is ReduceOp.AVG else 0
    for offset in (1, 3, 8, 24, 33, 63):
        count = 301 + offset
        arrays = [anything(dtype, count, rng) for _ in range(4)]
        places = []
        for index, array in enumerate(arrays):
            memory = np.zeros(array.nbytes + 512, dtype=np.uint8)
            place = memory[offset + index : offset + index + array.nbytes]
            place[:] = raw(array)
            places.append(place)
        output = np.full(count * item.itemsize + 512, 0xA5, dtype=np.uint8)
        start, end = 64 + offset, 64 + offset + count * item.itemsize
        _native.reduce(int(dtype), int(op), places, output[start:end], divisor)
        want = expected(dtype, op, arrays, divisor)
        assert_same(output[start:end].copy().view(item), want, f"offset {offset}")
        assert (output[:start] == 0xA5).all() and (output[end:] == 0xA5).all()
        for place, array in zip(places, arrays, strict=True):
            assert (place == raw(array)).all()


@pytest.mark.parametrize("dtype", DType)
@pytest.mark.parametrize("inputs", (1, 2, 4, 16, 18, 40))
def test_output_may_be_any_of_the_inputs(isa: str, dtype: DType, inputs: int) -> None:
    rng = np.random.default_rng(inputs)
    arrays = [anything(dtype, 10_007, rng) for _ in range(inputs)]
    want = expected(dtype, ReduceOp.AVG, arrays, inputs)
    for place in {0, 1 % inputs, inputs // 2, inputs - 1}:
        copies = [array.copy() for array in arrays]
        _native.reduce(int(dtype), int(ReduceOp.AVG), [raw(c) for c in copies], raw(copies[place]), inputs)
        assert_same(copies[place], want, f"output is input {place}")


@pytest.mark.parametrize("dtype", (DType.FLOAT16, DType.BFLOAT16))
def test_every_16_bit_float_survives_and_every_tie_goes_to_even(isa: str, dtype: DType) -> None:
    every: Array = np.arange(2**16, dtype=np.uint16).view(NUMPY[dtype])
    assert_same(
        reduced(dtype, ReduceOp.AVG, [every], 1), expected(dtype, ReduceOp.AVG, [every], 1), "as they are"
    )
    for step in (1, 2, 3, 513):  # the mean of neighbours is a tie; the sum of others needs more bits than 16
        pair = [every, np.roll(every, step)]
        for divisor in (0, 2, 3, 1024):
            got = reduced(dtype, ReduceOp.AVG, pair, divisor)
            assert_same(got, expected(dtype, ReduceOp.AVG, pair, divisor), f"step {step}, divisor {divisor}")
    product = [every, np.roll(every, 4099)]
    assert_same(reduced(dtype, ReduceOp.PROD, product), expected(dtype, ReduceOp.PROD, product), "products")


@pytest.mark.parametrize("dtype", (DType.FLOAT16, DType.BFLOAT16))
def test_16_bit_floats_are_rounded_once(isa: str, dtype: DType) -> None:
    # Added one by one in 16 bits, each small part would be rounded away; together they are five units.
    small = unit(dtype) / 4
    arrays = [np.full(333, value, dtype=NUMPY[dtype]) for value in [1.0] + [small] * 20]
    assert (reduced(dtype, ReduceOp.SUM, arrays).astype(np.float32) == 1.0 + 20 * small).all()
    # 40000 + 40000 is more than a float16 holds, but their mean is not.
    large = [np.full(5, 40000.0, dtype=NUMPY[dtype])] * 2
    assert (reduced(dtype, ReduceOp.AVG, large, 2) == large[0]).all()


@pytest.mark.parametrize("dtype", (DType.FLOAT32, DType.FLOAT64))
def test_strictly_in_list_order(isa: str, dtype: DType) -> None:
    big = 2.0 / unit(dtype)
    for values, want in (
        ([big, 1.0, -big], 0.0),
        ([big, -big, 1.0], 1.0),
        ([big] + [1.0] * 30 + [-big], 0.0),
    ):
        arrays = [np.full(3001, value, dtype=NUMPY[dtype]) for value in values]
        assert (reduced(dtype, ReduceOp.SUM, arrays) == want).all()


@pytest.mark.parametrize("dtype", [dtype for dtype in DType if dtype.floating])
def test_zeros_and_nans(isa: str, dtype: DType) -> None:
    def full(value: float) -> Array:
        return np.full(77, value, dtype=NUMPY[dtype])

    minus, plus, nan, one = full(-0.0), full(0.0), full(np.nan), full(1.0)
    for inputs, divisor in (([minus], 0), ([minus], 3), ([minus, minus], 0), ([minus] * 20, 20)):
        assert_same(reduced(dtype, ReduceOp.AVG, inputs, divisor), minus, "a sum of -0.0 is -0.0")
    for op in (ReduceOp.MIN, ReduceOp.MAX):
        assert_same(reduced(dtype, op, [minus, plus]), minus, "of equal values the earlier stays")
        assert_same(reduced(dtype, op, [plus, minus]), plus, "of equal values the earlier stays")
    canonical = full(0.0)
    bits(canonical)[:] = CANONICAL_NAN[dtype]
    odd = full(0.0)
    bits(odd)[:] = bits(-nan) | 5  # negative, with a payload
    for op in ReduceOp:
        for inputs in ([nan, one], [one, nan], [one, odd, one], [odd, nan], [full(np.inf)] * 2 + [odd]):
            assert_same(reduced(dtype, op, inputs), canonical, f"{op.name} with a NaN")
    assert_same(reduced(dtype, ReduceOp.SUM, [full(np.inf), full(-np.inf)]), canonical, "Inf - Inf")
    assert_same(reduced(dtype, ReduceOp.SUM, [odd]), odd, "one input is copied unchanged")


@pytest.mark.parametrize("dtype", (DType.INT32, DType.INT64, DType.UINT8))
def test_integers_wrap_and_divide_like_c(isa: str, dtype: DType) -> None:
    info = np.iinfo(NUMPY[dtype])
    values = np.array([info.min, info.min + 1, info.max, info.max - 1, 0, 1, 7, 100] * 9, dtype=NUMPY[dtype])
    if info.min < 0:
        values[3::8] = -7
    twice = [values, values]
    assert_same(reduced(dtype, ReduceOp.SUM, twice), expected(dtype, ReduceOp.SUM, twice), "wraps")
    assert_same(reduced(dtype, ReduceOp.PROD, twice), expected(dtype, ReduceOp.PROD, twice), "wraps")
    for divisor in (1, 2, 3, 7, 255, 256, 2**31 - 1, 2**31, 2**32 + 1, 2**63 - 1, 2**63, 2**64 - 1):
        got = reduced(dtype, ReduceOp.AVG, [values], divisor)
        assert_same(got, expected(dtype, ReduceOp.AVG, [values], divisor), f"divisor {divisor}")


@pytest.fixture
def rounding_upwards() -> Iterator[None]:
    """This thread rounds upwards, as if some library had left it so."""
    libm = ctypes.CDLL(ctypes.util.find_library("m"))
    upward = {"x86_64": 0x800, "aarch64": 0x400000}.get(platform.machine())
    if upward is None:
        pytest.skip("the code of FE_UPWARD on this CPU is not known here")
    before = libm.fegetround()
    one, little = np.ones(1), np.full(1, 1e-30)
    assert libm.fesetround(upward) == 0
    try:
        assert (one + little)[0] > 1.0
        yield
        assert (one + little)[0] > 1.0, "the caller's rounding mode was not restored"
    finally:
        libm.fesetround(before)


@pytest.mark.skipif("generic" in _native.reduce_isas(), reason="only x86 has the guard so far")
def test_the_rounding_mode_of_the_caller_does_not_matter(isa: str, request: pytest.FixtureRequest) -> None:
    rng = np.random.default_rng(1)
    cases = []
    for dtype in (DType.FLOAT32, DType.FLOAT64, DType.FLOAT16, DType.BFLOAT16):
        arrays = [rng.normal(1.0, 0.5, 999).astype(NUMPY[dtype]) for _ in range(3)]
        cases.append((dtype, arrays, expected(dtype, ReduceOp.AVG, arrays, 3)))
    request.getfixturevalue("rounding_upwards")
    for dtype, arrays, want in cases:
        assert_same(reduced(dtype, ReduceOp.AVG, arrays, 3), want, dtype.name)


@pytest.mark.skipif("generic" in _native.reduce_isas(), reason="only x86 has the guard so far")
def test_flushing_of_subnormals_does_not_matter(isa: str) -> None:
    torch = pytest.importorskip("torch")
    half = np.full(99, np.finfo(np.float32).smallest_subnormal * 3, dtype=np.float32)
    want = half + half
    assert torch.set_flush_denormal(True)
    try:
        got = reduced(DType.FLOAT32, ReduceOp.SUM, [half, half])
    finally:
        torch.set_flush_denormal(False)
    assert (want > 0).all()
    assert_same(got, want, "subnormals")


def test_what_is_refused() -> None:
    a, b = np.ones(8, dtype=np.float32), np.ones(8, dtype=np.float32)
    frozen = np.ones(8, dtype=np.float32)
    frozen.flags.writeable = False
    memory = np.ones(16, dtype=np.float32)
    refused: list[tuple[Any, ...]] = [
        (7, 0, [a], b),
        (0, 5, [a], b),
        (0, 0, [], b),
        (0, 0, [a, a[:7]], b),
        (1, 0, [a[:7]], b[:7]),  # 28 bytes hold no whole number of float64
        (0, 0, [memory[1:9], a], memory[0:8]),
        (0, 0, [memory[::2]], b),  # not contiguous
        (0, 0, [a], memory[::2]),
        (0, 0, [a], frozen),
        (-1, 0, [a], b),
        (0, 0, [a], b, -1),
    ]
    for arguments in refused:
        with pytest.raises((ValueError, TypeError)):
            _native.reduce(*arguments)
    with pytest.raises(ValueError, match="instruction set"):
        _native.force_reduce_isa("mmx")
    assert (b == 1).all() and (memory == 1).all() and (frozen == 1).all()
    _native.reduce(0, 0, [frozen, a], b)  # but inputs may be read-only
    assert (b == 2).all()


def test_all_sets_of_the_cpu_are_offered_and_the_widest_is_the_default() -> None:
    assert _native.reduce_isa() == _native.reduce_isas()[-1]
    if platform.machine() != "x86_64":
        assert _native.reduce_isas() == ["generic"]
        return
    flags = set(re.findall(r"\w+", re.findall(r"^flags\s*:(.*)$", CPUINFO.read_text(), re.MULTILINE)[0]))
    sets = ["sse2"]
    if flags >= {"avx2", "f16c", "fma"}:
        sets.append("avx2")
        if flags >= {"avx512f", "avx512bw", "avx512dq", "avx512vl"}:
            sets.append("avx512")
    assert _native.reduce_isas() == sets
