// One decoding step of one row in one kernel: embedding, all layers, logits, and the token of the largest one.
//
// The outputs of every matrix are divided among BLOCKS blocks, one on each multiprocessor. One warp of a block copies
// the block's rows of all matrices, and the past to which it attends, in the order of their use, to a ring of buffers in
// shared memory. It waits for a free buffer, and for earlier copies. The other warps wait for the inputs of a product,
// and multiply.
//
// Blocks exchange vectors without a barrier: a word is two 16-bit numbers and a tag, the number of the layer since the
// engine was opened. A warp reads the words of its inputs until all have the tag of this layer. A block sends its
// outputs when all its warps have their inputs; so when a word is written again, all blocks have read it.
//
//     project    q, k, v = W norm(x) + b
//     attend     softmax(q Kᵀ) V, for each head in PARTS parts of a long past
//     output     x ← x + W Σ exp(l_i) o_i / Σ exp(l_i) + b        from the parts, with logarithms l of their sums
//     up         h = f(W norm(x) + b), or with a gate f(W norm(x) + b) ⊙ (W' norm(x) + b')
//     down       x ← x + W h + b
//
// A product multiplies tiles of 16 rows by matrix instructions, each warp for a slice of the inputs. Those multiply
// eight columns; an input has two, because it is the sum of two numbers:
//
//     floats       x = high + low, both 16-bit floats             columns 0 and 1
//     int8, int4   p = 256 high + low, both signed bytes          columns 2j and 2j + 1 of group j, because each of
//                                                                 the four groups in a slice has its own scale
//
// Quantized weights and the rounding of inputs are defined in nn/quantized.py. Sizes are defined by the caller.

// Sums of W norm(v); returns the factor that they still lack.
template <class S, class F>
__device__ float multiply_normed(const Norm &weights, float epsilon, Ring &ring, int &turn, float *sums, F read) {
    NormWeights<S> norm(weights);
    float v[S::FOURS][4];
    read(v);
    norm.apply(v, epsilon, turn);
    multiply<S>(Inputs<S>(v), ring, S::count(), sums);
    return norm.factor(epsilon);
}

__device__ void project(const Step &step, const Layer &layer, int number, u32 tag, Ring &ring, int &turn) {
    float *sums = shared().sums[0];
    auto read = [&](float(&v)[Projection::FOURS][4]) {
        if (number) await_vector<Projection>(step.words + AT_X, tag - 1, v);
        else embed_vector<Projection>(step, v);
    };
    float factor = multiply_normed<Projection>(layer.attention_norm, step.epsilon, ring, turn, sums, read);
    send_outputs<Projection>(step.words, tag, [&](int row) {
        return output<Projection>(layer.projection, sums, factor, row);
    });
}

__device__ void add_attended(const Step &step, const Layer &layer, u32 tag, Ring &ring) {
    float v[Output::FOURS][4], *sums = shared().sums[1];
    await_heads(step.words, tag, v);
    multiply<Output>(Inputs<Output>(v), ring, Output::count(), sums);
    add_outputs<Output>(layer.output, sums, step.words + AT_MIDDLE, tag);
}

__device__ void compute_hidden(const Step &step, const Layer &layer, u32 tag, Ring &ring, int &turn) {
    float *sums = shared().sums[0];
    auto read = [&](float(&v)[Up::FOURS][4]) { await_vector<Up>(step.words + AT_MIDDLE, tag, v); };
    float factor = multiply_normed<Up>(layer.feedforward_norm, step.epsilon, ring, turn, sums, read);
    send_outputs<Up>(step.words + AT_HIDDEN, tag, [&](int row) {
        float y = activate(output<Up>(layer.up, sums, factor, row));
        return GATED ? y * output<Up>(layer.up, sums, factor, row, 1) : y;
    });
}

__device__ void add_hidden(const Step &step, const Layer &layer, u32 tag, Ring &ring) {
    float v[Down::FOURS][4], *sums = shared().sums[1];
    await_vector<Down>(step.words + AT_HIDDEN, tag, v);
    multiply<Down>(Inputs<Down>(v), ring, Down::count(), sums);
    add_outputs<Down>(layer.down, sums, step.words + AT_X, tag);
}

__device__ void run_layer(const Step &step, int number, u32 tag, Ring &ring, int &turn) {
    const Layer &layer = shared().layers[number % 2];
    bool prepares = threadIdx.x < sizeof(Layer) / 8 && number + 1 < LAYERS;
    u64 next = prepares ? reinterpret_cast<const u64 *>(step.layers + number + 1)[threadIdx.x] : 0;
    project(step, layer, number, tag, ring, turn);
    // All threads have finished the layer before this one.
    if (prepares) reinterpret_cast<u64 *>(&shared().layers[(number + 1) % 2])[threadIdx.x] = next;
    attend(step, layer, tag, ring);
    add_attended(step, layer, tag, ring);
    compute_hidden(step, layer, tag, ring, turn);
    add_hidden(step, layer, tag, ring);
}

// A number that is larger for a larger logit, and of equal ones for the first; the largest for NaN.
__device__ u64 rank(float logit, i64 place) {
    u32 bits = __float_as_uint(logit + 0.0f);  // −0 is 0
    bits = logit != logit ? ~0u : bits & SIGN ? ~bits : bits | SIGN;
    return u64(bits) << 32 | ~u32(place);
}

// The token of the largest logit; −1 if it is not finite.
__device__ i64 token_of(u64 best) {
    u32 bits = u32(best >> 32);
    return bits >= (INFINITE | SIGN) || bits <= ~(INFINITE | SIGN) ? -1 : i64(~u32(best));
}

// Join a warp's best logit with all others. The last warp of all finishes the step.
__device__ void finish(const Step &step, u64 best) {
    for (int distance = 16; distance; distance /= 2) {
        u32 upper = __shfl_xor_sync(~0u, u32(best >> 32), distance), lower = __shfl_xor_sync(~0u, u32(best), distance);
        u64 other = u64(upper) << 32 | lower;
        if (other > best) best = other;
    }
    if (threadIdx.x % 32) return;
    atomicMax(step.best, best);
    __threadfence();
    if (atomicAdd(step.finished_warps, 1) + 1 < BLOCKS * CHUNK / 32) return;
    *step.most_likely = token_of(atomicExch(step.best, u64(0)));
    *step.finished_warps = 0, *step.counter += LAYERS, ++*step.length;
}

__device__ void run_logits(const Step &step, u32 tag, Ring &ring, int &turn) {
    u64 best = 0;
    NormWeights<Logits> norm(step.norm);
    float v[Logits::FOURS][4], *sums = shared().sums[0];
    await_vector<Logits>(step.words + AT_X, tag, v);
    norm.apply(v, step.epsilon, turn);
    Inputs<Logits> inputs(v);
    for (int done = 0; done < Logits::count(); done += CHUNK) {
        int count = Logits::count() - done < CHUNK ? Logits::count() - done : CHUNK;
        multiply<Logits, CHUNK>(inputs, ring, count, sums);
        int row = threadIdx.x;
        if (row < count) {
            float y = norm.factor(step.epsilon) * sum_of_warps(sums + row * SUM_STRIDE);
            i64 place = Logits::first() + done + row;
            u32 bits = narrow(step.logits.bias ? y + step.logits.bias[place] : y, 0.0f);
            u64 found = rank(widen(bits), place);
            step.out[place] = u16(bits);
            if (found > best) best = found;
        }
        synchronize(THREADS);
    }
    if (threadIdx.x < CHUNK) finish(step, best);
}

// What the threads of a block read from shared memory during the step.
__device__ void prepare(const Step &step) {
    int k = threadIdx.x;
    if (k == THREADS) {
        for (int stage = 0; stage < STAGES; ++stage) {
            start_barrier(&shared().full[stage], 1);
            start_barrier(&shared().empty[stage], WARPS);
        }
        show_barriers();
    }
    if (k < sizeof(Layer) / 8)
        reinterpret_cast<u64 *>(shared().layers)[k] = reinterpret_cast<const u64 *>(step.layers)[k];
    if (k < ROTATED) {
        i64 angle = *step.length * (ROTATED / 2) + (HALF_PAIRING ? k % (ROTATED / 2 + !ROTATED) : k / 2);
        bool lower = HALF_PAIRING ? k < ROTATED / 2 : k % 2 == 0;
        shared().rotation[k] = {step.cosines[angle], lower ? -step.sines[angle] : step.sines[angle]};
    }
    if (k == 0) {
        shared().position = int(*step.length), shared().waits_for_words = false;
        shared().outputs[0] = Projection::find_outputs(), shared().outputs[1] = Output::find_outputs();
        shared().outputs[2] = Up::find_outputs(), shared().outputs[3] = Down::find_outputs();
        shared().outputs[4] = Logits::find_outputs();
    }
    __syncthreads();
    for (int row = k; row < Down::count(); row += THREADS) shared().own[row] = embed(step, Down::first() + row);
}

extern "C" __global__ void __launch_bounds__(THREADS + 32, 1) run_step(const __grid_constant__ Step step) {
    prepare(step);
    if (threadIdx.x >= THREADS) return copy_all(step);
    u32 tag = *step.counter;
    int turn = 0;
    Ring ring;
    for (int number = 0; number < LAYERS; ++number) run_layer(step, number, tag + number, ring, turn);
    run_logits(step, tag + LAYERS - 1, ring, turn);
}
