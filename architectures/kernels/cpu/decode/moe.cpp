// A residual branch of routed experts for one new token of each of a few sequences. float32, for CPUs.
//
// Shapes: B rows, D d_model, F hidden width of an expert, X experts, K choices of a token.
#include "decode.h"

namespace {

struct Experts {
    Residual residual;
    Linear router;
    const float *selection;  // (X), added to the scores where experts are chosen; may be null
    int64_t choices, sigmoid, renormalise;
    double scaling;
    Linear gate, up, down;  // of the first expert, the others behind it; without a gate it has no outputs
    Linear shared_gate, shared_up, shared_down, shared_share;  // of the shared ones, no outputs where there are none
    int64_t activation;
};

// The experts of a token and what each counts, the best first.
void choose(const Experts &e, const float *logits, int64_t *experts, float *gates) {
    const int64_t X = e.router.outputs, K = e.choices;
    std::vector<float> scores(X), ranked(X);
    const float top = *std::max_element(logits, logits + X);
    float sum = 0;
    for (int64_t x = 0; x < X; x++) {
        scores[x] = e.sigmoid ? 1.0f / (1.0f + std::exp(-logits[x])) : std::exp(logits[x] - top);
        sum += scores[x];
    }
    for (int64_t x = 0; x < X; x++) {
        if (!e.sigmoid) scores[x] /= sum;
        ranked[x] = scores[x] + (e.selection ? e.selection[x] : 0.0f);
    }
    float total = 0;
    for (int64_t k = 0; k < K; k++) {
        experts[k] = std::max_element(ranked.begin(), ranked.end()) - ranked.begin();
        ranked[experts[k]] = -INFINITY;
        total += gates[k] = scores[experts[k]];
    }
    for (int64_t k = 0; k < K; k++) gates[k] = (e.renormalise ? gates[k] / (total + 1e-20f) : gates[k]) * e.scaling;
}

Linear of(const Linear &first, int64_t expert) {
    Linear own = first;
    own.weight += expert * first.outputs * first.inputs;
    return own;
}

}  // namespace

extern "C" {

void decode_experts(const Experts *experts, int64_t B, int64_t threads, const float *read, float *stream) {
    const Experts &e = *experts;
    const int64_t D = e.down.outputs, F = e.up.outputs, X = e.router.outputs, K = e.choices, S = e.shared_up.outputs;
    const int64_t M = B * K;  // pairs of a token and an expert, sorted by expert
    std::vector<float> entered(B * D), logits(B * X), gates(M);
    std::vector<int64_t> chosen(M), order(M), place(M), ends(X);
    normalise_rows(e.residual.before, B, D, read, entered.data());
    multiply({{&e.router, entered.data(), D, logits.data(), X, B}}, threads);
    for (int64_t b = 0; b < B; b++) choose(e, &logits[b * X], &chosen[b * K], &gates[b * K]);
    for (int64_t m = 0; m < M; m++) order[m] = m;
    std::stable_sort(order.begin(), order.end(), [&](int64_t a, int64_t b) { return chosen[a] < chosen[b]; });
    std::vector<float> x(M * D), gate(M * e.gate.outputs), up(M * F), y(M * D), sum(B * D);
    for (int64_t m = 0; m < M; m++) {
        place[order[m]] = m;
        ends[chosen[order[m]]] = m + 1;
        std::memcpy(&x[m * D], &entered[order[m] / K * D], D * sizeof(float));
    }
    std::vector<float> shared_gate(B * e.shared_gate.outputs), shared(B * S), apart(B * D), share(B);
    std::vector<Linear> matrices;
    matrices.reserve(3 * X);  // products point into it
    std::vector<Product> in, out;
    for (int64_t expert = 0, first = 0; expert < X; expert++) {
        const int64_t rows = ends[expert] - first;
        if (rows <= 0) continue;
        const auto add = [&](std::vector<Product> &products, const Linear &stack, const float *from, float *to) {
            if (!stack.outputs) return;
            matrices.push_back(of(stack, expert));
            products.push_back({&matrices.back(), from + first * stack.inputs, stack.inputs,
                                to + first * stack.outputs, stack.outputs, rows});
        };
        add(in, e.gate, x.data(), gate.data());
        add(in, e.up, x.data(), up.data());
        add(out, e.down, up.data(), y.data());
        first = ends[expert];
    }
    const auto add_shared = [&](std::vector<Product> &products, const Linear &linear, const float *from, float *to) {
        if (linear.outputs) products.push_back({&linear, from, linear.inputs, to, linear.outputs, B});
    };
    add_shared(in, e.shared_gate, entered.data(), shared_gate.data());
    add_shared(in, e.shared_up, entered.data(), shared.data());
    add_shared(in, e.shared_share, entered.data(), share.data());
    multiply(in, threads);
    activate(e.activation, M * F, gate.empty() ? nullptr : gate.data(), up.data());
    activate(e.activation, B * S, shared_gate.empty() ? nullptr : shared_gate.data(), shared.data());
    add_shared(out, e.shared_down, shared.data(), apart.data());
    multiply(out, threads);
    for (int64_t b = 0; b < B; b++) {
        for (int64_t k = 0; k < K; k++)
            for (int64_t i = 0; i < D; i++) sum[b * D + i] += gates[b * K + k] * y[place[b * K + k] * D + i];
        const float counts = e.shared_share.outputs ? 1.0f / (1.0f + std::exp(-share[b])) : 1.0f;
        for (int64_t i = 0; i < D && S; i++) sum[b * D + i] += counts * apart[b * D + i];
    }
    leave(e.residual, B, D, sum.data(), stream);
}
}
