// Copies of weights to a ring of buffers in shared memory.

struct Ring {
    int stage = 0;
    u32 turn = 0;  // how often the ring was filled, modulo 2

    __device__ void advance() {
        if (++stage == STAGES) stage = 0, turn ^= 1;
    }
};

struct CopyRing : Ring {
    Ring arriving;  // the first buffer whose weights may not have arrived
    int under_way = 0;

    // Wait for a free buffer, and until fewer than MOST_UNDER_WAY others are being filled: what is read next would wait
    // behind all of them.
    __device__ void await_buffer() {
        wait(&shared().empty[stage], turn ^ 1);
        if (++under_way <= MOST_UNDER_WAY) return;
        wait(&shared().full[arriving.stage], arriving.turn);
        arriving.advance(), --under_way;
    }
};

// Copy rows of a tile, from row `first` of the matrix to row `place` of the tile: whole rows, or a part of one row.
template <class S>
__device__ void copy_rows(const Matrix &matrix, char *stage, int place, i64 first, int rows, int start, int inputs,
                          u64 *full, u64 policy) {
    copy(stage + place * S::CODE_STRIDE, matrix.codes + (first * S::INPUTS + start) * S::KIND / 8,
         rows * inputs * S::KIND / 8, full, policy);
    if (S::KIND == FLOATS) return;
    copy(stage + S::SCALE_AT + place * S::SCALE_STRIDE,
         matrix.scales + first * S::SCALE_ROW + start / GROUP * S::SCALE_BYTES,
         S::PARTS_OF_ROW == 1 ? rows * S::SCALE_ROW : inputs / GROUP * S::SCALE_BYTES, full, policy);
}

// Copy the tiles of a matrix, in parts. A lane copies a half of a tile, or if a row has several parts, one row.
template <class S>
__device__ void copy_matrix(Matrix matrix, CopyRing &ring, u64 policy) {
    constexpr bool WHOLE = S::PARTS_OF_ROW == 1;
    int lane = threadIdx.x % 32, first = S::first(), count = S::count();
    for (int done = 0; done < count; done += S::ROWS) {
        int rows = count - done < S::ROWS ? count - done : S::ROWS;
        for (int start = 0; start < S::INPUTS; start += S::PART) {
            int inputs = S::INPUTS - start < S::PART ? S::INPUTS - start : S::PART;
            int scale_bytes = WHOLE && S::SCALE_BYTES ? S::SCALE_ROW : inputs / GROUP * S::SCALE_BYTES;
            ring.await_buffer();
            u64 *full = &shared().full[ring.stage];
            char *stage = shared().stages[ring.stage];
            if (lane == 0) expect_bytes(full, S::HALVES * rows * (inputs * S::KIND / 8 + scale_bytes));
            __syncwarp();
            int half = WHOLE ? lane : lane / S::ROWS, row = WHOLE ? 0 : lane % S::ROWS;
            if (half < S::HALVES && row < rows)
                copy_rows<S>(matrix, stage, half * S::ROWS + row, first + done + row + i64(half) * S::OUTPUTS,
                             WHOLE ? rows : 1, start, inputs, full, policy);
            ring.advance();
        }
    }
}

__device__ void copy_weights(const Step &step) {
    u64 policy = read_once();
    CopyRing ring;
    for (int number = 0; number < LAYERS; ++number) {
        const Layer &layer = step.layers[number];
        Matrix projection = layer.projection, output = layer.output, up = layer.up, down = layer.down;  // loaded once
        copy_matrix<Projection>(projection, ring, policy);
        copy_matrix<Output>(output, ring, policy);
        copy_matrix<Up>(up, ring, policy);
        copy_matrix<Down>(down, ring, policy);
    }
    copy_matrix<Logits>(step.logits, ring, policy);
}
