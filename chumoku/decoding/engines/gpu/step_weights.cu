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

// Copy rows of a tile, from row `first` of the matrix to row `place` of the tile: whole rows, or a part of one row.
template <class S>
__device__ void copy_rows(const Matrix &matrix, int place, i64 first, int rows, int start, int inputs, Copier &copier,
                          u64 policy) {
    copier.add(place * S::CODE_STRIDE, matrix.codes + (first * S::INPUTS + start) * S::KIND / 8,
               rows * inputs * S::KIND / 8, policy);
    if (S::KIND == FLOATS) return;
    copier.add(S::SCALE_AT + place * S::SCALE_STRIDE,
               matrix.scales + first * S::SCALE_ROW + start / GROUP * S::SCALE_BYTES,
               S::PARTS_OF_ROW == 1 ? rows * S::SCALE_ROW : inputs / GROUP * S::SCALE_BYTES, policy);
}

// Copy the tiles of a matrix, in parts. A lane copies a half of a tile, or if a row has several parts, one row.
template <class S>
__device__ void copy_matrix(Matrix matrix, Copier &copier) {
    constexpr bool WHOLE = S::PARTS_OF_ROW == 1;
    int lane = threadIdx.x % 32, first = S::first(), count = S::count();
    u64 policy = read_once();
    for (int done = 0; done < count; done += S::ROWS) {
        int rows = count - done < S::ROWS ? count - done : S::ROWS;
        for (int start = 0; start < S::INPUTS; start += S::PART) {
            int inputs = S::INPUTS - start < S::PART ? S::INPUTS - start : S::PART;
            int scale_bytes = WHOLE && S::SCALE_BYTES ? S::SCALE_ROW : inputs / GROUP * S::SCALE_BYTES;
            copier.begin(S::HALVES * rows * (inputs * S::KIND / 8 + scale_bytes));
            int half = WHOLE ? lane : lane / S::ROWS, row = WHOLE ? 0 : lane % S::ROWS;
            if (half < S::HALVES && row < rows)
                copy_rows<S>(matrix, half * S::ROWS + row, first + done + row + i64(half) * S::OUTPUTS,
                             WHOLE ? rows : 1, start, inputs, copier, policy);
            copier.advance();
        }
    }
}

// Copy the keys and values of the past to which this block attends.
__device__ void copy_past(const Past &past, const u16 *keys, const u16 *values, i64 capacity, Copier &copier) {
    const u16 *vectors = (threadIdx.x % 2 ? values : keys) + past.group() * capacity * HEAD;
    int place = threadIdx.x % 2 ? BUFFER_KEYS * VECTOR : 0;
    u64 policy = read_again();
    for (int first = past.start; first < past.stored; first += BUFFER_KEYS) {
        int count = past.stored - first < BUFFER_KEYS ? past.stored - first : BUFFER_KEYS;
        copier.begin(2 * count * VECTOR);
        if (threadIdx.x % 32 < 2) copier.add(place, vectors + i64(first) * HEAD, count * VECTOR, policy);
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
