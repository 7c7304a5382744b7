// Matrix-vector products: y[o] = Σ_i W[o, i] x[i] + b[o]
//
// Weights are stored in blocks of as many outputs as a register has lanes (n = 16, or 4 on ARM), so that a register holds
// one sum for each output and no sum across a register is needed:
//
//     float32, bf16   [N/n][K][n]                multiplied as floats
//     int8            [N/n][K/32], of each       q [8][n][4] and s [n]; a step for 32 inputs
//     int4            [N/n][K/32], of each       two q in a byte [4][n][4], s [n] and m [n]; a step for 32 inputs
#pragma once

#include <algorithm>
#include <atomic>
#include <vector>
#if defined(__linux__)
#include <sys/syscall.h>
#include <unistd.h>
#endif

#include "thread_pool.h"
#include "structs.h"
#include "vectors.h"

namespace {

int pad_to_64(int inputs) { return (inputs + 63) / 64 * 64; }
int groups_of(const Product& p) { return (p.inputs + GROUP - 1) / GROUP; }

constexpr float LEVELS = 32512;  // inputs are quantized to integers −LEVELS … LEVELS times the step of their group
constexpr float TINY = 1e-30f;   // a group whose largest input is not above this becomes zeros

// The inputs of a product in the format of its weights: floats, or x ≈ step · (256 high + low) for each group
// (the formula is in nn/quantized.py). The high halves of TILE_TOKENS rows come before their low halves, as tiles need them.
struct Inputs {
    int stride = 0, groups = 0;
    std::vector<float> floats, step, shift;
    std::vector<int8_t> halves;
    std::vector<int32_t> from_high, from_low;

    void reserve(int count, int inputs) {
        stride = pad_to_64(inputs);
        groups = stride / GROUP;
        size_t rows = (count + TILE_TOKENS - 1) / TILE_TOKENS * TILE_TOKENS;  // whole tiles are read
        floats.resize(rows * stride);
        halves.resize(2 * floats.size());
        step.resize(rows * groups);
        shift.resize(step.size());
        for (auto* part : {&from_high, &from_low}) part->resize(step.size());
    }
    float* row(int r) { return floats.data() + size_t(r) * stride; }
    const int8_t* high(int r) const { return halves.data() + size_t(r / TILE_TOKENS * 2 * TILE_TOKENS + r % TILE_TOKENS) * stride; }
    const int8_t* low(int r) const { return high(r) + TILE_TOKENS * stride; }

    void form(int r, const Product& product) {
        std::fill(row(r) + product.inputs, row(r) + stride, 0.0f);
        if (product.kind >= INT8)
            for (int g = 0; g < groups; g++) quantize(r, g);
    }
    // The same for inputs `from` … `to` of a row, for rows that several threads convert in parts.
    void form_part(int r, const Product& product, int from, int to) {
        if (to == product.inputs) std::fill(row(r) + to, row(r) + stride, 0.0f);
        if (product.kind >= INT8)
            for (int g = from / GROUP; g < (to + GROUP - 1) / GROUP; g++) quantize(r, g);
    }
    void quantize(int r, int g) {
        size_t first = size_t(g) * GROUP, place = size_t(r) * groups + g;
        const float* from = row(r) + first;
        int8_t *to_high = const_cast<int8_t*>(high(r)) + first, *to_low = const_cast<int8_t*>(low(r)) + first;
        // Compare magnitudes by their bits: NaN is then the largest and is not lost.
        Ints far = {};
        for (int i = 0; i < GROUP; i += LANES) {
            Ints size = load<Ints>(from + i) & 0x7fffffff;
            far = size > far ? size : far;
        }
        int32_t bits = far[0];
        for (int i = 1; i < LANES; i++) bits = std::max(bits, int32_t(far[i]));
        float top = load<float>(&bits), inverse = top > TINY ? LEVELS / top : 0;
        Ints highs = {}, lows = {};
        for (int i = 0; i < GROUP; i += LANES) {
            Ints whole = nearest(load<Floats>(from + i) * inverse), upper = (whole + 128) >> 8, lower = whole - upper * 256;
            store(to_high + i, __builtin_convertvector(upper, Chars));
            store(to_low + i, __builtin_convertvector(lower, Chars));
            highs += upper;
            lows += lower;
        }
        int32_t sum_high = 0, sum_low = 0;
        for (int i = 0; i < LANES; i++) {
            sum_high += highs[i];
            sum_low += lows[i];
        }
        step[place] = top / LEVELS;
        // Corrections for weights stored with OFFSET added, and step · Σ x for weights with a shift.
        from_high[place] = -OFFSET * sum_high;
        from_low[place] = -OFFSET * sum_low;
        shift[place] = step[place] * float(sum_high * 256 + sum_low);
    }
};

// Prefetch: the hardware prefetcher stops at every page.
inline void ahead(const void* from, int bytes) {
    for (int i = 0; i < bytes; i += 64) __builtin_prefetch(static_cast<const char*>(from) + AHEAD + i);
}

// R rows times B blocks of LANES outputs; the sums stay in registers.
template <int R, int B> struct Sums {
    Floats of[B][R] = {};
};

template <int R, int B> void multiply_float32(const Product& p, int block, const float* x, int stride, Sums<R, B>& sums) {
    const Floats* w[B];
    for (int b = 0; b < B; b++) w[b] = static_cast<const Floats*>(p.weight) + size_t(block + b) * p.inputs;
    for (int i = 0; i < p.inputs; i++)
        for (int b = 0; b < B; b++) {
            ahead(w[b] + i, sizeof(Floats));
            Floats weights = load<Floats>(w[b] + i);
#pragma GCC unroll 8
            for (int r = 0; r < R; r++) sums.of[b][r] = fma(weights, spread(x[r * stride + i]), sums.of[b][r]);
        }
}

// A word holds two bf16: a bf16 is the upper half of a float.
template <int R, int B> void multiply_bf16(const Product& p, int block, const float* x, int stride, Sums<R, B>& sums) {
    const Words* w[B];
    for (int b = 0; b < B; b++) w[b] = static_cast<const Words*>(p.weight) + size_t(block + b) * ((p.inputs + 1) / 2);
    for (int i = 0; i < p.inputs; i += 2)
        for (int b = 0; b < B; b++) {
            ahead(w[b] + i / 2, sizeof(Words));
            Words both = load<Words>(w[b] + i / 2);
            Floats first = (Floats)(both << 16), second = (Floats)(both & 0xffff0000u);
#pragma GCC unroll 8
            for (int r = 0; r < R; r++) {
                const float* from = x + r * stride + i;
                sums.of[b][r] = fma(second, spread(from[1]), fma(first, spread(from[0]), sums.of[b][r]));
            }
        }
}

#if defined(__ARM_FEATURE_DOTPROD)
// sums[o] += Σ_{i<16} w[o][i] · x[i]
inline Ints dot16(Ints sums, const Bytes* w, int8x16_t x) {
    int32x4_t found = (int32x4_t)sums;
    found = vdotq_laneq_s32(found, (int8x16_t)w[0], x, 0);
    found = vdotq_laneq_s32(found, (int8x16_t)w[1], x, 1);
    found = vdotq_laneq_s32(found, (int8x16_t)w[2], x, 2);
    return (Ints)vdotq_laneq_s32(found, (int8x16_t)w[3], x, 3);
}
#endif

// Σ_{i<32} w[o][i] · (256 h[i] + l[i]), from `high` and `low` on
[[gnu::always_inline]] inline Ints dot_group(Ints high, Ints low, const Bytes* w, const int8_t* h, const int8_t* l) {
#if defined(__ARM_FEATURE_DOTPROD)
    for (int half = 0; half < 2; half++, h += 16, l += 16, w += 4) {
        high = dot16(high, w, vld1q_s8(h));
        low = dot16(low, w, vld1q_s8(l));
    }
#else
    for (int j = 0; j < 8; j++) {
        high = dot4(high, w[j], h + j * 4);
        low = dot4(low, w[j], l + j * 4);
    }
#endif
    return high * 256 + low;
}

// A group of a block: 32 q of each output as bytes, the scales, and with 4-bit q the shifts.
template <bool FOUR> struct Group {
    static constexpr int WORDS = FOUR ? 4 : 8, SIZE = WORDS * sizeof(Bytes) + (FOUR ? 4 : 2) * LANES;
    Bytes q[8];
    Floats scale, shift;

    [[gnu::always_inline]] explicit Group(const uint8_t* w) {
        ahead(w, SIZE);
        for (int j = 0; j < WORDS; j++) {
            Bytes both = load<Bytes>(w + j * sizeof(Bytes));
            q[j] = FOUR ? both & 15 : both;
            if (FOUR) q[j + 4] = upper_four(both);
        }
        scale = from_halves(w + WORDS * sizeof(Bytes));
        shift = FOUR ? from_halves(w + WORDS * sizeof(Bytes) + 2 * LANES) : Floats{};
    }
    // Add this group to the sums of a row: W x ≈ Σ scale · step · dots + shift · step · Σ x
    [[gnu::always_inline]] Floats add_to(Floats sums, Ints dots, const Inputs& in, size_t place) const {
        sums = fma(scale, __builtin_convertvector(dots, Floats) * in.step[place], sums);
        return FOUR ? fma(shift, spread(in.shift[place]), sums) : sums;
    }
    static const uint8_t* of(const Product& p, int block) {
        return static_cast<const uint8_t*>(p.weight) + size_t(block) * groups_of(p) * SIZE;
    }
};

// 32 inputs at a time, with 4-bit q and a shift, or 8-bit q.
template <int R, int B, bool FOUR>
void multiply_groups(const Product& p, int block, const Inputs& in, int first, Sums<R, B>& sums) {
    const uint8_t* w[B];
    for (int b = 0; b < B; b++) w[b] = Group<FOUR>::of(p, block + b);
    const int8_t *h = in.high(first), *l = in.low(first);
    for (int g = 0; g < groups_of(p); g++)
#pragma GCC unroll 2
        for (int b = 0; b < B; b++) {
            Group<FOUR> group(w[b] + size_t(g) * Group<FOUR>::SIZE);
#pragma GCC unroll 8
            for (int r = 0; r < R; r++) {
                size_t place = size_t(first + r) * in.groups + g, at = r * size_t(in.stride) + g * GROUP;
                Ints high = {}, low = {};
                if (!FOUR) high += in.from_high[place], low += in.from_low[place];
                sums.of[b][r] = group.add_to(sums.of[b][r], dot_group(high, low, group.q, h + at, l + at), in, place);
            }
        }
}

// Where results go: y = W x + b, or y += W x + b.
struct Output {
    float* y;
    int stride;
    bool add;

    void write(const Product& p, int block, int row, Floats sums) const {
        float* to = y + size_t(row) * stride + block * LANES;
        int there = std::min(LANES, p.outputs - block * LANES);
        if (there == LANES) {
            if (p.bias) sums += load<Floats>(p.bias + block * LANES);
            store(to, add ? load<Floats>(to) + sums : sums);
            return;
        }
        for (int o = 0; o < there; o++) {
            float value = sums[o] + (p.bias ? p.bias[block * LANES + o] : 0.0f);
            to[o] = add ? to[o] + value : value;
        }
    }
};

template <int R, int B> void multiply_rows(const Product& p, int block, const Inputs& in, int first, const Output& out) {
    Sums<R, B> sums;
    const float* x = in.floats.data() + size_t(first) * in.stride;
    if constexpr (B == 1 || R * B == 2) {
        if (p.kind == INT4) multiply_groups<R, B, true>(p, block, in, first, sums);
        if (p.kind == INT8) multiply_groups<R, B, false>(p, block, in, first, sums);
    }
    if (p.kind == BF16) multiply_bf16<R, B>(p, block, x, in.stride, sums);
    if (p.kind == FLOAT32) multiply_float32<R, B>(p, block, x, in.stride, sums);
    for (int b = 0; b < B; b++)
        for (int r = 0; r < R; r++) out.write(p, block + b, first + r, sums.of[b][r]);
}

template <int B, int R = ROWS>
void multiply_some(const Product& p, int block, const Inputs& in, int first, int rows, const Output& out) {
    if constexpr (R == 1) multiply_rows<1, B>(p, block, in, first, out);
    else if (rows == R) multiply_rows<R, B>(p, block, in, first, out);
    else multiply_some<B, R - 1>(p, block, in, first, rows, out);
}

#if defined(__AMX_INT8__) && defined(__linux__)
// AMX tiles multiply 16 rows by 16 outputs over 64 inputs at once. On Linux a process must request permission first.
bool tiles_available() {
    static const bool available = syscall(SYS_arch_prctl, 0x1023, 18) == 0;  // ARCH_REQ_XCOMP_PERM, XFEATURE_XTILEDATA
    return available;
}

// Tiles 0 and 1 hold sums, 4 holds 32 inputs, 5 and 6 their weights.
void tiles_begin() {
    struct Form {
        uint8_t palette = 1, start = 0, reserved[14] = {};
        uint16_t columns[16] = {64, 64, 64, 64, 32, 64, 64, 64};
        uint8_t rows[16] = {16, 16, 16, 16, 16, 8, 8, 8};
    };
    static const Form form;  // static: the compiler would optimize away one on the stack
    _tile_loadconfig(&form);
}

// A tile of sums: the products of TILE_TOKENS rows' high halves, then of their low halves.
typedef int32_t TileSums[2][TILE_TOKENS][LANES];

// TILE_TOKENS rows times two blocks, group by group.
template <bool FOUR>
void multiply_tiles(const Product& p, int block, int blocks, const Inputs& in, int first, int rows, const Output& out) {
    const uint8_t *w = Group<FOUR>::of(p, block), *v = Group<FOUR>::of(p, block + blocks - 1);
    const int8_t* x = in.high(first);
    alignas(64) TileSums dots[2];
    Floats sums[2][TILE_TOKENS] = {};
    for (int g = 0; g < groups_of(p); g++) {
        alignas(64) const Group<FOUR> group[2] = {Group<FOUR>(w + size_t(g) * Group<FOUR>::SIZE),
                                                  Group<FOUR>(v + size_t(g) * Group<FOUR>::SIZE)};
        std::atomic_signal_fence(std::memory_order_seq_cst);  // the compiler does not see that tile loads read memory
        _tile_zero(0);
        _tile_zero(1);
        _tile_loadd(4, x + g * GROUP, in.stride);
        _tile_loadd(5, group[0].q, 64);
        _tile_loadd(6, group[1].q, 64);
        _tile_dpbsud(0, 4, 5);
        _tile_dpbsud(1, 4, 6);
        _tile_stored(0, dots[0], 64);
        _tile_stored(1, dots[1], 64);
#pragma GCC unroll 8
        for (int r = 0; r < TILE_TOKENS; r++)
            for (int b = 0; b < 2; b++) {
                size_t place = size_t(first + r) * in.groups + g;
                Ints high = load<Ints>(dots[b][0][r]), low = load<Ints>(dots[b][1][r]);
                if (!FOUR) high += in.from_high[place], low += in.from_low[place];
                sums[b][r] = group[b].add_to(sums[b][r], high * 256 + low, in, place);
            }
    }
    for (int b = 0; b < blocks; b++)
        for (int r = 0; r < rows; r++) out.write(p, block + b, first + r, sums[b][r]);
}
#else
bool tiles_available() { return false; }
void tiles_begin() {}
template <bool> void multiply_tiles(const Product&, int, int, const Inputs&, int, int, const Output&) {}
#endif

// Whether a row of inputs can be converted in parts of this size: whole groups.
bool can_form_in_parts(const Product& p, int part) { return p.kind < INT8 || part % GROUP == 0; }

void multiply(ThreadPool& pool, const Product& p, const Inputs& in, int count, const Output& out) {
    bool grouped = p.kind >= INT8, tiles = grouped && count > 1 && tiles_available();
    int blocks = (p.outputs + LANES - 1) / LANES, rows = tiles ? TILE_TOKENS : ROWS;  // sums that fit in registers
    // Several blocks per item: taking an item costs more than computing a small block.
    int each = std::max(1, std::min(2, blocks / (pool.size * 16 * BLOCKS))) * 2 * BLOCKS;
    if (tiles) tiles_begin();
    pool.each((blocks + each - 1) / each, [&](int item) {
        int end = std::min(blocks, (item + 1) * each);
        for (int r = 0; r < count; r += rows) {
            int some = std::min(rows, count - r);
            int b = item * each;
            if (tiles) {
                for (; b < end; b += 2) {
                    int some_blocks = std::min(2, end - b);
                    if (p.kind == INT4) multiply_tiles<true>(p, b, some_blocks, in, r, some, out);
                    else multiply_tiles<false>(p, b, some_blocks, in, r, some, out);
                }
                continue;
            }
            if (!grouped && some == 1)  // with one row, more registers are free
                for (; b + 2 * BLOCKS <= end; b += 2 * BLOCKS) multiply_rows<1, 2 * BLOCKS>(p, b, in, r, out);
            if (!grouped)
                for (; b + BLOCKS <= end; b += BLOCKS) multiply_some<BLOCKS>(p, b, in, r, some, out);
            if (grouped && some == 1)
                for (; b + 2 <= end; b += 2) multiply_rows<1, 2>(p, b, in, r, out);
            for (; b < end; b++) multiply_some<1>(p, b, in, r, some, out);
        }
    });
}

}  // namespace
