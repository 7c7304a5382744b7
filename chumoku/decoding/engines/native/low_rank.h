// Low-rank products of LoRA adapters: y += B A x
#pragma once

#include <algorithm>

#include "attention.h"
#include "structs.h"
#include "vectors.h"

namespace {

inline void add_low_rank(const LowRank& m, const float* x, float* y) {
    for (int first = 0; first < m.rank; first += LANES) {
        const float *rows[LANES], *b = m.b + size_t(first) * m.outputs;
        for (int k = 0; k < LANES; k++) rows[k] = m.a + size_t(first + k) * m.inputs;
        Floats by;
        dots<1>(&x, rows, m.inputs, &by);
        int some = std::min(LANES, m.rank - first), o = 0;
        for (; o + LANES <= m.outputs; o += LANES) {
            Floats sums = load<Floats>(y + o);
            for (int k = 0; k < some; k++) sums = fma(load<Floats>(b + size_t(k) * m.outputs + o), spread(by[k]), sums);
            store(y + o, sums);
        }
        for (; o < m.outputs; o++)
            for (int k = 0; k < some; k++) y[o] += by[k] * b[size_t(k) * m.outputs + o];
    }
}

}  // namespace
