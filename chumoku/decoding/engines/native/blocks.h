// The blocks of GGUF files (nn/gguf_blocks.py has their formulas): integers and scales of 32 or 256 weights.
#pragma once

#include <cstdint>
#include <cstring>

#include "structs.h"

namespace {

// w = d s (q − center) + e t, with one s and t for 16 or 32 weights; blocks of 32 weights have no s and t.
struct Unpacked {
    uint8_t q[256];
    uint16_t d = 0, e = 0;  // float16
    int8_t s[16], t[16];
};

inline uint16_t read_half(const uint8_t* from) { return uint16_t(from[0] | from[1] << 8); }

inline void unpack_32(const uint8_t* fifths, const uint8_t* codes, Unpacked& to) {
    for (int i = 0; i < 16; i++) to.q[i] = codes[i] & 15, to.q[i + 16] = codes[i] >> 4;
    for (int i = 0; fifths && i < 32; i++) to.q[i] |= (fifths[i / 8] >> i % 8 & 1) << 4;
}

// Q4_K and Q5_K: 8 × 32 weights; the last four 6-bit s and t are divided between two bytes.
inline void unpack_k(const uint8_t* from, bool fifth, Unpacked& to) {
    const uint8_t *s = from + 4, *t = s + 4, *rest = s + 8, *fifths = s + 12, *codes = fifths + (fifth ? 32 : 0);
    to.d = read_half(from), to.e = read_half(from + 2) ^ 0x8000;  // the file has −e
    for (int i = 0; i < 4; i++) {
        to.s[i] = s[i] & 63, to.s[i + 4] = (rest[i] & 15) | s[i] >> 6 << 4;
        to.t[i] = t[i] & 63, to.t[i + 4] = rest[i] >> 4 | t[i] >> 6 << 4;
    }
    for (int g = 0; g < 8; g++)
        for (int i = 0; i < 32; i++) {
            uint8_t q = codes[g / 2 * 32 + i] >> g % 2 * 4 & 15;
            to.q[g * 32 + i] = fifth ? q | (fifths[i] >> g & 1) << 4 : q;
        }
}

inline void unpack_q6_k(const uint8_t* from, Unpacked& to) {
    const uint8_t* upper = from + 128;
    std::memcpy(to.s, from + 192, 16);
    to.d = read_half(from + 208);
    for (int g = 0; g < 8; g++) {
        const uint8_t *four = from + g / 4 * 64 + g % 2 * 32, *two = upper + g / 4 * 32;
        for (int i = 0; i < 32; i++) to.q[g * 32 + i] = (four[i] >> g % 4 / 2 * 4 & 15) | (two[i] >> g % 4 * 2 & 3) << 4;
    }
}

inline void unpack_q2_k(const uint8_t* from, Unpacked& to) {
    for (int i = 0; i < 16; i++) to.s[i] = from[i] & 15, to.t[i] = from[i] >> 4;
    to.d = read_half(from + 80), to.e = read_half(from + 82) ^ 0x8000;
    for (int g = 0; g < 8; g++)
        for (int i = 0; i < 32; i++) to.q[g * 32 + i] = from[16 + g / 4 * 32 + i] >> g % 4 * 2 & 3;
}

inline void unpack_q3_k(const uint8_t* from, Unpacked& to) {
    const uint8_t *codes = from + 32, *s = from + 96;
    to.d = read_half(from + 108);
    for (int i = 0; i < 16; i++) to.s[i] = ((s[i % 8] >> i / 8 * 4 & 15) | (s[8 + i % 4] >> i / 4 * 2 & 3) << 4) - 32;
    for (int g = 0; g < 8; g++)
        for (int i = 0; i < 32; i++)
            to.q[g * 32 + i] = (codes[g / 4 * 32 + i] >> g % 4 * 2 & 3) | (from[i] >> g & 1) << 2;
}

inline Unpacked unpack(int kind, const uint8_t* from) {
    Unpacked to;
    if (kind < Q2_K) to.d = read_half(from), to.e = read_half(from + 2);
    switch (kind) {
        case Q5_0: unpack_32(from + 2, from + 6, to); break;
        case Q5_1: unpack_32(from + 4, from + 8, to); break;
        case IQ4_NL: unpack_32(nullptr, from + 2, to); break;
        case Q2_K: unpack_q2_k(from, to); break;
        case Q3_K: unpack_q3_k(from, to); break;
        case Q6_K: unpack_q6_k(from, to); break;
        default: unpack_k(from, kind == Q5_K, to);
    }
    return to;
}

}  // namespace
