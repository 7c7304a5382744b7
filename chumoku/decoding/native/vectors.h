// Registers of 16 numbers, and the few functions that every part of a step needs on them.
#pragma once

#include <cstdint>
#include <cstring>
#if defined(__x86_64__)
#include <immintrin.h>
#endif

namespace {

constexpr int LANES = 16, GROUP = 32, ROWS = 8, TILE = 16, AHEAD = 2048;

typedef float Floats __attribute__((vector_size(64)));
typedef int32_t Ints __attribute__((vector_size(64)));
typedef uint32_t Words __attribute__((vector_size(64)));
typedef uint8_t Bytes __attribute__((vector_size(64)));
typedef int8_t Chars __attribute__((vector_size(16)));
typedef _Float16 Halves __attribute__((vector_size(32)));

template <class V> V load(const void* from) {
    V v;
    std::memcpy(&v, from, sizeof v);
    return v;
}
template <class V> void store(void* to, V v) { std::memcpy(to, &v, sizeof v); }

Floats from_half(const void* from) {
#if defined(__AVX512F__)
    return (Floats)_mm512_maskz_cvtph_ps(0xffff, load<__m256i>(from));
#else
    return __builtin_convertvector(load<Halves>(from), Floats);
#endif
}

// sums[o] += Σ_{i<4} w[o][i] · x[i]
inline Ints dot4(Ints sums, Bytes w, const int8_t* x) {
#if defined(__AVX512VNNI__)
    return (Ints)_mm512_dpbusd_epi32((__m512i)sums, (__m512i)w, _mm512_set1_epi32(load<int32_t>(x)));
#else
    for (int o = 0; o < LANES; o++)
        for (int i = 0; i < 4; i++) sums[o] += int32_t(w[4 * o + i]) * x[i];
    return sums;
#endif
}

Floats least(Floats a, Floats b) { return a < b ? a : b; }
Floats most(Floats a, Floats b) { return a > b ? a : b; }
Floats magnitude(Floats a) { return (Floats)((Ints)a & 0x7fffffff); }

// The nearest whole numbers: added to 1.5 · 2²³, a float has no room for anything behind the point.
Ints nearest(Floats x) { return (Ints)(x + 12582912.0f) - 0x4b400000; }

// eˣ to 1e-7: 2ⁿ · e^r with |r| ≤ ln 2 / 2.
Floats exponential(Floats x) {
    x = most(least(x, Floats{} + 88.0f), Floats{} - 87.0f);
    Ints n = nearest(x * 1.44269504f);
    Floats whole = __builtin_convertvector(n, Floats);
    Floats r = x - whole * 0.693145752f - whole * 1.42860677e-6f;
    Floats p = 0.00833333333f + r * 0.00138888889f;
    p = 1.0f + r * (1.0f + r * (0.5f + r * (0.166666667f + r * (0.0416666667f + r * p))));
    return p * (Floats)((n + 127) << 23);
}
Floats sigmoid(Floats x) { return 1.0f / (1.0f + exponential(-x)); }
// Abramowitz and Stegun 7.1.26, to 1.5e-7.
Floats error_function(Floats x) {
    Floats a = magnitude(x), t = 1.0f / (1.0f + 0.3275911f * a);
    Floats p = t * (0.254829592f + t * (-0.284496736f + t * (1.421413741f + t * (-1.453152027f + t * 1.061405429f))));
    Floats above = 1.0f - p * exponential(-a * a);
    return x < 0.0f ? -above : above;
}

enum Activation { RELU, GELU, GELU_TANH, SILU };
Floats activated(int kind, Floats x) {
    switch (kind) {
        case RELU: return most(x, Floats{});
        case GELU: return 0.5f * x * (1.0f + error_function(x * 0.707106781f));
        case GELU_TANH: return x * sigmoid(1.59576912f * (x + 0.044715f * x * x * x));  // ½(1 + tanh u) = σ(2u)
        default: return x * sigmoid(x);
    }
}

float total(Floats x) {
    float sum = 0;
    for (int i = 0; i < LANES; i++) sum += x[i];
    return sum;
}
float largest(Floats x) {
    float found = x[0];
    for (int i = 1; i < LANES; i++) found = x[i] > found ? x[i] : found;
    return found;
}

}  // namespace
