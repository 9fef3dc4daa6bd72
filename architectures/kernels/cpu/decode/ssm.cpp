// A residual branch of Mamba or Mamba-2 for one new token of each of a few sequences. float32, for CPUs.
//
// Shapes: B rows, D d_model, C channels, K taps, N state, R rank of the time step; H heads, P head_dim, G groups.
#include "decode.h"

namespace {

struct Convolution {
    const float *weight, *bias;  // (C, K), (C) or null
    int64_t channels, taps;
};

struct Mamba {
    Residual residual;
    Linear input, select, dt, out;
    Convolution convolution;
    Norm norms[3];      // of what is selected: time step, B and C
    const float *A, *D;  // (C, N), below zero; (C)
    int64_t state;
};

struct Mamba2 {
    Residual residual;
    Linear input, out;
    Convolution convolution;
    Norm norm;                     // over each group, of kind 0 where there is none
    const float *A, *D, *dt_bias;  // (H), A below zero
    int64_t heads, head_dim, groups, state, before_gate;
    double floor, ceiling;
};

float softplus(float x) { return x > 20 ? x : std::log1p(std::exp(x)); }

// SiLU of the filtered input of one row; the window (K - 1, C) moves on. `x` (C) is replaced.
void convolve(const Convolution &c, float *window, float *x) {
    const int64_t C = c.channels, K = c.taps;
    std::vector<float> y(C);
    for (int64_t i = 0; i < C; i++) {
        float sum = (c.bias ? c.bias[i] : 0.0f) + c.weight[i * K + K - 1] * x[i];
        for (int64_t k = 0; k + 1 < K; k++) sum += c.weight[i * K + k] * window[k * C + i];
        y[i] = sum;
    }
    if (K > 1) {
        std::memmove(window, window + C, (K - 2) * C * sizeof(float));
        std::memcpy(window + (K - 2) * C, x, C * sizeof(float));
    }
    for (int64_t i = 0; i < C; i += LANES) store(x + i, activated(SILU, load(&y[i], C - i)), C - i);
}

// The states of one channel after s = decay s + B input; the sum of C s.
template <class Decay>
float advance(int64_t N, float *s, const float *B, const float *C, float input, const Decay &decay) {
    Vector sum = {};
    for (int64_t n = 0; n < N; n += LANES) {
        const Vector next = load(s + n, N - n) * decay(n) + input * load(B + n, N - n);
        store(s + n, next, N - n);
        sum += next * load(C + n, N - n);
    }
    return total(sum);
}

}  // namespace

extern "C" {

// `window` (B, K - 1, C) and `state` (B, C, N) move on in place.
void decode_mamba(const Mamba *mamba, int64_t B, int64_t threads, const float *read, float *stream, float *window,
                  float *state) {
    const Mamba &m = *mamba;
    const int64_t D = m.out.outputs, C = m.convolution.channels, K = m.convolution.taps, N = m.state;
    const int64_t R = m.dt.inputs, selected = m.select.outputs;
    std::vector<float> entered(B * D), both(B * 2 * C), parts(B * selected), delta(B * C), mixed(B * C), y(B * D);
    normalise_rows(m.residual.before, B, D, read, entered.data());
    multiply({{&m.input, entered.data(), D, both.data(), 2 * C, B}}, threads);
    for (int64_t b = 0; b < B; b++) convolve(m.convolution, window + b * (K - 1) * C, &both[b * 2 * C]);
    multiply({{&m.select, both.data(), 2 * C, parts.data(), selected, B}}, threads);
    for (int64_t b = 0; b < B; b++) {
        const int64_t widths[] = {R, N, N};
        float *part = &parts[b * selected];
        for (int64_t i = 0; i < 3; part += widths[i++]) normalise(m.norms[i], widths[i], part, part);
    }
    multiply({{&m.dt, parts.data(), selected, delta.data(), C, B}}, threads);
    constexpr int64_t SPAN = 64;
    const int64_t spans = (C + SPAN - 1) / SPAN;
    parallel(B * spans, worth(4 * B * C * N, threads), [&](int64_t task) {
        const int64_t b = task / spans, first = task % spans * SPAN;
        const float *u = &both[b * 2 * C], *B_N = &parts[b * selected + R], *C_N = B_N + N;
        for (int64_t c = first; c < std::min(C, first + SPAN); c++) {
            const float dt = softplus(delta[b * C + c]), *A = m.A + c * N;
            const auto decay = [&](int64_t n) { return exponential(dt * load(A + n, N - n)); };
            const float out = advance(N, state + (b * C + c) * N, B_N, C_N, dt * u[c], decay);
            mixed[b * C + c] = out + m.D[c] * u[c];
        }
    });
    for (int64_t b = 0; b < B; b++) activate(SILU, C, &both[b * 2 * C + C], &mixed[b * C]);
    multiply({{&m.out, mixed.data(), C, y.data(), D, B}}, threads);
    leave(m.residual, B, D, y.data(), stream);
}

// `window` (B, K - 1, C) of what is convolved and `state` (B, H, P, N) move on in place.
void decode_mamba2(const Mamba2 *mamba, int64_t B, int64_t threads, const float *read, float *stream, float *window,
                   float *state) {
    const Mamba2 &m = *mamba;
    const int64_t D = m.out.outputs, H = m.heads, P = m.head_dim, N = m.state, C = H * P, width = C / m.groups;
    const int64_t U = m.convolution.channels, K = m.convolution.taps, all = m.input.outputs;
    std::vector<float> entered(B * D), parts(B * all), mixed(B * C), y(B * D);
    normalise_rows(m.residual.before, B, D, read, entered.data());
    multiply({{&m.input, entered.data(), D, parts.data(), all, B}}, threads);
    for (int64_t b = 0; b < B; b++) convolve(m.convolution, window + b * (K - 1) * U, &parts[b * all + C]);
    parallel(B * H, worth(2 * B * C * N, threads), [&](int64_t task) {
        const int64_t b = task / H, h = task % H, g = h * m.groups / H;
        const float *x = &parts[b * all + C], *B_N = x + C + g * N, *C_N = B_N + m.groups * N;
        const float given = softplus(parts[b * all + C + U + h] + m.dt_bias[h]);
        const float dt = std::min(std::max(given, float(m.floor)), float(m.ceiling));
        const float kept = exponential(Vector{} + dt * m.A[h])[0];
        for (int64_t c = h * P; c < (h + 1) * P; c++) {
            const auto decay = [&](int64_t) { return kept; };
            const float out = advance(N, state + (b * C + c) * N, B_N, C_N, dt * x[c], decay);
            mixed[b * C + c] = out + m.D[h] * x[c];
        }
    });
    for (int64_t b = 0; b < B; b++) {
        float *row = &mixed[b * C];
        if (!m.before_gate) activate(SILU, C, &parts[b * all], row);
        for (int64_t g = 0; g < m.groups && m.norm.kind; g++) {
            const Norm norm{m.norm.weight + g * width, nullptr, m.norm.eps, m.norm.kind};
            normalise(norm, width, row + g * width, row + g * width);
        }
        if (m.before_gate) activate(SILU, C, &parts[b * all], row);
    }
    multiply({{&m.out, mixed.data(), C, y.data(), D, B}}, threads);
    leave(m.residual, B, D, y.data(), stream);
}
}
