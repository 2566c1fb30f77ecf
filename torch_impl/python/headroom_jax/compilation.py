"""JAX's persistent cache in the run's cache folder, and whether all programs of a set-up were found there.

It holds compiled programs, and on a GPU which kernels XLA took for a product when it timed them (JAX turns
that on with the cache). So `jax-scan` need not time again what `jax-jit` has timed, and a later run compiles
nothing. These are settings that any user of JAX can make.
"""

import hashlib
import os
import platform

import jax
from jax.experimental.compilation_cache import compilation_cache

ASKED = "/jax/compilation_cache/compile_requests_use_cache"
FOUND = "/jax/compilation_cache/cache_hits"
_events: list[str] = []  # of this process


def _note(event: str, **_) -> None:
    if event in (ASKED, FOUND):
        _events.append(event)  # from any thread


jax.monitoring.register_event_listener(_note)
jax.config.update("jax_persistent_cache_min_compile_time_secs", 0.0)
jax.config.update("jax_persistent_cache_min_entry_size_bytes", -1)


class Compilation:
    """From its making on programs are compiled, or found, in `folder` (None: none are kept)."""

    def __init__(self, folder: str | None, on_gpu: bool):
        path = folder and os.path.join(folder, "jax" if on_gpu else f"jax-{_processor()}")
        if jax.config.jax_compilation_cache_dir != path:
            jax.config.update("jax_compilation_cache_dir", path)
            compilation_cache.reset_cache()
        _events.clear()

    def finish(self) -> str:
        """`cold` or `warm`."""
        return "warm" if 0 < _events.count(ASKED) == _events.count(FOUND) else "cold"


def _processor() -> str:
    """Programs for a CPU are made for its instructions, which JAX's key leaves out."""
    try:
        with open("/proc/cpuinfo") as file:
            lines = {line for line in file if line.startswith(("model name", "flags", "Features"))}
    except OSError:
        lines = {platform.processor()}
    return hashlib.sha256("".join(sorted(lines)).encode()).hexdigest()[:12]
