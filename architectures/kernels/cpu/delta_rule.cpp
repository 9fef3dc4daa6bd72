// Linear attention with a transition that is diagonal plus rank one, and its gradient, float32, for CPUs. Each step
// changes the memory S (keys by values) of a head, and a token reads it after its last step:
//
//     S_t = diag(w_t) S_(t-1) + b_t (v_t + S_(t-1)^T a_t)^T              delta rules and gated linear attention
//     S_t = diag(w_t) S_(t-1) + b_t (S_(t-1)^T a_t)^T + k_t v_t^T        "apart": RWKV-7
//     y_t = S_t^T q_t
//
// For a delta rule b = beta k and a = -w k. The recurrence is computed step by step: for heads of usual widths a chunk
// of matrix products has more arithmetic, and its triangular system is sequential.
//
// Shapes: B batch, T tokens, U steps of a token, H heads, K key width, V value width. One head of one sequence is a
// task. Forwards the values lie in vectors, in panels of few vectors of which all keys stay in the first cache; both
// sums over keys need no sum of lanes. Backwards the keys lie in vectors: all sums but one are over values. Memories
// are kept every CHUNK steps; backwards those between are computed again, for some values at a time.
#include "product.h"

#include <cmath>

namespace {

constexpr int64_t CHUNK = 16, KEPT_BYTES = 96 * 1024;
constexpr float TINY = 1e-6f;  // added to squared lengths, as by `unit`
enum Decay { NO_DECAY, OF_HEADS, OF_CHANNELS };
enum Kind { LINEAR, DELTA, APART };

int64_t whole(int64_t width) { return (width + LANES - 1) / LANES * LANES; }

struct Shape {
    int64_t batch, tokens, updates, heads, key, value;
    int64_t steps() const { return tokens * updates; }
    int64_t chunks() const { return (steps() + CHUNK - 1) / CHUNK; }
    int64_t keys() const { return whole(key); }
    int64_t values() const { return whole(value); }
    int64_t memory() const { return keys() * values(); }
};

// What is read of a head. Rows of q, k and v, of all heads of a step, have strides of their own; all else is
// contiguous.
struct Operands {
    int64_t kind, decays, unit, q_stride, k_stride, v_stride;
    double scale;
    const float *q, *k, *v, *beta, *decay, *a, *b;
};

// The steps of one chunk of one head; rows are padded with zeros.
struct Chunk {
    std::vector<float> q, a, b, k, w, wq, v, u, y;
    float qb[CHUNK], qk[CHUNK], beta[CHUNK], q_inverse[CHUNK], k_inverse[CHUNK];
    explicit Chunk(const Shape &s)
        : q(CHUNK * s.keys()), a(q), b(q), k(q), w(q), wq(q), v(CHUNK * s.values()), u(v), y(v) {}
};

float dot(const float *a, const float *b, int64_t width) {
    Vector sum = {};
    for (int64_t i = 0; i < width; i += LANES) sum += load(a + i) * load(b + i);
    return total(sum);
}

// Reads a row, pads it, and multiplies it by a scale and by its inverse length, which is returned, if `unit`.
float read_row(const float *from, int64_t width, float scale, bool unit, float *to) {
    Vector squares = {};
    vectors(0, width, [&](int64_t i, int64_t lanes) {
        const Vector x = load(from + i, lanes);
        squares += x * x;
        store(to + i, x);
    });
    const float inverse = unit ? 1.0f / std::sqrt(total(squares) + TINY) : 1.0f;
    if (inverse * scale != 1.0f)
        for (int64_t i = 0; i < width; i += LANES) store(to + i, load(to + i) * (inverse * scale));
    return inverse;
}

void read_decay(const Shape &s, const Operands &o, int64_t token, int64_t head, bool first, float *w) {
    for (int64_t i = 0; i < s.key; i += LANES) {
        const int64_t lanes = std::min(LANES, s.key - i), at = token * s.heads + head;
        Vector one = Vector{} + 1.0f;
        if (first && o.decays == OF_HEADS) one = exponential(Vector{} + o.decay[at]);
        if (first && o.decays == OF_CHANNELS) one = exponential(load(o.decay + at * s.key + i, lanes));
        store(w + i, Vector{});
        store(w + i, one, lanes);
    }
}

void read_chunk(const Shape &s, const Operands &o, int64_t b, int64_t head, int64_t from, int64_t steps, Chunk &c) {
    for (int64_t t = 0; t < steps; t++) {
        const int64_t step = from + t, token = b * s.tokens + step / s.updates, row = b * s.steps() + step;
        const int64_t at = t * s.keys(), of_head = row * s.heads + head;
        const bool reads = step % s.updates == s.updates - 1;
        float *q = &c.q[at], *a = &c.a[at], *beta_k = &c.b[at], *k = &c.k[at], *w = &c.w[at];
        if (reads)
            c.q_inverse[t] = read_row(o.q + token * o.q_stride + head * s.key, s.key, o.scale, o.unit, q);
        else
            std::fill(q, q + s.keys(), 0.0f);
        c.k_inverse[t] = read_row(o.k + row * o.k_stride + head * s.key, s.key, 1.0f, o.unit, k);
        read_row(o.v + row * o.v_stride + head * s.value, s.value, 1.0f, false, &c.v[t * s.values()]);
        read_decay(s, o, token, head, step % s.updates == 0, w);
        c.beta[t] = o.beta ? o.beta[of_head] : 1.0f;
        if (o.kind == APART) {
            read_row(o.a + of_head * s.key, s.key, 1.0f, false, a);
            read_row(o.b + of_head * s.key, s.key, 1.0f, false, beta_k);
        }
        for (int64_t i = 0; i < s.keys(); i += LANES) {
            if (o.kind != APART) {
                store(a + i, o.kind == DELTA ? -load(w + i) * load(k + i) : Vector{});
                store(beta_k + i, c.beta[t] * load(k + i));
            }
            store(&c.wq[at + i], load(w + i) * load(q + i));
        }
        c.qb[t] = dot(q, beta_k, s.keys()), c.qk[t] = dot(q, k, s.keys());
    }
}

// Vectors of a panel: what a step writes apart needs more registers. NEON has as many registers as AVX-512, but takes
// the panels of SSE2, so that both keep the same memories in `starts` and the test of NEON can compare them.
constexpr int64_t widest(bool apart) { return (REGISTERS >= 32 && LANES > 4 ? 4 : 3) - apart; }

// The widths of panels, in vectors: as equal as they can be.
template <class Run> void panels(int64_t values, int64_t widest, const Run &run) {
    const int64_t all = values / LANES, count = (all + widest - 1) / widest;
    for (int64_t i = 0, from = 0; i < count; i++) {
        const int64_t width = all / count + (i < all % count);
        run(from * LANES, width);
        from += width;
    }
}

// One pass over a panel: what the step before wrote, and what this step reads.
template <int width, bool apart, bool wrote, bool reads>
[[gnu::always_inline]] inline void pass(const Shape &s, const Chunk &c, int64_t t, const Vector *u, const Vector *v,
                                        float *S, Vector *r, Vector *p) {
    const int64_t now = t * s.keys(), before = now - s.keys();
    const int64_t read = reads ? now : before, written = wrote ? before : now;
    const float *a = &c.a[read], *wq = &c.wq[read];  // held here: a store might change what points to them
    const float *w = &c.w[written], *b = &c.b[written], *k = &c.k[written];
    for (int64_t i = 0; i < s.key; i++, S += width * LANES) {
        const Vector at_a = a[i] - Vector{}, at_wq = wq[i] - Vector{}, at_w = w[i] - Vector{};  // in all lanes
        const Vector at_b = b[i] - Vector{}, at_k = k[i] - Vector{};
#pragma GCC unroll 4
        for (int j = 0; j < width; j++) {
            Vector state = load(S + j * LANES);
            if (wrote) {
                state = at_w * state + at_b * u[j];
                if (apart) state += at_k * v[j];
                store(S + j * LANES, state);
            }
            if (reads) r[j] += at_a * state, p[j] += at_wq * state;
        }
    }
}

template <int width, bool apart>
void forward_panel(const Shape &s, Chunk &c, int64_t steps, int64_t from, float *S) {
    Vector u[width] = {}, v[width] = {};
    for (int64_t t = 0; t <= steps; t++) {
        Vector r[width] = {}, p[width] = {};
        if (t == steps) {
            pass<width, apart, true, false>(s, c, t, u, v, S, r, p);
            break;
        }
        if (t)
            pass<width, apart, true, true>(s, c, t, u, v, S, r, p);
        else
            pass<width, apart, false, true>(s, c, t, u, v, S, r, p);
#pragma GCC unroll 4
        for (int j = 0; j < width; j++) {
            const int64_t at = t * s.values() + from + j * LANES;
            v[j] = load(&c.v[at]);
            u[j] = apart ? r[j] : v[j] + r[j];
            p[j] += c.qb[t] * u[j];
            if (apart) p[j] += c.qk[t] * v[j];
            store(&c.u[at], u[j]), store(&c.y[at], p[j]);
        }
    }
}

template <bool apart, int width = widest(apart)>
void forward_width(int64_t vectors, const Shape &s, Chunk &c, int64_t steps, int64_t from, float *S) {
    if (vectors == width) return forward_panel<width, apart>(s, c, steps, from, S);
    if constexpr (width > 1) forward_width<apart, width - 1>(vectors, s, c, steps, from, S);
}

// The memory (K, V) of a head as panels, or the other way round.
template <bool to_panels> void repack(const Shape &s, bool apart, float *memory, float *packed) {
    panels(s.values(), widest(apart), [&](int64_t from, int64_t width) {
        for (int64_t i = 0; i < s.key; i++)
            for (int64_t j = from; j < std::min(from + width * LANES, s.value); j++) {
                float &one = packed[from * s.keys() + i * width * LANES + j - from];
                if (to_panels)
                    one = memory[i * s.value + j];
                else
                    memory[i * s.value + j] = one;
            }
    });
}

}  // namespace

extern "C" {

// Numbers of `starts`, the memories before each chunk.
int64_t delta_starts(int64_t batch, int64_t tokens, int64_t updates, int64_t heads, int64_t key, int64_t value) {
    const Shape s{batch, tokens, updates, heads, key, value};
    return batch * heads * s.chunks() * s.memory();
}

// `starts` may be null. `u` (B, T U, H, V) is what the steps write for b.
void delta_forward(int64_t batch, int64_t tokens, int64_t updates, int64_t heads, int64_t key, int64_t value,
                   int64_t threads, int64_t kind, int64_t decays, int64_t unit, int64_t q_stride, int64_t k_stride,
                   int64_t v_stride, double scale, const float *q, const float *k, const float *v, const float *beta,
                   const float *decay, const float *a, const float *b, const float *initial, float *y, float *u,
                   float *starts, float *last) {
    const Shape s{batch, tokens, updates, heads, key, value};
    const Operands o{kind, decays, unit, q_stride, k_stride, v_stride, scale, q, k, v, beta, decay, a, b};
    parallel(batch * heads, threads, [&](int64_t task) {
        const int64_t sequence = task / heads, head = task % heads;
        std::vector<float> memory(s.memory());
        Chunk c(s);
        repack<true>(s, kind == APART, const_cast<float *>(initial) + task * key * value, memory.data());
        for (int64_t chunk = 0; chunk < s.chunks(); chunk++) {
            const int64_t from = chunk * CHUNK, steps = std::min(CHUNK, s.steps() - from);
            if (starts)
                std::copy(memory.begin(), memory.end(), starts + (task * s.chunks() + chunk) * s.memory());
            read_chunk(s, o, sequence, head, from, steps, c);
            panels(s.values(), widest(kind == APART), [&](int64_t at, int64_t width) {
                if (kind == APART)
                    forward_width<true>(width, s, c, steps, at, &memory[at * s.keys()]);
                else
                    forward_width<false>(width, s, c, steps, at, &memory[at * s.keys()]);
            });
            for (int64_t t = 0; t < steps; t++) {
                if (u)
                    std::memcpy(u + ((sequence * s.steps() + from + t) * heads + head) * value, &c.u[t * s.values()],
                                value * sizeof(float));
                if ((from + t) % updates == updates - 1)
                    std::memcpy(y + ((sequence * tokens + (from + t) / updates) * heads + head) * value,
                                &c.y[t * s.values()], value * sizeof(float));
            }
        }
        repack<false>(s, kind == APART, last + task * key * value, memory.data());
    });
}
}

namespace {

// Gradients of the rows of a chunk, and what the gradient of the memory needs.
struct Slopes {
    std::vector<float> q, a, b, k, w, dy, dv, dr, states;
    std::vector<Vector> sums, other;
    int64_t block;  // values at a time
    explicit Slopes(const Shape &s) : q(CHUNK * s.keys()), a(q), b(q), k(q), w(q) {
        const int64_t fitting = KEPT_BYTES / (CHUNK * s.keys() * 4) / LANES * LANES;
        block = std::min(s.values(), std::max(LANES, fitting));
        dy.resize(CHUNK * s.values()), dv.resize(dy.size()), dr.resize(block);
        states.resize(CHUNK * block * s.keys());
        sums.resize(block), other.resize(block);
    }
};

// The memories before each step of a chunk, as (values, keys), of some values.
template <bool apart>
void remember(const Shape &s, const Chunk &c, int64_t steps, int64_t from, int64_t count, const float *start,
              Slopes &d) {
    const int64_t K = s.keys(), size = d.block * K;
    panels(s.values(), widest(apart), [&](int64_t first, int64_t width) {
        for (int64_t j = std::max(first, from); j < std::min(first + width * LANES, from + count); j += LANES)
            for (int64_t i = 0; i < K; i += LANES)
                transpose_square(start + first * K + i * width * LANES + j - first, width * LANES,
                                 &d.states[(j - from) * K + i], K);
    });
    for (int64_t t = 0; t + 1 < steps; t++)
        for (int64_t i = 0; i < K; i += LANES) {
            const Vector w = load(&c.w[t * K + i]), b = load(&c.b[t * K + i]), k = load(&c.k[t * K + i]);
            const float *u = &c.u[t * s.values() + from], *v = &c.v[t * s.values() + from];
            const float *old = &d.states[t * size + i];
            float *next = &d.states[(t + 1) * size + i];
            for (int64_t j = 0; j < count; j++) {
                Vector state = w * load(old + j * K) + b * u[j];
                if (apart) state += k * v[j];
                store(next + j * K, state);
            }
        }
}

// Products of the gradient of the memory (values, keys) with a row of keys, without the sums of lanes.
void products(int64_t count, int64_t K, const float *G, const float *row, Vector *sums) {
    for (int64_t j = 0; j < count; j++) {
        sums[j] = Vector{};
        for (int64_t i = 0; i < K; i += LANES) sums[j] += load(G + j * K + i) * load(row + i);
    }
}

// One step backwards for some values. G (values, keys) is the gradient at the memory after the step, less what the
// token reads of it; then that at the memory before.
template <bool apart>
void step_backward(const Shape &s, const Chunk &c, int64_t t, int64_t from, int64_t count, float *G, Slopes &d) {
    const int64_t K = s.keys(), at = t * s.values() + from, row = t * K;
    const float *dy = &d.dy[at], *u = &c.u[at], *v = &c.v[at], *state = &d.states[t * d.block * K];
    float *dr = d.dr.data();
    Vector *sums = d.sums.data(), *other = d.other.data();
    for (int64_t j = 0; j < count; j += LANES) {
        const Vector at_u = totals(sums + j) + c.qb[t] * load(dy + j);
        store(dr + j, at_u);
        store(&d.dv[at + j], apart ? totals(other + j) + c.qk[t] * load(dy + j) : at_u);
    }
    const float along_u = dot(u, dy, count), along_v = apart ? dot(v, dy, count) : 0.0f;
    for (int64_t i = 0; i < K; i += LANES) {
        const Vector q = load(&c.q[row + i]), w = load(&c.w[row + i]), a = load(&c.a[row + i]);
        const Vector b = t ? load(&c.b[row - K + i]) : Vector{}, k = t && apart ? load(&c.k[row - K + i]) : Vector{};
        Vector read = {}, recalled = {}, written = {}, stored = {}, kept = {};
        for (int64_t j = 0; j < count; j++) {
            const Vector old = load(state + j * K + i);
            Vector g = load(G + j * K + i) + q * dy[j];
            read += old * dy[j];
            recalled += old * dr[j];
            written += g * u[j];
            if (apart) stored += g * v[j];
            kept += g * old;
            g = w * g + a * dr[j];
            store(G + j * K + i, g);
            sums[j] = i ? sums[j] + g * b : g * b;
            if (apart) other[j] = i ? other[j] + g * k : g * k;
        }
        Vector dq = load(&d.q[row + i]) + w * read + load(&c.b[row + i]) * along_u;
        if (apart) dq += load(&c.k[row + i]) * along_v;
        store(&d.q[row + i], dq);
        store(&d.a[row + i], load(&d.a[row + i]) + recalled);
        store(&d.b[row + i], load(&d.b[row + i]) + written);
        if (apart) store(&d.k[row + i], load(&d.k[row + i]) + stored);
        store(&d.w[row + i], load(&d.w[row + i]) + kept);
    }
}

template <bool apart>
void chunk_backward(const Shape &s, const Chunk &c, int64_t steps, const float *start, float *G, Slopes &d) {
    for (std::vector<float> *part : {&d.q, &d.a, &d.b, &d.k, &d.w}) std::fill(part->begin(), part->end(), 0.0f);
    for (int64_t from = 0; from < s.values(); from += d.block) {
        const int64_t count = std::min(d.block, s.values() - from);
        float *g = G + from * s.keys();
        remember<apart>(s, c, steps, from, count, start, d);
        products(count, s.keys(), g, &c.b[(steps - 1) * s.keys()], d.sums.data());
        if (apart) products(count, s.keys(), g, &c.k[(steps - 1) * s.keys()], d.other.data());
        for (int64_t t = steps - 1; t >= 0; t--) step_backward<apart>(s, c, t, from, count, g, d);
    }
}

// The gradient of a row that `read_row` read, from that of the row scaled so.
void row_backward(const float *row, float *slope, int64_t width, float scale, float inverse, bool unit, float *to) {
    const float along = unit ? dot(row, slope, whole(width)) / scale : 0.0f;
    vectors(0, width, [&](int64_t i, int64_t lanes) {
        store(to + i, inverse * (scale * load(slope + i) - along * load(row + i)), lanes);
    });
}

struct Gradients {
    float *q, *k, *v, *beta, *decay, *a, *b;
};

void write_gradients(const Shape &s, const Operands &o, const Gradients &to, int64_t sequence, int64_t head,
                     int64_t from, int64_t steps, const Chunk &c, Slopes &d) {
    for (int64_t t = 0; t < steps; t++) {
        const int64_t step = from + t, token = sequence * s.tokens + step / s.updates, at = t * s.keys();
        const int64_t of_head = (sequence * s.steps() + step) * s.heads + head, of_token = token * s.heads + head;
        std::memcpy(to.v + of_head * s.value, &d.dv[t * s.values()], s.value * sizeof(float));
        if (o.kind == APART) {
            std::memcpy(to.a + of_head * s.key, &d.a[at], s.key * sizeof(float));
            std::memcpy(to.b + of_head * s.key, &d.b[at], s.key * sizeof(float));
        } else {
            if (to.beta) to.beta[of_head] = dot(&d.b[at], &c.k[at], s.keys());
            for (int64_t i = at; i < at + s.keys(); i += LANES) {
                const Vector w = load(&c.w[i]), da = o.kind == DELTA ? load(&d.a[i]) : Vector{};
                store(&d.k[i], c.beta[t] * load(&d.b[i]) - w * da);
                store(&d.w[i], load(&d.w[i]) - load(&c.k[i]) * da);
            }
        }
        row_backward(&c.k[at], &d.k[at], s.key, 1.0f, c.k_inverse[t], o.unit, to.k + of_head * s.key);
        if (step % s.updates == s.updates - 1)
            row_backward(&c.q[at], &d.q[at], s.key, o.scale, c.q_inverse[t], o.unit, to.q + of_token * s.key);
        if (step % s.updates) continue;
        if (o.decays == OF_HEADS) to.decay[of_token] = dot(&d.w[at], &c.w[at], s.keys());
        if (o.decays == OF_CHANNELS)
            vectors(0, s.key, [&](int64_t i, int64_t lanes) {
                store(to.decay + of_token * s.key + i, load(&d.w[at + i]) * load(&c.w[at + i]), lanes);
            });
    }
}

}  // namespace

// All gradients are contiguous; those of operands that are null are not written.
extern "C" void delta_backward(int64_t batch, int64_t tokens, int64_t updates, int64_t heads, int64_t key,
                               int64_t value, int64_t threads, int64_t kind, int64_t decays, int64_t unit,
                               int64_t q_stride, int64_t k_stride, int64_t v_stride, double scale, const float *q,
                               const float *k, const float *v, const float *beta, const float *decay, const float *a,
                               const float *b, const float *u, const float *starts, const float *dy,
                               const float *d_last, float *dq, float *dk, float *dv, float *d_beta, float *d_decay,
                               float *da, float *db, float *d_initial) {
    const Shape s{batch, tokens, updates, heads, key, value};
    const Operands o{kind, decays, unit, q_stride, k_stride, v_stride, scale, q, k, v, beta, decay, a, b};
    const Gradients to{dq, dk, dv, d_beta, d_decay, da, db};
    parallel(batch * heads, threads, [&](int64_t task) {
        const int64_t sequence = task / heads, head = task % heads;
        std::vector<float> G(s.memory());
        Chunk c(s);
        Slopes d(s);
        for (int64_t i = 0; i < key; i++)
            for (int64_t j = 0; j < value; j++) G[j * s.keys() + i] = d_last[(task * key + i) * value + j];
        for (int64_t chunk = s.chunks() - 1; chunk >= 0; chunk--) {
            const int64_t from = chunk * CHUNK, steps = std::min(CHUNK, s.steps() - from);
            read_chunk(s, o, sequence, head, from, steps, c);
            for (int64_t t = 0; t < steps; t++) {
                const int64_t row = (sequence * s.steps() + from + t) * heads + head, token = (from + t) / updates;
                read_row(u + row * value, value, 1.0f, false, &c.u[t * s.values()]);
                float *slope = &d.dy[t * s.values()];
                if ((from + t) % updates == updates - 1)
                    read_row(dy + ((sequence * tokens + token) * heads + head) * value, value, 1.0f, false, slope);
                else
                    std::fill(slope, slope + s.values(), 0.0f);
            }
            const float *start = starts + (task * s.chunks() + chunk) * s.memory();
            if (kind == APART)
                chunk_backward<true>(s, c, steps, start, G.data(), d);
            else
                chunk_backward<false>(s, c, steps, start, G.data(), d);
            write_gradients(s, o, to, sequence, head, from, steps, c, d);
        }
        for (int64_t i = 0; i < key; i++)
            for (int64_t j = 0; j < value; j++) d_initial[(task * key + i) * value + j] = G[j * s.keys() + i];
    });
}
