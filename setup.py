"""The part of the build that pyproject.toml cannot say."""

from setuptools import Extension, setup

FOLDER = "streaming_core/reading"

setup(
    ext_modules=[
        Extension(
            "streaming_core.reading._native",
            sources=[f"{FOLDER}/{name}.c" for name in ("_native", "_batch", "_pool", "_fill")],
            depends=[f"{FOLDER}/{name}.h" for name in ("_batch", "_pool", "_fill")],
            extra_compile_args=["-std=c11", "-O2", "-pthread", "-fvisibility=hidden"],
            extra_link_args=["-pthread"],
            optional=True,  # without a compiler everything works but `reading.reader: native`
        )
    ]
)
