// Norms: y = γ (x − mean) / √(mean((x − mean)²) + ε) + β, with mean 0 for RMS norms; a fixed scale and shift for batch norms.
#pragma once

#include <cmath>
#include <cstring>

#include "structs.h"
#include "vectors.h"

namespace {

// Σ (x − mean)^power, power 1 or 2.
inline float sum(const float* x, int width, float mean, bool square) {
    Floats sums = {};
    int i = 0;
    for (; i + LANES <= width; i += LANES) {
        Floats part = load<Floats>(x + i) - mean;
        sums = square ? fma(part, part, sums) : sums + part;
    }
    float all = total(sums);
    for (; i < width; i++) all += square ? (x[i] - mean) * (x[i] - mean) : x[i] - mean;
    return all;
}

// y may be x. Without a norm, y = x.
inline void normalize(const Norm& norm, int width, const float* x, float* y) {
    if (norm.kind == NONE) {
        if (x != y) std::memcpy(y, x, width * sizeof(float));
        return;
    }
    float mean = norm.kind == LAYER ? sum(x, width, 0, false) / width : 0;
    float by = norm.kind == AFFINE ? 1 : 1 / std::sqrt(sum(x, width, mean, true) / width + norm.epsilon);
    for (int i = 0; i < width; i++) y[i] = (x[i] - mean) * by * norm.gamma[i] + (norm.beta ? norm.beta[i] : 0.0f);
}

}  // namespace
