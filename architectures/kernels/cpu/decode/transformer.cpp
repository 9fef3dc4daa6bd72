// One residual branch of a block for one new token of each of a few sequences: attention over a cache, or a dense
// feed-forward. float32, for CPUs.
//
// Shapes: B rows, D d_model, H query heads, G key/value heads, E head_dim, S slots of a cache, F hidden width.
#include "decode.h"

namespace {

struct Attention {
    Residual residual;
    Linear q, k, v, out;  // without k and v the slots are read as they are (cross-attention)
    Norm q_norm, k_norm;
    int64_t by_head;  // whether a norm is of each head, not of all together
    int64_t heads, kv_heads, head_dim;
    int64_t rotated, interleaved;  // dimensions of a head that are turned, the first
    const float *cos, *sin;        // (positions, rotated / 2)
    const float *bias;             // of the scores by distance (H, room): the last is that of distance 0; may be null
    int64_t room;
    double scale;
};

struct Dense {
    Residual residual;
    Linear gate, up, down;  // without a gate it has no outputs
    int64_t activation;
};

// Keys or values: strides of row, head and slot.
struct Slots {
    float *data;
    int64_t rows, heads, slots;

    float *at(int64_t row, int64_t head, int64_t slot) const {
        return data + row * rows + head * heads + slot * slots;
    }
};

void turn(const Attention &a, int64_t position, float *head) {
    const int64_t half = a.rotated / 2, step = a.interleaved ? 2 : 1, apart = a.interleaved ? 1 : half;
    const float *cos = a.cos + position * half, *sin = a.sin + position * half;
    for (int64_t i = 0; i < half; i++) {
        float &first = head[i * step], &second = head[i * step + apart];
        const float x = first, y = second;
        first = x * cos[i] - y * sin[i];
        second = y * cos[i] + x * sin[i];
    }
}

// The softmax of `count` scores in place, zero where no slot may be seen; lanes beyond are zero.
void softmax(float *scores, int64_t count) {
    const float lowest = -INFINITY;
    for (int64_t s = count; s % LANES; s++) scores[s] = lowest;
    Vector most = Vector{} + lowest;
    for (int64_t s = 0; s < count; s += LANES) most = larger(load(scores + s), most);
    const float top = largest(most);
    if (top == lowest) return std::fill(scores, scores + count, 0.0f);
    Vector sum = {};
    for (int64_t s = 0; s < count; s += LANES) {
        const Vector e = exponential(load(scores + s) - top);
        store(scores + s, e, LANES);
        sum += e;
    }
    const float scale = 1.0f / total(sum);
    for (int64_t s = 0; s < count; s += LANES) store(scores + s, load(scores + s) * scale, LANES);
}

// The sum of `count` values times their weights.
void weigh(const float *weights, const float *values, int64_t stride, int64_t count, int64_t width, float *to) {
    constexpr int64_t WIDE = 4 * LANES;
    for (int64_t first = 0; first < width; first += WIDE) {
        Vector sum[4] = {};
        const int64_t here = std::min(WIDE, width - first);
        for (int64_t s = 0; s < count; s++) {
            const float *v = values + s * stride + first;
            if (here == WIDE)
                for (int64_t i = 0; i < 4; i++) sum[i] += weights[s] * load(v + i * LANES);
            else
                for (int64_t i = 0; i * LANES < here; i++) sum[i] += weights[s] * load(v + i * LANES, here - i * LANES);
        }
        for (int64_t i = 0; i * LANES < here; i++) store(to + first + i * LANES, sum[i], here - i * LANES);
    }
}

}  // namespace

extern "C" {

// `read` (B, D) enters, `stream` (B, D) is added to; they may be the same. The keys and values of the new token of a
// row are put at its position, and it sees those up to there. `visible` (B, S) hides slots where 0; it may be null.
void decode_attention(const Attention *attention, int64_t B, int64_t threads, const float *read, float *stream,
                      const int64_t *positions, const uint8_t *visible, int64_t S, float *k_data, int64_t k_rows,
                      int64_t k_heads, int64_t k_slots, float *v_data, int64_t v_rows, int64_t v_heads,
                      int64_t v_slots) {
    const Attention &a = *attention;
    const Slots keys{k_data, k_rows, k_heads, k_slots}, values{v_data, v_rows, v_heads, v_slots};
    const int64_t D = a.out.outputs, E = a.head_dim, Q = a.q.outputs, KV = a.k.outputs;
    std::vector<float> entered(B * D), q(B * Q), k(B * KV), v(B * KV), mixed(B * Q), y(B * D);
    normalise_rows(a.residual.before, B, D, read, entered.data());
    std::vector<Product> products{{&a.q, entered.data(), D, q.data(), Q, B}};
    if (KV) products.push_back({&a.k, entered.data(), D, k.data(), KV, B});
    if (KV) products.push_back({&a.v, entered.data(), D, v.data(), KV, B});
    multiply(products, threads);
    for (int64_t n = 0, width = a.by_head ? E : Q; n < B * Q; n += width) normalise(a.q_norm, width, &q[n], &q[n]);
    for (int64_t n = 0, width = a.by_head ? E : KV; n < B * KV; n += width) normalise(a.k_norm, width, &k[n], &k[n]);
    int64_t longest = 0;
    for (int64_t b = 0; b < B; b++) {
        const int64_t position = positions[b];
        longest = std::max(longest, position + 1);
        for (int64_t h = 0; h < a.heads && a.rotated; h++) turn(a, position, &q[b * Q + h * E]);
        for (int64_t g = 0; g < a.kv_heads && KV; g++) {
            if (a.rotated) turn(a, position, &k[b * KV + g * E]);
            std::memcpy(keys.at(b, g, position), &k[b * KV + g * E], E * sizeof(float));
            std::memcpy(values.at(b, g, position), &v[b * KV + g * E], E * sizeof(float));
        }
    }
    parallel(B * a.heads, worth(2 * B * a.heads * longest * E, threads), [&](int64_t task) {
        const int64_t b = task / a.heads, h = task % a.heads, g = h * a.kv_heads / a.heads;
        const int64_t count = positions[b] + 1;
        static thread_local std::vector<float> scores;
        scores.resize((longest + LANES - 1) / LANES * LANES);
        times(keys.at(b, g, 0), k_slots, count, E, 1, &q[b * Q + h * E], 0, scores.data(), 0);
        const float scale = a.scale, *bias = a.bias ? a.bias + (h + 1) * a.room - count : nullptr;
        for (int64_t s = 0; s < count; s++) scores[s] = scores[s] * scale + (bias ? bias[s] : 0.0f);
        for (int64_t s = 0; s < count && visible; s++)
            if (!visible[b * S + s]) scores[s] = -INFINITY;
        softmax(scores.data(), count);
        weigh(scores.data(), values.at(b, g, 0), v_slots, count, E, &mixed[b * Q + h * E]);
    });
    multiply({{&a.out, mixed.data(), Q, y.data(), D, B}}, threads);
    leave(a.residual, B, D, y.data(), stream);
}

void decode_dense(const Dense *dense, int64_t B, int64_t threads, const float *read, float *stream) {
    const Dense &d = *dense;
    const int64_t D = d.down.outputs, F = d.up.outputs;
    std::vector<float> entered(B * D), gate(B * d.gate.outputs), up(B * F), y(B * D);
    normalise_rows(d.residual.before, B, D, read, entered.data());
    std::vector<Product> products{{&d.up, entered.data(), D, up.data(), F, B}};
    if (d.gate.outputs) products.push_back({&d.gate, entered.data(), D, gate.data(), F, B});
    multiply(products, threads);
    activate(d.activation, B * F, d.gate.outputs ? gate.data() : nullptr, up.data());
    multiply({{&d.down, up.data(), F, y.data(), D, B}}, threads);
    leave(d.residual, B, D, y.data(), stream);
}
}
