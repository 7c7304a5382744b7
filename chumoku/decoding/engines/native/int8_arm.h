// Four rows times one block of int8 weights on ARM, in assembly. Results equal those of multiply_groups in products.h.
//
// A group is 64 dot products and 20 other operations. On a Neoverse N1, a float operation between two dot products delays
// the second one, so the float operations of a group are executed together, between the dot products of the next group:
//
//     HIGH   load; convert the dots of the group before to floats; dots = 256 · Σ w h
//     ADD    sums += scale · (dots · step) of the group before
//     LOW    dots += Σ w l
//
// v0–v7 weights   v8–v15 inputs   v16–v19 dots   v20–v23 dots of the group before   v24–v27 sums   v28 scale   v29 step
#pragma once

#if defined(__ARM_FEATURE_DOTPROD)
#include <cstddef>
#include <cstdint>

#include "groups.h"

namespace {

// One register of weights times four inputs of each row.
#define CHUMOKU_DOT(w, x0, x1, x2, x3, lane)                                                            \
    "sdot v16.4s, " #w ".16b, " #x0 ".4b[" #lane "]\n sdot v17.4s, " #w ".16b, " #x1 ".4b[" #lane "]\n" \
    "sdot v18.4s, " #w ".16b, " #x2 ".4b[" #lane "]\n sdot v19.4s, " #w ".16b, " #x3 ".4b[" #lane "]\n"
#define CHUMOKU_DOTS                                                                \
    CHUMOKU_DOT(v0, v8, v10, v12, v14, 0) CHUMOKU_DOT(v1, v8, v10, v12, v14, 1)     \
    CHUMOKU_DOT(v2, v8, v10, v12, v14, 2) CHUMOKU_DOT(v3, v8, v10, v12, v14, 3)     \
    CHUMOKU_DOT(v4, v9, v11, v13, v15, 0) CHUMOKU_DOT(v5, v9, v11, v13, v15, 1)     \
    CHUMOKU_DOT(v6, v9, v11, v13, v15, 2) CHUMOKU_DOT(v7, v9, v11, v13, v15, 3)
#define CHUMOKU_INPUTS(from)                                                                  \
    "ldp q8, q9, [%[" #from "0]], #32\n ldp q10, q11, [%[" #from "1]], #32\n"                 \
    "ldp q12, q13, [%[" #from "2]], #32\n ldp q14, q15, [%[" #from "3]], #32\n"
#define CHUMOKU_CONVERT                                          \
    "fcvtl v28.4s, v28.4h\n"                                     \
    "scvtf v20.4s, v16.4s\n scvtf v21.4s, v17.4s\n scvtf v22.4s, v18.4s\n scvtf v23.4s, v19.4s\n"
#define CHUMOKU_HIGH                                                                                        \
    "ldp q0, q1, [%[w]]\n ldp q2, q3, [%[w], #32]\n" CHUMOKU_INPUTS(h)                                      \
    "ldp q4, q5, [%[w], #64]\n ldp q6, q7, [%[w], #96]\n"                                                   \
    "prfm pldl1keep, [%[w], #2048]\n prfm pldl1keep, [%[w], #2112]\n prfm pldl1keep, [%[w], #2176]\n"       \
    CHUMOKU_CONVERT                                                                                         \
    "movi v16.4s, #0\n movi v17.4s, #0\n movi v18.4s, #0\n movi v19.4s, #0\n" CHUMOKU_DOTS                 \
    "shl v16.4s, v16.4s, #8\n shl v17.4s, v17.4s, #8\n shl v18.4s, v18.4s, #8\n shl v19.4s, v19.4s, #8\n"
#define CHUMOKU_ADD                                                                                                  \
    "ldr s29, [%[s0]], #4\n fmul v20.4s, v20.4s, v29.s[0]\n ldr s29, [%[s1]], #4\n fmul v21.4s, v21.4s, v29.s[0]\n" \
    "ldr s29, [%[s2]], #4\n fmul v22.4s, v22.4s, v29.s[0]\n ldr s29, [%[s3]], #4\n fmul v23.4s, v23.4s, v29.s[0]\n" \
    "fmla v24.4s, v28.4s, v20.4s\n fmla v25.4s, v28.4s, v21.4s\n"                                                    \
    "fmla v26.4s, v28.4s, v22.4s\n fmla v27.4s, v28.4s, v23.4s\n"
#define CHUMOKU_LOW CHUMOKU_INPUTS(l) CHUMOKU_DOTS "ldr d28, [%[w], #128]\n add %[w], %[w], #136\n"

// sums [4 rows][4 outputs] of `groups` groups of weights w. h and l are the halves of the first row's inputs; those of the
// next row are `stride` bytes further on, and its steps `steps` floats.
inline void multiply_int8_4(const uint8_t* w, int groups, const int8_t* h, const int8_t* l, size_t stride, const float* step,
                            size_t steps, void* sums) {
    const int8_t *h1 = h + stride, *h2 = h1 + stride, *h3 = h2 + stride;
    const int8_t *l1 = l + stride, *l2 = l1 + stride, *l3 = l2 + stride;
    const float *s1 = step + steps, *s2 = s1 + steps, *s3 = s2 + steps;
    asm volatile(
        "movi v24.4s, #0\n movi v25.4s, #0\n movi v26.4s, #0\n movi v27.4s, #0\n"
        CHUMOKU_HIGH "b 2f\n"
        "1:\n" CHUMOKU_HIGH CHUMOKU_ADD
        "2:\n" CHUMOKU_LOW "subs %w[n], %w[n], #1\n b.ne 1b\n"
        CHUMOKU_CONVERT CHUMOKU_ADD
        "stp q24, q25, [%[sums]]\n stp q26, q27, [%[sums], #32]\n"
        : [w] "+r"(w), [n] "+r"(groups), [h0] "+r"(h), [h1] "+r"(h1), [h2] "+r"(h2), [h3] "+r"(h3), [l0] "+r"(l),
          [l1] "+r"(l1), [l2] "+r"(l2), [l3] "+r"(l3), [s0] "+r"(step), [s1] "+r"(s1), [s2] "+r"(s2), [s3] "+r"(s3)
        : [sums] "r"(sums)
        : "memory", "cc", "v0", "v1", "v2", "v3", "v4", "v5", "v6", "v7", "v8", "v9", "v10", "v11", "v12", "v13", "v14",
          "v15", "v16", "v17", "v18", "v19", "v20", "v21", "v22", "v23", "v24", "v25", "v26", "v27", "v28", "v29");
}

inline void multiply_int8_rows(const Product& p, int block, const Inputs& in, int first, const Output& out) {
    Floats sums[4];
    const float* step = in.step.data() + size_t(first) * in.groups;
    multiply_int8_4(Group<INT8>::of(p, block), groups_of(p), in.high(first), in.low(first), 2 * in.stride, step, in.groups, sums);
    for (int r = 0; r < 4; r++) out.write(p, block, first + r, sums[r]);
}

}  // namespace
#endif
