// The operands of products: inputs in the format of the weights, groups of 32 quantized weights, and where results go.
#pragma once

#include <algorithm>
#include <vector>

#include "structs.h"
#include "vectors.h"

namespace {

int pad_to_64(int inputs) { return (inputs + 63) / 64 * 64; }
int groups_of(const Product& p) { return (p.inputs + GROUP - 1) / GROUP; }

constexpr float LEVELS = 32512;  // inputs are quantized to integers −LEVELS … LEVELS times the step of their group
constexpr float TINY = 1e-30f;   // a group whose largest input is not above this becomes zeros

// The inputs of a product in the format of its weights: floats, or x ≈ step · (256 high + low) for each group
// (the formula is in nn/quantized.py). The high halves of TILE_TOKENS rows come before their low halves, as tiles need
// them.
struct Inputs {
    int stride = 0, groups = 0;
    std::vector<float> floats, step, shift;
    std::vector<int8_t> halves;
    std::vector<int32_t> correction;

    void reserve(int count, int inputs) {
        stride = pad_to_64(inputs);
        groups = stride / GROUP;
        size_t rows = (count + TILE_TOKENS - 1) / TILE_TOKENS * TILE_TOKENS;  // whole tiles are read
        floats.resize(rows * stride);
        halves.resize(2 * floats.size());
        step.resize(rows * groups);
        shift.resize(step.size());
        correction.resize(step.size());
    }
    float* row(int r) { return floats.data() + size_t(r) * stride; }
    const int8_t* high(int r) const {
        return halves.data() + size_t(r / TILE_TOKENS * 2 * TILE_TOKENS + r % TILE_TOKENS) * stride;
    }
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
        Ints sums = {};
        for (int i = 0; i < GROUP; i += LANES) {
            Ints whole = nearest(load<Floats>(from + i) * inverse), upper = (whole + 128) >> 8, lower = whole - upper * 256;
            store(to_high + i, __builtin_convertvector(upper, Chars));
            store(to_low + i, __builtin_convertvector(lower, Chars));
            sums += whole;
        }
        int32_t sum = 0;
        for (int i = 0; i < LANES; i++) sum += sums[i];
        step[place] = top / LEVELS;
        // For weights stored with OFFSET added, and step · Σ x for weights with a shift.
        correction[place] = -OFFSET * sum;
        shift[place] = step[place] * float(sum);
    }
};

// Prefetch: the hardware prefetcher stops at every page.
inline void ahead(const void* from, int bytes) {
    for (int i = 0; i < bytes; i += 64) __builtin_prefetch(static_cast<const char*>(from) + AHEAD + i);
}

// A group of a block: 32 q of each output as bytes, the scales, and with 4-bit q the shifts.
template <bool FOUR> struct Group {
    static constexpr int WORDS = FOUR ? 4 : 8, SIZE = WORDS * sizeof(Bytes) + (FOUR ? 4 : 2) * LANES;

    static const uint8_t* of(const Product& p, int block) {
        return static_cast<const uint8_t*>(p.weight) + size_t(block) * groups_of(p) * SIZE;
    }
    [[gnu::always_inline]] static void read(const uint8_t* w, Bytes* q) {
        for (int j = 0; j < WORDS; j++) {
            Bytes both = load<Bytes>(w + j * sizeof(Bytes));
            q[j] = FOUR ? both & 15 : both;
            if (FOUR) q[j + 4] = upper_four(both);
        }
    }
    static Floats scale(const uint8_t* w) { return from_halves(w + WORDS * sizeof(Bytes)); }
    static Floats shift(const uint8_t* w) { return FOUR ? from_halves(w + WORDS * sizeof(Bytes) + 2 * LANES) : Floats{}; }

    // Add a group to the sums of a row: W x ≈ Σ scale · step · dots + shift · step · Σ x
    [[gnu::always_inline]] static Floats add(
        Floats sums, Ints dots, Floats scale, Floats shift, const Inputs& in, size_t place) {
        if (!FOUR && OFFSET) dots += in.correction[place];
        sums = fma(scale, __builtin_convertvector(dots, Floats) * in.step[place], sums);
        return FOUR ? fma(shift, spread(in.shift[place]), sums) : sums;
    }
};

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

}  // namespace
