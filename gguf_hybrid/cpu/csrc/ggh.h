/* The C interface of gguf-hybrid's CPU library: what ctypes (or any other binding) calls.
 *
 * Weights are raw GGUF blocks wherever they lie (usually the mapped file); nothing is repacked or
 * copied. Activations and results are float32, row-major, strides counted in elements. Types are
 * ggml type numbers (0 F32, 1 F16, 2 Q4_0, ... 39 MXFP4). Every call returns a ggh_status; a size
 * that a kernel cannot take is refused before any work is done.
 *
 * Law: a row of a result depends on its own activations and on the weights alone. Its bits do not
 * change with the number of rows, their order, the number of threads or the CPU variant.
 */
#ifndef GGH_H
#define GGH_H

#include <stddef.h>
#include <stdint.h>

#if defined(_WIN32)
#define GGH_API __declspec(dllexport)
#else
#define GGH_API __attribute__((visibility("default")))
#endif

#ifdef __cplusplus
extern "C" {
#endif

/* Raised with every incompatible change of this interface; the loader compares it. */
#define GGH_ABI_VERSION 1

typedef enum ggh_status {
  GGH_OK = 0,
  GGH_BAD_TYPE = 1,     /* a ggml type without a kernel */
  GGH_BAD_SIZE = 2,     /* k is no multiple of the block, a negative count, a stride too short */
  GGH_BAD_ARGUMENT = 3, /* a null pointer, an index out of range, an unknown mode */
  GGH_NO_MEMORY = 4
} ggh_status;

/* exact: float32 activations against exactly decoded weights.
 * fast: activations quantised to int8 where llama.cpp does so (every quantised weight type);
 * F32, F16 and BF16 weights keep float32 activations. */
typedef enum ggh_mode { GGH_EXACT = 0, GGH_FAST = 1 } ggh_mode;

GGH_API int32_t ggh_abi_version(void);
/* "avx512", "avx2-vnni", "avx2", "neon" or "portable": chosen once from the CPU and the
 * environment variable GGH_CPU (which may only name a variant that this CPU can run). */
GGH_API const char *ggh_cpu_variant(void);
/* Null when GGH_CPU was fine, else one line that says why it was not followed. */
GGH_API const char *ggh_cpu_problem(void);

/* ---- thread pool -------------------------------------------------------------------------- */

/* n_threads counts the caller, which takes part: a pool of 1 starts no thread. Workers spin for
 * some microseconds after a job, then sleep. One caller at a time may use a pool. */
typedef struct ggh_pool ggh_pool;
GGH_API ggh_pool *ggh_pool_create(int32_t n_threads);
GGH_API void ggh_pool_destroy(ggh_pool *pool);
/* Lets at most n_threads of the pool take part in the calls that follow (--threads-batch). */
GGH_API ggh_status ggh_pool_limit(ggh_pool *pool, int32_t n_threads);

/* ---- blocks ------------------------------------------------------------------------------- */

/* Elements in one block, 0 for a type without a kernel. */
GGH_API int64_t ggh_block_size(int32_t type);
/* Bytes of one row of k elements, 0 when k is refused. */
GGH_API size_t ggh_row_bytes(int32_t type, int64_t k);

/* A matrix [n, k] of GGUF blocks; rows lie row_stride bytes apart. A stack of them (experts) has
 * n_slabs matrices slab_stride bytes apart; a plain matrix has n_slabs 1. */
typedef struct ggh_weight {
  const void *data;
  int64_t n;
  int64_t k;
  size_t row_stride;
  int64_t n_slabs;
  size_t slab_stride;
  int32_t type;
  int32_t reserved;
} ggh_weight;

/* dst[i, :] = float32 of row rows[i] (row i where rows is null), exact, i < n_rows. */
GGH_API ggh_status ggh_dequantize_rows(ggh_pool *pool, const ggh_weight *weight,
                                       const int64_t *rows, int64_t n_rows, float *dst,
                                       int64_t dst_stride);

/* What a fast product sees of x [m, k]: int8 codes [m, k] and one scale a block [m, k / block],
 * block 32 or 256. code = round_to_even(x / scale), scale = max |x| / 127. */
GGH_API ggh_status ggh_quantize_activations(const float *x, int64_t x_stride, int64_t m, int64_t k,
                                            int64_t block, int8_t *codes, float *scales);

/* ---- products ----------------------------------------------------------------------------- */

/* y[i] = x @ weights[i].T for i < n_weights: x [m, k] is prepared once for all of them.
 * y[i] is [m, weights[i].n] with y_strides[i] elements between rows. */
GGH_API ggh_status ggh_matmul(ggh_pool *pool, int32_t mode, const float *x, int64_t x_stride,
                              int64_t m, int32_t n_weights, const ggh_weight *weights,
                              float *const *y, const int64_t *y_strides);

/* Experts: y[i][p] = weights[i][expert_ids[p]] @ x[x_rows[p]] for n_pairs pairs p. Each expert's
 * weights are read once for all of its rows. x has m rows; all weights share n_slabs and k. */
GGH_API ggh_status ggh_matmul_experts(ggh_pool *pool, int32_t mode, const float *x,
                                      int64_t x_stride, int64_t m, int64_t n_pairs,
                                      const int32_t *expert_ids, const int32_t *x_rows,
                                      int32_t n_weights, const ggh_weight *weights,
                                      float *const *y, const int64_t *y_strides);

#ifdef __cplusplus
}
#endif

#endif
