// A persistent kernel on any numbers, for the thread sanitizer: SOURCE is the kernel's, KERNEL its name.
#include SOURCE

int main() {
  constexpr int STEPS = 60;
  std::vector<float> numbers(1 << 20);
  for (size_t i = 0; i < numbers.size(); ++i) numbers[i] = float(i % 1009) / 1009;
  std::vector<Half> h(STEPS * ROWS * DETER), z(STEPS * ROWS * Z);
  std::unique_ptr<char[]> scratch(new (std::align_val_t(128)) char[SCRATCH]);
  Given given;
  // All that is read comes first, and is pointers.
  auto pointers = reinterpret_cast<const void **>(&given);
  for (size_t i = 0; i < offsetof(Given, unimix) / sizeof(void *); ++i) pointers[i] = numbers.data();
  given.unimix = 0.01f, given.steps = STEPS, given.batch = ROWS;
  given.scratch = scratch.release(), given.scratch_bytes = SCRATCH;
  given.h_out = h.data(), given.z_out = z.data();
  return launch<Given, KERNEL>(given, 1, SHARED_BYTES).failure();
}
