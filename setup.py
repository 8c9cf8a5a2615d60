"""Builds the C++ kernels: one source compiled for several instruction sets, of which the library takes the best."""

import platform
from pathlib import Path

from setuptools import Extension, setup
from setuptools.command.build_ext import build_ext

SOURCES = Path("csrc")
COMMON = [str(SOURCES / name) for name in ("api.cpp", "moving.cpp", "packing.cpp", "threads.cpp")]
VARIANT = str(SOURCES / "variant.cpp")
HEADERS = sorted(map(str, SOURCES.glob("*.h")))
FLAGS = ["-std=c++17", "-O3", "-fopenmp", "-fvisibility=hidden", "-Wall", "-Wextra"]
FLAGS += ["-Wno-uninitialized", "-Wno-maybe-uninitialized"]  # which GCC 12 finds in its own headers
# Not where the compiler sees fit: a sum is to be the same bits in every function that makes it.
FLAGS += ["-ffp-contract=off"]
VARIANTS = {"portable": []}
if platform.machine() in ("x86_64", "AMD64"):
    VARIANTS["avx2"] = ["-mavx2", "-mfma", "-mf16c"]
    VARIANTS["avx512"] = ["-mavx2", "-mfma", "-mf16c", "-mavx512f", "-mavx512bw", "-mavx512dq", "-mavx512vl"]
    VARIANTS["avx512"] += ["-mavx512vnni", "-mprefer-vector-width=512"]
    VARIANTS["amx"] = [*VARIANTS["avx512"], "-mamx-tile", "-mamx-int8"]


class BuildKernels(build_ext):
    """Compiles `variant.cpp` once per instruction set. Without a C++ compiler the package works, only slower."""

    def build_extension(self, ext: Extension) -> None:
        folder = Path(self.build_temp)
        objects = self.compiler.compile(COMMON, str(folder), extra_postargs=FLAGS)
        for name, flags in VARIANTS.items():
            arguments = [*FLAGS, *flags, f"-DSIMD_VARIANT={name}"]
            objects += self.compiler.compile([VARIANT], str(folder / name), extra_postargs=arguments)
        target = Path(self.get_ext_fullpath(ext.name))
        target.parent.mkdir(parents=True, exist_ok=True)
        self.compiler.link_shared_object(
            objects, str(target), extra_postargs=["-fopenmp"], target_lang="c++", build_temp=str(folder)
        )


setup(
    ext_modules=[Extension("csrc.kernels", [*COMMON, VARIANT], depends=HEADERS, optional=True)],
    cmdclass={"build_ext": BuildKernels},
)
