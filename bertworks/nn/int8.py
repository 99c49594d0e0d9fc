"""BERT's layers in int8 on a CPU: all of them in one compiled function, made for the instructions of VNNI.

T tokens, D width, O outputs of a linear layer, I width inside of the feed-forward part, N heads, H width of a head.

A text of 16 tokens takes 24 matrix products in a model of 6 layers, each of which would be over before a library has
been called. So what happens between the embeddings and the last layer's output is one call here, and what belongs
together is done while it is in the caches:

- `_product` multiplies the unsigned inputs of some tokens by the signed weights of some outputs, four numbers in one
  step of VNNI. Weights lie in the order in which they are needed, see `_packed`.
- `_project` computes the queries, keys and values of some tokens, and `_feed` takes them from the output of attention
  to the end of a layer.
- `_attend` is attention in float32, six queries of a head at a time; `_attend_low` in bfloat16, where the processor
  multiplies it.

Sequences do not depend on each other, and after attention no token does; so threads share the heads of sequences in
attention and tokens in all else, and meet twice a layer (`layers`). What is computed of a token does not depend on who
computes it.
"""

import ctypes
from collections.abc import Callable, Sequence
from functools import cache
from pathlib import Path
from typing import Any, Literal, NamedTuple

import numba
import numpy as np
import torch
from llvmlite import ir  # type: ignore[import-untyped]
from numba.core import cgutils, types
from numba.extending import intrinsic
from numpy.typing import NDArray
from torch import Tensor

from bertworks.nn.layers import LARGEST_INT8, Linear, activate, cpu_instructions, quantize_weight, survives

_ZERO = 128  # the unsigned number that stands for 0
_GELU_LEAST = 0.1701  # no gelu is below minus this
_GELU_DEGREE, _GELU_END = 6, 4.0  # of a polynomial that is nearer to it than its steps in int8; where it is x or 0
_KNOWS_TILES = "amx_int8" in cpu_instructions() and "amx_bf16" in cpu_instructions()
_KNOWS_BFLOAT16 = "avx512_bf16" in cpu_instructions()
_TOKENS_AT_ONCE = 64 if _KNOWS_TILES else 48  # of which the inputs and outputs of all products fit into a core's cache
# Numbers of a vector. Processors with VNNI but without AVX-512 have vectors half as long and half as many registers.
_LANES = 16 if "avx512_vnni" in cpu_instructions() else 8
_ROWS = 6 if _LANES == 16 else 3  # tokens of a product at a time; with _BLOCKS vectors of outputs they fill registers
_BLOCKS = 4
_WIDE = _LANES * _BLOCKS
_GROUP = 16 if _KNOWS_TILES else _ROWS  # tokens that are not cut apart, since products take so many at a time
_PARTS_PER_THREAD = 6  # of attention; the smaller they are, the less is waited for the last one
_COST_OF_TOKEN = 64  # in attention, what a token costs by itself, in pairs of tokens
_PAUSES, _YIELDS, _SLEEP_US = 2_000, 500, 50  # how a thread waits: 0.1 ms awake, about as long for others, then asleep
# Sums may be reordered, and there are no infinities to respect: without this nothing here is vectorised.
_FAST = {"reassoc", "contract", "nsz", "arcp", "nnan", "ninf"}
# Nor may a division by 0 raise an error: threads wait for what another one has begun.
_OPTIONS: Any = {"nogil": True, "fastmath": _FAST, "error_model": "numpy"}
# Linux gives a process tiles when it asks for them.
_ARCH_PRCTL, _REQUEST_PERMISSION, _TILE_DATA = 158, 0x1023, 18
_f32 = np.float32


def compiled(function: Callable[..., Any]) -> Any:
    """Compile a function, once for this machine if there is a place to keep it."""
    try:
        return numba.njit(cache=True, **_OPTIONS)(function)
    except RuntimeError:  # without a place to write, it is compiled in every process
        return numba.njit(**_OPTIONS)(function)


def is_compiled() -> bool:
    """Tell whether the layers have been compiled, in this process or for this machine."""
    where = layers.stats.cache_path
    return bool(layers.signatures) or bool(where and any(Path(where).glob("int8.layers-*.nbi")))


# Tiles: what the processor computes in its registers. Rows of x times some vectors of w, in steps of four bytes of x.

Kind = Literal["int8", "bfloat16", "float32"]
_instruction: Any = intrinsic
_I16, _I32, _I64, _F32 = ir.IntType(16), ir.IntType(32), ir.IntType(64), ir.FloatType()


def _tile(num_rows: int, num_vectors: int, kind: Kind) -> Any:
    """Return an instruction for numba: `tile(x, x_row, w, w_step, num_steps, start, out, out_row)`.

    Args:
        num_rows: of x and out.
        num_vectors: of outputs.
        kind: of numbers. A step takes four bytes of x and four for each output of w: `int8`, four unsigned bytes times
            four signed ones, summed as int32; `bfloat16`, two times two; `float32`, one times one.

    All arguments of what is returned are addresses or numbers of bytes, but `num_steps`. `start` are the numbers of
    int8, one an output, with which the sums begin. Processors without bfloat16 get an instruction that does nothing,
    and never use it.
    """

    def tile(typing, x, x_row, w, w_step, num_steps, start, out, out_row):  # type: ignore[no-untyped-def]  # noqa: ARG001
        def generate(context: Any, b: Any, signature: Any, arguments: Any) -> Any:  # noqa: ARG001
            if kind == "bfloat16" and not _KNOWS_BFLOAT16:
                return context.get_dummy_value()
            x, x_row, w, w_step, num_steps, start, out, out_row = arguments
            element = _F32 if kind == "float32" else _I32  # of x and w
            total = _I32 if kind == "int8" else _F32
            vector, sum_vector, size = ir.VectorType(element, _LANES), ir.VectorType(total, _LANES), 4 * _LANES

            def read(kind: Any, address: Any, alignment: int = 4) -> Any:
                value = b.load(b.inttoptr(address, kind.as_pointer()))
                value.align = alignment
                return value

            def number(value: int) -> Any:
                return ir.Constant(_I64, value)

            form = ir.FunctionType(sum_vector, [sum_vector, vector, vector])
            names = {
                "int8": f"x86.avx512.vpdpbusd.{32 * _LANES}", "bfloat16": f"x86.avx512bf16.dpbf16ps.{32 * _LANES}",
                "float32": f"fma.v{_LANES}f32",
            }  # fmt: skip
            declare: Any = cgutils.get_or_insert_function
            step = declare(b.module, form, f"llvm.{names[kind]}")
            firsts = [ir.Constant(sum_vector, [0] * _LANES)] * num_vectors
            if kind == "int8":
                firsts = [read(vector, b.add(start, number(size * n))) for n in range(num_vectors)]
            before, loop, after = b.block, b.append_basic_block("step"), b.append_basic_block("end")
            b.branch(loop)
            b.position_at_end(loop)
            k = b.phi(_I64)
            k.add_incoming(number(0), before)
            sums = [b.phi(sum_vector) for _ in range(num_rows * num_vectors)]
            for place, value in enumerate(sums):
                value.add_incoming(firsts[place % num_vectors], before)
            weights = b.add(w, b.mul(k, w_step))
            weights = [read(vector, b.add(weights, number(size * n))) for n in range(num_vectors)]
            nothing, lanes = ir.Constant(vector, ir.Undefined), ir.Constant(ir.VectorType(_I32, _LANES), [0] * _LANES)
            results = []
            for row in range(num_rows):
                at = b.add(x, b.add(b.mul(x_row, number(row)), b.shl(k, number(2))))
                four = b.insert_element(nothing, read(element, at, 1), ir.Constant(_I32, 0))
                four = b.shuffle_vector(four, nothing, lanes)
                for n in range(num_vectors):
                    given = [sums[row * num_vectors + n], four, weights[n]]
                    results.append(b.call(step, [*given[1:], given[0]] if kind == "float32" else given))
            following = b.add(k, number(1))
            k.add_incoming(following, loop)
            for value, result in zip(sums, results, strict=True):
                value.add_incoming(result, loop)
            b.cbranch(b.icmp_signed("<", following, num_steps), loop, after)
            b.position_at_end(after)
            for place, result in enumerate(results):
                row, n = divmod(place, num_vectors)
                at = b.add(out, b.add(b.mul(out_row, number(row)), number(size * n)))
                b.store(result, b.inttoptr(at, sum_vector.as_pointer())).align = 4
            return context.get_dummy_value()

        return types.void(*[types.intp] * 8), generate

    return _instruction(tile)


# Matrix tiles, AMX: registers of 16 rows of 64 bytes. A row of x has 64 inputs, one of w four inputs of 16 outputs.

_TILE_ROWS, _TILE_BYTES = 16, 64
_LOW_STEP = _TILE_BYTES // 2  # numbers of bfloat16 in a row of a tile
_I8 = ir.IntType(8)
_POINTER = _I8.as_pointer()


def _call(b: Any, name: str, *arguments: Any) -> None:
    declare: Any = cgutils.get_or_insert_function
    kind = ir.FunctionType(ir.VoidType(), [argument.type for argument in arguments])
    b.call(declare(b.module, kind, f"llvm.x86.{name}"), arguments)


def _matrix_tile(num_rows: int, kind: Kind) -> Any:
    """Return an instruction for numba, as `_tile` does, for so many times 16 rows of x and two times 16 outputs.

    A step is 64 bytes of x, of int8 or bfloat16. Processors without tiles get an instruction that does nothing, and
    never use it.
    """

    def tile(typing, x, x_row, w, w_step, num_steps, start, out, out_row):  # type: ignore[no-untyped-def]  # noqa: ARG001
        def generate(context: Any, b: Any, signature: Any, arguments: Any) -> Any:  # noqa: ARG001
            if not _KNOWS_TILES:
                return context.get_dummy_value()
            x, x_row, w, w_step, num_steps, start, out, out_row = arguments

            def pointer(address: Any) -> Any:
                return b.inttoptr(address, _POINTER)

            def number(value: int) -> Any:
                return ir.Constant(_I64, value)

            sums = [[ir.Constant(_I8, 2 * row + n) for n in range(2)] for row in range(num_rows)]
            rows, columns = ([ir.Constant(_I8, first + n) for n in range(2)] for first in (4, 6))
            for row in range(num_rows):
                for n in range(2):
                    if kind == "bfloat16":
                        _call(b, "tilezero", sums[row][n])
                    else:  # a row that follows itself: all begin with the same numbers
                        at = pointer(b.add(start, number(_TILE_BYTES * n)))
                        _call(b, "tileloadd64", sums[row][n], at, number(0))
            before, loop, after = b.block, b.append_basic_block("step"), b.append_basic_block("end")
            b.branch(loop)
            b.position_at_end(loop)
            k = b.phi(_I64)
            k.add_incoming(number(0), before)
            inputs = b.add(x, b.mul(k, number(_TILE_BYTES)))
            weights = b.add(w, b.mul(b.mul(k, number(_TILE_ROWS)), w_step))
            for row in range(num_rows):
                at = pointer(b.add(inputs, b.mul(x_row, number(_TILE_ROWS * row))))
                _call(b, "tileloadd64", rows[row], at, x_row)
            for n in range(2):
                _call(b, "tileloadd64", columns[n], pointer(b.add(weights, number(_TILE_BYTES * n))), w_step)
                for row in range(num_rows):
                    multiply = "tdpbf16ps" if kind == "bfloat16" else "tdpbusd"
                    _call(b, multiply, sums[row][n], rows[row], columns[n])
            following = b.add(k, number(1))
            k.add_incoming(following, loop)
            b.cbranch(b.icmp_signed("<", following, num_steps), loop, after)
            b.position_at_end(after)
            for row in range(num_rows):
                for n in range(2):
                    at = b.add(b.add(out, b.mul(out_row, number(_TILE_ROWS * row))), number(_TILE_BYTES * n))
                    _call(b, "tilestored64", sums[row][n], pointer(at), out_row)
            return context.get_dummy_value()

        return types.void(*[types.intp] * 8), generate

    return _instruction(tile)


@_instruction
def _set_tiles(typing, address):  # type: ignore[no-untyped-def]  # noqa: ARG001
    """Set the tiles up as 64 bytes at an address say; 0: give them back."""

    def generate(context: Any, b: Any, signature: Any, arguments: Any) -> Any:  # noqa: ARG001
        if _KNOWS_TILES:
            with b.if_else(b.icmp_signed("==", arguments[0], ir.Constant(_I64, 0))) as (back, new):
                with back:
                    _call(b, "tilerelease")
                with new:
                    _call(b, "ldtilecfg", b.inttoptr(arguments[0], _POINTER))
        return context.get_dummy_value()

    return types.void(types.intp), generate


_two_matrix_tiles, _one_matrix_tile = _matrix_tile(2, "int8"), _matrix_tile(1, "int8")
_two_low_tiles, _one_low_tile = _matrix_tile(2, "bfloat16"), _matrix_tile(1, "bfloat16")


@cache
def tiles() -> NDArray[np.uint8]:
    """Return how to set matrix tiles up: eight of 16 rows of 64 bytes; nothing where there are none that work."""
    shapes = np.zeros(64, np.uint8)
    shapes[0] = 1  # the one kind that there is
    shapes[16:32:2] = _TILE_BYTES
    shapes[48:56] = _TILE_ROWS
    is_allowed = _KNOWS_TILES and ctypes.CDLL(None).syscall(_ARCH_PRCTL, _REQUEST_PERMISSION, _TILE_DATA) == 0
    return shapes if is_allowed and survives(lambda: _multiply_by_tiles(shapes)) else shapes[:0]


def _multiply_by_tiles(shapes: NDArray[np.uint8]) -> None:
    """Fail, or end this process, where tiles do not compute what they should."""
    rng = np.random.default_rng(0)
    low, values = rng.integers(0, 256, (48, 128), np.uint8), rng.integers(-127, 128, (_WIDE, 128)).astype(np.int8)
    sums = np.empty((48, _WIDE), np.int32)
    _product(low, 48, _packed(values), np.zeros(_WIDE, np.int32), sums, shapes)
    assert np.array_equal(sums, low.astype(np.int32) @ values.T.astype(np.int32))


_tile_int8, _row_int8 = _tile(_ROWS, _BLOCKS, "int8"), _tile(1, _BLOCKS, "int8")
_tile_low, _row_low = _tile(_ROWS, 2, "bfloat16"), _tile(1, 2, "bfloat16")
_tile_float, _thin_float, _row_float = (
    _tile(rows, vectors, "float32") for rows, vectors in ((_ROWS, 2), (_ROWS, 1), (1, 1))
)


@_instruction
def _in_long_vectors(typing):  # type: ignore[no-untyped-def]  # noqa: ARG001
    """Have the function in which this stands use vectors of 512 bits.

    LLVM avoids them on Intel's processors, because they lowered the clock rate of those before Ice Lake.
    """

    def generate(context: Any, b: Any, signature: Any, arguments: Any) -> Any:  # noqa: ARG001
        if _LANES == 16:
            set.add(b.function.attributes, '"prefer-vector-width"="512"')
        return context.get_dummy_value()

    return types.void(), generate


@_instruction
def _transpose(typing, x, x_row, out, out_row):  # type: ignore[no-untyped-def]  # noqa: ARG001
    """Write 16 rows of 16 numbers of four bytes as columns; addresses and numbers of bytes, as of `_tile`."""

    def generate(context: Any, b: Any, signature: Any, arguments: Any) -> Any:  # noqa: ARG001
        x, x_row, out, out_row = arguments
        vector = ir.VectorType(_I32, 16)

        def place(first: Any, row: Any, number: int) -> Any:
            return b.inttoptr(b.add(first, b.mul(row, ir.Constant(_I64, number))), vector.as_pointer())

        rows = [b.load(place(x, x_row, number)) for number in range(16)]
        for row in rows:
            row.align = 2
        for size in (1, 2, 4, 8):  # squares of this size, two by two
            lower = [lane if not lane & size else 16 + lane - size for lane in range(16)]
            upper = [lane + size if not lane & size else 16 + lane for lane in range(16)]
            for number in range(16):
                if not number & size:
                    both = rows[number], rows[number + size]
                    rows[number], rows[number + size] = (
                        b.shuffle_vector(*both, ir.Constant(ir.VectorType(_I32, 16), mask)) for mask in (lower, upper)
                    )
        for number, row in enumerate(rows):
            b.store(row, place(out, out_row, number)).align = 4
        return context.get_dummy_value()

    return types.void(*[types.intp] * 4), generate


# Numbers as bits. numba computes with whole numbers of 64 bits even where 32 are given, which halves vectors.


def _scalar(result: Any, given: Sequence[Any], generate: Callable[..., Any]) -> Any:
    """Return an instruction for numba on single numbers, of which LLVM makes one on vectors."""
    if len(given) == 1:

        def one(typing, a):  # type: ignore[no-untyped-def]  # noqa: ARG001
            return result(*given), lambda _, b, __, arguments: generate(b, *arguments)

        return _instruction(one)

    def two(typing, a, c):  # type: ignore[no-untyped-def]  # noqa: ARG001
        return result(*given), lambda _, b, __, arguments: generate(b, *arguments)

    return _instruction(two)


def _int(value: int) -> Any:
    return ir.Constant(_I32, value)


def _in_order(b: Any, number: Any) -> Any:
    bits = b.bitcast(number, _I32)
    return b.xor(bits, b.and_(b.ashr(bits, _int(31)), _int(2**31 - 1)))


def _to_bfloat16(b: Any, number: Any) -> Any:
    bits = b.bitcast(number, _I32)
    odd = b.and_(b.lshr(bits, _int(16)), _int(1))
    return b.trunc(b.lshr(b.add(b.add(bits, odd), _int(0x7FFF)), _int(16)), _I16)


# The bits of a float32 as an int32: of two positive numbers the larger one has the larger. And the way back.
_as_bits = _scalar(types.int32, [types.float32], lambda b, number: b.bitcast(number, _I32))
_as_float = _scalar(types.float32, [types.int32], lambda b, bits: b.bitcast(bits, _F32))
# An int32 that is larger for a larger float32, of any sign; it is its own way back to the bits.
_rank = _scalar(types.int32, [types.float32], _in_order)
# 2 to the power of a whole number, -126 to 127.
_two_to_the = _scalar(
    types.float32, [types.float32],
    lambda b, whole: b.bitcast(b.shl(b.add(b.fptosi(whole, _I32), _int(127)), _int(23)), _F32),
)  # fmt: skip
# bfloat16, the upper half of a float32, rounded to the nearest and to even from the middle; two of them as one number.
to_bfloat16 = _scalar(types.uint16, [types.float32], _to_bfloat16)
from_bfloat16 = _scalar(
    types.float32, [types.uint16], lambda b, bits: b.bitcast(b.shl(b.zext(bits, _I32), _int(16)), _F32)
)
_pair = _scalar(
    types.uint32, [types.uint16, types.uint16],
    lambda b, first, second: b.or_(b.zext(first, _I32), b.shl(b.zext(second, _I32), _int(16))),
)  # fmt: skip


@compiled
def _product(low, num_rows, w, start, out, tiles):  # type: ignore[no-untyped-def]
    """Multiply int8 inputs, [rows, K], by packed weights; out is [rows, O], both with the padding of `_packed`.

    With matrix tiles if `tiles` says how, there are rows enough, and their inputs fill tiles.
    """
    if len(tiles) and num_rows >= _TILE_ROWS and low.shape[1] % _TILE_BYTES == 0:
        _product_in_tiles(low, num_rows, w, start, out, tiles)
    else:
        _product_in_vectors(low, num_rows, w, start, out)


@compiled
def _product_in_tiles(low, num_rows, w, start, out, tiles):  # type: ignore[no-untyped-def]
    width, num_outputs, step = low.shape[1], out.shape[1], 4 * _WIDE
    _set_tiles(tiles.ctypes.data)
    for first in range(0, num_outputs, 2 * _TILE_ROWS):
        number, place = divmod(first, _WIDE)
        weights, begun = w.ctypes.data + number * width * _WIDE + 4 * place, start.ctypes.data + 4 * first
        row = 0
        while row < num_rows:
            if num_rows - row > _TILE_ROWS and num_rows >= 2 * _TILE_ROWS:
                at = min(row, num_rows - 2 * _TILE_ROWS)  # the last rows may be computed twice
                inputs, result = low.ctypes.data + at * width, out.ctypes.data + 4 * (at * num_outputs + first)
                _two_matrix_tiles(inputs, width, weights, step, width // _TILE_BYTES, begun, result, 4 * num_outputs)
                row = at + 2 * _TILE_ROWS
            else:
                at = min(row, num_rows - _TILE_ROWS)
                inputs, result = low.ctypes.data + at * width, out.ctypes.data + 4 * (at * num_outputs + first)
                _one_matrix_tile(inputs, width, weights, step, width // _TILE_BYTES, begun, result, 4 * num_outputs)
                row = at + _TILE_ROWS
    _set_tiles(0)


@compiled
def _product_in_vectors(low, num_rows, w, start, out):  # type: ignore[no-untyped-def]
    width, num_outputs = low.shape[1], out.shape[1]
    w_bytes = width * _WIDE
    for number in range(num_outputs // _WIDE):
        weights, first = w.ctypes.data + number * w_bytes, start.ctypes.data + 4 * number * _WIDE
        result = out.ctypes.data + 4 * number * _WIDE
        if num_rows < _ROWS:
            for row in range(num_rows):
                _row_int8(
                    low.ctypes.data + row * width, width, weights, 4 * _WIDE, width // 4, first,
                    result + 4 * row * num_outputs, 4 * num_outputs,
                )  # fmt: skip
        else:
            for row in range(0, num_rows, _ROWS):
                at = min(row, num_rows - _ROWS)  # the last rows may be computed twice
                _tile_int8(
                    low.ctypes.data + at * width, width, weights, 4 * _WIDE, width // 4, first,
                    result + 4 * at * num_outputs, 4 * num_outputs,
                )  # fmt: skip


@compiled
def _matrix(x, num_rows, depth, w, lanes, out):  # type: ignore[no-untyped-def]
    """Multiply one row or all _ROWS of x by the first `depth` rows of w; all float32, and `lanes` are whole vectors."""
    x_row, w_row, out_row = x.strides[0], w.strides[0], out.strides[0]
    for lane in range(0, lanes, 2 * _LANES):
        weights, result = w.ctypes.data + 4 * lane, out.ctypes.data + 4 * lane
        if num_rows == 1:
            _row_float(x.ctypes.data, x_row, weights, w_row, depth, 0, result, out_row)
            if lane + _LANES < lanes:
                _row_float(x.ctypes.data, x_row, weights + 4 * _LANES, w_row, depth, 0, result + 4 * _LANES, out_row)
        elif lane + _LANES < lanes:
            _tile_float(x.ctypes.data, x_row, weights, w_row, depth, 0, result, out_row)
        else:
            _thin_float(x.ctypes.data, x_row, weights, w_row, depth, 0, result, out_row)


# What happens to a token between products.


@compiled
def _quantize(row, factors, out):  # type: ignore[no-untyped-def]
    """Write a row, multiplied by factors, as unsigned numbers; returns its scale."""
    _in_long_vectors()
    most = np.int32(0)  # as bits, since compilers do not look for the largest of float32s in vectors
    for i in range(len(row)):
        most = max(most, _as_bits(abs(row[i] * factors[i])))
    largest = max(_as_float(most), _f32(1e-30))
    inverse = _f32(LARGEST_INT8) / largest
    for i in range(len(row)):
        out[i] = np.uint8(np.int32(row[i] * factors[i] * inverse + _f32(_ZERO + 0.5)))
    return largest * _f32(1 / LARGEST_INT8)


@compiled
def _activate_and_quantize(sums, scale, scales, bias, polynomial, row, out):  # type: ignore[no-untyped-def]
    """Apply the gelu, or the relu if there is no polynomial, and write what comes out with all of 0 to 255."""
    _in_long_vectors()
    end, to_unit = _f32(_GELU_END), _f32(2 / _GELU_END**2)
    most = np.int32(0)
    if len(polynomial):
        p0, p1, p2, p3 = polynomial[0], polynomial[1], polynomial[2], polynomial[3]
        p4, p5, p6 = polynomial[4], polynomial[5], polynomial[6]
        for i in range(len(row)):
            x = _f32(sums[i]) * scale * scales[i] + bias[i]
            size = abs(x)
            near = size if size < end else end
            u = to_unit * near * near - _f32(1)
            odd = p0 + u * (p1 + u * (p2 + u * (p3 + u * (p4 + u * (p5 + u * p6)))))
            y = _f32(0.5) * (x + size * near * odd) + _f32(_GELU_LEAST)
            row[i] = y
            most = max(most, _as_bits(y))
    else:
        for i in range(len(row)):
            x = _f32(sums[i]) * scale * scales[i] + bias[i]
            y = x if x > _f32(0) else _f32(0)
            row[i] = y
            most = max(most, _as_bits(y))
    largest = max(_as_float(most), _f32(1e-30))
    inverse = _f32(255) / largest
    for i in range(len(row)):
        out[i] = np.uint8(np.int32(row[i] * inverse + _f32(0.5)))
    return largest * _f32(1 / 255)


@compiled
def _add_and_normalize(x, sums, scale, scales, bias, norm_scales, norm_shifts, eps):  # type: ignore[no-untyped-def]
    """Add a product's output to x and normalise x."""
    _in_long_vectors()
    for i in range(len(x)):
        x[i] += _f32(sums[i]) * scale * scales[i] + bias[i]
    normalize(x, norm_scales, norm_shifts, eps)


@compiled
def normalize(x, norm_scales, norm_shifts, eps):  # type: ignore[no-untyped-def]
    """Give a row mean 0 and variance 1, then scale and shift it."""
    _in_long_vectors()
    mean = _f32(0)
    for i in range(len(x)):
        mean += x[i]
    mean /= _f32(len(x))
    variance = _f32(0)
    for i in range(len(x)):
        distance = x[i] - mean
        variance += distance * distance
    factor = _f32(1) / np.sqrt(variance / _f32(len(x)) + eps)
    for i in range(len(x)):
        x[i] = (x[i] - mean) * factor * norm_scales[i] + norm_shifts[i]


@compiled
def _largest(row):  # type: ignore[no-untyped-def]
    _in_long_vectors()
    most = np.int32(-(2**31))
    for i in range(len(row)):  # by rank, since compilers do not look for the largest of float32s in vectors
        most = max(most, _rank(row[i]))
    return _as_float(_rank(_as_float(most)))


@compiled
def _powers_of_two(row):  # type: ignore[no-untyped-def]
    """Replace every number by 2 to the power of what it is above the largest; returns their sum."""
    _in_long_vectors()
    largest, total = _largest(row), _f32(0)
    for i in range(len(row)):
        x = row[i] - largest
        x = x if x > _f32(-126) else _f32(-126)
        whole = np.floor(x + _f32(0.5))
        part = (x - whole) * _f32(0.6931472)
        y = _f32(1 / 24) + part * (_f32(1 / 120) + part * _f32(1 / 720))  # e^part, as its series to within 2e-7
        y = _f32(1) + part * (_f32(1) + part * (_f32(0.5) + part * (_f32(1 / 6) + part * y)))
        row[i] = y * _two_to_the(whole)
        total += row[i]
    return total


# Threads. The work on a batch goes through stages, each cut into parts. A thread takes the next part that nobody has
# taken; when none is left, it waits until those that others took are done. So a thread waits only for others that are
# computing: one that comes late finds less to do, and if one never comes, the others do all.


def new_counts(num_layers: int) -> NDArray[np.int64]:
    """Return, of each stage, how many parts are taken and how many are done, each stage in a line of the caches."""
    return np.zeros((2 * num_layers + 1, 8), np.int64)


@_instruction
def _fetch_and_add(typing, address, number):  # type: ignore[no-untyped-def]  # noqa: ARG001
    """Add to an int64 that threads share; returns what it was. All that this thread wrote before is seen by others."""

    def generate(context: Any, b: Any, signature: Any, arguments: Any) -> Any:  # noqa: ARG001
        return b.atomic_rmw("add", b.inttoptr(arguments[0], _I64.as_pointer()), arguments[1], "seq_cst")

    return types.int64(types.intp, types.int64), generate


@_instruction
def _read_shared(typing, address):  # type: ignore[no-untyped-def]  # noqa: ARG001
    """Return an int64 that threads share, and see all that others wrote before they changed it."""

    def generate(context: Any, b: Any, signature: Any, arguments: Any) -> Any:  # noqa: ARG001
        return b.load_atomic(b.inttoptr(arguments[0], _I64.as_pointer()), "acquire", 8)

    return types.int64(types.intp), generate


@_instruction
def _pause(typing):  # type: ignore[no-untyped-def]  # noqa: ARG001
    """Tell the processor that this is a loop that waits."""

    def generate(context: Any, b: Any, signature: Any, arguments: Any) -> Any:  # noqa: ARG001
        _call(b, "sse2.pause")
        return context.get_dummy_value()

    return types.void(), generate


_let_others_run: Any = types.ExternalFunction("sched_yield", types.int32())
_sleep: Any = types.ExternalFunction("usleep", types.int32(types.uint32))


@compiled
def _wait_for(address, count):  # type: ignore[no-untyped-def]
    """Wait until a number that threads share is as large as `count`.

    It is a matter of microseconds, unless there are fewer processors than threads: then the other one needs this one's.
    """
    rounds = 0
    while _read_shared(address) < count:
        rounds += 1
        if rounds < _PAUSES:
            _pause()
        elif rounds < _PAUSES + _YIELDS:
            _let_others_run()
        else:
            _sleep(_SLEEP_US)


@compiled
def _num_parts(num_rows, num_threads):  # type: ignore[no-untyped-def]
    """Return into how many parts rows are cut: as many for each thread, none of more than _TOKENS_AT_ONCE."""
    num_parts = _whole((num_rows + _TOKENS_AT_ONCE - 1) // _TOKENS_AT_ONCE, num_threads)
    return min(num_parts, (num_rows + _GROUP - 1) // _GROUP)


@compiled
def _rows_of_part(part, num_parts, num_rows):  # type: ignore[no-untyped-def]
    """Return where a part begins and ends. The first of two has the larger half: who takes it takes fewer."""
    groups, more = (num_rows + _GROUP - 1) // _GROUP, num_parts - 1
    first, end = (part * groups + more) // num_parts, ((part + 1) * groups + more) // num_parts
    return first * _GROUP, min(end * _GROUP, num_rows)


@compiled
def _cut_by_cost(starts_S, num_heads, num_threads):  # type: ignore[no-untyped-def]
    """Return where the heads of all sequences, one after another, are cut into parts of about the same cost."""
    num_sequences, total, spent, part = len(starts_S) - 1, 0, 0, 1
    num_parts = min(_PARTS_PER_THREAD * num_threads, num_sequences * num_heads) if num_threads > 1 else 1
    places = np.full(num_parts + 1, num_sequences * num_heads)
    places[0] = 0
    for s in range(num_sequences):
        length = starts_S[s + 1] - starts_S[s]
        total += num_heads * length * (length + _COST_OF_TOKEN)
    for s in range(num_sequences):
        length = starts_S[s + 1] - starts_S[s]
        for head in range(num_heads):
            spent += length * (length + _COST_OF_TOKEN)
            while part < num_parts and spent * num_parts >= total * part:
                places[part] = s * num_heads + head + 1
                part += 1
    return places


# The network.


class Layers(NamedTuple):
    """The weights of all layers, [L, ...], as `layers` takes them.

    Of each product they are its weights, where its sums begin, its scales and its bias. `qkv_factors` and
    `up_factors` are those of `input_factors`; the scales and shifts of norms are beside each other.
    """

    qkv: NDArray[np.int8]
    qkv_starts: NDArray[np.int32]
    qkv_scales: NDArray[np.float32]
    qkv_bias: NDArray[np.float32]
    qkv_factors: NDArray[np.float32]
    out: NDArray[np.int8]
    out_starts: NDArray[np.int32]
    out_scales: NDArray[np.float32]
    out_bias: NDArray[np.float32]
    out_norms: NDArray[np.float32]
    up: NDArray[np.int8]
    up_starts: NDArray[np.int32]
    up_scales: NDArray[np.float32]
    up_bias: NDArray[np.float32]
    up_factors: NDArray[np.float32]
    down: NDArray[np.int8]
    down_starts: NDArray[np.int32]
    down_scales: NDArray[np.float32]
    down_bias: NDArray[np.float32]
    down_norms: NDArray[np.float32]
    polynomial: NDArray[np.float32]  # of the gelu; empty for a relu
    eps: np.float32
    num_heads: int
    is_causal: bool
    tiles: NDArray[np.uint8]  # see `tiles`


class Heads(NamedTuple):
    """Queries, keys and values of all tokens as attention reads them; those of the other type are empty."""

    queries_NTH: NDArray[np.float32]
    keys_NHT: NDArray[np.float32]  # with some columns more, which may be read and mean nothing
    values_NTH: NDArray[np.float32]  # of whole vectors
    low_TO: NDArray[np.uint16]  # in bfloat16, as the product gives them, with some rows more


def room_for(num_tokens: int, num_heads: int, width: int, *, is_low: bool = _KNOWS_BFLOAT16) -> Heads:
    """Return a place for queries, keys and values: in bfloat16 where the processor multiplies it."""
    columns = _LANES * (num_tokens // _LANES // 2 * 2 + 3)  # an odd number of vectors, so that caches hold all rows
    lanes = -(-width // _LANES) * _LANES
    shapes = (num_heads, num_tokens, width), (num_heads, width, columns), (num_heads, num_tokens, lanes)
    low_shape = (num_tokens + 2 * _TILE_ROWS, 3 * num_heads * width)
    floats = [np.zeros((0, 0, 0) if is_low else shape, np.float32) for shape in shapes]
    # By torch, whose arrays begin where a line of the caches does: threads share fewer lines.
    low_TO = torch.empty(low_shape if is_low else (0, 0), dtype=torch.uint16).numpy()
    low_TO[num_tokens:] = 0
    return Heads._make([*floats, low_TO])


@compiled
def _divide(output_scales, bias, sums, scales, count, heads, t):  # type: ignore[no-untyped-def]
    """Write what a product found for some tokens to where attention looks for it."""
    _in_long_vectors()
    if len(heads.low_TO):
        for i in range(count):
            row, total = heads.low_TO[t + i], sums[i]
            for o in range(len(row)):
                row[o] = to_bfloat16(_f32(total[o]) * scales[i] * output_scales[o] + bias[o])
        return
    num_heads, width = len(heads.queries_NTH), heads.queries_NTH.shape[2]
    for head in range(num_heads):
        for part in (0, 2):
            first = (part * num_heads + head) * width
            some, shifts = output_scales[first : first + width], bias[first : first + width]
            place_TH = heads.values_NTH[head] if part else heads.queries_NTH[head]
            for i in range(count):
                total, out, scale = sums[i, first : first + width], place_TH[t + i], scales[i]
                for h in range(width):
                    out[h] = _f32(total[h]) * scale * some[h] + shifts[h]
        for h in range(width):
            o, out = (num_heads + head) * width + h, heads.keys_NHT[head, h, t : t + count]
            for i in range(count):
                out[i] = _f32(sums[i, o]) * scales[i] * output_scales[o] + bias[o]


@compiled
def layers(net, x_TD, out_TD, heads, attended_TD, starts_S, places_S, states_LTD, counts, num_threads):  # type: ignore[no-untyped-def]
    """Compute all layers, together with the other threads that call this with the same arguments at the same time.

    There is a stage of queries, keys and values of the first layer; then, of each layer, one of attention and one of
    all that follows up to the queries, keys and values of the next layer.

    Args:
        net: the weights.
        x_TD: the output of the embeddings; overwritten.
        out_TD: for the output of the last layer: x_TD itself, or a row for each of `places_S`.
        heads: a place for queries, keys and values.
        attended_TD: a place for the output of attention.
        starts_S: where each sequence begins, and the end of the last.
        places_S: of each sequence the one token of the last layer that is wanted; or empty: all are.
        states_LTD: for the output of every layer; or empty.
        counts: as they come from `new_counts`.
        num_threads: for how many the work is cut; fewer may come.
    """
    num_layers, none, parts_of_heads = len(net.qkv), places_S[:0], _cut_by_cost(starts_S, net.num_heads, num_threads)
    # Whoever gets no memory raises an error here, before anybody waits for him.
    room_to_attend, room_to_feed = _room_to_attend(net, heads, attended_TD, starts_S), _room_to_feed(net, x_TD)
    for stage in range(2 * num_layers + 1):
        layer, is_attention = (stage - 1) // 2, stage % 2 == 1
        chosen_S = places_S if layer == num_layers - 1 else none
        rows_TD = out_TD if len(chosen_S) else x_TD
        num_parts = len(parts_of_heads) - 1 if is_attention else _num_parts(len(rows_TD), num_threads)
        taken, done, num_done = counts[stage].ctypes.data, counts[stage, 1:].ctypes.data, 0
        while True:
            part = _fetch_and_add(taken, 1)
            if part >= num_parts:
                break
            if is_attention:
                first, end = parts_of_heads[part], parts_of_heads[part + 1]
                _attend_heads(net, heads, attended_TD, starts_S, chosen_S, first, end, room_to_attend)
            else:
                first, end = _rows_of_part(part, num_parts, len(rows_TD))
                for i in range(first, min(end, len(chosen_S))):
                    rows_TD[i] = x_TD[chosen_S[i]]
                if stage > 0:
                    _feed(net, layer, rows_TD, attended_TD, first, end, room_to_feed)
                    if len(states_LTD):
                        states_LTD[layer, first:end] = rows_TD[first:end]
                if layer + 1 < num_layers:
                    _project(net, layer + 1, rows_TD, heads, first, end, room_to_feed)
            num_done += 1
        _fetch_and_add(done, num_done)
        _wait_for(done, num_parts)


@compiled
def _room_to_attend(net, heads, attended_TD, starts_S):  # type: ignore[no-untyped-def]
    longest, is_low, has_tiles = 0, len(heads.low_TO) > 0, len(net.tiles) > 0
    for s in range(len(starts_S) - 1):
        longest = max(longest, starts_S[s + 1] - starts_S[s])
    width, columns = attended_TD.shape[1] // net.num_heads, _whole(longest, 2 * _LANES)
    num_rows, lanes = 2 * _TILE_ROWS if is_low and has_tiles else _ROWS, _whole(width, 2 * _LANES)
    queries, scores = np.empty((_ROWS, width), np.float32), np.empty((num_rows, columns), np.float32)
    shares, results = np.empty((num_rows, columns), np.uint16), np.empty((num_rows, lanes), np.float32)
    # Of one head in bfloat16: what is multiplied together lies beside each other. The zeros are for widths in between.
    keys = np.zeros((lanes // 2, columns + _LANES if is_low else 0), np.uint32)
    values = np.zeros((columns // 2 if is_low else 0, lanes), np.uint32)
    return queries, keys, values, scores, shares, results, np.empty(num_rows, np.float32)


@compiled
def _attend_heads(net, heads, attended_TD, starts_S, places_S, first, end, room):  # type: ignore[no-untyped-def]
    """Compute some heads, counted from the first of the first sequence to the last of the last."""
    num_heads, is_low, has_tiles = net.num_heads, len(heads.low_TO) > 0, len(net.tiles) > 0
    if is_low and has_tiles:
        _set_tiles(net.tiles.ctypes.data)
    for number in range(first, end):
        s, head = divmod(number, num_heads)
        start, stop = starts_S[s], starts_S[s + 1]
        span = start, stop, start, stop, 0
        if len(places_S):
            span = start, stop, places_S[s], places_S[s] + 1, s - places_S[s]
        if is_low:
            _attend_low(net, heads.low_TO, head, span, room, attended_TD)
        else:
            _attend(net, heads, head, span, room, attended_TD)
    if is_low and has_tiles:
        _set_tiles(0)


@compiled
def _attend(net, heads, head, span, room, attended_TD):  # type: ignore[no-untyped-def]
    """Let some tokens of a sequence attend to all of it, with one head.

    Args:
        net: the weights.
        heads: queries, keys and values.
        head: which one.
        span: where the sequence starts and stops, where the tokens begin and end, and how many rows further on their
            results are written.
        room: from `_room_to_attend`.
        attended_TD: for the results.
    """
    _in_long_vectors()
    (start, stop, begins, ends, moved), (queries, _, _, scores, _, results, totals) = span, room
    width, length = heads.queries_NTH.shape[2], stop - start
    columns, lanes = _whole(length, _LANES), _whole(width, _LANES)
    keys_HT, values_TH = heads.keys_NHT[head, :, start:], heads.values_NTH[head, start:]
    for first in range(begins, ends, _ROWS):
        count = min(ends - first, _ROWS)
        for i in range(_ROWS):
            queries[i] = heads.queries_NTH[head, first + min(i, count - 1)]
        num_rows = _ROWS if count > 1 else 1
        _matrix(queries, num_rows, width, keys_HT, columns, scores)
        for i in range(count):
            row, seen = scores[i], min(length, first + i - start + 1) if net.is_causal else length
            totals[i] = _powers_of_two(row[:seen])
            for k in range(seen, length):
                row[k] = _f32(0)
        _matrix(scores, num_rows, length, values_TH, lanes, results)
        _share_out(results, totals, count, head, width, attended_TD[first + moved :])


@compiled
def _attend_low(net, low_TO, head, span, room, attended_TD):  # type: ignore[no-untyped-def]
    """Do the same in bfloat16. Rows after the last query are computed too, and not used."""
    _in_long_vectors()
    (start, stop, begins, ends, moved), (_, keys, values, scores, shares, results, totals) = span, room
    num_heads, has_tiles = net.num_heads, len(net.tiles) > 0
    width, length, lanes = attended_TD.shape[1] // num_heads, stop - start, results.shape[1]
    columns = _whole(length, _LOW_STEP)
    key, value, row_size = (num_heads + head) * width, (2 * num_heads + head) * width, low_TO.strides[0]
    if width % _LOW_STEP == 0:
        for t in range(0, length, _LANES):
            for h in range(0, width, _LOW_STEP):
                some, place = low_TO[start + t][key + h :], keys[h // 2][t:]
                _transpose(some.ctypes.data, row_size, place.ctypes.data, keys.strides[0])
    else:
        for t in range(length):
            some = low_TO[start + t][key : key + width]
            for h in range(0, width, 2):
                keys[h // 2, t] = _pair(some[h], some[h + 1] if h + 1 < width else np.uint16(0))
    for t in range(0, length, 2):  # the one after the last has a share of 0
        row, some, others = values[t // 2], low_TO[start + t][value:], low_TO[start + t + 1][value:]
        for h in range(width):
            row[h] = _pair(some[h], others[h])
    for first in range(begins, ends, len(scores)):
        count = min(ends - first, len(scores))
        _low_product(low_TO[first:, head * width :], count, lanes, keys, columns, scores, has_tiles)
        for i in range(count):
            seen = min(length, first + i - start + 1) if net.is_causal else length
            totals[i] = _low_powers_of_two(scores[i, :seen], shares[i, :columns])
        _low_product(shares, count, length, values, lanes, results, has_tiles)
        _share_out(results, totals, count, head, width, attended_TD[first + moved :])


@compiled
def _share_out(results, totals, count, head, width, attended_TD):  # type: ignore[no-untyped-def]
    for i in range(count):
        out, result, share = attended_TD[i][head * width : (head + 1) * width], results[i], _f32(1) / totals[i]
        for h in range(width):
            out[h] = result[h] * share


@compiled
def _low_product(x, num_rows, depth, w, lanes, out, has_tiles):  # type: ignore[no-untyped-def]
    """Multiply rows of x by w, in which two rows lie beside each other, both bfloat16; with tiles if there are any."""
    x_row, w_row, out_row = x.strides[0], w.strides[0], out.strides[0]
    pairs, steps = (depth + 1) // 2, (depth + _LOW_STEP - 1) // _LOW_STEP
    for lane in range(0, lanes, 2 * _LANES):
        inputs, weights, result = x.ctypes.data, w.ctypes.data + 4 * lane, out.ctypes.data + 4 * lane
        if num_rows == 1:
            _row_low(inputs, x_row, weights, w_row, pairs, 0, result, out_row)
        elif not has_tiles:
            _tile_low(inputs, x_row, weights, w_row, pairs, 0, result, out_row)
        elif num_rows <= _TILE_ROWS:
            _one_low_tile(inputs, x_row, weights, w_row, steps, 0, result, out_row)
        else:
            _two_low_tiles(inputs, x_row, weights, w_row, steps, 0, result, out_row)


@compiled
def _low_powers_of_two(row, out):  # type: ignore[no-untyped-def]
    """Write 2 to the power of what each number is above the largest in bfloat16, then zeros; returns their sum."""
    _in_long_vectors()
    largest, total = _largest(row), _f32(0)
    for i in range(len(row)):
        x = row[i] - largest
        x = x if x > _f32(-126) else _f32(-126)
        whole = np.floor(x + _f32(0.5))
        part = x - whole
        # 2^part to within 8e-5, a twentieth of what bfloat16 can tell apart.
        y = _f32(0.99992807) + part * (_f32(0.69326099) + part * (_f32(0.24261114) + part * _f32(0.05517165)))
        y *= _two_to_the(whole)
        total += y
        out[i] = to_bfloat16(y)
    out[len(row) :] = 0
    return total


@compiled
def _room_to_feed(net, x_TD):  # type: ignore[no-untyped-def]
    width, inner = x_TD.shape[1], net.up_scales.shape[1]
    low = np.full((_TOKENS_AT_ONCE, _whole(width, 4)), np.uint8(_ZERO))
    high, row = np.zeros((_TOKENS_AT_ONCE, _whole(inner, 4)), np.uint8), np.empty(inner, np.float32)
    sums_D = np.empty((_TOKENS_AT_ONCE, net.out_starts.shape[1]), np.int32)
    sums_I = np.empty((_TOKENS_AT_ONCE, net.up_starts.shape[1]), np.int32)
    sums_O = np.empty((_TOKENS_AT_ONCE, net.qkv_starts.shape[1]), np.int32)
    scales, ones = np.empty(_TOKENS_AT_ONCE, np.float32), np.ones(width, np.float32)
    return scales, ones, low, high, row, sums_D, sums_I, sums_O


@compiled
def _project(net, layer, x_TD, heads, first, end, room):  # type: ignore[no-untyped-def]
    """Compute queries, keys and values of up to _TOKENS_AT_ONCE tokens."""
    _in_long_vectors()
    (scales, _, low, _, _, _, _, sums), width, count = room, x_TD.shape[1], end - first
    for i in range(count):
        scales[i] = _quantize(x_TD[first + i], net.qkv_factors[layer], low[i, :width])
    _product(low, count, net.qkv[layer], net.qkv_starts[layer], sums, net.tiles)
    _divide(net.qkv_scales[layer], net.qkv_bias[layer], sums, scales, count, heads, first)


@compiled
def _feed(net, layer, x_TD, attended_TD, first, end, room):  # type: ignore[no-untyped-def]
    """Take up to _TOKENS_AT_ONCE tokens from the output of attention to the end of a layer."""
    _in_long_vectors()
    (scales, ones, low, high, row, sums_D, sums_I, _), width = room, x_TD.shape[1]
    count, inner = end - first, net.up_scales.shape[1]
    for i in range(count):
        scales[i] = _quantize(attended_TD[first + i], ones, low[i, :width])
    _product(low, count, net.out[layer], net.out_starts[layer], sums_D, net.tiles)
    for i in range(count):
        x, norms = x_TD[first + i], net.out_norms[layer]
        _add_and_normalize(
            x, sums_D[i], scales[i], net.out_scales[layer], net.out_bias[layer], norms[0], norms[1], net.eps
        )
        scales[i] = _quantize(x, net.up_factors[layer], low[i, :width])
    _product(low, count, net.up[layer], net.up_starts[layer], sums_I, net.tiles)
    for i in range(count):
        scales[i] = _activate_and_quantize(
            sums_I[i], scales[i], net.up_scales[layer], net.up_bias[layer], net.polynomial, row, high[i, :inner]
        )
    _product(high, count, net.down[layer], net.down_starts[layer], sums_D, net.tiles)
    for i in range(count):
        x, norms = x_TD[first + i], net.down_norms[layer]
        _add_and_normalize(
            x, sums_D[i], scales[i], net.down_scales[layer], net.down_bias[layer], norms[0], norms[1], net.eps
        )


@compiled
def _whole(count, size):  # type: ignore[no-untyped-def]
    """Return a count, rounded up to a multiple."""
    return (count + size - 1) // size * size


# From a network's weights to those of `layers`.


def prepare(blocks: Sequence[Any], factors: Sequence[tuple[Tensor, Tensor]]) -> Layers:
    """Quantize and pack the weights of a BERT's blocks."""
    act, width = blocks[0].act, blocks[0].head_width
    qkv = [_linear(block.qkv, some) for block, (some, _) in zip(blocks, factors, strict=True)]
    # Queries are scaled so that attention takes powers of two.
    scale = 1.4426950408889634 / width**0.5
    for _, _, scales_O, bias_O in qkv:
        scales_O[: len(scales_O) // 3] *= scale
        bias_O[: len(bias_O) // 3] *= scale
    out = [_linear(block.attention_out) for block in blocks]
    up = [_linear(block.up, some) for block, (_, some) in zip(blocks, factors, strict=True)]
    down = [_linear(block.down, after=act) for block in blocks]
    qkv_factors, up_factors = (np.stack([some.numpy() for some in each]) for each in zip(*factors, strict=True))
    return Layers._make([
        *_stacked(qkv), qkv_factors, *_stacked(out), _norms(block.attention_norm for block in blocks),
        *_stacked(up), up_factors, *_stacked(down), _norms(block.norm for block in blocks),
        np.zeros(0, np.float32) if act == "relu" else gelu_polynomial(act), _f32(blocks[0].norm.eps),
        blocks[0].num_heads, blocks[0].causal, tiles(),
    ])  # fmt: skip


def _linear(linear: Linear, factors_D: Tensor | None = None, after: str | None = None) -> list[NDArray[Any]]:
    """Return packed weights, where sums begin, scales and bias.

    Args:
        linear: the layer in float32.
        factors_D: by what its inputs are multiplied before they are quantized, and its weights divided; None: 1.
        after: the activation that its inputs have gone through. They are stored from the least value that it has on,
            with all of 0 to 255, not 128 of them for negative numbers.
    """
    weight_OD, bias_O = linear.weight.detach(), linear.bias.detach().float()
    values_OD, scales_O = quantize_weight(weight_OD if factors_D is None else weight_OD / factors_D)
    totals_O = values_OD.sum(1, dtype=torch.int32)
    if after is None:
        starts_O = -_ZERO * totals_O
    else:
        starts_O = torch.zeros_like(totals_O)
        bias_O = bias_O - (0 if after == "relu" else _GELU_LEAST) * totals_O * scales_O
    weights, starts = _packed(values_OD.numpy()), np.zeros(-(-len(starts_O) // _WIDE) * _WIDE, np.int32)
    starts[: len(starts_O)] = starts_O.numpy()
    return [weights, starts, scales_O.numpy().copy(), bias_O.numpy().copy()]


def _packed(values_OD: NDArray[np.int8]) -> NDArray[np.int8]:
    """Reorder a matrix to [O / 64, D / 4, 64, 4], or half as wide: for some outputs, the weights of four inputs."""
    outputs, inputs = values_OD.shape
    padded = np.zeros((-(-outputs // _WIDE) * _WIDE, -(-inputs // 4) * 4), np.int8)
    padded[:outputs, :inputs] = values_OD
    return np.ascontiguousarray(padded.reshape(-1, _WIDE, padded.shape[1] // 4, 4).transpose(0, 2, 1, 3))


def _stacked(layers: Sequence[Sequence[NDArray[Any]]]) -> list[NDArray[Any]]:
    """Put the arrays of all layers together, each beginning where a line of the cache does."""
    found = []
    for each in zip(*layers, strict=True):
        size = len(each) * each[0].nbytes
        room = np.empty(size + 64, np.uint8)
        first = -room.ctypes.data % 64
        whole = room[first : first + size].view(each[0].dtype).reshape(len(each), *each[0].shape)
        found.append(np.stack(each, out=whole))
    return found


def _norms(norms: Any) -> NDArray[np.float32]:
    return np.stack([np.stack([norm.weight.detach().float(), norm.bias.detach().float()]) for norm in norms])


def gelu_polynomial(name: str) -> NDArray[np.float32]:
    """Return the odd part of a gelu divided by x, as a polynomial of 2 (x / end)^2 - 1."""
    x = np.sqrt((np.cos(np.linspace(0, np.pi, 4_001)[:-1]) + 1) / 2) * _GELU_END
    wanted = 2 * activate(torch.from_numpy(x), name).numpy() / x - 1
    u = 2 * (x / _GELU_END) ** 2 - 1
    fitted = np.polynomial.chebyshev.chebfit(u, wanted / x, _GELU_DEGREE, w=x * x)
    return np.polynomial.chebyshev.cheb2poly(fitted).astype(np.float32)
