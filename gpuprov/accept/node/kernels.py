"""The kernels of an acceptance run as PTX, which the driver compiles for the GPU.

`fill` writes words that are a hash of their index, `check` reads and compares them, `checksum` reads all,
`copy` reads and writes. Each handles 16 bytes at a time in a grid-stride loop.
"""

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterable

BLOCK = 512
"""Threads in a block."""
UNROLL = 4
"""Vectors of 16 bytes that a thread handles in one turn of `checksum` and `copy`."""

_HEAD = """.version 6.4
.target sm_70
.address_size 64
"""

_PLACE = """    mov.u32 %r1, %ctaid.x;
    mov.u32 %r2, %ntid.x;
    mov.u32 %r3, %tid.x;
    mov.u32 %r4, %nctaid.x;
    cvt.u64.u32 %rd3, %r3;
    mad.wide.u32 %rd3, %r1, %r2, %rd3;
    mul.wide.u32 %rd4, %r4, %r2;
"""

_REGISTERS = """    .reg .pred %p<8>;
    .reg .b32 %r<64>;
    .reg .b64 %rd<32>;
"""

_PATTERN = """    .param .u64 memory, .param .u64 vectors, .param .u32 seed, .param .u32 flip,
    .param .u32 base_even, .param .u32 mask_even, .param .u32 base_odd, .param .u32 mask_odd"""

_LOAD_PATTERN = """    ld.param.u64 %rd1, [memory];
    cvta.to.global.u64 %rd1, %rd1;
    ld.param.u64 %rd2, [vectors];
    ld.param.u32 %r10, [seed];
    ld.param.u32 %r11, [flip];
    ld.param.u32 %r12, [base_even];
    ld.param.u32 %r13, [mask_even];
    ld.param.u32 %r14, [base_odd];
    ld.param.u32 %r15, [mask_odd];
"""


def _words() -> "Iterable[str]":
    """Yield PTX that puts the four words of vector %rd3 into %r20 to %r23."""
    yield "    cvt.u32.u64 %r5, %rd3;\n    shl.b32 %r5, %r5, 2;\n"
    for place in range(4):
        word = "%r{}".format(20 + place)
        base, mask = ("%r12", "%r13") if place % 2 == 0 else ("%r14", "%r15")
        yield (
            "    add.u32 {0}, %r5, {1};\n    xor.b32 {0}, {0}, %r10;\n"
            "    shr.u32 %r6, {0}, 16;\n    xor.b32 {0}, {0}, %r6;\n    mul.lo.u32 {0}, {0}, 0x7feb352d;\n"
            "    shr.u32 %r6, {0}, 15;\n    xor.b32 {0}, {0}, %r6;\n    mul.lo.u32 {0}, {0}, 0x846ca68b;\n"
            "    shr.u32 %r6, {0}, 16;\n    xor.b32 {0}, {0}, %r6;\n"
            "    and.b32 {0}, {0}, {2};\n    or.b32 {0}, {0}, {3};\n    xor.b32 {0}, {0}, %r11;\n"
        ).format(word, place, mask, base)


def word(place: int, seed: int, flip: int, base: int, mask: int) -> int:
    """Return the 32-bit word that `fill` writes at index `place`, computed on the host.

    Args:
        base, mask: those of even or of odd words, as fits `place`.
    """
    value = ((place & 0xFFFFFFFF) ^ seed) & 0xFFFFFFFF
    value ^= value >> 16
    value = value * 0x7FEB352D & 0xFFFFFFFF
    value ^= value >> 15
    value = value * 0x846CA68B & 0xFFFFFFFF
    value ^= value >> 16
    return (value & mask | base) ^ flip


def _fill() -> str:
    """Return the PTX of the kernel `fill`."""
    return (
        ".visible .entry fill(\n" + _PATTERN + ")\n{\n" + _REGISTERS + _LOAD_PATTERN + _PLACE + "next:\n"
        "    setp.ge.u64 %p1, %rd3, %rd2;\n    @%p1 bra done;\n"
        + "".join(_words())
        + "    shl.b64 %rd5, %rd3, 4;\n    add.u64 %rd5, %rd1, %rd5;\n"
        "    st.global.v4.u32 [%rd5], {%r20, %r21, %r22, %r23};\n"
        "    add.u64 %rd3, %rd3, %rd4;\n    bra next;\ndone:\n    ret;\n}\n"
    )


def _check() -> str:
    """Return the PTX of the kernel `check`.

    Its result is the number of wrong words (u64), their lowest vector (u64) and all wrong bits (u32).
    """
    compare = "".join(
        "    xor.b32 %r{0}, %r{0}, %r{1};\n    or.b32 %r31, %r31, %r{0};\n"
        "    setp.ne.u32 %p2, %r{0}, 0;\n    selp.u32 %r7, 1, 0, %p2;\n    add.u32 %r30, %r30, %r7;\n".format(
            20 + place, 24 + place
        )
        for place in range(4)
    )
    return (
        ".visible .entry check(\n"
        + _PATTERN
        + ", .param .u64 result)\n{\n"
        + _REGISTERS
        + _LOAD_PATTERN
        + _PLACE
        + "    ld.param.u64 %rd8, [result];\n    cvta.to.global.u64 %rd8, %rd8;\nnext:\n"
        "    setp.ge.u64 %p1, %rd3, %rd2;\n    @%p1 bra done;\n"
        "    shl.b64 %rd5, %rd3, 4;\n    add.u64 %rd5, %rd1, %rd5;\n"
        "    ld.global.v4.u32 {%r24, %r25, %r26, %r27}, [%rd5];\n"
        + "".join(_words())
        + "    mov.u32 %r30, 0;\n    mov.u32 %r31, 0;\n"
        + compare
        + "    setp.eq.u32 %p3, %r30, 0;\n    @%p3 bra same;\n"
        "    cvt.u64.u32 %rd6, %r30;\n    atom.global.add.u64 %rd7, [%rd8], %rd6;\n"
        "    atom.global.min.u64 %rd7, [%rd8+8], %rd3;\n"
        "    atom.global.or.b32 %r7, [%rd8+16], %r31;\nsame:\n"
        "    add.u64 %rd3, %rd3, %rd4;\n    bra next;\ndone:\n    ret;\n}\n"
    )


_STRIDES = """    shl.b64 %rd6, %rd4, 4;
    mul.lo.u64 %rd7, %rd4, {};
""".format(UNROLL - 1)
"""PTX for %rd6: bytes between a thread's vectors, and %rd7: vectors from a thread's first to its last of one
turn.
"""

_TWO_POINTERS = """    ld.param.u64 %rd1, [memory];
    cvta.to.global.u64 %rd1, %rd1;
    ld.param.u64 %rd2, [vectors];
    ld.param.u64 %rd8, [{0}];
    cvta.to.global.u64 %rd8, %rd8;
"""

_MORE = """next:
    add.u64 %rd9, %rd3, %rd7;
    setp.ge.u64 %p1, %rd9, %rd2;
    @%p1 bra rest;
"""
_AGAIN = """    add.u64 %rd3, %rd9, %rd4;
    bra next;
rest:
    setp.ge.u64 %p2, %rd3, %rd2;
    @%p2 bra done;
"""
_END = """    add.u64 %rd3, %rd3, %rd4;
    bra rest;
done:
"""


def _vectors(line: str, pointer: str, turns: int) -> str:
    """Return `line` for four registers at a time, from %r20.

    Advance the pointer after each if `turns` is above 1.
    """
    step = "    add.u64 {0}, {0}, %rd6;\n".format(pointer) if turns > 1 else ""
    registers = (
        "{{%r{}, %r{}, %r{}, %r{}}}".format(*range(20 + 4 * turn, 24 + 4 * turn)) for turn in range(turns)
    )
    return "".join("    " + line.format(four, pointer) + ";\n" + step for four in registers)


def _load(turns: int) -> str:
    """Return PTX that loads vectors at %rd5 into registers from %r20."""
    return _vectors("ld.global.cs.v4.u32 {0}, [{1}]", "%rd5", turns)


def _store(turns: int) -> str:
    """Return PTX that stores registers from %r20 at %rd11."""
    return _vectors("st.global.cs.v4.u32 [{1}], {0}", "%rd11", turns)


def _mix(turns: int) -> str:
    """Return PTX that adds the loaded words to %r8 by exclusive or."""
    return "".join("    xor.b32 %r8, %r8, %r{};\n".format(20 + each) for each in range(4 * turns))


def _entry(name: str, other: str) -> str:
    """Return the PTX of a kernel up to its loop, with `memory` and one more pointer as parameters.

    Args:
        other: name of that pointer.
    """
    head = ".visible .entry {}(\n    .param .u64 memory, .param .u64 vectors, .param .u64 {})\n{{\n"
    return head.format(name, other) + _REGISTERS + _TWO_POINTERS.format(other) + _PLACE + _STRIDES


def _checksum() -> str:
    """Return the PTX of the kernel `checksum`."""
    place = "    shl.b64 %rd5, %rd3, 4;\n    add.u64 %rd5, %rd1, %rd5;\n"
    loop = _MORE + place + _load(UNROLL) + _mix(UNROLL) + _AGAIN + place + _load(1) + _mix(1) + _END
    last = "    atom.global.xor.b32 %r9, [%rd8], %r8;\n    ret;\n}\n"
    return _entry("checksum", "result") + "    mov.u32 %r8, 0;\n" + loop + last


def _copy() -> str:
    """Return the PTX of the kernel `copy`."""
    place = "    shl.b64 %rd10, %rd3, 4;\n    add.u64 %rd5, %rd1, %rd10;\n    add.u64 %rd11, %rd8, %rd10;\n"
    loop = _MORE + place + _load(UNROLL) + _store(UNROLL) + _AGAIN + place + _load(1) + _store(1) + _END
    return _entry("copy", "to") + loop + "    ret;\n}\n"


def ptx() -> str:
    """Return all kernels as one PTX module."""
    return _HEAD + _fill() + _check() + _checksum() + _copy()
