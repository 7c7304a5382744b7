// softmax(q Kᵀ / √d) V of one query, for the query heads that share a key head.
#pragma once

#include <algorithm>
#include <cmath>
#include <vector>

#include "vectors.h"

namespace {

// Lane l of the sum of a's neighbours where bit D of l is 0, of b's where it is 1.
template <int D> Floats fold(Floats a, Floats b) {
    Words here, there;
    for (unsigned l = 0; l < LANES; l++) {
        here[l] = (l & D ? LANES : 0) + l;
        there[l] = (l & D ? LANES : 0) + (l ^ D);
    }
    return __builtin_shuffle(a, b, here) + __builtin_shuffle(a, b, there);
}

// q · k for 16 keys at once: 16 vectors of partial sums, folded until lane l is the sum of vector l.
inline Floats dots(const float* query, const float* const* keys, int width) {
    Floats part[LANES] = {};
    int i = 0;
    for (; i + LANES <= width; i += LANES) {
        Floats q = load<Floats>(query + i);
        for (int t = 0; t < LANES; t++) part[t] += q * load<Floats>(keys[t] + i);
    }
    for (int t = 0; t < LANES; t += 2) part[t] = fold<1>(part[t], part[t + 1]);
    for (int t = 0; t < LANES; t += 4) part[t] = fold<2>(part[t], part[t + 2]);
    for (int t = 0; t < LANES; t += 8) part[t] = fold<4>(part[t], part[t + 4]);
    Floats sums = fold<8>(part[0], part[8]);
    for (; i < width; i++)
        for (int t = 0; t < LANES; t++) sums[t] += query[i] * keys[t][i];
    return sums;
}

// out[h] = Σ_t s[h][t] v[t] for S heads, 64 numbers of a head at a time in registers.
template <int S, class At>
void mix(const float* scores, int stride, int length, const At& value, int width, float* out) {
    int i = 0;
    for (; i + 4 * LANES <= width; i += 4 * LANES) {
        Floats sums[S][4] = {};
        for (int t = 0; t < length; t++) {
            const float* v = value(t) + i;
            for (int j = 0; j < 4; j++) {
                Floats part = load<Floats>(v + j * LANES);
                for (int h = 0; h < S; h++) sums[h][j] += part * scores[h * stride + t];
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

// `shared` queries of `width` numbers each, over `length` positions. `at(t)` says where position t's keys begin.
template <class At>
void look(const float* query, int shared, int width, int length, size_t values, const At& at, float* out) {
    thread_local std::vector<float> space;
    int stride = (length + LANES - 1) / LANES * LANES;
    space.resize(size_t(shared) * stride);
    float *scores = space.data(), scale = 1 / std::sqrt(float(width));
    for (int t = 0; t < length; t += LANES) {
        const float* keys[LANES];
        for (int i = 0; i < LANES; i++) keys[i] = at(std::min(t + i, length - 1));
        for (int h = 0; h < shared; h++) store(scores + h * stride + t, dots(query + h * width, keys, width) * scale);
    }
    for (int h = 0; h < shared; h++) {
        float* s = scores + h * stride;
        for (int t = length; t < stride; t++) s[t] = -INFINITY;
        Floats top = load<Floats>(s), sum = {};
        for (int t = LANES; t < stride; t += LANES) top = most(top, load<Floats>(s + t));
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
