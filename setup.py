"""What pyproject.toml cannot say: the native kernels are compiled before the package is put together."""

from __future__ import annotations

import sys
from pathlib import Path

from setuptools import Distribution, setup
from setuptools.command.bdist_wheel import bdist_wheel
from setuptools.command.build_py import build_py

sys.path.insert(0, str(Path(__file__).parent))  # an isolated build starts elsewhere

from stoker.kernels.native import build


def compile_kernels() -> None:
    if build.main() != 0:
        print("going on without them: plain torch kernels will be used", file=sys.stderr)


class BuildWithKernels(build_py):
    def run(self) -> None:
        compile_kernels()
        super().run()


class KernelDistribution(Distribution):
    """A wheel with the library in it fits one kind of machine, one without fits all."""

    def has_ext_modules(self) -> bool:
        return build.library_path().exists()


class WheelForAnyPython(bdist_wheel):
    """The library knows nothing of Python, so any version will do."""

    def finalize_options(self) -> None:
        compile_kernels()  # whether there is one is asked now
        super().finalize_options()

    def get_tag(self) -> tuple[str, str, str]:
        tag = super().get_tag()
        return tag if self.root_is_pure else ("py3", "none", tag[2])


setup(distclass=KernelDistribution, cmdclass={"build_py": BuildWithKernels, "bdist_wheel": WheelForAnyPython})
