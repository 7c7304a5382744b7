// SIMD registers of LANES numbers, and the functions on them.
//
// Results must not depend on how many rows are computed together. So the library is compiled without contraction and
// reassociation, and a fused multiply-add is written explicitly as `fma`.
#pragma once

#include <cmath>
#include <cstdint>
#include <cstring>
#include <new>
#include <vector>
#if defined(__x86_64__)
#include <immintrin.h>
#elif defined(__aarch64__)
#include <arm_neon.h>
#elif defined(__wasm__)
#include <wasm_simd128.h>
#endif

namespace {

#if defined(__aarch64__)
constexpr int LANES = 4, BLOCKS = 4, ROWS = 4;  // 16-byte registers, 32 of them
#elif defined(__AVX512F__)
constexpr int LANES = 16, BLOCKS = 2, ROWS = 8;  // 64-byte registers, 32 of them
#elif defined(__AVX2__)
constexpr int LANES = 8, BLOCKS = 2, ROWS = 4;  // 32-byte registers, 16 of them
#else
constexpr int LANES = 4, BLOCKS = 2, ROWS = 4;  // 16-byte registers; x86 processors have 16 of them
#endif
#if defined(__ARM_FEATURE_DOTPROD) || defined(__wasm__)
constexpr int OFFSET = 0;  // int8 weights are stored unchanged: the processor multiplies signed by signed numbers
#else
constexpr int OFFSET = 128;  // int8 weights are stored with 128 added: unsigned by signed bytes
#endif
constexpr int GROUP = 32, AHEAD = 2048;

typedef float Floats __attribute__((vector_size(4 * LANES)));
typedef int32_t Ints __attribute__((vector_size(4 * LANES)));
typedef uint32_t Words __attribute__((vector_size(4 * LANES)));
typedef uint8_t Bytes __attribute__((vector_size(4 * LANES)));
typedef int8_t Chars __attribute__((vector_size(LANES)));

template <class V> inline V load(const void* from) {
    V v;
    std::memcpy(&v, from, sizeof v);
    return v;
}
template <class V> inline void store(void* to, V v) { std::memcpy(to, &v, sizeof v); }

// A vector that begins with a cache line, so that registers are loaded from one line and not from parts of two.
#if defined(__wasm__)
template <class T> using Lines = std::vector<T>;
#else
template <class T> struct LineAllocator {
    typedef T value_type;
    LineAllocator() = default;
    template <class U> LineAllocator(const LineAllocator<U>&) {}
    T* allocate(size_t count) { return static_cast<T*>(::operator new(count * sizeof(T), std::align_val_t(64))); }
    void deallocate(T* from, size_t) { ::operator delete(from, std::align_val_t(64)); }
    template <class U> bool operator==(const LineAllocator<U>&) const { return true; }
};
template <class T> using Lines = std::vector<T, LineAllocator<T>>;
#endif

// run<0>() … run<COUNT − 1>(): numbers that are known when variables are assigned to registers, unlike those of a loop.
template <int COUNT, int I = 0, class Run> [[gnu::always_inline]] inline void each_number(const Run& run) {
    run.template operator()<I>();
    if constexpr (I + 1 < COUNT) each_number<COUNT, I + 1>(run);
}

inline Floats spread(float value) { return value - Floats{}; }

// a · b + c, rounded once if the processor has a fused multiply-add.
inline Floats fma(Floats a, Floats b, Floats c) {
#if defined(__AVX512F__)
    return (Floats)_mm512_fmadd_ps((__m512)a, (__m512)b, (__m512)c);
#elif defined(__AVX2__) && defined(__FMA__)
    return (Floats)_mm256_fmadd_ps((__m256)a, (__m256)b, (__m256)c);
#elif defined(__aarch64__)
    return (Floats)vfmaq_f32((float32x4_t)c, (float32x4_t)a, (float32x4_t)b);
#else
    return a * b + c;
#endif
}

inline float from_half(uint16_t half) {
    int32_t sign = (half & 0x8000) << 16, exponent = half >> 10 & 31, fraction = half & 1023;
    if (exponent == 0) return (sign ? -1.0f : 1.0f) * std::ldexp(float(fraction), -24);
    int32_t bits = sign | (exponent == 31 ? 255 : exponent + 112) << 23 | fraction << 13;
    return load<float>(&bits);
}
inline Floats from_halves(const void* from) {
#if defined(__AVX512F__)
    return (Floats)_mm512_maskz_cvtph_ps(0xffff, load<__m256i>(from));
#elif defined(__AVX2__) && defined(__F16C__)
    return (Floats)_mm256_cvtph_ps(load<__m128i>(from));
#elif defined(__aarch64__)
    return (Floats)vcvt_f32_f16(load<float16x4_t>(from));
#else
    Floats found;
    for (int i = 0; i < LANES; i++) found[i] = from_half(load<uint16_t>(static_cast<const uint16_t*>(from) + i));
    return found;
#endif
}

inline Floats from_bytes(const void* from) {
#if defined(__AVX512F__)
    return (Floats)_mm512_cvtepi32_ps(_mm512_cvtepi8_epi32(load<__m128i>(from)));
#elif defined(__AVX2__)
    return (Floats)_mm256_cvtepi32_ps(_mm256_cvtepi8_epi32(_mm_loadl_epi64(static_cast<const __m128i*>(from))));
#elif defined(__aarch64__)
    int8x8_t bytes = vreinterpret_s8_u32(vdup_n_u32(load<uint32_t>(from)));
    return (Floats)vcvtq_f32_s32(vmovl_s16(vget_low_s16(vmovl_s8(bytes))));
#else
    return __builtin_convertvector(load<Chars>(from), Floats);
#endif
}

// sums[o] += Σ_{i<4} w[o][i] · x[i]
inline Ints dot4(Ints sums, Bytes w, const int8_t* x) {
#if defined(__AVX512VNNI__)
    return (Ints)_mm512_dpbusd_epi32((__m512i)sums, (__m512i)w, _mm512_set1_epi32(load<int32_t>(x)));
#elif defined(__ARM_FEATURE_DOTPROD)
    int8x16_t four = vreinterpretq_s8_s32(vdupq_n_s32(load<int32_t>(x)));
    return (Ints)vdotq_s32((int32x4_t)sums, vreinterpretq_s8_u8((uint8x16_t)w), four);
#else
    for (int o = 0; o < LANES; o++)
        for (int i = 0; i < 4; i++) sums[o] += int32_t(w[4 * o + i]) * x[i];
    return sums;
#endif
}

// The upper four bits of every byte.
inline Bytes upper_four(Bytes bytes) {
#if defined(__GFNI__) && defined(__AVX512F__)
    // One instruction: the product of every byte with an 8 × 8 bit matrix that shifts it by four.
    return (Bytes)_mm512_gf2p8affine_epi64_epi8((__m512i)bytes, _mm512_set1_epi64(0x1020408000000000), 0);
#else
    return bytes >> 4;
#endif
}

// For every byte, the number at that place of a table.
inline Bytes look_up(const uint8_t (&table)[16], Bytes places) {
#if defined(__AVX512BW__)
    return (Bytes)_mm512_shuffle_epi8(_mm512_broadcast_i32x4(load<__m128i>(table)), (__m512i)places);
#elif defined(__AVX2__) && !defined(__AVX512F__)
    return (Bytes)_mm256_shuffle_epi8(_mm256_broadcastsi128_si256(load<__m128i>(table)), (__m256i)places);
#elif defined(__SSSE3__)
    return (Bytes)_mm_shuffle_epi8(load<__m128i>(table), (__m128i)places);
#elif defined(__aarch64__)
    return (Bytes)vqtbl1q_u8(vld1q_u8(table), (uint8x16_t)places);
#else
    for (int i = 0; i < 4 * LANES; i++) places[i] = table[places[i]];
    return places;
#endif
}

// The smaller or larger of two numbers; NaN if `value` is NaN.
inline Floats at_most(Floats value, Floats bound) { return value > bound ? bound : value; }
inline Floats at_least(Floats value, Floats bound) { return value < bound ? bound : value; }
inline Floats magnitude(Floats a) { return (Floats)((Ints)a & 0x7fffffff); }

// Round to the nearest integer: a float above 2²³ has no fractional bits.
inline Ints nearest(Floats x) { return (Ints)(x + 12582912.0f) - 0x4b400000; }

// Write the bytes h and l of 32 numbers 256 h + l; l is from −128 to 127.
inline void split_bytes(const Ints (&whole)[GROUP / LANES], int8_t* high, int8_t* low) {
#if defined(__aarch64__)
    for (int i = 0; i < GROUP / LANES; i += 2) {
        int16x8_t both = vcombine_s16(vmovn_s32((int32x4_t)whole[i]), vmovn_s32((int32x4_t)whole[i + 1]));
        vst1_s8(high + i * LANES, vrshrn_n_s16(both, 8));
        vst1_s8(low + i * LANES, vmovn_s16(both));
    }
#else
    for (int i = 0; i < GROUP / LANES; i++) {
        Ints upper = (whole[i] + 128) >> 8;
        store(high + i * LANES, __builtin_convertvector(upper, Chars));
        store(low + i * LANES, __builtin_convertvector(whole[i] - upper * 256, Chars));
    }
#endif
}

// eˣ to 1e-7: 2ⁿ · e^r with |r| ≤ ln 2 / 2. NaN stays NaN; ∞ where PyTorch has ∞, 0 below −87.
inline Floats exponential(Floats x) {
    Floats bounded = at_least(at_most(x, spread(88.0f)), spread(-87.0f));
    Ints n = nearest(bounded * 1.44269504f);
    Floats whole = __builtin_convertvector(n, Floats);
    Floats r = fma(whole, spread(-1.42860677e-6f), fma(whole, spread(-0.693145752f), bounded));
    Floats p = fma(r, spread(0.00138888889f), spread(0.00833333333f));
    for (float next : {0.0416666667f, 0.166666667f, 0.5f, 1.0f, 1.0f}) p = fma(r, p, spread(next));
    p = p * (Floats)((n + 127) << 23);
    p = x > 88.0f ? spread(INFINITY) : p;
    return x < -87.0f ? Floats{} : p;
}
inline Floats sigmoid(Floats x) { return 1.0f / (1.0f + exponential(-x)); }
// To 5e-7 of the result: the series of tanh near 0, else (1 − e^(−2|x|)) / (1 + e^(−2|x|)).
inline Floats hyperbolic_tangent(Floats x) {
    Floats a = magnitude(x), squared = x * x, p = spread(62 / 2835.0f), e = exponential(-2.0f * a);
    for (float next : {-17 / 315.0f, 2 / 15.0f, -1 / 3.0f, 1.0f}) p = fma(squared, p, spread(next));
    Floats far = (1.0f - e) / (1.0f + e);
    return a < 0.25f ? x * p : x < 0.0f ? -far : far;
}
// Abramowitz and Stegun 7.1.26, to 1.5e-7.
inline Floats error_function(Floats x) {
    Floats a = magnitude(x), t = 1.0f / fma(a, spread(0.3275911f), spread(1.0f)), p = spread(1.061405429f);
    for (float next : {-1.453152027f, 1.421413741f, -0.284496736f, 0.254829592f}) p = fma(t, p, spread(next));
    Floats above = 1.0f - t * p * exponential(-a * a);
    return x < 0.0f ? -above : above;
}

enum Activation { RELU, GELU, GELU_TANH, SILU };
inline Floats activate(int kind, Floats x) {
    switch (kind) {
        case RELU: return at_least(x, Floats{});
        case GELU: return 0.5f * x * (1.0f + error_function(x * 0.707106781f));
        case GELU_TANH: return x * sigmoid(1.59576912f * fma(x * x * x, spread(0.044715f), x));  // ½(1 + tanh u) = σ(2u)
        default: return x * sigmoid(x);
    }
}

inline int32_t total(Ints x) {
#if defined(__aarch64__)
    return vaddvq_s32((int32x4_t)x);
#elif defined(__AVX512F__)
    return _mm512_reduce_add_epi32((__m512i)x);
#else
    int32_t sum = 0;
    for (int i = 0; i < LANES; i++) sum += x[i];
    return sum;
#endif
}
inline int32_t largest(Ints x) {
#if defined(__aarch64__)
    return vmaxvq_s32((int32x4_t)x);
#elif defined(__AVX512F__)
    return _mm512_reduce_max_epi32((__m512i)x);
#else
    int32_t found = x[0];
    for (int i = 1; i < LANES; i++) found = x[i] > found ? x[i] : found;
    return found;
#endif
}
inline float total(Floats x) {
    float sum = 0;
    for (int i = 0; i < LANES; i++) sum += x[i];
    return sum;
}
inline float largest(Floats x) {
    float found = x[0];
    for (int i = 1; i < LANES; i++) found = x[i] > found ? x[i] : found;
    return found;
}

}  // namespace
