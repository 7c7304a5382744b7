// Matrix-vector products: y[o] = Σ_i W[o, i] x[i] + b[o]
//
// Weights are stored in blocks of as many outputs as a register has lanes (n = 16 with AVX-512, 8 with
// AVX2, else 4), so that a register holds one sum for each output and no sum across a register is needed:
//
//     float32, bf16   [N/n][K][n]                multiplied as floats; in bf16, K is padded to whole groups
//     int8            [N/n][K/32], of each       q [8][n][4] and s [n]; a step for 32 inputs
//     int4            [N/n][K/32], of each       two q in a byte [4][n][4], s [n] and m [n]; a step for 32 inputs
//     others          alike; Format in groups.h
#pragma once

#include <algorithm>

#include "groups.h"
#include "int8_arm.h"
#include "int8_wasm.h"
#include "many_rows.h"
#include "structs.h"
#include "thread_pool.h"
#include "tiles_bf16.h"
#include "vectors.h"

namespace {

// R rows times B blocks of LANES outputs. Products add up in a variable of their own, which stays in registers: one that the
// caller has set to 0 would be read from memory, after all the results that are still to be written.
template <int R, int B> struct Sums {
    Floats of[B][R];
};

template <int R, int B> void multiply_float32(const Product& p, int block, const float* x, int stride, Sums<R, B>& sums) {
    const Floats* w[B];
    for (int b = 0; b < B; b++) w[b] = static_cast<const Floats*>(p.weight) + size_t(block + b) * p.inputs;
    Sums<R, B> found = {};
    for (int i = 0; i < p.inputs; i++)
        for (int b = 0; b < B; b++) {
            ahead(w[b] + i, sizeof(Floats));
            Floats weights = load<Floats>(w[b] + i);
#pragma GCC unroll 8
            for (int r = 0; r < R; r++) found.of[b][r] = fma(weights, spread(x[r * stride + i]), found.of[b][r]);
        }
    sums = found;
}

// A word holds two bf16: a bf16 is the upper half of a float.
template <int R, int B> void multiply_bf16(const Product& p, int block, const float* x, int stride, Sums<R, B>& sums) {
    const Words* w[B];
    for (int b = 0; b < B; b++) w[b] = static_cast<const Words*>(p.weight) + size_t(block + b) * groups_of(p) * (GROUP / 2);
    Sums<R, B> found = {};
    for (int i = 0; i < p.inputs; i += 2)
        for (int b = 0; b < B; b++) {
            ahead(w[b] + i / 2, sizeof(Words));
            Words both = load<Words>(w[b] + i / 2);
            Floats first = (Floats)(both << 16), second = (Floats)(both & 0xffff0000u);
#pragma GCC unroll 8
            for (int r = 0; r < R; r++) {
                const float* from = x + r * stride + i;
                found.of[b][r] = fma(second, spread(from[1]), fma(first, spread(from[0]), found.of[b][r]));
            }
        }
    sums = found;
}

#if defined(__ARM_FEATURE_DOTPROD)
constexpr bool IN_TURNS = false;

// sums[o] += Σ_{i<16} w[o][i] · x[i]
inline Ints dot16(Ints sums, const Bytes* w, int8x16_t x) {
    int32x4_t found = (int32x4_t)sums;
    found = vdotq_laneq_s32(found, (int8x16_t)w[0], x, 0);
    found = vdotq_laneq_s32(found, (int8x16_t)w[1], x, 1);
    found = vdotq_laneq_s32(found, (int8x16_t)w[2], x, 2);
    return (Ints)vdotq_laneq_s32(found, (int8x16_t)w[3], x, 3);
}

// Σ_i w[o][i] · (256 h[i] + l[i]) over 4 · WORDS inputs
template <int WORDS> [[gnu::always_inline]] inline Ints dot(const Bytes* w, const int8_t* h, const int8_t* l) {
    Ints high = {}, low = {};
    for (int j = 0; j < WORDS; j += 4) {
        high = dot16(high, w + j, vld1q_s8(h + j * 4));
        low = dot16(low, w + j, vld1q_s8(l + j * 4));
    }
    return high * 256 + low;
}
template <int, int R> void dot_in_turns(const Bytes*, const int8_t*, const int8_t*, size_t, Ints (&)[R]) {}
#else
constexpr bool IN_TURNS = true;

// dots[r][o] = Σ_i w[o][i] · (256 h[r][i] + l[r][i]) over 4 · WORDS inputs of R rows. A sum can be added to only after some
// cycles, so the sums of four rows take turns.
template <int WORDS, int R>
[[gnu::always_inline]] inline void dot_in_turns(
    const Bytes* w, const int8_t* h, const int8_t* l, size_t stride, Ints (&dots)[R]) {
    constexpr int SOME = 4;
#pragma GCC unroll 8
    for (int first = 0; first < R; first += SOME) {
        Ints high[SOME] = {}, low[SOME] = {};
#pragma GCC unroll 8
        for (int j = 0; j < WORDS; j++)
#pragma GCC unroll 4
            for (int r = 0; r < SOME; r++) {
                if (first + r >= R) continue;
                high[r] = dot4(high[r], w[j], h + (first + r) * stride + j * 4);
                low[r] = dot4(low[r], w[j], l + (first + r) * stride + j * 4);
            }
#pragma GCC unroll 4
        for (int r = 0; r < SOME; r++)
            if (first + r < R) dots[first + r] = high[r] * 256 + low[r];
    }
}
template <int> Ints dot(const Bytes*, const int8_t*, const int8_t*) { return Ints{}; }
#endif

// Quantized weights, 32 inputs at a time.
template <int KIND, int R, int B>
void multiply_groups(const Product& p, int block, const Inputs& in, int first, Sums<R, B>& sums) {
    using G = Group<KIND>;
    constexpr int PARTS = G::PARTS, WORDS = 8 / PARTS;
    const uint8_t* w[B];
    for (int b = 0; b < B; b++) w[b] = G::of(p, block + b);
    const int8_t *h = in.high(first), *l = in.low(first);
    const size_t stride = 2 * size_t(in.stride);
    // What is prefetched near the end of a block is of the one B blocks further on; not where products wait for arithmetic.
    const size_t others = (B - 1) * G::block_size(p);
    const int last = groups_of(p) - (AHEAD + G::SIZE - 1) / G::SIZE;
    Sums<R, B> found = {};
    for (int begin = 0; begin < groups_of(p); begin += G::NESTING) {
        typename G::Outer outer[B];
        for (int b = 0; b < B; b++) outer[b] = G(w[b], begin).outer();
        for (int g = begin; g < begin + G::NESTING; g++) {
            const size_t skip = (PAIRED && R > 1) || g < last ? 0 : others;
#pragma GCC unroll 2
            for (int b = 0; b < B; b++) {
                G group(w[b], begin, g - begin);
                ahead(group.codes + skip, G::SIZE);
                Bytes q[8];
                group.read(q);
#pragma GCC unroll 2
                for (int part = 0; part < PARTS; part++) {
                    Floats scale = group.scale(outer[b], part), shift = group.shift(outer[b], part);
                    int from = g * GROUP + part * 16;
                    Ints all[R];
                    if constexpr (PAIRED && R == 1 && G::NIBBLES) all[0] = dot_nibbles(group.codes, in.pairs(first) + from);
                    else if constexpr (PAIRED) dot_pairs<WORDS>(q + part * WORDS, in.pairs(first) + from, in.stride, all);
                    else if constexpr (IN_TURNS)
                        dot_in_turns<WORDS>(q + part * WORDS, h + from, l + from, stride, all);
#pragma GCC unroll 8
                    for (int r = 0; r < R; r++) {
                        size_t place = size_t(first + r) * in.groups + g, at = r * stride + from;
                        Ints dots = PAIRED || IN_TURNS ? all[r] : dot<WORDS>(q + part * WORDS, h + at, l + at);
                        found.of[b][r] = G::add(found.of[b][r], dots, scale, shift, in, place, part);
                    }
                }
            }
        }
    }
    sums = found;
}

// Whether there is a product of R rows and B blocks of weights of a kind. Each takes a second to compile, so the kinds of
// GGUF blocks have only some.
constexpr bool compiled(int kind, int R, int B) {
    if (kind < INT8 || R * B == 2) return true;
    return B == 1 && (kind <= INT4 || R == ROWS / 2 || R == ROWS);
}

// Computes R rows and writes the first `rows` of them.
template <int R, int B>
void multiply_rows(const Product& p, int block, const Inputs& in, int first, int rows, const Output& out) {
    Sums<R, B> sums;
    const float* x = in.floats.data() + size_t(first) * in.stride;
    with_kind(p.kind, [&]<int KIND> {
        if constexpr (compiled(KIND, R, B)) multiply_groups<KIND>(p, block, in, first, sums);
    });
    if (p.kind == BF16) multiply_bf16<R, B>(p, block, x, in.stride, sums);
    if (p.kind == FLOAT32) multiply_float32<R, B>(p, block, x, in.stride, sums);
    for (int b = 0; b < B; b++)
        for (int r = 0; r < rows; r++) out.write(p, block + b, first + r, sums.of[b][r]);
}

template <int B, int R = 1>
void multiply_some(const Product& p, int block, const Inputs& in, int first, int rows, const Output& out) {
    if constexpr (R == ROWS) multiply_rows<R, B>(p, block, in, first, rows, out);
    else if (rows <= R && compiled(p.kind, R, B)) multiply_rows<R, B>(p, block, in, first, rows, out);
    else multiply_some<B, R + 1>(p, block, in, first, rows, out);
}

// Whether a row of inputs can be converted in parts of this size: whole groups.
bool can_form_in_parts(const Product& p, int part) { return p.kind == FLOAT32 || part % GROUP == 0; }

// Whether two products have inputs in the same format.
bool same_inputs(const Product& a, const Product& b) { return a.kind == b.kind || (a.kind >= INT8 && b.kind >= INT8); }

// How many blocks an item has: taking an item costs more than computing a small block.
int blocks_of_item(const Product& p, int count, int threads, bool bf16_tiles) {
    int blocks = (p.outputs + LANES - 1) / LANES, items = 2 * threads;
    auto share = [&](int parts) { return (blocks + 2 * parts - 1) / (2 * parts) * 2; };
#if defined(__AVX2__)
    // Each thread reads one run of weights, which prefetching follows better than parts of several.
    if ((p.kind >= INT8 || bf16_tiles) && count == 1) return share(threads);
#endif
    if (p.kind >= INT8 && unpacks(count)) return UNPACKED_BLOCKS;
    // Few items, whose weights stay in the cache of a core.
    if (bf16_tiles && count > TILE_ROWS_MOST) return share(std::max(items, blocks * groups_of(p) / 1024));
    return std::max(1, std::min(2, blocks / (threads * 16 * BLOCKS))) * 2 * BLOCKS;
}

void multiply(ThreadPool& pool, const Product& p, const Inputs& in, int count, const Output& out) {
    bool grouped = p.kind >= INT8, bf16_tiles = p.kind == BF16 && tiles_available();
    int blocks = (p.outputs + LANES - 1) / LANES, each = blocks_of_item(p, count, pool.size, bf16_tiles);
    if (bf16_tiles) bf16_tiles_begin(in.tiles.rows);
    pool.each((blocks + each - 1) / each, [&](int item) {
        int end = std::min(blocks, (item + 1) * each);
        if (bf16_tiles) return multiply_bf16_tiles(p, item * each, end, in, count, out);
        if (grouped && unpacks(count))
            return with_kind(p.kind, [&]<int KIND> { multiply_many<KIND>(p, item * each, end, in, count, out); });
        for (int r = 0; r < count; r += ROWS) {
            int some = std::min(ROWS, count - r);  // sums that fit in registers
            int b = item * each;
#if defined(__ARM_FEATURE_DOTPROD)
            if (p.kind == INT8 && some == ROWS)
                for (; b < end; b++) multiply_int8_rows(p, b, in, r, out);
#elif defined(__wasm__)
            if (p.kind == INT8)
                for (; b < end; b += std::min(end - b, INT8_BLOCKS)) multiply_int8(p, b, end, in, r, some, out);
#endif
            if (!grouped && some == 1)  // with one row, more registers are free
                for (; b + 2 * BLOCKS <= end; b += 2 * BLOCKS) multiply_rows<1, 2 * BLOCKS>(p, b, in, r, 1, out);
            if (!grouped)
                for (; b + BLOCKS <= end; b += BLOCKS) multiply_some<BLOCKS>(p, b, in, r, some, out);
            if (grouped && some == 1)
                for (; b + 2 <= end; b += 2) multiply_rows<1, 2>(p, b, in, r, 1, out);
            for (; b < end; b++) multiply_some<1>(p, b, in, r, some, out);
        }
    });
}

}  // namespace
