// Products: y[o] = Σ_i W[o, i] x[i] + b[o]
//
// Weights lie in blocks of 16 outputs, so that a vector register holds one sum for each of them and nothing is ever added
// up across a register:
//
//     float32, bf16   [N/16][K][16]                     products of floats
//     int8            [N/16][K/4][16][4], q + 128       inputs as int8 with one scale
//     int8-groups     [N/16][K/32] × 544 bytes          q + 128 [8][16][4] and s [16]; a scale for 32 inputs
//     int4            [N/16][K/32] × 320 bytes          two q in a byte [4][16][4], s [16] and m [16]; a scale for 32 inputs
#pragma once

#include <algorithm>
#include <vector>
#if defined(__linux__)
#include <sys/syscall.h>
#include <unistd.h>
#endif

#include "crew.h"
#include "described.h"
#include "vectors.h"

namespace {

int padded(int inputs) { return (inputs + 63) / 64 * 64; }

// The inputs of a product, in the form its weights want: floats, or q with x ≈ scale · q for each `group` of them.
struct Inputs {
    int stride = 0, groups = 0;
    std::vector<float> floats, scale;
    std::vector<int8_t> q;
    std::vector<int32_t> sum;

    void reserve(int count, int inputs) {
        stride = padded(inputs);
        groups = stride / GROUP;
        size_t rows = (count + TILE - 1) / TILE * TILE;  // whole tiles are read
        floats.resize(rows * stride);
        q.resize(floats.size());
        scale.resize(rows * groups);
        sum.resize(rows * groups);
    }
    float* row(int r) { return floats.data() + size_t(r) * stride; }

    void form(int r, const Product& product) {
        std::fill(row(r) + product.inputs, row(r) + stride, 0.0f);
        if (product.kind < INT8) return;
        int group = product.kind == INT8 ? stride : GROUP;
        for (int g = 0; g < stride / group; g++) quantise(r, g, group);
    }
    void quantise(int r, int g, int group) {
        const float* from = row(r) + g * group;
        int8_t* to = q.data() + size_t(r) * stride + g * group;
        // Sizes compare as their bits do, and what is no number is above them all, so that it is not lost.
        Ints far = {};
        for (int i = 0; i < group; i += LANES) {
            Ints size = load<Ints>(from + i) & 0x7fffffff;
            far = size > far ? size : far;
        }
        int32_t bits = far[0];
        for (int i = 1; i < LANES; i++) bits = std::max(bits, int32_t(far[i]));
        float top = load<float>(&bits), inverse = top > 0 ? 127 / top : 0;
        Ints sums = {};
        for (int i = 0; i < group; i += LANES) {
            Ints whole = nearest(load<Floats>(from + i) * inverse);
            store(to + i, __builtin_convertvector(whole, Chars));
            sums += whole;
        }
        int32_t all = 0;
        for (int i = 0; i < LANES; i++) all += sums[i];
        scale[size_t(r) * groups + g] = top / 127;
        sum[size_t(r) * groups + g] = all;
    }
};

// Ask for what is needed in a moment: the processor's own guesses end at every page.
inline void ahead(const void* from, int bytes) {
    for (int i = 0; i < bytes; i += 64) __builtin_prefetch(static_cast<const char*>(from) + AHEAD + i);
}

// R rows against B blocks of 16 outputs, the sums of which stay in registers.
template <int R, int B> struct Sums {
    Floats of[B][R] = {};
};

template <int R, int B> void multiply_float32(const Product& p, int block, const float* x, int stride, Sums<R, B>& sums) {
    const Floats* w[B];
    for (int b = 0; b < B; b++) w[b] = static_cast<const Floats*>(p.weight) + size_t(block + b) * p.inputs;
    for (int i = 0; i < p.inputs; i++)
        for (int b = 0; b < B; b++) {
            ahead(w[b] + i, 64);
            Floats weights = load<Floats>(w[b] + i);
#pragma GCC unroll 8
            for (int r = 0; r < R; r++) sums.of[b][r] += weights * x[r * stride + i];
        }
}

// Two inputs' bf16 in a word: the upper half of a float is the bf16 itself.
template <int R, int B> void multiply_bf16(const Product& p, int block, const float* x, int stride, Sums<R, B>& sums) {
    const Words* w[B];
    for (int b = 0; b < B; b++) w[b] = static_cast<const Words*>(p.weight) + size_t(block + b) * ((p.inputs + 1) / 2);
    for (int i = 0; i < p.inputs; i += 2)
        for (int b = 0; b < B; b++) {
            ahead(w[b] + i / 2, 64);
            Words both = load<Words>(w[b] + i / 2);
            Floats first = (Floats)(both << 16), second = (Floats)(both & 0xffff0000u);
#pragma GCC unroll 8
            for (int r = 0; r < R; r++) sums.of[b][r] += first * x[r * stride + i] + second * x[r * stride + i + 1];
        }
}

// Once for all who need it: left to itself, the compiler orders the three factors otherwise in each place, and a row's
// numbers would depend on how many rows there are.
__attribute__((noinline)) Floats scaled(Ints dots, Floats channel, float each) {
    return __builtin_convertvector(dots, Floats) * channel * each;
}

template <int R, int B> void multiply_int8(const Product& p, int block, const Inputs& in, int first, Sums<R, B>& sums) {
    int parts = in.stride / 4;
    const Bytes* w[B];
    for (int b = 0; b < B; b++) w[b] = static_cast<const Bytes*>(p.weight) + size_t(block + b) * parts;
    const int8_t* q = in.q.data() + size_t(first) * in.stride;
    Ints dots[B][R];
    // Weights are stored with 128 added, which is taken off here.
    for (int b = 0; b < B; b++)
        for (int r = 0; r < R; r++) dots[b][r] = Ints{} - 128 * in.sum[size_t(first + r) * in.groups];
    for (int i = 0; i < parts; i++)
        for (int b = 0; b < B; b++) {
            ahead(w[b] + i, 64);
            Bytes weights = load<Bytes>(w[b] + i);
#pragma GCC unroll 8
            for (int r = 0; r < R; r++) dots[b][r] = dot4(dots[b][r], weights, q + r * in.stride + i * 4);
        }
    for (int b = 0; b < B; b++)
        for (int r = 0; r < R; r++) {
            Floats channel = load<Floats>(p.scale + (block + b) * LANES);
            sums.of[b][r] = scaled(dots[b][r], channel, in.scale[size_t(first + r) * in.groups]);
        }
}

// 32 inputs at a time, with q of 4 bits and a shift, or q of 8 bits, which are stored with 128 added.
template <int R, bool FOUR>
void multiply_groups(const Product& p, int block, const Inputs& in, int first, Sums<R, 1>& sums) {
    constexpr int WORDS = FOUR ? 4 : 8, SIZE = WORDS * 64 + (FOUR ? 4 : 2) * LANES;
    int groups = p.inputs / GROUP;
    const uint8_t* w = static_cast<const uint8_t*>(p.weight) + size_t(block) * groups * SIZE;
    const int8_t* q = in.q.data() + size_t(first) * in.stride;
    const float* scale = in.scale.data() + size_t(first) * in.groups;
    const int32_t* sum = in.sum.data() + size_t(first) * in.groups;
    for (int g = 0; g < groups; g++, w += SIZE) {
        ahead(w, SIZE);
        Bytes part[8];
        for (int j = 0; j < WORDS; j++) {
            Bytes both = load<Bytes>(w + j * 64);
            part[j] = FOUR ? both & 15 : both;
            if (FOUR) part[j + 4] = both >> 4;
        }
        Floats steps = from_half(w + WORDS * 64), lows = FOUR ? from_half(w + WORDS * 64 + 2 * LANES) : Floats{};
#pragma GCC unroll 8
        for (int r = 0; r < R; r++) {
            Ints dots = FOUR ? Ints{} : Ints{} - 128 * sum[r * in.groups + g];
            for (int j = 0; j < 8; j++) dots = dot4(dots, part[j], q + r * in.stride + g * GROUP + j * 4);
            float each = scale[r * in.groups + g];
            sums.of[0][r] += steps * (__builtin_convertvector(dots, Floats) * each);
            if (FOUR) sums.of[0][r] += lows * (each * float(sum[r * in.groups + g]));
        }
    }
}

// Where results go: y = W x + b, or y += it.
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
    if constexpr (B == 1) {
        if (p.kind == INT4) multiply_groups<R, true>(p, block, in, first, sums);
        if (p.kind == INT8_GROUPS) multiply_groups<R, false>(p, block, in, first, sums);
    }
    if (p.kind == INT8) multiply_int8<R, B>(p, block, in, first, sums);
    if (p.kind == BF16) multiply_bf16<R, B>(p, block, x, in.stride, sums);
    if (p.kind == FLOAT32) multiply_float32<R, B>(p, block, x, in.stride, sums);
    for (int b = 0; b < B; b++)
        for (int r = 0; r < R; r++) out.write(p, block + b, first + r, sums.of[b][r]);
}

template <int B, int R = ROWS>
void multiply_some(const Product& p, int block, const Inputs& in, int first, int rows, const Output& out) {
    if constexpr (R == 1) multiply_rows<1, B>(p, block, in, first, out);
    else if (R == 2 && B == 1 && rows == 2) {
        // Of two rows at once the compiler adds up a group's two terms first, and of any other number it does not.
        multiply_rows<1, B>(p, block, in, first, out);
        multiply_rows<1, B>(p, block, in, first + 1, out);
    } else if (rows == R) multiply_rows<R, B>(p, block, in, first, out);
    else multiply_some<B, R - 1>(p, block, in, first, rows, out);
}

#if defined(__AMX_INT8__) && defined(__linux__)
// Processors with matrix tiles multiply 16 rows by 16 outputs over 64 inputs at once. Linux asks to be asked first.
bool tiles_there() {
    static const bool there = syscall(SYS_arch_prctl, 0x1023, 18) == 0;  // ARCH_REQ_XCOMP_PERM, XFEATURE_XTILEDATA
    return there;
}

void tiles_begin() {
    struct Form {
        uint8_t palette = 1, start = 0, reserved[14] = {};
        uint16_t columns[16] = {64, 64, 64, 64, 64, 64, 64, 64};
        uint8_t rows[16] = {16, 16, 16, 16, 16, 16, 16, 16};
    };
    static const Form form;  // static: of one on the stack the compiler would see no use, and leave it empty
    _tile_loadconfig(&form);
}

// 32 rows against two blocks of outputs, in four tiles of sums.
void multiply_tiles(const Product& p, int block, const Inputs& in, int first, int rows, const Output& out) {
    int stride = in.stride, parts = stride / 4, two = (block + 1) * LANES < p.outputs, more = rows > TILE;
    const uint8_t* w = static_cast<const uint8_t*>(p.weight) + size_t(block) * parts * 64;
    const uint8_t* v = w + two * parts * 64;
    const int8_t *q = in.q.data() + size_t(first) * stride, *s = q + more * TILE * stride;
    _tile_zero(0);
    _tile_zero(1);
    _tile_zero(2);
    _tile_zero(3);
    for (int i = 0; i < stride; i += 64) {
        ahead(w + i * LANES, 1024);
        ahead(v + i * LANES, 1024);
        _tile_loadd(4, q + i, stride);
        _tile_loadd(5, s + i, stride);
        _tile_loadd(6, w + i * LANES, 64);
        _tile_loadd(7, v + i * LANES, 64);
        _tile_dpbsud(0, 4, 6);
        _tile_dpbsud(1, 4, 7);
        _tile_dpbsud(2, 5, 6);
        _tile_dpbsud(3, 5, 7);
    }
    alignas(64) int32_t sums[2][2][TILE][LANES];
    _tile_stored(0, sums[0][0], 64);
    _tile_stored(1, sums[0][1], 64);
    _tile_stored(2, sums[1][0], 64);
    _tile_stored(3, sums[1][1], 64);
    for (int b = 0; b <= two; b++) {
        Floats channel = load<Floats>(p.scale + (block + b) * LANES);
        for (int r = 0; r < rows; r++) {
            size_t place = size_t(first + r) * in.groups;
            Ints dots = load<Ints>(sums[r / TILE][b][r % TILE]) - 128 * in.sum[place];
            out.write(p, block + b, first + r, scaled(dots, channel, in.scale[place]));
        }
    }
}
#else
bool tiles_there() { return false; }
void tiles_begin() {}
void multiply_tiles(const Product&, int, const Inputs&, int, int, const Output&) {}
#endif

void multiply(Crew& crew, const Product& p, const Inputs& in, int count, const Output& out) {
    bool tiles = p.kind == INT8 && count >= TILE / 2 && tiles_there();
    int blocks = (p.outputs + LANES - 1) / LANES, rows = tiles ? 2 * TILE : ROWS;
    // A few pairs of blocks an item: taking one costs more than a small block does.
    int each = std::max(1, std::min(4, blocks / (crew.size * 16))) * 2;
    if (tiles) tiles_begin();
    crew.each((blocks + each - 1) / each, [&](int item) {
        int end = std::min(blocks, (item + 1) * each);
        for (int r = 0; r < count; r += rows) {
            int some = std::min(rows, count - r);
            for (int b = item * each; b < end; b += 2) {
                if (tiles) multiply_tiles(p, b, in, r, some, out);
                else if (p.kind < INT8_GROUPS && b + 1 < end) multiply_some<2>(p, b, in, r, some, out);
                else
                    for (int one = b; one < std::min(end, b + 2); one++) multiply_some<1>(p, one, in, r, some, out);
            }
        }
    });
}

}  // namespace
