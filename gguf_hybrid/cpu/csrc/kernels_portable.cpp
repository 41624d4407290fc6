#include "simd_portable.h"

#include "kernels.inl"

namespace ggh {

const Kernels& kernels_portable() {
  static const Kernels table = portable::make_kernels();
  return table;
}

}  // namespace ggh
