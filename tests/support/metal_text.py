"""The text that Metal would get: as MLX writes it, checked as far as that goes without Metal.

MLX can record a Metal kernel in an exported function on machines without Metal, and with it the
whole source. That source is checked for words and address spaces; where ``libclang`` is installed
(``pip install libclang``) it is also parsed as C++ with Metal's address spaces and built-ins.
"""

import re
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import mlx.core as mx

SPACES = ("device", "thread", "threadgroup", "in_threadgroup", "constant")
TYPES = r"float4|float|half|int|uint4|uint|uchar|ushort|char|size_t|Unit"
FOREIGN = (
    r"__\w+|std::|asm|shim|simd_mma|atomic_add|double|long|virtual|throw|try|new|goto|"
    r"dynamic_cast|typeid|static|\[[&=]\]"
)
"""Words of other targets, and of C++ that MSL lacks."""

PRELUDE = """
#define device __attribute__((address_space(1)))
#define constant __attribute__((address_space(2)))
#define threadgroup static __attribute__((address_space(3)))
#define thread
typedef unsigned int uint; typedef unsigned short ushort; typedef unsigned char uchar;
typedef unsigned char uint8_t; typedef int int32_t; typedef unsigned int uint32_t;
typedef unsigned long size_t; typedef _Float16 half; typedef _Float16 float16_t;
typedef float float4 __attribute__((ext_vector_type(4)));
typedef uint uint4 __attribute__((ext_vector_type(4)));
typedef uint uint3 __attribute__((ext_vector_type(3)));
typedef signed char char4 __attribute__((ext_vector_type(4)));
template <class T> T simd_sum(T); template <class T> T simd_max(T);
template <class T> T simd_shuffle_xor(T, ushort); template <class D, class S> D as_type(S);
float exp(float); float log(float); float rsqrt(float); float fabs(float); float fmax(float, float);
float rint(float); float clamp(float, float, float); int min(int, int); int max(int, int);
enum class mem_flags { mem_none, mem_threadgroup, mem_device };
void threadgroup_barrier(mem_flags);
"""


def recorded(make: Callable[[], Any]) -> list[str]:
    """Sources of the Metal kernels that ``make`` calls, written by MLX itself."""
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "function.mlxfn"
        mx.export_function(str(path), lambda x: (make(), x)[1], mx.zeros(1))
        return sources(path.read_bytes())


def sources(exported: bytes) -> list[str]:
    """Length-prefixed sources in an exported function: name, source, launch."""
    found = []
    for at in (m.end() for m in re.finditer(rb"CustomKernel", exported)):
        (name_size,) = (int.from_bytes(exported[at : at + 8], "little"),)
        at += 8 + name_size
        size = int.from_bytes(exported[at : at + 8], "little")
        found.append(exported[at + 8 : at + 8 + size].decode())
    return found


def faults(source: str) -> list[str]:
    """What is wrong with a Metal source, as far as can be read off it."""
    code = re.sub(r"//.*|#include.*|using namespace.*", "", source)
    code = re.sub(r"#define (\w+).*", "", code)
    found = [f"foreign word {m[0]}" for m in re.finditer(rf"(?<!\w)({FOREIGN})(?!\w)", code)]
    for m in re.finditer(rf"\b({TYPES})\s*\*", code):
        start = max(code.rfind(c, 0, m.start()) for c in "(,;{}=")
        if not set(SPACES) & set(re.findall(r"\w+", code[start : m.start()])):
            found.append(f"pointer without address space: {code[start : m.end() + 12]!r}")
    for m in re.finditer(r"\(&\w+\)\[|\b[A-Z]\w+& \w+", code):
        start = max(code.rfind(c, 0, m.start()) for c in "(,;{}*")
        if not set(SPACES) & set(re.findall(r"\w+", code[start : m.start()])):
            found.append(f"reference without address space: {code[start : m.end()]!r}")
    return found


def parsed(source: str) -> list[str] | None:
    """Errors of a parse with address spaces; None where libclang is not installed."""
    try:
        from clang import cindex
    except ImportError:
        return None
    code = PRELUDE + re.sub(r"#include.*|using namespace.*", "", source)
    code = code.replace("[[kernel]]", "")
    code = re.sub(r" \[\[\w+(\(\d+\))?\]\]", "", code)
    options = ["-x", "c++", "-std=c++17", "-nostdinc", "-Wno-everything"]
    unit = cindex.Index.create().parse("kernel.cpp", options, [("kernel.cpp", code)])
    return [str(d) for d in unit.diagnostics if d.severity >= cindex.Diagnostic.Error]
