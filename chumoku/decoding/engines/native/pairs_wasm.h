// Quantized inputs in WebAssembly: pairs of 16-bit integers, each pair repeated in one register for four outputs.
//
//     x86   a b a b a b a b   a register of weights has both of each output; one instruction multiplies and adds pairs
//     ARM   a a a a b b b b   a register of weights has the first of all outputs, then the second; each half is
//                             multiplied and added to sums by one instruction
//
// Sums of integers are exact, so the results are equal.
#pragma once

#if defined(__wasm__)
#include <cstdint>

#include "vectors.h"

namespace {

constexpr int INPUT_BYTES = 8;  // of an input: 16 bits, four times

// Whether the processor is an ARM processor: the NaN of 0 / 0 has a sign on x86.
inline bool is_arm() {
    static const bool arm = [] {
        volatile float zero = 0;
        float nan = zero / zero;
        return load<int32_t>(&nan) > 0;
    }();
    return arm;
}

extern "C" int is_arm_order() { return is_arm(); }

// Write 32 numbers as 16 registers of pairs.
inline void repeat_pairs(const Ints (&whole)[GROUP / LANES], int8_t* to) {
    bool arm = is_arm();
    for (int i = 0; i < GROUP / LANES; i++, to += 32) {
        v128_t x = (v128_t)whole[i];
        v128_t one, two;
        if (arm) {
            one = wasm_i8x16_shuffle(x, x, 0, 1, 0, 1, 0, 1, 0, 1, 4, 5, 4, 5, 4, 5, 4, 5);
            two = wasm_i8x16_shuffle(x, x, 8, 9, 8, 9, 8, 9, 8, 9, 12, 13, 12, 13, 12, 13, 12, 13);
        } else {
            one = wasm_i8x16_shuffle(x, x, 0, 1, 4, 5, 0, 1, 4, 5, 0, 1, 4, 5, 0, 1, 4, 5);
            two = wasm_i8x16_shuffle(x, x, 8, 9, 12, 13, 8, 9, 12, 13, 8, 9, 12, 13, 8, 9, 12, 13);
        }
        store(to, one);
        store(to + 16, two);
    }
}

}  // namespace
#endif
