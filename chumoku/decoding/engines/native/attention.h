// softmax(scores of q and K) V of one query, for the query heads that share a key head.
#pragma once

#include <algorithm>
#include <cmath>
#include <vector>

#include "vectors.h"

namespace {

// Lane l is the sum of two lanes of a if bit D of l is 0, of b if it is 1.
template <int D> Floats fold(Floats a, Floats b) {
    Words here, there;
    for (unsigned l = 0; l < LANES; l++) {
        here[l] = (l & D ? LANES : 0) + l;
        there[l] = (l & D ? LANES : 0) + (l ^ D);
    }
    return __builtin_shuffle(a, b, here) + __builtin_shuffle(a, b, there);
}

// Add up the lanes of vectors 0, D, 2 D …: lane l of the result is the sum of vector l.
template <int D> Floats fold_all(Floats* part) {
    if constexpr (D == LANES) return part[0];
    else {
        for (int t = 0; t < LANES; t += 2 * D) part[t] = fold<D>(part[t], part[t + D]);
        return fold_all<2 * D>(part);
    }
}

// q · k for LANES keys at once.
inline Floats dots(const float* query, const float* const* keys, int width) {
    Floats part[LANES] = {};
    int i = 0;
    for (; i + LANES <= width; i += LANES) {
        Floats q = load<Floats>(query + i);
        for (int t = 0; t < LANES; t++) part[t] = fma(q, load<Floats>(keys[t] + i), part[t]);
    }
    Floats sums = fold_all<1>(part);
    for (; i < width; i++)
        for (int t = 0; t < LANES; t++) sums[t] += query[i] * keys[t][i];
    return sums;
}

// out[h] = Σ_t s[h][t] v[t] for S heads, four registers of each head at a time.
template <int S, class At>
void mix(const float* scores, int stride, int length, const At& value, int width, float* out) {
    int i = 0;
    for (; i + 4 * LANES <= width; i += 4 * LANES) {
        Floats sums[S][4] = {};
        for (int t = 0; t < length; t++) {
            const float* v = value(t) + i;
            for (int j = 0; j < 4; j++) {
                Floats part = load<Floats>(v + j * LANES);
                for (int h = 0; h < S; h++) sums[h][j] = fma(part, spread(scores[h * stride + t]), sums[h][j]);
            }
        }
        for (int h = 0; h < S; h++)
            for (int j = 0; j < 4; j++) store(out + h * width + i + j * LANES, sums[h][j]);
    }
    for (int h = 0; h < S; h++)
        for (int rest = i; rest < width; rest++) {
            float sum = 0;
            for (int t = 0; t < length; t++) sum += scores[h * stride + t] * value(t)[rest];
            out[h * width + rest] = sum;
        }
}

// What becomes of q · k: cap · tanh(score / cap) of score = scale (q · k + q · r) + bias.
struct Scoring {
    float scale, cap;                 // cap 0: no soft-capping
    const float* relative = nullptr;  // [2 clip + 1, width]: the r of each distance, or null
    int clip = 0, distance = 0;       // of the query from the first key
    const float* bias = nullptr;      // of the first head for the first key, or null
    size_t next_head = 0;             // from the bias of one head to that of the next

    const float* offset(int t, int width) const {
        return relative + size_t(std::clamp(distance - t, -clip, clip) + clip) * width;
    }
    void finish(float* scores, int head, int length) const {
        if (bias)
            for (int t = 0; t < length; t++) scores[t] += bias[head * next_head + t];
        if (cap)
            for (int t = 0; t < length; t += LANES)
                store(scores + t, hyperbolic_tangent(load<Floats>(scores + t) / cap) * cap);
    }
};

// Attention of `shared` queries [width] over `length` positions. at(t) points to the keys of position t, and `values`
// further on are its values.
template <class At>
void attend(const float* query, int shared, int width, int length, size_t values, const At& at, const Scoring& scoring,
            float* out) {
    thread_local std::vector<float> space;
    int stride = (length + LANES - 1) / LANES * LANES;
    space.resize(size_t(shared) * stride);
    float* scores = space.data();
    for (int t = 0; t < length; t += LANES) {
        const float *keys[LANES], *offsets[LANES];
        for (int i = 0; i < LANES; i++) keys[i] = at(std::min(t + i, length - 1));
        if (scoring.relative)
            for (int i = 0; i < LANES; i++) offsets[i] = scoring.offset(t + i, width);
        for (int h = 0; h < shared; h++) {
            Floats found = dots(query + h * width, keys, width);
            if (scoring.relative) found += dots(query + h * width, offsets, width);
            store(scores + h * stride + t, found * scoring.scale);
        }
    }
    for (int h = 0; h < shared; h++) {
        float* s = scores + h * stride;
        scoring.finish(s, h, length);
        for (int t = length; t < stride; t++) s[t] = -INFINITY;
        Floats top = load<Floats>(s), sum = {};
        for (int t = LANES; t < stride; t += LANES) top = at_least(load<Floats>(s + t), top);
        float highest = largest(top);
        for (int t = 0; t < stride; t += LANES) {
            Floats share = exponential(load<Floats>(s + t) - highest);
            store(s + t, share);
            sum += share;
        }
        float all = total(sum);
        for (int t = 0; t < stride; t += LANES) store(s + t, load<Floats>(s + t) / all);
    }
    for (int h = 0; h < shared; h += 4) {
        float *s = scores + h * stride, *to = out + h * width;
        auto value = [&](int t) { return at(t) + values; };
        switch (std::min(4, shared - h)) {
            case 1: mix<1>(s, stride, length, value, width, to); break;
            case 2: mix<2>(s, stride, length, value, width, to); break;
            case 3: mix<3>(s, stride, length, value, width, to); break;
            default: mix<4>(s, stride, length, value, width, to);
        }
    }
}

}  // namespace
