"""Stencil: the mean of 3 by 3 pixels of a float32 image."""

from __future__ import annotations

import numpy as np

from turnout import NDArray, f32

from ..cases import Case, Data
from ..compare import EXACT, Tolerance

case = Case(
    "blur",
    "mean of 3x3 pixels of a square float32 image; the size is its side",
    sizes=(1024,),
    tolerance=Tolerance(relative=1e-5),
    own_tolerance=EXACT,
)

NINTH = np.float32(1 / 9)


@case.data
def data(size: int, random: np.random.Generator) -> Data:
    image = random.random((size, size), dtype=np.float32)
    return Data((image,), (np.empty((size - 2, size - 2), np.float32),))


@case.turnout
def blur(image: NDArray[f32, 2], out: NDArray[f32, 2]) -> None:
    for i in range(out.shape[0]):
        for j in range(out.shape[1]):
            top = image[i, j] + image[i, j + 1] + image[i, j + 2]
            middle = image[i + 1, j] + image[i + 1, j + 1] + image[i + 1, j + 2]
            bottom = image[i + 2, j] + image[i + 2, j + 1] + image[i + 2, j + 2]
            out[i, j] = (top + middle + bottom) * (1 / 9)


@case.numba
def blur_loops(image, out):
    for i in range(out.shape[0]):
        for j in range(out.shape[1]):
            top = image[i, j] + image[i, j + 1] + image[i, j + 2]
            middle = image[i + 1, j] + image[i + 1, j + 1] + image[i + 1, j + 2]
            bottom = image[i + 2, j] + image[i + 2, j + 1] + image[i + 2, j + 2]
            out[i, j] = (top + middle + bottom) * NINTH


@case.expected
def expected(image):
    out = np.empty((image.shape[0] - 2, image.shape[1] - 2), np.float32)
    blur_numpy(image, out)
    return (out,)


@case.version("NumPy")
def blur_numpy(image, out):
    rows = image[:, :-2] + image[:, 1:-1] + image[:, 2:]
    np.multiply(rows[:-2] + rows[1:-1] + rows[2:], NINTH, out=out)
