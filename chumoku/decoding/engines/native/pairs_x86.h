// Products of quantized weights on x86 without AVX-512: 16-bit inputs, multiplied in pairs by one instruction.
//
//     weights   w0 w1 w2 w3 of each output, as bytes   →   w0 w2 and w1 w3, as 16-bit numbers: the even and the odd bytes
//     inputs    x0 x2 x1 x3 of every four              →   a pair is repeated in a register for all outputs
//
// Bytes would have to be multiplied twice, by the halves of inputs, and the sum of two such products may not fit in 16 bits.
#pragma once

#include "vectors.h"

namespace {

#if defined(__x86_64__) && !defined(__AVX512F__)
constexpr bool PAIRED = true;
typedef uint16_t Shorts __attribute__((vector_size(4 * LANES)));

// a0 b0 + a1 b1 of the 16-bit numbers of every word
inline Ints multiply_pairs(Words a, Words b) {
#if defined(__AVX2__)
    return (Ints)_mm256_madd_epi16((__m256i)a, (__m256i)b);
#else
    return (Ints)_mm_madd_epi16((__m128i)a, (__m128i)b);
#endif
}

// Write 32 numbers as pairs.
inline void write_pairs(const Ints (&whole)[GROUP / LANES], int16_t* to) {
    const int32_t* from = reinterpret_cast<const int32_t*>(whole);
    auto four = [&](int i) { return _mm_shuffle_epi32(load<__m128i>(from + i), _MM_SHUFFLE(3, 1, 2, 0)); };
    for (int i = 0; i < GROUP; i += 8) store(to + i, _mm_packs_epi32(four(i), four(i + 4)));
}

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
            asm("" : "+x"(dots[r]));
        }
    }
}
#else
constexpr bool PAIRED = false;
inline void write_pairs(const Ints*, int16_t*) {}
template <int, int R> void dot_pairs(const Bytes*, const int16_t*, int, Ints (&)[R]) {}
#endif

}  // namespace
