"""One operation, several implementations; the fastest is found while the program runs.

python examples/transform.py
"""

import numpy as np

import turnout as tn
from turnout import NDArray, f32


@tn.perf_dispatch(
    get_geometry_hash=lambda data, out: hash(data.shape),
    repeat_after_seconds=0,  # the machine does not change while this program runs
)
def transform(data: NDArray[f32, 1], out: NDArray[f32, 1]):
    """Write twice `data` to `out`; a prototype, whose body never runs."""


@transform.register
@tn.kernel
def transform_for(data: NDArray[f32, 1], out: NDArray[f32, 1]) -> None:
    for i in range(data.shape[0]):  # proven independent: a parallel, vectorised loop
        out[i] = data[i] * 2


@transform.register
@tn.kernel
def transform_while(data: NDArray[f32, 1], out: NDArray[f32, 1]) -> None:
    i = 0
    while i < data.shape[0]:  # runs in order
        out[i] = data[i] + data[i]
        i += 1


@transform.register(
    is_compatible=lambda data, out: data.shape[0] >= 256 or "NumPy is for larger arrays"
)
def transform_numpy(data, out):
    np.multiply(data, 2, out=out)


def main() -> None:
    for length in (100, 1_000_000):
        data = np.linspace(0, 1, length, dtype=np.float32)
        out = np.zeros_like(data)
        for _ in range(100):
            transform(data, out)
        assert (out == data * 2).all()
        decision = transform.decision(data, out)
        print(f"{length} elements: {decision.chosen}, {decision.reason}")
        for name, samples in decision.samples.items():
            print(f"    {name:16} {min(samples) / 1000:8.1f} us")


if __name__ == "__main__":
    main()
