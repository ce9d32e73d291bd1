"""What differs between the languages of the C family: plain data."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import field

from .. import ir
from ..records import record


@record
class Dialect:
    """One language.

    The text of a unit uses the types ``i8`` to ``i64``, ``u8`` to ``u64``, ``f32``, ``f64`` and
    ``bool``, functions ``load_<type>(address)``, ``store_<type>(address, value)``,
    ``bits_from_<float>(value)`` and ``<float>_from_bits(bits)``, and in atomic updates
    ``compare_exchange_u32(word, expected, desired)`` and ``compare_exchange_u64``. The preludes
    define them.

    Attributes
    ----------
    name : str
        What errors call it.
    prelude : str
        Beginning of every text.
    prelude_f64 : str
        What follows where the unit uses float64.
    prelude_atomics_64 : str
        What follows where the unit updates 64-bit elements atomically.
    function : str
        Qualifiers of the helper functions.
    space : str
        Qualifier of pointers into arrays, with a blank behind it, or empty.
    words : str
        Declaration of the type of the slots; ``{count}`` is their number.
    signature : str
        Head of the entry function; ``{entry}`` is its name, ``{arrays}`` the parameters for arrays,
        each with a comma behind it.
    slot : str
        One slot, an ``u64``; ``{number}`` is its number.
    positions : str
        What stands before the block that runs one position, given the number ``positions``; the
        block finds its own number in ``position``.
    stop, done : str
        Leave the entry function: after a violation, at its end.
    has_array_parameters : bool
        Whether arrays are parameters of the function; else their addresses are in slots.
    long_suffix : str
        Suffix of 64-bit literals.
    math : callable
        From the name of a function of C's ``math.h``, without a suffix for the type, and the type
        of its operands to the name in this language.
    nan_passes_by : frozenset of str
        Functions of one operand that a NaN does not go through, but beside: compilers get it wrong.
    ordered_loop : str
        What stands before a loop that carries floats, where compilers would reorder its sums.
    has_atomics : bool
        Whether other positions run at the same time; else an update reads and writes.
    atomics : mapping of (str, str) to str
        Updates that need no loop, by operation and type: an expression that updates ``*word`` by
        ``value`` and gives what was there before. Integers of both signs use ``u32`` and ``u64``.
    """

    name: str
    prelude: str
    function: str
    signature: str
    slot: str
    positions: str
    math: Callable[[str, ir.DType], str]
    prelude_f64: str = ""
    prelude_atomics_64: str = ""
    space: str = ""
    words: str = ""
    stop: str = "return;"
    done: str = ""
    has_array_parameters: bool = False
    long_suffix: str = "LL"
    nan_passes_by: frozenset[str] = frozenset()
    ordered_loop: str = ""
    has_atomics: bool = True
    atomics: Mapping[tuple[str, str], str] = field(default_factory=dict)


def _with_suffix(name: str, dtype: ir.DType) -> str:
    return f"{name}f" if dtype is ir.f32 else name


def _without_suffix(name: str, dtype: ir.DType) -> str:
    return name


_INTEGERS = ("i8", "u8", "i16", "u16", "i32", "u32", "i64", "u64")


def _for_each_type(macro: str) -> str:
    return "\n".join(f"{macro}({name})" for name in (*_INTEGERS, "f32"))


C99 = Dialect(
    name="C",
    prelude="""\
#include <math.h>
#include <stdbool.h>
#include <stdint.h>
#include <string.h>
typedef int8_t i8; typedef int16_t i16; typedef int32_t i32; typedef int64_t i64;
typedef uint8_t u8; typedef uint16_t u16; typedef uint32_t u32; typedef uint64_t u64;
typedef float f32; typedef double f64;
#define ACCESS(type) \\
    static inline type load_##type(const u8 *address) \\
    { type value; memcpy(&value, address, sizeof value); return value; } \\
    static inline void store_##type(u8 *address, type value) \\
    { memcpy(address, &value, sizeof value); }
"""
    + _for_each_type("ACCESS")
    + """
ACCESS(f64)
#define CONVERT(from, to, name) \\
    static inline to name(from given) \\
    { to value; memcpy(&value, &given, sizeof value); return value; }
CONVERT(u32, f32, f32_from_bits)
CONVERT(f32, u32, bits_from_f32)
CONVERT(u64, f64, f64_from_bits)
CONVERT(f64, u64, bits_from_f64)
""",
    function="static inline",
    signature="i64 {entry}({arrays}const u64 *slots, i64 begin, i64 end)",
    slot="slots[{number}]",
    positions="""\
if (begin < 0) begin = 0;
if (end > positions) end = positions;
for (i64 position = begin; position < end; ++position)""",
    stop="return 1;",
    done="return 0;",
    math=_with_suffix,
    has_atomics=False,
)
"""ISO C, for any system compiler. Elements may be misaligned. One thread runs a launch."""

OPENCL_C = Dialect(
    name="OpenCL C",
    prelude="""\
#pragma OPENCL FP_CONTRACT OFF
typedef char i8; typedef short i16; typedef int i32; typedef long i64;
typedef uchar u8; typedef ushort u16; typedef uint u32; typedef ulong u64;
typedef float f32;
#define f32_from_bits as_float
#define bits_from_f32 as_uint
#define ACCESS(type) \\
    static inline type load_##type(__global const u8 *address) \\
    { return *(__global const type *)address; } \\
    static inline void store_##type(__global u8 *address, type value) \\
    { *(__global type *)address = value; }
"""
    + _for_each_type("ACCESS")
    + "\n#define compare_exchange_u32 atomic_cmpxchg\n",
    prelude_f64="""\
#pragma OPENCL EXTENSION cl_khr_fp64 : enable
typedef double f64;
#define f64_from_bits as_double
#define bits_from_f64 as_ulong
ACCESS(f64)
""",
    prelude_atomics_64="""\
#pragma OPENCL EXTENSION cl_khr_int64_base_atomics : enable
#define compare_exchange_u64 atom_cmpxchg
""",
    function="static inline",
    space="__global ",
    words="typedef struct {{ u64 slot[{count}]; }} words_t;",
    signature="__kernel void {entry}({arrays}const words_t words)",
    slot="words.slot[{number}]",
    positions="const i64 position = (i64)get_global_id(0);\nif (position < positions)",
    has_array_parameters=True,
    long_suffix="L",
    # PoCL evaluates them as it compiles, and makes a number of a NaN that it knows.
    nan_passes_by=frozenset({"exp", "exp2", "expm1", "sinh", "tanh"}),
    # Intel's compiler for processors makes several sums of one, against the standard.
    ordered_loop="#pragma clang loop vectorize(disable) interleave(disable)",
    math=_without_suffix,
    atomics={
        (operation, f"u{bits}"): f"{prefix}_{function}(word, value)"
        for operation, function in (
            ("add", "add"), ("subtract", "sub"), ("bit_and", "and"), ("bit_or", "or"),
            ("bit_xor", "xor"),
        )
        for bits, prefix in ((32, "atomic"), (64, "atom"))
        # The bits of 64-bit words take a second extension, which fewer devices have.
        if bits == 32 or not operation.startswith("bit")
    },
)  # fmt: skip
"""OpenCL C 1.2. Elements must be aligned."""

CUDA_CPP = Dialect(
    name="CUDA C++",
    prelude="""\
typedef signed char i8; typedef short i16; typedef int i32; typedef long long i64;
typedef unsigned char u8; typedef unsigned short u16; typedef unsigned int u32;
typedef unsigned long long u64;
typedef float f32; typedef double f64;
#define f32_from_bits __uint_as_float
#define bits_from_f32 __float_as_uint
#define f64_from_bits(bits) __longlong_as_double((i64)(bits))
#define bits_from_f64(value) ((u64)__double_as_longlong(value))
#define ACCESS(type) \\
    static __device__ inline type load_##type(const u8 *address) \\
    { return *(const type *)address; } \\
    static __device__ inline void store_##type(u8 *address, type value) \\
    { *(type *)address = value; }
"""
    + _for_each_type("ACCESS")
    + """
ACCESS(f64)
#define compare_exchange_u32(word, expected, desired) atomicCAS((u32 *)(word), expected, desired)
#define compare_exchange_u64(word, expected, desired) atomicCAS((u64 *)(word), expected, desired)
""",
    function="static __device__ inline",
    words="struct words_t {{ u64 slot[{count}]; }};",
    signature='extern "C" __global__ void {entry}({arrays}const words_t words)',
    slot="words.slot[{number}]",
    positions="""\
for (i64 position = (i64)blockIdx.x * blockDim.x + threadIdx.x; position < positions; \
position += (i64)gridDim.x * blockDim.x)""",
    math=_with_suffix,
    atomics={
        (operation, name): f"atomic{function}(({name} *)word, {value})"
        for operation, function, value in (
            ("add", "Add", "value"), ("subtract", "Add", "0 - value"), ("bit_and", "And", "value"),
            ("bit_or", "Or", "value"), ("bit_xor", "Xor", "value"),
        )
        for name in ("u32", "u64")
    },
)  # fmt: skip
"""CUDA C++ as NVRTC takes it, without any header. Elements must be aligned."""
