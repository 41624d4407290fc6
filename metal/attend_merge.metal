// The splits of `attend_split` joined in their order, times sigmoid(gate): float32 and records. A threadgroup
// of D lanes takes one head of one query.
//: in float part_o
//: in float part_ml
//: in float qg
//: out float yf
//: out uint yq
//: const int D
//: const int NH
//: const int S
const size_t head = threadgroup_position_in_grid.x;
const int tid = int(thread_index_in_threadgroup), lane = int(thread_index_in_simdgroup);
float highest = -3.0e38f;
for (int s = 0; s < S; ++s) highest = fmax(highest, part_ml[2 * (head * S + s)]);
float sum = 0.0f, mass = 0.0f;
for (int s = 0; s < S; ++s) {
  const size_t at = head * S + s;
  const float weight = exp(part_ml[2 * at] - highest);
  mass += weight * part_ml[2 * at + 1];
  sum += weight * part_o[at * D + tid];
}
const float v = sum / mass * sigmoid(qg[head * 2 * D + D + tid]);
const size_t at = head * D + tid;
yf[at] = v;
store_record(yq, int(head) / NH, int(head) % NH * (D / 32) + int(simdgroup_index_in_threadgroup),
             NH * (D / 32), v, lane);
