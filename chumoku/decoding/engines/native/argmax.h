// The place of the largest of some numbers: the first of several. Parts of a row can be searched by several threads.
#pragma once

#include <algorithm>
#include <cmath>
#include <cstdint>

#include "vectors.h"

namespace {

struct Largest {
    float value = -INFINITY;  // NaN if a number is NaN
    int32_t place = 0;
};

inline Largest find_largest(const float* x, int count) {
    Floats top = spread(-INFINITY);
    Ints invalid = {};
    int i = 0;
    for (; i + LANES <= count; i += LANES) {
        Floats part = load<Floats>(x + i);
        invalid |= (Ints)(part != part);
        top = part > top ? part : top;
    }
    bool any = largest(-invalid);
    Largest found{largest(top)};
    for (; i < count; i++) {
        any |= std::isnan(x[i]);
        found.value = std::max(found.value, x[i]);
    }
    if (any) return {NAN};
    for (i = 0; i + LANES <= count && !largest(-(Ints)(load<Floats>(x + i) == found.value)); i += LANES) {}
    found.place = int32_t(std::find(x + i, x + count, found.value) - x);
    return found;
}

// The place of the largest of all parts, in the order of their places; −1 if it is not a finite number.
inline int64_t place_of_largest(const Largest* parts, int count) {
    Largest found;
    for (int i = 0; i < count; i++) {
        if (std::isnan(parts[i].value)) return -1;
        if (parts[i].value > found.value) found = parts[i];
    }
    return std::isinf(found.value) ? -1 : found.place;
}

}  // namespace
