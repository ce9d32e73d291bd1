"""A loop of unknown length for every pixel: steps until a point of the plane escapes."""

from __future__ import annotations

import numpy as np

from turnout import NDArray, f64, i32

from ..cases import Case, Data
from ..compare import EXACT, Tolerance

STEPS = 100

case = Case(
    "mandelbrot",
    "steps until a point escapes, at most 100; the size is the side of a square image",
    sizes=(400,),
    # A contracted multiplication may move a point at the border by some steps.
    tolerance=Tolerance(absolute=STEPS),
    own_tolerance=EXACT,
)


@case.data
def data(size: int, random: np.random.Generator) -> Data:
    real = np.linspace(-2.0, 0.5, size)
    imaginary = np.linspace(-1.25, 1.25, size)
    return Data((real, imaginary), (np.empty((size, size), np.int32),))


@case.turnout
def mandelbrot(real: NDArray[f64, 1], imaginary: NDArray[f64, 1], out: NDArray[i32, 2]) -> None:
    for i in range(out.shape[0]):
        for j in range(out.shape[1]):
            x = 0.0
            y = 0.0
            count = 0
            while count < STEPS and x * x + y * y <= 4.0:
                x, y = x * x - y * y + real[j], 2.0 * x * y + imaginary[i]
                count += 1
            out[i, j] = i32(count)


@case.numba
def mandelbrot_loops(real, imaginary, out):
    for i in range(out.shape[0]):
        for j in range(out.shape[1]):
            x = 0.0
            y = 0.0
            count = 0
            while count < STEPS and x * x + y * y <= 4.0:
                x, y = x * x - y * y + real[j], 2.0 * x * y + imaginary[i]
                count += 1
            out[i, j] = count


@case.expected
def expected(real, imaginary):
    out = np.empty((imaginary.size, real.size), np.int32)
    mandelbrot_numpy(real, imaginary, out)
    return (out,)


@case.version("NumPy")
def mandelbrot_numpy(real, imaginary, out):
    x = np.zeros(out.shape)
    y = np.zeros(out.shape)
    out[:] = 0
    for _ in range(STEPS):
        is_inside = x * x + y * y <= 4.0
        if not is_inside.any():
            return
        x_next = x * x - y * y + real
        y_next = 2.0 * x * y + imaginary[:, None]
        x = np.where(is_inside, x_next, x)
        y = np.where(is_inside, y_next, y)
        out += is_inside
