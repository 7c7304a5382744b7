// Integers of 2 to 8 bits in words: 32 of them, 4 in each of 8 registers, become as many words as they have bits.
//
//     4 bits   register j and j + 4 share a word            2 bits   registers j … j + 3 share a word
//     others   a byte of a word has one integer (of 3 bits, two) in its lower bits; its upper bits are left for the rest
#pragma once

#include <cstdint>
#include <cstring>

#include "vectors.h"

namespace {

template <int BITS> [[gnu::always_inline]] inline void read_codes(const uint8_t* from, Bytes* q) {
    auto w = [&](int i) { return load<Bytes>(from + i * sizeof(Bytes)); };
    if constexpr (BITS == 8)
        for (int j = 0; j < 8; j++) q[j] = w(j);
    if constexpr (BITS == 6)
        for (int j = 0, i = 0; j < 8; j += 4, i += 3) {
            for (int k = 0; k < 3; k++) q[j + k] = w(i + k) & 63;
            q[j + 3] = w(i) >> 6 | (w(i + 1) >> 4 & 12) | (w(i + 2) >> 2 & 48);
        }
    if constexpr (BITS == 5) {
        for (int j = 0; j < 5; j++) q[j] = w(j) & 31;
        q[5] = w(0) >> 5 | (w(1) >> 2 & 24);
        q[6] = w(2) >> 5 | (w(3) >> 2 & 24);
        q[7] = w(4) >> 5 | (w(1) >> 4 & 8) | (w(3) >> 3 & 16);
    }
    if constexpr (BITS == 4)
        for (int j = 0; j < 4; j++) q[j] = w(j) & 15, q[j + 4] = upper_four(w(j));
    if constexpr (BITS == 3) {
        for (int j = 0; j < 3; j++) q[2 * j] = w(j) & 7, q[2 * j + 1] = w(j) >> 3 & 7;
        q[6] = w(0) >> 6 | (w(1) >> 4 & 4);
        q[7] = w(2) >> 6 | (w(1) >> 5 & 4);
    }
    if constexpr (BITS == 2)
        for (int j = 0; j < 8; j++) q[j] = w(j / 4) >> j % 4 * 2 & 3;
}

// The inverse, for one output: 32 bytes to BITS words.
template <int BITS> inline void write_codes(const uint8_t* from, uint32_t* w) {
    uint32_t q[8];
    std::memcpy(q, from, sizeof q);
    // `count` bits of every byte, from bit `first` on, moved to bit `to`
    auto move = [](uint32_t bytes, int first, int count, int to) {
        return (bytes >> first & 0x01010101u * ((1 << count) - 1)) << to;
    };
    if constexpr (BITS == 6)
        for (int j = 0; j < 6; j++) w[j] = q[j / 3 * 4 + j % 3] | move(q[j / 3 * 4 + 3], j % 3 * 2, 2, 6);
    if constexpr (BITS == 5) {
        w[0] = q[0] | move(q[5], 0, 3, 5);
        w[1] = q[1] | move(q[5], 3, 2, 5) | move(q[7], 3, 1, 7);
        w[2] = q[2] | move(q[6], 0, 3, 5);
        w[3] = q[3] | move(q[6], 3, 2, 5) | move(q[7], 4, 1, 7);
        w[4] = q[4] | move(q[7], 0, 3, 5);
    }
    if constexpr (BITS == 4)
        for (int j = 0; j < 4; j++) w[j] = q[j] | q[j + 4] << 4;
    if constexpr (BITS == 3) {
        w[0] = q[0] | q[1] << 3 | move(q[6], 0, 2, 6);
        w[1] = q[2] | q[3] << 3 | move(q[6], 2, 1, 6) | move(q[7], 2, 1, 7);
        w[2] = q[4] | q[5] << 3 | move(q[7], 0, 2, 6);
    }
    if constexpr (BITS == 2)
        for (int j = 0; j < 2; j++) w[j] = q[4 * j] | q[4 * j + 1] << 2 | q[4 * j + 2] << 4 | q[4 * j + 3] << 6;
}

}  // namespace
