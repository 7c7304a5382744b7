// Norms of a product's inputs, and the product by matrix instructions.

__device__ void store_sum(float x, float *reduced) {
    for (int distance = 16; distance; distance /= 2) x += __shfl_xor_sync(~0u, x, distance);
    if (threadIdx.x % 32 == 0) reduced[threadIdx.x / 32] = x;
}

// The sum of one number of each warp.
__device__ float sum_of_warps(const float *numbers) {
    float sum = 0.0f;
#pragma unroll
    for (int warp = 0; warp < WARPS; warp += 4) {
        float4 four = *reinterpret_cast<const float4 *>(numbers + warp);
        sum += (four.x + four.y) + (four.z + four.w);
    }
    return sum;
}

// The sum over all threads; `turn` is the other of two buffers each time.
__device__ float sum_of_all(float x, int &turn) {
    float *reduced = shared().reduced[turn ^= 1];
    store_sum(x, reduced);
    synchronize(THREADS);
    return sum_of_warps(reduced);
}

template <class S>
struct NormWeights {
    float4 gamma[S::FOURS], beta[S::FOURS];

    __device__ explicit NormWeights(const Norm &norm) {
        int thread = thread_number();
#pragma unroll
        for (int i = 0; i < S::FOURS; ++i) {
            gamma[i] = beta[i] = {0, 0, 0, 0};
            if (!has_four<S>(i, thread)) continue;
            int k = four_at<S>(i, thread);
            gamma[i] = *reinterpret_cast<const float4 *>(norm.gamma + k);
            if (LAYER_NORM) beta[i] = *reinterpret_cast<const float4 *>(norm.beta + k);
        }
    }

    // γ (x − μ) / √(σ² + ε) + β. Of RMSNorm only γ x, and the warps' sums of squares, from which `factor` is computed.
    __device__ void apply(float (&v)[S::FOURS][4], float epsilon, int &turn) const {
        float factor = 1.0f, sum = 0.0f;
        if (LAYER_NORM) {
#pragma unroll
            for (int i = 0; i < S::FOURS; ++i) sum += v[i][0] + v[i][1] + v[i][2] + v[i][3];
            float mean = sum_of_all(sum, turn) / S::INPUTS;
            sum = 0.0f;
#pragma unroll
            for (int i = 0; i < S::FOURS; ++i)
                for (int j = 0; j < 4; ++j) v[i][j] = has_four<S>(i, threadIdx.x) ? v[i][j] - mean : 0.0f;
        }
#pragma unroll
        for (int i = 0; i < S::FOURS; ++i)
            for (int j = 0; j < 4; ++j) sum += v[i][j] * v[i][j];
        if (EARLY_NORM) factor = rsqrtf(sum_of_all(sum, turn) / S::INPUTS + epsilon);
        else store_sum(sum, shared().reduced[0]);
#pragma unroll
        for (int i = 0; i < S::FOURS; ++i) {
            v[i][0] = v[i][0] * factor * gamma[i].x + beta[i].x, v[i][1] = v[i][1] * factor * gamma[i].y + beta[i].y;
            v[i][2] = v[i][2] * factor * gamma[i].z + beta[i].z, v[i][3] = v[i][3] * factor * gamma[i].w + beta[i].w;
        }
    }

    static __device__ float factor(float epsilon) {
        return EARLY_NORM ? 1.0f : rsqrtf(sum_of_warps(shared().reduced[0]) / S::INPUTS + epsilon);
    }
};

// Store four inputs, which the warp exchanges, as two columns each.
__device__ void store_floats(const float (&v)[4], int i) {
    int warp = threadIdx.x / 32, lane = threadIdx.x % 32;
    u32 high[2] = {narrow(v[0], v[1]), narrow(v[2], v[3])};
    u32 *upper = shared().inputs[warp][i][0] + 2 * lane, *lower = shared().inputs[warp][i][1] + 2 * lane;
    upper[0] = high[0], upper[1] = high[1];
    lower[0] = narrow(v[0] - widen(high[0]), v[1] - widen_upper(high[0]));
    lower[1] = narrow(v[2] - widen(high[1]), v[3] - widen_upper(high[1]));
}

// The words of a group are stored in the order in which the matrix instructions need them in adjacent registers.
template <int BITS>
__device__ void store_bytes(const float (&v)[4], int i) {
    int warp = threadIdx.x / 32, lane = threadIdx.x % 32;
    float top = fmaxf(fmaxf(fabsf(v[0]), fabsf(v[1])), fmaxf(fabsf(v[2]), fabsf(v[3])));
    for (int distance = 4; distance; distance /= 2) top = fmaxf(top, __shfl_xor_sync(~0u, top, distance));
    float factor = top > TINY ? __fdividef(LEVELS, top) : 0.0f, t = top * (1.0f / LEVELS);
    int p[4], sum = 0;
#pragma unroll
    for (int j = 0; j < 4; ++j) sum += p[j] = __float2int_rn(v[j] * factor);
    // p = 256 h + l with signed bytes: l is the lower byte, and h the one above it in p + 128.
    u32 low = __byte_perm(__byte_perm(p[0], p[1], 0x0040), __byte_perm(p[2], p[3], 0x0040), 0x5410);
    u32 high = __byte_perm(__byte_perm(p[0] + 128, p[1] + 128, 0x0051),
                           __byte_perm(p[2] + 128, p[3] + 128, 0x0051), 0x5410);
    for (int distance = 4; distance; distance /= 2) sum += __shfl_xor_sync(~0u, sum, distance);
    int word = lane % 8, half = word / 4, quarter = word % 4;
    int place = lane / 8 * 8 + (BITS == INT4 ? word % 2 + 2 * half + 4 * (quarter / 2) : 2 * quarter + half);
    shared().inputs[warp][i][0][place] = high, shared().inputs[warp][i][1][place] = low;
    if (lane % 8 == 0) shared().scales[warp][i][lane / 8] = {t, float(sum) * t};
}

// ---- products

// The columns of this warp's slice of one part, in the layout of the matrix instructions: lane 4 n + i has inputs of
// column n. `add` adds the products with rows lane / 4 and lane / 4 + 8 of a tile, of which each lane gets a part.
template <class S, int BITS = S::KIND>
struct Columns {
    uint4 first, second;  // words of a group
    float2 scale;  // t / UNIT, and the sum of the inputs, of group lane % 4
    static constexpr int UNIT = BITS == INT4 ? 16 : 1;  // times as large are sums, as upper bits are not shifted

    __device__ void load(int part) {
        int warp = threadIdx.x / 32, column = threadIdx.x % 32 / 4, group = threadIdx.x % 4;
        const uint4 *words = reinterpret_cast<const uint4 *>(shared().inputs[warp][part][column % 2] + 8 * group);
        bool own = column / 2 == group;
        first = own ? words[0] : uint4{0, 0, 0, 0}, second = own ? words[1] : uint4{0, 0, 0, 0};
        scale = shared().scales[warp][part][group];
        scale.x *= 1.0f / UNIT;
    }

    __device__ void add(const char *stage, int thread, float &upper, float &lower) const {
        int warp = thread / 32, row = thread % 32 / 4, group = thread % 4;
        const char *at = stage + row * S::CODE_STRIDE + warp * (S::SLICE * BITS / 8) + group * (GROUP * BITS / 8);
        const uint4 *a = reinterpret_cast<const uint4 *>(at);
        const uint4 *b = reinterpret_cast<const uint4 *>(at + 8 * S::CODE_STRIDE);
        int c[4] = {0, 0, 0, 0}, d[4] = {0, 0, 0, 0};
        if (BITS == INT4) {  // a byte has the weights of input k of a group and, in its upper bits, of input k + 16
            uint4 u = a[0], v = b[0];
            multiply_nibbles(c, 0x0F0F0F0Fu, u.x, v.x, u.y, v.y, first.x, first.y);
            multiply_nibbles(d, 0xF0F0F0F0u, u.x, v.x, u.y, v.y, first.z, first.w);
            multiply_nibbles(c, 0x0F0F0F0Fu, u.z, v.z, u.w, v.w, second.x, second.y);
            multiply_nibbles(d, 0xF0F0F0F0u, u.z, v.z, u.w, v.w, second.z, second.w);
        } else {
            uint4 u = a[0], v = b[0], u2 = a[1], v2 = b[1];
            multiply_bytes(c, u.x, v.x, u2.x, v2.x, first.x, first.y);
            multiply_bytes(d, u.y, v.y, u2.y, v2.y, first.z, first.w);
            multiply_bytes(c, u.z, v.z, u2.z, v2.z, second.x, second.y);
            multiply_bytes(d, u.w, v.w, u2.w, v2.w, second.z, second.w);
        }
        int place = row * S::SCALE_STRIDE + (4 * warp + group) * S::SCALE_BYTES;
        add_scaled(upper, stage, place, 256 * (UNIT * c[0] + d[0]) + UNIT * c[1] + d[1]);
        add_scaled(lower, stage, place + 8 * S::SCALE_STRIDE, 256 * (UNIT * c[2] + d[2]) + UNIT * c[3] + d[3]);
    }

    __device__ static void multiply_nibbles(int (&c)[4], u32 mask, u32 u, u32 v, u32 u2, u32 v2, u32 x, u32 x2) {
        multiply_unsigned(c, u & mask, v & mask, u2 & mask, v2 & mask, x, x2);
    }

    __device__ void add_scaled(float &total, const char *stage, int place, int sum) const {
        const u16 *scales = reinterpret_cast<const u16 *>(stage + S::SCALE_AT + place);
        u32 both = BITS == INT8 ? *scales : *reinterpret_cast<const u32 *>(scales);
        if (BITS == INT4) total += half_to_float(u16(both >> 16)) * scale.y;
        total += float(sum) * scale.x * half_to_float(u16(both));
    }
};

template <class S>
struct Columns<S, FLOATS> {
    uint4 words[2];  // of eight inputs in each half of the slice

    __device__ void load(int part) {
        int warp = threadIdx.x / 32, column = threadIdx.x % 32 / 4, eighth = threadIdx.x % 4;
        const u32 *from = shared().inputs[warp][part / 2][column % 2] + part % 2 * 32 + 4 * eighth;
        for (int half = 0; half < 2; ++half)
            words[half] = column < 2 ? *reinterpret_cast<const uint4 *>(from + 16 * half) : uint4{0, 0, 0, 0};
    }

    __device__ void add(const char *stage, int thread, float &upper, float &lower) const {
        int warp = thread / 32, row = thread % 32 / 4, eighth = thread % 4;
        const char *at = stage + row * S::CODE_STRIDE + warp * (S::SLICE * 2) + eighth * 16;
        float c[4] = {0, 0, 0, 0}, d[4] = {0, 0, 0, 0};
#pragma unroll
        for (int half = 0; half < 2; ++half) {
            uint4 u = *reinterpret_cast<const uint4 *>(at + 64 * half);
            uint4 v = *reinterpret_cast<const uint4 *>(at + 64 * half + 8 * S::CODE_STRIDE);
            multiply_floats(c, u.x, v.x, u.y, v.y, words[half].x, words[half].y);
            multiply_floats(d, u.z, v.z, u.w, v.w, words[half].z, words[half].w);
        }
        upper += (c[0] + d[0]) + (c[1] + d[1]), lower += (c[2] + d[2]) + (c[3] + d[3]);
    }
};

// The inputs of a product: in registers if they are few, else in shared memory.
template <class S>
struct Inputs {
    static constexpr bool IN_REGISTERS = S::PARTS_OF_ROW <= 3;
    Columns<S> columns[IN_REGISTERS ? S::PARTS_OF_ROW : 1];

    __device__ explicit Inputs(const float (&v)[S::FOURS][4]) {
        __syncwarp();
#pragma unroll
        for (int i = 0; i < S::FOURS; ++i) {
            if (S::KIND == FLOATS) store_floats(v[i], i);
            else store_bytes<S::KIND>(v[i], i);
        }
        __syncwarp();
        if (!IN_REGISTERS) return;
#pragma unroll
        for (int part = 0; part < S::PARTS_OF_ROW; ++part) columns[part].load(part);
    }

    __device__ Columns<S> of_part(int part) const {
        if (IN_REGISTERS) return columns[part];
        Columns<S> found;
        found.load(part);
        return found;
    }
};

// Whether there is a buffer of this number: of a tile, or of a part of the only one.
template <class S, int TOGETHER>
__device__ bool exists(int number, int done, int count) {
    return TOGETHER > 1 ? done + number * S::ROWS < count : number < S::PARTS_OF_ROW;
}

// The sum of a number over this lane and the one at a distance: of the first number, or of the second.
__device__ float join_lanes(float first, float second, bool of_second, int distance) {
    return (of_second ? second : first) + __shfl_xor_sync(~0u, of_second ? first : second, distance);
}

// Sums of `count` of the block's outputs, one of each warp, in shared memory. TURNS buffers are read side by side, of
// several tiles or of several parts of one, so that a warp does not wait for the loads of each. The products of a
// missing tile are computed, too, and not stored.
template <class S, int MOST_OUTPUTS = S::MOST>
__device__ void multiply(const Inputs<S> &inputs, Ring &ring, int count, float *sums) {
    constexpr int TILES = (MOST_OUTPUTS + S::ROWS - 1) / S::ROWS;
    constexpr int TOGETHER = S::KIND != INT4 || S::PARTS_OF_ROW > 1 ? 1 : TILES % 2 == 0 ? 2 : TILES % 3 == 0 ? 3 : 1;
    constexpr int TURNS = S::KIND == INT4 && S::PARTS_OF_ROW > 1 ? (S::PARTS_OF_ROW % 3 ? 2 : 3) : TOGETHER;
    static_assert(TURNS <= STAGES);
    int thread = thread_number(), warp = thread / 32, lane = thread % 32;
    for (int done = 0; done < count; done += TOGETHER * S::ROWS) {
        float upper[TOGETHER] = {}, lower[TOGETHER] = {};
#pragma unroll
        for (int start = 0; start < S::PARTS_OF_ROW * TOGETHER; start += TURNS) {
            Ring next = ring;
            const char *stages[TURNS];
#pragma unroll
            for (int i = 0; i < TURNS; ++i) {
                stages[i] = shared().stages[next.stage];
                if (i == 0 || exists<S, TOGETHER>(start + i, done, count)) {
                    wait_for(next);
                    next.advance();
                }
            }
#pragma unroll
            for (int i = 0; i < TURNS; ++i) {
                int part = TOGETHER > 1 ? 0 : start + i, tile = TOGETHER > 1 ? i : 0;
                if (part < S::PARTS_OF_ROW && (part + 1 < S::PARTS_OF_ROW || S::INPUTS % S::PART == 0 ||
                                               part * S::PART + warp * S::SLICE < S::INPUTS))
                    inputs.of_part(part).add(stages[i], thread, upper[tile], lower[tile]);
            }
            __syncwarp();
#pragma unroll
            for (int i = 0; i < TURNS; ++i)
                if (i == 0 || exists<S, TOGETHER>(start + i, done, count)) {
                    if (lane == 0) arrive(&shared().empty[ring.stage]);
                    ring.advance();
                }
        }
        bool odd = lane % 2, late = lane % 4 / 2;
        int row = lane / 4 + 8 * odd;
#pragma unroll
        for (int tile = 0; tile < TOGETHER; tile += 2) {
            // Of two tiles, each of the four lanes of a row keeps one sum and gives the others away.
            float mine = join_lanes(upper[tile], lower[tile], odd, 1), other = 0.0f;
            if (tile + 1 < TOGETHER) other = join_lanes(upper[tile + 1], lower[tile + 1], odd, 1);
            float sum = join_lanes(mine, other, late, 2);
            int place = done + (tile + late) * S::ROWS + row % S::ROWS;
            if (tile + late < TOGETHER && place < count)
                sums[(row / S::ROWS * S::MOST + place) * SUM_STRIDE + warp] = sum;
        }
    }
    synchronize(THREADS);
}

// An output of this block: factor · W x + b.
template <class S>
__device__ float output(const Matrix &matrix, const float *sums, float factor, int row, int half = 0) {
    float y = factor * sum_of_warps(sums + (half * S::MOST + row) * SUM_STRIDE);
    return matrix.bias ? y + matrix.bias[S::first() + row + half * S::OUTPUTS] : y;
}

__device__ float activate(float x) {
#if ACTIVATION == 0
    return x > 0.0f ? x : 0.0f;
#elif ACTIVATION == 1
    return 0.5f * x * (1.0f + erff(x * 0.7071067811865476f));
#elif ACTIVATION == 2
    return x / (1.0f + __expf(-1.5957691216057308f * (x + 0.044715f * x * x * x)));
#else
    return x / (1.0f + __expf(-x));
#endif
}

// Send the outputs of this block, of which each thread computes one.
template <class S, class F>
__device__ void send_outputs(u64 *words, u32 tag, F compute) {
    for (int start = 0; start < S::MOST; start += THREADS) {
        int row = start + threadIdx.x;
        float y = row < S::count() ? compute(row) : 0.0f, next = __shfl_down_sync(~0u, y, 1);
        if (row % 2 == 0 && row < S::count()) send_word(words + (S::first() + row) / 2, tag, narrow(y, next));
    }
}

// x ← x + W (inputs) + b, for the elements of x that this block computes.
template <class S>
__device__ void add_outputs(const Matrix &matrix, const float *sums, u64 *words, u32 tag) {
    send_outputs<S>(words, tag, [&](int row) {
        return shared().own[row] = rounded(shared().own[row] + output<S>(matrix, sums, 1.0f, row));
    });
}
