/* The C interface of the fused model operations: one call runs a whole step.
 *
 * A caller describes a step once (which tokens of which sequences, which state rows and KV blocks)
 * as a flat int32 record, lists the operations of the model graph in order, and gets logits back.
 * Activations never leave the library; weights are pointers into the mapped file; the storage of
 * states and KV belongs to the caller. All sizes are checked when a model or block is made.
 */
#ifndef GGH_MODEL_API_H
#define GGH_MODEL_API_H

#include "ggh.h"

#ifdef __cplusplus
extern "C" {
#endif

/* Sizes of a model, named as in gguf_hybrid.config.ModelConfig. rope_inv_freq holds n_rot / 2
 * angles per position in radians. */
typedef struct ggh_model_config {
  int32_t n_embd, n_vocab;
  int32_t n_head, n_head_kv, head_dim, n_rot;
  int32_t ssm_group_count, ssm_time_step_rank, ssm_state_size, ssm_conv_kernel;
  int32_t tiled_v_heads;
  int32_t n_expert_used;
  float rms_eps, attention_scale, expert_weights_scale, rope_magnitude;
  const double *rope_inv_freq;
} ggh_model_config;

/* Vectors are float32. conv is [ssm_conv_kernel, conv_dim]. */
typedef struct ggh_delta_net {
  const float *norm, *conv, *dt_bias, *a, *ssm_norm;
  ggh_weight qkv, gate, beta, alpha, out;
} ggh_delta_net;

/* q has 2 * head_dim rows per head: the query, then its gate. */
typedef struct ggh_attention {
  const float *norm, *q_norm, *k_norm;
  ggh_weight q, k, v, out;
} ggh_attention;

typedef struct ggh_dense {
  const float *norm;
  ggh_weight gate, up, down;
} ggh_dense;

/* shared_router.data is null in a model without a shared expert; the other three are unused then. */
typedef struct ggh_experts {
  const float *norm;
  ggh_weight router, gate, up, down;
  ggh_weight shared_router, shared_gate, shared_up, shared_down;
} ggh_experts;

typedef struct ggh_head {
  const float *norm;
  ggh_weight output;
} ggh_head;

/* Strides in bytes; states and their strides are multiples of 64. State row r, recurrent layer l:
 * the convolution state [ssm_conv_kernel - 1, conv_dim] and behind it the delta state
 * [V head, k, v], v fastest, float32.
 * KV block b, attention layer l: K, then V, each [256, n_head_kv, head_dim]. */
typedef struct ggh_store {
  uint8_t *states;
  int64_t state_row_stride, state_layer_stride;
  uint8_t *kv;
  int64_t block_stride, block_layer_stride;
  int32_t n_state_rows, n_blocks;
  int32_t kv_half;
  int32_t reserved;
} ggh_store;

/* The operations of a step, each three int64: kind, layer index, address.
 * EMBED        ggh_weight of the embedding
 * DELTA_NET    ggh_delta_net; the index counts recurrent layers
 * ATTEND       ggh_attention; the index counts attention layers
 * DENSE        ggh_dense
 * EXPERTS      ggh_experts
 * LOGITS       ggh_head; writes [n_logits, n_vocab] float32 to `logits`
 * LOAD         float32 [n_tokens, n_embd] that become the activations
 * STORE        where the activations [n_tokens, n_embd] are to be written */
typedef enum ggh_op {
  GGH_OP_EMBED = 0,
  GGH_OP_DELTA_NET = 1,
  GGH_OP_ATTEND = 2,
  GGH_OP_DENSE = 3,
  GGH_OP_EXPERTS = 4,
  GGH_OP_LOGITS = 5,
  GGH_OP_LOAD = 6,
  GGH_OP_STORE = 7
} ggh_op;

/* Parts of a step whose time is counted. */
typedef enum ggh_section {
  GGH_TIME_EMBED = 0,
  GGH_TIME_NORM = 1,
  GGH_TIME_MIXER_IN = 2,
  GGH_TIME_DELTA_RULE = 3,
  GGH_TIME_ATTENTION = 4,
  GGH_TIME_MIXER_OUT = 5,
  GGH_TIME_ROUTER = 6,
  GGH_TIME_FFN_IN = 7,
  GGH_TIME_FFN_OUT = 8,
  GGH_TIME_LOGITS = 9,
  GGH_N_SECTIONS = 10
} ggh_section;

/* Sizes, scratch memory and counters of one loaded model. Uses the pool; must not outlive it. */
typedef struct ggh_model ggh_model;

/* GGH_BAD_SIZE for a model whose sizes the kernels do not support. config is copied, and so are
 * the n_rot / 2 values of rope_inv_freq. */
GGH_API ggh_status ggh_model_create(ggh_pool *pool, int32_t mode, const ggh_model_config *config,
                                    ggh_model **model);
GGH_API void ggh_model_destroy(ggh_model *model);

/* Whether an operation can run with this address; to be asked once for each prepared block. */
GGH_API ggh_status ggh_model_check(const ggh_model *model, int64_t op, const void *address);

/* Runs a step. record: n_rows, then for each row: start, n_tokens, state_read (-1: zeros), n_write,
 * n_logits, n_blocks, followed by its state_write rows, tokens and block ids. */
GGH_API ggh_status ggh_model_step(ggh_model *model, const ggh_store *store, const int32_t *record,
                                  int64_t n_record, const int64_t *ops, int64_t n_ops,
                                  float *logits);

/* Bytes of scratch memory held; nanoseconds per section since creation, GGH_N_SECTIONS values. */
GGH_API size_t ggh_model_scratch_bytes(const ggh_model *model);
GGH_API void ggh_model_times(const ggh_model *model, uint64_t *nanoseconds);

/* ---- reductions over the vocabulary ---------------------------------------------------------- */

/* For each of n_rows rows of n logits, stride elements apart. */
GGH_API ggh_status ggh_argmax(ggh_pool *pool, const float *logits, int64_t n_rows, int64_t n,
                              int64_t stride, int32_t *ids);
GGH_API ggh_status ggh_log_sum_exp(ggh_pool *pool, const float *logits, int64_t n_rows, int64_t n,
                                   int64_t stride, double *sums);
/* The k largest in descending order, the lower id first among equals: ids and values [n_rows, k]. */
GGH_API ggh_status ggh_top_k(ggh_pool *pool, const float *logits, int64_t n_rows, int64_t n,
                             int64_t stride, int64_t k, int32_t *ids, float *values);

#ifdef __cplusplus
}
#endif

#endif
