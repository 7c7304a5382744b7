// Copies of weights to a ring of buffers in shared memory.

struct Ring {
    int stage = 0;
    u32 turn = 0;  // how often the ring was filled, modulo 2

    __device__ void advance() {
        if (++stage == STAGES) stage = 0, turn ^= 1;
    }
};

// Copies to the ring, few buffers at a time: what is read next would wait behind all that is under way.
struct Copier : Ring {
    Ring arriving;  // the first buffer whose weights may not have arrived
    u64 policy = read_once();
    int limit = MOST_UNDER_WAY, under_way = 0;

    // Wait for a free buffer, and until fewer than `limit` others are being filled.
    __device__ void begin(u32 bytes) {
        wait(&shared().empty[stage], turn ^ 1);
        for (++under_way; under_way > limit; --under_way) {
            wait(&shared().full[arriving.stage], arriving.turn);
            arriving.advance();
        }
        if (threadIdx.x % 32 == 0) expect_bytes(&shared().full[stage], bytes);
        __syncwarp();
    }

    __device__ void add(int place, const char *from, u32 bytes) {
        copy(shared().stages[stage] + place, from, bytes, &shared().full[stage], policy);
    }
};

// Copy rows of a tile, from row `first` of the matrix to row `place` of the tile: whole rows, or a part of one row.
template <class S>
__device__ void copy_rows(const Matrix &matrix, int place, i64 first, int rows, int start, int inputs, Copier &copier) {
    copier.add(place * S::CODE_STRIDE, matrix.codes + (first * S::INPUTS + start) * S::KIND / 8,
               rows * inputs * S::KIND / 8);
    if (S::KIND == FLOATS) return;
    copier.add(S::SCALE_AT + place * S::SCALE_STRIDE,
               matrix.scales + first * S::SCALE_ROW + start / GROUP * S::SCALE_BYTES,
               S::PARTS_OF_ROW == 1 ? rows * S::SCALE_ROW : inputs / GROUP * S::SCALE_BYTES);
}

// Copy the tiles of a matrix, in parts. A lane copies a half of a tile, or if a row has several parts, one row.
template <class S>
__device__ void copy_matrix(Matrix matrix, Copier &copier) {
    constexpr bool WHOLE = S::PARTS_OF_ROW == 1;
    int lane = threadIdx.x % 32, first = S::first(), count = S::count();
    for (int done = 0; done < count; done += S::ROWS) {
        int rows = count - done < S::ROWS ? count - done : S::ROWS;
        for (int start = 0; start < S::INPUTS; start += S::PART) {
            int inputs = S::INPUTS - start < S::PART ? S::INPUTS - start : S::PART;
            int scale_bytes = WHOLE && S::SCALE_BYTES ? S::SCALE_ROW : inputs / GROUP * S::SCALE_BYTES;
            copier.begin(S::HALVES * rows * (inputs * S::KIND / 8 + scale_bytes));
            int half = WHOLE ? lane : lane / S::ROWS, row = WHOLE ? 0 : lane % S::ROWS;
            if (half < S::HALVES && row < rows)
                copy_rows<S>(matrix, half * S::ROWS + row, first + done + row + i64(half) * S::OUTPUTS,
                             WHOLE ? rows : 1, start, inputs, copier);
            copier.advance();
        }
    }
}

__device__ void copy_weights(const Step &step) {
    Copier copier;
    for (int number = 0; number < LAYERS; ++number) {
        const Layer &layer = step.layers[number];
        Matrix projection = layer.projection, output = layer.output, up = layer.up, down = layer.down;  // loaded once
        copy_matrix<Projection>(projection, copier);
        copy_matrix<Output>(output, copier);
        copy_matrix<Up>(up, copier);
        copy_matrix<Down>(down, copier);
    }
    copier.limit = STAGES;  // nothing else is read meanwhile
    copy_matrix<Logits>(step.logits, copier);
}
