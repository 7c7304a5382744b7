// Products of weights in bf16 by AMX tiles: y = Σ_i W[o, i] (x₀ + x₁ + x₂)[i], for any number of rows.
//
// A tile of weights is a group of GROUP inputs of a block, as it is stored. To every sum, the parts of a group are added in the
// same order, group by group, so the numbers of rows and blocks that are computed together change no bit.
#pragma once

#include <algorithm>
#include <atomic>

#include "groups.h"
#include "tiles.h"

namespace {

#if HAS_TILES
typedef float TileFloats[TILE_ROWS_MOST][LANES];
constexpr int TILE_BYTES = sizeof(TileFloats);  // of a tile of weights, too

// Tile 7 has weights, the others rows of inputs or of sums; with TILE_ROWS_MOST rows there is no difference.
inline void bf16_tiles_begin(int rows) {
    struct Form {
        uint8_t palette = 1, start = 0, reserved[14] = {};
        uint16_t columns[16] = {64, 64, 64, 64, 64, 64, 64, 64};
        uint8_t rows[16] = {16, 16, 16, 16, 16, 16, 16, 16};
    };
    alignas(64) thread_local Form form;  // not on the stack: the compiler does not see that all of it is read
    std::fill(form.rows, form.rows + 7, uint8_t(rows));
    std::atomic_signal_fence(std::memory_order_seq_cst);
    _tile_loadconfig(&form);
}

// Two tiles of rows times two blocks, for some groups; their products are added to `sums`, or to 0.
[[gnu::noinline]] inline void multiply_two_tiles(
    const Bytes* x0, const Bytes* x1, const uint8_t* w0, const uint8_t* w1, int groups, bool begin, TileFloats* sums) {
    if (begin) {
        _tile_zero(0);
        _tile_zero(1);
        _tile_zero(2);
        _tile_zero(3);
    } else {
        _tile_loadd(0, sums[0], 64);
        _tile_loadd(1, sums[1], 64);
        _tile_loadd(2, sums[2], 64);
        _tile_loadd(3, sums[3], 64);
    }
    for (int g = 0; g < groups; g++) {
        _tile_loadd(6, w0 + size_t(g) * TILE_BYTES, 64);
        _tile_loadd(7, w1 + size_t(g) * TILE_BYTES, 64);
        for (int part = 0; part < TileInputs::PARTS; part++) {
            _tile_loadd(4, x0, 64);
            _tile_dpbf16ps(0, 4, 6);
            _tile_dpbf16ps(1, 4, 7);
            _tile_loadd(5, x1, 64);
            _tile_dpbf16ps(2, 5, 6);
            _tile_dpbf16ps(3, 5, 7);
            x0 += TILE_ROWS_MOST, x1 += TILE_ROWS_MOST;
        }
    }
    _tile_stored(0, sums[0], 64);
    _tile_stored(1, sums[1], 64);
    _tile_stored(2, sums[2], 64);
    _tile_stored(3, sums[3], 64);
}

// One tile of rows times up to four blocks, `size` bytes apart.
inline void multiply_one_tile(const Bytes* x, int rows, const uint8_t* w, size_t size, int blocks, int groups, TileFloats* sums) {
    _tile_zero(0);
    _tile_zero(1);
    _tile_zero(2);
    _tile_zero(3);
    // What is prefetched near the end of a block is of the one `blocks` further on.
    const int last = groups - AHEAD / TILE_BYTES;
    for (int g = 0; g < groups; g++, w += TILE_BYTES, x += TileInputs::PARTS * rows) {
        const size_t skip = g < last ? 0 : (blocks - 1) * size;
        _tile_loadd(4, x, 64);
        _tile_loadd(5, x + rows, 64);
        _tile_loadd(6, x + 2 * rows, 64);
        _tile_loadd(7, w, 64);
        ahead(w + skip, TILE_BYTES);
        _tile_dpbf16ps(0, 4, 7);
        _tile_dpbf16ps(0, 5, 7);
        _tile_dpbf16ps(0, 6, 7);
        if (blocks > 1) {
            _tile_loadd(7, w + size, 64);
            ahead(w + size + skip, TILE_BYTES);
            _tile_dpbf16ps(1, 4, 7);
            _tile_dpbf16ps(1, 5, 7);
            _tile_dpbf16ps(1, 6, 7);
        }
        if (blocks > 2) {
            _tile_loadd(7, w + 2 * size, 64);
            ahead(w + 2 * size + skip, TILE_BYTES);
            _tile_dpbf16ps(2, 4, 7);
            _tile_dpbf16ps(2, 5, 7);
            _tile_dpbf16ps(2, 6, 7);
        }
        if (blocks > 3) {
            _tile_loadd(7, w + 3 * size, 64);
            ahead(w + 3 * size + skip, TILE_BYTES);
            _tile_dpbf16ps(3, 4, 7);
            _tile_dpbf16ps(3, 5, 7);
            _tile_dpbf16ps(3, 6, 7);
        }
    }
    _tile_stored(0, sums[0], 64);
    _tile_stored(1, sums[1], 64);
    _tile_stored(2, sums[2], 64);
    _tile_stored(3, sums[3], 64);
}

// Groups, blocks and tiles of rows that are computed before the next ones, so that inputs and weights stay in the caches.
constexpr int CHUNK = 6, NEAR_BLOCKS = 8, NEAR_TILES = 4;

// All rows times blocks `block` … `end`.
inline void multiply_bf16_tiles(const Product& p, int block, int end, const Inputs& in, int count, const Output& out) {
    alignas(64) TileFloats sums[NEAR_BLOCKS / 2][4];
    const int groups = groups_of(p), rows = in.tiles.rows, tiles = (count + rows - 1) / rows;
    const size_t size = size_t(groups) * TILE_BYTES;
    auto weights = [&](int b) { return static_cast<const uint8_t*>(p.weight) + b * size; };
    auto write = [&](const TileFloats& from, int b, int tile) {
        int first = tile * rows, some = b < end ? std::min(rows, count - first) : 0;
        for (int r = 0; r < some; r++) out.write(p, b, first + r, load<Floats>(from[r]));
    };
    std::atomic_signal_fence(std::memory_order_seq_cst);  // the compiler does not see that tile loads read memory
    int pairs = tiles / 2 * 2;
    for (int near = 0; near < pairs; near += NEAR_TILES)
        for (int from = block; from < end; from += NEAR_BLOCKS)
            for (int t = near; t < std::min(pairs, near + NEAR_TILES); t += 2) {
                int to = std::min(end, from + NEAR_BLOCKS);
                for (int g = 0; g < groups; g += CHUNK)
                    for (int b = from; b < to; b += 2)
                        multiply_two_tiles(
                            in.tiles.tile(t, g), in.tiles.tile(t + 1, g), weights(b) + g * TILE_BYTES,
                            weights(std::min(b + 1, end - 1)) + g * TILE_BYTES, std::min(CHUNK, groups - g), g == 0,
                            sums[(b - from) / 2]);
                for (int b = from; b < to; b += 2)
                    for (int i = 0; i < 4; i++) write(sums[(b - from) / 2][i], b + i % 2, t + i / 2);
            }
    for (int b = block; pairs < tiles && b < end; b += 4) {
        int some = std::min(4, end - b);
        multiply_one_tile(in.tiles.tile(pairs, 0), rows, weights(b), size, some, groups, sums[0]);
        for (int i = 0; i < some; i++) write(sums[0][i], b + i, pairs);
    }
}
#else
inline void bf16_tiles_begin(int) {}
inline void multiply_bf16_tiles(const Product&, int, int, const Inputs&, int, const Output&) {}
#endif

}  // namespace
