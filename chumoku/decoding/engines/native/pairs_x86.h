// Products of quantized weights on x86 with 16-bit inputs, multiplied in pairs by one instruction.
//
//     weights   w0 w1 w2 w3 of each output, as bytes   →   w0 w2 and w1 w3, as 16-bit numbers: the even and the odd bytes
//     inputs    x0 x2 x1 x3 of every four              →   a pair is repeated in a register for all outputs
//
// Processors without VNNI use this for any number of rows, because bytes would have to be multiplied twice, by the halves of
// inputs, and the sum of two such products may not fit in 16 bits. Those with VNNI use it only for many rows (many_rows.h).
#pragma once

#include "vectors.h"

namespace {

#if defined(__x86_64__)
#define HAS_PAIRS 1
typedef uint16_t Shorts __attribute__((vector_size(4 * LANES)));

// a0 b0 + a1 b1 of the 16-bit numbers of every word
inline Ints multiply_pairs(Words a, Words b) {
#if defined(__AVX512F__)
    return (Ints)_mm512_madd_epi16((__m512i)a, (__m512i)b);
#elif defined(__AVX2__)
    return (Ints)_mm256_madd_epi16((__m256i)a, (__m256i)b);
#else
    return (Ints)_mm_madd_epi16((__m128i)a, (__m128i)b);
#endif
}

// sums + a0 b0 + a1 b1
inline Ints add_pairs(Ints sums, Words a, Words b) {
#if defined(__AVX512VNNI__)
    return (Ints)_mm512_dpwssd_epi32((__m512i)sums, (__m512i)a, (__m512i)b);
#else
    sums += multiply_pairs(a, b);
    asm("" : "+v"(sums));  // without this the compiler computes all products first, which do not fit in registers
    return sums;
#endif
}

// Write 32 numbers as pairs.
inline void write_pairs(const Ints (&whole)[GROUP / LANES], int16_t* to) {
    const int32_t* from = reinterpret_cast<const int32_t*>(whole);
    auto four = [&](int i) { return _mm_shuffle_epi32(load<__m128i>(from + i), _MM_SHUFFLE(3, 1, 2, 0)); };
    for (int i = 0; i < GROUP; i += 8) store(to + i, _mm_packs_epi32(four(i), four(i + 4)));
}

#else
#define HAS_PAIRS 0
inline void write_pairs(const Ints*, int16_t*) {}
#endif

#if HAS_PAIRS && !defined(__AVX512VNNI__)
constexpr bool PAIRED = true;

// dots[r][o] = Σ_i w[o][i] · x[r][i] over 4 · WORDS inputs of R rows
template <int WORDS, int R>
[[gnu::always_inline]] inline void dot_pairs(const Bytes* w, const int16_t* x, int stride, Ints (&dots)[R]) {
    const int16_t* rows[R];
    for (int r = 0; r < R; r++) {
        dots[r] = Ints{};
        rows[r] = x + r * size_t(stride);
        asm("" : "+r"(rows[r]));  // keeps the address of a row, which would be computed again for every load
    }
#pragma GCC unroll 8
    for (int j = 0; j < WORDS; j++) {
        Words even = (Words)w[j] & 0x00ff00ff, odd = (Words)((Shorts)w[j] >> 8);
#pragma GCC unroll 8
        for (int r = 0; r < R; r++) {
            const int16_t* from = rows[r] + j * 4;
            dots[r] += multiply_pairs(even, load<uint32_t>(from) + Words{}) +
                       multiply_pairs(odd, load<uint32_t>(from + 2) + Words{});
            // The compiler would first compute all products, which do not fit in registers, and then their sums.
            asm("" : "+v"(dots[r]));
        }
    }
}

// The same for one row and 32 integers of 4 bits (codes.h), of which a 16-bit number has four. The two in its middle are
// multiplied where they are, so their sums are 16 and 256 times too large. |x| is at most LEVELS, so they fit in 32 bits.
inline Ints dot_nibbles(const uint8_t* codes, const int16_t* x) {
    auto pair = [&](int i) { return load<uint32_t>(x + i) + Words{}; };
    Ints sums = {}, second = {}, third = {};
#pragma GCC unroll 4
    for (int j = 0; j < 4; j++) {
        Words w = load<Words>(codes + j * sizeof(Words));
        sums += multiply_pairs(w & 0x000f000f, pair(4 * j));
        second += multiply_pairs(w & 0x00f000f0, pair(4 * j + 16));
        third += multiply_pairs(w & 0x0f000f00, pair(4 * j + 2));
        sums += multiply_pairs((Words)((Shorts)w >> 12), pair(4 * j + 18));
    }
    return sums + (second >> 4) + (third >> 8);
}
#else
constexpr bool PAIRED = false;
inline Ints dot_nibbles(const uint8_t*, const int16_t*) { return Ints{}; }
template <int, int R> void dot_pairs(const Bytes*, const int16_t*, int, Ints (&)[R]) {}
#endif

}  // namespace
