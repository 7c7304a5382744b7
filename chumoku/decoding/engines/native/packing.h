// Packs weights in the order that products.h reads: the rows of n = LANES outputs, word by word, the words of all n rows
// side by side.
//
//     rows [n][groups][words]  →  [groups] × ([words][n], then n 16-bit scales, then n 16-bit shifts)
//
// A word is one float, two bf16, four int8 or eight int4, so these kinds of weights are packed by the same loop. The blocks
// of GGUF files (blocks.h) are unpacked first. Rows are padded with zeros.
#pragma once

#include <algorithm>
#include <cstdint>
#include <cstring>

#include "blocks.h"
#include "groups.h"
#include "thread_pool.h"
#include "structs.h"
#include "vectors.h"

namespace {

uint32_t word(const uint8_t* from, int at, int bytes) {
    uint32_t found = 0;
    if (at + 4 <= bytes) return load<uint32_t>(from + at);
    if (at < bytes) std::memcpy(&found, from + at, bytes - at);
    return found;
}

// A word of each of LANES rows.
Words column(const uint8_t* from, int64_t row) {
#if defined(__AVX512F__)
    __m512i lanes = _mm512_setr_epi32(0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15);
    return (Words)_mm512_i32gather_epi32(_mm512_mullo_epi32(lanes, _mm512_set1_epi32(int(row))), from, 1);
#else
    Words found;
    for (int r = 0; r < LANES; r++) found[r] = load<uint32_t>(from + r * row);
    return found;
#endif
}

// Pack rows `first` … of one source into lanes `lane` … of a block.
void pack_rows(const Packing& p, const Source& s, int first, int lane, int count, uint8_t* block) {
    size_t size = p.words * sizeof(Words) + p.halves * 2 * LANES;
    uint32_t flip = OFFSET ? p.flip : 0;
    const uint8_t *rows = s.q + first * s.row, *scales = s.scale + first * s.scale_row, *lows = s.low + first * s.low_row;
    for (int g = 0; g < p.groups; g++, block += size) {
        uint32_t* to = reinterpret_cast<uint32_t*>(block) + lane;
        const uint8_t* from = rows + g * s.group;
        int fast = count == LANES && s.row < (1 << 26) ? p.bytes / 4 : 0;
        for (int w = 0; w < fast; w++) store(to + w * LANES, column(from + w * 4, s.row) ^ flip);
        for (int w = fast; w < p.words; w++)
            for (int r = 0; r < count; r++) to[w * LANES + r] = word(from + r * s.row, w * 4, p.bytes) ^ flip;
        uint8_t* half = block + p.words * sizeof(Words) + lane * 2;
        for (int r = 0; r < count; r++) {
            if (p.halves > 0) std::memcpy(half + r * 2, scales + r * s.scale_row + g * s.scale_group, 2);
            if (p.halves > 1) std::memcpy(half + 2 * LANES + r * 2, lows + r * s.low_row + g * s.low_group, 2);
        }
    }
}

// The same for rows of GGUF blocks.
template <int KIND> void pack_gguf_rows(const Packing& p, const Source& s, int first, int lane, int count, uint8_t* block) {
    using G = Group<KIND>;
    constexpr Format F = G::F;
    auto put = [](const void* from, const uint8_t* to, int size) { std::memcpy(const_cast<uint8_t*>(to), from, size); };
    for (int r = 0; r < count; r++)
        for (int g = 0; g < p.groups; g++) {
            Unpacked b = unpack(KIND, s.q + (first + r) * s.row + g * s.group);
            for (int i = 0; i < G::NESTING; i++) {
                G group(block, g * G::NESTING + i);
                uint32_t words[F.bits];
                write_codes<F.bits>(b.q + i * GROUP, words);
                for (int w = 0; w < F.bits; w++) put(words + w, group.codes + (w * LANES + lane + r) * 4, 4);
                const uint8_t* halves = F.nested ? group.header : group.scales;
                if (i == 0) put(&b.d, halves + (lane + r) * 2, 2);
                if (i == 0 && F.shifted) put(&b.e, halves + (LANES + lane + r) * 2, 2);
                for (int part = 0; F.nested && part < F.parts; part++) {
                    put(b.s + i * F.parts + part, group.scales + part * LANES + lane + r, 1);
                    if (F.shifted) put(b.t + i * F.parts + part, group.scales + (F.parts + part) * LANES + lane + r, 1);
                }
            }
        }
}

// Pack one block of LANES outputs, whose rows may come from several sources. Rows beyond the last stay zero.
void pack_block(const Packing& p, int block) {
    size_t size = size_t(p.groups) * (p.words * sizeof(Words) + p.halves * 2 * LANES);
    int begin = block * LANES, end = std::min(p.outputs, begin + LANES), first = 0;
    for (int i = 0; i < p.sources; first += p.source[i++].rows) {
        int from = std::max(begin, first), to = std::min(end, first + p.source[i].rows);
        if (from >= to) continue;
        if (p.kind <= INT4) pack_rows(p, p.source[i], from - first, from - begin, to - from, p.to + block * size);
        else
            with_kind(p.kind, [&]<int KIND> {
                pack_gguf_rows<KIND>(p, p.source[i], from - first, from - begin, to - from, p.to + block * size);
            });
    }
}

}  // namespace
