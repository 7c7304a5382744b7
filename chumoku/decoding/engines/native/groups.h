// The operands of products: inputs in the format of the weights, groups of 32 quantized weights, and where results go.
#pragma once

#include <algorithm>
#include <vector>

#include "codes.h"
#include "pairs_wasm.h"
#include "pairs_x86.h"
#include "structs.h"
#include "tiles.h"
#include "vectors.h"

namespace {

int pad_to_64(int inputs) { return (inputs + 63) / 64 * 64; }
int groups_of(const Product& p) { return (p.inputs + GROUP - 1) / GROUP; }

constexpr float LEVELS = 32512;  // inputs are quantized to integers −LEVELS … LEVELS times the step of their group
constexpr float TINY = 1e-30f;   // a group whose largest input is not above this becomes zeros
#if !defined(__wasm__)
constexpr int INPUT_BYTES = 2;   // of a quantized input: its halves
#endif

// From how many rows on quantized weights are unpacked first (many_rows.h). With fewer rows that takes more time than it
// saves. Without registers of 64 bytes every row takes longer, so fewer rows suffice.
constexpr int MANY = LANES == 16 ? 16 : 6;
inline bool unpacks(int rows) { return HAS_PAIRS && rows >= MANY; }

// The inputs of a product in the format of its weights: floats, or x ≈ step · (256 high + low) for each group
// (the formula is in nn/quantized.py).
struct Inputs {
    int stride = 0, groups = 0;
    bool paired = PAIRED;
    Lines<float> floats, step, shift;
    Lines<int8_t> halves;  // of a row, first all high, then all low; or, if `paired`, pairs of 16-bit numbers (pairs_x86.h)
    std::vector<int32_t> sums;  // of the integers of half a group
    TileInputs tiles;            // for weights in bf16

    void reserve(int count, int inputs) {
        stride = pad_to_64(inputs);
        groups = stride / GROUP;
        paired = PAIRED || unpacks(count);
        tiles.reserve(count, groups);
        size_t rows = (count + ROWS - 1) / ROWS * ROWS;  // so many rows are read together
        floats.resize(rows * stride);
        halves.resize(INPUT_BYTES * floats.size());
        step.resize(rows * groups);
        shift.resize(step.size());
        sums.resize(2 * step.size());
    }
    float* row(int r) { return floats.data() + size_t(r) * stride; }
    const int8_t* high(int r) const { return halves.data() + size_t(r) * 2 * stride; }
    const int8_t* low(int r) const { return high(r) + stride; }
    const int16_t* pairs(int r) const { return reinterpret_cast<const int16_t*>(halves.data()) + size_t(r) * stride; }

    void form(int r, const Product& product) {
        form_part(r, product, 0, product.inputs);
    }
    // The same for inputs `from` … `to` of a row, for rows that several threads convert in parts.
    void form_part(int r, const Product& product, int from, int to) {
        if (to == product.inputs) std::fill(row(r) + to, row(r) + stride, 0.0f);
        if (product.kind == FLOAT32) return;
        for (int g = from / GROUP; g < (to + GROUP - 1) / GROUP; g++) {
            if (product.kind >= INT8) quantize(r, g);
            else if (tiles_available()) tiles.split(r, g, row(r) + g * GROUP);
        }
    }
    void quantize(int r, int g) {
        size_t first = size_t(g) * GROUP, place = size_t(r) * groups + g;
        const float* from = row(r) + first;
        // Compare magnitudes by their bits: NaN is then the largest and is not lost.
        Ints far = {};
        for (int i = 0; i < GROUP; i += LANES) {
            Ints size = load<Ints>(from + i) & 0x7fffffff;
            far = size > far ? size : far;
        }
        int32_t bits = largest(far);
        float top = load<float>(&bits), inverse = top > TINY ? LEVELS / top : 0;
        Ints whole[GROUP / LANES], wholes[2] = {};
        for (int i = 0; i < GROUP / LANES; i++) {
            whole[i] = nearest(load<Floats>(from + i * LANES) * inverse);
            wholes[i * LANES / 16] += whole[i];
        }
#if defined(__wasm__)
        repeat_pairs(whole, halves.data() + (size_t(r) * stride + first) * INPUT_BYTES);
#else
        if (paired) write_pairs(whole, const_cast<int16_t*>(pairs(r)) + first);
        else split_bytes(whole, const_cast<int8_t*>(high(r)) + first, const_cast<int8_t*>(low(r)) + first);
#endif
        int32_t* sum = &sums[2 * place];
        for (int half = 0; half < 2; half++) sum[half] = total(wholes[half]);
        step[place] = top / LEVELS;
        shift[place] = step[place] * float(sum[0] + sum[1]);  // step · Σ x, for weights with a shift
    }
};

// Prefetch: the hardware prefetcher stops at every page.
inline void ahead(const void* from, int bytes) {
    for (int i = 0; i < bytes; i += 64) __builtin_prefetch(static_cast<const char*>(from) + AHEAD + i);
}

// How a kind of weights is stored: w = scale · (q − center) + shift.
struct Format {
    int bits;             // of q
    int center;
    bool shifted;         // whether there is a shift; else it is 0
    int parts = 1;        // scales for 32 inputs
    bool nested = false;  // scale = d s and shift = e t: a float16 d and e for 8 groups, an int8 s and t for each scale
    bool table = false;   // q is a number of TABLE
};
constexpr Format FORMATS[] = {
    {}, {},                              // floats
    {8, OFFSET, false},                  // INT8
    {4, 0, true},                        // INT4
    {5, 16, false},                      // Q5_0
    {5, 0, true},                        // Q5_1
    {4, OFFSET, false, 1, false, true},  // IQ4_NL
    {2, 0, true, 2, true},               // Q2_K
    {3, 4, false, 2, true},              // Q3_K
    {4, 0, true, 1, true},               // Q4_K
    {5, 0, true, 1, true},               // Q5_K
    {6, 32, false, 2, true},             // Q6_K
};
constexpr uint8_t TABLE[16] = {  // of IQ4_NL
    uint8_t(OFFSET - 127), uint8_t(OFFSET - 104), uint8_t(OFFSET - 83), uint8_t(OFFSET - 65),
    uint8_t(OFFSET - 49),  uint8_t(OFFSET - 35),  uint8_t(OFFSET - 22), uint8_t(OFFSET - 10),
    OFFSET + 1, OFFSET + 13, OFFSET + 25, OFFSET + 38, OFFSET + 53, OFFSET + 69, OFFSET + 89, OFFSET + 113,
};

// Call `run` with a quantized kind as template argument.
template <int KIND = INT8, class Run> [[gnu::always_inline]] inline void with_kind(int kind, Run run) {
#if !defined(__wasm__)  // web pages have only float32 and int8 (int8_wasm.h)
    if (kind == KIND) run.template operator()<KIND>();
    else if constexpr (KIND < Q6_K) with_kind<KIND + 1>(kind, run);
#endif
}

// W x ≈ Σ scale · step · dots + shift · step · Σ x: add a group, or a part of one, to the sums of a row.
// `dots` are sums of (q − center) x.
template <int PARTS, bool SHIFTED>
[[gnu::always_inline]] inline Floats add_group(
    Floats sums, Ints dots, Floats scale, Floats shift, const Inputs& in, size_t place, int32_t sum) {
    sums = fma(scale, __builtin_convertvector(dots, Floats) * in.step[place], sums);
    if (!SHIFTED) return sums;
    return fma(shift, spread(PARTS == 2 ? in.step[place] * float(sum) : in.shift[place]), sums);
}

// A group of a block of LANES outputs: `bits` words with 32 q of each output, then its scales and its shifts.
template <int KIND> struct Group {
    static constexpr Format F = FORMATS[KIND];
    static constexpr int CODES = F.bits * sizeof(Bytes), NESTING = F.nested ? 8 : 1, PARTS = F.parts;
    static constexpr int SIZE = CODES + (F.nested ? PARTS : 2) * (1 + F.shifted) * LANES;
    static constexpr int HEADER = F.nested ? 2 * (1 + F.shifted) * LANES : 0;  // d and e, before the groups that they are for
    static constexpr bool NIBBLES = F.bits == 4 && F.center == 0;  // 4 bits that are multiplied as they are stored
    const uint8_t *header, *codes, *scales;

    static size_t block_size(const Product& p) { return size_t(groups_of(p)) / NESTING * (HEADER + NESTING * SIZE); }
    static const uint8_t* of(const Product& p, int block) {
        return static_cast<const uint8_t*>(p.weight) + block * block_size(p);
    }
    // Group first + i, where `first` is a multiple of NESTING and i is less.
    [[gnu::always_inline]] Group(const uint8_t* block, int first, int i)
        : header(block + size_t(first / NESTING) * (HEADER + NESTING * SIZE)),
          codes(header + HEADER + i * SIZE),
          scales(codes + CODES) {}
    [[gnu::always_inline]] Group(const uint8_t* block, int g) : Group(block, g - g % NESTING, g % NESTING) {}

    // q as bytes, 4 inputs of each output in each of 8 registers. A processor that multiplies signed bytes gets q − center.
    [[gnu::always_inline]] void read(Bytes* q) const {
        read_codes<F.bits>(codes, q);
        for (int j = 0; j < 8; j++) {
            if (F.table) q[j] = look_up(TABLE, q[j]);
            if (!OFFSET && F.center) q[j] -= uint8_t(F.center);
        }
    }

    // The d and e of nested scales.
    struct Outer {
        Floats d = {}, e = {};
    };
    [[gnu::always_inline]] Outer outer() const {
        Outer found;
        if (F.nested) found.d = from_halves(header);
        if (F.nested && F.shifted) found.e = from_halves(header + 2 * LANES);
        return found;
    }
    [[gnu::always_inline]] Floats scale(const Outer& outer, int part) const {
        return F.nested ? outer.d * from_bytes(scales + part * LANES) : from_halves(scales);
    }
    [[gnu::always_inline]] Floats shift(const Outer& outer, int part) const {
        if (!F.shifted) return Floats{};
        return F.nested ? outer.e * from_bytes(scales + (PARTS + part) * LANES) : from_halves(scales + 2 * LANES);
    }

    // Add a part of a group to the sums of a row; `dots` are sums of q x.
    [[gnu::always_inline]] static Floats add(
        Floats sums, Ints dots, Floats scale, Floats shift, const Inputs& in, size_t place, int part) {
        const int32_t* halves = &in.sums[2 * place];
        int32_t sum = PARTS == 2 ? halves[part] : halves[0] + halves[1];
        if (OFFSET && F.center) dots -= F.center * sum;
        return add_group<PARTS, F.shifted>(sums, dots, scale, shift, in, place, sum);
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
