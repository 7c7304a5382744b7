// Products of quantized weights with many rows on x86: the weights of a few groups and blocks are unpacked once, and stay in
// the first cache while all rows are multiplied by them.
//
//     weights   q − center as 16-bit numbers, in pairs (pairs_x86.h), and scales and shifts as floats
//     sums      of some rows and all groups so far, in the second cache
//
// Sums of integers are exact, and groups are added in the same order, so results of finite inputs equal those of products.h
// to the last bit. Processors with AMX tiles use this, too: every group has a scale, so sums would leave the tiles after each
// group, which costs what the tiles save.
#pragma once

#include <algorithm>

#include "groups.h"

namespace {

#if HAS_PAIRS
#if defined(__AVX512F__)
constexpr int UNPACKED_ROWS = 4;  // so many that their sums, integers and floats, fit in 32 registers
#else
constexpr int UNPACKED_ROWS = 2;  // in 16 registers
#endif
constexpr int UNPACKED_BLOCKS = 3;
constexpr int WORDS = GROUP / 2;                                                         // pairs of a group, for an output
constexpr int UNPACKED_GROUPS = 18432 / (WORDS * UNPACKED_BLOCKS * int(sizeof(Words)));  // half of the first cache
constexpr int PANEL = 256;                                                               // rows whose sums are kept at a time

// Some groups of some blocks. The blocks are in the order in which they are multiplied: side by side.
struct UnpackedWeights {
    int first, groups;
    Words pairs[UNPACKED_GROUPS][WORDS][UNPACKED_BLOCKS];
    // Of each half of a group; only [g][0] is used if a group has one scale.
    Floats scale[UNPACKED_GROUPS][2][UNPACKED_BLOCKS], shift[UNPACKED_GROUPS][2][UNPACKED_BLOCKS];

    // The groups from `from` on of blocks `block` … `end`. If there are fewer than UNPACKED_BLOCKS, the last is repeated.
    template <int KIND> void open(const Product& p, int block, int end, int from) {
        using G = Group<KIND>;
        first = from, groups = std::min(UNPACKED_GROUPS, groups_of(p) - from);
        for (int b = 0; b < UNPACKED_BLOCKS; b++) {
            const uint8_t* weights = G::of(p, std::min(block + b, end - 1));
            for (int g = 0; g < groups; g++) {
                G group(weights, from + g);
                ahead(group.codes, G::SIZE);
                Bytes q[8];
                group.read(q);
                const Words center = Words{} + uint32_t(G::F.center) * 0x10001u;
                for (int j = 0; j < 8; j++) {
                    Words even = (Words)q[j] & 0x00ff00ff, odd = (Words)((Shorts)q[j] >> 8);
                    pairs[g][2 * j][b] = (Words)((Shorts)even - (Shorts)center);
                    pairs[g][2 * j + 1][b] = (Words)((Shorts)odd - (Shorts)center);
                }
                for (int part = 0; part < G::PARTS; part++) {
                    scale[g][part][b] = group.scale(group.outer(), part);
                    shift[g][part][b] = group.shift(group.outer(), part);
                }
            }
        }
    }
};

typedef Floats UnpackedSums[UNPACKED_ROWS][UNPACKED_BLOCKS];

// run<r, b>() for all rows and blocks that are computed together.
template <class Run> [[gnu::always_inline]] inline void each_sum(const Run& run) {
    each_number<UNPACKED_ROWS * UNPACKED_BLOCKS>([&]<int I> [[gnu::always_inline]] {
        run.template operator()<I / UNPACKED_BLOCKS, I % UNPACKED_BLOCKS>();
    });
}

// Add the products of these groups with UNPACKED_ROWS rows, from `row` on, to `total`.
template <int PARTS, bool SHIFTED>
[[gnu::noinline]] void add_unpacked(const UnpackedWeights& w, const Inputs& in, int row, UnpackedSums& total) {
    const int16_t* x[UNPACKED_ROWS];
    for (int r = 0; r < UNPACKED_ROWS; r++) {
        x[r] = in.pairs(row + r) + w.first * GROUP;
        asm("" : "+r"(x[r]));  // keeps the address of a row, which would be computed again for every load
    }
    const size_t place = size_t(row) * in.groups + w.first, groups = w.groups;
    const size_t next = UNPACKED_ROWS * size_t(in.stride);
    UnpackedSums sums;
    each_sum([&]<int r, int b> [[gnu::always_inline]] { sums[r][b] = total[r][b]; });
    for (size_t g = 0; g < groups; g++) {
        for (int r = 0; r < UNPACKED_ROWS; r++) __builtin_prefetch(x[r] + next + g * GROUP);  // the rows lie far apart
        each_number<PARTS>([&]<int PART> [[gnu::always_inline]] {
            Ints dots[UNPACKED_ROWS][UNPACKED_BLOCKS] = {};
#pragma GCC unroll 16
            for (int j = PART * WORDS / PARTS; j < (PART + 1) * WORDS / PARTS; j++)
                each_number<UNPACKED_ROWS>([&]<int r> [[gnu::always_inline]] {
                    Words pair = load<uint32_t>(x[r] + g * GROUP + 2 * j) + Words{};
                    each_number<UNPACKED_BLOCKS>([&]<int b> [[gnu::always_inline]] {
                        dots[r][b] = add_pairs(dots[r][b], w.pairs[g][j][b], pair);
                    });
                });
            each_sum([&]<int r, int b> [[gnu::always_inline]] {
                const size_t at = place + r * size_t(in.groups) + g;
                const int32_t sum = PARTS == 2 ? in.sums[2 * at + PART] : 0;
                sums[r][b] = add_group<PARTS, SHIFTED>(
                    sums[r][b], dots[r][b], w.scale[g][PART][b], w.shift[g][PART][b], in, at, sum);
            });
        });
    }
    each_sum([&]<int r, int b> [[gnu::always_inline]] { total[r][b] = sums[r][b]; });
}

// All rows times blocks `block` … `end`, of which there are at most UNPACKED_BLOCKS.
template <int KIND> void multiply_many(const Product& p, int block, int end, const Inputs& in, int count, const Output& out) {
    UnpackedWeights weights;
    UnpackedSums sums[PANEL / UNPACKED_ROWS];
    for (int begin = 0; begin < count; begin += PANEL) {
        const int parts = (std::min(PANEL, count - begin) + UNPACKED_ROWS - 1) / UNPACKED_ROWS;
        for (int i = 0; i < parts; i++) each_sum([&]<int r, int b> { sums[i][r][b] = Floats{}; });
        for (int g = 0; g < groups_of(p); g += UNPACKED_GROUPS) {
            weights.open<KIND>(p, block, end, g);
            for (int i = 0; i < parts; i++) {
                const int row = begin + i * UNPACKED_ROWS, rows = std::min(UNPACKED_ROWS, count - row);
                add_unpacked<FORMATS[KIND].parts, FORMATS[KIND].shifted>(weights, in, row, sums[i]);
                if (g + weights.groups < groups_of(p)) continue;
                for (int r = 0; r < rows; r++)
                    for (int b = block; b < end; b++) out.write(p, b, row + r, sums[i][r][b - block]);
            }
        }
    }
}
#else
constexpr int UNPACKED_BLOCKS = 1;
template <int> void multiply_many(const Product&, int, int, const Inputs&, int, const Output&) {}
#endif

}  // namespace
