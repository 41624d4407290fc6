"""Runs kernel bodies on the CPU: the test bench for machines without a GPU.

A body is compiled with a C++ compiler against ``host.h``, where the lanes of a threadgroup are
coroutines that meet at barriers and simd operations. Slow by design; meant for small grids.
"""

import ctypes
import hashlib
import shutil
import subprocess
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy.typing as npt

from .kernel import Body, Constants

Array = npt.NDArray[Any]
Argument = Array | int

FLAGS = ("-std=c++20", "-O1", "-shared", "-fPIC", "-fno-strict-aliasing", "-w")


class Deadlock(Exception):
    """Lanes of a threadgroup wait at collectives that other lanes never reach."""


def compiler() -> str | None:
    """A C++ compiler with ``_Float16``, if there is one."""
    return shutil.which("g++") or shutil.which("clang++")


class Function:
    """A compiled body. ``launch`` takes addresses and ints, as ``driver.Function`` does."""

    def __init__(self, body: Body, constants: Constants) -> None:
        self._body = body
        self._run = ctypes.CDLL(str(library(body.host(constants)))).run

    def launch(self, grid: tuple[int, int, int], n_lanes: int, *arguments: int) -> None:
        """Raises Deadlock."""
        assert len(arguments) == len(self._body.arguments), self._body.name
        values = [ctypes.c_int(a) for a in arguments]
        packed = (ctypes.c_void_p * len(values))(
            *(
                ctypes.addressof(value) if p.kind == "int" else address
                for p, value, address in zip(self._body.arguments, values, arguments, strict=True)
            )
        )
        if self._run(packed, (ctypes.c_uint * 3)(*grid), ctypes.c_uint(n_lanes)):
            raise Deadlock(f"{self._body.name}: lanes wait for each other")


def run(
    body: Body,
    constants: Constants,
    arguments: Sequence[Argument],
    grid: tuple[int, int, int],
    n_lanes: int,
) -> None:
    """Run the body over ``grid`` threadgroups of ``n_lanes``; output arrays are written in place.

    ``arguments`` in the order of ``Body.arguments``: C-contiguous arrays, and ints for values.
    """
    addresses = [a if isinstance(a, int) else a.ctypes.data for a in arguments]
    Function(body, constants).launch(grid, n_lanes, *addresses)


def library(source: str) -> Path:
    """The compiled source, kept in the temporary folder under the hash of its source."""
    folder = Path(tempfile.gettempdir()) / "gguf-hybrid-shim"
    folder.mkdir(exist_ok=True)
    target = folder / f"{hashlib.sha256(source.encode()).hexdigest()[:24]}.so"
    if not target.exists():
        program = compiler()
        assert program is not None
        with tempfile.TemporaryDirectory(dir=folder) as build:
            code = Path(build) / "kernel.cpp"
            code.write_text(source)
            built = Path(build) / "kernel.so"
            subprocess.run([program, *FLAGS, str(code), "-o", str(built)], check=True)
            built.replace(target)
    return target
