// AMX tiles in software, for processors with AVX-512: included before the library's sources, in place of the instructions.
//
// A tile has the size that was configured, and its other bytes are 0. Operands whose sizes do not fit end the process, as
// they do on a processor.
#include <immintrin.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <cmath>
#include <cstdint>
#include <cstdlib>
#include <cstring>

#define __AMX_TILE__ 1
#define __AMX_BF16__ 1
#define __AVX512BF16__ 1

namespace emulated {

struct Form {
    uint8_t palette, start, reserved[14];
    uint16_t columns[16];  // bytes of a row
    uint8_t rows[16];
};
inline thread_local Form form;
inline thread_local uint8_t tiles[8][16][64];

inline void configure(const void* from) {
    std::memcpy(&form, from, sizeof form);
    std::memset(tiles, 0, sizeof tiles);
}
inline void clear(int tile) { std::memset(tiles[tile], 0, sizeof tiles[tile]); }
inline void load(int tile, const void* from, long stride) {
    clear(tile);
    for (int r = 0; r < form.rows[tile]; r++)
        std::memcpy(tiles[tile][r], static_cast<const char*>(from) + r * stride, form.columns[tile]);
}
inline void store(int tile, void* to, long stride) {
    for (int r = 0; r < form.rows[tile]; r++)
        std::memcpy(static_cast<char*>(to) + r * stride, tiles[tile][r], form.columns[tile]);
}

inline float from_bf16(const uint8_t* two) {
    uint32_t bits = uint32_t(two[0]) << 16 | uint32_t(two[1]) << 24;
    if (!(bits & 0x7f800000)) bits &= 0x80000000;  // numbers below 2⁻¹²⁶ count as 0
    float number;
    std::memcpy(&number, &bits, sizeof number);
    return number;
}

// sums += a b of pairs of bf16: the first and the second numbers of pairs have sums of their own.
inline void multiply(int sums, int a, int b) {
    if (form.columns[a] / 4 != form.rows[b] || form.rows[sums] != form.rows[a] || form.columns[sums] != form.columns[b]) abort();
    for (int row = 0; row < form.rows[a]; row++)
        for (int column = 0; column < form.columns[b] / 4; column++) {
            float found[2] = {}, sum;
            for (int pair = 0; pair < form.rows[b]; pair++)
                for (int i = 0; i < 2; i++) {
                    float one = from_bf16(&tiles[a][row][4 * pair + 2 * i]);
                    found[i] = std::fma(one, from_bf16(&tiles[b][pair][4 * column + 2 * i]), found[i]);
                }
            std::memcpy(&sum, &tiles[sums][row][4 * column], sizeof sum);
            sum += found[0] + found[1];
            std::memcpy(&tiles[sums][row][4 * column], &sum, sizeof sum);
        }
}

// Floats as bf16, rounded to the nearest, and to the even one of two; NaN stays NaN.
inline __m256i to_bf16(__m512 floats) {
    __m512i bits = _mm512_castps_si512(floats), last = _mm512_and_si512(_mm512_srli_epi32(bits, 16), _mm512_set1_epi32(1));
    __m512i rounded = _mm512_add_epi32(_mm512_add_epi32(bits, _mm512_set1_epi32(0x7fff)), last);
    __mmask16 nan = _mm512_cmp_ps_mask(floats, floats, _CMP_UNORD_Q);
    rounded = _mm512_mask_or_epi32(rounded, nan, bits, _mm512_set1_epi32(0x400000));
    return _mm512_cvtepi32_epi16(_mm512_srli_epi32(rounded, 16));
}
inline __m512i to_bf16(__m512 high, __m512 low) {
    return _mm512_inserti64x4(_mm512_castsi256_si512(to_bf16(low)), to_bf16(high), 1);
}

}  // namespace emulated

#undef _tile_loadconfig
#undef _tile_zero
#undef _tile_loadd
#undef _tile_stored
#undef _tile_dpbf16ps
#define _tile_loadconfig emulated::configure
#define _tile_zero emulated::clear
#define _tile_loadd emulated::load
#define _tile_stored emulated::store
#define _tile_dpbf16ps emulated::multiply
#define _mm512_cvtne2ps_pbh(high, low) emulated::to_bf16(high, low)
#define syscall(...) 0  // Linux permits tiles
