// What surrounds the scans of Mamba and of linear attention, each in one pass over memory and with its gradient, float32,
// for CPUs: the causal depthwise convolution and what follows it, and the skip, gate and norm of what was scanned.
//
// Shapes: B batch, T length, C channels, K taps. A row is the C channels of one token; `stride` is the distance
// of two rows where it is not C. What several tasks add to (gradients of the weights) each writes apart, and it
// is added in a fixed order.
#include <cmath>

#include "common.h"

namespace {

constexpr int64_t SPAN = 64;  // channels of a sequence, or rows of all channels, in one task

Vector sigmoid(Vector x) { return 1.0f / (1.0f + exponential(-x)); }

// d silu(x) / dx, where s = sigmoid(x).
Vector silu_slope(Vector x, Vector s) { return s * (1.0f + x * (1.0f - s)); }

// y + D x, or y where D is null.
Vector skipped(const float *y, const float *x, const float *D, int64_t lanes) {
    return D ? load(y, lanes) + load(D, lanes) * load(x, lanes) : load(y, lanes);
}

// The taps (C, K) and the bias of one vector of channels; into[K] is the bias.
void gather(const float *weight, const float *bias, int64_t taps, int64_t c, int64_t lanes, Vector *into) {
    for (int64_t tap = 0; tap < taps; tap++) {
        into[tap] = Vector{};
        for (int64_t lane = 0; lane < lanes; lane++) into[tap][lane] = weight[(c + lane) * taps + tap];
    }
    into[taps] = bias ? load(bias + c, lanes) : Vector{};
}

// One output of the convolution; `reach` taps stay inside the sequence and its document. `fixed` is the number of
// taps where it is known, else 0.
template <int fixed>
[[gnu::always_inline]] inline Vector filter(const float *x, int64_t stride, int64_t lanes, int64_t reach, int64_t taps,
                                            const Vector *w) {
    Vector sum = w[taps];
    if (fixed && reach == fixed) {
#pragma GCC unroll 4
        for (int64_t lag = 0; lag < fixed; lag++) sum += w[fixed - 1 - lag] * load(x - lag * stride, lanes);
    } else
        for (int64_t lag = 0; lag < reach; lag++) sum += w[taps - 1 - lag] * load(x - lag * stride, lanes);
    return sum;
}

int64_t reach_of(const int64_t *positions, int64_t row, int64_t t, int64_t taps) {
    return std::min(taps, (positions ? positions[row] : t) + 1);
}

}  // namespace

namespace {

enum Then { NOTHING, SILU, ADD };  // what follows a convolution: ADD adds its input

struct Convolution {
    int64_t batch, length, channels, taps, threads, x_stride, then;
    const float *x, *weight, *bias;
    const int64_t *positions;
    int64_t spans() const { return (channels + SPAN - 1) / SPAN; }
};

// The taps and the bias of a span of channels.
std::vector<Vector> taps_of(const Convolution &s, int64_t first, int64_t end) {
    std::vector<Vector> w(SPAN / LANES * (s.taps + 1));
    for (int64_t c = first; c < end; c += LANES)
        gather(s.weight, s.bias, s.taps, c, std::min(LANES, end - c), &w[(c - first) / LANES * (s.taps + 1)]);
    return w;
}

template <int fixed> void convolve(const Convolution &s, float *y) {
    const int64_t taps = fixed ? fixed : s.taps;
    parallel(s.batch * s.spans(), s.threads, [&](int64_t task) {
        const int64_t b = task / s.spans(), first = task % s.spans() * SPAN, end = std::min(s.channels, first + SPAN);
        const std::vector<Vector> w = taps_of(s, first, end);
        for (int64_t t = 0; t < s.length; t++) {
            const int64_t row = b * s.length + t, reach = reach_of(s.positions, row, t, taps);
            const Vector *taps_c = w.data();
            vectors(first, end, [&](int64_t c, int64_t lanes) {
                const float *x = s.x + row * s.x_stride + c;
                Vector z = filter<fixed>(x, s.x_stride, lanes, reach, taps, taps_c);
                if (s.then == SILU) z *= sigmoid(z);
                if (s.then == ADD) z += load(x, lanes);
                store(y + row * s.channels + c, z, lanes);
                taps_c += taps + 1;
            });
        }
    });
}

// One token of a vector of channels backwards. `ahead` of the next outputs, this one first, read this input.
template <int fixed>
[[gnu::always_inline]] inline void convolve_back(const Convolution &s, int64_t row, int64_t c, int64_t lanes,
                                                 int64_t taps, int64_t reach, int64_t ahead, const int64_t *slots,
                                                 const Vector *w, Vector *ring, Vector *slopes, const float *dy,
                                                 float *dx) {
    const float *x = s.x + row * s.x_stride + c;
    Vector dz = load(dy + row * s.channels + c, lanes);
    if (s.then == SILU) {
        const Vector z = filter<fixed>(x, s.x_stride, lanes, reach, taps, w);
        dz *= silu_slope(z, sigmoid(z));
    }
    ring[slots[0]] = dz;
    slopes[taps] += dz;
    Vector sum = w[taps - 1] * dz;
    if (fixed && reach == fixed && ahead == fixed) {
#pragma GCC unroll 4
        for (int64_t lag = 0; lag < fixed; lag++) slopes[fixed - 1 - lag] += dz * load(x - lag * s.x_stride, lanes);
#pragma GCC unroll 4
        for (int64_t lag = 1; lag < fixed; lag++) sum += w[fixed - 1 - lag] * ring[slots[lag]];
    } else {
        for (int64_t lag = 0; lag < reach; lag++) slopes[taps - 1 - lag] += dz * load(x - lag * s.x_stride, lanes);
        for (int64_t lag = 1; lag < ahead; lag++) sum += w[taps - 1 - lag] * ring[slots[lag]];
    }
    store(dx + row * s.channels + c, s.then == ADD ? sum + dz : sum, lanes);
}

template <int fixed>
void convolve_back(const Convolution &s, const float *dy, float *dx, float *parts_weight, float *parts_bias) {
    const int64_t taps = fixed ? fixed : s.taps;
    parallel(s.batch * s.spans(), s.threads, [&](int64_t task) {
        const int64_t b = task / s.spans(), first = task % s.spans() * SPAN, end = std::min(s.channels, first + SPAN);
        const std::vector<Vector> w = taps_of(s, first, end);
        std::vector<Vector> dw(w.size());
        // Of the next tokens: gradients at the outputs of the convolution, and how many taps reached back from there.
        std::vector<Vector> ring(taps * SPAN / LANES);
        std::vector<int64_t> reaches(taps), slots(taps);
        for (int64_t t = s.length - 1; t >= 0; t--) {
            const int64_t row = b * s.length + t, reach = reach_of(s.positions, row, t, taps);
            for (int64_t lag = 0; lag < taps; lag++) slots[lag] = (t + lag) % taps;
            reaches[slots[0]] = reach;
            int64_t ahead = 1;
            while (ahead < taps && t + ahead < s.length && ahead < reaches[slots[ahead]]) ahead++;
            vectors(first, end, [&](int64_t c, int64_t lanes) {
                const int64_t v = (c - first) / LANES, at = v * (taps + 1);
                convolve_back<fixed>(s, row, c, lanes, taps, reach, ahead, slots.data(), w.data() + at,
                                     ring.data() + v * taps, dw.data() + at, dy, dx);
            });
        }
        for (int64_t c = first; c < end; c++) {
            const Vector *slopes = &dw[(c - first) / LANES * (taps + 1)];
            for (int64_t tap = 0; tap < taps; tap++)
                parts_weight[(b * s.channels + c) * taps + tap] = slopes[tap][(c - first) % LANES];
            parts_bias[b * s.channels + c] = slopes[taps][(c - first) % LANES];
        }
    });
}

}  // namespace

extern "C" {

// y = convolution of x, and then its SiLU or x added. `bias` and `positions` (B, T), of each token in its document, may be null.
void convolution_forward(int64_t batch, int64_t length, int64_t channels, int64_t taps, int64_t threads,
                         int64_t x_stride, int64_t then, const float *x, const float *weight, const float *bias,
                         const int64_t *positions, float *y) {
    const Convolution s{batch, length, channels, taps, threads, x_stride, then, x, weight, bias, positions};
    taps == 4 ? convolve<4>(s, y) : convolve<0>(s, y);
}

// dy (B, T, C) to dx (B, T, C), d_weight (C, K) and d_bias (C), which is written in any case.
void convolution_backward(int64_t batch, int64_t length, int64_t channels, int64_t taps, int64_t threads,
                          int64_t x_stride, int64_t then, const float *x, const float *weight, const float *bias,
                          const int64_t *positions, const float *dy, float *dx, float *d_weight, float *d_bias) {
    const Convolution s{batch, length, channels, taps, threads, x_stride, then, x, weight, bias, positions};
    std::vector<float> parts_weight(batch * channels * taps), parts_bias(batch * channels);
    if (taps == 4)
        convolve_back<4>(s, dy, dx, parts_weight.data(), parts_bias.data());
    else
        convolve_back<0>(s, dy, dx, parts_weight.data(), parts_bias.data());
    add_parts(parts_weight.data(), batch, channels * taps, d_weight);
    add_parts(parts_bias.data(), batch, channels, d_bias);
}
}

namespace {

enum Norm { NONE, AFTER_GATE, BEFORE_GATE };

// 1 / sqrt(mean of squares + eps) of so many numbers.
float inverse_rms(const Vector *numbers, int64_t vectors, int64_t width, float eps) {
    double sum = 0;
    for (int64_t v = 0; v < vectors; v++) sum += total(numbers[v] * numbers[v]);
    return 1.0 / std::sqrt(sum / width + eps);
}

}  // namespace

extern "C" {

// With s = y + D x and q = silu(gate), or sigmoid(gate): s q (norm 0), norm(s q) w (1) or norm(s) w q (2), the norm
// over each group of channels. D (C; may be null, as x) and w (C; null for norm 0) belong to channels.
void finish_forward(int64_t rows, int64_t channels, int64_t groups, int64_t norm, int64_t silu, int64_t threads,
                    int64_t x_stride, int64_t gate_stride, double eps, const float *y, const float *x, const float *gate,
                    const float *D, const float *w, float *out) {
    if (!D) x = y, x_stride = channels;  // which is not added
    const int64_t width = channels / groups, vectors = (width + LANES - 1) / LANES;
    parallel((rows + SPAN - 1) / SPAN, threads, [&](int64_t task) {
        std::vector<Vector> g(vectors), q(vectors);
        for (int64_t at = task * SPAN * groups; at < std::min(rows, (task + 1) * SPAN) * groups; at++) {
            const int64_t row = at / groups, c = at % groups * width;
            for (int64_t v = 0; v < vectors; v++) {
                const int64_t i = c + v * LANES, lanes = std::min(LANES, width - v * LANES);
                const Vector s = skipped(y + row * channels + i, x + row * x_stride + i, D ? D + i : D, lanes);
                const Vector z = load(gate + row * gate_stride + i, lanes);
                q[v] = silu ? z * sigmoid(z) : sigmoid(z);
                g[v] = norm == BEFORE_GATE ? s : s * q[v];
            }
            const float r = norm == NONE ? 1.0f : inverse_rms(g.data(), vectors, width, eps);
            for (int64_t v = 0; v < vectors; v++) {
                const int64_t i = c + v * LANES, lanes = std::min(LANES, width - v * LANES);
                Vector result = g[v];
                if (norm != NONE) result *= r * load(w + i, lanes);
                if (norm == BEFORE_GATE) result *= q[v];
                store(out + row * channels + i, result, lanes);
            }
        }
    });
}

// All gradients are contiguous; dw is written only where there is a norm, dx and dD where there is D.
void finish_backward(int64_t rows, int64_t channels, int64_t groups, int64_t norm, int64_t silu, int64_t threads,
                     int64_t x_stride, int64_t gate_stride, double eps, const float *y, const float *x, const float *gate,
                     const float *D, const float *w, const float *d_out, float *dy, float *dx, float *d_gate,
                     float *dD, float *dw) {
    if (!D) x = y, x_stride = channels;
    const int64_t width = channels / groups, vectors = (width + LANES - 1) / LANES;
    const int64_t tasks = (rows + SPAN - 1) / SPAN, all = groups * vectors;
    std::vector<float> parts_D(tasks * channels), parts_w(tasks * channels);
    parallel(tasks, threads, [&](int64_t task) {
        std::vector<Vector> s(vectors), sigma(vectors), q(vectors), n(vectors), dn(vectors);
        std::vector<Vector> slope_D(all), slope_w(all);
        for (int64_t at = task * SPAN * groups; at < std::min(rows, (task + 1) * SPAN) * groups; at++) {
            const int64_t row = at / groups, c = at % groups * width;
            for (int64_t v = 0; v < vectors; v++) {
                const int64_t i = c + v * LANES, lanes = std::min(LANES, width - v * LANES);
                s[v] = skipped(y + row * channels + i, x + row * x_stride + i, D ? D + i : D, lanes);
                const Vector z = load(gate + row * gate_stride + i, lanes);
                sigma[v] = sigmoid(z);
                q[v] = silu ? z * sigma[v] : sigma[v];
                n[v] = norm == BEFORE_GATE ? s[v] : s[v] * q[v];  // what is normalised
                dn[v] = load(d_out + row * channels + i, lanes);
                if (norm == BEFORE_GATE) dn[v] *= q[v];
            }
            // norm(n) = r n, so its gradient is r (d - n r^2 mean(n d)).
            const float r = norm == NONE ? 1.0f : inverse_rms(n.data(), vectors, width, eps);
            Vector product = {};
            for (int64_t v = 0; v < vectors && norm != NONE; v++) {
                const int64_t i = c + v * LANES, lanes = std::min(LANES, width - v * LANES);
                slope_w[at % groups * vectors + v] += r * n[v] * dn[v];
                dn[v] *= load(w + i, lanes);
                product += n[v] * dn[v];
            }
            const float along = norm == NONE ? 0.0f : r * r * total(product) / width;
            for (int64_t v = 0; v < vectors; v++) {
                const int64_t i = c + v * LANES, lanes = std::min(LANES, width - v * LANES);
                const Vector d = r * (dn[v] - along * n[v]);
                Vector ds = d, dq = d * s[v];
                if (norm == BEFORE_GATE)
                    dq = load(d_out + row * channels + i, lanes) * (r * n[v] * load(w + i, lanes));
                else
                    ds = d * q[v];
                const Vector z = load(gate + row * gate_stride + i, lanes);
                const Vector slope = silu ? silu_slope(z, sigma[v]) : sigma[v] * (1.0f - sigma[v]);
                store(d_gate + row * channels + i, dq * slope, lanes);
                store(dy + row * channels + i, ds, lanes);
                if (!D) continue;
                store(dx + row * channels + i, ds * load(D + i, lanes), lanes);
                slope_D[at % groups * vectors + v] += ds * load(x + row * x_stride + i, lanes);
            }
        }
        for (int64_t v = 0; v < all; v++) {
            const int64_t inside = v % vectors * LANES, lanes = std::min(LANES, width - inside);
            const int64_t i = task * channels + v / vectors * width + inside;
            store(&parts_D[i], slope_D[v], lanes);
            store(&parts_w[i], slope_w[v], lanes);
        }
    });
    if (D) add_parts(parts_D.data(), tasks, channels, dD);
    if (norm != NONE) add_parts(parts_w.data(), tasks, channels, dw);
}
}
