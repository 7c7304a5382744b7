// AMX tiles: registers of up to 16 rows of 64 bytes, and the inputs that they multiply by weights in bf16.
//
// A float is the sum of three bf16, x = x₀ + x₁ + x₂ with 8 bits each. Tiles multiply bf16 exactly and add in float32, so
// these are products of float32 inputs. (Numbers below 2⁻¹²⁶ count as 0.)
#pragma once

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <vector>
#if defined(__linux__)
#include <sys/syscall.h>
#include <unistd.h>
#endif

#include "vectors.h"

#if defined(__AMX_BF16__) && defined(__AVX512BF16__) && defined(__linux__)
#define HAS_TILES 1
#else
#define HAS_TILES 0
#endif

namespace {

constexpr int TILE_ROWS_MOST = 16;

#if HAS_TILES
// On Linux a process must request permission first.
inline bool tiles_available() {
    static const bool available = syscall(SYS_arch_prctl, 0x1023, 18) == 0;  // ARCH_REQ_XCOMP_PERM, XFEATURE_XTILEDATA
    return available;
}

// Rows of inputs as tiles of bf16: [rows/R][groups][3][R][GROUP], where a tile has R rows.
struct TileInputs {
    static constexpr int PARTS = 3;
    int rows = 0, groups = 0;  // R, and how many groups a row has
    std::vector<Bytes> lines;  // of GROUP bf16

    void reserve(int count, int all_groups) {
        rows = std::min(count, TILE_ROWS_MOST), groups = all_groups;
        size_t tiles = size_t(groups) * PARTS * ((count + rows - 1) / rows);
        if (tiles_available()) lines.resize(tiles * rows);
    }
    // The first part of group g of a tile of rows.
    const Bytes* tile(int number, int g) const { return lines.data() + (size_t(number) * groups + g) * PARTS * rows; }

    // The three parts of GROUP floats.
    void split(int r, int g, const float* from) {
        Bytes* to = lines.data() + (size_t(r / rows) * groups + g) * PARTS * rows + r % rows;
        Floats x[] = {load<Floats>(from), load<Floats>(from + LANES)};
        for (int part = 0; part < PARTS; part++) {
            __m512i both = (__m512i)_mm512_cvtne2ps_pbh((__m512)x[1], (__m512)x[0]);
            to[part * rows] = (Bytes)both;
            __m256i halves[] = {_mm512_castsi512_si256(both), _mm512_extracti64x4_epi64(both, 1)};
            for (int i = 0; i < 2; i++) {
                Floats rounded = (Floats)_mm512_slli_epi32(_mm512_cvtepu16_epi32(halves[i]), 16);
                x[i] = magnitude(rounded) == INFINITY ? Floats{} : x[i] - rounded;  // ∞ stays ∞
            }
        }
    }
};
#else
inline bool tiles_available() { return false; }
struct TileInputs {
    static constexpr int rows = 0;
    void reserve(int, int) {}
    void split(int, int, const float*) {}
};
#endif

}  // namespace
