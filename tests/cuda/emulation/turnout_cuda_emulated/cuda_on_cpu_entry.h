// The launch of KERNEL, which stands before this header. Its parameters come as the driver takes
// them: in one buffer, each at its own alignment.
#pragma once

namespace emulation {

enum Outcome { done, deadlock, wrong_parameters };

template <typename T>
static T read(const char *buffer, size_t &offset) {
  offset = (offset + alignof(T) - 1) / alignof(T) * alignof(T);
  T value;
  memcpy(&value, buffer + offset, sizeof value);
  offset += sizeof value;
  return value;
}

// Braces, unlike parentheses, fix the order in which the parameters are read.
struct Apply {
  template <typename... T>
  Apply(void (*kernel)(T...), T... values) {
    kernel(values...);
  }
};

template <typename... T>
static Outcome launch(void (*kernel)(T...), dim3 grid, dim3 block, const char *buffer, size_t size) {
  size_t end = 0;
  ((end = (end + alignof(T) - 1) / alignof(T) * alignof(T) + sizeof(T)), ...);
  if (end != size) return wrong_parameters;
  auto body = [=] {
    size_t offset = 0;
    Apply{kernel, read<T>(buffer, offset)...};
  };
  return run_grid(grid, block, body) ? done : deadlock;
}

}  // namespace emulation

// `extra` is that of cuLaunchKernel: the address of the buffer and of its size, with tags.
extern "C" int emulated_launch(unsigned grid_x, unsigned grid_y, unsigned grid_z, unsigned block_x,
                               unsigned block_y, unsigned block_z, void **extra) {
  return emulation::launch(KERNEL, dim3{grid_x, grid_y, grid_z}, dim3{block_x, block_y, block_z},
                           (const char *)extra[1], *(size_t *)extra[3]);
}
