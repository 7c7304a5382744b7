// Products of quantized weights with many rows, by AMX tiles. Results equal those of products.h to the last bit.
#pragma once

#include <algorithm>
#include <atomic>
#include <vector>

#include "groups.h"
#include "tiles.h"

namespace {

#if HAS_TILES
// Tiles 0 to 3 hold sums, 4 and 7 hold 32 inputs of TILE_TOKENS rows (high halves, then low halves), 5 and 6 weights.
inline void int8_tiles_begin() {
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

// Working space of a thread: the weights of two blocks as tiles read them, q − center, and scales and shifts of all groups. A
// tile must not read what was just written: it would wait until the writes have left the store buffer.
struct TileSpace {
    std::vector<Bytes> bytes;
    std::vector<Floats> scale, shift;
    int groups = 0;  // of these weights

    void reserve(int most) {
        if (!tiles_available() || scale.size() >= 2 * size_t(most)) return;
        bytes.resize(16 * size_t(most));
        scale.resize(2 * size_t(most));
        shift.resize(2 * size_t(most));
    }
    const uint8_t* first(int b) const { return reinterpret_cast<const uint8_t*>(bytes.data() + 8 * size_t(b) * groups); }

    template <int KIND> void open(const Product& p, int block, int blocks) {
        groups = groups_of(p);
        for (int b = 0; b < blocks; b++) {
            const uint8_t* from = Group<KIND>::of(p, block + b);
            for (int g = 0; g < groups; g++) {
                Group<KIND> group(from, g);
                ahead(group.codes, Group<KIND>::SIZE);
                Bytes* q = &bytes[8 * size_t(b * groups + g)];
                group.read(q);
                for (int j = 0; j < 8; j++) q[j] -= uint8_t(Group<KIND>::F.center);
                scale[b * groups + g] = group.scale(group.outer(), 0);
                shift[b * groups + g] = group.shift(group.outer(), 0);
            }
        }
    }
};

thread_local TileSpace* tile_space = nullptr;  // of this thread, while it computes
inline void use(TileSpace& space) { tile_space = &space; }

// The products of group g, with one of two sets of tiles, so that two groups can be in progress. The numbers of tiles must
// be literals, so both sets are written out.
[[gnu::always_inline]] inline void multiply_group(
    int g, const uint8_t* one, const uint8_t* two, const int8_t* inputs, int stride, TileSums* dots) {
    if (g % 2) {
        _tile_zero(2);
        _tile_zero(3);
        _tile_loadd(7, inputs, stride);
        _tile_loadd(5, one, 64);
        _tile_dpbssd(2, 7, 5);
        _tile_loadd(6, two, 64);
        _tile_dpbssd(3, 7, 6);
        _tile_stored(2, dots[0], 64);
        _tile_stored(3, dots[1], 64);
    } else {
        _tile_zero(0);
        _tile_zero(1);
        _tile_loadd(4, inputs, stride);
        _tile_loadd(5, one, 64);
        _tile_dpbssd(0, 4, 5);
        _tile_loadd(6, two, 64);
        _tile_dpbssd(1, 4, 6);
        _tile_stored(0, dots[0], 64);
        _tile_stored(1, dots[1], 64);
    }
}

// TILE_TOKENS rows from `first` on times two blocks, group by group: the tiles compute a group while the sums of the group
// before are added. `noipa`, or the compiler would find the address of the weights, which are thread_local, by a call for every
// group, and the sums could not stay in registers.
template <bool SHIFTED> [[gnu::noipa]] void multiply_tile_rows(
    const TileSpace& w, const Inputs& in, int first, Floats (&found)[2][TILE_TOKENS]) {
    constexpr size_t SIZE = 8 * sizeof(Bytes);
    alignas(64) TileSums dots[2][2];
    const int groups = w.groups, stride = in.stride;
    const int8_t* x = in.high(first);
    const uint8_t *one = w.first(0), *two = w.first(1);
    const Floats *scales = w.scale.data(), *shifts = w.shift.data();
    Floats sums[2][TILE_TOKENS] = {};
    auto multiply = [&](int g) { multiply_group(g, one + g * SIZE, two + g * SIZE, x + g * GROUP, stride, dots[g % 2]); };
    multiply(0);
    for (int g = 0; g < groups; g++) {
        if (g + 1 < groups) multiply(g + 1);
        const TileSums* both = dots[g % 2];
        Floats scale[] = {scales[g], scales[groups + g]}, shift[] = {shifts[g], shifts[groups + g]};
        each_number<2 * TILE_TOKENS>([&]<int I> [[gnu::always_inline]] {
            constexpr int r = I / 2, b = I % 2;
            Ints dot = load<Ints>(both[b][0][r]) * 256 + load<Ints>(both[b][1][r]);
            size_t place = size_t(first + r) * in.groups + g;
            sums[b][r] = add_group<1, SHIFTED>(sums[b][r], dot, scale[b], shift[b], in, place, 0);
        });
    }
    each_number<2 * TILE_TOKENS>([&]<int I> [[gnu::always_inline]] { found[I % 2][I / 2] = sums[I % 2][I / 2]; });
}

// All rows times two blocks.
template <int KIND>
void multiply_tiles(const Product& p, int block, int blocks, const Inputs& in, int count, const Output& out) {
    TileSpace& w = *tile_space;
    w.open<KIND>(p, block, blocks);
    std::atomic_signal_fence(std::memory_order_seq_cst);  // the compiler does not see that tile loads read memory
    for (int first = 0; first < count; first += TILE_TOKENS) {
        Floats sums[2][TILE_TOKENS];
        multiply_tile_rows<FORMATS[KIND].shifted>(w, in, first, sums);
        int rows = std::min(TILE_TOKENS, count - first);
        for (int b = 0; b < blocks; b++)
            for (int r = 0; r < rows; r++) out.write(p, block + b, first + r, sums[b][r]);
    }
}
#else
struct TileSpace {
    void reserve(int) {}
};
inline void use(TileSpace&) {}
inline void int8_tiles_begin() {}
template <int> void multiply_tiles(const Product&, int, int, const Inputs&, int, const Output&) {}
#endif

}  // namespace
