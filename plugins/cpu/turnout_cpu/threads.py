"""Several threads for one launch: helpers that wait for work, and native code that shares it out.

A launch that is worth it becomes a *job*: its positions in chunks. Whoever takes part takes the
next chunk by an atomic counter until none is left; the calling thread is the first of them, and
does all the work if nobody comes. So a late helper costs nothing, and one that another program
holds up costs one chunk.

**What a job counts it counts in native code.** The caller opens it, works, closes it and waits for
those who joined in one native call. No signal handler of Python runs in between, so an interrupted
launch was either not begun or is finished, and nothing is left running or counted.

**No oversubscription.** ``in_use`` counts the threads that run jobs, callers and helpers. A helper
joins only while that is below the number of threads allowed, so where many threads of a program
launch at once, each does its own work.

Helpers start with the first job that wants them and wait without the interpreter lock. A job
refers to no array, so one that nobody took in time keeps nothing alive. Nothing waits for helpers
when the interpreter ends. A forked child has none of them, and gets a new pool.
"""

from __future__ import annotations

import _thread
import ctypes
import functools
import os
import queue
import sys
import threading
from collections.abc import Callable
from string import Template

from turnout.plugin import num_threads

from . import compiler

WHOLE = 2**63 - 1
"""As the end of a range of positions: all of them, in one thread."""

CHUNKS_PER_THREAD = 8
"""Enough that a helper that comes late, or shares its core, does not leave the others waiting."""

CHUNK_MULTIPLE = 64
"""Chunks are multiples of it where they are larger, so that threads rarely meet in a cache line."""


class _Job(ctypes.Structure):
    """What one launch shares among threads; `_TEXT` knows the order of the fields."""

    _fields_ = (
        ("entry", ctypes.c_size_t),
        ("slots", ctypes.c_char_p),
        ("next", ctypes.c_int64),
        ("end", ctypes.c_int64),
        ("chunk", ctypes.c_int64),
        ("open", ctypes.c_int64),
        ("helpers", ctypes.c_int64),
        ("in_use", ctypes.c_size_t),
        ("limit", ctypes.c_int64),
        ("core", ctypes.c_int64),
    )


# `open` is the number of threads in the job: _ANNOUNCED until its caller opens it, 0 for good after
# all have left. A helper joins by raising it from any other number. A job that was announced and
# never opened, because an interrupt came between, is given up after a while.
_ANNOUNCED = -1

_TEXT = Template("""\
declare i32 @$pause()
declare i32 @$sleep(i32)

define internal void @work(ptr %job) nounwind {
entry:
  %entry.of = load ptr, ptr %job
  %slots.at = getelementptr i64, ptr %job, i64 1
  %slots = load ptr, ptr %slots.at
  %next.at = getelementptr i64, ptr %job, i64 2
  %end.at = getelementptr i64, ptr %job, i64 3
  %end = load i64, ptr %end.at
  %chunk.at = getelementptr i64, ptr %job, i64 4
  %chunk = load i64, ptr %chunk.at
  br label %take
take:
  %first = atomicrmw add ptr %next.at, i64 %chunk monotonic
  %is.some = icmp slt i64 %first, %end
  br i1 %is.some, label %run, label %done
run:
  %last = add i64 %first, %chunk
  %status = call i64 %entry.of(ptr %slots, i64 %first, i64 %last)
  br label %take
done:
  ret void
}

define void @lead(ptr %job) nounwind {
entry:
  %open.at = getelementptr i64, ptr %job, i64 5
  %in.use.at = getelementptr i64, ptr %job, i64 7
  %in.use = load ptr, ptr %in.use.at
  %before = atomicrmw add ptr %in.use, i64 1 monotonic
  store atomic i64 1, ptr %open.at release, align 8
  call void @work(ptr %job)
  %left = atomicrmw sub ptr %open.at, i64 1 acq_rel
  br label %wait
wait:
  %round = phi i32 [ 0, %entry ], [ %round.next, %pause ], [ %round.next, %sleep ]
  %others = load atomic i64, ptr %open.at acquire, align 8
  %is.over = icmp eq i64 %others, 0
  br i1 %is.over, label %done, label %more
more:
  %round.next = add i32 %round, 1
  %is.short = icmp ult i32 %round.next, 200
  br i1 %is.short, label %pause, label %sleep
pause:
  %paused = call i32 @$pause()
  br label %wait
sleep:
  %slept = call i32 @$sleep(i32 $duration)
  br label %wait
done:
  %after = atomicrmw sub ptr %in.use, i64 1 monotonic
  ret void
}

define void @join(ptr %job) nounwind {
entry:
  %open.at = getelementptr i64, ptr %job, i64 5
  %helpers.at = getelementptr i64, ptr %job, i64 6
  %in.use.at = getelementptr i64, ptr %job, i64 7
  %in.use = load ptr, ptr %in.use.at
  %limit.at = getelementptr i64, ptr %job, i64 8
  %limit = load i64, ptr %limit.at
  br label %wait
wait:
  %round = phi i32 [ 0, %entry ], [ %round.next, %pause ], [ %round.next, %sleep ]
  %seen.first = load atomic i64, ptr %open.at acquire, align 8
  %is.announced = icmp slt i64 %seen.first, 0
  br i1 %is.announced, label %more, label %begun
more:
  %round.next = add i32 %round, 1
  %is.short = icmp ult i32 %round.next, 200
  br i1 %is.short, label %pause, label %long
long:
  %is.given.up = icmp ugt i32 %round.next, 2000
  br i1 %is.given.up, label %done, label %sleep
pause:
  %paused = call i32 @$pause()
  br label %wait
sleep:
  %slept = call i32 @$sleep(i32 $duration)
  br label %wait
begun:
  %is.open = icmp ne i64 %seen.first, 0
  br i1 %is.open, label %look, label %done
look:
  %running = atomicrmw add ptr %in.use, i64 1 monotonic
  %has.room = icmp slt i64 %running, %limit
  br i1 %has.room, label %try, label %leave
try:
  %seen = phi i64 [ %seen.first, %look ], [ %found, %enter ]
  %is.closed = icmp eq i64 %seen, 0
  br i1 %is.closed, label %leave, label %enter
enter:
  %with.me = add i64 %seen, 1
  %pair = cmpxchg ptr %open.at, i64 %seen, i64 %with.me acq_rel monotonic
  %found = extractvalue { i64, i1 } %pair, 0
  %has.joined = extractvalue { i64, i1 } %pair, 1
  br i1 %has.joined, label %help, label %try
help:
  %counted = atomicrmw add ptr %helpers.at, i64 1 monotonic
  call void @work(ptr %job)
  ; In this order, so that the next launch finds the thread free.
  %free = atomicrmw sub ptr %in.use, i64 1 monotonic
  %left = atomicrmw sub ptr %open.at, i64 1 acq_rel
  ret void
leave:
  %after = atomicrmw sub ptr %in.use, i64 1 monotonic
  ret void
done:
  ret void
}
""")

# The last threads of a job mostly end together; one that waits longer gives its core away.
_WORDS = {"pause": "sched_yield", "sleep": "usleep", "duration": "50"}
if sys.platform == "win32":
    _WORDS = {"pause": "SwitchToThread", "sleep": "Sleep", "duration": "1"}

_Native = ctypes.CFUNCTYPE(None, ctypes.c_size_t)


@functools.cache
def native_code() -> compiler.Compiled:
    """The native code, compiled at its first use in a process."""
    # Optimising would take five times as long, and there is nothing here that takes time.
    return compiler.compile_text(_TEXT.substitute(_WORDS), "", "", 0)


_provided: list[compiler.Compiled] = []


def provide(compiled: compiler.Compiled) -> None:
    """Let this process use native code that another one has compiled."""
    if not _provided:
        _provided.append(compiled)


class _Routines:
    """The native code, loaded."""

    def __init__(self) -> None:
        compiled = _provided[0] if _provided else native_code()
        self._loaded = [
            compiler.Loaded(compiled.code, name, compiled.symbols) for name in ("lead", "join")
        ]
        self.lead, self.join = (_Native(loaded.address) for loaded in self._loaded)


_routines = functools.cache(_Routines)


class Pool:
    """The helpers of this process; `pool` gives it."""

    def __init__(self) -> None:
        self._routines = _routines()
        self._in_use = ctypes.c_int64(0)
        self._jobs: queue.SimpleQueue[_Job] = queue.SimpleQueue()
        self._started = 0
        self._lock = threading.RLock()

    def run(self, entry: int, slots: bytes, positions: int, threads: int) -> int:
        """Run all positions of a unit; returns when they are done.

        Parameters
        ----------
        entry : int
            Address of the unit's entry point.
        slots : bytes
            Its arguments.
        positions : int
            How many there are, as ranges of the entry point count them.
        threads : int
            How many threads it is worth, the calling one included. Fewer take part where others
            are busy.

        Returns
        -------
        int
            How many threads took part.
        """
        limit = num_threads()
        in_use = self._in_use
        helpers = self._ready(min(threads, limit - in_use.value) - 1)
        chunk = _chunk(positions, helpers + 1) if helpers > 0 else WHOLE
        shared = ctypes.addressof(in_use)
        job = _Job(entry, slots, 0, positions, chunk, _ANNOUNCED, 0, shared, limit, _core())
        for _ in range(helpers):
            self._jobs.put(job)
        self._routines.lead(ctypes.addressof(job))
        helped: int = job.helpers
        return 1 + helped

    def _ready(self, helpers: int) -> int:
        """Start helpers where there are too few; gives how many of those wanted there are."""
        if self._started < helpers:
            with self._lock:
                while self._started < helpers:
                    try:
                        # Not by `threading`, which would wait for each of them to begin, even
                        # where it cannot, when the interpreter ends.
                        _thread.start_new_thread(_help, (self._jobs, self._routines))
                    except RuntimeError:
                        # The system gives no more threads, or the interpreter ends.
                        return self._started
                    self._started += 1
        return helpers


def _help(jobs: queue.SimpleQueue[_Job], routines: _Routines) -> None:
    """What a helper does all its life."""
    while True:
        job = jobs.get()
        if job.core == _core() >= 0:
            _leave_core(job.core)
        routines.join(ctypes.addressof(job))
        del job


def _find_core() -> Callable[[], int]:
    """Make the function that tells on which core the calling thread runs, -1 where unknown."""
    if hasattr(os, "sched_setaffinity"):
        find: Callable[[], int] | None = getattr(ctypes.PyDLL(None), "sched_getcpu", None)
        if find is not None:
            return find
    return lambda: -1


_core = _find_core()


def _leave_core(core: int) -> None:
    """Move the calling thread to another core.

    Linux wakes a helper on the core where it ran last. If the caller has moved to that core
    meanwhile, both may stay there for seconds beside an idle one, which was seen on a machine of
    two cores. Forbidding the core and allowing it again moves the helper, once and for good.
    """
    allowed = os.sched_getaffinity(0)
    if len(allowed) > 1 and core in allowed:
        # Of the calling thread alone.
        os.sched_setaffinity(0, allowed - {core})
        os.sched_setaffinity(0, allowed)


def _chunk(positions: int, threads: int) -> int:
    """How many positions a thread takes at a time."""
    chunk = -(-positions // (threads * CHUNKS_PER_THREAD))
    if chunk <= CHUNK_MULTIPLE:
        return chunk
    return -(-chunk // CHUNK_MULTIPLE) * CHUNK_MULTIPLE


_pool: Pool | None = None
# Signal handlers may launch kernels while a launch makes the pool.
_lock = threading.RLock()


def pool() -> Pool:
    """Give the pool of this process; makes it at the first use."""
    global _pool
    if _pool is None:
        with _lock:
            if _pool is None:
                _pool = Pool()
    return _pool


def _forget_pool() -> None:
    global _pool, _lock
    _pool, _lock = None, threading.RLock()


if hasattr(os, "register_at_fork"):
    # The helpers do not exist in the child, and what they were doing is no part of it.
    os.register_at_fork(after_in_child=_forget_pool)
