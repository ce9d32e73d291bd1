"""Which of several candidates are slower than others, as far as noisy samples can tell.

Times of one candidate differ by a few percent, and now and then by a lot. So candidates are ordered
by their medians, and a median that is lower counts only beyond a margin and beyond the noise:

* one sample each tells differences of more than 5 %, several of more than 1 %;
* from five samples each on there must be evidence too. Either their ranks differ, by three standard
  deviations of Mann and Whitney's statistic or as much as ranks can: this resolves small
  differences, and outliers hardly weigh in it. Or the medians differ by six of their standard
  errors, estimated from the quartiles: this resolves large differences at once. Or the
  quartiles are apart by a factor of two: this resolves the largest ones in spite of outliers.

The limits are those at which, in simulations with differences of 5 % and heavy-tailed noise, wrong
choices are below 2 % and candidates that are equal hardly ever change places
(``tests/core/test_decision_quality.py``).
"""

from __future__ import annotations

import math
from bisect import bisect_left, bisect_right
from collections.abc import Hashable, Iterable, Mapping, Sequence
from typing import TypeVar

K = TypeVar("K", bound=Hashable)

MARGIN = 0.01
"""Differences below it are not worth a change."""
SINGLE_SAMPLE_MARGIN = 0.05
EVIDENCE_FROM = 5
"""Samples from which on noise can be estimated."""
TIE_FROM = 9
"""Samples from which on medians within the margin are a tie."""
CLEARLY_SLOWER = 1.5

_RANK_DEVIATIONS = 3.0
_QUARTILES_APART = 2.0
_MEDIAN_ERRORS = 6.0
_QUARTILES_PER_DEVIATION = 1.349  # of a normal distribution
_MEDIAN_PER_MEAN = 1.2533  # how much larger the standard error of a median is than that of a mean


def median(samples: Sequence[float]) -> float:
    """Return the median, which for an even number of samples is the mean of the middle two."""
    return _quantile(sorted(samples), 0.5)


def quartiles(samples: Sequence[float]) -> tuple[float, float]:
    """Return the values that a quarter, and three quarters, of the samples do not exceed.

    Examples
    --------
    >>> quartiles([1, 2, 3, 4, 100])
    (2.0, 4.0)
    """
    ordered = sorted(samples)
    return _quantile(ordered, 0.25), _quantile(ordered, 0.75)


def _quantile(ordered: Sequence[float], fraction: float) -> float:
    position = fraction * (len(ordered) - 1)
    below, above = ordered[math.floor(position)], ordered[math.ceil(position)]
    return below + (above - below) * (position % 1)


def fastest(samples: Mapping[K, Sequence[float]]) -> K:
    """Return the key of the lowest median; of equal ones the first."""
    return min(samples, key=lambda key: median(samples[key]))


def contenders(samples: Mapping[K, Sequence[float]]) -> list[K]:
    """Return the keys, in order, of all that may be the fastest as far as the samples can tell.

    Examples
    --------
    >>> contenders({"a": [104, 100, 101], "b": [100, 103, 101], "c": [120, 118, 119]})
    ['a', 'b']
    """
    lowest = samples[fastest(samples)]
    return [key for key, own in samples.items() if not is_slower(own, lowest)]


def is_tie(samples: Iterable[Sequence[float]]) -> bool:
    """Whether there are enough samples of all to say that their medians are as good as equal."""
    samples = list(samples)
    medians = [median(each) for each in samples]
    is_enough = min(map(len, samples)) >= TIE_FROM
    return is_enough and max(medians) <= min(medians) * (1 + MARGIN)


def is_clearly_slower(samples: Sequence[float], than: Sequence[float]) -> bool:
    """Whether more samples could hardly change anything."""
    return len(samples) >= 2 and min(samples) > CLEARLY_SLOWER * median(than)


def is_slower(samples: Sequence[float], than: Sequence[float]) -> bool:
    """Whether samples are slower than others by more than the margin and the noise."""
    fewest = min(len(samples), len(than))
    difference = median(samples) - median(than)
    if difference <= (SINGLE_SAMPLE_MARGIN if fewest == 1 else MARGIN) * median(than):
        return False
    if fewest < EVIDENCE_FROM:
        return True
    if quartiles(samples)[0] > _QUARTILES_APART * quartiles(than)[1]:
        return True
    return _do_ranks_differ(samples, than) or difference > _MEDIAN_ERRORS * _error(samples, than)


def _do_ranks_differ(samples: Sequence[float], than: Sequence[float]) -> bool:
    """Whether pairs in which the one of `samples` is slower are too many for chance."""
    others = sorted(than)
    slower = sum(bisect_left(others, each) + bisect_right(others, each) for each in samples) / 2
    pairs = len(samples) * len(others)
    deviation = math.sqrt(pairs * (len(samples) + len(others) + 1) / 12)
    return slower >= min(pairs, pairs / 2 + _RANK_DEVIATIONS * deviation)


def _error(samples: Sequence[float], than: Sequence[float]) -> float:
    """Return the standard error of the difference of two medians."""
    deviation = max(_deviation(samples), _deviation(than))
    return _MEDIAN_PER_MEAN * deviation * math.sqrt(1 / len(samples) + 1 / len(than))


def _deviation(samples: Sequence[float]) -> float:
    low, high = quartiles(samples)
    return (high - low) / _QUARTILES_PER_DEVIATION
