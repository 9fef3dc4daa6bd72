// What surrounds the scans of Mamba and of linear attention, each in one pass over memory and with its gradient, float32, for CPUs:
// SiLU of the causal depthwise convolution, and the skip, gate and norm of what was scanned.
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

// One output of the convolution; `reach` taps stay inside the sequence and its document.
Vector filter(const float *x, int64_t stride, int64_t lanes, int64_t reach, int64_t taps, const Vector *w) {
    Vector sum = w[taps];
    for (int64_t lag = 0; lag < reach; lag++) sum += w[taps - 1 - lag] * load(x - lag * stride, lanes);
    return sum;
}

int64_t reach_of(const int64_t *positions, int64_t row, int64_t t, int64_t taps) {
    return std::min(taps, (positions ? positions[row] : t) + 1);
}

}  // namespace

extern "C" {

// y = convolution of x, or its SiLU. `bias` and `positions` (B, T), of each token in its document, may be null.
void convolution_forward(int64_t batch, int64_t length, int64_t channels, int64_t taps, int64_t threads,
                         int64_t x_stride, int64_t silu, const float *x, const float *weight, const float *bias,
                         const int64_t *positions, float *y) {
    const int64_t spans = (channels + SPAN - 1) / SPAN;
    parallel(batch * spans, threads, [&](int64_t task) {
        const int64_t b = task / spans, first = task % spans * SPAN, end = std::min(channels, first + SPAN);
        std::vector<Vector> w(SPAN / LANES * (taps + 1));
        for (int64_t c = first; c < end; c += LANES)
            gather(weight, bias, taps, c, std::min(LANES, end - c), &w[(c - first) / LANES * (taps + 1)]);
        for (int64_t t = 0; t < length; t++) {
            const int64_t row = b * length + t, reach = reach_of(positions, row, t, taps);
            for (int64_t c = first; c < end; c += LANES) {
                const Vector *taps_c = &w[(c - first) / LANES * (taps + 1)];
                const int64_t lanes = std::min(LANES, end - c);
                const Vector z = filter(x + row * x_stride + c, x_stride, lanes, reach, taps, taps_c);
                store(y + row * channels + c, silu ? z * sigmoid(z) : z, lanes);
            }
        }
    });
}

// dy (B, T, C) to dx (B, T, C), d_weight (C, K) and d_bias (C), which is written in any case.
void convolution_backward(int64_t batch, int64_t length, int64_t channels, int64_t taps, int64_t threads,
                          int64_t x_stride, int64_t silu, const float *x, const float *weight, const float *bias,
                          const int64_t *positions, const float *dy, float *dx, float *d_weight, float *d_bias) {
    const int64_t spans = (channels + SPAN - 1) / SPAN, vectors = SPAN / LANES;
    std::vector<float> parts_weight(batch * channels * taps), parts_bias(batch * channels);
    parallel(batch * spans, threads, [&](int64_t task) {
        const int64_t b = task / spans, first = task % spans * SPAN, end = std::min(channels, first + SPAN);
        std::vector<Vector> w(vectors * (taps + 1)), dw(vectors * (taps + 1));
        // Of the next tokens: gradients at the outputs of the convolution, and how many taps reached back from there.
        std::vector<Vector> ring(taps * vectors);
        std::vector<int64_t> reaches(taps);
        for (int64_t c = first; c < end; c += LANES)
            gather(weight, bias, taps, c, std::min(LANES, end - c), &w[(c - first) / LANES * (taps + 1)]);
        for (int64_t t = length - 1; t >= 0; t--) {
            const int64_t row = b * length + t, reach = reach_of(positions, row, t, taps);
            reaches[t % taps] = reach;
            for (int64_t c = first; c < end; c += LANES) {
                const int64_t v = (c - first) / LANES, lanes = std::min(LANES, end - c);
                const Vector *taps_c = &w[v * (taps + 1)];
                Vector *slopes = &dw[v * (taps + 1)];
                const float *x_c = x + row * x_stride + c;
                Vector dz = load(dy + row * channels + c, lanes);
                if (silu) {
                    const Vector z = filter(x_c, x_stride, lanes, reach, taps, taps_c);
                    dz *= silu_slope(z, sigmoid(z));
                }
                ring[v * taps + t % taps] = dz;
                slopes[taps] += dz;
                for (int64_t lag = 0; lag < reach; lag++)
                    slopes[taps - 1 - lag] += dz * load(x_c - lag * x_stride, lanes);
                Vector sum = {};
                for (int64_t lag = 0; lag < taps && t + lag < length; lag++)
                    if (lag < reaches[(t + lag) % taps])
                        sum += taps_c[taps - 1 - lag] * ring[v * taps + (t + lag) % taps];
                store(dx + row * channels + c, sum, lanes);
            }
        }
        for (int64_t c = first; c < end; c++) {
            const Vector *slopes = &dw[(c - first) / LANES * (taps + 1)];
            for (int64_t tap = 0; tap < taps; tap++)
                parts_weight[(b * channels + c) * taps + tap] = slopes[tap][(c - first) % LANES];
            parts_bias[b * channels + c] = slopes[taps][(c - first) % LANES];
        }
    });
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
