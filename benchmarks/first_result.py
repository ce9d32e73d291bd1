"""One first result in a process of its own: ``python -m benchmarks.first_result PEER``.

Prints, as JSON, the nanoseconds that each phase took, and how many of them were CPU time. Imports
stand where they are measured. `ready` runs this program.
"""

# No `from __future__ import annotations`: those of the kernels name what only functions import.
import json
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

phases: dict[str, tuple[int, int]] = {}


@contextmanager
def phase(name: str) -> Iterator[None]:
    """Measure what runs inside."""
    start, start_cpu = time.perf_counter_ns(), time.process_time_ns()
    yield
    phases[name] = time.perf_counter_ns() - start, time.process_time_ns() - start_cpu


def arguments() -> tuple[Any, ...]:
    """Those of `drag`, for 100 samples."""
    import numpy as np

    return 0.1, np.arange(100) % 3, np.linspace(-2.0, 2.0, 100), np.empty(100)


def turnout(compiler_first: bool) -> None:
    with phase("import"):
        import turnout as tn
    if compiler_first:
        with phase("import llvmlite"):
            import llvmlite.binding  # noqa: F401
    dt, regime, v, v_new = arguments()
    with phase("first result"):
        import turnout.math as tm
        from turnout import Index, Mutable, Param, Scalar

        @tn.kernel
        def drag(dt: Param, regime: Index, v: Scalar, v_new: Mutable[Scalar]):
            a = tm.dispatch(
                regime, [-0.1 * v, -0.4 * v * abs(v), -2.0 * v * tm.exp(-v * v)], "predicated"
            )
            v_new = v + dt * a

        drag(dt, regime, v, v_new)


def numba(cache: bool) -> None:
    with phase("import"):
        import numba
    import numpy as np

    dt, regime, v, v_new = arguments()
    with phase("first result"):

        @numba.njit(cache=cache)
        def drag(dt, regime, v, v_new):
            for i in range(v.shape[0]):
                x = v[i]
                if regime[i] <= 0:
                    a = -0.1 * x
                elif regime[i] == 1:
                    a = -0.4 * x * abs(x)
                else:
                    a = -2.0 * x * np.exp(-x * x)
                v_new[i] = x + dt * a

        drag(dt, regime, v, v_new)


def numpy() -> None:
    with phase("import"):
        import numpy as np
    dt, regime, v, v_new = arguments()
    with phase("first result"):
        branches = [-0.1 * v, -0.4 * v * np.abs(v), -2.0 * v * np.exp(-v * v)]
        v_new[:] = v + dt * np.choose(np.clip(regime, 0, 2), branches)


def numexpr() -> None:
    with phase("import"):
        import numexpr as ne
    dt, regime, v, v_new = arguments()
    with phase("first result"):
        ne.evaluate(
            "v + dt * where(regime <= 0, -0.1 * v,"
            " where(regime == 1, -0.4 * v * abs(v), -2.0 * v * exp(-v * v)))",
            {"dt": dt, "regime": regime, "v": v},
            {},
            out=v_new,
        )


def quadrants(cache: str) -> None:
    with phase("import"):
        import quadrants as qd
    dt, regime, v, v_new = arguments()

    with phase("first result"):
        qd.init(arch=qd.cpu, offline_cache_file_path=cache)
        floats, integers = qd.types.NDArray[qd.f64, 1], qd.types.NDArray[qd.i64, 1]

        @qd.kernel
        def drag(dt: qd.f64, regime: integers, v: floats, v_new: floats) -> None:
            for i in range(v.shape[0]):
                x = v[i]
                a = -2.0 * x * qd.exp(-x * x)
                if regime[i] <= 0:
                    a = -0.1 * x
                elif regime[i] == 1:
                    a = -0.4 * x * abs(x)
                v_new[i] = x + dt * a

        drag(dt, regime, v, v_new)


def hawk(folder: str) -> None:
    with phase("import"):
        import hawk
        import hawk.math as hm
    dt, regime, v, v_new = arguments()
    with phase("first result"):

        @hawk.kernel
        def drag(
            dt: hawk.Param, regime: hawk.Index, v: hawk.Scalar, v_new: hawk.Mutable[hawk.Scalar]
        ):
            a = hm.dispatch(
                regime,
                [-0.1 * v, -0.4 * v * abs(v), -2.0 * v * hm.exp(-v * v)],
                policy="predicated",
            )
            v_new = v + dt * a

        hawk.build([drag], folder, targets=("host",))
        hawk.run(hawk.load(folder, "drag"), dt=dt, regime=regime, v=v, v_new=v_new)


def main(peer: str, cache: str) -> None:
    """Run one peer; `cache` is a folder that it may keep compiled code in."""
    run: dict[str, Callable[[], None]] = {
        "turnout": lambda: turnout(compiler_first=False),
        "turnout-compiler-imported": lambda: turnout(compiler_first=True),
        "numba": lambda: numba(cache=True),
        "numpy": numpy,
        "numexpr": numexpr,
        "quadrants": lambda: quadrants(cache),
        "hawk": lambda: hawk(cache),
    }
    if peer != "numpy":
        with phase("import numpy"):
            import numpy as np  # noqa: F401
    run[peer]()


if __name__ == "__main__":
    main(*sys.argv[1:])
    print(json.dumps(phases))
