// The selective scan of Mamba and its gradient, float32, for CPUs.
//
// Shapes: B batch, T length, C channels, N state size. All tensors are contiguous. Some channels make
// a vector; GROUP vectors of one sequence make a task. Where several tasks add to one sum (dB, dC; dA), each has
// its own buffer, and these are added in a fixed order: the result does not depend on the number of threads. The
// states are kept every CHUNK steps only; the backward pass redoes the steps between, BLOCK states of the N at a
// time, in the nearest cache.
#include "common.h"

constexpr int64_t CHUNK = 32, GROUP = 128 / LANES, BLOCK = 4;

struct Shape {
    int64_t batch, length, channels, state;
    int64_t vectors() const { return (channels + LANES - 1) / LANES; }
    int64_t groups() const { return (vectors() + GROUP - 1) / GROUP; }
    int64_t blocks() const { return (state + BLOCK - 1) / BLOCK; }
    int64_t chunks() const { return (length + CHUNK - 1) / CHUNK; }
    int64_t padded() const { return blocks() * BLOCK; }
};

// Rows of B, C and keep of one chunk, padded with zeros to whole blocks of states.
struct Rows {
    std::vector<float> B, C, keep;
    explicit Rows(const Shape &s) : B(CHUNK * s.padded()), C(CHUNK * s.padded()), keep(CHUNK, 1.0f) {}
    void read(const Shape &s, const float *from_B, const float *from_C, const float *from_keep, int64_t steps) {
        for (int64_t t = 0; t < steps; t++) {
            std::memcpy(&B[t * s.padded()], from_B + t * s.state, s.state * sizeof(float));
            std::memcpy(&C[t * s.padded()], from_C + t * s.state, s.state * sizeof(float));
            if (from_keep) keep[t] = from_keep[t];
        }
    }
};

// A (C, N), or a state of one sequence, as vectors of channels: into[n] has channels c, c + 1, ... of state n.
static void gather(const float *from, const Shape &s, int64_t c, int64_t lanes, Vector *into) {
    for (int64_t n = 0; n < s.padded(); n++) {
        into[n] = Vector{};
        for (int64_t lane = 0; n < s.state && from && lane < lanes; lane++)
            into[n][lane] = from[(c + lane) * s.state + n];
    }
}

static void scatter(const Vector *from, const Shape &s, int64_t c, int64_t lanes, float *into) {
    for (int64_t n = 0; n < s.state; n++)
        for (int64_t lane = 0; lane < lanes; lane++) into[(c + lane) * s.state + n] = from[n][lane];
}

// What is left of a state after a step. PLAIN: no state is forgotten, no decay is negative.
template <bool PLAIN> static inline Vector decay(Vector exponent, float keep, float negative) {
    Vector e = exponential(exponent);
    if (PLAIN) return e;
    return keep * (e + negative * (e - 1.0f));
}

template <bool PLAIN>
static void forward(const Shape &s, const float *u, const float *delta, const float *A, const float *B,
                    const float *C, const float *initial, const float *keep, float negative, int64_t threads,
                    float *y, float *starts, float *last) {
    const int64_t N = s.padded();
    parallel(s.batch * s.groups(), threads, [&](int64_t task) {
        const int64_t b = task / s.groups(), first = task % s.groups() * GROUP;
        const int64_t members = std::min(GROUP, s.vectors() - first);
        std::vector<Vector> h(GROUP * N), a(GROUP * N);
        Vector step[CHUNK], input[CHUNK], output[CHUNK];
        Rows rows(s);
        for (int64_t v = 0; v < members; v++) {
            const int64_t c = (first + v) * LANES, lanes = std::min(LANES, s.channels - c);
            gather(A, s, c, lanes, &a[v * N]);
            gather(initial ? initial + b * s.channels * s.state : nullptr, s, c, lanes, &h[v * N]);
        }
        for (int64_t chunk = 0; chunk < s.chunks(); chunk++) {
            const int64_t begin = chunk * CHUNK, steps = std::min(CHUNK, s.length - begin);
            const int64_t row = b * s.length + begin;
            rows.read(s, B + row * s.state, C + row * s.state, keep ? keep + row : nullptr, steps);
            for (int64_t v = 0; v < members; v++) {
                const int64_t c = (first + v) * LANES, lanes = std::min(LANES, s.channels - c);
                if (starts)
                    std::memcpy(starts + ((b * s.chunks() + chunk) * s.vectors() + first + v) * N * LANES,
                                &h[v * N], N * sizeof(Vector));
                for (int64_t t = 0; t < steps; t++) {
                    step[t] = load(delta + (row + t) * s.channels + c, lanes);
                    input[t] = step[t] * load(u + (row + t) * s.channels + c, lanes);
                    output[t] = Vector{};
                }
                for (int64_t n = 0; n < N; n += BLOCK) {
                    Vector state[BLOCK], rate[BLOCK];
                    for (int64_t j = 0; j < BLOCK; j++) state[j] = h[v * N + n + j], rate[j] = a[v * N + n + j];
                    for (int64_t t = 0; t < steps; t++)
                        for (int64_t j = 0; j < BLOCK; j++) {
                            const Vector left = decay<PLAIN>(step[t] * rate[j], rows.keep[t], negative);
                            state[j] = left * state[j] + input[t] * rows.B[t * N + n + j];
                            output[t] += state[j] * rows.C[t * N + n + j];
                        }
                    for (int64_t j = 0; j < BLOCK; j++) h[v * N + n + j] = state[j];
                }
                for (int64_t t = 0; t < steps; t++) store(y + (row + t) * s.channels + c, output[t], lanes);
            }
        }
        for (int64_t v = 0; v < members; v++) {
            const int64_t c = (first + v) * LANES, lanes = std::min(LANES, s.channels - c);
            scatter(&h[v * N], s, c, lanes, last + b * s.channels * s.state);
        }
    });
}

// The vectors of one chunk that the blocks of states add to or read.
struct Chunk {
    Vector u[CHUNK], step[CHUNK], input[CHUNK], dy[CHUNK], d_input[CHUNK], d_step[CHUNK];
};

// One block of states of one vector of channels through one chunk, forwards and back again. `g` is the gradient
// at the state after the chunk times what is left of it; dA, dB and dC are added to.
template <bool PLAIN>
static void block_backward(Chunk &k, int64_t steps, int64_t N, const float *B, const float *C, const float *keep,
                           float negative, const Vector *rate, const Vector *start, Vector *g, Vector *dA,
                           Vector *dB, Vector *dC) {
    Vector left[CHUNK][BLOCK], state[CHUNK + 1][BLOCK], slope_A[BLOCK] = {};
    for (int64_t j = 0; j < BLOCK; j++) state[0][j] = start[j];
    for (int64_t t = 0; t < steps; t++)
        for (int64_t j = 0; j < BLOCK; j++) {
            left[t][j] = decay<PLAIN>(k.step[t] * rate[j], keep[t], negative);
            state[t + 1][j] = left[t][j] * state[t][j] + k.input[t] * B[t * N + j];
        }
    for (int64_t t = steps - 1; t >= 0; t--) {
        const Vector dy = k.dy[t], input = k.input[t], step = k.step[t];
        Vector d_input = k.d_input[t], d_step = k.d_step[t];
        for (int64_t j = 0; j < BLOCK; j++) {
            const Vector h = g[j] + dy * C[t * N + j];  // the gradient at this state
            dC[t * BLOCK + j] += dy * state[t + 1][j];
            dB[t * BLOCK + j] += h * input;
            d_input += h * B[t * N + j];
            g[j] = h * left[t][j];
            Vector exponent = g[j] * state[t][j];
            if (!PLAIN) exponent += negative * keep[t] * (h * state[t][j]);
            slope_A[j] += exponent * step;
            d_step += exponent * rate[j];
        }
        k.d_input[t] = d_input, k.d_step[t] = d_step;
    }
    for (int64_t j = 0; j < BLOCK; j++) dA[j] += slope_A[j];
}

template <bool PLAIN>
static void backward(const Shape &s, const float *u, const float *delta, const float *A, const float *B,
                     const float *C, const float *keep, float negative, const float *starts, const float *dy,
                     const float *d_last, int64_t threads, float *du, float *d_delta, float *dA, float *dB,
                     float *dC, float *d_initial) {
    const int64_t N = s.padded(), rows_size = s.length * s.state;
    std::vector<float> parts_A(s.batch * s.channels * s.state);
    std::vector<float> parts_B(s.batch * s.groups() * rows_size), parts_C(parts_B.size());
    parallel(s.batch * s.groups(), threads, [&](int64_t task) {
        const int64_t b = task / s.groups(), first = task % s.groups() * GROUP;
        const int64_t members = std::min(GROUP, s.vectors() - first);
        std::vector<Vector> a(GROUP * N), g(GROUP * N), slope_A(GROUP * N);
        std::vector<Chunk> chunks(GROUP);
        Vector slope_B[CHUNK * BLOCK], slope_C[CHUNK * BLOCK];
        Rows rows(s);
        for (int64_t v = 0; v < members; v++) {
            const int64_t c = (first + v) * LANES, lanes = std::min(LANES, s.channels - c);
            gather(A, s, c, lanes, &a[v * N]);
            gather(d_last + b * s.channels * s.state, s, c, lanes, &g[v * N]);
        }
        for (int64_t chunk = s.chunks() - 1; chunk >= 0; chunk--) {
            const int64_t begin = chunk * CHUNK, steps = std::min(CHUNK, s.length - begin);
            const int64_t row = b * s.length + begin;
            rows.read(s, B + row * s.state, C + row * s.state, keep ? keep + row : nullptr, steps);
            for (int64_t v = 0; v < members; v++) {
                const int64_t c = (first + v) * LANES, lanes = std::min(LANES, s.channels - c);
                Chunk &k = chunks[v];
                for (int64_t t = 0; t < steps; t++) {
                    const int64_t at = (row + t) * s.channels + c;
                    k.u[t] = load(u + at, lanes), k.step[t] = load(delta + at, lanes), k.dy[t] = load(dy + at, lanes);
                    k.input[t] = k.step[t] * k.u[t];
                    k.d_input[t] = k.d_step[t] = Vector{};
                }
            }
            for (int64_t n = 0; n < N; n += BLOCK) {
                std::fill(slope_B, slope_B + CHUNK * BLOCK, Vector{});
                std::fill(slope_C, slope_C + CHUNK * BLOCK, Vector{});
                for (int64_t v = 0; v < members; v++) {
                    const float *start =
                        starts + (((b * s.chunks() + chunk) * s.vectors() + first + v) * N + n) * LANES;
                    Vector begun[BLOCK];
                    for (int64_t j = 0; j < BLOCK; j++) begun[j] = load(start + j * LANES, LANES);
                    const int64_t at = v * N + n;
                    block_backward<PLAIN>(chunks[v], steps, N, &rows.B[n], &rows.C[n], rows.keep.data(), negative,
                                          &a[at], begun, &g[at], &slope_A[at], slope_B, slope_C);
                }
                for (int64_t t = 0; t < steps; t++)
                    for (int64_t j = 0; j < BLOCK && n + j < s.state; j++) {
                        const int64_t at = (task * s.length + begin + t) * s.state + n + j;
                        parts_B[at] = total(slope_B[t * BLOCK + j]), parts_C[at] = total(slope_C[t * BLOCK + j]);
                    }
            }
            for (int64_t v = 0; v < members; v++) {
                const int64_t c = (first + v) * LANES, lanes = std::min(LANES, s.channels - c);
                const Chunk &k = chunks[v];
                for (int64_t t = 0; t < steps; t++) {
                    store(du + (row + t) * s.channels + c, k.d_input[t] * k.step[t], lanes);
                    store(d_delta + (row + t) * s.channels + c, k.d_input[t] * k.u[t] + k.d_step[t], lanes);
                }
            }
        }
        for (int64_t v = 0; v < members; v++) {
            const int64_t c = (first + v) * LANES, lanes = std::min(LANES, s.channels - c);
            scatter(&g[v * N], s, c, lanes, d_initial + b * s.channels * s.state);
            scatter(&slope_A[v * N], s, c, lanes, parts_A.data() + b * s.channels * s.state);
        }
    });
    add_parts(parts_A.data(), s.batch, s.channels * s.state, dA);
    parallel(s.batch, threads, [&](int64_t b) {
        add_parts(parts_B.data() + b * s.groups() * rows_size, s.groups(), rows_size, dB + b * rows_size);
        add_parts(parts_C.data() + b * s.groups() * rows_size, s.groups(), rows_size, dC + b * rows_size);
    });
}

extern "C" {

// Numbers of `starts`, the states at the beginning of each chunk.
int64_t scan_starts(int64_t batch, int64_t length, int64_t channels, int64_t state) {
    const Shape s{batch, length, channels, state};
    return batch * s.chunks() * s.vectors() * s.padded() * LANES;
}

// `initial`, `keep` and `starts` may be null.
void scan_forward(int64_t batch, int64_t length, int64_t channels, int64_t state, int64_t threads, int64_t negative,
                  const float *u, const float *delta, const float *A, const float *B, const float *C,
                  const float *initial, const float *keep, float *y, float *starts, float *last) {
    const Shape s{batch, length, channels, state};
    auto run = keep || negative ? forward<false> : forward<true>;
    run(s, u, delta, A, B, C, initial, keep, negative, threads, y, starts, last);
}

// `keep` may be null.
void scan_backward(int64_t batch, int64_t length, int64_t channels, int64_t state, int64_t threads, int64_t negative,
                   const float *u, const float *delta, const float *A, const float *B, const float *C,
                   const float *keep, const float *starts, const float *dy, const float *d_last, float *du,
                   float *d_delta, float *dA, float *dB, float *dC, float *d_initial) {
    const Shape s{batch, length, channels, state};
    auto run = keep || negative ? backward<false> : backward<true>;
    run(s, u, delta, A, B, C, keep, negative, starts, dy, d_last, threads, du, d_delta, dA, dB, dC, d_initial);
}
}
