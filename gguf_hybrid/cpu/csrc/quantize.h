/* The quantiser's C interface: float rows to ggml blocks, bit for bit what llama-quantize writes.
 *
 * Stands alone: nothing else of the CPU library is needed. Calls share no state, so a caller splits
 * the rows of a tensor among as many threads as it likes; the bytes do not depend on the split.
 */
#ifndef GGH_QUANTIZE_H
#define GGH_QUANTIZE_H

#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

enum {
  GGH_QUANTIZE_OK = 0,
  GGH_QUANTIZE_BAD_TYPE = 1, /* no quantiser for dst_type, or src_type is not F32, F16 or BF16 */
  GGH_QUANTIZE_BAD_SIZE = 2, /* k is no multiple of the block length, or a negative count */
  GGH_QUANTIZE_NOT_FINITE = 3 /* a source value is infinite or not a number */
};

/* Quantise n_rows rows of k values. Types are ggml type numbers; src holds F32 (0), F16 (1) or
 * BF16 (30). importance is null or k weights, one a column (the importance matrix of the rows).
 * dst receives n_rows * k / block length blocks. Returns one of the codes above. */
__attribute__((visibility("default"))) int32_t ggh_quantize_rows(
    int32_t src_type, const void *src, int32_t dst_type, void *dst, int64_t n_rows, int64_t k,
    const float *importance);

#ifdef __cplusplus
}
#endif

#endif
