// What the kernels of decoding share: one new token for each of a few sequences, so every product is that of a
// matrix with a few vectors, and reads the matrix once. The structures are those of native_decode.py.
//
// A number of the result is always summed in the same order, whatever the threads and the other rows are.
#pragma once
#include <cmath>

#include "../common.h"

struct Norm {
    const float *weight, *bias;  // either may be null
    double eps;
    int64_t kind;  // 0 none, 1 RMSNorm, 2 LayerNorm
};

// outputs x inputs, row by row; no outputs: there is no such product.
struct Linear {
    const float *weight, *bias;  // the bias may be null
    int64_t outputs, inputs;
};

// A residual branch around a sublayer: stream + after(f(before(read))), or with `post`
// after(stream + f(before(read))).
struct Residual {
    Norm before, after;
    int64_t post;
};

// A product of the rows `from`, so far apart, into the rows `to`.
struct Product {
    const Linear *linear;
    const float *from;
    int64_t from_stride;
    float *to;
    int64_t to_stride, rows;
};

// R rows of a matrix times N vectors.
template <int R, int N>
static inline void tile(const float *w, int64_t w_stride, int64_t inputs, const float *x, int64_t x_stride, float *y,
                        int64_t y_stride) {
    constexpr int ROOM = (R * N + LANES - 1) / LANES * LANES;  // whole squares of lanes
    Vector sum[ROOM] = {}, v[N];
    int64_t i = 0;
    for (; i + LANES <= inputs; i += LANES) {
        for (int n = 0; n < N; n++) v[n] = load(x + n * x_stride + i);
        for (int r = 0; r < R; r++) {
            const float *from = w + r * w_stride + i;
            __builtin_prefetch(from + R * w_stride);  // the next tile; beyond the matrix it does no harm
            const Vector row = load(from);
            for (int n = 0; n < N; n++) sum[r * N + n] += row * v[n];
        }
    }
    if (i < inputs) {
        for (int n = 0; n < N; n++) v[n] = load(x + n * x_stride + i, inputs - i);
        for (int r = 0; r < R; r++) {
            const Vector row = load(w + r * w_stride + i, inputs - i);
            for (int n = 0; n < N; n++) sum[r * N + n] += row * v[n];
        }
    }
    float sums[ROOM];
#pragma GCC unroll 4
    for (int first = 0; first < R * N; first += LANES) store(sums + first, totals(sum + first));
    for (int r = 0; r < R; r++)
        for (int n = 0; n < N; n++) y[n * y_stride + r] = sums[r * N + n];
}

// Some rows of a matrix times N vectors; what comes next is fetched meanwhile.
template <int R, int N>
static inline void tiles(const float *w, int64_t w_stride, int64_t outputs, int64_t inputs, const float *x,
                         int64_t x_stride, float *y, int64_t y_stride) {
    int64_t r = 0;
    for (; r + R <= outputs; r += R) tile<R, N>(w + r * w_stride, w_stride, inputs, x, x_stride, y + r, y_stride);
    for (; r < outputs; r++) tile<1, N>(w + r * w_stride, w_stride, inputs, x, x_stride, y + r, y_stride);
}

// Rows of a matrix times so many vectors, eight at a time at most.
static inline void times(const float *w, int64_t w_stride, int64_t outputs, int64_t inputs, int64_t rows,
                         const float *x, int64_t x_stride, float *y, int64_t y_stride) {
    typedef void (*Tiles)(const float *, int64_t, int64_t, int64_t, const float *, int64_t, float *, int64_t);
    constexpr int TWICE = REGISTERS / 16;  // as many rows where there are twice as many registers
    static constexpr Tiles OF[] = {tiles<8, 1>,         tiles<4, 2>,     tiles<2 * TWICE, 3>, tiles<2 * TWICE, 4>,
                                   tiles<TWICE, 5>, tiles<TWICE, 6>, tiles<TWICE, 7>,     tiles<TWICE, 8>};
    for (int64_t n = 0; n < rows; n += 8)
        OF[std::min<int64_t>(8, rows - n) - 1](w, w_stride, outputs, inputs, x + n * x_stride, x_stride, y + n * y_stride,
                                               y_stride);
}

// So many threads as the work is worth, one for each quarter of a megabyte that is read.
static inline int64_t worth(int64_t numbers, int64_t threads) { return std::min(threads, 1 + numbers / 65536); }

// Several products side by side, biases added.
static inline void multiply(const std::vector<Product> &products, int64_t threads) {
    constexpr int64_t NUMBERS = 16384;  // of the matrix, in one task
    std::vector<int64_t> ends, spans;
    int64_t tasks = 0, numbers = 0;
    for (const Product &p : products) {
        const int64_t span = std::max<int64_t>(4, NUMBERS / p.linear->inputs / 4 * 4);
        tasks += (p.linear->outputs + span - 1) / span;
        numbers += p.linear->outputs * p.linear->inputs;
        spans.push_back(span);
        ends.push_back(tasks);
    }
    parallel(tasks, worth(numbers, threads), [&](int64_t task) {
        const int64_t which = std::upper_bound(ends.begin(), ends.end(), task) - ends.begin();
        const Product &p = products[which];
        const Linear &m = *p.linear;
        const int64_t first = (task - (which ? ends[which - 1] : 0)) * spans[which];
        const int64_t count = std::min(spans[which], m.outputs - first);
        times(m.weight + first * m.inputs, m.inputs, count, m.inputs, p.rows, p.from, p.from_stride, p.to + first,
              p.to_stride);
        if (m.bias)
            for (int64_t n = 0; n < p.rows; n++)
                for (int64_t i = first; i < first + count; i++) p.to[n * p.to_stride + i] += m.bias[i];
    });
}

// One row, normalised; `to` may be `from`.
static inline void normalise(const Norm &norm, int64_t width, const float *from, float *to) {
    if (norm.kind == 0) {
        if (to != from) std::memcpy(to, from, width * sizeof(float));
        return;
    }
    Vector sum = {};
    float mean = 0;
    if (norm.kind == 2) {
        for (int64_t i = 0; i < width; i += LANES) sum += load(from + i, width - i);
        mean = total(sum) / width;
        sum = Vector{};
    }
    for (int64_t i = 0; i < width; i++) to[i] = from[i] - mean;
    for (int64_t i = 0; i < width; i += LANES) {
        const Vector x = load(to + i, width - i);
        sum += x * x;
    }
    const float scale = 1.0 / std::sqrt(double(total(sum)) / width + norm.eps);
    for (int64_t i = 0; i < width; i++) {
        const float x = to[i] * scale * (norm.weight ? norm.weight[i] : 1.0f);
        to[i] = x + (norm.bias ? norm.bias[i] : 0.0f);
    }
}

static inline void normalise_rows(const Norm &norm, int64_t rows, int64_t width, const float *from, float *to) {
    for (int64_t n = 0; n < rows; n++) normalise(norm, width, from + n * width, to + n * width);
}

// The stream after what a sublayer gives; `y` is spent.
static inline void leave(const Residual &residual, int64_t rows, int64_t width, float *y, float *stream) {
    if (residual.after.kind && !residual.post) normalise_rows(residual.after, rows, width, y, y);
    for (int64_t i = 0; i < rows * width; i++) stream[i] += y[i];
    if (residual.after.kind && residual.post) normalise_rows(residual.after, rows, width, stream, stream);
}

enum Activation { RELU, RELU_SQUARED, GELU, GELU_TANH, SILU };

static inline Vector sigmoid_of(Vector x) { return 1.0f / (1.0f + exponential(-x)); }

static inline Vector activated(int64_t activation, Vector x) {
    if (activation == SILU) return x * sigmoid_of(x);
    // x (1 + tanh(u)) / 2 is x sigmoid(2u).
    if (activation == GELU_TANH) return x * sigmoid_of(1.5957691216057308f * (x + 0.044715f * x * x * x));
    if (activation == GELU) {
        for (int64_t lane = 0; lane < LANES; lane++) x[lane] *= 0.5f * (1.0f + std::erf(x[lane] * 0.70710678f));
        return x;
    }
    const Vector kept = x > 0.0f ? x : Vector{};
    return activation == RELU ? kept : kept * kept;
}

// up = activation(gate) up, or activation(up) where there is no gate.
static inline void activate(int64_t activation, int64_t size, const float *gate, float *up) {
    for (int64_t i = 0; i < size; i += LANES) {
        const Vector x = load(up + i, size - i);
        store(up + i, gate ? activated(activation, load(gate + i, size - i)) * x : activated(activation, x), size - i);
    }
}
