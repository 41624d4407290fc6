"""Builds the CPU library with CMake as part of the package; everything else is in pyproject.toml.

The library has a plain C interface and is loaded by ctypes, so one wheel a platform serves every
Python. It is optional: without CMake or a compiler the package installs without it, and the MLX
backend does the work.
"""

import shutil
import subprocess
from pathlib import Path

from setuptools import Extension, setup
from setuptools.command.bdist_wheel import bdist_wheel
from setuptools.command.build_ext import build_ext
from setuptools.errors import CompileError

SOURCE = Path("gguf_hybrid", "cpu")
SUFFIXES = {".cpp", ".h", ".inl", ".txt"}


class BuildLibrary(build_ext):
    """Runs CMake where setuptools would run a compiler."""

    def get_ext_filename(self, fullname: str) -> str:
        """libggh.so or libggh.dylib: no Python version in the name."""
        suffix = ".dylib" if self.plat_name.startswith("macosx") else ".so"
        return str(Path(*fullname.split("."))) + suffix

    def get_export_symbols(self, ext: Extension) -> list[str]:
        return []

    def build_extension(self, ext: Extension) -> None:
        cmake = shutil.which("cmake")
        if cmake is None:
            raise CompileError("the CPU library needs cmake; it will not be part of this install")
        target = Path(self.get_ext_fullpath(ext.name)).resolve().parent
        build = Path(self.build_temp).resolve() / "ggh"
        build.mkdir(parents=True, exist_ok=True)
        generator = ["-G", "Ninja"] if shutil.which("ninja") else []
        configure = [cmake, "-S", str(SOURCE.resolve()), "-B", str(build), *generator]
        install = [cmake, "--install", str(build), "--prefix", str(target), "--strip"]
        try:
            subprocess.run([*configure, "-DCMAKE_BUILD_TYPE=Release"], check=True)
            subprocess.run([cmake, "--build", str(build), "--parallel"], check=True)
            subprocess.run(install, check=True)
        except subprocess.CalledProcessError as error:
            raise CompileError(f"the CPU library was not built: {error}") from error


class PlatformWheel(bdist_wheel):
    """A wheel for one platform and any Python 3."""

    def get_tag(self) -> tuple[str, str, str]:
        return "py3", "none", super().get_tag()[2]


LIBRARY = Extension(
    "gguf_hybrid.cpu.libggh",
    sources=[],
    depends=sorted(str(path) for path in SOURCE.rglob("*") if path.suffix in SUFFIXES),
    optional=True,
)

setup(
    ext_modules=[LIBRARY],
    exclude_package_data={"gguf_hybrid.cpu": ["csrc/*", "CMakeLists.txt"]},  # sdist only
    cmdclass={"build_ext": BuildLibrary, "bdist_wheel": PlatformWheel},
)
