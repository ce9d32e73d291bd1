"""Calls of the kernels of `bundle_kernels`; knows nothing of these but their parameters."""

from __future__ import annotations

from typing import Any

import numpy as np

N = 40_000


def calls() -> dict[str, dict[str, Any]]:
    """New arguments for a call of each kernel, the same in every process."""
    random = np.random.default_rng(7)
    regime = random.integers(-2, 6, N)
    v = random.normal(size=N)

    def drag(**more: Any) -> dict[str, Any]:
        return {"dt": 0.1, "regime": regime, "v": v, "v_new": np.zeros(N), **more}

    def reverse(**more: Any) -> dict[str, Any]:
        seeds = {"bar_v_new": np.ones(N), "bar_v": np.zeros(N)}
        return {"dt": 0.1, "regime": regime, "v": v, **seeds, **more}

    return {
        "automatic": drag(),
        "switched": drag(dispatch0_mix=np.zeros(3, np.uint32)),
        "predicated": drag(),
        "segmented": drag(dispatch0_mix=np.zeros(5, np.uint32)),
        "resolved": drag(),
        "automatic_vjp": reverse(bar_dt=np.zeros(N)),
        "switched_vjp": reverse(),
        "by_speed": {
            "dt": 0.1,
            "cut": 0.7,
            "slow": np.zeros(N, np.int64),
            "fast": np.ones(N, np.int64),
            "v": v.copy(),
            "regime": regime.copy(),
            "steps": 4,
        },
        "polar": {"x": v, "y": v[::-1].copy()},
        "fall": {
            "g": 0.3,
            "done": v > 1.0,
            "height": v.copy(),
            "speed": random.normal(size=(2, N)),
        },
        "looked_up": {"place": regime, "table": np.arange(1.0, 5.0)},
        "normalised": {"x": random.random((30, 50)), "y": np.zeros((30, 50))},
        "powers": {"n": 5, "x": v},
        "checked": {"place": np.array([2, 0]), "x": np.zeros(3)},
        "stepped": {"v": v.copy()},
        "total": {"x": v, "out": np.zeros(1)},
        "rows": {"a": random.random((N, 4)), "out": np.zeros(N)},
    }


def results(kernel: Any, arguments: dict[str, Any]) -> list[np.ndarray[Any, Any]]:
    """Everything that a call leaves: its arrays, and what it returns."""
    returned = kernel(**arguments)
    arrays = [value for value in arguments.values() if isinstance(value, np.ndarray)]
    if returned is None:
        return arrays
    return [*arrays, *(returned if isinstance(returned, tuple) else (returned,))]
