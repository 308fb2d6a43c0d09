"""Runs one target under atheris, in a process of its own: ``python -m proof.fuzz.engine TARGET RUNS WORK FINDINGS``.

libFuzzer ends the process itself. It finds its way by the branches of the functions that are instrumented here: those
of the package that the target is about. Instrumenting all would make whole directories too slow.
"""

from __future__ import annotations

import gc
import logging
import sys
import warnings
from collections.abc import Callable, Iterator
from types import FunctionType, ModuleType

from holdfast.compiled import twins
from proof import calls
from proof.fuzz.targets import TARGETS
from proof.memory_limit import limit_memory

TIMEOUT_SECONDS = 30


def functions(package: str) -> Iterator[FunctionType]:
    """Yield the functions and methods of all modules of a package that were imported."""
    for name, module in sorted(sys.modules.items()):
        if name.startswith(package + "."):
            yield from _functions(module, module.__name__)


def _functions(holder: ModuleType | type, module: str) -> Iterator[FunctionType]:
    for value in list(vars(holder).values()):
        inner = getattr(value, "fget", None) or getattr(value, "__func__", None) or value
        if isinstance(inner, FunctionType) and inner.__module__ == module:
            yield inner
        elif isinstance(inner, type) and inner.__module__ == module:
            yield from _functions(inner, module)


def main(name: str, runs: str, work: str, findings: str) -> None:
    """Fuzz; does not return."""
    import atheris

    target = TARGETS[name]
    for function in (*functions(target.package), *twins.values()):  # a twin is no attribute of its module
        atheris.instrument_func(function)
    logging.disable(logging.CRITICAL)
    warnings.simplefilter("ignore")
    run: Callable[[bytes], None] = calls.telling(target.run)  # libFuzzer ends the process
    run(b"")  # what is made once is made before memory is limited
    gc.freeze()
    limit_memory(target.memory_bytes)
    options = [
        f"-runs={runs}",
        f"-max_len={target.size_max}",
        f"-timeout={TIMEOUT_SECONDS}",
        f"-artifact_prefix={findings}/{name}-",
        "-rss_limit_mb=0",
        "-print_final_stats=1",
        "-verbosity=0",
    ]
    atheris.Setup([name, *options, work, str(target.corpus)], run)
    atheris.Fuzz()


if __name__ == "__main__":
    main(*sys.argv[1:])
