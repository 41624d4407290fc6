// The searches for a group's scale (and minimum) with the least weighted error, lane by lane.
//
// The algorithms are those behind llama.cpp's K quants and IQ4 types: try a few dozen scales around
// the obvious one and keep the best by a least-squares refit. Which candidates, in which order and
// with which ties, decides the bytes.
#pragma once

#include "quantize_lanes.h"

namespace ggh_quantize {

constexpr float kAllZero = 1e-15f;  // groups with no larger magnitude are stored as zeros

// The value of largest magnitude of each group; the first one wins a tie.
template <int lanes, int n>
GGH_INLINE Floats<lanes> extreme(const Floats<lanes> *x) {
  Floats<lanes> largest = {}, value = {};
  for (int i = 0; i < n; ++i) {
    const Floats<lanes> size = magnitude<lanes>(x[i]);
    const Ints<lanes> more = size > largest;
    largest = select<lanes>(more, size, largest);
    value = select<lanes>(more, x[i], value);
  }
  return value;
}

// The value of largest magnitude; the first one wins a tie.
GGH_INLINE float extreme(const float *values, int n) {
  float size = 0, value = 0;
  for (int i = 0; i < n; ++i) {
    if (std::fabs(values[i]) > size) {
      size = std::fabs(values[i]);
      value = values[i];
    }
  }
  return value;
}

GGH_INLINE int held(int value, int low, int high) {
  return value < low ? low : value > high ? high : value;
}

// x ~ scale * (code - n_max), code in [0, 2 * n_max): symmetric types.
template <int lanes, int n>
GGH_INLINE Floats<lanes> search_scale(const Floats<lanes> *x, const Floats<lanes> *weights,
                                      int n_max, Floats<lanes> *codes) {
  const Floats<lanes> max = extreme<lanes, n>(x);
  const Ints<lanes> zero = magnitude<lanes>(max) < kAllZero;
  Floats<lanes> best_inverse = {}, scale = {}, best = {};
  for (int step = -10; step <= 9; ++step) {
    // Step -10 stands for the undisturbed scale, which is tried first; 0 would repeat it.
    if (step == 0) continue;
    const bool first = step == -10;
    const float span = first ? (float)n_max : n_max + 0.1f * step;
    const Floats<lanes> inverse = all<lanes>(-span) / max;
    Floats<lanes> sum_lx = {}, sum_l2 = {};
    for (int i = 0; i < n; ++i) {
      const Floats<lanes> l = code<lanes>(inverse * x[i], -n_max, n_max - 1);
      sum_lx += weights[i] * x[i] * l;
      sum_l2 += weights[i] * l * l;
    }
    const Ints<lanes> usable = sum_l2 > 0;
    const Ints<lanes> better = first ? ~Ints<lanes>{} : usable & (sum_lx * sum_lx > best * sum_l2);
    const Floats<lanes> fitted = select<lanes>(sum_l2 != 0, sum_lx / sum_l2, Floats<lanes>{});
    best_inverse = select<lanes>(better, inverse, best_inverse);
    scale = select<lanes>(better, fitted, scale);
    best = select<lanes>(better, fitted * sum_lx, best);
  }
  for (int i = 0; i < n; ++i) {
    const Floats<lanes> l = code<lanes>(best_inverse * x[i], -n_max, n_max - 1) + (float)n_max;
    codes[i] = select<lanes>(zero, Floats<lanes>{}, l);
  }
  return select<lanes>(zero, Floats<lanes>{}, scale);
}

// As search_scale with weights x², but improving one code after the other (Q3_K). Each code waits
// for the one before it, so lanes would only wait together: one group at a time is faster.
GGH_INLINE float refine_scale(const float *x, int n_max, float *codes) {
  constexpr int n = 16;
  const float max = extreme(x, n);
  if (std::fabs(max) < kAllZero) {
    std::memset(codes, 0, n * sizeof(float));
    return 0;
  }
  const float inverse = -n_max / max;
  int l[n];
  float sum_lx = 0, sum_l2 = 0;
  for (int i = 0; i < n; ++i) {
    l[i] = held(nearest(inverse * x[i]), -n_max, n_max - 1);
    const float w = x[i] * x[i];
    sum_lx += w * x[i] * l[i];
    sum_l2 += w * l[i] * l[i];
  }
  bool changed = true;
  for (int pass = 0; pass < 5 && changed; ++pass) {
    changed = false;
    for (int i = 0; i < n; ++i) {
      const float w = x[i] * x[i];
      float new_lx = sum_lx - w * x[i] * l[i];
      if (!(new_lx > 0)) continue;
      float new_l2 = sum_l2 - w * l[i] * l[i];
      const int trial = held(nearest(x[i] * new_l2 / new_lx), -n_max, n_max - 1);
      if (trial == l[i]) continue;
      new_lx += w * x[i] * trial;
      new_l2 += w * trial * trial;
      if (new_l2 > 0 && new_lx * new_lx * sum_l2 > sum_lx * sum_lx * new_l2) {
        l[i] = trial;
        sum_lx = new_lx;
        sum_l2 = new_l2;
        changed = true;
      }
    }
  }
  for (int i = 0; i < n; ++i) codes[i] = (float)(l[i] + n_max);
  return sum_l2 > 0 ? sum_lx / sum_l2 : 0;
}

// The candidates of search_scale_min: (first + step * i + n_max) / (max - min), i <= count.
struct Steps {
  float first;
  float step;
  int count;
};

template <int lanes, bool absolute>
GGH_INLINE Floats<lanes> penalty(Floats<lanes> difference) {
  return absolute ? magnitude<lanes>(difference) : difference * difference;
}

// A trial code. `bounded` (importance matrix) is clamped before it is rounded, the other way round
// otherwise: they differ when the minimum has come so near to max that the quotient is no number.
template <int lanes, bool bounded>
GGH_INLINE Floats<lanes> trial_code(Floats<lanes> value, int n_max) {
  if (!bounded) return code<lanes>(value, 0, n_max);
  const Floats<lanes> high = all<lanes>((float)n_max);
  const Floats<lanes> held = select<lanes>(value < high, value, high);
  return code<lanes>(select<lanes>(value > 0, held, Floats<lanes>{}), 0, n_max);
}

// x ~ scale * code - minimum, code in [0, n_max], minimum >= 0. The minimum found so far moves the
// candidates that follow. `absolute` weighs |error| instead of its square.
template <int lanes, int n, bool absolute, bool bounded>
GGH_INLINE Floats<lanes> search_scale_min(const Floats<lanes> *x, const Floats<lanes> *weights,
                                          int n_max, Steps steps, Floats<lanes> *codes,
                                          Floats<lanes> *minimum) {
  Floats<lanes> min = x[0], max = x[0], sum_w = weights[0], sum_x = sum_w * x[0];
  for (int i = 1; i < n; ++i) {
    min = select<lanes>(x[i] < min, x[i], min);
    max = select<lanes>(x[i] > max, x[i], max);
    sum_w += weights[i];
    sum_x += weights[i] * x[i];
  }
  min = select<lanes>(min > 0, Floats<lanes>{}, min);
  const Ints<lanes> flat = max == min;
  const Floats<lanes> flat_min = min;
  Floats<lanes> inverse = (float)n_max / (max - min);
  Floats<lanes> scale = 1.f / inverse, best = {};
  for (int i = 0; i < n; ++i) {
    codes[i] = code<lanes>(inverse * (x[i] - min), 0, n_max);
    best += weights[i] * penalty<lanes, absolute>(scale * codes[i] + min - x[i]);
  }
  Floats<lanes> trial[n];
  for (int step = 0; step <= steps.count; ++step) {
    inverse = (steps.first + steps.step * step + n_max) / (max - min);
    Floats<lanes> sum_l = {}, sum_l2 = {}, sum_xl = {};
    for (int i = 0; i < n; ++i) {
      const Floats<lanes> l = trial_code<lanes, bounded>(inverse * (x[i] - min), n_max);
      trial[i] = l;
      const Floats<lanes> weighted = weights[i] * l;
      sum_l += weighted;
      sum_l2 += weighted * l;
      sum_xl += weighted * x[i];
    }
    const Floats<lanes> determinant = sum_w * sum_l2 - sum_l * sum_l;
    Floats<lanes> new_scale = (sum_w * sum_xl - sum_x * sum_l) / determinant;
    Floats<lanes> new_min = (sum_l2 * sum_x - sum_l * sum_xl) / determinant;
    const Ints<lanes> positive = new_min > 0;
    new_scale = select<lanes>(positive, sum_xl / sum_l2, new_scale);
    new_min = select<lanes>(positive, Floats<lanes>{}, new_min);
    Floats<lanes> error = {};
    for (int i = 0; i < n; ++i) {
      error += weights[i] * penalty<lanes, absolute>(new_scale * trial[i] + new_min - x[i]);
    }
    const Ints<lanes> better = (determinant > 0) & (error < best);
    for (int i = 0; i < n; ++i) codes[i] = select<lanes>(better, trial[i], codes[i]);
    best = select<lanes>(better, error, best);
    scale = select<lanes>(better, new_scale, scale);
    min = select<lanes>(better, new_min, min);
  }
  for (int i = 0; i < n; ++i) codes[i] = select<lanes>(flat, Floats<lanes>{}, codes[i]);
  *minimum = -select<lanes>(flat, flat_min, min);
  return select<lanes>(flat, Floats<lanes>{}, scale);
}

// Scales or minima of a super-block, x ~ scale * code with code in [0, n_max] (importance matrix).
template <int n>
GGH_INLINE float search_positive(const float *x, const float *weights, int n_max, uint8_t *codes) {
  float max = 0;
  for (int i = 0; i < n; ++i) max = max > x[i] ? max : x[i];
  if (max < kAllZero) {
    std::memset(codes, 0, n);
    return 0;
  }
  float inverse = n_max / max, best = 0;
  for (int step = -5; step <= 4; ++step) {
    if (step == 0) continue;
    const bool first = step == -5;
    const float trial = first ? inverse : (0.1f * step + n_max) / max;
    const float scale = 1 / trial;
    float error = 0;
    for (int i = 0; i < n; ++i) {
      const int l = nearest(trial * x[i]);
      // The undisturbed scale is judged with its codes as stored, in a byte.
      const float difference = x[i] - scale * (first ? (uint8_t)l : (l < n_max ? l : n_max));
      error += weights[i] * difference * difference;
    }
    if (first || error < best) {
      best = error;
      inverse = trial;
    }
  }
  float sum_lx = 0, sum_l2 = 0;
  for (int i = 0; i < n; ++i) {
    const int rounded = nearest(inverse * x[i]);
    const int l = rounded < n_max ? rounded : n_max;
    codes[i] = (uint8_t)l;
    sum_lx += weights[i] * x[i] * l;
    sum_l2 += weights[i] * l * l;
  }
  for (int pass = 0; pass < 5; ++pass) {
    bool changed = false;
    for (int i = 0; i < n; ++i) {
      const float w = weights[i];
      float new_lx = sum_lx - w * x[i] * codes[i];
      float new_l2 = sum_l2 - w * codes[i] * codes[i];
      if (!(new_lx > 0 && new_l2 > 0)) continue;
      const int rounded = nearest(x[i] * new_l2 / new_lx);
      const int l = rounded < n_max ? rounded : n_max;
      if (l == codes[i]) continue;
      new_lx += w * x[i] * l;
      new_l2 += w * l * l;
      if (new_lx * new_lx * sum_l2 > sum_lx * sum_lx * new_l2) {
        codes[i] = (uint8_t)l;
        sum_lx = new_lx;
        sum_l2 = new_l2;
        changed = true;
      }
    }
    if (!changed) break;
  }
  return sum_l2 > 0 ? sum_lx / sum_l2 : 0;
}

// The sixteen values of the IQ4 types and the borders between neighbours, as float.
constexpr int kLut[16] = {-127, -104, -83, -65, -49, -35, -22, -10,
                          1,    13,   25,  38,  53,  69,  89,  113};

// Index of the LUT value next to each lane (the upper one on a border), as a float.
template <int lanes>
GGH_INLINE Floats<lanes> lut_index(Floats<lanes> value) {
  Ints<lanes> index = {};
  for (int i = 0; i < 15; ++i) index -= value >= (kLut[i] + kLut[i + 1]) * 0.5f;
  return as_float<lanes>(index);
}

// The LUT value next to each lane: a sum of steps, because a table look-up is no vector operation.
template <int lanes>
GGH_INLINE Floats<lanes> lut_value(Floats<lanes> value) {
  Ints<lanes> sum = Ints<lanes>{} + kLut[0];
  for (int i = 0; i < 15; ++i) {
    sum += (value >= (kLut[i] + kLut[i + 1]) * 0.5f) & (kLut[i + 1] - kLut[i]);
  }
  return as_float<lanes>(sum);
}

// x ~ scale * LUT value.
template <int lanes>
GGH_INLINE Floats<lanes> search_lut_scale(const Floats<lanes> *x, const Floats<lanes> *weights) {
  const Floats<lanes> max = extreme<lanes, 32>(x);
  const Ints<lanes> zero = magnitude<lanes>(max) < kAllZero;
  Floats<lanes> scale = {}, best = {};
  for (int step = -8; step <= 7; ++step) {
    const bool first = step == -8;
    const Floats<lanes> inverse =
        first ? 1.f / (-max / (float)kLut[0]) : (float)(step + kLut[0]) / max;
    Floats<lanes> sum_qx = {}, sum_q2 = {};
    for (int i = 0; i < 32; ++i) {
      const Floats<lanes> q = lut_value<lanes>(inverse * x[i]);
      const Floats<lanes> weighted = weights[i] * q;
      sum_qx += weighted * x[i];
      sum_q2 += weighted * q;
    }
    const Ints<lanes> usable = sum_q2 > 0;
    const Ints<lanes> better = first ? ~Ints<lanes>{} : usable & (sum_qx * sum_qx > best * sum_q2);
    const Floats<lanes> fitted = select<lanes>(usable, sum_qx / sum_q2, Floats<lanes>{});
    scale = select<lanes>(better, fitted, scale);
    best = select<lanes>(better, fitted * sum_qx, best);
  }
  return select<lanes>(zero, Floats<lanes>{}, scale);
}

}  // namespace ggh_quantize
