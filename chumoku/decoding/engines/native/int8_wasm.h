// int8 weights in WebAssembly, in blocks of 4 outputs: [N/4][K/32], of each group q [16 pairs of inputs][8] and s [4] as
// float32, since WebAssembly has no instruction for float16. pairs_wasm.h has the order of the 8 bytes of a pair, and
// chumoku/viewer/in_page/wasm/pack.js writes them.
#pragma once

#if defined(__wasm__)
#include <algorithm>
#include <cstdint>

#include "groups.h"
#include "structs.h"

namespace {

constexpr int INT8_CODES = GROUP * LANES, INT8_GROUP = INT8_CODES + sizeof(Floats);
constexpr int INT8_BLOCKS = 4;  // that are multiplied by one row together

size_t int8_block_size(int groups) { return size_t(groups) * INT8_GROUP; }

// Two registers of weights; `add` adds the products of one of them with inputs to sums.
template <bool ARM> struct Pairs {
    v128_t first, second;
    [[gnu::always_inline]] explicit Pairs(const uint8_t* from) {
        if (ARM) {
            v128_t both = wasm_v128_load(from);
            first = wasm_i16x8_extend_low_i8x16(both);
            second = wasm_i16x8_extend_high_i8x16(both);
        } else {
            first = wasm_i16x8_load8x8(from);
            second = wasm_i16x8_load8x8(from + 8);
        }
    }
    [[gnu::always_inline]] static void add(v128_t w, const int8_t* inputs, v128_t& sums) {
        v128_t x = wasm_v128_load(inputs);
        if (ARM) {
            sums = wasm_i32x4_add(sums, wasm_i32x4_extmul_low_i16x8(w, x));
            sums = wasm_i32x4_add(sums, wasm_i32x4_extmul_high_i16x8(w, x));
        } else sums = wasm_i32x4_add(sums, wasm_i32x4_dot_i16x8(w, x));
    }
};

// R rows times B blocks.
template <bool ARM, int R, int B>
void multiply_int8_group(const Product& p, int block, const Inputs& in, int row, const Output& out) {
    int groups = groups_of(p);
    size_t size = int8_block_size(groups), stride = size_t(in.stride) * INPUT_BYTES;
    const uint8_t* w = static_cast<const uint8_t*>(p.weight) + block * size;
    const int8_t* x = in.halves.data() + row * stride;
    const float* step = in.step.data() + size_t(row) * in.groups;
    Floats sums[B][R] = {};
    for (int g = 0; g < groups; g++, w += INT8_GROUP, x += GROUP * INPUT_BYTES) {
        v128_t dots[B][R] = {};
#pragma GCC unroll 2  // more would need more registers than there are
        for (int pair = 0; pair < GROUP / 2; pair += 2)
#pragma GCC unroll 4
            for (int b = 0; b < B; b++) {
                Pairs<ARM> pairs(w + b * size + pair * 2 * LANES);
                const int8_t* from = x + pair * 2 * INPUT_BYTES;
                // One row after another for each register, so that no sum waits for itself.
#pragma GCC unroll 4
                for (int r = 0; r < R; r++) pairs.add(pairs.first, from + r * stride, dots[b][r]);
#pragma GCC unroll 4
                for (int r = 0; r < R; r++) pairs.add(pairs.second, from + r * stride + 16, dots[b][r]);
            }
        for (int b = 0; b < B; b++) {
            Floats scale = load<Floats>(w + b * size + INT8_CODES);
            for (int r = 0; r < R; r++) {
                Floats dot = __builtin_convertvector((Ints)dots[b][r], Floats) * step[r * in.groups + g];
                sums[b][r] = fma(scale, dot, sums[b][r]);
            }
        }
    }
    for (int b = 0; b < B; b++)
        for (int r = 0; r < R; r++) out.write(p, block + b, row + r, sums[b][r]);
}

// `rows` rows, 1 to 4, times blocks `block` … of at most INT8_BLOCKS before `end`.
template <bool ARM>
void multiply_int8_rows(const Product& p, int block, int end, const Inputs& in, int row, int rows, const Output& out) {
    int last = std::min(end, block + INT8_BLOCKS);
    if (rows == 1 && last - block == INT8_BLOCKS) return multiply_int8_group<ARM, 1, INT8_BLOCKS>(p, block, in, row, out);
    for (; block < last; block++) {
        if (rows == 1) multiply_int8_group<ARM, 1, 1>(p, block, in, row, out);
        if (rows == 2) multiply_int8_group<ARM, 2, 1>(p, block, in, row, out);
        if (rows == 3) multiply_int8_group<ARM, 3, 1>(p, block, in, row, out);
        if (rows == 4) multiply_int8_group<ARM, 4, 1>(p, block, in, row, out);
    }
}

void multiply_int8(const Product& p, int block, int end, const Inputs& in, int row, int rows, const Output& out) {
    if (is_arm()) multiply_int8_rows<true>(p, block, end, in, row, rows, out);
    else multiply_int8_rows<false>(p, block, end, in, row, rows, out);
}

}  // namespace
#endif
