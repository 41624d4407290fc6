// Chooses the kernels of this process once: the best variant the CPU runs, or what GGH_CPU names.
#include <cstdlib>
#include <cstring>

#include "kernels.h"

#if defined(__aarch64__) && defined(__linux__)
#include <sys/auxv.h>

#include <asm/hwcap.h>
#endif

namespace ggh {
namespace {

struct Variant {
  const char* name;
  const Kernels& (*kernels)();
  bool runs;
};

#if defined(__aarch64__) && defined(__linux__)
bool has_dotprod() { return (getauxval(AT_HWCAP) & HWCAP_ASIMDDP) != 0; }
#elif defined(__aarch64__)
bool has_dotprod() { return true; }  // every Apple processor that runs macOS on ARM
#endif

#if defined(__x86_64__) || defined(_M_X64)
// AVX-VNNI: leaf 7, sub-leaf 1, EAX bit 4. __builtin_cpu_supports does not know it everywhere.
bool has_avx_vnni() {
  uint32_t a = 7, b = 0, c = 1, d = 0;
  __asm__ volatile("cpuid" : "+a"(a), "=b"(b), "+c"(c), "=d"(d));
  return (a >> 4 & 1) != 0;
}
#endif

struct Choice {
  const Kernels* kernels = nullptr;
  const char* problem = nullptr;
};

// `variants` from best to portable, which always runs.
template <size_t n>
Choice choose_from(const Variant (&variants)[n]) {
  Choice choice;
  const char* wanted = std::getenv("GGH_CPU");
  if (wanted != nullptr && *wanted != '\0') {
    choice.problem = "GGH_CPU names no variant of this build; taking the best one";
    for (const Variant& variant : variants) {
      if (std::strcmp(variant.name, wanted) != 0) continue;
      if (variant.runs) return {&variant.kernels(), nullptr};
      choice.problem = "this CPU cannot run what GGH_CPU names; taking the best variant";
    }
  }
  for (const Variant& variant : variants) {
    if (variant.runs) {
      choice.kernels = &variant.kernels();
      break;
    }
  }
  return choice;
}

Choice choose() {
#if defined(__x86_64__) || defined(_M_X64)
  __builtin_cpu_init();
  const bool avx2 = __builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma") &&
                    __builtin_cpu_supports("f16c");
  const bool avx512 = avx2 && __builtin_cpu_supports("avx512f") &&
                      __builtin_cpu_supports("avx512bw") && __builtin_cpu_supports("avx512vl") &&
                      __builtin_cpu_supports("avx512dq") && __builtin_cpu_supports("avx512vnni");
  const Variant variants[] = {{"avx512", kernels_avx512, avx512},
                              {"avx2-vnni", kernels_avx2vnni, avx2 && has_avx_vnni()},
                              {"avx2", kernels_avx2, avx2},
                              {"portable", kernels_portable, true}};
#elif defined(__aarch64__)
  const Variant variants[] = {{"neon", kernels_neon, has_dotprod()},
                              {"portable", kernels_portable, true}};
#else
  const Variant variants[] = {{"portable", kernels_portable, true}};
#endif
  return choose_from(variants);
}

const Choice& choice() {
  static const Choice made = choose();
  return made;
}

}  // namespace

const Kernels& kernels() { return *choice().kernels; }
const char* dispatch_problem() { return choice().problem; }

}  // namespace ggh
