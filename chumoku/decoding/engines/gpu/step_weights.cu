// Copies of weights, keys and values to a ring of buffers in shared memory.

struct Ring {
    int stage = 0;
    u32 turn = 0;  // how often the ring was filled, modulo 2

    __device__ void advance() {
        if (++stage == STAGES) stage = 0, turn ^= 1;
    }
};

// Wait until a buffer is full.
__device__ void wait_for(const Ring &ring) { wait(&shared().full[ring.stage], ring.turn); }

// Copies to the ring, few buffers at a time: what is read next would wait behind all that is under way. While this block
// waits for words there are fewer.
struct Copier : Ring {
    Ring arriving;  // the first buffer whose content may not have arrived
    int under_way = 0;
    bool last_matrix = false;  // after it nothing else is read

    __device__ int limit() const {
        constexpr int MOST = COPIES_OTHERWISE < STAGES ? COPIES_OTHERWISE : STAGES;  // a barrier knows two turns
        bool waits = *reinterpret_cast<volatile int *>(&shared().waits_for_words);
        return last_matrix ? STAGES : waits ? COPIES_WHILE_WAITING : MOST;
    }

    // Wait for a free buffer, and until not too many others are being filled.
    __device__ void begin(u32 bytes) {
        wait(&shared().empty[stage], turn ^ 1);
        int most = limit();
        for (++under_way; under_way > most; --under_way) {
            wait(&shared().full[arriving.stage], arriving.turn);
            arriving.advance();
        }
        if (threadIdx.x % 32 == 0) expect_bytes(&shared().full[stage], bytes);
        __syncwarp();
    }

    __device__ void add(int place, const void *from, u32 bytes, u64 policy) {
        copy(shared().stages[stage] + place, from, bytes, &shared().full[stage], policy);
    }
};

// Copy a part of rows of a matrix, from row `first` on, to row `place` of the tile, and their scales. A copy of codes has at
// most COPY_BYTES, or one row, because words that blocks exchange wait behind copies. COPIES_UNROLLED copies side by side
// start within a few cycles; in a loop each takes about 45.
template <class S>
__device__ void copy_rows(const Matrix &matrix, int place, i64 first, int rows, int part, Copier &copier, u64 policy) {
    constexpr int EACH = S::PARTS_OF_ROW == 1 ? largest(COPY_BYTES / S::CODES, 1) : 1;
    constexpr int UNROLLED = COPIES_UNROLLED;
    const char *codes = matrix.codes + (first * S::INPUTS + part * S::PART) * S::KIND / 8;
    int bytes = S::inputs_of(part) * S::KIND / 8;
#pragma unroll UNROLLED
    for (int row = 0; row < rows; row += EACH) {
        int some = rows - row < EACH ? rows - row : EACH;
        copier.add((place + row) * S::CODE_STRIDE, codes + i64(row) * S::INPUTS * S::KIND / 8, some * bytes, policy);
    }
    if (S::KIND == FLOATS) return;
    i64 row = i64(part) * S::HALVES * S::OUTPUTS + first;
    copier.add(S::SCALE_AT + place * S::SCALE_STRIDE, matrix.scales + row * S::SCALE_STRIDE, rows * S::SCALE_STRIDE, policy);
}

// Copy the tiles of a matrix, in parts.
template <class S>
__device__ void copy_matrix(Matrix matrix, Copier &copier) {
    int first = S::first(), count = S::count();
    u64 policy = read_once();
    for (int done = 0; done < count; done += S::ROWS) {
        int rows = count - done < S::ROWS ? count - done : S::ROWS;
        for (int part = 0; part < S::PARTS_OF_ROW; ++part) {
            copier.begin(S::HALVES * rows * (S::inputs_of(part) * S::KIND / 8 + S::SCALE_STRIDE));
            if (is_elected())
                for (int half = 0; half < S::HALVES; ++half)
                    copy_rows<S>(matrix, half * S::ROWS, first + done + i64(half) * S::OUTPUTS, rows, part, copier, policy);
            copier.advance();
        }
    }
}

// Copy the keys and values of the past to which this block attends.
__device__ void copy_past(const Past &past, const u16 *keys, const u16 *values, i64 capacity, Copier &copier) {
    u64 policy = read_again();
    for (int first = past.start; first < past.stored; first += BUFFER_KEYS) {
        int count = past.stored - first < BUFFER_KEYS ? past.stored - first : BUFFER_KEYS;
        i64 from = (past.group() * capacity + first) * HEAD;
        copier.begin(2 * count * VECTOR);
        if (is_elected()) {
            copier.add(0, keys + from, count * VECTOR, policy);
            copier.add(BUFFER_KEYS * VECTOR, values + from, count * VECTOR, policy);
        }
        copier.advance();
    }
}

// Copy everything that the block reads, in the order of its use.
__device__ void copy_all(const Step &step) {
    Copier copier;
    Past past;
    for (int number = 0; number < LAYERS; ++number) {
        const Layer &layer = step.layers[number];
        Matrix projection = layer.projection, output = layer.output, up = layer.up, down = layer.down;  // loaded once
        const u16 *keys = layer.keys, *values = layer.values;
        copy_matrix<Projection>(projection, copier);
        copy_past(past, keys, values, step.capacity, copier);
        copy_matrix<Output>(output, copier);
        copy_matrix<Up>(up, copier);
        copy_matrix<Down>(down, copier);
    }
    copier.last_matrix = true;
    copy_matrix<Logits>(step.logits, copier);
}
