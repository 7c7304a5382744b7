// Products of quantized weights with several rows, by AMX tiles. Results equal those of products.h to the last bit.
#pragma once

#include <algorithm>
#include <atomic>
#include <vector>
#if defined(__linux__)
#include <sys/syscall.h>
#include <unistd.h>
#endif

#include "groups.h"

namespace {

#if defined(__AMX_INT8__) && defined(__linux__)
// AMX tiles multiply 16 rows by 16 outputs over 64 inputs at once. On Linux a process must request permission first.
bool tiles_available() {
    static const bool available = syscall(SYS_arch_prctl, 0x1023, 18) == 0;  // ARCH_REQ_XCOMP_PERM, XFEATURE_XTILEDATA
    return available;
}

// Tiles 0 to 3 hold sums, 4 and 7 hold 32 inputs of TILE_TOKENS rows (high halves, then low halves), 5 and 6 weights.
void tiles_begin() {
    struct Form {
        uint8_t palette = 1, start = 0, reserved[14] = {};
        uint16_t columns[16] = {64, 64, 64, 64, 32, 64, 64, 32};
        uint8_t rows[16] = {16, 16, 16, 16, 16, 8, 8, 16};
    };
    static const Form form;  // static: the compiler would optimize away one on the stack
    _tile_loadconfig(&form);
}

// A tile of sums: the products of TILE_TOKENS rows' high halves, then of their low halves.
typedef int32_t TileSums[2][TILE_TOKENS][LANES];

// The weights of two blocks as tiles read them: bytes, scales and shifts of every group, for all rows. Smaller weights
// are unpacked, and for many rows 8-bit weights are copied to aligned addresses. A tile must not read what was just written:
// it would wait until the writes have left the store buffer.
template <int KIND> struct TileWeights {
    std::vector<Bytes> bytes;
    std::vector<Floats> scale, shift;
    const uint8_t* first[2];  // the bytes of each block's first group
    size_t size;              // from one group's bytes to the next's
    int groups;

    void open(const Product& p, int block, int blocks, int count) {
        groups = groups_of(p);
        bool copied = KIND != INT8 || count > 2 * TILE_TOKENS;
        bytes.resize(copied ? 16 * groups : 0);
        scale.resize(2 * groups);
        shift.resize(2 * groups);
        for (int b = 0; b < 2; b++) {
            const uint8_t* from = Group<KIND>::of(p, block + (b < blocks ? b : 0));
            first[b] = copied ? (const uint8_t*)(bytes.data() + 8 * b * groups) : from;
            for (int g = 0; g < groups; g++) {
                Group<KIND> group(from, g);
                ahead(group.codes, Group<KIND>::SIZE);
                if (copied) group.read(bytes.data() + 8 * (b * groups + g));
                scale[b * groups + g] = group.scale(group.outer(), 0);
                shift[b * groups + g] = group.shift(group.outer(), 0);
            }
        }
        size = copied ? 8 * sizeof(Bytes) : Group<KIND>::SIZE;
    }
};

// The products of group g, with one of two sets of tiles, so that two groups can be in progress. The numbers of tiles must
// be literals, so both sets are written out.
[[gnu::always_inline]] inline void multiply_group(
    int g, const uint8_t* one, const uint8_t* two, const int8_t* inputs, int stride, TileSums* dots) {
    if (g % 2) {
        _tile_zero(2);
        _tile_zero(3);
        _tile_loadd(7, inputs, stride);
        _tile_loadd(5, one, 64);
        _tile_dpbsud(2, 7, 5);
        _tile_loadd(6, two, 64);
        _tile_dpbsud(3, 7, 6);
        _tile_stored(2, dots[0], 64);
        _tile_stored(3, dots[1], 64);
    } else {
        _tile_zero(0);
        _tile_zero(1);
        _tile_loadd(4, inputs, stride);
        _tile_loadd(5, one, 64);
        _tile_dpbsud(0, 4, 5);
        _tile_loadd(6, two, 64);
        _tile_dpbsud(1, 4, 6);
        _tile_stored(0, dots[0], 64);
        _tile_stored(1, dots[1], 64);
    }
}

// TILE_TOKENS rows from `first` on times two blocks, group by group: the tiles compute a group while the sums of the group
// before are added. `noipa`, or the compiler would find the address of the weights, which are thread_local, by a call for every
// group, and the sums could not stay in registers.
template <int KIND> [[gnu::noipa]] void multiply_tile_rows(
    const TileWeights<KIND>& w, const Inputs& in, int first, Floats (&found)[2][TILE_TOKENS]) {
    alignas(64) TileSums dots[2][2];
    const int groups = w.groups, stride = in.stride;
    const int8_t* x = in.high(first);
    const uint8_t *one = w.first[0], *two = w.first[1];
    const Floats *scales = w.scale.data(), *shifts = w.shift.data();
    Floats sums[2][TILE_TOKENS] = {};
    auto multiply = [&](int g) { multiply_group(g, one + g * w.size, two + g * w.size, x + g * GROUP, stride, dots[g % 2]); };
    multiply(0);
    for (int g = 0; g < groups; g++) {
        if (g + 1 < groups) multiply(g + 1);
        const TileSums* both = dots[g % 2];
        Floats scale[] = {scales[g], scales[groups + g]}, shift[] = {shifts[g], shifts[groups + g]};
        each_number<2 * TILE_TOKENS>([&]<int I> [[gnu::always_inline]] {
            constexpr int r = I / 2, b = I % 2;
            Ints dot = load<Ints>(both[b][0][r]) * 256 + load<Ints>(both[b][1][r]);
            size_t place = size_t(first + r) * in.groups + g;
            sums[b][r] = Group<KIND>::add(sums[b][r], dot, scale[b], shift[b], in, place, 0);
        });
    }
    each_number<2 * TILE_TOKENS>([&]<int I> [[gnu::always_inline]] { found[I % 2][I / 2] = sums[I % 2][I / 2]; });
}

// All rows times two blocks.
template <int KIND>
void multiply_tiles(const Product& p, int block, int blocks, const Inputs& in, int count, const Output& out) {
    thread_local TileWeights<KIND> w;
    w.open(p, block, blocks, count);
    std::atomic_signal_fence(std::memory_order_seq_cst);  // the compiler does not see that tile loads read memory
    for (int first = 0; first < count; first += TILE_TOKENS) {
        Floats sums[2][TILE_TOKENS];
        multiply_tile_rows(w, in, first, sums);
        int rows = std::min(TILE_TOKENS, count - first);
        for (int b = 0; b < blocks; b++)
            for (int r = 0; r < rows; r++) out.write(p, block + b, first + r, sums[b][r]);
    }
}
#else
bool tiles_available() { return false; }
void tiles_begin() {}
template <int> void multiply_tiles(const Product&, int, int, const Inputs&, int, const Output&) {}
#endif

}  // namespace
