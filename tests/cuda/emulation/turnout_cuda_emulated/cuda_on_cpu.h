// CUDA C++ on a CPU: enough of the language to run one kernel, block after block.
//
// The text of a kernel is compiled by a host compiler, unchanged, between this header and
// cuda_on_cpu_entry.h. Where it has barriers or warp collectives (EMULATE_FIBERS), each thread of a
// block is a fiber, which runs until it waits; without them the threads run one after the other.
//
// Not emulated: divergence inside of a warp (a lane runs on until it waits), independent
// scheduling, races, the order of memory, launch limits, dynamic shared memory.
#pragma once
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <ucontext.h>

#define __global__
#define __device__
#define __forceinline__ inline
#define __noinline__
#define __shared__ static
#define __constant__ static const
#define __launch_bounds__(...)
#define __align__(n) __attribute__((aligned(n)))

struct uint3 {
  unsigned x, y, z;
};
struct dim3 {
  unsigned x, y, z;
};
static uint3 threadIdx, blockIdx;
static dim3 blockDim, gridDim;
static const int warpSize = 32;

// ---- threads of one block ----------------------------------------------------------------------

namespace emulation {

enum State { running, at_barrier, at_collective, finished };

struct Fiber {
  ucontext_t context;
  State state;
  unsigned mask;
  long long deposit;
  long long seen[32];  // deposits of the warp when the collective was complete
};

static const size_t stack_bytes = 256 * 1024;
static Fiber *fibers;
static char *stacks;
static unsigned thread_count, current;
static ucontext_t scheduler;

static unsigned lane() { return current % 32; }

static void wait(State state) {
  fibers[current].state = state;
  swapcontext(&fibers[current].context, &scheduler);
}

template <typename Value>
static long long bits(Value value) {
  static_assert(sizeof(Value) <= sizeof(long long), "too wide for a shuffle");
  long long result = 0;
  memcpy(&result, &value, sizeof value);
  return result;
}

// Waits for all lanes of `mask`; then `seen` of this lane has what each of them gave.
static const long long *exchange(unsigned mask, long long value) {
  Fiber &self = fibers[current];
  if (!(mask >> lane() & 1)) {
    fprintf(stderr, "emulated CUDA: lane %u is not in its own mask %08x\n", lane(), mask);
    abort();
  }
  self.mask = mask;
  self.deposit = value;
  wait(at_collective);
  return self.seen;
}

static unsigned live_lanes() {
  unsigned first = current / 32 * 32, live = 0;
  for (unsigned k = first; k < first + 32 && k < thread_count; ++k)
    if (fibers[k].state != finished) live |= 1u << (k - first);
  return live;
}

// Lets the lanes go on whose collective is complete; false where no lane waits for such a one.
static bool complete_collectives() {
  bool progress = false;
  for (unsigned first = 0; first < thread_count; first += 32)
    for (unsigned k = first; k < first + 32 && k < thread_count; ++k) {
      if (fibers[k].state != at_collective) continue;
      unsigned mask = fibers[k].mask, there = 0;
      for (unsigned n = 0; n < 32 && first + n < thread_count; ++n)
        if (fibers[first + n].state == at_collective && fibers[first + n].mask == mask)
          there |= 1u << n;
      if ((there & mask) != mask) continue;
      for (unsigned n = 0; n < 32; ++n) {
        if (!(mask >> n & 1)) continue;
        for (unsigned m = 0; m < 32; ++m)
          if (mask >> m & 1) fibers[first + n].seen[m] = fibers[first + m].deposit;
      }
      for (unsigned n = 0; n < 32; ++n)
        if (mask >> n & 1) fibers[first + n].state = running;
      progress = true;
    }
  return progress;
}

// Lets all threads go on where all that have not finished wait at the barrier.
static bool complete_barrier() {
  bool any = false;
  for (unsigned k = 0; k < thread_count; ++k) {
    if (fibers[k].state == finished) continue;
    if (fibers[k].state != at_barrier) return false;
    any = true;
  }
  for (unsigned k = 0; k < thread_count; ++k)
    if (fibers[k].state == at_barrier) fibers[k].state = running;
  return any;
}

static void enter_thread(unsigned k) {
  current = k;
  threadIdx = {k % blockDim.x, k / blockDim.x % blockDim.y, k / blockDim.x / blockDim.y};
}

template <typename Body>
static void start(unsigned low, unsigned high) {
  (*reinterpret_cast<Body *>((unsigned long)high << 32 | low))();
  fibers[current].state = finished;
  swapcontext(&fibers[current].context, &scheduler);
}

// Runs `body` as every thread of a block; false for a deadlock.
template <typename Body>
static bool run_fibers(Body body) {
  unsigned long address = (unsigned long)&body;
  for (unsigned k = 0; k < thread_count; ++k) {
    Fiber &fiber = fibers[k];
    fiber.state = running;
    getcontext(&fiber.context);
    fiber.context.uc_stack.ss_sp = stacks + k * stack_bytes;
    fiber.context.uc_stack.ss_size = stack_bytes;
    fiber.context.uc_link = nullptr;
    makecontext(&fiber.context, (void (*)())start<Body>, 2, (unsigned)address,
                (unsigned)(address >> 32));
  }
  for (;;) {
    bool is_done = true;
    for (unsigned k = 0; k < thread_count; ++k) {
      if (fibers[k].state == running) {
        enter_thread(k);
        swapcontext(&scheduler, &fibers[k].context);
      }
      is_done &= fibers[k].state == finished;
    }
    if (is_done) return true;
    bool progress = complete_collectives();
    progress |= complete_barrier();
    if (!progress) return false;
  }
}

template <typename Body>
static bool run_in_turn(Body body) {
  for (unsigned k = 0; k < thread_count; ++k) {
    enter_thread(k);
    body();
  }
  return true;
}

// Runs `body` as every thread of a grid; false for a deadlock.
template <typename Body>
static bool run_grid(dim3 grid, dim3 block, Body body) {
  gridDim = grid;
  blockDim = block;
  thread_count = block.x * block.y * block.z;
#ifdef EMULATE_FIBERS
  fibers = (Fiber *)calloc(thread_count, sizeof(Fiber));
  stacks = (char *)malloc(thread_count * stack_bytes);
#endif
  bool is_right = true;
  for (unsigned z = 0; z < grid.z && is_right; ++z)
    for (unsigned y = 0; y < grid.y && is_right; ++y)
      for (unsigned x = 0; x < grid.x && is_right; ++x) {
        blockIdx = {x, y, z};
#ifdef EMULATE_FIBERS
        is_right = run_fibers(body);
#else
        is_right = run_in_turn(body);
#endif
      }
#ifdef EMULATE_FIBERS
  free(fibers);
  free(stacks);
#endif
  return is_right;
}

}  // namespace emulation

// ---- barriers and warp collectives -------------------------------------------------------------

#ifdef EMULATE_FIBERS
static inline void __syncthreads() { emulation::wait(emulation::at_barrier); }
static inline void __syncwarp(unsigned mask = ~0u) { emulation::exchange(mask, 0); }
static inline unsigned __activemask() { return emulation::live_lanes(); }

static inline unsigned __ballot_sync(unsigned mask, int predicate) {
  const long long *seen = emulation::exchange(mask, predicate != 0);
  unsigned result = 0;
  for (unsigned k = 0; k < 32; ++k)
    if ((mask >> k & 1) && seen[k]) result |= 1u << k;
  return result;
}
static inline int __any_sync(unsigned mask, int predicate) {
  return __ballot_sync(mask, predicate) != 0;
}
static inline int __all_sync(unsigned mask, int predicate) {
  return __ballot_sync(mask, predicate) == mask;
}
template <typename Value>
static inline Value __shfl_sync(unsigned mask, Value value, int source) {
  long long seen = emulation::exchange(mask, emulation::bits(value))[source & 31];
  Value result;
  memcpy(&result, &seen, sizeof result);
  return result;
}
template <typename Value>
static inline Value __shfl_down_sync(unsigned mask, Value value, unsigned delta) {
  unsigned source = emulation::lane() + delta;
  return __shfl_sync(mask, value, source < 32 ? source : emulation::lane());
}
template <typename Value>
static inline Value __shfl_xor_sync(unsigned mask, Value value, int pattern) {
  return __shfl_sync(mask, value, emulation::lane() ^ pattern);
}
#endif

static inline void __threadfence() {}
static inline int __popc(unsigned x) { return __builtin_popcount(x); }
static inline int __popcll(unsigned long long x) { return __builtin_popcountll(x); }
static inline int __ffs(int x) { return __builtin_ffs(x); }
static inline int __clz(int x) { return x ? __builtin_clz(x) : 32; }

// ---- functions of numbers: the host's, which <math.h> would declare in a tenth of a second -----

#define ONE(name)                \
  extern "C" double name(double); \
  extern "C" float name##f(float);
#define TWO(name)                        \
  extern "C" double name(double, double); \
  extern "C" float name##f(float, float);
ONE(exp) ONE(exp2) ONE(expm1) ONE(log) ONE(log2) ONE(log10) ONE(log1p) ONE(cbrt) ONE(sqrt)
ONE(sin) ONE(cos) ONE(tan) ONE(asin) ONE(acos) ONE(atan) ONE(sinh) ONE(cosh) ONE(tanh) ONE(erf)
ONE(fabs) ONE(floor) ONE(ceil) ONE(rint) ONE(trunc)
TWO(atan2) TWO(pow) TWO(hypot) TWO(fmod) TWO(copysign)
extern "C" double fma(double, double, double);
extern "C" float fmaf(float, float, float);
#undef ONE
#undef TWO

template <typename To, typename From>
static inline To same_bits(From value) {
  static_assert(sizeof(To) == sizeof(From), "types of one size");
  To result;
  memcpy(&result, &value, sizeof result);
  return result;
}
static inline float __uint_as_float(unsigned bits) { return same_bits<float>(bits); }
static inline unsigned __float_as_uint(float value) { return same_bits<unsigned>(value); }
static inline double __longlong_as_double(long long bits) { return same_bits<double>(bits); }
static inline long long __double_as_longlong(double value) { return same_bits<long long>(value); }

// ---- atomics: no other thread runs in between --------------------------------------------------

namespace emulation {
template <typename T, typename Update>
static inline T update(T *address, Update updated) {
  if ((unsigned long)address % sizeof(T)) {
    fprintf(stderr, "emulated CUDA: a misaligned atomic operation\n");
    abort();
  }
  T old = *address;
  *address = updated(old);
  return old;
}
}  // namespace emulation

// Overloads, not templates: a type that CUDA does not have must not compile.
#define UPDATE(name, T, expression)                                             \
  static inline T name(T *address, T value) {                                   \
    return emulation::update(address, [=](T old) -> T { return expression; }); \
  }
#define INTEGER_UPDATES(T)                                                       \
  UPDATE(atomicAdd, T, old + value)                                              \
  UPDATE(atomicMin, T, old < value ? old : value)                                \
  UPDATE(atomicMax, T, old > value ? old : value)                                \
  UPDATE(atomicAnd, T, old & value)                                              \
  UPDATE(atomicOr, T, old | value)                                               \
  UPDATE(atomicXor, T, old ^ value)                                              \
  UPDATE(atomicExch, T, value)                                                   \
  static inline T atomicCAS(T *address, T expected, T value) {                   \
    return emulation::update(address, [=](T old) -> T { return old == expected ? value : old; }); \
  }
INTEGER_UPDATES(unsigned)
INTEGER_UPDATES(unsigned long long)
UPDATE(atomicAdd, int, (int)((unsigned)old + (unsigned)value))
UPDATE(atomicAdd, float, old + value)
UPDATE(atomicAdd, double, old + value)
#undef INTEGER_UPDATES
#undef UPDATE
